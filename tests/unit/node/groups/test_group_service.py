"""Groups on any node: what is asked for is checked where it arrives, and told as of now."""

import struct

import pytest

from http_api.ports.groups import (
    GroupKind,
    GroupState,
    Heartbeat,
    OffsetToCommit,
    Reset,
    ResetTarget,
    TopicOffset,
    by_topic,
    each_partition,
)
from milena.model.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConsumerError,
    InvalidRequestError,
    MemberNotFoundError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    TopicNotFoundError,
)
from raft_meta.machine.groups import group_rules
from tests.support.clusters.nodes import cluster_of
from tests.support.clusters.overtaken import created_again
from tests.support.groups.classic_members import ClassicMember
from tests.support.groups.sim_members import Member, coordinator, other, started
from tests.support.time.virtual_time import virtual


@virtual
async def test_offsets_are_reset_while_nobody_reads() -> None:
    cluster = await started(2)
    node = cluster.nodes[1]
    for value in "abc":
        await node.write("t", value, partition=1)
    service = cluster.nodes[2].groups.service
    done = await service.reset("g", "t", None, ResetTarget(name=Reset.LATEST))
    assert [(row.partition, row.offset) for row in done] == [(0, 0), (1, 3)]
    with pytest.raises(OffsetOutOfRangeError, match="offset 4 of t-1 is above its end, 3"):
        await service.reset("g", "t", [1], ResetTarget(offset=4))
    done = await service.reset("g", "t", [1], ResetTarget(offset=3))
    assert [row.offset for row in done] == [3]
    done = await service.reset("g", "t", [1], ResetTarget(offset=1))
    assert [row.offset for row in done] == [1]
    done = await service.reset("g", "t", [1], ResetTarget(timestamp_ms=0))
    assert [row.offset for row in done] == [0]
    done = await service.reset("g", "t", [1], ResetTarget(name=Reset.EARLIEST))
    assert [row.offset for row in done] == [0]
    with pytest.raises(TopicNotFoundError):
        await service.reset("g", "nope", None, ResetTarget(offset=1))
    with pytest.raises(PartitionNotFoundError):
        await service.reset("g", "t", [7], ResetTarget(offset=1))
    member = Member(cluster, "m1")
    await member.beat()
    with pytest.raises(GroupNotEmptyError):
        await service.reset("g", "t", None, ResetTarget(name=Reset.LATEST))
    await cluster.close()


@virtual
async def test_a_group_is_described_listed_and_deleted() -> None:
    cluster = await started()
    service = cluster.nodes[3].groups.service
    with pytest.raises(GroupNotFoundError):
        await service.describe("g")
    member = Member(cluster, "m1")
    await member.beat(client_id="c", host="h")
    await member.commit(0, 4)
    described = await service.describe("g")
    assert described.state is GroupState.STABLE
    assert described.coordinator == coordinator(cluster).node_id
    assert [m.member_id for m in described.members] == ["m1"]
    assert list(described.members[0].assignment) == [("t", n) for n in range(4)]
    assert [row.offset for row in described.offsets] == [4]
    with pytest.raises(GroupNotEmptyError):
        await service.delete("g")
    await member.leave()
    assert [found.state for found in await service.groups()] == [GroupState.EMPTY]
    await service.delete("g")
    with pytest.raises(GroupNotFoundError):
        await service.delete("g")
    with pytest.raises(GroupNotFoundError):
        await service.committed("g")
    await cluster.close()


@virtual
async def test_requests_out_of_bounds_are_refused_where_they_arrive() -> None:
    cluster = await started(1)
    service = cluster.nodes[1].groups.service
    owned = [("t", number) for number in range(10_001)]
    with pytest.raises(RequestTooLargeError):
        await service.heartbeat(
            Heartbeat(
                group_id="g", member_id="m", member_epoch=0, topics=("t",), owned=by_topic(owned)
            )
        )
    rows = [OffsetToCommit(topic="t", partition=0, offset=1)] * 10_001
    with pytest.raises(RequestTooLargeError):
        await service.commit("g", rows)
    with pytest.raises(InvalidRequestError):
        await service.commit("g", [])
    for name in ("", "x" * 256, "a\nb"):
        with pytest.raises(InvalidConsumerError):
            await service.describe(name)
    await cluster.close()


@virtual
async def test_a_member_without_an_id_is_given_one() -> None:
    cluster = await started(1)
    service = cluster.nodes[1].groups.service
    answer = await service.heartbeat(
        Heartbeat(group_id="g", member_id="", member_epoch=0, topics=("t",))
    )
    assert answer.member_id
    assert each_partition(answer.assignment) == [("t", 0)]
    with pytest.raises(InvalidConsumerError):
        await service.heartbeat(Heartbeat(group_id="g", member_id="", member_epoch=3))
    with pytest.raises(MemberNotFoundError):
        await service.heartbeat(Heartbeat(group_id="g", member_id="who", member_epoch=3))
    with pytest.raises(StaleMemberEpochError):
        await service.heartbeat(
            Heartbeat(group_id="g", member_id=answer.member_id, member_epoch=99)
        )
    await cluster.close()


@virtual
async def test_a_classic_group_is_described_and_listed_as_one() -> None:
    cluster = await started()
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.CLASSIC_LEVEL)
    one = ClassicMember(cluster, "one", instance_id="i")
    await one.join()
    partitions = struct.pack(">hih1si2ii", 0, 1, 1, b"t", 2, 1, 7, -1)
    await one.sync({one.member_id: partitions})
    await one.commit(1, 5)
    service = cluster.nodes[other(cluster)].groups.service
    (head,) = await service.groups()
    assert (head.kind, head.state, head.member_count) == (GroupKind.CLASSIC, GroupState.STABLE, 1)
    described = await service.describe("g")
    assert (described.kind, described.assignor, described.generation) == (
        GroupKind.CLASSIC,
        "range",
        1,
    )
    (member,) = described.members
    assert (member.member_id, member.instance_id) == (one.member_id, "i")
    assert (member.client_id, member.host, member.is_rest) == ("one", "10.0.0.7", False)
    assert member.assignment == [("t", 1)], "the topic has no partition 7"
    assert [(row.partition, row.offset) for row in described.offsets] == [(1, 5)]
    with pytest.raises(GroupNotEmptyError):
        await service.reset("g", "t", None, ResetTarget(name=Reset.EARLIEST))
    with pytest.raises(GroupNotEmptyError):
        await service.delete("g")
    await one.leave()
    await service.delete("g")
    await cluster.close()


@virtual
async def test_an_offset_is_that_of_the_present_topic_of_a_name() -> None:
    async with cluster_of() as cluster:
        await created_again(cluster, 3)
        service = cluster.nodes[3].groups.service
        former = cluster.nodes[3].metadata.image.topic("t")
        assert former is not None
        await service.commit("g", [OffsetToCommit(topic="t", partition=0, offset=1)])
        assert [row.offset for row in await service.committed("g")] == [1]
        row = TopicOffset(topic="t", partition=0, offset=2, topic_id=former.topic_id)
        with pytest.raises(TopicNotFoundError):
            await service.commit("g", [row])
