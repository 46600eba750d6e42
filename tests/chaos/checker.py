"""Check a history of a run: pure functions over its events.

``log_checks`` checks all logs. ``transaction_checks`` also checks the logs of transactions.

    python -m tests.chaos.checker RUN/history.jsonl
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.chaos.availability import judge_availability
from tests.chaos.history import Event, Goals, Meta, View, load
from tests.chaos.log_checks import (
    Evidence,
    Finding,
    arrange,
    check_density,
    check_duplicates,
    check_key_order,
    check_losses,
    check_offsets,
    check_pages,
    check_real_time_order,
    check_replicas,
    unread,
)
from tests.chaos.report import Report
from tests.chaos.transaction_checks import judge_transactions

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    check_replicas,
    check_duplicates,
    check_pages,
    check_offsets,
    check_losses,
    check_key_order,
    check_real_time_order,
    check_density,
)


def check(events: Iterable[Event]) -> Report:
    """Check a history; return the report."""
    every = list(events)
    meta = next((e for e in every if isinstance(e, Meta)), None)
    goals = meta.goals if meta else Goals()
    evidence = arrange(every)
    report = Report(acknowledged=len(evidence.acknowledged), is_read_back=not evidence.unread)
    report.missed += unread(evidence)
    for run_check in CHECKS:
        for name, text in run_check(evidence):
            report.found[name].append(text)
    for name, is_grave in (
        ("duplicate", meta is not None and meta.is_idempotent),
        ("aborted-visible", goals.is_strict),
        ("offset-gap", goals.is_contiguous),
    ):
        if is_grave:
            report.promoted.add(name)
    # Use only writers without transactions, because the goals are for these.
    plain = [e for e in every if getattr(e, "view", View.PLAIN) is View.PLAIN]
    judge_availability(report, plain, meta, goals)
    judge_transactions(report, every)
    return report


def main() -> int:
    """Check the history in the file of the command line."""
    with Path(sys.argv[1]).open() as lines:
        report = check(load(lines))
    print(*report.lines(), sep="\n")
    return report.verdict


if __name__ == "__main__":
    sys.exit(main())
