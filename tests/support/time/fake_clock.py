"""A clock that only a test moves."""

import asyncio
import heapq
from itertools import count

from milena.model.types import MonotonicMs, WallMs

WALL_START_MS = 1_700_000_000_000


class FakeClock:
    """Virtual time. ``advance`` wakes sleepers in the order of their deadlines.

    After each wake-up, ``advance`` lets the loop turn ``turns`` times. So everything that the sleeper causes (a task, a
    future's callbacks) runs at the virtual time at which it would really run.
    """

    def __init__(self, now_ms: int = 1_000, wall_ms: int = WALL_START_MS, turns: int = 10) -> None:
        self._now_ms: float = now_ms
        self._wall_ms: float = wall_ms
        self._turns = turns
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(int(self._now_ms))

    def wall_ms(self) -> WallMs:
        return WallMs(int(self._wall_ms))

    def expiry_ms(self) -> WallMs:
        return self.wall_ms()

    def sleepers(self) -> int:
        """Return the number of sleepers; a test may assert that there are none left."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, ms: float) -> None:
        if ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_ms + ms, next(self._order), future))
        await future

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock, like an administrator."""
        self._wall_ms = wall_ms

    def jump(self, ms: float) -> None:
        """Let time pass without a turn of the loop, like a stall; only synchronous code sees it."""
        self._now_ms += ms
        self._wall_ms += ms

    async def settle(self) -> None:
        """Run everything that is ready now."""
        for _ in range(self._turns):
            await asyncio.sleep(0)

    async def advance(self, ms: float) -> None:
        """Move the time forward, and wake each sleeper at its time."""
        await self.settle()
        end = self._now_ms + ms
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            self.jump(max(0, at - self._now_ms))
            if not future.done():
                future.set_result(None)
            await self.settle()
        self.jump(end - self._now_ms)
        await self.settle()
