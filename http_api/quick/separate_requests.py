"""A connection that passes one request at a time to aiohttp's parser, so that requests cannot affect each other.

aiohttp (3.14) passes all bytes that arrive together to its parser. Three faults then are possible:

- The parser in C keeps the last trailer of a chunked body and adds it to the next request's headers. Behind a proxy
  that reuses connections, the next request belongs to another client.
- Bytes behind a request for another protocol (``Upgrade``) are lost, or are parsed later without a request's checks.
- After an invalid chunk, the reader of the body gets no error and waits.

So this class finds the end of every request. A head and a chunked body end with CRLF CRLF. The class cuts the bytes at
each CRLF CRLF, and after each cut it asks the parser whether a head or a body has ended. Only the parser decides: if
this class had another opinion on where a request ends, request smuggling would be possible. After a chunked body, the
class replaces the parser, and so drops the trailer that it kept.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http import (
    HttpRequestParser,
    HttpVersion,
    HttpVersion10,
    HttpVersion11,
    RawRequestMessage,
)
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import _ErrInfo

from http_api.quick.parsed_head import ParsedHead

HEAD_END = b"\r\n\r\n"

START = 0
"""The state between two requests."""
HEAD = -1
"""The state within a head."""
CHUNKS = -2
"""The state within a chunked body."""
OVER = -3
"""The state after which nothing more is read."""

_OF_AIOHTTP = frozenset(
    {
        "_close",
        "_current_request",
        "_force_close",
        "_keepalive_handle",
        "_max_msg_queue_size",
        "_messages",
        "_next_keepalive_close_time",
        "_parser",
        "_read_bufsize",
        "_reading_paused",
        "_upgraded",
        "_waiter",
    }
)


_MISSING = _OF_AIOHTTP - {
    name for base in web.RequestHandler.__mro__ for name in getattr(base, "__slots__", ())
}
if _MISSING:
    raise ImportError(
        f"this aiohttp cannot be used: its RequestHandler has no {', '.join(sorted(_MISSING))}"
    )


_VERSIONS = (HttpVersion10, HttpVersion11)


def _refused_version(version: HttpVersion) -> _ErrInfo:
    """Return the error for another version of HTTP. A request line without a version counts as HTTP/0.9."""
    status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if version.major > 1 else HTTPStatus.BAD_REQUEST
    sentence = f"HTTP/{version.major}.{version.minor} is not spoken here: send HTTP/1.1"
    return _ErrInfo(status=status, exc=BadHttpMessage(sentence), message=sentence)


class SeparateRequests(web.RequestHandler):
    """One connection.

    Invariant: ``_left`` is the number of bytes that are left of a body of known length, or one of the states above. At
    ``START``, the parser is between two requests and keeps nothing of the former one.
    """

    __slots__ = ("_behind", "_body", "_held", "_left")

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,  # noqa: ANN401  (aiohttp's own)
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._left = START
        self._body: StreamReader | None = None
        """The chunked body that is being read."""
        self._behind = b""
        """The last bytes that were passed to the parser (at most 3), because CRLF CRLF may start in them."""
        self._held = b""
        """Bytes that have arrived and were not passed to the parser yet."""

    def on_head(self, head: bytes, message: ParsedHead, body_bytes: int, behind: int) -> None:
        """Called for a head that arrived in one piece, with a body of known length. Subclasses may override this.

        Args:
            head: the bytes of the head, without the empty line.
            message: the head as the parser read it.
            body_bytes: the length of the body.
            behind: the number of bytes behind the head that arrived together with it.
        """

    def feed(self, data: bytes) -> None:
        """Pass bytes to aiohttp, one request at a time."""
        while data and self._left != OVER and not (self._close or self._force_close):
            if self._must_wait():
                self._held = data
                return
            data = self._feed_piece(data)

    def resume(self) -> None:
        """Let aiohttp's parser continue with bytes that it has kept, and then pass the held bytes to it."""
        if self._left == OVER:
            return
        super().data_received(b"")
        if self._body is not None:
            self._on_chunks(len(self._messages), is_cut=True)
        held, self._held = self._held, b""
        self.feed(held)

    def _must_wait(self) -> bool:
        """Return whether the parser may keep bytes without parsing them, so that the end of a request is not seen.

        In this state aiohttp does not read from the connection. Later it calls ``data_received`` without bytes.
        """
        if len(self._messages) >= self._max_msg_queue_size:
            return True
        return self._body is not None and self._reading_paused

    def _feed_piece(self, data: bytes) -> bytes:
        """Pass bytes to the parser, up to the next place where a head or body may end; return the rest."""
        left = self._left
        if left > 0:
            piece = data[:left]
            self._left = left - len(piece)
            super().data_received(piece)
            if not self._left:
                self._on_end()
            return data[left:]
        end = self._end_in(data)
        is_whole = not self._behind
        piece = data[:end] if end else data
        rest = data[end:] if end else b""
        self._behind = b"" if end else (self._behind + piece)[-3:]
        count = len(self._messages)
        super().data_received(piece)
        if left == CHUNKS:
            self._on_chunks(count, is_cut=end > 0)
            return rest
        if len(self._messages) == count:
            # The parser has no new message, so these were empty lines before a request.
            self._left = START if end else HEAD
            return rest
        message, payload = self._messages[-1]
        if isinstance(message, RawRequestMessage) and message.version not in _VERSIONS:
            # aiohttp would respond in the version of the request, which this server does not support.
            self._messages[-1] = (_refused_version(message.version), EMPTY_PAYLOAD)
            self._left = OVER
            return b""
        if not end or not isinstance(message, RawRequestMessage):
            # aiohttp refuses bytes that are not a request, and closes the connection. After a head that ends without
            # CRLF CRLF, close it too.
            self._left = OVER
            if isinstance(message, RawRequestMessage):
                self.close()
            return b""
        self._on_message(piece if is_whole else b"", message, payload, len(rest))
        return rest

    def _end_in(self, data: bytes) -> int:
        """Return the number of bytes up to the end of CRLF CRLF; 0 if it has not arrived completely.

        Its first bytes may be in ``_behind``.
        """
        behind = self._behind
        if behind:
            at = (behind + data[:3]).find(HEAD_END)
            if at >= 0:
                return at + len(HEAD_END) - len(behind)
        at = data.find(HEAD_END)
        return at + len(HEAD_END) if at >= 0 else 0

    def _on_message(
        self, piece: bytes, message: ParsedHead, payload: StreamReader, behind: int
    ) -> None:
        if message.chunked:
            self._left = CHUNKS
            self._body = payload
            return
        # The header is a number, or the parser would have refused the request.
        self._left = body_bytes = int(message.headers.get("Content-Length", 0))
        if piece and not message.upgrade:
            self.on_head(piece[: -len(HEAD_END)], message, body_bytes, behind)
        if not body_bytes:
            self._on_end()

    def _on_chunks(self, count: int, *, is_cut: bool) -> None:
        """Check whether a chunked body has ended or is broken."""
        body = self._body
        assert body is not None, "chunks belong to a body"
        if not body.is_eof() and not self._reading_paused and len(self._messages) == count:
            # aiohttp's parser may still have a request to pause, although reading was resumed. Without this call, it
            # would stop at the next chunk.
            super().data_received(b"")
        if len(self._messages) > count:
            error, _ = self._messages.pop()
            self._break_off(body, str(getattr(error, "message", "")))
        elif (broken := body.exception()) is not None:
            self._break_off(body, str(broken))
        elif body.is_eof():
            if not is_cut:
                self.close()
            self._on_end()

    def _on_end(self) -> None:
        """Prepare for the next request, after one has arrived completely."""
        self._left = START
        if self._body is not None:
            self._body = None
            self._parser = HttpRequestParser(
                self,
                self._loop,
                self._read_bufsize,
                max_line_size=self.max_line_size,
                max_field_size=self.max_field_size,
                max_headers=self.max_headers,
                payload_exception=web.RequestPayloadError,
                auto_decompress=False,
                max_msg_queue_size=self._max_msg_queue_size,
            )
        if self._upgraded:
            # The client asked for another protocol, which the server does not support. Respond to the request, and then
            # close the connection: the next bytes may belong to that protocol.
            self._left = OVER
            self.close()

    def _break_off(self, body: StreamReader, reason: str) -> None:
        """End an invalid chunked body; nothing behind it can be parsed, so close the connection."""
        self._left = OVER
        self._body = None
        is_dropped = self._current_request is None and body._waiter is not None
        if not is_dropped:
            body.set_exception(web.RequestPayloadError(reason))
        # If the response was sent already, aiohttp reads and drops the rest of the body. This call ends that.
        body.feed_eof()
        self.close()
