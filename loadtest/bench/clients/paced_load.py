"""Producers of small records at a fixed rate, and a reader that waits at the end of the log for these records.

A closed loop sends fewer requests to a server that became slow, and so hides the delay of the requests that it did not
send. Here requests become due by the clock. If a connection still waits for a response, its next request waits, and its
latency counts from when it was due. Each value has the time at which it became due, so a reader in the same process
knows the age of the record.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from time import perf_counter

import aiohttp

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.servers.subject import BATCH_TYPE, JSON_TYPE

_STAMP_DIGITS = 16
_STAMP = re.compile(rb"@(\d{16})@")
_LATE_S_MAX = 10.0
"""The longest time for a response, in s. A longer one is an error: the cluster does not do the measured work."""
_WAIT_MS = 1_000
_RETRY_S = 0.05
_NS = 1e9
_ACKNOWLEDGED = b'"error_code":null'


class PacedWriter:
    """Sends one record after the other. Records that become due meanwhile wait in order."""

    def __init__(
        self, send: Callable[[float], Awaitable[bool]], clock: Callable[[], float] = perf_counter
    ) -> None:
        """``send`` sends a record that was due at a time, and returns whether it was acknowledged."""
        self._send = send
        self._clock = clock
        self._due_s: asyncio.Queue[float] = asyncio.Queue()
        self._sent_s: float | None = None
        """The time at which the record in flight was due; None if there is none."""

    def on_due(self) -> None:
        """Count one more record as due."""
        self._due_s.put_nowait(self._clock())

    def oldest_s(self) -> float:
        """Return how long the record in flight has been due; 0 if there is none."""
        return 0.0 if self._sent_s is None else self._clock() - self._sent_s

    async def run(self, on_acknowledged: Callable[[float], None]) -> None:
        """Send until cancelled; ``on_acknowledged`` gets the seconds since each acknowledged record was due."""
        while True:
            self._sent_s = await self._due_s.get()
            if await self._send(self._sent_s):
                on_acknowledged(self.oldest_s())
            self._sent_s = None


def encode_stamp(due_s: float) -> bytes:
    """Return a time as text for a value; the length is always the same."""
    return b"@%0*d@" % (_STAMP_DIGITS, int(due_s * _NS))


def delays_s(stored: bytes, now_s: float) -> list[float]:
    """Return the ages of all stamped values in stored, uncompressed batches."""
    return [now_s - int(stamp) / _NS for stamp in _STAMP.findall(stored)]


class PacedLoad:
    """Connections that together write ``rate`` records a second to partition 0, and one reader at its end.

    An asynchronous context manager. ``acknowledged_s`` and ``delivered_s`` grow while it is open; ``forget`` empties
    both at the start of a turn.
    """

    def __init__(self, url: str, topic: str, *, connections: int, rate: float, size: int) -> None:
        self.acknowledged_s: list[float] = []
        self.delivered_s: list[float] = []
        self._url = f"{url}/topics/{topic}/partitions/0"
        self._rate = rate
        self._size = size
        self._writers = [PacedWriter(self._write) for _ in range(connections)]
        self._tasks: list[asyncio.Task[None]] = []
        self._error = ""

    async def __aenter__(self) -> "PacedLoad":
        # Nodes would compress records, and the stamps are searched in plain bytes.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Accept-Encoding": "identity"},
        )
        offset = await self._next_offset("latest", 0)
        work = [
            *(writer.run(self.acknowledged_s.append) for writer in self._writers),
            self._produce(),
            self._follow(offset),
        ]
        self._tasks = [asyncio.create_task(each) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def forget(self) -> None:
        """Drop all measured times."""
        self.acknowledged_s.clear()
        self.delivered_s.clear()
        self._error = ""

    def check(self) -> None:
        """Check that writers and reader still work.

        Raises:
            HttpLoadError: one of them failed; the message has the response.
        """
        late_s = max(writer.oldest_s() for writer in self._writers)
        if late_s > _LATE_S_MAX:
            self._on_error(f"a record is not acknowledged after {late_s:.0f} s")
        for task in self._tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                self._on_error(str(error) or type(error).__name__)
        if self._error:
            raise HttpLoadError(self._error)

    def _on_error(self, message: str) -> None:
        """Store the first error, for ``check`` to raise."""
        self._error = self._error or message

    async def _write(self, due_s: float) -> bool:
        stamp = encode_stamp(due_s)
        body = b'{"records":[{"value":"%b"}]}' % stamp.ljust(self._size, b"x")
        async with self._session.post(
            f"{self._url}?acks=all", data=body, headers={"Content-Type": JSON_TYPE}
        ) as response:
            answer = await response.read()
        is_acknowledged = response.status == 200 and _ACKNOWLEDGED in answer
        if not is_acknowledged:
            self._on_error(f"it answered {response.status} {answer[:600]!r}")
        return is_acknowledged

    async def _produce(self) -> None:
        """Make records due, evenly spread over time; the connections take turns."""
        began_s = perf_counter()
        number = 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began_s + number / self._rate - perf_counter()))
            self._writers[number % len(self._writers)].on_due()

    async def _follow(self, offset: str) -> None:
        while True:
            offset = await self._next_offset(offset, _WAIT_MS)

    async def _next_offset(self, offset: str, wait_ms: int) -> str:
        """Fetch once; return the next offset."""
        async with self._session.get(
            f"{self._url}/records?offset={offset}&timeout={wait_ms}", headers={"Accept": BATCH_TYPE}
        ) as response:
            body = await response.read()
        if response.status != 200:
            self._on_error(f"the reader at the end was answered {response.status} {body[:600]!r}")
            await asyncio.sleep(_RETRY_S)
            return offset
        self.delivered_s += delays_s(body, perf_counter())
        return response.headers["Milena-Next-Offset"]
