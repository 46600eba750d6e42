"""Check that transactions are atomic, happen once, and are in an order without cycles: pure functions over a history.

The topics of transactions are first checked like other logs (``log_checks``), once as readers of committed records see
them, and once as ``read_uncommitted`` shows them. Then whole transactions are checked. A transaction of unknown outcome
may be committed or not: the final log shows which, and everything else must agree with that. Source: Adya, "Weak
Consistency" (1999), for G0, G1a, G1c; Kingsbury and Alvaro, "Elle" (VLDB 2020), for how they are inferred from what
clients saw; Jepsen's names for logs (``jepsen.tests.kafka``).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from tests.chaos.dependencies import check_dependencies
from tests.chaos.history import (
    Event,
    FinalRead,
    GroupPosition,
    Outcome,
    TransactionTried,
    View,
    Write,
)
from tests.chaos.log_checks import (
    Evidence,
    Finding,
    arrange,
    check_duplicates,
    check_losses,
    check_offsets,
    check_pages,
    check_real_time_order,
    check_replicas,
    unread,
)
from tests.chaos.report import Report

OF_COMMITTED = (
    check_replicas,
    check_duplicates,
    check_pages,
    check_offsets,
    check_losses,
    check_real_time_order,
)
OF_UNCOMMITTED = (check_replicas, check_pages, check_offsets, check_losses)
NAMES = {"duplicate": "doubled-transaction", "aborted-visible": "aborted-read"}
"""Findings that are only noted for other writes, and are violations for transactions."""
ALLOWED_UNCOMMITTED = frozenset({"aborted-visible"})


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All transactions of a run, and the final logs of their partitions."""

    tried: Sequence[TransactionTried]
    committed: Evidence
    uncommitted: Evidence
    positions: Sequence[GroupPosition]

    def found(self, transaction: TransactionTried) -> list[int | None]:
        """Return the offset of each record as committed readers see it, in the order of writing; None if it is absent.

        Records of partitions that were not read back are left out.
        """
        places, truth = self.committed.places, self.committed.truth
        return [places.get((p, record)) for p, record, _ in transaction.writes if p in truth]

    def is_there(self, transaction: TransactionTried) -> bool:
        """Return whether readers of committed records see any of its records."""
        return any(offset is not None for offset in self.found(transaction))


def outcomes_of(events: Iterable[Event]) -> Outcomes:
    """Return the transactions of a history, with the final logs."""
    every = list(events)
    tried = [e for e in every if isinstance(e, TransactionTried)]
    written = [write for one in tried for write in _writes_of(one)]
    written += [e for e in every if isinstance(e, Write) and e.view is View.COMMITTED]
    raw = [replace(write, view=View.UNCOMMITTED) for write in written]
    return Outcomes(
        tried=tried,
        committed=arrange([*every, *written], View.COMMITTED),
        uncommitted=arrange([*every, *raw], View.UNCOMMITTED),
        positions=[e for e in every if isinstance(e, GroupPosition)],
    )


def _writes_of(transaction: TransactionTried) -> Iterator[Write]:
    """Yield the writes of its records; all have the transaction's outcome."""
    for place, record, offset in transaction.writes:
        yield Write(
            at_s=transaction.at_s,
            sent_s=transaction.sent_s,
            record=record,
            partition=place,
            node=transaction.node,
            acks="all",
            outcome=transaction.outcome,
            offset=offset if transaction.outcome is Outcome.OK else None,
            error=transaction.error,
            view=View.COMMITTED,
        )


def judge_transactions(report: Report, events: Iterable[Event]) -> None:
    """Add the findings about transactions to the report, if there were any transactions."""
    outcomes = outcomes_of(events)
    if not outcomes.tried:
        return
    for name, text in findings(outcomes):
        report.found[name].append(f"transactions: {text}")
    for evidence in (outcomes.committed, outcomes.uncommitted):
        report.missed += [f"transactions: {text}" for text in unread(evidence)]
        report.is_read_back &= not evidence.unread
    counts = Counter(one.outcome for one in outcomes.tried)
    if not counts[Outcome.OK]:
        report.missed.append("no transaction was committed")
    there = sum(outcomes.is_there(one) for one in outcomes.tried if one.outcome is Outcome.UNKNOWN)
    committed_s = sorted(t.at_s for t in outcomes.tried if t.outcome is Outcome.OK)
    gap = max((b - a for a, b in pairwise(committed_s)), default=0.0)
    told = (
        f"{counts[Outcome.OK]} committed, {counts[Outcome.FAILED]} aborted, "
        f"{counts[Outcome.UNKNOWN]} unknown ({there} of them committed), longest gap {gap:.2f} s"
    )
    held_s, held_by = longest_hold(outcomes)
    consumed = sum(len(one.consumed) for one in outcomes.tried if outcomes.is_there(one))
    report.figures += [
        ("transactions", told),
        ("readers held up by one that died", f"{held_s:.2f} s at most {held_by}".rstrip()),
        ("records consumed and produced from", str(consumed)),
    ]


def longest_hold(outcomes: Outcomes) -> tuple[float, str]:
    """Return the longest time for which an ended transaction held up readers, and the transaction.

    Only transactions that did not commit are considered, because a commit waits for readers. A transaction holds up
    readers until one of them gets a record after its records. So the time includes that of anything else that held up
    readers.
    """
    passed_s = {place: _passed_s(outcomes, place) for place in outcomes.committed.truth}
    worst = 0.0, ""
    for one in outcomes.tried:
        if outcomes.is_there(one):
            continue
        for place, record, _ in one.writes:
            offset = outcomes.uncommitted.places.get((place, record))
            if offset is None or place not in passed_s:
                continue
            offsets, times = passed_s[place]
            behind = bisect_right(offsets, offset)
            if behind < len(offsets):
                worst = max(worst, (times[behind] - one.at_s, f"({one.name}, p{place}@{offset})"))
    return worst


