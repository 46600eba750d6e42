"""What transactions promise, on histories made by hand: each anomaly is found by its name, and nothing else is."""

import pytest

from tests.chaos.checker import check
from tests.chaos.history import (
    FinalRead,
    GroupPosition,
    Outcome,
    Phase,
    Read,
    TransactionTried,
    View,
    Write,
)
from tests.chaos.report import Verdict

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
COMMITTED, UNCOMMITTED = View.COMMITTED, View.UNCOMMITTED


def tried(name, writes, outcome=OK, *, sent_s=1.0, at_s=8.0, consumed=(), moved=(), again=None):
    """Writes are (place, record) or (place, record, offset)."""
    rows = tuple((*write, None) if len(write) == 2 else write for write in writes)
    return TransactionTried(
        at_s=at_s, sent_s=sent_s, name=name, node=1, outcome=outcome, writes=rows,
        consumed=tuple(consumed), moved=tuple(moved), again=again,
    )  # fmt: skip


def page(place, records, *, view=COMMITTED, phase=Phase.RUN, node=1, at=0):
    return Read(
        at_s=9.0, reader="x0", partition=place, node=node, from_offset=at,
        records=tuple(records), phase=phase, view=view,
    )  # fmt: skip


def final(logs, raw=None, node=1, is_complete=True):
    """What a node gives in the end: {place: {offset: record}}, and what it gives who reads uncommitted."""
    for view, given in ((COMMITTED, logs), (UNCOMMITTED, raw or logs)):
        for place, log in given.items():
            yield page(place, log.items(), view=view, phase=Phase.FINAL, node=node)
            yield FinalRead(
                at_s=99.0, partition=place, node=node,
                is_complete=is_complete or view is UNCOMMITTED,
                end_offset=max(log, default=-1) + 1, view=view,
            )  # fmt: skip


def stands(place, next_offset, node=1):
    return GroupPosition(at_s=99.0, place=place, node=node, next_offset=next_offset)


PLAIN = [
    Write(at_s=1, sent_s=0.5, record="w:0", partition=0, node=1, acks="all", outcome=OK, offset=0),
    Read(at_s=99, reader="f", partition=0, node=1, from_offset=0, records=((0, "w:0"),),
         phase=Phase.FINAL),
    FinalRead(at_s=99, partition=0, node=1, is_complete=True, end_offset=1),
]  # fmt: skip
A = tried("a#0", [(0, "a:0", 0), (1, "a:1", 0)])
B = tried("b#0", [(0, "b:0", 2), (1, "b:1", 2)])
A_AND_B = [tried("a#0", [(0, "a:0"), (1, "a:1")]), tried("b#0", [(0, "b:0"), (1, "b:1")])]
BOTH = {0: {0: "a:0", 2: "b:0"}, 1: {0: "a:1", 2: "b:1"}}
ONLY_A = {0: {0: "a:0"}, 1: {0: "a:1"}}
CROSSED = {0: {0: "a:0", 2: "b:0"}, 1: {0: "b:1", 2: "a:1"}}
NO_A1 = {0: BOTH[0], 1: {2: "b:1"}}


def aborted(outcome, **more):
    return tried("b#0", [(0, "b:0"), (1, "b:1")], outcome, **more)


def flow(name, record, moved, consumed, place=2, outcome=OK, **more):
    """A transaction that made one record of what it consumed of place 0."""
    return tried(
        name, [(place, record)], outcome, moved=[(0, *moved)],
        consumed=[(0, offset, BOTH[0][offset]) for offset in consumed], **more,
    )  # fmt: skip


FLOWN = {**BOTH, 2: {0: "f:0", 2: "f:1"}}
F0, F1 = flow("f#0", "f:0", (0, 1), [0]), flow("f#1", "f:1", (1, 3), [2])

