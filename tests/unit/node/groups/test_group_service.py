"""Groups on any node: what is asked for is checked where it arrives, and told as of now."""

import pytest

from http_api.ports.groups import (
    GroupState,
    Heartbeat,
    OffsetToCommit,
    Reset,
    ResetTarget,
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
from tests.support.groups.sim_members import Member, coordinator, started
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
