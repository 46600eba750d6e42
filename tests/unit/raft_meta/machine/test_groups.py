"""Bounds of groups: each is met exactly, refused above, and never in the way of a rebalance.

What groups do is in the golden scripts (``tests/scripts/machine/groups*.txt``).
"""

import json
from dataclasses import replace

import pytest

from milena.model.errors import (
    InvalidConsumerError,
    InvalidRequestError,
    LimitReachedError,
    MilenaError,
)
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import PartitionSet
from tests.support.machine.group_scripts import member
from tests.support.machine.images import TOPIC_ID, GroupCluster

ALL: PartitionSet = ((TOPIC_ID, (0, 1, 2, 3)),)


@pytest.fixture
def cluster() -> GroupCluster:
    return GroupCluster()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"member_id": ""}, "member id must not be empty"),
        ({"member_id": "x" * 256}, "at most 255 characters, this one has 256"),
        ({"member_id": "a\nb"}, "control characters"),
        ({"instance_id": ""}, "group instance id must not be empty"),
        ({"client_id": "x" * 256}, "client id has at most 255"),
        ({"host": "\x7f"}, "host must not have control characters"),
        ({"assignor": ""}, "assignor must not be empty"),
        ({"topics": tuple(f"{n:04}" for n in range(1001))}, "at most 1000 topics, not 1001"),
        ({"topics": ("",)}, "topic name has 1..249"),
        ({"topics": ("x" * 250,)}, "topic name has 1..249"),
        ({"pattern": ""}, "pattern has 1..1024"),
        ({"pattern": "x" * 1025}, "pattern has 1..1024"),
        ({"session_ms": 0}, "session timeout must be 1..86400000 ms, not 0"),
        ({"rebalance_ms": 86_400_001}, "rebalance timeout must be"),
    ],
)
def test_a_member_within_bounds(
    cluster: GroupCluster, changes: dict[str, object], says: str
) -> None:
    error = cluster.alter("g", 1, [replace(member("a", 1), **changes)]).error
    assert isinstance(error, InvalidConsumerError)
    assert says in error.message


def test_a_group_id_within_bounds(cluster: GroupCluster) -> None:
    for group_id in ("", "x" * 256, "a\x00b"):
        assert isinstance(cluster.alter(group_id, 1, [member("a", 1)]).error, InvalidConsumerError)
    for group_id in ("x" * 255, "a group / of ünusual name", "."):
        assert cluster.alter(group_id, 1, [member("a", 1)]).error is None


def test_what_is_no_text_is_refused_before_it_is_proposed() -> None:
    """JSON can hold halves of surrogate pairs; nothing that is stored can."""
    half = json.loads('"\\ud800"')
    for changes in ({"member_id": half}, {"topics": (half,)}, {"pattern": half}):
        with pytest.raises(InvalidConsumerError, match="surrogate"):
            group_rules.check_member(replace(member("a", 1), **changes))
    with pytest.raises(InvalidRequestError, match="surrogate"):
        group_rules.check_metadata(half)


def test_members_are_found_by_their_ids(cluster: GroupCluster) -> None:
    cluster.alter("g", 1, [member(name, 1) for name in "bdf"])
    group = cluster.image.groups["g"]
    names = "abcdefg"
    found = [group_rules.member_of(group, name) for name in names]
    assert [m and m.member_id for m in found] == [None, "b", None, "d", None, "f", None]
    assert group_rules.member_of(None, "b") is None


def test_topics_in_order_and_each_once(cluster: GroupCluster) -> None:
    for topics in (("b", "a"), ("a", "a")):
        error = cluster.alter("g", 1, [member("a", 1, topics=topics)]).error
        assert error is not None
        assert "its topics are not in ascending order" in error.message


def test_partitions_in_order_and_each_once(cluster: GroupCluster) -> None:
    for wrong in (((TOPIC_ID, (1, 0)),), ((TOPIC_ID, ()),), ((TOPIC_ID, (0,)), (TOPIC_ID, (1,)))):
        error = cluster.alter("g", 1, [member("a", 1, (), wrong)]).error
        assert isinstance(error, InvalidRequestError)
        assert "canonical order" in error.message


def test_an_assignor_of_a_name(cluster: GroupCluster) -> None:
    error = cluster.alter("g", 1, [member("a", 1)], assignor="x" * 256).error
    assert isinstance(error, InvalidRequestError)


def test_as_many_members_as_a_group_may_have(cluster: GroupCluster) -> None:
    most = [member(f"m{n:04}", 1) for n in range(group_rules.MEMBERS_MAX)]
    assert cluster.alter("g", 1, most).error is None
    error = cluster.alter("g", 2, [member("one-more", 2)]).error
    assert isinstance(error, LimitReachedError)
    assert "would have 1001 members" in error.message
    assert cluster.alter("g", 2, [member("one-more", 2)], ("m0000",)).error is None


def test_as_much_text_as_a_group_may_have(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = member("a", 1, ALL, ALL, topics=("t", "x" * 200))
    size = group_rules.text_bytes([first])
    monkeypatch.setattr(group_rules, "GROUP_BYTES_MAX", size)
    assert cluster.alter("g", 1, [first]).error is None
    error = cluster.alter("g", 2, [member("b", 2)]).error
    assert isinstance(error, LimitReachedError)
    assert f"more than {size}" in error.message
    # A group that is too large already, by a release that allowed more, still shares out partitions.
    monkeypatch.setattr(group_rules, "GROUP_BYTES_MAX", size - 1)
    assert cluster.alter("g", 2, [replace(first, target=())]).error is None
    assert cluster.alter("g", 2, [replace(first, held=(), target=(), member_epoch=2)]).error is None


def test_as_many_groups_as_there_may_be(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rules, "GROUPS_MAX", 2)
    for group_id in ("g", "h"):
        assert cluster.alter(group_id, 1, [member("a", 1)]).error is None
    error: MilenaError | None = cluster.alter("i", 1, [member("a", 1)]).error
    assert isinstance(error, LimitReachedError)
    assert cluster.alter("h", 2, [member("b", 2)]).error is None


def test_the_first_command_of_a_group_may_be_of_any_generation(cluster: GroupCluster) -> None:
    assert cluster.alter("g", 7, [member("a", 7, ALL, ALL)]).error is None
    assert cluster.image.groups["g"].generation == 7
