"""Compute from a history how long writes failed, and other times; compare them with the goals."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.history import (
    Ended,
    Event,
    Fault,
    Goals,
    Heal,
    Meta,
    Outcome,
    Phase,
    Read,
    Started,
    Write,
)
from tests.chaos.report import Report

BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time between the start and the end of the workload, and the writes in it."""

    start_s: float
    end_s: float
    writes: tuple[Write, ...]
    good: tuple[Write, ...]
    acknowledged_s: dict[int, list[float]]
    """The times of acknowledgements by partition, ascending."""

    @property
    def success_share(self) -> float:
        """Return the share of acknowledged writes."""
        return len(self.good) / max(1, len(self.writes))


def window_of(events: Sequence[Event]) -> Window | None:
    """Return the window of the run; None if the run never ended, or nothing was written."""
    end_s = next((e.at_s for e in events if isinstance(e, Ended)), None)
    start_s = next((e.at_s for e in events if isinstance(e, Started)), 0.0)
    if end_s is None:
        return None
    writes = tuple(
        e
        for e in events
        if isinstance(e, Write) and e.sent_s < end_s and not e.record.startswith("final")
    )
    good = tuple(w for w in writes if w.outcome is Outcome.OK)
    times: dict[int, list[float]] = {w.partition: [] for w in writes}
    for write in sorted(good, key=lambda w: w.at_s):
        times[write.partition].append(min(write.at_s, end_s))
    return Window(
        start_s=start_s, end_s=end_s, writes=writes, good=good, acknowledged_s=times
    ) if writes else None  # fmt: skip


def longest_gap(times: Iterable[float]) -> tuple[float, float]:
    """Return the longest time between two neighbours, and when it started."""
    return max(((b - a, a) for a, b in pairwise(times)), default=(0.0, 0.0))


def gaps_after_faults(window: Window, faults: Sequence[Fault]) -> dict[str, list[float]]:
    """Return the longest gap of the faulted partition between each fault and the next one, by kind of fault."""
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    next_began = [*(fault.began_s for fault in faults[1:]), window.end_s]
    for fault, following_s in zip(faults, next_began, strict=False):
        # A rolling restart may last longer than the workload.
        stop_s = min(max(following_s, fault.at_s), window.end_s)
        times = window.acknowledged_s.get(fault.partition, [])
        inside = [t for t in times if fault.began_s < t <= stop_s]
        gap, _ = longest_gap([fault.began_s, *inside, stop_s])
        gaps[f"{fault.operation} {fault.target}"].append(gap)
    return gaps


def waits_after_heals(
    window: Window, heals: Sequence[Heal], faults: Sequence[Fault] = ()
) -> list[float]:
    """Return the time from each heal to the first acknowledgement of a write sent after it, per partition.

    If the next fault comes before that acknowledgement, the wait counts until the fault.
    """
    waits = []
    for heal in heals:
        next_fault_s = min((f.began_s for f in faults if f.began_s > heal.at_s), default=math.inf)
        for partition in window.acknowledged_s:
            answered = (
                w.at_s for w in window.good if w.partition == partition and w.sent_s >= heal.at_s
            )
            until_s = min(min(answered, default=math.inf), next_fault_s)
            if until_s < math.inf:
                waits.append(until_s - heal.at_s)
    return waits


def judge_availability(
    report: Report, events: Sequence[Event], meta: Meta | None, goals: Goals
) -> None:
    """Add the figures, and the missed goals, to the report."""
    window = window_of(events)
    if window is None:
        return
    faults = [e for e in events if isinstance(e, Fault)]
    heals = [e for e in events if isinstance(e, Heal)]
    gaps = gaps_after_faults(window, faults)
    waits = waits_after_heals(window, heals, faults)
    report.figures += _write_figures(window)
    report.figures += _latency_figures(window, events)
    for name, values in gaps.items():
        text = f"n={len(values)}, median {statistics.median(values):.2f} s, max {max(values):.2f} s"
        report.figures.append((f"longest gap after {name}", text))
    crashed = [f"node {n} (exit {code})" for heal in heals for n, code in heal.crashed.items()]
    if crashed:
        report.figures.append(("exited on their own", f"{len(crashed)}: {', '.join(crashed[:5])}"))
    if waits:
        text = f"median {statistics.median(waits):.2f} s, max {max(waits):.2f} s"
        report.figures.append(("after heal, each partition", text))
    has_quorum = meta is None or meta.has_quorum
    worst = max((gap for values in gaps.values() for gap in values), default=0.0)
    if has_quorum and goals.recovery_s is not None and worst > goals.recovery_s:
        report.missed.append(
            f"a write gap of {worst:.2f} s after a fault, goal {goals.recovery_s} s"
        )
    if goals.after_heal_s is not None and max(waits, default=0.0) > goals.after_heal_s:
        report.missed.append(
            f"{max(waits):.2f} s without writes after a heal, goal {goals.after_heal_s} s"
        )
    if window.success_share < goals.success_share:
        report.missed.append(
            f"{window.success_share:.1%} succeeded, goal {goals.success_share:.1%}"
        )


def _write_figures(window: Window) -> list[tuple[str, str]]:
    counts = {o: sum(w.outcome is o for w in window.writes) for o in Outcome}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    gap, began_s, partition = max(
        (*longest_gap([window.start_s, *times, window.end_s]), partition)
        for partition, times in window.acknowledged_s.items()
    )
    step_s = max(1, int((window.end_s - window.start_s) / COLUMNS))
    per_step = _histogram(window, step_s)
    bars = "".join(BARS[round(8 * count / max(1, *per_step))] for count in per_step)
    return [
        ("writes", f"{len(window.writes)}: {told} ({window.success_share:.1%} ok)"),
        ("longest write gap", f"{gap:.2f} s (partition {partition}, from {began_s:.1f} s)"),
        (f"writes per {step_s} s over time", bars),
    ]


def _histogram(window: Window, step_s: int) -> list[int]:
    counts = [0] * (int((window.end_s - window.start_s) / step_s) + 1)
    for write in window.good:
        counts[min(len(counts) - 1, max(0, int((write.at_s - window.start_s) / step_s)))] += 1
    return counts


def _latency_figures(window: Window, events: Sequence[Event]) -> list[tuple[str, str]]:
    figures = []
    latencies = sorted(w.at_s - w.sent_s for w in window.good)
    if latencies:
        p50, p99 = quantile(latencies, 0.5) * 1e3, quantile(latencies, 0.99) * 1e3
        text = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {latencies[-1]:.2f} s"
        figures.append(("write latency", text))
    first_read: dict[str, float] = {}
    for event in events:
        if isinstance(event, Read) and event.phase is Phase.RUN:
            for _, record in event.records:
                first_read.setdefault(record, event.at_s)
    lags = sorted(
        max(0.0, first_read[w.record] - w.at_s) for w in window.good if w.record in first_read
    )
    if lags:
        p50, p99 = quantile(lags, 0.5) * 1e3, quantile(lags, 0.99) * 1e3
        figures.append(("acknowledged to first read", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"))
    return figures


def quantile(rising: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values are."""
    return rising[min(len(rising) - 1, int(share * len(rising)))]
