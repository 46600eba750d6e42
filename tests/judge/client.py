"""An HTTP/1.1 client over sockets that can also send unusual or invalid requests."""

from __future__ import annotations

import gzip
import http.client
import io
import socket
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

Headers = tuple[tuple[str, str], ...]


class Lost(Exception):
    """There is no response, or only a part of it; the fate of the request is unknown."""


@dataclass(frozen=True)
class Quirks:
    """The way in which a body is sent: encoding, chunks, pauses, packets and trailers."""

    encoding: str = ""
    chunks: tuple[int, ...] = ()
    pause_s: float = 0.0
    is_head_alone: bool = False
    trailers: Headers = ()
    is_fresh: bool = False
    is_shut: bool = (
        False  # the client shuts down its sending side after this request, and reads the response
    )
    is_abandoned: bool = False  # the client closes the connection without reading

    def __str__(self) -> str:
        parts = [
            self.encoding,
            f"chunks{self.chunks}" if self.chunks else "",
            "trailers" if self.trailers else "",
        ]
        parts += [
            f"pause{self.pause_s}" if self.pause_s else "",
            "head-alone" if self.is_head_alone else "",
        ]
        return "+".join(part for part in parts if part) or "plain"


@dataclass(frozen=True)
class Request:
    """A request, before it is encoded for the wire."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes | None = None
    quirks: Quirks = Quirks()

    def with_headers(self, *more: tuple[str, str]) -> Request:
        """Return the same request with more headers."""
        return Request(self.method, self.target, (*self.headers, *more), self.body, self.quirks)

    def with_quirks(self, quirks: Quirks) -> Request:
        """Return the same request with other quirks."""
        return Request(self.method, self.target, self.headers, self.body, quirks)


@dataclass(frozen=True)
class Response:
    """A complete response, with the times at which its request started and it ended."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    began: float = 0.0
    ended: float = 0.0
    node: int = 0


class Transport(Protocol):
    """The connections to the nodes: real sockets, or a fake in the tests of the judge."""

    def exchange(self, node: int, requests: Sequence[Request]) -> list[Response | Lost]:
        """Send requests on one connection, all of them before the first response is read."""
        ...


def draw_quirks(rng: random.Random, size: int) -> Quirks:
    """Draw quirks for a body of this size; half of the time none."""
    if rng.random() < 0.5:
        return Quirks(is_fresh=rng.random() < 0.2)
    chunks: tuple[int, ...] = ()
    if rng.random() < 0.5:
        chunks = tuple(
            rng.choice((1, 2, 7, 64, 1000, max(1, size))) for _ in range(rng.randint(1, 4))
        )
    trailers = (("X-Checksum", "abc"),) if chunks and rng.random() < 0.3 else ()
    return Quirks(
        encoding=rng.choice(("", "", "gzip", "deflate")),
        chunks=chunks,
        pause_s=rng.choice((0.0, 0.0, 0.01, 0.05)),
        is_head_alone=rng.random() < 0.5,
        trailers=trailers,
        is_fresh=rng.random() < 0.2,
        is_shut=rng.random() < 0.05,
    )


