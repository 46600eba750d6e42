"""Classic groups in a cluster: what is written and when, what survives the coordinator, and the two kinds of groups."""

import asyncio
from dataclasses import replace

import pytest
from immutables import Map

from milena.model.errors import (
    GenerationError,
    GroupNotEmptyError,
    InconsistentGroupProtocolError,
    InvalidConsumerError,
    MemberFencedError,
    MemberIdRequiredError,
    MemberNotFoundError,
    NoQuorumError,
    NotCoordinatorError,
    RebalanceInProgressError,
)
from node.groups.classic.calls import ClassicState
from raft_meta.machine.commands import PutClassicGroup
from raft_meta.machine.groups import group_rules
from tests.support.clusters.nodes import Cluster
from tests.support.groups.classic_members import ClassicMember, Notes
from tests.support.groups.sim_members import Member, coordinator, other, started
from tests.support.time.virtual_time import after, virtual


async def classic(**settings: int) -> Cluster:
    cluster = await started(**settings)
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.CLASSIC_LEVEL)
    return cluster


async def together(*members: ClassicMember) -> None:
    """All join again, and sync."""
    await asyncio.gather(*(member.join() for member in members))
    await asyncio.gather(*(member.sync() for member in members))


async def pair(cluster: Cluster) -> tuple[ClassicMember, ClassicMember]:
    """Two members in one generation."""
    one, two = ClassicMember(cluster, "one"), ClassicMember(cluster, "two")
    await one.enter()
    joining = asyncio.create_task(two.join())
    await after(10)
    with pytest.raises(RebalanceInProgressError):
        await one.beat()
    await one.join()
    await joining
    await asyncio.gather(one.sync(), two.sync())
    return one, two


@virtual
async def test_two_members_share_a_generation_that_the_image_has() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    assert one.generation == two.generation == 2
    assert (one.assignment, two.assignment) == (
        f"{one.member_id}@2".encode(),
        f"{two.member_id}@2".encode(),
    )
    group = cluster.image.groups["g"]
    assert group.generation == 2
    assert group.classic is not None
    assert {m.member_id: m.assignment for m in group.classic.members} == {
        one.member_id: one.assignment,
        two.member_id: two.assignment,
    }
    assert {(m.client_id, m.host) for m in group.classic.members} == {
        ("one", "10.0.0.7"),
        ("two", "10.0.0.7"),
    }
    await cluster.close()


@virtual
async def test_one_command_a_generation_and_none_for_heartbeats() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    index = cluster.image.index
    for _ in range(3):
        await one.beat()
        await two.beat()
        assert await two.sync() == two.assignment
    assert cluster.image.index == index
    await together(one, two)
    assert one.generation == 3
    assert cluster.image.index == index + 1
    await cluster.close()


