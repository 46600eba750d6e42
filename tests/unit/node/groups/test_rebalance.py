"""What becomes of a group: every outcome is one that the state machine takes, and nobody works on what another may."""

from dataclasses import replace
from random import Random

import pytest
from immutables import Map

from milena.model.types import WallMs
from node.groups.rebalance import (
    Join,
    Leave,
    MemberChange,
    NextState,
    Release,
    effective,
    next_state,
    to_give_back,
    waited_for,
)
from node.groups.subscriptions import Subscriptions
from raft_meta.machine.groups.group_rules import group_problems
from raft_meta.machine.groups.groups import check_step
from raft_meta.machine.image import Group, GroupMember, Image, Topic
from raft_meta.machine.topics import partition_sets

T1, T2 = "1" * 32, "2" * 32


def topic(topic_id: str, name: str, count: int) -> Topic:
    return Topic(
        topic_id=topic_id,
        name=name,
        partition_count=count,
        replication_factor=1,
        configs=Map(),
        created_ms=WallMs(0),
    )


def subscriptions(**counts: int) -> Subscriptions:
    ids = {"a": T1, "b": T2}
    topics = {ids[name]: topic(ids[name], name, count) for name, count in counts.items()}
    looked = Subscriptions()
    looked.look(
        Image(topics=Map(topics), topic_ids=Map({t.name: t.topic_id for t in topics.values()}))
    )
    return looked


def member(member_id: str, *topics: str, **values: object) -> GroupMember:
    made = GroupMember(
        member_id=member_id,
        instance_id=None,
        is_rest=False,
        client_id="",
        host="",
        topics=topics or ("a",),
        pattern=None,
        assignor="sticky",
        session_ms=45_000,
        rebalance_ms=60_000,
        member_epoch=0,
        held=(),
        target=(),
    )
    return replace(made, **values)  # type: ignore[arg-type]


class Played:
    """A group that plans are applied to, as the state machine would."""

    def __init__(self, **counts: int) -> None:
        self.group: Group | None = None
        self.subscriptions = subscriptions(**counts)

    def take(self, *changes: MemberChange, present: str | set[str] = "") -> NextState | None:
        done = next_state(
            self.group,
            changes,
            self.subscriptions,
            present=set(present.split()) if isinstance(present, str) else present,
        )
        if done is not None:
            self._apply(done)
        return done

    def _apply(self, done: NextState) -> None:
        before = self.group
        members = {} if before is None else {m.member_id: m for m in before.members}
        for member_id in done.left:
            del members[member_id]
        members |= {m.member_id: m for m in done.members}
        after = Group(
            group_id="g",
            version=0,
            generation=done.generation,
            assignor=done.assignor,
            members=tuple(members[member_id] for member_id in sorted(members)),
            emptied_ms=WallMs(0),
        )
        check_step(before, after)
        assert not list(group_problems(after))
        self.group = after

    def __getitem__(self, member_id: str) -> GroupMember:
        assert self.group is not None
        return next(m for m in self.group.members if m.member_id == member_id)

    def works_on(self, member_id: str) -> set[int]:
        return {number for _, number in partition_sets.keys_of(effective(self[member_id]))}


def test_the_first_member_is_given_everything_at_once() -> None:
    group = Played(a=3)
    done = group.take(Join(member=member("m1")), present="m1")
    assert done is not None
    assert done.is_rebalance
    assert group.works_on("m1") == {0, 1, 2}
    assert group["m1"].member_epoch == 1


def test_a_partition_is_given_to_another_only_after_it_was_given_back() -> None:
    group = Played(a=4)
    group.take(Join(member=member("m1")), present="m1")
    group.take(Join(member=member("m2")), present="m1 m2")
    assert group.works_on("m1") == {0, 1}
    assert group.works_on("m2") == set()
    assert len([*partition_sets.keys_of(waited_for(group["m2"]))]) == 2
    revoked = to_give_back(group["m1"])
    group.take(
        Release(member_id="m1", member_epoch=group["m1"].member_epoch, partitions=revoked),
        present="m2",
    )
    assert group.works_on("m2") == {2, 3}


def test_who_goes_on_with_the_same_keeps_its_epoch_in_a_rebalance() -> None:
    group = Played(a=4)
    group.take(Join(member=member("m1")), present="m1")
    epoch = group["m1"].member_epoch
    group.take(Join(member=member("m2")), present="m2")
    assert group["m1"].member_epoch == epoch


def test_what_a_member_works_on_grows_only_with_its_epoch() -> None:
    group = Played(a=4)
    group.take(Join(member=member("m1")), present="m1")
    group.take(Join(member=member("m2")), present="m2")
    before = group["m1"]
    # m2 is gone again before m1 has given back: it works on what it still holds, under another epoch.
    group.take(Leave(member_id="m2"), present="m1")
    assert group.works_on("m1") == {0, 1, 2, 3}
    assert group["m1"].member_epoch > before.member_epoch


def test_a_release_under_an_earlier_epoch_says_nothing() -> None:
    group = Played(a=4)
    group.take(Join(member=member("m1")), present="m1")
    group.take(Join(member=member("m2")), present="m2")
    revoked = to_give_back(group["m1"])
    assert group.take(Release(member_id="m1", member_epoch=0, partitions=revoked)) is None


def test_what_is_the_members_own_again_is_not_released() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1")), present="m1")
    epoch = group["m1"].member_epoch
    own = group["m1"].held
    assert group.take(Release(member_id="m1", member_epoch=epoch, partitions=own)) is None


