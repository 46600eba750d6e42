"""Offsets on their coordinator: who may commit what, how many travel at once, and how long they are kept."""

import asyncio

import pytest

from http_api.ports.groups import OffsetToCommit
from milena.model.errors import GroupNotEmptyError, GroupNotFoundError, StaleMemberEpochError
from tests.support.groups.sim_members import ALL, Member, coordinator, started
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_commits_of_any_node_are_seen_on_any_node() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    for offset, node in enumerate((1, 2, 3), start=5):
        await member.commit(1, offset, node=node)
        for reader in ALL:
            found = await cluster.nodes[reader].groups.service.committed("g", [("t", 1)])
            assert [row.offset for row in found] == [offset]
    await cluster.close()


@virtual
async def test_commits_of_many_members_share_commands() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    node = coordinator(cluster)
    await asyncio.gather(*(member.commit(i % 4, i, node=node.node_id) for i in range(200)))
    assert node.counts.groups.commits == 200
    assert node.counts.groups.commit_commands <= 3
    await cluster.close()


@virtual
async def test_a_commit_is_fenced_by_epoch_and_by_what_is_held() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    old = one.epoch
    await two.beat()
    await one.beat()
    await one.beat()
    await two.beat()
    with pytest.raises(StaleMemberEpochError):
        await one.commit(two.numbers[0], 5)
    await two.leave()
    await one.beat()
    assert one.epoch > old
    one.epoch = old
    with pytest.raises(StaleMemberEpochError):
        await one.commit(0, 5)
    service = cluster.nodes[2].groups.service
    with pytest.raises(GroupNotEmptyError):
        await service.commit("g", [OffsetToCommit(topic="t", partition=0, offset=1)])
    await cluster.close()


@virtual
async def test_offsets_that_nobody_came_back_for_are_forgotten() -> None:
    cluster = await started(offsets_retention_minutes=1)
    service = cluster.nodes[1].groups.service
    member = Member(cluster, "m1", group="used")
    await member.beat(session_timeout_ms=300_000)
    await member.commit(0, 4)
    await service.commit("left", [OffsetToCommit(topic="t", partition=0, offset=1)])
    await after(50_000)
    assert [row.offset for row in await service.committed("left")] == [1]
    await after(30_000)
    with pytest.raises(GroupNotFoundError):
        await service.committed("left")
    assert [row.offset for row in await service.committed("used")] == [4]
    await cluster.close()
