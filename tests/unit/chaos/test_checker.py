"""The checker on small histories made by hand: each anomaly is found, by its name, and nothing else is."""

from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.history import FinalRead, Goals, Meta, Outcome, Phase, Read, Write
from tests.chaos.report import Verdict

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def write(record, offset, sent_s, outcome=OK, *, acks="all", partition=0, took_s=0.5):
    return Write(
        at_s=sent_s + took_s, sent_s=sent_s, record=record, partition=partition, node=1,
        acks=acks, outcome=outcome, offset=offset,
    )  # fmt: skip


def read(records, *, at=0, phase=Phase.RUN, node=1, at_s=9.0, partition=0):
    return Read(
        at_s=at_s, reader="r0", partition=partition, node=node, from_offset=at,
        records=tuple(records), phase=phase,
    )  # fmt: skip


def final(records, node=1, *, is_complete=True, partition=0):
    return [
        read(records, phase=Phase.FINAL, node=node, at_s=99.0, partition=partition),
        FinalRead(
            at_s=99.0, partition=partition, node=node, is_complete=is_complete,
            end_offset=records[-1][0] + 1,
        ),
    ]  # fmt: skip


def meta(*, is_idempotent=False, is_strict=False, is_contiguous=False):
    goals = Goals(is_strict=is_strict, is_contiguous=is_contiguous)
    return Meta(
        at_s=0.0, scenario="none", seed=1, has_quorum=True, is_idempotent=is_idempotent, goals=goals
    )


A, B, C = write("k:0", 0, 1), write("k:1", 1, 2), write("k:2", 2, 3)
LOST_C = write("k:2", None, 3, UNKNOWN)
LOG = [(0, "k:0"), (1, "k:1"), (2, "k:2")]
SWAPPED = [(0, "k:1"), (1, "k:0")]

