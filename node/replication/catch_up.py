"""Limits what this node sends to replicas that are not in sync, so that they do not slow down replicas in sync."""

from collections.abc import Callable

from node.replication.throttle import ByteBudget
from raft_meta.machine.image import Partition

CATCH_UP_BYTES_MAX = 512 << 10
"""The most bytes of one replica that catches up in one response.

Records that writers wait for travel in the same response, and the follower's disk stores them after these bytes. With
twice as much, acknowledgements took 1.5 times as long. Catching up beside them was a third faster (200 MB/s instead of
155). See also ``REST_S_MAX`` of the fetcher.
"""


class CatchUpThrottle:
    """The budgets of one node: one for all moves without a rate of their own, one for each rate that moves have.

    Replicas that were in sync before have no budget, only the limit of a response (``CATCH_UP_BYTES_MAX``). Until they
    are in sync again, a record is on fewer disks than it should be.

    ``now_s``: seconds of a clock that does not jump.
    """

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._budgets: dict[int, ByteBudget] = {}

    def allowance(self, state: Partition | None, follower: int, room: int) -> int:
        """Return how many bytes of ``room`` may go to the follower now; if 0, wait for ``wait_s``."""
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
        """Return how long to wait if the budget allows no bytes of the partition, in seconds."""
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
    """Return whether a move adds the follower as a replica, and it is not in sync yet."""
    return (
        state is not None
        and follower not in state.isr
        and state.moving is not None
        and follower not in state.moving.former
    )
