"""A response whose whole body is known, sent with little overhead: to a write of small records, or to a fetch.

aiohttp's response objects cost a third of the time of a small request (a multi-dict of headers, several checks, a
serialiser), and copy a large body behind the head. So this module builds the head itself, and passes head and body to
the connection in one call. Less common requests use aiohttp's way: an old version of HTTP, the last request of a
connection, and ``HEAD``.
"""

from collections.abc import Mapping, Sequence

from aiohttp import ClientConnectionResetError, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11

COPIED_BYTES_MAX = 16 << 10
"""The largest body that is copied behind the head. For larger ones, a copy costs more than a second write."""


def encode_answer(
    status: int, phrase: str, body: bytes, content_type: str, headers: Mapping[str, str]
) -> bytes:
    """Return a whole HTTP/1.1 response. ``headers`` must have no line breaks."""
    return encode_head(status, phrase, len(body), content_type, headers) + body


def encode_head(
    status: int, phrase: str, body_bytes: int, content_type: str, headers: Mapping[str, str]
) -> bytes:
    """Return the head of an HTTP/1.1 response, with the empty line. ``headers`` must have no line breaks."""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n"
        f"Date: {rfc822_formatted_time()}\r\n"
    )
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return head.encode() + b"\r\n"


class PlainAnswer(web.StreamResponse):
    """A response with status 200 and a known body.

    Invariant: headers have no line breaks, because the server created or checked all names and values.
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
        """Whether the head is sent."""
        return self._is_sent or super().prepared

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return True if self._is_sent else super().keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send head and body.

        Raises:
            ClientConnectionResetError: the client has disconnected.
        """
        if self._is_sent:
            return None
        is_common = (
            request.version == HttpVersion11 and request.keep_alive and request.method != "HEAD"
        )
        if not is_common or super().keep_alive is False:
            return await self._send_with_care(request)
        self._is_sent = True
        head = encode_head(200, "OK", len(self.body), self._type, self.headers)
        if len(self.body) <= COPIED_BYTES_MAX:
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
        """End the response, unless it was sent with the head."""
        if not self._is_sent:
            await super().write_eof(data)
