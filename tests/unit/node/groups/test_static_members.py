"""Static members: once another process has an instance id, each call of the former one tells it to stop, and changes
nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from http_api.ports.groups import Heartbeat, by_topic
from milena.model.errors import InvalidConsumerError, MemberFencedError, MemberNotFoundError
from milena.model.requests import CommittedNext, GroupOffsets, TransactionCommit
from raft_meta.machine.groups import group_rules
from tests.support.clusters.nodes import Cluster
from tests.support.clusters.transacting import transact
from tests.support.groups.sim_members import ALL, Member, coordinator, started
from tests.support.time.virtual_time import virtual


def heartbeat(**fields: object) -> Callable[[Cluster, int, Member], Awaitable[object]]:
    async def call(cluster: Cluster, node: int, old: Member) -> object:
        asked: dict[str, object] = {"member_id": old.name, "member_epoch": old.epoch, **fields}
        return await cluster.nodes[node].groups.service.heartbeat(Heartbeat(group_id="g", **asked))  # type: ignore[arg-type]

    return call


def offsets_of(old: Member) -> tuple[GroupOffsets, ...]:
    moved = (CommittedNext(topic="t", partition=0, next_offset=7),)
    return (GroupOffsets(group="g", member_id=old.name, member_epoch=old.epoch, offsets=moved),)


async def commit(cluster: Cluster, node: int, old: Member) -> None:
    await old.commit(0, 7, node=node)


async def commit_under_the_new_epoch(cluster: Cluster, node: int, old: Member) -> None:
    old.epoch += 1
    await old.commit(0, 7, node=node)


async def commit_by_a_transaction(cluster: Cluster, node: int, old: Member) -> None:
    await transact(cluster, node, offsets=offsets_of(old))


async def commit_by_a_session(cluster: Cluster, node: int, old: Member) -> None:
    service = cluster.nodes[node].transactions
    begun = await service.begin(f"x{node}", timeout_ms=2_000)
    await service.commit(
        TransactionCommit(transaction=begun, writes=(), offsets=offsets_of(old), timeout_ms=2_000)
    )


CALLS = {
    "heartbeat": heartbeat(),
    "heartbeat with instance_id": heartbeat(instance_id="i1"),
    "heartbeat that waits": heartbeat(wait_ms=500),
    "heartbeat with owned": heartbeat(owned=by_topic([("t", 0)])),
    "heartbeat with another subscription": heartbeat(topics=["u"]),
    "heartbeat under the new epoch": heartbeat(member_epoch=2),
    "join again": heartbeat(member_epoch=0, topics=["t"]),
    "join again with instance_id": heartbeat(member_epoch=0, topics=["t"], instance_id="i1"),
    "leave": heartbeat(member_epoch=-1),
    "leave with instance_id": heartbeat(member_epoch=-1, instance_id="i1"),
    "commit": commit,
    "commit under the new epoch": commit_under_the_new_epoch,
    "transaction": commit_by_a_transaction,
    "session's transaction": commit_by_a_session,
}


async def taken_over(cluster: Cluster) -> tuple[Member, Member]:
    """The former process, and the one that has its instance id now, with its own offset committed."""
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.PREDECESSORS_LEVEL)
    await cluster.create("u", ALL)
    old, new = Member(cluster, "old"), Member(cluster, "new")
    await old.beat(instance_id="i1")
    await new.beat(instance_id="i1")
    assert new.numbers == [0, 1, 2, 3]
    await new.commit(0, 3)
    return old, new


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_call_of_the_former_process_is_fenced_on_every_node(
    call: Callable[[Cluster, int, Member], Awaitable[object]],
) -> None:
    @virtual
    async def run() -> None:
        cluster = await started()
        old, new = await taken_over(cluster)
        group, offsets = cluster.image.groups["g"], cluster.image.offsets["g"]
        for node in ALL:
            with pytest.raises(MemberFencedError):
                await call(cluster, node, old)
        assert cluster.image.groups["g"] == group
        assert cluster.image.offsets["g"] == offsets
        await new.beat()
        await new.commit(0, 4)
        await cluster.close()

    run()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_another_coordinator_knows_it_too(
    call: Callable[[Cluster, int, Member], Awaitable[object]],
) -> None:
    @virtual
    async def run() -> None:
        cluster = await started()
        old, new = await taken_over(cluster)
        former = coordinator(cluster)
        await former.stop()
        await cluster.until(lambda: coordinator(cluster) is not former)
        node = coordinator(cluster).node_id
        await new.beat(node=node)
        with pytest.raises(MemberFencedError):
            await call(cluster, node, old)
        await cluster.close()

    run()


@virtual
async def test_the_former_process_is_fenced_if_the_new_one_repeats_its_join_before_the_response() -> (
    None
):
    """A repeated join that the coordinator got before the first one was written knew nothing of the former process."""
    cluster = await started()
    old = Member(cluster, "old")
    await old.beat(instance_id="i1")
    joins = [Member(cluster, "new") for _ in range(3)]
    await asyncio.gather(
        joins[0].beat(instance_id="i1"), joins[1].beat(instance_id="i1"), joins[2].beat()
    )
    with pytest.raises(MemberFencedError):
        await CALLS["transaction"](cluster, 1, old)
    assert [m.instance_id for m in cluster.image.groups["g"].members] == ["i1"]
    await cluster.close()


@virtual
async def test_the_settings_of_a_former_process_do_not_bring_it_back() -> None:
    """Its heartbeat arrived while the join of its successor was being written."""
    cluster = await started()
    await cluster.create("u", ALL)
    old, new = Member(cluster, "old"), Member(cluster, "new")
    await old.beat(instance_id="i1")
    _, late = await asyncio.gather(
        new.beat(instance_id="i1"),
        heartbeat(topics=["u"])(cluster, 1, old),
        return_exceptions=True,
    )
    assert isinstance(late, MemberFencedError)
    assert [m.member_id for m in cluster.image.groups["g"].members] == ["new"]
    await cluster.close()


@virtual
async def test_a_repeated_join_of_a_former_process_does_not_bring_it_back() -> None:
    """The repeat arrived while its first join, and the join of its successor, were being written."""
    cluster = await started()
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.PREDECESSORS_LEVEL)
    old, new, repeated = Member(cluster, "old"), Member(cluster, "new"), Member(cluster, "old")
    _, _, late = await asyncio.gather(
        *(member.beat(instance_id="i1") for member in (old, new, repeated)), return_exceptions=True
    )
    assert isinstance(late, MemberFencedError)
    (member,) = cluster.image.groups["g"].members
    assert (member.member_id, member.predecessors) == ("new", ("old",))
    await cluster.close()


@virtual
async def test_heartbeats_that_are_written_together_change_what_each_of_them_names() -> None:
    cluster = await started()
    await cluster.create("u", ALL)
    one = Member(cluster, "m1")
    await one.beat()
    await asyncio.gather(
        heartbeat(topics=["u"])(cluster, 1, one),
        heartbeat(session_timeout_ms=30_000)(cluster, 1, one),
    )
    (member,) = cluster.image.groups["g"].members
    assert (member.topics, member.session_ms) == (("u",), 30_000)
    await cluster.close()


@virtual
async def test_a_process_is_fenced_by_later_successors_and_free_once_they_are_gone() -> None:
    cluster = await started()
    members = [Member(cluster, f"m{n}") for n in range(4)]
    for member in members:
        await member.beat(instance_id="i1")
    for former in members[:-1]:
        with pytest.raises(MemberFencedError):
            await former.beat()
    await members[-1].leave()
    for former in members[:-1]:
        with pytest.raises(MemberNotFoundError):
            await former.beat()
    await cluster.close()


@virtual
async def test_a_member_keeps_its_instance_id() -> None:
    cluster = await started()
    one, two, three = (Member(cluster, name) for name in ("m1", "m2", "m3"))
    await one.beat(instance_id="i1")
    await two.beat(instance_id="i2")
    await three.beat()
    for member in (two, three):
        with pytest.raises(InvalidConsumerError, match="join under another member_id"):
            await member.beat(instance_id="i1")
    await one.beat(instance_id="i1")
    await cluster.close()


@virtual
async def test_the_former_process_is_fenced_before_all_nodes_remember_predecessors() -> None:
    cluster = await Cluster(feature_max=group_rules.PREDECESSORS_LEVEL - 1).start()
    await cluster.until(lambda: cluster.image.feature_level >= 3)
    await cluster.create("t", *[ALL] * 4)
    old, new = Member(cluster, "old"), Member(cluster, "new")
    await old.beat(instance_id="i1")
    await new.beat(instance_id="i1")
    assert new.numbers == [0, 1, 2, 3]
    for call in ("heartbeat", "join again", "leave"):
        with pytest.raises(MemberFencedError):
            await CALLS[call](cluster, 1, old)
    await cluster.close()


def test_predecessors_are_bounded_by_number_and_bytes() -> None:
    assert group_rules.predecessors([]) == ()
    many = [f"m{n}" for n in range(20)]
    assert group_rules.predecessors(many) == tuple(many[-group_rules.PREDECESSORS_MAX :])
    long = ["ü" * 255] * 3
    assert group_rules.predecessors(long) == ("ü" * 255,)
    assert group_rules.predecessors(group_rules.predecessors(many)) == group_rules.predecessors(
        many
    )
