"""Rules of a node's hold on the replicated state: proposals, barriers, listeners."""

import asyncio

import pytest

from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    NoQuorumError,
    RequestTooLargeError,
)
from node.metadata.store import UNDER_WAY_MAX, MetadataMachine, MetadataStore
from raft_meta.machine import codec
from raft_meta.machine.access import audit
from raft_meta.machine.commands import (
    AllocateProducer,
    ClaimController,
    Envelope,
    InitCluster,
    PutUser,
    ReassignPartitions,
    SetFeatureLevel,
)
from raft_meta.machine.image import Image
from tests.support.clusters.control import registration, store
from tests.support.fakes.quorum import FakeQuorum, RefusingQuorum, SharedLog
from tests.support.machine.images import Cluster
from tests.support.time.virtual_time import LoopClock, after, current_loop, settle, virtual

INIT = InitCluster(cluster_id="c", voters=(1,), feature_level=1)


class Stored:
    def __init__(self, node_id: int = 1, log: SharedLog | None = None) -> None:
        self.log = log or SharedLog(leader_id=1)
        self.metadata = store(self.log, node_id)
        quorum = self.metadata.quorum
        assert isinstance(quorum, FakeQuorum)
        self.quorum = quorum

    async def allocate(self, timeout_ms: int = 1_000) -> object:
        return await self.metadata.propose(AllocateProducer(name=None), timeout_ms=timeout_ms)


async def ready() -> Stored:
    stored = Stored()
    await stored.metadata.propose(INIT, timeout_ms=1_000)
    return stored


class TestPropose:
    @virtual
    async def test_the_answer_comes_with_an_image_that_includes_it(self) -> None:
        stored = Stored()
        assert await stored.metadata.propose(INIT, timeout_ms=1_000) == "c"
        assert stored.metadata.image.cluster_id == "c"

    @virtual
    async def test_an_answer_that_got_lost_is_asked_for_again_and_applied_once(self) -> None:
        stored = await ready()
        stored.quorum.faults = ["lost", "lost"]
        assert await stored.allocate() == (1, 0)
        assert stored.metadata.image.next_producer_id == 2
        assert len(set(stored.quorum.proposed)) == 2, "one command under one name, and the first"

    @virtual
    async def test_what_an_older_release_does_not_know_is_not_even_proposed(self) -> None:
        stored = await ready()
        proposed = len(stored.quorum.proposed)
        with pytest.raises(FeatureLevelError, match="level 2, and the cluster is at 1"):
            await stored.metadata.propose(ReassignPartitions(targets=()), timeout_ms=1_000)
        assert len(stored.quorum.proposed) == proposed

    @virtual
    async def test_a_node_that_starts_learns_the_level_before_it_refuses(self) -> None:
        log = SharedLog(leader_id=1)
        init = InitCluster(cluster_id="c", voters=(1,), feature_level=2)
        await Stored(1, log).metadata.propose(init, timeout_ms=1_000)
        started = Stored(2, log)
        assert started.metadata.image.index == 0
        await started.metadata.propose(ReassignPartitions(targets=()), timeout_ms=1_000)
        assert started.metadata.image.feature_level == 2
        alone = Stored(3, SharedLog())
        with pytest.raises(NoQuorumError):
            await alone.metadata.propose(ReassignPartitions(targets=()), timeout_ms=1_000)

    @virtual
    async def test_a_level_that_another_node_has_seen_rise_refuses_nothing(self) -> None:
        log = SharedLog(leader_id=1)
        first, behind = Stored(1, log), Stored(2, log)
        await first.metadata.propose(INIT, timeout_ms=1_000)
        await behind.metadata.barrier(timeout_ms=1_000)
        behind.quorum._is_reachable = lambda: False
        await first.metadata.propose(SetFeatureLevel(feature_level=2), timeout_ms=1_000)
        await settle()
        behind.quorum._is_reachable = lambda: True
        assert behind.metadata.image.feature_level == 1
        await behind.metadata.propose(ReassignPartitions(targets=()), timeout_ms=1_000)

    @virtual
    async def test_what_was_certainly_not_applied_is_said_so(self) -> None:
        stored = await ready()
        stored.quorum.faults = ["refused"]
        with pytest.raises(NoQuorumError):
            await stored.allocate()

    @virtual
    async def test_a_refusal_after_a_lost_answer_is_of_unknown_fate(self) -> None:
        stored = await ready()
        stored.quorum.faults = ["lost", "refused"]
        with pytest.raises(FateUnknownError):
            await stored.allocate()

    @virtual
    async def test_gives_up_when_the_time_is_up(self) -> None:
        stored = await ready()
        stored.quorum.faults = ["vanished"] * 10
        began = stored.metadata._clock.now_ms()
        with pytest.raises(FateUnknownError):
            await stored.allocate(timeout_ms=700)
        assert stored.metadata._clock.now_ms() - began <= 720

    @virtual
    async def test_waiting_for_a_place_counts_as_waiting(self) -> None:
        stored = await ready()
        stored.quorum.faults = ["vanished"] * UNDER_WAY_MAX
        stuck = [asyncio.ensure_future(stored.allocate(60_000)) for _ in range(UNDER_WAY_MAX)]
        await settle()
        began = stored.metadata._clock.now_ms()
        with pytest.raises(NoQuorumError):
            await stored.allocate(timeout_ms=500)
        assert stored.metadata._clock.now_ms() - began == 500
        for task in stuck:
            task.cancel()
        await settle()
        assert await stored.allocate() == (1, 0)

    @virtual
    async def test_other_errors_of_the_quorum_reach_the_caller(self) -> None:
        machine = MetadataMachine()
        quorum = RefusingQuorum(SharedLog(leader_id=1), 1, machine)
        quorum.error = RequestTooLargeError("above 1 MiB")
        metadata = MetadataStore(
            node_id=1, incarnation=1, machine=machine, quorum=quorum, clock=LoopClock()
        )
        with pytest.raises(RequestTooLargeError):
            await metadata.propose(INIT, timeout_ms=100)

    @virtual
    async def test_an_earlier_incarnation_is_outlived(self) -> None:
        stored = await ready()
        stored.metadata.incarnation -= 1_000
        with pytest.raises(Exception, match="is over"):
            await stored.allocate()
        stored.metadata.outlive_past_incarnations()
        assert await stored.allocate() == (1, 0)


