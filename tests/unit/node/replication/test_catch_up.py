"""What replicas that are not in sync are sent: little at once, and those that a move adds no faster than they may."""

from dataclasses import replace

import pytest

from node.replication.catch_up import CATCH_UP_BYTES_MAX, CatchUpThrottle
from raft_meta.machine.image import Partition, Reassignment

ROOM = 8 << 20
RATE = 1_000_000
IN_SYNC = Partition(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0)
BACK = replace(IN_SYNC, isr=(1,))
MOVING = replace(
    IN_SYNC,
    replicas=(1, 2, 3),
    moving=Reassignment(
        target=(1, 3), former=(1, 2), is_started=True, max_concurrent=0, throttle_bytes_per_s=0
    ),
)


def _throttle(bytes_per_s: int = 0) -> CatchUpThrottle:
    return CatchUpThrottle(bytes_per_s, lambda: 0.0)


@pytest.mark.parametrize("state", [None, IN_SYNC, MOVING])
def test_what_writers_wait_for_has_all_the_room(state):
    assert _throttle(RATE).allowance(state, 2, ROOM) == ROOM


@pytest.mark.parametrize(("state", "follower"), [(BACK, 2), (MOVING, 3)])
def test_a_replica_out_of_sync_takes_little_of_an_answer(state, follower):
    assert _throttle().allowance(state, follower, ROOM) == CATCH_UP_BYTES_MAX
    assert _throttle().allowance(state, follower, 5) == 5


def test_a_replica_that_comes_back_has_no_budget():
    throttle = _throttle(RATE)
    for _ in range(100):
        throttle.on_sent(BACK, 2, CATCH_UP_BYTES_MAX)
    assert throttle.allowance(BACK, 2, ROOM) == CATCH_UP_BYTES_MAX
    assert throttle.allowance(MOVING, 3, ROOM) > 0


def test_a_former_replica_of_a_move_has_no_budget_either():
    throttle, state = _throttle(RATE), replace(MOVING, isr=(1,))
    throttle.on_sent(state, 2, ROOM)
    assert throttle.allowance(state, 2, ROOM) == CATCH_UP_BYTES_MAX


def test_a_replica_that_a_move_adds_has_one():
    throttle = _throttle(RATE)
    throttle.on_sent(MOVING, 3, CATCH_UP_BYTES_MAX)
    assert throttle.allowance(MOVING, 3, ROOM) == 0
    assert throttle.wait_s(MOVING) > 0
