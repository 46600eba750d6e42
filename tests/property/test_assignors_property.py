"""Assignors: every partition once, fair, and sticky ones move as little as can be."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.groups.assignors import ASSIGNORS, Assignment, SubscribedTopic, Subscriber, assign
from raft_meta.machine.image import PartitionKey, PartitionSet
from raft_meta.machine.topics import partition_sets

NAMES = "abcd"


def topic_id(name: str) -> str:
    return name * 32


@st.composite
def topics(draw: st.DrawFn) -> list[SubscribedTopic]:
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    return [
        SubscribedTopic(topic_id=topic_id(name), name=name, partition_count=draw(st.integers(1, 9)))
        for name in sorted(names)
    ]


@st.composite
def groups(
    draw: st.DrawFn, *, is_alike: bool = False
) -> tuple[list[Subscriber], list[SubscribedTopic]]:
    """Members with whatever they had before: nobody the same, some of it not theirs any more, or gone."""
    shared = draw(topics())
    ids = [topic.topic_id for topic in shared]
    count = draw(st.integers(1, 7))
    owners = draw(
        st.dictionaries(
            st.tuples(st.sampled_from([topic_id(name) for name in NAMES]), st.integers(0, 11)),
            st.integers(0, count - 1),
            max_size=40,
        )
    )
    members = []
    for number in range(count):
        wanted = ids if is_alike else draw(st.sets(st.sampled_from(ids)))
        members.append(
            Subscriber(
                member_id=f"m{number}",
                order=f"m{number}",
                topic_ids=frozenset(wanted),
                target=partition_sets.of(key for key, owner in owners.items() if owner == number),
            )
        )
    return members, shared


def keys(partitions: PartitionSet) -> set[PartitionKey]:
    return set(partition_sets.keys_of(partitions))


def sizes(assignment: Assignment) -> dict[str, int]:
    return {
        member_id: len([*partition_sets.keys_of(taken)]) for member_id, taken in assignment.items()
    }


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_every_partition_goes_to_exactly_one_subscriber(
    name: str, group: tuple[list[Subscriber], list[SubscribedTopic]]
) -> None:
    members, shared = group
    made = assign(name, members, shared)
    assert made.keys() == {member.member_id for member in members}
    taken = [key for partitions in made.values() for key in partition_sets.keys_of(partitions)]
    assert len(taken) == len(set(taken))
    wanted = frozenset[str]().union(*(member.topic_ids for member in members))
    assert set(taken) == {
        (topic.topic_id, number)
        for topic in shared
        if topic.topic_id in wanted
        for number in range(topic.partition_count)
    }
    for member in members:
        assert {topic for topic, _ in made[member.member_id]} <= member.topic_ids


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_the_same_question_has_the_same_answer(
    name: str, group: tuple[list[Subscriber], list[SubscribedTopic]]
) -> None:
    members, shared = group
    assert assign(name, members, shared) == assign(name, members[::-1], shared[::-1])


@pytest.mark.parametrize("name", ["roundrobin", "sticky"])
@given(group=groups(is_alike=True))
def test_shares_differ_by_one_at_most(
    name: str, group: tuple[list[Subscriber], list[SubscribedTopic]]
) -> None:
    made = sizes(assign(name, *group))
    assert max(made.values()) - min(made.values()) <= 1


@given(group=groups())
def test_range_shares_each_topic_evenly_and_in_runs(
    group: tuple[list[Subscriber], list[SubscribedTopic]],
) -> None:
    members, shared = group
    made = assign("range", members, shared)
    for topic in shared:
        readers = [member for member in members if topic.topic_id in member.topic_ids]
        runs = [dict(made[member.member_id]).get(topic.topic_id, ()) for member in readers]
        if not runs:
            continue
        assert max(map(len, runs)) - min(map(len, runs)) <= 1
        assert [number for run in runs for number in run] == list(range(topic.partition_count))


@given(group=groups())
def test_sticky_leaves_nobody_with_what_one_with_two_less_could_read(
    group: tuple[list[Subscriber], list[SubscribedTopic]],
) -> None:
    members, shared = group
    made = assign("sticky", members, shared)
    for one, other in combinations(members, 2):
        for rich, poor in ((one, other), (other, one)):
            more = len([*partition_sets.keys_of(made[rich.member_id])])
            less = len([*partition_sets.keys_of(made[poor.member_id])])
            if more - less >= 2:
                assert not {topic for topic, _ in made[rich.member_id]} & poor.topic_ids


@given(group=groups())
def test_what_sticky_made_it_makes_again(
    group: tuple[list[Subscriber], list[SubscribedTopic]],
) -> None:
    members, shared = group
    made = assign("sticky", members, shared)
    settled = [
        Subscriber(
            member_id=member.member_id,
            order=member.order,
            topic_ids=member.topic_ids,
            target=made[member.member_id],
        )
        for member in members
    ]
    assert assign("sticky", settled, shared) == made


def test_sticky_is_done_when_it_has_been_done_once() -> None:
    """A chain of moves may open the way for another, from a member that was looked at before."""
    a, b = topic_id("a"), topic_id("b")
    shared = [
        SubscribedTopic(topic_id=a, name="a", partition_count=6),
        SubscribedTopic(topic_id=b, name="b", partition_count=2),
    ]
    wanted = {"m0": {a}, "m1": {a, b}, "m2": {a, b}, "m3": {b}}
    had = {
        "m0": [(a, 9), (b, 2)],
        "m1": [(a, 3), (b, 3), (b, 4), (b, 8)],
        "m2": [(b, 0), (b, 1), (b, 5)],
        "m3": [(a, 0), (a, 4), (b, 9)],
    }
    members = [
        Subscriber(
            member_id=member_id,
            order=member_id,
            topic_ids=frozenset(topic_ids),
            target=partition_sets.of(had[member_id]),
        )
        for member_id, topic_ids in wanted.items()
    ]
    made = assign("sticky", members, shared)
    settled = [replace(member, target=made[member.member_id]) for member in members]
    assert assign("sticky", settled, shared) == made


@given(group=groups(is_alike=True))
def test_sticky_moves_as_little_as_can_be(
    group: tuple[list[Subscriber], list[SubscribedTopic]],
) -> None:
    members, shared = group
    made = assign("sticky", members, shared)
    there = {(t.topic_id, number) for t in shared for number in range(t.partition_count)}
    had = {member.member_id: keys(member.target) & there for member in members}
    kept = sum(len(had[member_id] & keys(made[member_id])) for member_id in had)
    share, larger = divmod(len(there), len(members))
    # Nobody may have more than their share; the larger shares do most good where most was had.
    biggest = sorted(map(len, had.values()), reverse=True)
    most = sum(min(size, share + (place < larger)) for place, size in enumerate(biggest))
    assert kept == most


@given(group=groups(is_alike=True))
def test_a_newcomer_takes_from_others_only_its_own_share(
    group: tuple[list[Subscriber], list[SubscribedTopic]],
) -> None:
    members, shared = group
    before = assign("sticky", members, shared)
    settled = [
        Subscriber(
            member_id=m.member_id, order=m.order, topic_ids=m.topic_ids, target=before[m.member_id]
        )
        for m in members
    ]
    newcomer = Subscriber(
        member_id="new", order="new", topic_ids=members[0].topic_ids, target=partition_sets.EMPTY
    )
    after = assign("sticky", [*settled, newcomer], shared)
    for member in members:
        assert partition_sets.is_subset(after[member.member_id], before[member.member_id])
