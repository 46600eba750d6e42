"""Calls that wait for an offset, and are called back when a watermark reaches it."""

import heapq
from itertools import count

from milena.model.errors import MilenaError
from milena.model.pending import Pending, Taker


class OffsetWaiters:
    """Takers, ordered by the offset that a watermark must reach.

    Invariants:
        The offset of each waiting taker is above the last watermark. Owned by one event loop.
    """

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Taker[None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def wait_for(self, offset: int) -> Pending[None]:
        """Return a result that is done once the watermark is at or above ``offset``."""
        pending: Pending[None] = Pending()
        self.add(offset, pending)
        return pending

    def add(self, offset: int, taker: Taker[None]) -> None:
        """Complete ``taker`` once the watermark is at or above ``offset``. Its ``set_result`` must not add a taker."""
        heapq.heappush(self._heap, (offset, next(self._order), taker))

    def advance(self, watermark: int) -> None:
        """Complete the takers at or below ``watermark``."""
        heap = self._heap
        while heap and heap[0][0] <= watermark:
            taker = heapq.heappop(heap)[2]
            if not taker.done():
                taker.set_result(None)

    def fail_above(self, offset: int, error: MilenaError) -> None:
        """Fail the takers above ``offset``."""
        lost = [entry for entry in self._heap if entry[0] > offset]
        kept = [entry for entry in self._heap if entry[0] <= offset]
        heapq.heapify(kept)
        self._heap = kept
        for entry in lost:
            if not entry[2].done():
                entry[2].set_exception(error)

    def prune(self) -> None:
        """Remove the takers whose owners gave up, once they are the majority."""
        alive = [entry for entry in self._heap if not entry[2].done()]
        if len(alive) * 2 < len(self._heap):
            heapq.heapify(alive)
            self._heap = alive
