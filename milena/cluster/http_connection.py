"""HTTP/1.1 connections to the nodes of a cluster: one request in flight on each, kept open for the next.

It has no redirects, cookies, proxies or compression. ``milena.cluster.http`` decides what a lost connection means for a
request. h11 parses the responses. A general HTTP client would cost several times as much per call, and its import would
take longer than the command line needs to write a small file.
"""

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, cast
from urllib.parse import urlsplit

from milena.cluster.http_answer import AnswerReader, AnswerTooLargeError, BrokenAnswerError
from milena.cluster.routing import SCHEMES, USER_IN_URL
from milena.model.clock import Clock
from milena.model.secret import Secret

KEPT_MS = 15_000
"""How long an idle connection is reused, in ms. Nodes, and proxies in front of them, close idle connections later."""

_HAPPY_EYEBALLS_S = 0.25
"""Time after which the next address of a host is tried in parallel, in seconds (RFC 8305)."""

_ONE_WRITE_BYTES_MAX = 1 << 20
"""Bodies up to this size are copied behind the head and written with it: a second write would wake the node twice."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")


class ConnectionEndedError(Exception):
    """The connection was lost before the response was complete; ``has_begun`` if a part of the response had arrived."""

    def __init__(self, reason: str, *, has_begun: bool) -> None:
        super().__init__(reason)
        self.has_begun = has_begun


class ConnectError(Exception):
    """The connection could not be opened, so nothing was sent; the cause of the exception says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The server to connect to, and the parts that all requests to it share."""

    scheme: str
    host: str
    port: int
    base_path: str
    head: str
    """The line of the header ``Host``, with its line end."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the origin of a node's URL.

        Raises:
            ValueError: the text is no URL, or has a user, or its scheme is not in ``SCHEMES``.
        """
        if "@" in url:
            raise ValueError(USER_IN_URL)
        found = urlsplit(url)
        if found.scheme not in SCHEMES:
            raise ValueError("it must begin with http:// or https://")
        if not found.hostname:
            raise ValueError("it has no host")
        if found.hostname.isdigit():
            # A resolver would read this number as the 32 bits of an IPv4 address.
            raise ValueError(f"{found.hostname} is not a host; for a port, say 127.0.0.1:PORT")
        name = found.hostname.encode("idna").decode() if not found.hostname.isascii() else None
        host = name or found.hostname
        shown = f"[{host}]" if ":" in host else host
        port = found.port or SCHEMES[found.scheme]
        place = shown if port == SCHEMES[found.scheme] else f"{shown}:{port}"
        if not (_VISIBLE.fullmatch(place) and _VISIBLE.fullmatch(f"/{found.path}")):
            # Host and path are copied into the head of a request. A line end in them could add a header or a request.
            raise ValueError("it has characters that no URL has")
        return cls(found.scheme, host, port, found.path, f"Host: {place}\r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request; ``path`` is percent-encoded and holds the query. ``authorization`` is the header's value."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = field(repr=False)
    answer_bytes_max: int
    authorization: Secret | None = None

    def head(self, origin: Origin) -> bytes:
        """Return the bytes before the body.

        Raises:
            ValueError: the path was not encoded.
        """
        path = origin.base_path + self.path
        if not _VISIBLE.fullmatch(path):
            raise ValueError("the path has characters that no URL has")
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        if self.authorization is not None:
            lines.append(f"Authorization: {self.authorization.reveal()}\r\n")
        if self.body is not None or self.method != "GET":
            lines.append(f"Content-Length: {len(self.body or b'')}\r\n")
        return f"{self.method} {path} HTTP/1.1\r\n{origin.head}{''.join(lines)}\r\n".encode("ascii")


class HttpConnection(asyncio.Protocol):
    """One connection, which carries one request after the other."""

    def __init__(self) -> None:
        self.is_open = False
        self.idle_since_ms = 0.0
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._done: asyncio.Future[None] | None = None
        self._end_reason = "Server disconnected"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is open."""
        # A transport of uvloop has these methods, but its class is no subclass of ``asyncio.Transport``.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is lost."""
        self.is_open = False
        reader, done = self._reader, self._done
        if reader is None or done is None or done.done():
            return
        if reader.end():
            done.set_result(None)
        else:
            reason = str(exc) if exc is not None else self._end_reason
            done.set_exception(ConnectionEndedError(reason, has_begun=reader.has_begun))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received bytes."""
        reader, done = self._reader, self._done
        if reader is None or done is None or done.done():
            # No request is in flight.
            self._end_reason = "it sent bytes before a request; is this a Milena node?"
            self.close()
            return
        try:
            if reader.feed(data):
                done.set_result(None)
        except (BrokenAnswerError, AnswerTooLargeError) as error:
            done.set_exception(error)

    async def ask(self, origin: Origin, request: HttpRequest) -> AnswerReader:
        """Return the response. If this raises, the caller closes the connection.

        Raises:
            ConnectionEndedError: the connection was lost.
            BrokenAnswerError: the bytes are no HTTP/1.1 response.
            AnswerTooLargeError: the body is larger than the limit.
        """
        assert self._transport is not None, "it is connected"
        if not self.is_open:
            # The server has closed the connection already, so no later event would end the wait for a response.
            raise ConnectionEndedError(self._end_reason, has_begun=False)
        self._reader = reader = AnswerReader(body_bytes_max=request.answer_bytes_max)
        self._done = asyncio.get_running_loop().create_future()
        head, body = request.head(origin), request.body or b""
        if len(body) <= _ONE_WRITE_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        try:
            await self._done
        finally:
            self._reader = self._done = None
        return reader

    def close(self) -> None:
        """Drop the connection, even with a request in flight."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class HttpConnections:
    """All connections of a session, in one event loop. At most ``count_max`` are in use; further requests wait.

    ``make_tls`` returns the TLS context; it is called once, before the first https connection.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        connect_timeout_s: float,
        count_max: int,
        make_tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self._clock = clock
        self._make_tls = make_tls
        self._connect_timeout_s = connect_timeout_s
        self._room = asyncio.Semaphore(count_max)
        self._idle: defaultdict[Origin, list[HttpConnection]] = defaultdict(list)
        self._busy: set[HttpConnection] = set()
        self._tls: ssl.SSLContext | None = None

    async def ask(
        self, origin: Origin, request: HttpRequest, *, is_repeatable: bool
    ) -> AnswerReader:
        """Return the response to a request.

        ``is_repeatable``: send it again if a reused connection was lost before a byte of the response arrived.

        Raises:
            ConnectError: nothing was sent.
            ConnectionEndedError, BrokenAnswerError, AnswerTooLargeError: as ``HttpConnection.ask``.
        """
        async with self._room:
            kept = self._kept(origin)
            try:
                return await self._ask(origin, request, kept)
            except ConnectionEndedError as error:
                if kept is None or error.has_begun or not is_repeatable:
                    raise
            # The node closed the idle connection while the request was on its way.
            return await self._ask(origin, request, None)

    async def _ask(
        self, origin: Origin, request: HttpRequest, connection: HttpConnection | None
    ) -> AnswerReader:
        if connection is None:
            connection = await self._connect(origin)
        self._busy.add(connection)
        is_reusable = False
        try:
            reader = await connection.ask(origin, request)
            is_reusable = reader.is_reusable
        finally:
            self._busy.discard(connection)
            if is_reusable and connection.is_open:
                connection.idle_since_ms = self._clock.now_ms()
                self._idle[origin].append(connection)
            else:
                connection.close()
        return reader

    def _kept(self, origin: Origin) -> HttpConnection | None:
        """Return the idle connection that was used last, if it is open and was used within ``KEPT_MS``."""
        idle, since_ms = self._idle[origin], self._clock.now_ms() - KEPT_MS
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since_ms > since_ms:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin) -> HttpConnection:
        if origin.scheme == "https" and self._tls is None:
            self._tls = self._make_tls()
        tls = self._tls if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await _connected(origin, tls)
        # A name that is too long or badly encoded raises UnicodeError.
        except (OSError, UnicodeError) as error:
            raise ConnectError(str(error)) from error
        return connection

    def close(self) -> None:
        """Drop all connections."""
        for connection in [*self._busy, *(c for idle in self._idle.values() for c in idle)]:
            connection.close()
        self._idle.clear()


async def _connected(origin: Origin, tls: ssl.SSLContext | None) -> HttpConnection:
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.BaseEventLoop):
        _, connection = await loop.create_connection(
            HttpConnection,
            origin.host,
            origin.port,
            ssl=tls,
            happy_eyeballs_delay=_HAPPY_EYEBALLS_S,
        )
    else:
        # ``happy_eyeballs_delay`` is unknown to uvloop, which tries one address after the other.
        _, connection = await loop.create_connection(
            HttpConnection, origin.host, origin.port, ssl=tls
        )
    return connection
