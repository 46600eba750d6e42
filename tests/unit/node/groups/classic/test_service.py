"""The port of Kafka's listener: lists, descriptions and deleted offsets, of both kinds of groups."""

import struct
from dataclasses import replace

import pytest

from http_api.ports.groups import OffsetToCommit
from milena.model.errors import (
    FeatureLevelError,
    GroupNotFoundError,
    InvalidConsumerError,
    MemberNotFoundError,
    NotCoordinatorError,
    PartitionNotFoundError,
)
from node.groups.classic.calls import ClassicState, LeavingMember
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster
from tests.support.clusters.overtaken import former_coordinator, hear_again
from tests.support.groups.classic_members import ClassicMember, Notes
from tests.support.groups.sim_members import Member, coordinator, started
from tests.support.time.virtual_time import virtual


def subscription(*topics: str) -> bytes:
    body = struct.pack(">hi", 0, len(topics))
    return body + b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)


async def classic() -> Cluster:
    cluster = await started()
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.CLASSIC_LEVEL)
    return cluster


@virtual
async def test_a_node_lists_the_groups_that_it_coordinates() -> None:
    cluster = await classic()
    names = [f"g{number}" for number in range(6)]
    for name in names[:3]:
        await ClassicMember(cluster, "one", group=name).enter()
    await Member(cluster, "m1", group=names[3]).beat()
    await ClassicMember(cluster, "tool", group=names[4]).commit(0, 1)
    joining = ClassicMember(cluster, "one", group=names[5])
    await joining.join()
    listed = {}
    for node_id, node in cluster.nodes.items():
        for found in await node.groups.classic.groups():
            assert coordinator_of(cluster.image, found.group_id) == node_id
            listed[found.group_id] = (found.protocol_type, found.state, found.is_classic)
    assert listed == {
        **dict.fromkeys(names[:3], ("consumer", "Stable", True)),
        names[3]: ("consumer", "Stable", False),
        names[4]: ("", "Empty", True),
        names[5]: ("consumer", "CompletingRebalance", True),
    }
    await cluster.close()


@virtual
async def test_a_description_has_members_with_client_id_and_host() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", protocols=(("range", b"meta"),))
    await one.enter()
    described = await one.port.describe("g")
    (member,) = described.members
    assert (described.state, described.protocol_type, described.protocol) == (
        ClassicState.STABLE,
        "consumer",
        "range",
    )
    assert (member.client_id, member.host, member.metadata) == ("one", "10.0.0.7", b"meta")
    assert member.assignment == one.assignment
    assert (await replace(one, group="none").port.describe("none")).state is ClassicState.DEAD
    server = Member(cluster, "m1", group="h")
    await server.beat()
    port = coordinator(cluster, "h").groups.classic
    assert (await port.describe("h")).state is ClassicState.DEAD
    await server.leave()
    # Its kind stays with it, as in Kafka, until a classic member joins.
    assert (await port.describe("h")).state is ClassicState.DEAD
    await cluster.close()


@virtual
async def test_offsets_are_deleted_in_topics_without_subscribers() -> None:
    cluster, notes = await classic(), Notes()
    await cluster.create("u", (1, 2, 3))
    one = ClassicMember(cluster, "one", protocols=(("range", subscription("t")),))
    with pytest.raises(GroupNotFoundError):
        await one.port.delete_offsets("g", [("t", 0)], note=notes.add)
    await one.enter()
    await one.commit(0, 5)
    await one.commit(0, 6, topic="u")
    refused = await one.port.delete_offsets("g", [("t", 0), ("u", 0), ("none", 1)], note=notes.add)
    assert notes.rows == [("u", [0])]
    assert {key: error.code for key, error in refused.items()} == {
        ("t", 0): "group_subscribed",
        ("none", 1): "topic_not_found",
    }
    assert [row.topic for row in await one.port.fetch_offsets("g")] == ["t"]
    assert await one.port.fetch_offsets("g", {("u", 0)}) == []
    await one.leave()
    assert await one.port.delete_offsets("g", [("t", 0)], note=notes.add) == {}
    assert notes.rows == [("u", [0]), ("t", [0])]
    assert await one.port.fetch_offsets("g") == []
    await cluster.close()