class TestImages:
    @virtual
    async def test_listeners_hear_of_every_burst_once(self) -> None:
        stored = await ready()
        heard: list[Image] = []
        stored.metadata.listen(heard.append)
        other = Stored(2, stored.log)
        for _ in range(5):
            stored.log.commit(_encoded(other))
        await settle()
        assert [image.index for image in heard] == [stored.metadata.image.index]

    @virtual
    async def test_listeners_know_an_image_before_its_proposer_does(self) -> None:
        stored = await ready()
        heard: list[int] = []
        stored.metadata.listen(lambda image: heard.append(image.next_producer_id))
        await stored.allocate()
        assert heard == [2]

    @virtual
    async def test_a_proposer_that_wants_its_answer_first_goes_before_listeners(self) -> None:
        stored = await ready()
        heard: list[int] = []
        stored.metadata.listen(lambda image: heard.append(image.next_producer_id))
        await stored.metadata.propose(
            AllocateProducer(name=None), timeout_ms=1_000, is_answer_first=True
        )
        assert heard == []
        assert stored.metadata.image.next_producer_id == 2, "its next step sees what it did"
        await settle()
        assert heard == [2]

    @virtual
    async def test_a_listener_that_fails_is_told_of(self) -> None:
        failures: list[BaseException] = []
        machine = MetadataMachine()
        metadata = MetadataStore(
            node_id=1,
            incarnation=1,
            machine=machine,
            quorum=FakeQuorum(SharedLog(leader_id=1), 1, machine),
            clock=LoopClock(),
            on_failure=failures.append,
        )

        def broken(_: Image) -> None:
            raise KeyError("a bug")

        metadata.listen(broken)
        with pytest.raises(KeyError):
            await metadata.propose(INIT, timeout_ms=100)
        assert [type(error) for error in failures] == [KeyError]
        current_loop().failures.clear()

    @virtual
    async def test_waiting_for_a_condition_ends_with_it_or_with_the_time(self) -> None:
        stored = await ready()
        waiting = asyncio.ensure_future(
            stored.metadata.wait_until(lambda i: i.controller_epoch == 1, timeout_ms=10_000)
        )
        await after(100)
        assert not waiting.done()
        await stored.metadata.propose(ClaimController(broker_id=1), timeout_ms=100)
        assert await waiting
        assert not await stored.metadata.wait_until(lambda _: False, timeout_ms=300)
        assert not stored.metadata._changed._waiters

    @virtual
    async def test_a_barrier_shows_what_was_committed_before_it(self) -> None:
        stored = await ready()
        other = Stored(2, stored.log)
        other.quorum.is_stopped = False
        await other.metadata.propose(registration(2), timeout_ms=100)
        image = await stored.metadata.barrier(timeout_ms=100)
        assert 2 in image.brokers

    @virtual
    async def test_no_majority_no_barrier(self) -> None:
        stored = await ready()
        stored.log.leader_id = None
        with pytest.raises(NoQuorumError):
            await stored.metadata.barrier(timeout_ms=100)

    @virtual
    async def test_a_snapshot_is_of_the_moment_and_restores_to_the_same(self) -> None:
        stored = await ready()
        machine = stored.metadata._machine
        pack = machine.snapshot()
        before = machine.image
        await stored.metadata.propose(registration(1), timeout_ms=100)
        twin = MetadataMachine()
        twin.restore(pack())
        assert twin.image == before


class TestMachine:
    def test_a_change_is_told_after_the_answers_of_its_turn_were_delivered_and_once(self) -> None:
        cluster = Cluster([None], level=audit.LEVEL)
        machine = MetadataMachine()
        machine.image = cluster.image
        told: list[str] = []
        machine.on_audited(lambda entry: told.append(entry.change))
        for name in ("ann", "bob"):
            command = PutUser(name=name, version=0, verifiers=(), is_superuser=False)
            index = machine.image.index + 1
            machine.apply(index, codec.encode_envelope(cluster.envelope(command)))
        assert told == [], "the quorum delivers answers before it publishes"
        machine.publish()
        assert [name in change for name, change in zip(("ann", "bob"), told, strict=True)] == [
            True
        ] * 2
        machine.publish()
        assert len(told) == 2


def _encoded(stored: Stored) -> bytes:
    """A command of another node, as it is logged."""
    return codec.encode_envelope(
        Envelope(
            proposer=2,
            incarnation=stored.metadata.incarnation,
            sequence=next(stored.metadata._sequences),
            now_ms=stored.metadata._clock.wall_ms(),
            command=AllocateProducer(name=None),
        )
    )