CASES = {
    "clean": ([A, B, C, read(LOG), *final(LOG), *final(LOG, 2)], set(), set(), 0),
    "lost": ([A, B, C, *final(LOG[:2])], {"lost-write"}, set(), 1),
    "lost in the middle": (
        [A, B, C, *final([LOG[0], LOG[2]])], {"lost-write"}, {"offset-gap"}, 1),
    "lost with acks=1": (
        [A, B, write("k:2", 2, 3, acks="1"), *final(LOG[:2])], set(), {"lost-acks01"}, 0),
    "unknown and absent": ([A, B, LOST_C, *final(LOG[:2])], set(), set(), 0),
    "unknown and there": ([A, B, LOST_C, *final(LOG)], set(), set(), 0),
    "read then lost": ([A, B, LOST_C, read(LOG), *final(LOG[:2])], {"read-then-lost"}, set(), 1),
    "offset used again": (
        [A, B, LOST_C, write("j:0", 2, 4), read(LOG), *final([*LOG[:2], (2, "j:0")])],
        {"inconsistent-offset", "read-then-lost"}, set(), 1),
    "acknowledged offset wrong": (
        [A, B, write("k:2", 7, 3), *final([*LOG, (3, "j:0"), (7, "j:1")]), write("j:0", 3, 4),
         write("j:1", None, 5, UNKNOWN)], {"inconsistent-offset"}, {"offset-gap"}, 1),
    "an offset of acks=1 proves nothing": (
        [A, B, write("k:2", 1, 3, acks="1"), *final(LOG)], set(), set(), 0),
    "nodes disagree": (
        [A, B, C, *final(LOG), *final([LOG[0], (1, "k:2"), (2, "k:1")], 2)],
        {"replica-divergence", "inconsistent-offset"}, set(), 1),
    "a node lacks a record": (
        [A, B, C, *final(LOG), *final([LOG[0], LOG[2]], 2)], {"replica-divergence"}, set(), 1),
    "a node is behind, which is fine": ([A, B, C, *final(LOG), *final(LOG[:2], 2)], set(), set(), 0),
    "key order": (
        [write("k:0", 1, 1), write("k:1", 0, 2), *final(SWAPPED)], {"reordered"}, set(), 1),
    "real-time order": (
        [write("a:0", 1, 1), write("b:0", 0, 2), *final([(0, "b:0"), (1, "a:0")])],
        {"reordered"}, set(), 1),
    "concurrent, any order": (
        [write("a:0", 1, 1), write("b:0", 0, 1.2), *final([(0, "b:0"), (1, "a:0")])],
        set(), set(), 0),
    "late unknown write": (
        [write("k:0", None, 1, UNKNOWN), write("k:1", 0, 2), *final(SWAPPED)],
        set(), {"late-write"}, 0),
    "skipped": ([A, B, C, read([LOG[0], LOG[2]]), *final(LOG)], {"poll-skip"}, set(), 1),
    "backwards": ([A, B, C, read([LOG[1], LOG[0]]), *final(LOG)], {"nonmonotonic-poll"}, set(), 1),
    "below what was asked": (
        [A, B, C, read(LOG[:2], at=1), *final(LOG)], {"nonmonotonic-poll"}, set(), 1),
    "phantom": ([A, B, *final(LOG)], {"damaged-record"}, set(), 1),
    "other partition": (
        [A, B, write("k:2", 2, 3, partition=1), *final(LOG)], {"wrong-partition"}, set(), 1),
    "duplicate": (
        [A, B, write("x:0", None, 3, UNKNOWN), *final([*LOG[:2], (2, "k:1")])],
        set(), {"duplicate"}, 0),
    "duplicate, idempotent": (
        [meta(is_idempotent=True), A, B, *final([*LOG[:2], (2, "k:1")])], {"duplicate"}, set(), 1),
    "duplicate of an idempotent producer": (
        [A, replace(B, is_once=True), write("x:0", None, 3, UNKNOWN),
         *final([*LOG[:2], (2, "k:1")])], {"doubled-record"}, set(), 1),
    "failed but visible": (
        [A, B, write("k:2", None, 3, FAILED), *final(LOG)], set(), {"aborted-visible"}, 0),
    "failed but visible, strict": (
        [meta(is_strict=True), A, B, write("k:2", None, 3, FAILED), *final(LOG)],
        {"aborted-visible"}, set(), 1),
    "gap, contiguous": (
        [meta(is_contiguous=True), A, *final([(1, "k:0")])],
        {"offset-gap", "inconsistent-offset"}, set(), 1),
    "not read back": ([A, B, C, *final(LOG, is_complete=False)], set(), set(), 2),
    "one node unreadable": (
        [A, B, C, *final(LOG), *final(LOG[:1], 2, is_complete=False)], set(), set(), 2),
    "nothing acknowledged": (
        [write("k:0", None, 1, FAILED), write("k:1", 0, 2, UNKNOWN), *final([(0, "k:1")])],
        set(), set(), 3),
}  # fmt: skip


@pytest.mark.parametrize(("events", "violations", "notes", "code"), CASES.values(), ids=CASES)
def test_a_history_is_judged(events, violations, notes, code):
    report = check(events)
    assert (report.violations, report.notes, report.verdict) == (violations, notes, Verdict(code))


def test_a_report_tells_examples_and_the_verdict():
    report = check([A, B, C, *final(LOG[:2])])
    lines = list(report.lines())
    lost = next(i for i, line in enumerate(lines) if line.startswith("lost-write"))
    assert "VIOLATED" in lines[lost]
    assert "k:2 p0@2 acknowledged by node 1" in lines[lost + 1]
    assert lines[-1] == "verdict: SAFETY VIOLATED (3 acknowledged writes)"


def test_safety_comes_before_liveness():
    report = check([A, B, C, *final(LOG[:2]), *final(LOG[:1], 2, is_complete=False)])
    assert report.missed
    assert report.verdict is Verdict.UNSAFE
