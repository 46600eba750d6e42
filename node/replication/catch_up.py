"""Bounds what this node sends to replicas that are not in sync: catching up must not take the room of being in sync."""

from collections.abc import Callable

from node.replication.throttle import ByteBudget
from raft_meta.machine.image import Partition

CATCH_UP_BYTES_MAX = 512 << 10
"""Of one such replica in one answer. What writers wait for comes in the same answer, and behind it on the follower's
disk. With twice as much, acknowledgements took half as long again, and catching up beside them was a third faster
(200 MB/s instead of 155); see also REST_S_MAX of the fetcher."""


class CatchUpThrottle:
    """The budgets of one node: one for all moves that have no rate of their own, one for each rate that some have.

    Replicas that were in sync before and come back have no budget, only the bound of an answer: until they are in sync
    again, a record lies on fewer disks than it should.

    ``now_s``: seconds of a clock that does not jump.
    """

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._budgets: dict[int, ByteBudget] = {}

    def allowance(self, state: Partition | None, follower: int, room: int) -> int:
        """How much of ``room`` the follower may be sent now; 0: see ``wait_s``."""
        if not is_catching_up(state, follower):
            return room
        room = min(room, CATCH_UP_BYTES_MAX)
        budget = self._budget(state) if is_being_added(state, follower) else None
        return room if budget is None else min(room, budget.left(self._now_s()))

    def on_sent(self, state: Partition | None, follower: int, sent_bytes: int) -> None:
        """The follower was sent so much."""
        if sent_bytes and is_being_added(state, follower):
            budget = self._budget(state)
            if budget is not None:
                budget.take(sent_bytes)

    def wait_s(self, state: Partition | None) -> float:
        """How long to wait when nothing of the partition may be sent to those who catch up."""
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
    """Whether the follower is not in sync: no acknowledgement waits for it."""
    return state is not None and follower not in state.isr


def is_being_added(state: Partition | None, follower: int) -> bool:
    """Whether the follower is a replica that a move adds, and not in sync yet."""
    return (
        state is not None
        and follower not in state.isr
        and state.moving is not None
        and follower not in state.moving.former
    )