@virtual
async def test_unknown_subscriptions_keep_their_offsets() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    await one.commit(0, 5)
    assert ("t", 0) in await one.port.delete_offsets("g", [("t", 0)], note=Notes().add)
    coordinator(cluster).groups.coordinator.classic.drop_all()
    assert ("t", 0) in await one.port.delete_offsets("g", [("t", 0)], note=Notes().add)
    await cluster.close()


@virtual
async def test_a_member_of_a_server_group_commits_under_its_epoch() -> None:
    cluster = await classic()
    server = Member(cluster, "m1")
    await server.beat()
    port = coordinator(cluster).groups.classic
    offsets = [OffsetToCommit(topic="t", partition=0, offset=3)]
    assert await port.commit("g", offsets, member_id="m1", generation=server.epoch) == {}
    assert ("t", 0) in await port.delete_offsets("g", [("t", 0)], note=Notes().add)
    with pytest.raises(MemberNotFoundError):
        await port.commit("g", offsets)
    await cluster.close()


@virtual
async def test_an_offset_is_refused_alone() -> None:
    cluster = await classic()
    port = coordinator(cluster).groups.classic
    rows = [
        OffsetToCommit(topic="t", partition=0, offset=3),
        OffsetToCommit(topic="t", partition=9, offset=3),
        OffsetToCommit(topic="t", partition=1, offset=3, metadata="x" * 4_097),
    ]
    refused = await port.commit("g", rows)
    assert {key: type(error) for key, error in refused.items()} == {
        ("t", 9): PartitionNotFoundError,
        ("t", 1): InvalidConsumerError,
    }
    assert [(row.partition, row.offset) for row in await port.fetch_offsets("g")] == [(0, 3)]
    await cluster.close()


@virtual
async def test_unknown_groups_are_not_kept_in_memory() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", group="none")
    for call in (one.beat(), one.sync({})):
        with pytest.raises(MemberNotFoundError):
            await call
    outcome = (await one.port.leave("none", [LeavingMember(member_id="z")]))[0]
    assert isinstance(outcome.error, MemberNotFoundError)
    assert len(coordinator(cluster, "none").groups.coordinator.classic) == 0
    with pytest.raises(InvalidConsumerError):
        one.port.find_coordinator("")
    await cluster.close()


@virtual
async def test_an_older_cluster_takes_no_classic_members() -> None:
    cluster = await started(feature_max=11)
    with pytest.raises(FeatureLevelError, match="upgrade"):
        await ClassicMember(cluster, "one").join()
    # Offsets are older than classic groups.
    assert await ClassicMember(cluster, "tool").commit(0, 1) == {}
    await cluster.close()


class TestAFormerCoordinator:
    """Another node coordinates the group, and the former coordinator has not heard of it."""

    @virtual
    async def test_it_refuses_no_member_of_the_present_one(self) -> None:
        cluster = await classic()
        former, _ = await former_coordinator(cluster)
        one = ClassicMember(cluster, "one")
        await one.enter()
        hear_again(cluster, former)
        port = cluster.nodes[former].groups.classic
        with pytest.raises(NotCoordinatorError):
            await port.heartbeat("g", one.member_id, one.generation)
        await cluster.close()

    @virtual
    @pytest.mark.parametrize("is_commit", [False, True])
    async def test_it_refuses_no_commit_and_no_departure(self, is_commit: bool) -> None:
        cluster = await classic()
        former, _ = await former_coordinator(cluster)
        one = ClassicMember(cluster, "one")
        await one.enter()
        hear_again(cluster, former)
        port = cluster.nodes[former].groups.classic
        row = OffsetToCommit(topic="t", partition=0, offset=1)
        request = (
            port.commit("g", [row], member_id=one.member_id, generation=one.generation)
            if is_commit
            else port.leave("g", [LeavingMember(member_id=one.member_id)])
        )
        with pytest.raises(NotCoordinatorError):
            await request
        await cluster.close()

    @virtual
    async def test_it_lists_no_group_that_the_present_one_has_deleted(self) -> None:
        cluster = await classic()
        one = ClassicMember(cluster, "one")
        await one.commit(0, 1)
        former, _ = await former_coordinator(cluster)
        await one.port.delete("g")
        hear_again(cluster, former)
        assert await cluster.nodes[former].groups.classic.groups() == []
        await cluster.close()
