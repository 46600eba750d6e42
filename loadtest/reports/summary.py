"""Summarize a run, as a table for people and as JSON for programs (pure)."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from loadtest.judging.verdict import Anomaly, Verdict
from loadtest.reports.timeline import Direction, EndpointReport, Gap, Timeline

REASONS_MAX = 8
CLIENT_BUSY = 0.8
"""If users use more than this share of their cores, they are the limit, and rates and latencies are not the cluster's.
"""
MEASURES = (
    "A write takes from its first attempt to its acknowledgement, repetitions included; a long poll waits for records. "
    "Users wait for each answer, so a pause of the cluster shows as a gap and not as many slow requests."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of a run: its settings, its figures, and its faults."""

    settings: Mapping[str, str | int | float]
    verdict: Verdict
    timeline: Timeline
    planted: str
    """The fault that was planted for the judge to find; empty if there is none."""

    @property
    def headline(self) -> str:
        """Return the verdict in one sentence."""
        verdict = self.verdict
        if verdict.faults:
            return f"FAILED: {verdict.faults:,} faults among {verdict.acknowledged:,} acknowledged records."
        if not verdict.is_conclusive:
            reason = verdict.unread[0] if verdict.unread else "nothing was acknowledged"
            return f"NOT JUDGED: {reason}."
        unsafe = {anomaly: n for anomaly, n in verdict.found.items() if n}
        if unsafe:
            counted = ", ".join(f"{count:,} {anomaly}" for anomaly, count in unsafe.items())
            return f"{verdict.acknowledged:,} records were acknowledged; no promise was broken ({counted})."
        return (
            f"All {verdict.acknowledged:,} acknowledged records are there, once, in order, "
            "as they were written."
        )

    @property
    def gap_after_kill(self) -> tuple[int, Gap] | None:
        """Return the partition that waited longest for a new leader, and its gap; None if no node was killed."""
        incidents = self.timeline.incidents()
        return self.timeline.gap_after(incidents[0][0]) if incidents else None

    @property
    def warning(self) -> str:
        """Return why the figures do not describe the cluster; empty if nothing suggests that."""
        cores = self.timeline.cores_of_users()
        if not cores or sum(cores) <= CLIENT_BUSY * len(cores):
            return ""
        return (
            f"WARNING: the client is what was measured: users' processes took {sum(cores) / len(cores):.0%} of their "
            "cores, so latencies and rates tell of them more than of the cluster. Take fewer users (--users), or more "
            "processes (-- --processes N) where there are cores for them."
        )

    def lines(self) -> list[str]:
        """Return a short table for a terminal."""
        lines = [f"  {name:<28} {text}" for name, text in self._rows()] + [
            f"  FAULT {anomaly}: {count:,}, as {self.verdict.examples[anomaly][0]}"
            for anomaly, count in self._faults()
        ]
        return [*lines, f"  {self.warning}"] if self.warning else lines

    def _rows(self) -> Iterator[tuple[str, str]]:
        verdict = self.verdict
        for direction in Direction:
            reports = [r for r in self.timeline.endpoints() if r.direction is direction]
            yield f"{direction}", self._rates(reports)
        for report in self.timeline.endpoints():
            p50, p99 = report.latency_ms[50.0], report.latency_ms[99.0]
            yield (
                f"{report.name}, ms",
                f"p50 {_number(p50)}, p99 {_number(p99)}, longest gap {report.gap.seconds:.2f} s",
            )
        gaps = self.timeline.partition_gaps()
        if gaps:
            worst = max(gaps, key=lambda partition: gaps[partition].seconds)
            gap = gaps[worst]
            text = f"{gap.seconds:.2f} s (partition {worst}, {gap.at_s:.1f} s into the run)"
            yield "longest gap of a partition", text
        for at_s, text in self.timeline.incidents():
            yield f"at {at_s:.1f} s", text
        after = self.gap_after_kill
        if after is not None:
            yield "longest gap after the kill", f"{after[1].seconds:.2f} s (partition {after[0]})"
        yield "acknowledged", f"{verdict.acknowledged:,} records"
        yield (
            "refused / not known",
            f"{verdict.refused:,} / {verdict.unknown:,} ({verdict.unknown_found:,} of them there)",
        )
        yield "read back / by readers", f"{verdict.read:,} / {verdict.polled:,} records"
        cores = self.timeline.cores_of_users()
        if cores:
            yield "users' CPU", f"{sum(cores):.2f} cores, processes: {len(cores)}"
        if self.planted:
            yield "planted", self.planted

    def _rates(self, reports: Sequence[EndpointReport]) -> str:
        seconds = max(self.timeline.seconds, 1e-9)
        requests = sum(r.requests for r in reports)
        records = sum(r.records for r in reports)
        megabytes = sum(r.value_bytes for r in reports) / 1e6
        failed = sum(r.failed_attempts for r in reports)
        return (
            f"{requests / seconds:,.0f} requests/s, {records / seconds:,.0f} records/s, "
            f"{megabytes / seconds:.1f} MB/s; {failed:,} attempts failed"
        )

    def _faults(self) -> list[tuple[Anomaly, int]]:
        found = self.verdict.found
        return [
            (anomaly, found[anomaly])
            for anomaly in Anomaly
            if found.get(anomaly) and anomaly.is_fault
        ]

    def markdown(self, plots: Sequence[str]) -> str:
        """Return the whole report; ``plots`` has the names of the plots' files beside it."""
        parts = ["# Load test", self.headline]
        parts += [self.warning] if self.warning else []
        parts += [f"![{name}]({name})" for name in plots]
        parts += [_table(("what", "figure"), self._rows())]
        parts += ["## Endpoints", self._endpoint_table()]
        parts += [MEASURES]
        parts += ["## Longest time without an acknowledged write, by partition", self._gap_table()]
        parts += ["## Judgement", *self._judgement()]
        failures = self.timeline.failures()
        if failures:
            rows = [(f"{n:,}", endpoint, reason) for n, endpoint, reason in failures[:REASONS_MAX]]
            parts += ["## Failed attempts", _table(("times", "endpoint", "reason"), rows)]
        parts += [
            "## Settings",
            _table(("setting", "value"), ((k, str(v)) for k, v in self.settings.items())),
        ]
        return "\n\n".join(parts) + "\n"

    def _endpoint_table(self) -> str:
        header = ("endpoint", "requests", "records", "failed attempts", "p50 ms", "p95 ms", "p99 ms",
                  "longest ms", "longest gap")  # fmt: skip
        rows = (
            (
                report.name,
                f"{report.requests:,}",
                f"{report.records:,}",
                f"{report.failed_attempts:,}",
                *(_number(report.latency_ms[p]) for p in (50.0, 95.0, 99.0, 100.0)),
                f"{report.gap.seconds:.2f} s at {report.gap.at_s:.1f} s",
            )
            for report in self.timeline.endpoints()
        )
        return _table(header, rows)

    def _gap_table(self) -> str:
        rows = (
            (str(partition), f"{gap.seconds:.2f} s", f"{gap.at_s:.1f} s")
            for partition, gap in self.timeline.partition_gaps().items()
        )
        return _table(("partition", "gap", "began at"), rows)

    def _judgement(self) -> Iterator[str]:
        verdict = self.verdict
        found = [(str(a), f"{verdict.found.get(a, 0):,}") for a in Anomaly]
        yield _table(("anomaly", "count"), found)
        for anomaly, texts in verdict.examples.items():
            yield f"{anomaly}:\n\n" + "\n".join(f"- {text}" for text in texts)
        if verdict.unread:
            yield "Not judged:\n\n" + "\n".join(f"- {text}" for text in verdict.unread)

    def as_json(self) -> str:
        """Return the contents of the report as JSON."""
        verdict, after = asdict(self.verdict), self.gap_after_kill
        document = {
            "headline": self.headline,
            "is_good": self.verdict.is_conclusive and not self.verdict.faults,
            "warning": self.warning,
            "cores_of_users": self.timeline.cores_of_users(),
            "planted": self.planted,
            "settings": dict(self.settings),
            "seconds": self.timeline.seconds,
            "verdict": {
                **verdict,
                "faults": self.verdict.faults,
                "found": {str(a): self.verdict.found.get(a, 0) for a in Anomaly},
            },
            "endpoints": [
                {
                    **asdict(r),
                    "latency_ms": {f"p{p:g}": _finite(v) for p, v in r.latency_ms.items()},
                }
                for r in self.timeline.endpoints()
            ],
            "partition_gaps": {
                str(p): asdict(gap) for p, gap in self.timeline.partition_gaps().items()
            },
            "gap_after_kill_s": after[1].seconds if after else None,
            "incidents": [{"at_s": at, "text": text} for at, text in self.timeline.incidents()],
            "failed_attempts": [
                {"times": n, "endpoint": endpoint, "reason": reason}
                for n, endpoint, reason in self.timeline.failures()
            ],
        }
        return json.dumps(document, indent=2) + "\n"


def _table(header: Sequence[str], rows: "Iterator[Sequence[str]] | Sequence[Sequence[str]]") -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _number(value: float) -> str:
    """Return a number with three significant digits; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
