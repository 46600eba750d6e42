"""The answer to a write of small records, sent in one piece.

Its head is always the same but for a few words, so that it is put together here, with the body behind it, and handed to
the connection by one write. aiohttp's own way (a multi-dict of headers, several checks of what they allow, a
serialiser) costs a third of such a request. What is not the common case (an old or a last request of a connection)
goes aiohttp's way.
"""

from collections.abc import Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11


def encode_answer(
    status: int, phrase: str, body: bytes, content_type: str, headers: Mapping[str, str]
) -> bytes:
    """A whole answer of HTTP/1.1; ``headers`` hold no line breaks, and come after those of the body."""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Date: {rfc822_formatted_time()}\r\n"
    )
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return head.encode() + b"\r\n" + body


class PlainAnswer(web.StreamResponse):
    """Status 200 and a body that is ready.

    Invariant: headers that are set before it is sent hold no line breaks; names and values come from the server alone,
    or were checked.
    """

    def __init__(self, body: bytes, content_type: str) -> None:
        super().__init__()
        self.body = body
        self._type = content_type
        self._is_sent = False

    @property
    def prepared(self) -> bool:
        """Whether its head is out."""
        return self._is_sent or super().prepared

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection goes on."""
        return True if self._is_sent else super().keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send all of it."""
        if self._is_sent:
            return None
        is_common = request.version == HttpVersion11 and request.keep_alive
        if not is_common or super().keep_alive is False:
            return await self._send_with_care(request)
        self._is_sent = True
        await request.writer.write(encode_answer(200, "OK", self.body, self._type, self.headers))
        return None

    async def _send_with_care(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self.headers["Content-Type"] = self._type
        self.content_length = len(self.body)
        writer = await super().prepare(request)
        await super().write(self.body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """The end, unless it was sent with the rest."""
        if not self._is_sent:
            await super().write_eof(data)