@virtual
async def test_no_member_gets_its_assignment_before_the_image_has_it() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.join()
    node = coordinator(cluster)
    propose, gate = node.metadata.propose, asyncio.Event()

    async def held(command: object, *, timeout_ms: int) -> object:
        if isinstance(command, PutClassicGroup):
            await gate.wait()
        return await propose(command, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    node.metadata.propose = held  # type: ignore[method-assign,assignment]
    syncing = asyncio.create_task(one.sync())
    await after(1_000)
    assert not syncing.done()
    assert "g" not in cluster.image.groups
    gate.set()
    assert await syncing == f"{one.member_id}@1".encode()
    assert cluster.image.groups["g"].generation == 1
    await cluster.close()


@virtual
async def test_after_a_failed_write_the_group_rebalances() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.join()
    node = coordinator(cluster)
    propose, tries = node.metadata.propose, 0

    async def failing(command: object, *, timeout_ms: int) -> object:
        nonlocal tries
        if isinstance(command, PutClassicGroup) and not tries:
            tries += 1
            raise NoQuorumError("planted")
        return await propose(command, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    node.metadata.propose = failing  # type: ignore[method-assign,assignment]
    with pytest.raises(RebalanceInProgressError, match="planted"):
        await one.sync()
    assert (await one.join()).generation == 2
    assert await one.sync() == f"{one.member_id}@2".encode()
    await cluster.close()


@virtual
async def test_other_nodes_refuse_every_request() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    port = cluster.nodes[other(cluster)].groups.classic
    calls = (
        port.heartbeat("g", one.member_id, 1),
        port.leave("g", []),
        port.describe("g"),
        port.fetch_offsets("g"),
        port.commit("g", []),
        port.delete("g"),
        port.delete_offsets("g", [], note=Notes().add),
    )
    for call in calls:
        with pytest.raises(NotCoordinatorError):
            await call
    assert await port.groups() == []
    assert port.find_coordinator("g") == coordinator(cluster).node_id
    await cluster.close()


@virtual
async def test_members_go_on_in_their_generation_after_the_coordinator_died() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    first = coordinator(cluster).node_id
    await cluster.kill(first)
    await cluster.until(lambda: coordinator_is_new(cluster, first))
    for member in (one, two):
        await member.beat()
        assert await member.sync() == f"{member.member_id}@2".encode()
        assert await member.commit(0, 5) == {}
    described = await one.port.describe("g")
    assert described.state is ClassicState.STABLE
    # The protocols of loaded members are unknown, so a new member makes all of them join again.
    three = ClassicMember(cluster, "three")
    joining = asyncio.create_task(three.join())
    await after(50)
    for member in (one, two):
        with pytest.raises(RebalanceInProgressError):
            await member.beat()
    await asyncio.gather(one.join(), two.join())
    assert (await joining).generation == 3
    await asyncio.gather(one.sync(), two.sync(), three.sync())
    await cluster.close()


def coordinator_is_new(cluster: Cluster, first: int) -> bool:
    node = coordinator_or_none(cluster)
    return node is not None and node != first and cluster.nodes[node].groups.calls.coordinates("g")


def coordinator_or_none(cluster: Cluster) -> int | None:
    try:
        return coordinator(cluster).node_id
    except KeyError:
        return None


@virtual
async def test_a_rebalance_under_way_starts_again_at_the_next_coordinator() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    joining = asyncio.create_task(ClassicMember(cluster, "three").join())
    await after(50)
    first = coordinator(cluster)
    first.groups.coordinator.classic.drop_all()
    with pytest.raises(NotCoordinatorError):
        await joining
    for member in (one, two):
        await member.beat()
    await cluster.close()


@virtual
async def test_a_group_ends_in_memory_if_another_node_may_have_coordinated_it_in_between() -> None:
    cluster = await classic()
    one, _ = await pair(cluster)
    joining = asyncio.create_task(ClassicMember(cluster, "three").join())
    await after(50)
    # Images were skipped: since the last one, the set of coordinators has changed twice.
    image = replace(
        cluster.image,
        brokers=Map(cluster.image.brokers.items()),
        coordinators_version=cluster.image.coordinators_version + 2,
    )
    coordinator(cluster).groups.on_image(image)
    with pytest.raises(NotCoordinatorError):
        await joining
    await one.beat()
    await cluster.close()


@virtual
async def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    for _ in range(4):
        await after(4_000)
        try:
            await one.beat()
        except RebalanceInProgressError:
            break
    else:
        pytest.fail("the silent member was kept")
    await one.enter()
    assert one.generation == 3
    with pytest.raises(MemberNotFoundError):
        await two.beat()
    with pytest.raises(MemberNotFoundError):
        await two.commit(0, 1)
    group = cluster.image.groups["g"]
    assert group.classic is not None
    assert [m.member_id for m in group.classic.members] == [one.member_id]
    await cluster.close()


@virtual
async def test_the_last_member_leaves_the_group_empty() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    assert await one.commit(0, 7) == {}
    with pytest.raises(GroupNotEmptyError):
        await one.port.delete("g")
    assert [outcome.error for outcome in await one.leave()] == [None]
    assert isinstance((await one.leave())[0].error, MemberNotFoundError)
    await cluster.until(lambda: cluster.image.groups["g"].member_count == 0)
    assert (await one.port.describe("g")).state is ClassicState.EMPTY
    assert [row.offset for row in await one.port.fetch_offsets("g")] == [7]
    # A client that is no member commits, as for any empty group.
    passing = ClassicMember(cluster, "passing")
    assert await passing.commit(0, 9) == {}
    await one.port.delete("g")
    assert "g" not in cluster.image.groups
    assert (await one.port.describe("g")).state is ClassicState.DEAD
    await cluster.close()


@virtual
async def test_delete_waits_for_what_the_leaving_member_did() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    await one.leave()
    await one.port.delete("g")
    assert "g" not in cluster.image.groups
    await cluster.close()


@virtual
async def test_commits_are_refused_under_another_generation() -> None:
    cluster = await classic()
    one, two = await pair(cluster)
    late = replace(one, generation=1)
    with pytest.raises(GenerationError):
        await late.commit(0, 5)
    with pytest.raises(MemberNotFoundError):
        await replace(one, member_id="z").commit(0, 5)
    with pytest.raises(MemberNotFoundError):
        await ClassicMember(cluster, "tool").commit(0, 5)
    # While the others come, a member may commit what it has read.
    two.protocols = (("range", b"other topics"),)
    joining = asyncio.create_task(two.join())
    await after(10)
    assert await one.commit(0, 6) == {}
    await one.join()
    await joining
    with pytest.raises(RebalanceInProgressError):
        await one.commit(0, 7)
    assert [row.offset for row in await one.port.fetch_offsets("g")] == [6]
    await asyncio.gather(one.sync(), two.sync())
    assert await two.commit(0, 8) == {}
    refused = await one.commit(0, 8, topic="none")
    assert [(key, error.code) for key, error in refused.items()] == [
        (("none", 0), "topic_not_found")
    ]
    await cluster.close()


@virtual
async def test_a_static_member_starts_again_without_a_rebalance() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", instance_id="i")
    await one.enter()
    again = ClassicMember(cluster, "one", instance_id="i")
    assert await again.join() != one.member_id
    assert again.generation == 1
    assert not again.is_leader
    assert await again.sync() == f"{one.member_id}@1".encode()
    assert await again.commit(0, 5) == {}
    for call in (one.beat(), one.sync(), one.commit(0, 1), one.join_once()):
        with pytest.raises(MemberFencedError):
            await call
    group = cluster.image.groups["g"]
    assert (group.generation, group.classic and group.classic.leader) == (1, again.member_id)
    await cluster.close()


@virtual
async def test_a_static_leader_that_can_skip_the_assignment_stays_leader() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", instance_id="i")
    await one.enter()
    again = ClassicMember(cluster, "one", instance_id="i", can_skip_assignment=True)
    answer = await again.join()
    assert answer.leader == again.member_id
    assert answer.skips_assignment
    assert [m.instance_id for m in answer.members] == ["i"]
    assert await again.sync() == f"{one.member_id}@1".encode()
    await cluster.close()


@virtual
async def test_large_assignments_stay_out_of_the_image() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", instance_id="i")
    await one.join()
    large = bytes(group_rules.ASSIGNMENT_BYTES_MAX + 1)
    assert await one.sync({one.member_id: large}) == large
    group = cluster.image.groups["g"]
    assert group.classic is not None
    assert not group.classic.has_assignments
    coordinator(cluster).groups.coordinator.classic.drop_all()
    await one.beat()
    with pytest.raises(RebalanceInProgressError):
        await one.sync()
    await one.enter()
    assert one.generation == 2
    await cluster.close()


@virtual
async def test_the_two_kinds_exclude_each_other() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.join()
    server = Member(cluster, "m1")
    with pytest.raises(InconsistentGroupProtocolError, match="classic protocol"):
        await server.beat()
    await one.sync()
    with pytest.raises(InconsistentGroupProtocolError, match="stop them"):
        await server.beat(node=other(cluster))
    await one.leave()
    await cluster.until(lambda: cluster.image.groups["g"].member_count == 0)
    await server.beat()
    assert server.numbers == [0, 1, 2, 3]
    assert server.epoch > one.generation
    with pytest.raises(InconsistentGroupProtocolError, match="Milena's own"):
        await replace(one, member_id="").join()
    await server.leave()
    await cluster.until(lambda: not cluster.image.groups["g"].members)
    back = ClassicMember(cluster, "back")
    await back.enter()
    assert back.generation > server.epoch
    await cluster.close()


@virtual
async def test_an_empty_group_waits_for_further_members() -> None:
    cluster = await classic(initial_delay_ms=3_000)
    one, two = ClassicMember(cluster, "one"), ClassicMember(cluster, "two")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    first = asyncio.create_task(one.join())
    await after(2_000)
    await asyncio.gather(first, two.join())
    assert 5.5 < loop.time() - begin < 7
    assert one.generation == two.generation == 1
    await cluster.close()


@virtual
async def test_a_join_that_its_client_gave_up_is_forgotten() -> None:
    cluster = await classic(initial_delay_ms=3_000)
    one = ClassicMember(cluster, "one", session_ms=1_000)
    joining = asyncio.create_task(one.join())
    await after(100)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    node = coordinator(cluster)
    assert len(node.groups.coordinator.classic) == 1
    await after(2_000)
    assert len(node.groups.coordinator.classic) == 0
    assert "g" not in cluster.image.groups
    await cluster.close()


@virtual
async def test_ids_that_never_join_do_not_stay_in_memory() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", session_ms=1_000)
    with pytest.raises(MemberIdRequiredError):
        await one.join_once()
    assert len(coordinator(cluster).groups.coordinator.classic) == 1
    for call in (one.beat(), replace(one, group="unknown").beat()):
        with pytest.raises(MemberNotFoundError):
            await call
    await after(1_500)
    assert len(coordinator(cluster).groups.coordinator.classic) == 0
    await cluster.close()


@virtual
async def test_names_that_could_not_be_stored_are_refused_at_once() -> None:
    cluster = await classic()
    for changes in (
        {"name": "a\nb"},
        {"name": "x" * 256},
        {"instance_id": ""},
        {"protocols": (("x" * 256, b""),)},
        {"protocol_type": "\x00"},
    ):
        with pytest.raises(InvalidConsumerError):
            await replace(ClassicMember(cluster, "one"), **changes).join_once()  # type: ignore[arg-type]
    await cluster.close()