def frame(request: Request, host: str) -> list[bytes]:
    """Return the pieces to send, one packet each."""
    quirks, body = request.quirks, request.body
    names = {name.lower() for name, _ in request.headers}
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [] if "host" in names else [f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    pieces: list[bytes] = []
    if body is not None:
        if quirks.encoding:
            lines.append(f"Content-Encoding: {quirks.encoding}")
            body = gzip.compress(body) if quirks.encoding == "gzip" else zlib.compress(body)
        if quirks.chunks or "transfer-encoding" in names:
            lines += [] if "transfer-encoding" in names else ["Transfer-Encoding: chunked"]
            lines += [f"Trailer: {name}" for name, _ in quirks.trailers]
            pieces = _chunked(body, quirks)
        else:
            lines += [] if "content-length" in names else [f"Content-Length: {len(body)}"]
            half = len(body) // 2
            pieces = [body[:half], body[half:]] if quirks.pause_s and half else [body]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if not pieces:
        return [head]
    return (
        [head, *pieces]
        if quirks.is_head_alone or quirks.pause_s
        else [head + pieces[0], *pieces[1:]]
    )


def _chunked(body: bytes, quirks: Quirks) -> list[bytes]:
    pieces, at, sizes = [], 0, quirks.chunks or (len(body) or 1,)
    for number in range(len(body) + 1):
        size = sizes[number] if number < len(sizes) else len(body) - at
        part = body[at : at + size]
        if not part:
            break
        pieces.append(b"%x\r\n%s\r\n" % (len(part), part))
        at += len(part)
    trailers = "".join(f"{name}: {value}\r\n" for name, value in quirks.trailers)
    pieces.append(b"0\r\n" + trailers.encode("latin-1") + b"\r\n")
    return pieces


class _Open:
    """A reader that stays open after a response, so that the next response of a pipeline can be read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = connection.makefile("rb")

    def makefile(self, *_: object) -> io.BufferedReader:
        return cast("io.BufferedReader", _Shared(self.reader))


class _Shared(io.RawIOBase):
    def __init__(self, reader: io.BufferedReader) -> None:
        self.reader = reader

    def readline(self, size: int | None = -1) -> bytes:
        return self.reader.readline(-1 if size is None else size)

    def read(self, size: int | None = -1) -> bytes:
        return self.reader.read(-1 if size is None else size)

    def readinto(self, buffer: Any) -> int:
        return self.reader.readinto(buffer)

    def peek(self, size: int = 0) -> bytes:
        return self.reader.peek(size)


@dataclass
class Held:
    """A connection with a response that does not end; the status is 0 if there was no response."""

    status: int
    connection: socket.socket | None

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()


@dataclass
class SocketTransport:
    """Connections to real nodes, kept open by thread and node."""

    addresses: Mapping[int, tuple[str, int]]
    clock: Callable[[], float] = time.monotonic
    timeout_s: float = 30.0
    local: threading.local = field(default_factory=threading.local)

    def exchange(self, node: int, requests: Sequence[Request]) -> list[Response | Lost]:
        """Send requests on one connection, all of them before the first response is read."""
        pool: dict[int, _Open] = self.local.__dict__.setdefault("pool", {})
        if any(request.quirks.is_fresh for request in requests):
            self._forget(pool, node)
        began = self.clock()
        is_reused = node in pool
        is_last = any(request.quirks.is_shut for request in requests)
        try:
            if not is_reused:
                connection = socket.create_connection(self.addresses[node], timeout=self.timeout_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pool[node] = _Open(connection)
        except OSError as error:
            return [Lost(f"no connection: {error}") for _ in requests]
        answers = self._converse(pool[node], node, requests, began)
        if (
            is_last
            or any(isinstance(answer, Lost) for answer in answers)
            or any(
                isinstance(answer, Response)
                and answer.headers.get("connection", "").lower() == "close"
                for answer in answers
            )
        ):
            self._forget(pool, node)
            is_harmless = all(request.method in ("GET", "HEAD") for request in requests)
            if is_reused and is_harmless and all("idle" in str(answer) for answer in answers):
                return self.exchange(
                    node, requests
                )  # the node closed it while nothing was under way
        return answers

    def hold(self, node: int, request: Request) -> Held:
        """Send a request on its own connection; read only the status of the response."""
        try:
            connection = socket.create_connection(self.addresses[node], timeout=5)
        except OSError:
            return Held(0, None)
        try:
            connection.sendall(b"".join(frame(request, "{}:{}".format(*self.addresses[node]))))
            line = connection.recv(4096).split(b"\r\n", 1)[0].split(b" ")
            return Held(int(line[1]), connection)
        except (OSError, IndexError, ValueError):
            connection.close()
            return Held(0, None)

    def _converse(
        self, link: _Open, node: int, requests: Sequence[Request], began: float
    ) -> list[Response | Lost]:
        host = "{}:{}".format(*self.addresses[node])
        error: Exception | None = None
        try:
            for request in requests:
                for number, piece in enumerate(frame(request, host)):
                    if number and request.quirks.pause_s:
                        time.sleep(request.quirks.pause_s)
                    link.connection.sendall(piece)
            if requests[-1].quirks.is_abandoned:
                return [Lost("abandoned") for _ in requests]
            if requests[-1].quirks.is_shut:
                link.connection.shutdown(socket.SHUT_WR)
        except OSError as refused:  # an early answer may be there all the same
            error = refused
        answers: list[Response | Lost] = []
        for request in requests:
            try:
                answers.append(self._answer(link, node, request, began))
            except (OSError, http.client.HTTPException, ValueError) as broken:
                kind = (
                    "idle"
                    if isinstance(broken, http.client.RemoteDisconnected) and error is None
                    else "broken"
                )
                lost = Lost(f"{kind}: {broken!r} {error or ''}")
                answers += [lost] * (len(requests) - len(answers))
                break
        return answers

    def _answer(self, link: _Open, node: int, request: Request, began: float) -> Response:
        answer = http.client.HTTPResponse(cast("socket.socket", link), method=request.method)
        answer.begin()
        body = answer.read()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.will_close:
            headers["connection"] = "close"
        return Response(answer.status, headers, body, began, self.clock(), node)

    @staticmethod
    def _forget(pool: dict[int, _Open], node: int) -> None:
        link = pool.pop(node, None)
        if link is not None:
            link.reader.close()
            link.connection.close()
