"""A closed loop of HTTP clients that uses as little CPU as Python allows.

The client shares the machine's cores with the servers that it measures: CPU that it uses is not left for them. So all
requests are encoded beforehand. A response is read into an existing buffer. The client searches its head for the status
and the length, and searches the body at most once, in C. There is no pipelining. A response with chunked coding is
reported as an error.

All connections belong to one event loop of one process. More processes would take their CPU from the same cores. Each
sample has the client's share of a core, so a reader can see when the client is the limit.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 64 << 10
PIECE_BYTES_MAX = 1 << 20
_DRAIN_S = 30.0
"""How long requests in flight at the end may take, in s. A server that is stuck longer is reported as an error."""


class HttpLoadError(Exception):
    """A contender did not do the measured work; the message says what it did instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Requests to send repeatedly, and how to recognize a good response.

    ``fresh`` is a placeholder in a request; each sent request has another value there, for example an idempotency key.
    A good response has ``proof`` in its body ``proof_count`` times. If ``proof`` is empty, the status is enough. One
    response counts as ``units``.
    """

    requests: Sequence[bytes]
    units: float = 1.0
    fresh: bytes = b""
    proof: bytes = b""
    proof_count: int = 1


def encode_request(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a request; keyword arguments such as ``Content_Type`` become headers."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL, or of an address without a scheme, that has both."""
    place = urlsplit(url if "//" in url else f"//{url}")
    assert place.hostname is not None, "URLs here name their host"
    assert place.port is not None, "and port"
    return place.hostname, place.port


def body_length(head: bytes) -> int | None:
    """Return the length of a body from the head of its response; None if the head does not tell."""
    _, found, after = head.lower().partition(b"\r\ncontent-length:")
    return int(after.split(b"\r\n", 1)[0]) if found else None


class LoadConnection(asyncio.BaseProtocol):
    """The base class of protocols that send prepared bytes. Their window bounds what is in flight."""

    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this."""
        # uvloop's transports have the methods of ``asyncio.Transport`` and are no subclass.
        self._transport = cast("asyncio.Transport", transport)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None, "it is connected"
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


class HttpLoad:
    """Connections to one server, each with one request in flight at a time."""

    def __init__(
        self, url: str, ask: Ask, *, connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """``tls`` has the trusted authorities and the client's certificate, for an https URL."""
        self.latencies_s: list[float] = []
        self.answer_bytes = 0
        """The bytes of all response bodies."""
        self._place = host_and_port(url)
        self._ask = ask
        self._count = connections
        self._tls = tls
        self._next = 0
        self._mark = token_hex(8)
        self._numbers = count()
        self._ends_s = 0.0
        self._busy = 0
        self._done: asyncio.Future[None] | None = None
        self._connections: list[_ClientConnection] = []

    async def open(self) -> None:
        """Open all connections."""
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            _, connection = await loop.create_connection(
                lambda: _ClientConnection(self), *self._place, ssl=self._tls
            )
            self._connections.append(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    async def run(self, seconds: float) -> float:
        """Send requests for ``seconds``; return the seconds until the last response.

        Raises:
            HttpLoadError: a response is wrong, or did not arrive.
        """
        began_s = perf_counter()
        self._ends_s = began_s + seconds
        self._busy = len(self._connections)
        self._done = asyncio.get_running_loop().create_future()
        for connection in self._connections:
            connection.send(self.next_request())
        try:
            async with asyncio.timeout(seconds + _DRAIN_S):
                await self._done
        except TimeoutError:
            raise HttpLoadError(f"{self._busy} answers did not come") from None
        return perf_counter() - began_s

    def next_request(self) -> bytes:
        """Return the next request; the requests take turns."""
        requests = self._ask.requests
        self._next = (self._next + 1) % len(requests)
        request = requests[self._next]
        if not self._ask.fresh:
            return request
        mark = f"{self._mark}-{next(self._numbers):08}".encode()
        return request.replace(self._ask.fresh, mark)

    def on_answer(self, connection: "_ClientConnection", seconds: float, body_bytes: int) -> None:
        """Count a good response of this many body bytes; send the next request until the time is over."""
        self.latencies_s.append(seconds)
        self.answer_bytes += body_bytes
        if perf_counter() < self._ends_s:
            connection.send(self.next_request())
            return
        self._busy -= 1
        if not self._busy and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def on_error(self, message: str) -> None:
        """End the load with an error, because a connection cannot continue."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(HttpLoadError(message))

    def is_good(self, body: bytes | bytearray) -> bool:
        """Return whether a response body has the proof."""
        ask = self._ask
        return not ask.proof or body.count(ask.proof) == ask.proof_count

    @property
    def has_proof(self) -> bool:
        """Return whether bodies must be kept until they are complete."""
        return bool(self._ask.proof)


class _ClientConnection(LoadConnection, asyncio.BufferedProtocol):
    """One connection. A body without a proof to look for is counted and overwritten."""

    def __init__(self, load: HttpLoad) -> None:
        self._load = load
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._sent_s = 0.0
        self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        self._filled = 0
        self._head_bytes = 0
        self._body_bytes = 0
        self._left = -1
        """The bytes of the body that have not arrived; -1 before the head has arrived."""

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self._is_closed:
            self._load.on_error(f"the server closed a connection: {exc or 'no reason given'}")

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        super().close()

    def send(self, request: bytes) -> None:
        """Send the next request."""
        self._sent_s = perf_counter()
        self.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._left < 0:
            self._filled += nbytes
            self._read_head()
        elif self._load.has_proof:
            self._filled += nbytes
            self._left -= nbytes
        else:
            self._left -= nbytes
        if self._left == 0:
            self._finish()
        elif self._left < -1:
            self._fail("it answered more than it announced")

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == len(self._buffer):
                self._fail("the head of an answer has no end")
            return
        head = bytes(self._view[:end])
        length = body_length(head)
        if not (head[9:12] == b"204" or (head[9:12] == b"200" and length is not None)):
            self._fail(f"it answered {bytes(self._view[: min(self._filled, 600)])!r}")
            return
        length = length or 0
        self._head_bytes, self._body_bytes = end + 4, length
        self._left = length - (self._filled - end - 4)
        if self._left > 0:
            self._make_room(length)

    def _make_room(self, length: int) -> None:
        """Enlarge the buffer: for the whole body if it is searched, else up to ``PIECE_BYTES_MAX``."""
        wanted = self._head_bytes + length
        if not self._load.has_proof:
            wanted = min(wanted, PIECE_BYTES_MAX)
        if wanted > len(self._buffer):
            larger = bytearray(wanted)
            larger[: self._filled] = self._view[: self._filled]
            self._buffer, self._view = larger, memoryview(larger)
        if not self._load.has_proof:
            self._filled = 0

    def _finish(self) -> None:
        load = self._load
        seconds = perf_counter() - self._sent_s
        if load.has_proof:
            body = self._buffer[self._head_bytes : self._filled]
            if not load.is_good(body):
                self._fail(f"it answered {bytes(body[:600])!r}")
                return
        body_bytes = self._body_bytes
        # Reset before the response is counted: with a full buffer and no next request, asyncio could not read on.
        self._reset()
        load.on_answer(self, seconds, body_bytes)

    def _fail(self, message: str) -> None:
        self._load.on_error(message)
        self.close()
