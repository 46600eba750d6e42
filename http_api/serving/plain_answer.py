"""An answer that is ready, sent in one piece: to a write of small records, or to a fetch.

Its head is always the same but for a few words, so that it is put together here and handed to the connection with the
body by one write. aiohttp's own way (a multi-dict of headers, several checks of what they allow, a serialiser) costs a
third of a small request, and copies the body of a large one behind its head. What is not the common case (an old or a
last request of a connection, one for the head alone) goes aiohttp's way.
"""

from collections.abc import Mapping, Sequence

from aiohttp import ClientConnectionResetError, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11

_COPIED_BYTES_MAX = 16 << 10
"""A smaller body is copied behind the head: one piece costs the connection less than two."""


def encode_answer(
    status: int, phrase: str, body: bytes, content_type: str, headers: Mapping[str, str]
) -> bytes:
    """A whole answer of HTTP/1.1; ``headers`` hold no line breaks, and come after those of the body."""
    return _encode_head(status, phrase, len(body), content_type, headers) + body


def _encode_head(
    status: int, phrase: str, body_bytes: int, content_type: str, headers: Mapping[str, str]
) -> bytes:
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n"
        f"Date: {rfc822_formatted_time()}\r\n"
    )
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return head.encode() + b"\r\n"


class PlainAnswer(web.StreamResponse):
    """Status 200 and a body that is ready.

    Invariant: headers that are set before it is sent hold no line breaks; names and values come from the server alone,
    or were checked.
    """

    def __init__(
        self, body: bytes, content_type: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(headers=headers)
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
        """Send all of it.

        Raises:
            ClientConnectionResetError: the client has gone.
        """
        if self._is_sent:
            return None
        is_common = (
            request.version == HttpVersion11 and request.keep_alive and request.method != "HEAD"
        )
        if not is_common or super().keep_alive is False:
            return await self._send_with_care(request)
        self._is_sent = True
        head = _encode_head(200, "OK", len(self.body), self._type, self.headers)
        if len(self.body) <= _COPIED_BYTES_MAX:
            await request.writer.write(head + self.body)
            return None
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client went away before its answer")
        transport.writelines((head, self.body))
        await request.writer.drain()
        return None

    async def _send_with_care(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self.headers["Content-Type"] = self._type
        self.content_length = len(self.body)
        writer = await super().prepare(request)
        if request.method != "HEAD":
            await super().write(self.body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """The end, unless it was sent with the rest."""
        if not self._is_sent:
            await super().write_eof(data)