CASES = {
    "clean": ([A, B, page(0, BOTH[0].items()), *final(BOTH), *final(BOTH, node=2)], set(), set(), 0),
    "aborted": ([A, aborted(FAILED), *final(ONLY_A, BOTH)], set(), set(), 0),
    "aborted, read by who asks for it": (
        [A, aborted(FAILED), page(0, BOTH[0].items(), view=UNCOMMITTED), *final(ONLY_A, BOTH)],
        set(), set(), 0),
    "aborted, and read": (
        [A, aborted(FAILED), page(0, BOTH[0].items()), *final(ONLY_A, BOTH)],
        {"aborted-read", "read-then-lost"}, set(), 1),
    "aborted, and there in the end": (
        [A, aborted(FAILED), *final(BOTH)], {"aborted-read"}, set(), 1),
    "unknown and there": ([A, aborted(UNKNOWN), *final(BOTH)], set(), set(), 0),
    "unknown and absent": ([A, aborted(UNKNOWN), *final(ONLY_A, BOTH)], set(), set(), 0),
    "unknown, and half there": (
        [A, aborted(UNKNOWN), *final({**ONLY_A, 0: BOTH[0]}, BOTH)], {"torn-transaction"}, set(), 1),
    "committed, and half there": (
        [A, B, *final(NO_A1, BOTH)], {"torn-transaction", "lost-write"}, set(), 1),
    "committed, and absent": ([A, B, *final(ONLY_A)], {"lost-write"}, set(), 1),
    "read, and gone in the end": (
        [A, aborted(UNKNOWN), page(0, BOTH[0].items()), *final(ONLY_A, BOTH)],
        {"read-then-lost"}, set(), 1),
    "a reader gets part of a partition's records": (
        [A, B, tried("c#0", [(0, "c:0"), (0, "c:1")]), page(0, [(0, "a:0"), (4, "c:1")]),
         *final({**BOTH, 0: {**BOTH[0], 3: "c:0", 4: "c:1"}})], {"poll-skip"}, set(), 1),
    "twice": (
        [A, B, *final({**BOTH, 0: {**BOTH[0], 4: "b:0"}})], {"doubled-transaction"}, set(), 1),
    "twice, once of it aborted": (
        [A, B, *final(BOTH, {**BOTH, 0: {**BOTH[0], 4: "b:0"}})], set(), set(), 0),
    "done again, since its answer was lost": (
        [A, aborted(UNKNOWN), *final({0: {**BOTH[0], 4: "b:0"}, 1: {**BOTH[1], 4: "b:1"}})],
        {"doubled-transaction"}, set(), 1),
    "a zombie's write counts as its successor's": (
        [A, B, tried("b#1", [(0, "z:0")], FAILED, sent_s=0.5),
         *final({**BOTH, 0: {**BOTH[0], 3: "z:0"}})], {"aborted-read"}, set(), 1),
    "a zombie's write stays among those that count for nobody": (
        [A, B, tried("b#1", [(0, "z:0")], FAILED, sent_s=0.5),
         *final(BOTH, {**BOTH, 0: {**BOTH[0], 3: "z:0"}})], set(), set(), 0),
    "out of order": (
        [A, B, tried("c#0", [(0, "c:0"), (0, "c:1")]),
         *final({**BOTH, 0: {**BOTH[0], 4: "c:1", 5: "c:0"}})], {"reordered"}, set(), 1),
    "behind what was begun after it": (
        [tried("a#0", [(0, "a:0")], at_s=2.0), tried("b#0", [(0, "b:0")], sent_s=3.0),
         *final({0: {0: "b:0", 1: "a:0"}})], {"reordered"}, set(), 1),
    "another offset than was told": (
        [A, tried("b#0", [(0, "b:0", 1), (1, "b:1")]), *final(BOTH)],
        {"inconsistent-offset"}, set(), 1),
    "another record for who reads uncommitted": (
        [A, B, *final(BOTH, {**BOTH, 0: {0: "a:0", 2: "a:0"}})],
        {"inconsistent-offset", "lost-write"}, set(), 1),
    "nodes disagree": (
        [A, B, *final(BOTH), *final(NO_A1, BOTH, node=2)], {"replica-divergence"}, set(), 1),
    "a foreign record": ([A, *final(BOTH)], {"damaged-record"}, set(), 1),
    "in another place": (
        [A, B, *final({**BOTH, 2: {0: "b:0"}})], {"wrong-partition"}, set(), 1),
    "side by side in two orders": ([*A_AND_B, *final(CROSSED)], set(), {"write-cycle"}, 0),
    "one after the other in two orders": (
        [tried("a#0", [(0, "a:0"), (1, "a:1")], at_s=2.0),
         tried("b#0", [(0, "b:0"), (1, "b:1")], sent_s=3.0), *final(CROSSED)],
        {"reordered"}, {"write-cycle"}, 1),
    "it was told two ways": (
        [A, tried("b#0", [(0, "b:0"), (1, "b:1")], FAILED, again=OK), *final(ONLY_A)],
        {"two-answers"}, set(), 1),
    "what it was told twice": (
        [A, tried("b#0", [(0, "b:0"), (1, "b:1")], again=OK), *final(BOTH)], set(), set(), 0),
    "it holds readers up": (
        [A, B, *final(BOTH, is_complete=False)], {"hanging-transaction"}, set(), 1),
    "all were aborted": (
        [aborted(FAILED), *final({0: {}, 1: {}}, {0: {2: "b:0"}, 1: {2: "b:1"}})], set(), set(), 2),
    # Of what is consumed.
    "each is consumed once": ([A, B, F0, F1, stands(0, 3), *final(FLOWN)], set(), set(), 0),
    "at its last end the group stands elsewhere": (
        [A, B, F0, F1, stands(0, 1), *final(FLOWN)], {"not-exactly-once"}, set(), 1),
    "one node's group stands elsewhere": (
        [A, B, F0, F1, stands(0, 3), stands(0, 1, node=2), *final(FLOWN)],
        {"not-exactly-once"}, set(), 1),
    "a group that goes on without what was to be written": (
        [A, B, F0, flow("f#1", "f:1", (1, 3), [2], outcome=UNKNOWN), stands(0, 3),
         *final({**BOTH, 2: {0: "f:0"}}, FLOWN)], {"not-exactly-once"}, set(), 1),
    "an unknown one and its group agree": (
        [A, B, F0, flow("f#1", "f:1", (1, 3), [2], outcome=UNKNOWN), stands(0, 1),
         *final({**BOTH, 2: {0: "f:0"}}, FLOWN)], set(), set(), 0),
    "one of which nothing was told, and its group": (
        [A, B, F0, flow("f#1", "f:1", (1, 3), [2], outcome=UNKNOWN), stands(0, 3), *final(FLOWN)],
        set(), set(), 0),
    "consumed twice": (
        [A, B, F0, flow("f#1", "f:1", (0, 3), [0, 2]), stands(0, 3), *final(FLOWN)],
        {"not-exactly-once"}, set(), 1),
    "never consumed": (
        [A, B, F0, flow("f#1", "f:1", (1, 3), []), stands(0, 3), *final(FLOWN)],
        {"not-exactly-once"}, set(), 1),
    "passed over": (
        [A, B, flow("f#1", "f:1", (1, 3), [2]), stands(0, 3), *final({**BOTH, 2: {2: "f:1"}})],
        {"not-exactly-once"}, set(), 1),
    "it read a record before one that its writer was behind": (
        [A_AND_B[0], flow("b#0", "b:1", (0, 1), [0], place=1), stands(0, 1),
         *final({0: {0: "a:0"}, 1: {0: "b:1", 2: "a:1"}})], {"circular-flow"}, set(), 1),
    "they read each other": (
        [tried("a#0", [(0, "a:0")], consumed=[(1, 0, "b:1")]),
         tried("b#0", [(1, "b:1")], consumed=[(0, 0, "a:0")]),
         *final({0: {0: "a:0"}, 1: {0: "b:1"}})], {"circular-flow"}, set(), 1),
    "it read what was begun after it had ended": (
        [tried("a#0", [(0, "a:0")], at_s=2.0, consumed=[(1, 0, "b:1")]),
         tried("b#0", [(1, "b:1")], sent_s=3.0),
         *final({0: {0: "a:0"}, 1: {0: "b:1"}})], {"circular-flow"}, set(), 1),
    # C is open all the while: it may stand before B here, and behind A there.
    "one that is open while another reads": (
        [A_AND_B[0], flow("b#0", "b:1", (0, 1), [0], place=2), tried("c#0", [(1, "c:0"), (2, "c:1")]),
         stands(0, 1), *final({0: {0: "a:0"}, 1: {0: "c:0", 2: "a:1"}, 2: {0: "b:1", 2: "c:1"}})],
        set(), set(), 0),
}  # fmt: skip


