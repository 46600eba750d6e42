"""Groups on whole nodes: one of them decides, it may be another from now on, and it follows what there is to share."""

import asyncio

import pytest

from http_api.ports.groups import Heartbeat
from milena.model.errors import FateUnknownError, MemberNotFoundError, NotCoordinatorError
from milena.model.types import MonotonicMs
from node.groups.coordinated_group import CoordinatedGroup
from node.groups.coordinator import GroupCoordinator
from tests.support.groups.sim_members import ALL, Member, coordinator, other, started
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_who_coordinates_nothing_looks_around_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[GroupCoordinator] = []
    tick = GroupCoordinator._tick

    def counted(self: GroupCoordinator, now_ms: MonotonicMs) -> None:
        looks.append(self)
        tick(self, now_ms)

    monkeypatch.setattr(GroupCoordinator, "_tick", counted)
    cluster = await started()
    await after(1_000)
    looks.clear()
    await after(5_000)
    assert {looks.count(node.groups.coordinator) for node in cluster.nodes.values()} == {10}
    member = Member(cluster, "m1")
    await member.beat()
    await after(1_000)
    looks.clear()
    await after(5_000)
    busy = coordinator(cluster)
    for node in cluster.nodes.values():
        assert looks.count(node.groups.coordinator) == (50 if node is busy else 10)
    await cluster.close()


@virtual
async def test_growing_topics_and_new_ones_are_shared_out() -> None:
    cluster = await started(1)
    member = Member(cluster, "m1")
    member.topics = ()
    await member.beat(pattern="t.*", session_timeout_ms=300_000)
    assert member.numbers == [0]
    waiting = asyncio.create_task(member.beat(wait_ms=5_000))
    await after(10)
    await cluster.create("t2", ALL)
    await waiting
    await member.beat()
    assert member.owned == {("t", 0), ("t2", 0)}
    await cluster.close()


@virtual
async def test_a_topic_that_grows_is_shared_out_and_one_with_other_configs_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each group would work out all its assignments, on the loop that clients wait for."""
    cluster = await started(1)
    member = Member(cluster, "m1")
    await member.beat()
    kicked: list[str] = []
    kick = CoordinatedGroup.kick

    def look(group: CoordinatedGroup) -> None:
        kicked.append(group.group_id)
        kick(group)

    monkeypatch.setattr(CoordinatedGroup, "kick", look)
    admin = coordinator(cluster).admin
    await admin.alter_configs("t", {"flush.ms": "5"}, is_validate_only=False)
    await after(10)
    assert kicked == []
    await admin.add_partitions("t", 2)
    await after(10)
    assert set(kicked) == {"g"}
    await member.beat()
    assert member.numbers == [0, 1]
    await cluster.close()


@virtual
async def test_members_survive_the_coordinator_and_keep_what_they_have() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    for member in (one, two, one, one, two):
        await member.beat(node=other(cluster))
    had = (one.numbers, two.numbers)
    assert sorted(had[0] + had[1]) == [0, 1, 2, 3]
    gone = coordinator(cluster).node_id
    node = other(cluster)
    waiting = asyncio.create_task(one.beat(node=node, wait_ms=5_000))
    await after(20)
    await cluster.kill(gone)
    await waiting
    await two.beat(node=node)
    assert (one.numbers, two.numbers) == had
    await one.commit(one.numbers[0], 7, node=node)
    await cluster.close()


@virtual
async def test_a_coordinator_that_is_cut_off_answers_nothing() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    lost = coordinator(cluster)
    cluster.isolate(lost.node_id)
    await after(4_000)
    with pytest.raises((NotCoordinatorError, FateUnknownError)):
        await member.beat(node=lost.node_id)
    survivor = next(i for i in cluster.nodes if i != lost.node_id)
    await member.beat(node=survivor)
    assert member.numbers == [0, 1, 2, 3]
    cluster.heal()
    await after(5_000)
    await member.beat(node=lost.node_id)
    await cluster.close()


@virtual
async def test_what_a_node_coordinates_is_counted() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    await member.beat()
    await after(300)
    former = coordinator(cluster)
    counts = former.counts.groups
    assert (counts.groups, counts.members, counts.heartbeats, counts.rebalances) == (1, 1, 2, 1)
    await cluster.kill(former.node_id)
    await member.beat(node=next(iter(cluster.nodes)))
    await after(300)
    counts = coordinator(cluster).counts.groups
    assert (counts.groups, counts.members) == (1, 1)
    await cluster.close()


@virtual
async def test_groups_that_are_only_asked_for_leave_nothing_behind() -> None:
    """Whoever names a million groups must not fill the memory of their coordinators."""
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    await after(500)
    index = cluster.image.index
    for number in range(50):
        with pytest.raises(MemberNotFoundError):
            await cluster.nodes[1].groups.service.heartbeat(
                Heartbeat(group_id=f"nobody-{number}", member_id="m", member_epoch=7, topics=("t",))
            )
    assert cluster.image.index == index
    await after(500)
    assert sum(len(node.groups.coordinator) for node in cluster.nodes.values()) == 1
    await member.beat()
    await cluster.close()
