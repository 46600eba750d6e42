"""Gaps, waits and goals from histories made by hand."""

import pytest

from tests.chaos.availability import gaps_after_faults, longest_gap, waits_after_heals, window_of
from tests.chaos.checker import check
from tests.chaos.history import (
    Ended,
    Fault,
    FinalRead,
    Goals,
    Heal,
    Meta,
    Outcome,
    Phase,
    Read,
    Started,
    Write,
)
from tests.chaos.report import Verdict


def write(number, at_s, *, partition=0, outcome=Outcome.OK, took_s=0.1):
    return Write(
        at_s=at_s, sent_s=at_s - took_s, record=f"k{partition}:{number}", partition=partition,
        node=1, acks="all", outcome=outcome, offset=number,
    )  # fmt: skip


def fault(began_s, *, at_s=None, partition=0, operation="kill"):
    return Fault(
        at_s=began_s if at_s is None else at_s, began_s=began_s, operation=operation,
        target="leader", partition=partition, nodes=(1,),
    )  # fmt: skip


def history(times, *others, goals=None, has_quorum=True):
    writes = [write(i, t) for i, t in enumerate(times)]
    records = tuple((i, f"k0:{i}") for i in range(len(times)))
    return [
        Meta(
            at_s=0, scenario="kill-leader", seed=1, has_quorum=has_quorum, is_idempotent=False,
            goals=goals or Goals(),
        ),
        Started(at_s=0.0),
        *writes,
        *others,
        Ended(at_s=20.0),
        Read(
            at_s=21, reader="final1", partition=0, node=1, from_offset=0, records=records,
            phase=Phase.FINAL,
        ),
        FinalRead(at_s=21, partition=0, node=1, is_complete=True, end_offset=len(times)),
    ]  # fmt: skip


def steady(*, without=(0, 0)):
    ticks = [0.2 + i / 2 for i in range(40)]
    return [t for t in ticks if not without[0] < t < without[1]]


def test_the_longest_gap_and_where_it_began():
    assert longest_gap([1, 2, 5, 6]) == (3, 2)
    assert longest_gap([]) == (0.0, 0.0)


def test_a_gap_after_a_fault_ends_at_the_next_fault():
    events = history(steady(without=(5, 9)), fault(5.0), fault(7.0), fault(12.0, partition=1))
    gaps = gaps_after_faults(window_of(events), [e for e in events if isinstance(e, Fault)])
    assert gaps["kill leader"] == [pytest.approx(2.0), pytest.approx(2.2), pytest.approx(8.0)]


def test_a_fault_that_takes_long_counts_from_its_beginning():
    events = history(steady(without=(5, 9)), fault(5.0, at_s=8.9))
    gaps = gaps_after_faults(window_of(events), [e for e in events if isinstance(e, Fault)])
    assert gaps["kill leader"] == [pytest.approx(4.2)]


def test_a_fault_that_outlasts_the_writers_leaves_no_gap_behind_them():
    events = history(steady(), fault(5.0, at_s=23.0))
    gaps = gaps_after_faults(window_of(events), [e for e in events if isinstance(e, Fault)])
    assert gaps["kill leader"] == [pytest.approx(0.5)]


def test_the_wait_after_a_heal_counts_writes_sent_after_it():
    events = history(steady(without=(5, 9)), Heal(at_s=6.0))
    waits = waits_after_heals(window_of(events), [Heal(at_s=6.0)])
    assert waits == [pytest.approx(3.2)]


@pytest.mark.parametrize(
    ("has_quorum", "verdict"), [(True, Verdict.NOT_LIVE), (False, Verdict.GOOD)]
)
def test_a_goal_after_a_fault_holds_while_there_is_a_quorum(has_quorum, verdict):
    events = history(
        steady(without=(5, 9)), fault(5.0), goals=Goals(recovery_s=2), has_quorum=has_quorum
    )
    report = check(events)
    assert report.verdict is verdict
    assert bool(report.missed) is has_quorum


def test_a_goal_after_a_heal_always_holds():
    events = history(
        steady(without=(5, 9)), Heal(at_s=5.0), goals=Goals(after_heal_s=3), has_quorum=False
    )
    assert check(events).missed == ["4.20 s without writes after a heal, goal 3 s"]


def test_a_share_of_writes_must_succeed():
    failed = [write(100 + i, 3.0, outcome=Outcome.UNKNOWN) for i in range(40)]
    report = check(history(steady(), *failed, goals=Goals(success_share=0.9)))
    assert report.missed == ["50.0% succeeded, goal 90.0%"]


def test_markers_are_not_part_of_the_run():
    marker = Write(
        at_s=19.9, sent_s=19.8, record="final0:0", partition=0, node=1, acks="all",
        outcome=Outcome.OK, offset=99,
    )  # fmt: skip
    window = window_of(history([1.0], marker))
    assert [w.record for w in window.writes] == ["k0:0"]


def test_nodes_that_died_by_themselves_are_told():
    report = check(history(steady(), Heal(at_s=6.0, crashed={"2": 1})))
    assert ("exited on their own", "1: node 2 (exit 1)") in report.figures


def test_a_run_that_never_ended_has_no_figures():
    events = [e for e in history(steady()) if not isinstance(e, Ended)]
    assert check(events).figures == []
