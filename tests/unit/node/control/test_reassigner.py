"""The controller's turn with moves: start, hand over, let writers hear of it, finish."""

import asyncio
from collections.abc import Sequence

from node.control.reassigner import HANDOVER_MS, Reassigner
from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied
from raft_meta.machine.codec import decode_response
from raft_meta.machine.image import Partition
from tests.support.machine.images import TOPIC_ID, Cluster
from tests.support.time.fake_clock import FakeClock


class Turns:
    """A reassigner whose proposals are applied at once."""

    def __init__(self) -> None:
        self.cluster = Cluster([None] * 4, level=2)
        self.cluster.create(((1, 2),))
        self.clock = FakeClock()
        self.reassigner = Reassigner(
            clock=self.clock, propose=self.propose, propose_changes=self.propose_changes
        )

    async def propose(self, command: c.StepReassignments) -> object:
        return decode_response(self.cluster.do(command).response)

    async def propose_changes(self, changes: Sequence[c.LeaderChange], why: str) -> None:
        assert why == "hand over"
        self.cluster.do(c.ElectLeaders(controller_epoch=1, changes=tuple(changes)))

    @property
    def state(self) -> Partition:
        return self.cluster.image.partitions[TOPIC_ID, 0]

    def move(self, *replicas: int) -> Applied:
        target = c.TargetReplicas(
            topic_id=TOPIC_ID,
            partition=0,
            replicas=replicas,
            max_concurrent=0,
            throttle_bytes_per_s=0,
        )
        return self.cluster.do(c.ReassignPartitions(targets=(target,)))

    def join(self, *isr: int) -> None:
        leader = self.state.leader
        assert leader is not None
        brokers = self.cluster.image.brokers
        change = c.IsrChange(
            topic_id=TOPIC_ID,
            partition=0,
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
            isr=tuple(c.IsrMember(broker_id=b, broker_epoch=brokers[b].broker_epoch) for b in isr),
        )
        epoch = brokers[leader].broker_epoch
        self.cluster.do(c.AlterIsr(broker_id=leader, broker_epoch=epoch, changes=(change,)))

    async def turn(self) -> None:
        await self.reassigner.turn(self.cluster.image)


async def test_the_former_leader_stays_a_moment_after_it_handed_over() -> None:
    turns = Turns()
    turns.move(3, 4)
    await turns.turn()
    assert turns.state.replicas == (1, 2, 3, 4)
    turns.join(1, 2, 3, 4)
    await turns.turn()
    assert (turns.state.leader, turns.state.replicas) == (3, (1, 2, 3, 4))
    await turns.clock.advance(HANDOVER_MS - 1)
    await turns.turn()
    assert turns.state.moving is not None
    await turns.clock.advance(1)
    await turns.turn()
    assert (turns.state.leader, turns.state.replicas) == (3, (3, 4))


async def test_a_leader_who_stays_finishes_at_once() -> None:
    turns = Turns()
    turns.move(1, 3)
    await turns.turn()
    turns.join(1, 3)
    await turns.turn()
    assert (turns.state.leader, turns.state.replicas) == (1, (1, 3))


async def test_a_controller_that_did_not_hand_over_itself_does_not_wait() -> None:
    turns = Turns()
    turns.move(3, 4)
    await turns.turn()
    turns.join(1, 2, 3, 4)
    await turns.turn()
    successor = Reassigner(
        clock=turns.clock, propose=turns.propose, propose_changes=turns.propose_changes
    )
    await successor.turn(turns.cluster.image)
    assert turns.state.replicas == (3, 4)


async def test_a_plan_from_an_old_image_does_nothing() -> None:
    turns = Turns()
    turns.move(1, 3)
    before = turns.cluster.image
    await turns.reassigner.turn(before)
    turns.join(1, 2)
    late = asyncio.ensure_future(turns.reassigner.turn(before))
    await turns.clock.settle()
    assert turns.state.replicas == (1, 2, 3)
    # What is refused is not tried again at once.
    assert turns.clock.sleepers() == 1
    await turns.clock.advance(1_000)
    await late
