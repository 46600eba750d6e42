"""Rules of carrying ISR changes to the quorum: many in one command, and what each answer means."""

import asyncio

from node.replica.leader import IsrProposal
from node.replication.isr_proposals import CHANGES_MAX, IsrProposer
from raft_meta.machine import codec
from raft_meta.machine.commands import AlterIsr, ClaimController, InitCluster, UnfenceBroker
from tests.support.clusters.control import TOPIC_ID, registration, store
from tests.support.fakes.quorum import FakeQuorum, SharedLog
from tests.support.fakes.standing import FixedStanding
from tests.support.time.virtual_time import LoopClock, after, settle, virtual


class Runner:
    """Stands in for a partition runner: remembers how its proposals ended."""

    topic_id = TOPIC_ID
    name = "t-0"

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.ends: list[bool] = []

    def on_proposal_done(self, proposal: IsrProposal, *, is_definite_refusal: bool) -> None:
        self.ends.append(is_definite_refusal)


def wish(epoch: int = 5, version: int = 0) -> IsrProposal:
    return IsrProposal(leader_epoch=epoch, partition_epoch=version, members=((1, 10),))


class Desk:
    def __init__(self) -> None:
        self.log = SharedLog(leader_id=1)
        self.metadata = store(self.log, 1)
        quorum = self.metadata.quorum
        assert isinstance(quorum, FakeQuorum)
        self.quorum = quorum
        self.standing = FixedStanding(0)
        self.proposer = IsrProposer(
            metadata=self.metadata,
            clock=LoopClock(),
            standing=self.standing,
            timeout_ms=500,
        )

    async def start(self) -> "Desk":
        for command in (
            InitCluster(cluster_id="c", voters=(1,), feature_level=1),
            ClaimController(broker_id=1),
        ):
            await self.metadata.propose(command, timeout_ms=100)
        epoch = await self.metadata.propose(registration(1), timeout_ms=100)
        assert isinstance(epoch, int)
        self.standing.broker_epoch = epoch
        await self.metadata.propose(
            UnfenceBroker(controller_epoch=1, broker_id=1, broker_epoch=epoch), timeout_ms=100
        )
        self.task = asyncio.get_running_loop().create_task(self.proposer.run())
        return self

    def commands(self) -> list[AlterIsr]:
        decoded = [codec.decode_envelope(data).command for data in self.log.commands]
        return [command for command in decoded if isinstance(command, AlterIsr)]


@virtual
async def test_what_is_queued_goes_out_as_one_command() -> None:
    desk = await Desk().start()
    runners = [Runner(i) for i in range(5)]
    for runner in runners:
        desk.proposer.submit(runner, wish())  # type: ignore[arg-type]
    await settle()
    assert [len(command.changes) for command in desk.commands()] == [5]
    assert [runner.ends for runner in runners] == [[True]] * 5, "no such partition"
    desk.task.cancel()


@virtual
async def test_a_command_has_a_bound() -> None:
    desk = await Desk().start()
    for i in range(CHANGES_MAX + 1):
        desk.proposer.submit(Runner(i), wish())  # type: ignore[arg-type]
    await after(100)
    assert [len(command.changes) for command in desk.commands()] == [CHANGES_MAX, 1]
    desk.task.cancel()


@virtual
async def test_no_answer_is_no_refusal() -> None:
    desk = await Desk().start()
    desk.quorum.faults = ["vanished"]
    runner = Runner()
    desk.proposer.submit(runner, wish())  # type: ignore[arg-type]
    await after(600)
    assert runner.ends == [False]
    desk.task.cancel()


@virtual
async def test_what_the_quorum_certainly_did_not_take_is_refused() -> None:
    desk = await Desk().start()
    desk.quorum.faults = ["refused"]
    runner = Runner()
    desk.proposer.submit(runner, wish())  # type: ignore[arg-type]
    await after(100)
    assert runner.ends == [True]
    desk.task.cancel()


@virtual
async def test_an_earlier_life_of_the_broker_is_refused_as_a_whole() -> None:
    desk = await Desk().start()
    desk.standing.broker_epoch -= 1
    runner = Runner()
    desk.proposer.submit(runner, wish())  # type: ignore[arg-type]
    await after(100)
    assert runner.ends == [True]
    desk.task.cancel()


@virtual
async def test_a_refusal_is_followed_by_a_pause() -> None:
    # It means that our image is behind; the next wish would most likely be refused too.
    desk = await Desk().start()
    first, second = Runner(0), Runner(1)
    desk.proposer.submit(first, wish())  # type: ignore[arg-type]
    await settle()
    desk.proposer.submit(second, wish())  # type: ignore[arg-type]
    await settle()
    assert (first.ends, second.ends) == ([True], [])
    await after(25)
    assert second.ends == [True]
    desk.task.cancel()
