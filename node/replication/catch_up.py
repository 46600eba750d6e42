"""Limits how fast this node sends records to replicas that are not in sync, so that replicas in sync are not slowed."""

from collections.abc import Callable

from node.replication.throttle import ByteBudget
from raft_meta.machine.image import Partition

CATCH_UP_BYTES_MAX = 512 << 10
"""Largest number of bytes that one response carries for a replica that is not in sync.

The same response also carries new records of other partitions, for which producers wait. The follower stores them after
these bytes. With twice as many bytes, acknowledgements took 1.5 times as long, and catching up was a third faster
(200 MB/s instead of 155). See also ``REST_S_MAX`` of the fetcher.
"""


class CatchUpThrottle:
    """The byte budgets of one node. A budget limits what is sent to replicas that moves add.

    A move may have its own rate. Moves with the same rate share a budget, and all moves without a rate share the node's
    budget. A replica that was in sync before has no budget, only the limit of a response (``CATCH_UP_BYTES_MAX``). It
    should be in sync again soon, because until then each record has one copy less.

    ``now_s``: seconds of a clock that does not jump.
    """

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._budgets: dict[int, ByteBudget] = {}

    def allowance(self, state: Partition | None, follower: int, room: int) -> int:
        """Return how many bytes of ``room`` may be sent to the follower now. If 0, wait for ``wait_s``."""
        if not is_catching_up(state, follower):
            return room
        room = min(room, CATCH_UP_BYTES_MAX)
        budget = self._budget(state) if is_being_added(state, follower) else None
        return room if budget is None else min(room, budget.left(self._now_s()))

    def on_sent(self, state: Partition | None, follower: int, sent_bytes: int) -> None:
        """Count bytes that were sent to the follower."""
        if sent_bytes and is_being_added(state, follower):
            budget = self._budget(state)
            if budget is not None:
                budget.take(sent_bytes)

    def wait_s(self, state: Partition | None) -> float:
        """Return how many seconds to wait if the budget allows no bytes of the partition."""
        budget = self._budget(state)
        return 0.0 if budget is None else budget.wait_s()

    def _budget(self, state: Partition | None) -> ByteBudget | None:
        moving = None if state is None else state.moving
        rate = (moving.throttle_bytes_per_s if moving else 0) or self._bytes_per_s
        if rate == 0:
            return None
        budget = self._budgets.get(rate)
        if budget is None:
            budget = self._budgets[rate] = ByteBudget(rate, self._now_s())
        return budget


def is_catching_up(state: Partition | None, follower: int) -> bool:
    """Return whether the follower is not in sync, so that no acknowledgement waits for it."""
    return state is not None and follower not in state.isr


def is_being_added(state: Partition | None, follower: int) -> bool:
    """Return whether a move is adding the follower as a replica, and it is not in sync yet."""
    return (
        state is not None
        and follower not in state.isr
        and state.moving is not None
        and follower not in state.moving.former
    )