@pytest.mark.parametrize(("events", "violations", "notes", "code"), CASES.values(), ids=CASES)
def test_a_history_is_judged(events, violations, notes, code):
    report = check([*PLAIN, *events])
    assert (report.violations, report.notes, report.verdict) == (violations, notes, Verdict(code))


def test_a_cycle_names_its_transactions():
    report = check([*PLAIN, *CASES["it read a record before one that its writer was behind"][0]])
    (text,) = report.found["circular-flow"]
    assert text == "transactions: a#0 -read by-> b#0 -before in place 1-> a#0"


def test_what_is_not_read_back_is_not_judged():
    events = [A, B, *final({0: BOTH[0]})]
    report = check([*PLAIN, *events])
    assert not report.violations
    assert report.verdict is Verdict.NOT_LIVE
    assert "p1 on any node" in report.missed[0]


def test_it_is_told_how_long_one_that_died_held_readers_up():
    dead = tried("b#0", [(0, "b:0"), (1, "b:1")], FAILED, at_s=4.0)
    late = tried("c#0", [(0, "c:0", 3)], at_s=5.0)
    read = page(0, [(0, "a:0"), (3, "c:0")])
    events = [A, dead, late, read, *final({**ONLY_A, 0: {0: "a:0", 3: "c:0"}}, {
        0: {0: "a:0", 2: "b:0", 3: "c:0"}, 1: {0: "a:1", 2: "b:1"},
    })]  # fmt: skip
    report = check([*PLAIN, *events])
    assert report.verdict is Verdict.GOOD
    assert ("readers held up by one that died", "5.00 s at most (b#0, p0@2)") in report.figures