def test_who_is_not_there_is_given_nothing_yet() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1")))
    assert group.works_on("m1") == set()
    group.take(present="m1")
    assert group.works_on("m1") == {0, 1}


def test_rest_members_are_always_there() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1", is_rest=True)))
    assert group.works_on("m1") == {0, 1}


def test_a_successor_takes_over_what_its_instance_has() -> None:
    group = Played(a=4)
    group.take(Join(member=member("x1", instance_id="i1")), present="x1")
    group.take(Join(member=member("x2", instance_id="i2")), present="x1 x2")
    group.take(
        Release(
            member_id="x1",
            member_epoch=group["x1"].member_epoch,
            partitions=to_give_back(group["x1"]),
        ),
        present="x2",
    )
    had = group.works_on("x1")
    done = group.take(Join(member=member("z9", instance_id="i1")), present="z9")
    assert done is not None
    assert done.left == ("x1",)
    assert not done.is_rebalance or group.works_on("x2") == {2, 3}
    assert group.works_on("z9") == had


def test_more_partitions_are_a_rebalance() -> None:
    group = Played(a=1)
    group.take(Join(member=member("m1")), present="m1")
    group.subscriptions = subscriptions(a=3)
    done = group.take(present="m1")
    assert done is not None
    assert done.is_rebalance
    assert group.works_on("m1") == {0, 1, 2}


def test_a_topic_that_comes_later_is_read_by_who_subscribed_to_it() -> None:
    group = Played(a=1)
    group.take(Join(member=member("m1", pattern="[ab]")), present="m1")
    group.subscriptions = subscriptions(a=1, b=2)
    group.take(present="m1")
    assert len([*partition_sets.keys_of(effective(group["m1"]))]) == 3


def test_the_group_takes_the_assignor_that_most_members_want() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1", assignor="range")), present="m1")
    assert group.group is not None
    assert group.group.assignor == "range"
    group.take(Join(member=member("m2", assignor="sticky")), present="m2")
    assert group.group.assignor == "range"
    group.take(Join(member=member("m3", assignor="sticky")), present="m3")
    assert group.group.assignor == "sticky"


def test_nothing_is_proposed_when_nothing_changes() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1")), present="m1")
    assert group.take(Join(member=member("m1")), present="m1") is None
    assert group.take(Leave(member_id="nobody")) is None


def test_a_member_that_leaves_and_joins_in_one_breath_is_a_new_one() -> None:
    group = Played(a=2)
    group.take(Join(member=member("m1")), present="m1")
    epoch = group["m1"].member_epoch
    group.take(Leave(member_id="m1"), Join(member=member("m1")), present="m1")
    assert group["m1"].member_epoch > epoch
    assert group.works_on("m1") == {0, 1}


def test_a_member_stays_of_its_kind() -> None:
    """A new coordinator may let a REST consumer join together with another client under this id."""
    group = Played(a=2)
    group.take(Join(member=member("m1")), Join(member=member("m1", is_rest=True)))
    assert not group["m1"].is_rest


class Process:
    """What one member believes: it works on what its last answer named, and gives back late."""

    def __init__(self) -> None:
        self.epoch = 0
        self.works_on: set[tuple[str, int]] = set()
        self.said: list[tuple[int, set[tuple[str, int]], set[tuple[str, int]]]] = []
        """Heartbeats on their way: epoch, owned, and what it had last heard."""


@pytest.mark.parametrize("seed", range(150))
def test_no_partition_is_worked_on_twice_however_late_heartbeats_arrive(seed: int) -> None:
    rng = Random(seed)
    group = Played(a=rng.randint(1, 6), b=rng.randint(1, 4))
    processes: dict[str, Process] = {}
    told: dict[str, tuple[int, set[tuple[str, int]]]] = {}
    for turn in range(120):
        choice = rng.random()
        if choice < 0.12 and len(processes) < 5:
            name = f"m{turn}"
            topics = rng.choice([("a",), ("b",), ("a", "b")])
            wants = member(name, *topics, assignor=rng.choice(["range", "roundrobin", "sticky"]))
            group.take(Join(member=wants), present={name})
            processes[name] = Process()
        elif choice < 0.17 and processes:
            name = rng.choice(sorted(processes))
            del processes[name]
            group.take(Leave(member_id=name))
        elif processes:
            _beat(rng, group, rng.choice(sorted(processes)), processes, told)
        taken = [key for process in processes.values() for key in process.works_on]
        assert len(taken) == len(set(taken)), f"worked on twice in turn {turn}"


def _beat(
    rng: Random,
    group: Played,
    name: str,
    processes: dict[str, Process],
    told: dict[str, tuple[int, set[tuple[str, int]]]],
) -> None:
    process = processes[name]
    # Sent now, arrives now, later, or twice.
    process.said.append((process.epoch, set(process.works_on), set()))
    epoch, owned, _ = rng.choice(process.said)
    known = group[name]
    if epoch == known.member_epoch:
        keys = set(partition_sets.keys_of(known.held)) - owned
        group.take(
            Release(member_id=name, member_epoch=epoch, partitions=partition_sets.of(keys)),
            present={name},
        )
    else:
        group.take(present={name})
    if rng.random() < 0.7:
        now = group[name]
        process.epoch = now.member_epoch
        process.works_on = set(partition_sets.keys_of(effective(now)))
