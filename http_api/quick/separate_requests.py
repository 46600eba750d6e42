"""A connection that gives aiohttp's parser one request at a time, so that no byte of a request reaches the next one.

aiohttp (3.14) passes a whole segment to its parser. Three things then leak from one request to another:

- The parser in C keeps the last trailer of a chunked body and puts it in front of the next request's headers. Behind a
  proxy that reuses connections the next request is another client's.
- Bytes behind a request that asks for another protocol (``Upgrade``) are lost, or are parsed later and unseen.
- After bytes that are not a chunk, the reader of the body gets no error and waits.

So this class finds the end of every request. A head and a chunked body end with CRLF CRLF. It cuts the bytes at each
CRLF CRLF, and after each cut the parser tells whether a head or a body has ended. Only the parser decides: a second
opinion on where a request ends would allow request smuggling. After a chunked body this class replaces the parser, and
with it the trailer that it kept.
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
    """Return the refusal of another version. A line without a version counts as HTTP/0.9."""
    status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if version.major > 1 else HTTPStatus.BAD_REQUEST
    sentence = f"HTTP/{version.major}.{version.minor} is not spoken here: send HTTP/1.1"
    return _ErrInfo(status=status, exc=BadHttpMessage(sentence), message=sentence)


class SeparateRequests(web.RequestHandler):
    """One connection.

    Invariant: ``_left`` says what comes next: a number of bytes of a body of known length, or one of the states above.
    At ``START`` the parser stands between two requests and keeps nothing of the former one.
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
        """The last bytes that the parser got (at most 3): CRLF CRLF may start there."""
        self._held = b""
        """Bytes that arrived and wait."""

    def on_head(self, head: bytes, message: ParsedHead, body_bytes: int, behind: int) -> None:
        """Take note of a head that arrived in one piece, with a body of known length.

        Args:
            head: its bytes, without the empty line.
            message: the head as the parser read it.
            body_bytes: length of the body.
            behind: number of bytes that arrived together with the head and follow it.
        """

    def feed(self, data: bytes) -> None:
        """Let aiohttp read these bytes."""
        while data and self._left != OVER and not (self._close or self._force_close):
            if self._must_wait():
                self._held = data
                return
            data = self._feed_piece(data)

    def resume(self) -> None:
        """Let aiohttp read what its parser got and did not take yet, then the bytes that were held behind it."""
        if self._left == OVER:
            return
        super().data_received(b"")
        if self._body is not None:
            self._on_chunks(len(self._messages), is_cut=True)
        held, self._held = self._held, b""
        self.feed(held)

    def _must_wait(self) -> bool:
        """Return whether the parser may hold back bytes, so that this class would see an end too late.

        Meanwhile aiohttp does not read from the connection. It calls ``data_received`` with no bytes afterwards.
        """
        if len(self._messages) >= self._max_msg_queue_size:
            return True
        return self._body is not None and self._reading_paused

    def _feed_piece(self, data: bytes) -> bytes:
        """Let the parser read up to the next place where a head or body may end; return the rest."""
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
            # Without a message these are empty lines in front of one.
            self._left = START if end else HEAD
            return rest
        message, payload = self._messages[-1]
        if isinstance(message, RawRequestMessage) and message.version not in _VERSIONS:
            # aiohttp would answer in the version of the request, which this server does not speak.
            self._messages[-1] = (_refused_version(message.version), EMPTY_PAYLOAD)
            self._left = OVER
            return b""
        if not end or not isinstance(message, RawRequestMessage):
            # aiohttp refuses bytes that are not a request, and closes. A head that ends without CRLF CRLF is the last
            # one.
            self._left = OVER
            if isinstance(message, RawRequestMessage):
                self.close()
            return b""
        self._on_message(piece if is_whole else b"", message, payload, len(rest))
        return rest

    def _end_in(self, data: bytes) -> int:
        """Return how many of these bytes go up to and including CRLF CRLF, or 0 if it has not arrived yet.

        Some of its four bytes may have arrived before.
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
        # A number: the parser has refused anything else.
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
            # If a chunk asked for a pause at its end, the parser obeys at the next chunk, even if reading was resumed.
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
        """Prepare for the next request: one has arrived completely."""
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
            # The server speaks no other protocol. It responds and closes, because the bytes behind may be of that
            # protocol.
            self._left = OVER
            self.close()

    def _break_off(self, body: StreamReader, reason: str) -> None:
        """End a chunked body behind which nothing can be read."""
        self._left = OVER
        self._body = None
        is_dropped = self._current_request is None and body._waiter is not None
        if not is_dropped:
            body.set_exception(web.RequestPayloadError(reason))
        # If the response is sent already, aiohttp reads on to drop the rest. This ends that read like any other body.
        body.feed_eof()
        self.close()
