"""Producers of small records at a fixed rate, and a reader that waits at the end of the log for these records.

A closed loop sends fewer requests to a server that became slow, and so hides the delay of the requests that it did not
send. Here requests become due by the clock. If a connection still waits for a response, its next request waits, and its
latency counts from when it was due. Each value has the time at which it became due, so a reader in the same process
knows the age of the record.
"""

import asyncio
import re
from collections import deque
from time import perf_counter
from urllib.parse import urlsplit

from loadtest.bench.clients.http_load import HttpLoadError, LoadConnection, host_and_port
from loadtest.bench.servers.subject import BATCH_TYPE, JSON_TYPE

_STAMP_DIGITS = 16
_STAMP = re.compile(rb"@(\d{16})@")
_LATE_S_MAX = 10.0
"""The longest time for a response, in s. A longer one is an error: the cluster does not do the measured work."""
_WAIT_MS = 1_000
_RETRY_S = 0.05
_HEAD_BYTES_MAX = 64 << 10
_NS = 1e9


class Pace:
    """The due times of the requests of one connection (pure).

    One request is in flight at a time. Requests that become due meanwhile wait in order.
    """

    def __init__(self) -> None:
        self._due_s: deque[float] = deque()

    def on_due(self, now_s: float) -> bool:
        """Count one more request as due; return whether it may be sent at once."""
        self._due_s.append(now_s)
        return len(self._due_s) == 1

    def on_answer(self, now_s: float) -> tuple[float, float | None]:
        """Return the seconds since the answered request was due, and the due time of the next; None if none waits."""
        due_s = self._due_s.popleft()
        return now_s - due_s, self._due_s[0] if self._due_s else None

    @property
    def is_busy(self) -> bool:
        """Return whether a response is pending."""
        return bool(self._due_s)

    def oldest_s(self, now_s: float) -> float:
        """Return how long the request in flight has been due; 0 if there is none."""
        return now_s - self._due_s[0] if self._due_s else 0.0


def encode_stamp(due_s: float) -> bytes:
    """Return a time as text for a value; the length is always the same."""
    return b"@%0*d@" % (_STAMP_DIGITS, int(due_s * _NS))


def delays_s(stored: bytes, now_s: float) -> list[float]:
    """Return the ages of all stamped values in stored, uncompressed batches."""
    return [now_s - int(stamp) / _NS for stamp in _STAMP.findall(stored)]


class _Producer(LoadConnection, asyncio.Protocol):
    """One connection; its responses are small and have a length."""

    def __init__(self, load: "PacedLoad", host: str, path: str, size: int) -> None:
        self.pace = Pace()
        self._load = load
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {JSON_TYPE}\r\nContent-Length: "
        ).encode()
        self._size = size
        self._answer = b""

    def connection_lost(self, exc: Exception | None) -> None:
        if self.pace.is_busy:
            self._load.on_error(f"the server closed a connection: {exc or 'no reason given'}")

    def on_due(self) -> None:
        """Count a record as due, and send it if no request is in flight."""
        now_s = perf_counter()
        if self.pace.on_due(now_s):
            self._send(now_s)

    def _send(self, due_s: float) -> None:
        stamp = encode_stamp(due_s)
        value = stamp + b"x" * (self._size - len(stamp))
        body = b'{"records":[{"value":"' + value + b'"}]}'
        self.write(self._head + b"%d\r\n\r\n" % len(body) + body)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return
        seconds, due_s = self.pace.on_answer(perf_counter())
        if head[9:12] == b"200" and b'"error_code":null' in body:
            self._load.acknowledged_s.append(seconds)
        else:
            self._load.on_error(f"it answered {self._answer[:600]!r}")
        self._answer = b""
        if due_s is not None:
            self._send(due_s)


class PacedLoad:
    """Connections that together write ``rate`` records a second, and one reader at the end of the log.

    An asynchronous context manager. ``acknowledged_s`` and ``delivered_s`` grow while it is open; ``forget`` empties
    both at the start of a turn.
    """

    def __init__(
        self, url: str, topic: str, partition: int, *, connections: int, rate: float, size: int
    ) -> None:
        self.acknowledged_s: list[float] = []
        self.delivered_s: list[float] = []
        self._place = host_and_port(url)
        self._host = urlsplit(url).netloc
        self._path = f"/topics/{topic}/partitions/{partition}"
        self._count = connections
        self._rate = rate
        self._size = size
        self._producers: list[_Producer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._error = ""

    async def __aenter__(self) -> "PacedLoad":
        loop = asyncio.get_running_loop()
        path = f"{self._path}?acks=all"
        for _ in range(self._count):
            _, producer = await loop.create_connection(
                lambda: _Producer(self, self._host, path, self._size), *self._place
            )
            self._producers.append(producer)
        reader, writer = await asyncio.open_connection(*self._place, limit=_HEAD_BYTES_MAX)
        offset = await self._next_offset(reader, writer, "latest", 0)
        self._tasks = [
            asyncio.create_task(self._produce(), name="produce"),
            asyncio.create_task(self._follow(reader, writer, offset), name="follow"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for producer in self._producers:
            producer.close()

    def on_error(self, message: str) -> None:
        """Store the first error, for ``check`` to raise."""
        self._error = self._error or message

    def forget(self) -> None:
        """Drop all measured times."""
        self.acknowledged_s, self.delivered_s = [], []
        self._error = ""

    def check(self) -> None:
        """Check that writers and reader still work.

        Raises:
            HttpLoadError: one of them failed; the message has the response.
        """
        now_s = perf_counter()
        late_s = max(producer.pace.oldest_s(now_s) for producer in self._producers)
        if late_s > _LATE_S_MAX:
            self.on_error(f"a record is not acknowledged after {late_s:.0f} s")
        for task in self._tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                self.on_error(str(error) or type(error).__name__)
        if self._error:
            raise HttpLoadError(self._error)

    async def _produce(self) -> None:
        """Make records due, evenly spread over time; the connections take turns."""
        began_s = perf_counter()
        number = 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began_s + number / self._rate - perf_counter()))
            self._producers[number % self._count].on_due()

    async def _follow(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offset: str
    ) -> None:
        try:
            while True:
                offset = await self._next_offset(reader, writer, offset, _WAIT_MS)
        finally:
            writer.close()

    async def _next_offset(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offset: str, wait_ms: int
    ) -> str:
        """Fetch once; return the next offset."""
        writer.write(
            f"GET {self._path}/records?offset={offset}&timeout={wait_ms} HTTP/1.1\r\n"
            f"Host: {self._host}\r\nAccept: {BATCH_TYPE}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        status = head[9:12]
        fields = dict(
            line.lower().split(b": ", 1)
            for line in head.strip().split(b"\r\n")[1:]
            if b": " in line
        )
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        if status != b"200":
            self.on_error(f"the reader at the end was answered {(head + body)[:600]!r}")
            await asyncio.sleep(_RETRY_S)
            return offset
        self.delivered_s += delays_s(body, perf_counter())
        return fields[b"milena-next-offset"].decode()
