"""Heartbeats that are here now: whose they are, and which of them are held back until there is news."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class WaitingMembers:
    """The members of one group that have a heartbeat on their coordinator. Owned by its desk."""

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._newest: dict[str, int] = {}
        self._sequence = itertools.count(1)

    @property
    def present(self) -> frozenset[str]:
        """Who would hear at once of what it is given."""
        return frozenset(self._present)

    @property
    def held_back(self) -> list[str]:
        """Whose heartbeats wait for news."""
        return list(self._waiters)

    @contextmanager
    def presence(self, member_id: str) -> Iterator[int]:
        """While a heartbeat of the member is here; its number, by which ``is_newest`` knows it.

        A member that sends another one has left the former: that is not to keep the news from it.
        """
        number = self._newest[member_id] = next(self._sequence)
        self._present[member_id] += 1
        self.wake(member_id)
        try:
            yield number
        finally:
            self._present[member_id] -= 1
            if not self._present[member_id]:
                del self._present[member_id], self._newest[member_id]

    def is_newest(self, member_id: str, number: int) -> bool:
        """Whether the member has sent no other heartbeat since."""
        return self._newest.get(member_id) == number

    async def news(self, member_id: str, timeout_ms: float) -> None:
        """Wait until the member is woken, or the time is up."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(member_id, []).append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            return
        finally:
            self._forget(member_id, waiter)

    def _forget(self, member_id: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(member_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[member_id]

    def wake(self, member_id: str) -> None:
        """There is news for the member."""
        for waiter in self._waiters.pop(member_id, ()):
            if not waiter.done():
                waiter.set_result(None)
