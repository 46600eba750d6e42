"""The classic groups of a node: bounds, what a move drops and takes over, what is written again."""

import pytest

from milena.model.errors import GroupLimitError, NoQuorumError, NotCoordinatorError
from node.groups.classic.coordinator import ClassicCoordinator
from raft_meta.machine.commands import PutClassicGroup
from raft_meta.machine.groups import group_rules
from tests.support.clusters.nodes import Cluster
from tests.support.groups.classic_members import ClassicMember
from tests.support.groups.sim_members import coordinator, started
from tests.support.time.virtual_time import after, virtual


async def classic() -> Cluster:
    cluster = await started()
    await cluster.until(lambda: cluster.image.feature_level >= group_rules.CLASSIC_LEVEL)
    return cluster


def groups_of(cluster: Cluster, group: str = "g") -> ClassicCoordinator:
    return coordinator(cluster, group).groups.coordinator.classic


@virtual
async def test_a_node_keeps_a_bounded_number_of_groups() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    before = group_rules.GROUPS_MAX
    group_rules.GROUPS_MAX = 1
    try:
        with pytest.raises(GroupLimitError, match="fewer groups"):
            groups_of(cluster).group("another")
    finally:
        group_rules.GROUPS_MAX = before
    await one.beat()
    await cluster.close()


@virtual
async def test_a_move_drops_groups_and_takes_over_those_with_members() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    known = groups_of(cluster).known("g")
    assert known is not None
    groups_of(cluster).take_over(cluster.image, lambda group_id: False)
    assert len(groups_of(cluster)) == 0
    with pytest.raises(NotCoordinatorError):
        known.leave([])
    groups_of(cluster).take_over(cluster.image, lambda group_id: True)
    assert list(groups_of(cluster).ids()) == ["g"]
    await one.beat()
    await cluster.close()


@virtual
async def test_dead_members_expire_without_a_request_after_a_move() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one", session_ms=2_000)
    await one.enter()
    first = coordinator(cluster).node_id
    await cluster.kill(first)
    await cluster.until(lambda: cluster.image.brokers[first].is_fenced)
    assert cluster.image.groups["g"].member_count == 1
    await cluster.until(lambda: cluster.image.groups["g"].member_count == 0)
    await cluster.close()


@virtual
async def test_the_note_of_an_empty_group_is_written_again() -> None:
    cluster = await classic()
    one = ClassicMember(cluster, "one")
    await one.enter()
    node = coordinator(cluster)
    propose, tries = node.metadata.propose, 0

    async def failing(command: object, *, timeout_ms: int) -> object:
        nonlocal tries
        if isinstance(command, PutClassicGroup):
            tries += 1
            if tries < 3:
                raise NoQuorumError("planted")
        return await propose(command, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    node.metadata.propose = failing  # type: ignore[method-assign,assignment]
    await one.leave()
    await after(1_000)
    assert tries == 3
    assert cluster.image.groups["g"].member_count == 0
    assert len(groups_of(cluster)) == 0
    await cluster.close()