def _passed_s(outcomes: Outcomes, place: int) -> tuple[list[int], list[float]]:
    """Return the offsets that committed readers got, ascending, and when one first got each or a higher one."""
    first: dict[int, float] = {}
    for read in outcomes.committed.reads:
        if read.partition == place:
            for offset, _ in read.records:
                first[offset] = min(read.at_s, first.get(offset, read.at_s))
    offsets = sorted(first)
    times = [*accumulate((first[offset] for offset in reversed(offsets)), min)][::-1]
    return offsets, times


def findings(outcomes: Outcomes) -> Iterator[Finding]:
    """Yield all findings."""
    for check in OF_COMMITTED:
        for name, text in check(outcomes.committed):
            yield NAMES.get(name, name), text
    for check in OF_UNCOMMITTED:
        for name, text in check(outcomes.uncommitted):
            if name not in ALLOWED_UNCOMMITTED:
                yield name, f"uncommitted {text}"
    yield from check_views(outcomes)
    yield from check_wholeness(outcomes)
    yield from check_answers(outcomes)
    yield from check_stability(outcomes)
    yield from check_consumption(outcomes)
    present = [one for one in outcomes.tried if outcomes.is_there(one)]
    yield from check_dependencies(outcomes.committed.truth, present)


def check_views(outcomes: Outcomes) -> Iterator[Finding]:
    """Check that a committed record has the same offset in both views."""
    for place, log in outcomes.committed.truth.items():
        raw = outcomes.uncommitted.truth.get(place, log)
        # The views were read one after the other, so one may have more records.
        end = max(raw, default=-1)
        for offset, record in log.items():
            if offset <= end and raw.get(offset) != record:
                text = f"p{place}@{offset}: {record}, and {raw.get(offset)} uncommitted"
                yield "inconsistent-offset", text


def check_wholeness(outcomes: Outcomes) -> Iterator[Finding]:
    """Check that each transaction is whole or absent, with its records in the order of writing in each partition."""
    for one in outcomes.tried:
        found = outcomes.found(one)
        missing = found.count(None)
        if 0 < missing < len(found):
            absent = [
                f"{record} p{place}"
                for place, record, _ in one.writes
                if place in outcomes.committed.truth
                and (place, record) not in outcomes.committed.places
            ]
            text = f"{one.name} ({one.outcome}): {missing} of {len(found)} missing: {', '.join(absent)}"
            yield "torn-transaction", text
        last: dict[int, tuple[int, str]] = {}
        for place, record, _ in one.writes:
            offset = outcomes.committed.places.get((place, record))
            if offset is None:
                continue
            if place in last and offset < last[place][0]:
                yield "reordered", f"p{place}@{offset}: {record} before {last[place][1]}"
            last[place] = offset, record


def check_answers(outcomes: Outcomes) -> Iterator[Finding]:
    """Check that a repeated request for the end of a transaction got the same outcome."""
    for one in outcomes.tried:
        if {one.outcome, one.again} == {Outcome.OK, Outcome.FAILED}:
            yield "two-answers", f"{one.name}: {one.outcome}, then {one.again}"


def check_stability(outcomes: Outcomes) -> Iterator[Finding]:
    """Check that committed readers finally reach the end of each log, when all transactions have timed out."""
    raw = {(f.partition, f.node): f for f in outcomes.uncommitted.finals}
    for final in outcomes.committed.finals:
        if not final.is_complete and _is_complete(raw.get((final.partition, final.node))):
            yield (
                "hanging-transaction",
                f"p{final.partition} on node {final.node}: readers of committed records stand at {final.end_offset}",
            )


def _is_complete(final: FinalRead | None) -> bool:
    return final is not None and final.is_complete


def check_consumption(outcomes: Outcomes) -> Iterator[Finding]:
    """Check that one committed transaction consumed each committed record, and that the group's offset is above all."""
    name = "not-exactly-once"
    moves: dict[int, list[tuple[int, int, TransactionTried]]] = {}
    for one in outcomes.tried:
        if outcomes.is_there(one):
            for place, start, end in one.moved:
                moves.setdefault(place, []).append((start, end, one))
    for place, found in moves.items():
        at = 0
        for start, end, one in sorted(found, key=lambda move: move[:2]):
            if start != at:
                yield (
                    name,
                    f"p{place}: {one.name} consumed from {start} on, the one before up to {at}",
                )
            yield from _consumed_all(outcomes, place, start, end, one)
            at = max(at, end)
    for position in outcomes.positions:
        end = max((end for _, end, _ in moves.get(position.place, [])), default=0)
        if (position.next_offset or 0) != end:
            told = f"node {position.node} says that the group goes on at {position.next_offset}"
            yield name, f"p{position.place}: {told}, and what was made of its records ends at {end}"


def _consumed_all(
    outcomes: Outcomes, place: int, start: int, end: int, one: TransactionTried
) -> Iterator[Finding]:
    if place not in outcomes.committed.truth:
        return
    truth = {o: r for o, r in outcomes.committed.truth[place].items() if start <= o < end}
    consumed = {offset: record for p, offset, record in one.consumed if p == place}
    for offset in sorted(truth.keys() | consumed.keys()):
        if truth.get(offset) != consumed.get(offset):
            yield (
                "not-exactly-once",
                f"p{place}@{offset}: {one.name} consumed {consumed.get(offset)}, and {truth.get(offset)} is there",
            )
