"""Heartbeats on a group's coordinator: who works on what, who hears of it when, and what silence costs."""

import asyncio

import pytest

from http_api.ports.groups import HeartbeatAnswer, KafkaHeartbeat, each_partition
from milena.model.errors import (
    FateUnknownError,
    InstanceHeldError,
    InvalidConsumerError,
    MemberFencedError,
    MemberNotFoundError,
    NoQuorumError,
    StaleMemberEpochError,
)
from raft_meta.machine.commands import AlterGroup
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.groups.sim_members import ALL, Member, coordinator, other, started
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_a_member_joins_through_any_node_and_works_on_everything() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat(node=other(cluster))
    assert member.numbers == [0, 1, 2, 3]
    assert member.epoch == 1
    await cluster.close()


@virtual
async def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    index = cluster.image.index
    for node in ALL:
        await member.beat(node=node)
    assert cluster.image.index == index
    await cluster.close()


@virtual
async def test_a_member_that_leaves_while_its_join_is_being_written_is_gone() -> None:
    cluster = await started()
    one, node = Member(cluster, "m1"), coordinator(cluster).node_id
    await asyncio.gather(one.beat(node=node), one.leave(node=node))
    assert cluster.image.groups["g"].members == ()
    await cluster.close()


@virtual
async def test_a_member_that_joins_while_it_is_being_removed_is_a_new_one() -> None:
    """It must not get its former partitions: they are free once its removal is written."""
    cluster = await started()
    one, node = Member(cluster, "m1"), coordinator(cluster).node_id
    await one.beat()
    again = Member(cluster, "m1")
    await asyncio.gather(one.leave(node=node), again.beat(node=node))
    assert again.epoch > one.epoch
    await again.beat()
    await cluster.close()


@virtual
async def test_settings_that_are_changed_back_before_the_change_is_written_are_the_former_ones() -> (
    None
):
    cluster = await started()
    one, node = Member(cluster, "m1"), coordinator(cluster).node_id
    await one.beat()
    await asyncio.gather(
        one.beat(node=node, session_timeout_ms=30_000),
        one.beat(node=node, session_timeout_ms=45_000),
    )
    assert [member.session_ms for member in cluster.image.groups["g"].members] == [45_000]
    await cluster.close()


@virtual
async def test_a_static_member_of_kafka_is_away_even_if_an_earlier_heartbeat_is_written_later() -> (
    None
):
    cluster = await started()
    await cluster.create("u", ALL)

    async def beat(name: str, epoch: int, *topics: str) -> HeartbeatAnswer:
        heartbeat = KafkaHeartbeat(
            group_id="g",
            member_id=name,
            member_epoch=epoch,
            instance_id="i1",
            topics=topics or None,
            owned=None if epoch else (),
        )
        return await coordinator(cluster).groups.server_members.heartbeat(heartbeat)

    joined = await beat("old", 0, "t")
    await asyncio.gather(beat("old", joined.member_epoch, "u"), beat("old", -2))
    assert (await beat("new", 0, "t")).assignment == joined.assignment
    await cluster.close()


@virtual
async def test_of_two_processes_of_kafka_that_join_under_one_instance_id_the_first_stays() -> None:
    cluster = await started()

    async def join(name: str) -> HeartbeatAnswer:
        heartbeat = KafkaHeartbeat(
            group_id="g",
            member_id=name,
            member_epoch=0,
            instance_id="i1",
            topics=("t",),
            owned=(),
        )
        return await coordinator(cluster).groups.server_members.heartbeat(heartbeat)

    first, second = await asyncio.gather(join("one"), join("two"), return_exceptions=True)
    assert isinstance(first, HeartbeatAnswer)
    assert isinstance(second, InstanceHeldError)
    await cluster.close()


@virtual
async def test_two_members_share_once_the_first_has_given_back() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await two.beat(node=2)
    assert two.numbers == []
    assert two.answer is not None
    assert each_partition(two.answer.pending) == [("t", 2), ("t", 3)]
    await one.beat(node=3)
    assert len(one.numbers) == 2
    await one.beat(node=3)
    await two.beat(node=2)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_heartbeat_under_a_former_epoch_gives_nothing_back() -> None:
    cluster = await started()
    one = Member(cluster, "m1")
    await one.beat()
    for name in ("m2", "m3", "m4"):
        passing = Member(cluster, name)
        await passing.beat()
        await one.beat()
        await one.beat()
        await passing.beat()
        await passing.leave()
        await one.beat()
    # It is told to give something back, and the late heartbeats say that it has nothing.
    await Member(cluster, "m5").beat()
    present = await one.beat()
    assert present.member_epoch > 2
    group = cluster.image.groups["g"]
    for epoch in range(1, present.member_epoch):
        for node in ALL:
            late = Member(cluster, "m1")
            late.epoch = epoch
            with pytest.raises(StaleMemberEpochError):
                await late.commit(one.numbers[0], 0, node=node)
            assert await late.beat(node=node) == present
    assert cluster.image.groups["g"] == group
    ahead = Member(cluster, "m1")
    ahead.epoch = present.member_epoch + 1
    with pytest.raises(StaleMemberEpochError):
        await ahead.beat()
    await cluster.close()


@virtual
async def test_a_waiting_heartbeat_hears_of_a_rebalance_at_once() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await one.beat()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    waiting = asyncio.create_task(one.beat(node=2, wait_ms=5_000))
    await after(100)
    assert not waiting.done()
    taken = asyncio.create_task(two.beat(node=3))
    await waiting
    await taken
    assert loop.time() - begin < 0.5
    assert len(one.numbers) == 2
    # And who waits for what the other lets go hears of that.
    await two.beat(wait_ms=0)
    waiting = asyncio.create_task(two.beat(node=3, wait_ms=5_000))
    await after(50)
    await one.beat()
    await waiting
    assert len(two.numbers) == 2
    await cluster.close()


