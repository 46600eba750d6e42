"""Open streams: their bound, how they all end, and how long their sources retry.

Callers share the bound as they share requests in flight (``http_api.serving.in_flight``). If more than half is taken, a
caller gets at most an equal share, and the last eighth is for callers without a stream. A stream may never end, so an
early share would not shrink. Hence no caller has more than half.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from http_api.serving.in_flight import FOR_NEWCOMERS, fits
from milena.model.errors import NotLeaderError, TooManyRequestsError, UnavailableError

KEEP_ALIVE_MS = 20_000
"""How often a source without data sends a sign of life. Proxies commonly close a silent connection after 60 s."""


PIECE_BYTES = 256 << 10
"""The amount read at a time, both stored and decompressed, or one batch. A slow reader costs no more."""

RETRY_S_FIRST, RETRY_S_MAX, RETRY_S_TOTAL = 0.1, 2.0, 30.0
"""Waits between retries while a partition cannot be read, and the time after which the stream gives up (seconds).

After that, another node may know more.
"""


class Streams:
    """All open streams. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        # One caller may have all of a bound that is too small to share.
        self._own_most = most - FOR_NEWCOMERS // 2 * (most // FOR_NEWCOMERS)
        self._ends: set[asyncio.Timeout] = set()
        self._count = 0
        self._held: Counter[str] = Counter()
        """The number of streams, by caller."""
        self.ended_count = 0
        """How often ``end_all`` was called."""

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, caller: str, count: int = 1) -> Iterator[None]:
        """Take ``count`` places among the streams within this block.

        Raises:
            TooManyRequestsError: the bound is reached, or the caller's share of it.
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
        """Let ``end_all`` end this timeout."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def end_all(self) -> None:
        """End every stream cleanly. Streams that start later continue."""
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


class Retries:
    """Waits between retries. Each is twice as long as the previous one, up to a total time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reset()

    def reset(self) -> None:
        """Start again after a success."""
        self._next_s = RETRY_S_FIRST
        self._failing_since: float | None = None

    async def wait_after(self, error: UnavailableError | NotLeaderError) -> None:
        """Wait before the next retry, or raise the error if the total time is over."""
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= RETRY_S_TOTAL:
            raise error
        await pause(self._next_s)
        self._next_s = min(2 * self._next_s, RETRY_S_MAX)
