"""One client that waits for each response, on a blocking socket.

An event loop needs several turns and system calls for one exchange. With many exchanges in flight that cost is small.
With one, it equals the response time of a fast server, and half of the measured time would be the client's.
"""

import socket
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from time import perf_counter

from loadtest.bench.clients.http_load import (
    Ask,
    HttpLoadError,
    body_length,
    host_and_port,
)
from loadtest.bench.measuring.rounds import Turn

_PIECE_BYTES = 256 << 10
_PATIENCE_S = 30.0

IsWhole = Callable[[bytes], bool]
"""A function that returns whether a response is complete; raises ``HttpLoadError`` for a bad response."""


class OneClient:
    """A connection with one request in flight. It blocks, so it needs its own thread."""

    def __init__(self, url: str) -> None:
        self._socket = socket.create_connection(host_and_port(url), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def exchange(self, request: bytes, is_whole: IsWhole) -> bytes:
        """Send a request; return its response.

        Raises:
            HttpLoadError: the response is bad, or the server closed the connection.
        """
        self._socket.sendall(request)
        answer = b""
        while not (answer and is_whole(answer)):
            piece = self._socket.recv(_PIECE_BYTES)
            if not piece:
                raise HttpLoadError(f"the server closed the connection after {answer[:300]!r}")
            answer += piece
        return answer


def http_is_whole(ask: Ask) -> IsWhole:
    """Return the function that recognizes a complete HTTP response: one with a Content-Length, or without content."""

    def is_whole(answer: bytes) -> bool:
        head, end, body = answer.partition(b"\r\n\r\n")
        if not end:
            return False
        length = body_length(head)
        if not (head[9:12] == b"204" or (head[9:12] == b"200" and length is not None)):
            raise HttpLoadError(f"it answered {answer[:600]!r}")
        length = length or 0
        if len(body) < length:
            return False
        if len(body) > length or (ask.proof and body.count(ask.proof) != ask.proof_count):
            raise HttpLoadError(f"it answered {body[:600]!r}")
        return True

    return is_whole


def http_turn(url: str, ask: Ask, seconds: float) -> Turn:
    """Send the requests one after the other for ``seconds``.

    Raises:
        LoadError, OSError: the server did not do the work.
    """
    requests, is_whole = cycle(ask.requests), http_is_whole(ask)
    with closing(OneClient(url)) as client:
        latencies_s, took_s = repeat(lambda: client.exchange(next(requests), is_whole), seconds)
    return Turn(latencies_s=latencies_s, units=ask.units * len(latencies_s), seconds=took_s)


def repeat(work: Callable[[], object], seconds: float) -> tuple[list[float], float]:
    """Call ``work`` repeatedly for ``seconds``, at least once; return the seconds of each call, and the total."""
    latencies_s: list[float] = []
    began_s = now_s = perf_counter()
    while True:
        work()
        before_s, now_s = now_s, perf_counter()
        latencies_s.append(now_s - before_s)
        if now_s - began_s >= seconds:
            return latencies_s, now_s - began_s