@virtual
async def test_the_newest_heartbeat_of_a_member_is_the_one_that_hears_the_news() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await one.beat()
    left = asyncio.create_task(one.beat(node=1, wait_ms=5_000))
    await after(50)
    newest = asyncio.create_task(one.beat(node=2, wait_ms=5_000))
    await after(50)
    assert left.done()
    assert not newest.done()
    begin = asyncio.get_running_loop().time()
    await two.beat(node=3)
    assert len(each_partition((await newest).assignment)) == 2
    assert asyncio.get_running_loop().time() - begin < 0.1
    await cluster.close()


@virtual
async def test_a_waiting_heartbeat_is_answered_when_its_time_is_up() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    begin = asyncio.get_running_loop().time()
    await member.beat(node=other(cluster), wait_ms=5_000)
    assert 4.9 < asyncio.get_running_loop().time() - begin < 5.5
    await cluster.close()


@virtual
async def test_a_silent_member_loses_its_partitions_after_its_session() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(session_timeout_ms=2_000)
    await two.beat(session_timeout_ms=60_000)
    await after(2_500)
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    with pytest.raises(MemberNotFoundError):
        await one.beat()
    with pytest.raises(MemberNotFoundError):
        await one.commit(0, 5)
    await cluster.close()


class HeldProposals:
    """What a node proposes to its groups waits from now on; ``fates`` says how each ends, in turn."""

    def __init__(self, node: SimNode, *fates: Exception | None) -> None:
        self._propose = node.metadata.propose
        self._fates = list(fates)
        self.release = asyncio.Event()
        self.count = 0
        node.metadata.propose = self.propose  # type: ignore[method-assign]

    async def propose(self, command: object, **named: object) -> object:
        if not isinstance(command, AlterGroup):
            return await self._propose(command, **named)  # type: ignore[arg-type]
        self.count += 1
        await self.release.wait()
        fate = self._fates.pop(0) if self._fates else None
        if fate is not None:
            raise fate
        return await self._propose(command, **named)  # type: ignore[arg-type]


async def expiring(*fates: Exception | None) -> tuple[Cluster, HeldProposals, Member, Member]:
    """``m1`` was silent for too long, and its removal is under way."""
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(session_timeout_ms=2_000)
    await two.beat(session_timeout_ms=60_000)
    held = HeldProposals(coordinator(cluster), *fates)
    await after(2_500)
    assert held.count == 1
    return cluster, held, one, two


@virtual
async def test_who_is_being_removed_is_not_told_to_go_on() -> None:
    """Else it would work on for a session on what another member is given at once."""
    cluster, held, one, two = await expiring()
    late = asyncio.create_task(one.beat())
    await after(100)
    assert not late.done()
    held.release.set()
    with pytest.raises(MemberNotFoundError):
        await late
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_who_could_not_be_removed_goes_on_when_it_is_heard() -> None:
    cluster, held, one, two = await expiring(NoQuorumError("no quorum; nothing was changed"))
    late = asyncio.create_task(one.beat())
    await after(100)
    held.release.set()
    await late
    await one.beat()
    await two.beat()
    assert (len(one.numbers), len(two.numbers)) == (2, 2)
    await cluster.close()


@virtual
async def test_who_may_have_been_removed_is_not_told_to_go_on_before_it_is_known() -> None:
    cluster, held, one, two = await expiring(FateUnknownError("nobody knows"))
    late = asyncio.create_task(one.beat())
    await after(100)
    held.release.set()
    with pytest.raises(MemberNotFoundError):
        await late
    assert held.count == 2
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_member_that_keeps_what_it_is_to_give_back_is_removed() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(rebalance_timeout_ms=3_000)
    await two.beat()
    own = set(one.owned)
    for _ in range(5):
        await after(1_000)
        try:
            await one.beat()
        except MemberNotFoundError:
            break
        one.owned = own
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_member_that_leaves_is_succeeded_at_once() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await two.beat()
    await one.leave(node=2)
    await one.leave(node=3)
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_restarted_static_member_takes_over_and_its_former_process_is_stopped() -> None:
    cluster = await started()
    one, two = Member(cluster, "old"), Member(cluster, "new")
    await one.beat(instance_id="i1")
    await two.beat(instance_id="i1")
    assert two.numbers == [0, 1, 2, 3]
    with pytest.raises(MemberFencedError):
        await one.beat()
    await cluster.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"session_timeout_ms": 999},
        {"session_timeout_ms": 300_001},
        {"rebalance_timeout_ms": 10},
        {"assignor": "best"},
        {"pattern": "(a"},
        {"instance_id": "x" * 300},
    ],
    ids=lambda value: next(iter(value)),
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    @virtual
    async def run() -> None:
        cluster = await started(1)
        with pytest.raises(InvalidConsumerError):
            await Member(cluster, "m1").beat(**settings)
        assert "g" not in cluster.image.groups
        await cluster.close()

    run()


@virtual
async def test_one_bad_member_does_not_harm_those_that_join_with_it() -> None:
    cluster = await started(2)
    good, bad = Member(cluster, "m1"), Member(cluster, "m2", topics=())
    results = await asyncio.gather(good.beat(), bad.beat(), return_exceptions=True)
    assert isinstance(results[1], InvalidConsumerError)
    assert good.numbers == [0, 1]
    await cluster.close()
