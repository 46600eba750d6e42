"""Bounds of committed offsets, and the count that bounds them all.

What commits do is in the golden scripts (``tests/scripts/machine/offsets*.txt``).
"""

from dataclasses import replace

import pytest

from milena.model.errors import InvalidConsumerError, RequestTooLargeError, StaleBrokerEpochError
from milena.model.types import WallMs
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.groups import group_rules, offsets
from tests.support.machine.images import TOPIC_ID, GroupCluster, commit_of


@pytest.fixture
def cluster() -> GroupCluster:
    return GroupCluster()


def answers(cluster: GroupCluster, *commits: c.GroupCommit) -> object:
    return codec.decode_response(cluster.commit(*commits).response)


def test_metadata_within_bounds(cluster: GroupCluster) -> None:
    most = commit_of("g", {0: 1}, metadata="é" * 2048)
    assert answers(cluster, most) == ("",)
    assert cluster.image.offsets["g"][TOPIC_ID, 0].metadata == "é" * 2048
    assert answers(cluster, commit_of("g", {0: 1}, metadata="é" * 2049)) == ("invalid_consumer",)


def test_a_commit_of_nothing_or_too_much(cluster: GroupCluster) -> None:
    assert answers(cluster, commit_of("g", {})) == ("invalid_consumer",)
    one = commit_of("g", {0: 1}).offsets[0]
    assert answers(cluster, replace(commit_of("g", {}), offsets=(one,) * 10_001)) == (
        "request_too_large",
    )
    assert "g" not in cluster.image.groups


def test_numbers_within_bounds(cluster: GroupCluster) -> None:
    one = commit_of("g", {0: 1}).offsets[0]
    for changes in ({"leader_epoch": -2}, {"offset": -1}):
        wrong = replace(one, **changes)
        commit = replace(commit_of("g", {}), offsets=(wrong,))
        assert answers(cluster, commit) == ("invalid_consumer",)


def test_a_group_id_within_bounds(cluster: GroupCluster) -> None:
    assert answers(cluster, commit_of("", {0: 1})) == ("invalid_consumer",)


def test_more_commits_than_one_command_may_have(cluster: GroupCluster) -> None:
    error = cluster.commit(*[commit_of("g", {0: 1})] * 1001).error
    assert isinstance(error, RequestTooLargeError)
    assert cluster.commit(*[commit_of("g", {0: 1})] * 1000).error is None


def test_a_broker_that_registered_anew(cluster: GroupCluster) -> None:
    by = cluster.proposer("g")
    stale = {**by, "broker_epoch": by["broker_epoch"] - 1}
    commands: list[c.Command] = [
        c.CommitOffsets(commits=(commit_of("g", {0: 1}),), **stale),
        c.ExpireOffsets(groups=(), **stale),
        c.DeleteConsumers(consumers=(), **stale),
    ]
    for command in commands:
        assert isinstance(cluster.do(command).error, StaleBrokerEpochError)


def test_as_many_offsets_as_there_may_be(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rules, "OFFSETS_MAX", 3)
    assert answers(cluster, commit_of("g", {0: 1, 1: 1})) == ("",)
    assert answers(cluster, commit_of("g", {2: 1, 3: 1})) == ("group_limit_reached",)
    assert answers(cluster, commit_of("g", {0: 2, 2: 1})) == ("",)
    assert answers(cluster, commit_of("g", {0: 3, 1: 3, 2: 3})) == ("",)
    assert cluster.image.offset_count == 3
    # A group that is deleted makes room.
    cluster.do(c.DeleteGroup(group_id="g", **cluster.proposer("g")))
    assert cluster.image.offset_count == 0
    assert answers(cluster, commit_of("g", {3: 1})) == ("",)


def test_no_group_comes_to_be_beyond_the_bound(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rules, "GROUPS_MAX", 1)
    assert answers(cluster, commit_of("g", {0: 1})) == ("",)
    other = next(
        name for name in map(str, range(99)) if cluster.proposer(name) == cluster.proposer("g")
    )
    assert answers(cluster, commit_of(other, {0: 1}), commit_of("g", {0: 2})) == (
        "group_limit_reached",
        "",
    )
    assert other not in cluster.image.offsets


def test_a_partition_named_twice_has_the_last_offset(cluster: GroupCluster) -> None:
    first, last = commit_of("g", {0: 1}).offsets[0], commit_of("g", {0: 2}).offsets[0]
    cluster.commit(replace(commit_of("g", {}), offsets=(first, last)))
    assert cluster.image.offsets["g"][TOPIC_ID, 0].offset == 2
    assert cluster.image.offset_count == 1


def test_a_large_topic_takes_its_offsets_along_whichever_way_is_shorter() -> None:
    cluster = GroupCluster()
    cluster.create(((1, 2, 3),) * 100, name="wide", topic_id="2" * 32)
    one = commit_of("g", {0: 1}).offsets[0]
    wide = tuple(replace(one, topic_id="2" * 32, partition=p) for p in range(100))
    cluster.commit(replace(commit_of("few", {0: 1}), offsets=(one, *wide[:2])))
    cluster.commit(replace(commit_of("g", {0: 1}), offsets=(one, *wide)))
    cluster.do(c.DeleteTopic(topic_id="2" * 32))
    assert {key for group in cluster.image.offsets.values() for key in group} == {(TOPIC_ID, 0)}
    assert cluster.image.offset_count == len(cluster.image.offsets)


def test_groups_that_expire_are_told_apart(cluster: GroupCluster) -> None:
    cluster.commit(commit_of("g", {0: 1, 1: 1}))
    names = [
        name for name in map(str, range(99)) if cluster.proposer(name) == cluster.proposer("g")
    ][:2]
    cluster.commit(commit_of(names[0], {0: 1}))
    expiries = tuple(c.GroupExpiry(group_id=name, before_ms=WallMs(1001)) for name in ("g", *names))
    applied = cluster.do(c.ExpireOffsets(groups=expiries, **cluster.proposer("g")))
    assert codec.decode_response(applied.response) == (2, 1, 0)
    assert not cluster.image.groups
    assert not cluster.image.offsets


@pytest.mark.parametrize("offset", [-1, 2**63, 2**64 - 1])
def test_an_offset_that_cannot_be_written_down_is_refused_alone(
    cluster: GroupCluster, offset: int
) -> None:
    """Before it meets the commits of others in one command."""
    with pytest.raises(InvalidConsumerError, match="cannot be committed"):
        offsets.check_commit(cluster.image, commit_of("g", {0: offset}))
    offsets.check_commit(cluster.image, commit_of("g", {0: 2**63 - 1}))
