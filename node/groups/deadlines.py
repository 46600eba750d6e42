"""The next time at which each of many groups must be looked at. Pure."""

import heapq
import itertools
from collections.abc import Iterator

from milena.model.types import MonotonicMs
from node.groups.member_sessions import NEVER


class Deadlines:
    """One deadline a group, the earliest one that was scheduled."""

    def __init__(self) -> None:
        self._heap: list[tuple[MonotonicMs, int, str]] = []
        self._next: dict[str, MonotonicMs] = {}
        self._sequence = itertools.count()

    def schedule(self, group_id: str, due_ms: MonotonicMs) -> None:
        """Have the group looked at by ``due_ms``, unless an earlier time is scheduled.

        An early look is enough. Heartbeats only extend sessions, and each look schedules the next one.
        """
        if due_ms < self._next.get(group_id, NEVER):
            # The later entry of this group stays in the heap; ``due`` skips it, because ``_next`` differs.
            self._next[group_id] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._sequence), group_id))

    def forget(self, group_id: str) -> None:
        """Cancel the group's deadline."""
        self._next.pop(group_id, None)

    def due(self, now_ms: MonotonicMs) -> Iterator[str]:
        """Yield each group whose deadline has come. It has none then; the look may schedule the next one."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, group_id = heapq.heappop(self._heap)
            if self._next.get(group_id) == due_ms:
                del self._next[group_id]
                yield group_id
