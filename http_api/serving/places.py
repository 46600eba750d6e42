"""Streams that are open: how many there may be, how all of them end, and how long their sources try.

Callers share them as they share requests in flight (``http_api.serving.in_flight``): where more than half are taken, no
caller has more than an equal share, and the last eighth is for callers that have none. A stream has no end, so a share
that was taken early would not become smaller: no caller has more than half.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from http_api.serving.in_flight import FOR_NEWCOMERS, fits
from milena.model.errors import NotLeaderError, TooManyRequestsError, UnavailableError

KEEP_ALIVE_MS = 20_000
"""A source that has nothing says so this often. Proxies commonly give up on a silent connection after 60 s."""


PIECE_BYTES = 256 << 10
"""Read at a time, stored and again decompressed, or one batch: all that a client who reads slowly costs."""

RETRY_S_FIRST, RETRY_S_MAX, RETRY_S_TOTAL = 0.1, 2.0, 30.0
"""Between tries while a partition cannot be read, and when the stream gives up: another node may know more."""


class Streams:
    """All that are open. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Of a bound that is too small to be shared one caller may have all.
        self._own_most = most - FOR_NEWCOMERS // 2 * (most // FOR_NEWCOMERS)
        self._ends: set[asyncio.Timeout] = set()
        self._count = 0
        self._held: Counter[str] = Counter()
        """By caller, of those that have some."""
        self.ended_count = 0
        """How often all were ended."""

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, caller: str, count: int = 1) -> Iterator[None]:
        """A place among the streams, or as many as it costs.

        Raises:
            TooManyRequestsError: there are as many as there may be, or as many of this caller.
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
        """``end_all`` lets this time run out."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def end_all(self) -> None:
        """End every stream, in order; those that begin later go on."""
        now = asyncio.get_running_loop().time()
        self.ended_count += 1
        ends, self._ends = self._ends, set()
        for end in ends:
            end.reschedule(now)


async def pause(seconds: float) -> None:
    """Wait, on the loop's clock."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    timer = loop.call_later(seconds, waiting.set_result, None)
    try:
        await waiting
    finally:
        timer.cancel()


class Retries:
    """Waits, each twice as long as the one before, until it has been too long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reset()

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next_s = RETRY_S_FIRST
        self._failing_since: float | None = None

    async def wait_after(self, error: UnavailableError | NotLeaderError) -> None:
        """Wait before the next try, or raise the error when there was enough of them."""
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= RETRY_S_TOTAL:
            raise error
        await pause(self._next_s)
        self._next_s = min(2 * self._next_s, RETRY_S_MAX)
