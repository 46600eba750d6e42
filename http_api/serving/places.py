"""Open streams: their limit, how all of them end, and how long their sources retry.

Callers share the limit of streams as they share that of requests in flight (``http_api.serving.in_flight``). In
addition, no caller may have more than half of all streams. Streams may never end, so a caller that came first would
otherwise keep most of them when others arrive.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from http_api.serving.in_flight import FOR_NEWCOMERS, fits
from milena.model.errors import (
    FateUnknownError,
    InternalError,
    MilenaError,
    NotLeaderError,
    TooManyRequestsError,
    UnavailableError,
)

KEEP_ALIVE_MS = 20_000
"""Interval in which a stream without data sends an empty line or comment. Many proxies close silent ones after 60 s."""


PIECE_BYTES = 256 << 10
"""The most bytes that a stream reads at a time, stored and decompressed (at least one batch): its memory if slow."""

RETRY_S_FIRST, RETRY_S_MAX, RETRY_S_TOTAL = 0.1, 2.0, 30.0
"""First and longest wait between retries while a partition cannot be read, and the total time, in seconds.

After the total time the stream ends, and its client may try another node.
"""


class Streams:
    """All open streams of a server. Used on one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        # If the limit is below ``FOR_NEWCOMERS``, one caller may have all streams.
        self._own_most = most - FOR_NEWCOMERS // 2 * (most // FOR_NEWCOMERS)
        self._ends: set[asyncio.Timeout] = set()
        self._count = 0
        self._held: Counter[str] = Counter()
        """Number of streams by caller."""
        self.ended_count = 0
        """Number of calls of ``end_all``."""

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, caller: str, count: int = 1) -> Iterator[None]:
        """Count ``count`` streams for this caller within the block.

        Raises:
            TooManyRequestsError: the limit is reached, or the caller's share of it.
        """
        own = self._held[caller]
        callers = len(self._held) + (caller not in self._held)
        is_share = not own or own + count <= self._own_most
        if not is_share or not fits(self._count, own, count, self._most, callers=callers):
            raise TooManyRequestsError(
                f"{self._count} of {self._most} streams are open, {own} of them of {caller}; end some of them, or try "
                "again later"
            )
        self._count += count
        self._held[caller] = own + count
        try:
            yield
        finally:
            self._count -= count
            self._held[caller] -= count
            if not self._held[caller]:
                del self._held[caller]

    @contextmanager
    def ending_with(self, end: asyncio.Timeout) -> Iterator[None]:
        """Within this block, let ``end_all`` expire the timeout, which ends the stream."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def end_all(self) -> None:
        """End every open stream as if it were complete, or with an error. Streams that start later are not affected."""
        now = asyncio.get_running_loop().time()
        self.ended_count += 1
        ends, self._ends = self._ends, set()
        for end in ends:
            end.reschedule(now)


async def pause(seconds: float) -> None:
    """Wait this many seconds, on the loop's clock."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    timer = loop.call_later(seconds, waiting.set_result, None)
    try:
        await waiting
    finally:
        timer.cancel()


PASSING_ERRORS = (UnavailableError, NotLeaderError, FateUnknownError)
"""Errors after which a stream tries again. A read whose fate is unknown has changed nothing for its reader."""


class Retries:
    """Waits between retries. Each wait is twice as long as the one before, up to a total time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reset()

    def reset(self) -> None:
        """Start again after a success."""
        self._next_s = RETRY_S_FIRST
        self._failing_since: float | None = None

    async def wait_after(self, error: MilenaError) -> None:
        """Wait before the next retry; raise ``error`` if the total time has passed, or if it is a fault of a node."""
        if isinstance(error, InternalError):
            raise error
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= RETRY_S_TOTAL:
            raise error
        await pause(self._next_s)
        self._next_s = min(2 * self._next_s, RETRY_S_MAX)
