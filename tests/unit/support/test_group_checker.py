"""The judge of consumer groups on small histories: each fault is found by its name, and nothing else is."""

import pytest

from tests.support.groups.checker import findings, violations
from tests.support.groups.history import (
    Answered,
    Commit,
    Event,
    Fate,
    Fenced,
    GroupHistory,
    LetGo,
    Looked,
    Processed,
)

SESSION_S = 10.0


def beat(at_s, member, generation, *assignment, epoch=None, pending=()):
    return Answered(
        at_s=at_s, member=member, epoch=generation if epoch is None else epoch,
        generation=generation, assignment=frozenset(assignment), pending=frozenset(pending),
        valid_until_s=at_s + SESSION_S,
    )  # fmt: skip


def gone(at_s, member, *partitions):
    return LetGo(at_s=at_s, member=member, partitions=frozenset(partitions))


def work(at_s, member, partition, first, count):
    values = tuple(f"{partition}/{offset}" for offset in range(first, first + count))
    return Processed(at_s=at_s, member=member, partition=partition, first=first, values=values)


def commit(at_s, member, epoch, partition, offset, fate=Fate.OK):
    return Commit(
        sent_s=at_s - 0.5, at_s=at_s, member=member, epoch=epoch,
        offsets=((partition, offset),), fate=fate,
    )  # fmt: skip


def look(at_s, **offsets):
    found = tuple((int(name[1:]), offset) for name, offset in offsets.items())
    return Looked(sent_s=at_s - 0.2, at_s=at_s, offsets=found)


def fenced(at_s, member, epoch):
    return Fenced(at_s=at_s, member=member, epoch=epoch)


GOOD = (
    beat(1, "a", 1, 0, 1),
    work(2, "a", 0, 0, 5),
    commit(3, "a", 1, 0, 5),
    beat(4, "b", 2, pending=(1,)),
    beat(4, "a", 2, 0, epoch=1),
    gone(4, "a", 1),
    beat(5, "a", 2, 0),
    beat(6, "b", 2, 1),
    work(7, "b", 1, 0, 3),
    commit(8, "b", 2, 1, 3),
    look(9, p0=5, p1=3),
)
"""Two members share two partitions; the second one joins later."""
ENDS = {0: 5, 1: 3}


def history(*events: Event, ends=ENDS, is_drained=True, survivors=("a", "b")) -> GroupHistory:
    return GroupHistory(list(events), dict(ends), is_drained, survivors)


def names(*events: Event, **named: object) -> set[str]:
    return {name for name, _ in findings(history(*events, **named))}


def without(*numbers: int) -> list[Event]:
    return [event for number, event in enumerate(GOOD) if number not in numbers]


def test_what_is_as_it_should_be() -> None:
    assert names(*GOOD) == set()


CASES = {
    "a record was passed over": (
        [*GOOD, commit(10, "b", 2, 1, 4), look(11, p0=5, p1=4)],
        {1: 4, 0: 5},
        {"lost-record", "committed-unread"},
    ),
    "a record at the end was never read": (GOOD, {0: 6, 1: 3}, {"starved-partition"}),
    "nobody reads a partition": (without(7, 8, 9, 10), ENDS, {"starved-partition", "starved-member"}),
    "two owners in a generation": ([*GOOD, beat(20, "c", 2, 1)], ENDS, {"owned-twice"}),
    "two targets in a generation": (
        [*GOOD, beat(20, "c", 2, pending=(0,))], ENDS, {"owned-twice"}),
    "two owners at a time": ([*GOOD, beat(12, "c", 3, 1)], ENDS, {"owned-at-once"}),
    "given away before it was let go": (
        [*GOOD[:4], beat(4.5, "b", 2, 1), *GOOD[4:]], ENDS, {"owned-at-once"}),
    "a former owner commits": (
        [*GOOD, commit(10, "a", 1, 1, 0)], ENDS, {"fenced-commit"}),
    "it was told so": (
        [*GOOD, fenced(10, "a", 2), commit(11, "a", 2, 0, 5)], ENDS, {"fenced-commit"}),
    "a commit was forgotten": ([*GOOD, look(20, p1=3)], ENDS, {"commit-went-back"}),
    "a commit went back": ([*GOOD, look(20, p0=4, p1=3)], ENDS, {"commit-went-back"}),
    "what was seen went back": (
        [look(0.5, p0=6), *GOOD], ENDS, {"commit-went-back"}),
    "committed before it was read": (
        [*GOOD[:1], commit(1.9, "a", 1, 0, 5), *GOOD[1:]], ENDS, {"committed-unread"}),
    "another record at an offset": (
        [*GOOD, Processed(at_s=9, member="b", partition=1, first=2, values=("x",))],
        ENDS, {"other-record"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_planted_fault_is_found_by_its_name(case: str) -> None:
    events, ends, expected = CASES[case]
    assert names(*events, ends=ends) == expected
    assert violations(history(*events, ends=ends))


LAWFUL = {
    "a session ended, and another member went on": [*GOOD, beat(15.1, "b", 3, 0, 1)],
    "fenced, and another member went on": [*GOOD, fenced(10, "a", 2), beat(11, "b", 3, 0, 1)],
    "it left": [*GOOD, gone(10, "a", 0), beat(11, "b", 3, 0, 1)],
    "the former owner is refused": [*GOOD, commit(10, "a", 1, 1, 2, Fate.FENCED)],
    "its commit was under way when it lost the partition": [
        *GOOD[:7], commit(6.2, "a", 1, 1, 0), *GOOD[7:]],
    "the partition came back, and it commits under its old epoch": [
        *GOOD, gone(10, "b", 1), beat(11, "a", 3, 0, 1, epoch=1), commit(12, "a", 1, 1, 3)],
    "what was in doubt was not committed": [*GOOD, commit(10, "b", 2, 1, 4, Fate.UNKNOWN)],
    "an answer overtook a commit": [
        *GOOD, work(9, "b", 1, 3, 1), commit(10, "b", 2, 1, 4), look(9.6, p0=5, p1=3)],
    "records were read twice": [*GOOD, work(9, "b", 1, 0, 3)],
}  # fmt: skip


@pytest.mark.parametrize("case", LAWFUL, ids=str)
def test_what_is_lawful_is_no_finding(case: str) -> None:
    assert names(*LAWFUL[case]) <= {"starved-member"}, findings(history(*LAWFUL[case]))


def test_an_attempt_in_doubt_may_take_place_late() -> None:
    events = [
        *GOOD[:2],
        commit(2.6, "a", 1, 0, 2, Fate.UNKNOWN),
        *GOOD[2:],
        look(12, p0=2, p1=3),
    ]
    assert names(*events) == {"late-commit"}
    assert violations(history(*events)) == []


def test_a_run_that_was_broken_off_says_nothing_of_starvation() -> None:
    assert names(*GOOD, ends={0: 6, 1: 3}, is_drained=False) == set()


def test_more_members_than_partitions_leave_some_without() -> None:
    assert names(*GOOD, beat(9, "c", 2), survivors=("a", "b", "c")) == set()
