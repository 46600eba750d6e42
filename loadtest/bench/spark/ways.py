"""Run several ways of doing the same operation in turns, in one warm session, and compare their times.

Other load on the machine affects all ways alike. So the ratio of two ways is taken in each round, and the median of the
ratios counts. CPU is that of all processes started here, including the node.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from loadtest.bench.measuring.process_cpu import tree_cpu_s

MILENA, JSON_LINES, PARQUET, RATE = "milena", "json lines", "parquet", "rate"
TUPLES_WAY = "tuples"
BARE = "bare python"
"""The name of a Python data source that does nothing: no other Python source can be faster."""

Way = Callable[[], int]
"""A function that does the operation once, and returns how many records it processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperation:
    """An operation that can be done in several ways; each must process ``records``.

    ``targets`` has, for other ways, how many times faster ``MILENA`` must be.
    """

    name: str
    ways: Mapping[str, Way]
    records: int
    targets: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One run of one way of one operation."""

    operation: str
    way: str
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkComparison:
    """Ours compared with another way: medians of the ratios of all rounds, above 1 if ours is faster."""

    operation: str
    other: str
    wall: float
    cpu: float | None
    target: float | None

    @property
    def is_met(self) -> bool:
        """Return whether the target is met, or there is none."""
        return self.target is None or self.wall >= self.target


def take_turns(operations: Sequence[MeasuredOperation], rounds: int) -> list[TimedRun]:
    """Run all ways of all operations, round by round. The first round warms the JVM up and does not count.

    Raises:
        click.ClickException: a way did not process exactly the expected records.
    """
    measured = []
    for number in range(rounds + 1):
        for operation in operations:
            for way, run in operation.ways.items():
                cpu_s, wall_s = tree_cpu_s(), time.perf_counter()
                found = run()
                wall_s, cpu_s = time.perf_counter() - wall_s, tree_cpu_s() - cpu_s
                if found != operation.records:
                    raise click.ClickException(f"{operation.name} of {way} found {found} records")
                if number:
                    measured.append(
                        TimedRun(operation=operation.name, way=way, wall_s=wall_s, cpu_s=cpu_s)
                    )
        click.echo(f"round {number} of {rounds}", err=True)
    return measured


def compare(
    operations: Sequence[MeasuredOperation], measured: Sequence[TimedRun]
) -> list[SparkComparison]:
    """Compare ours with each other way."""
    by_key: dict[tuple[str, str], list[TimedRun]] = {}
    for run in measured:
        by_key.setdefault((run.operation, run.way), []).append(run)
    comparisons = []
    for operation in operations:
        ours = by_key[operation.name, MILENA]
        for way in operation.ways:
            if way == MILENA:
                continue
            pairs = list(zip(ours, by_key[operation.name, way], strict=True))
            comparisons.append(
                SparkComparison(
                    operation=operation.name,
                    other=way,
                    wall=statistics.median(b.wall_s / a.wall_s for a, b in pairs),
                    cpu=statistics.median(b.cpu_s / max(a.cpu_s, 0.01) for a, b in pairs),
                    target=operation.targets.get(way),
                )
            )
    return comparisons


def runs_text(operations: Sequence[MeasuredOperation], measured: Sequence[TimedRun]) -> str:
    """Return a table with a line per operation and way."""
    lines = [f"{'':18}{'':15}{'wall s':>8}{'CPU s':>8}{'k rec/s':>9}{'k rec/CPU s':>13}"]
    for operation in operations:
        for way in operation.ways:
            runs = [r for r in measured if (r.operation, r.way) == (operation.name, way)]
            wall_s = statistics.median(run.wall_s for run in runs)
            cpu_s = statistics.median(run.cpu_s for run in runs)
            thousands = operation.records / 1000
            rates = f"{thousands / wall_s:>9.0f}{thousands / max(cpu_s, 0.01):>13.0f}"
            lines.append(f"{operation.name:18}{way:15}{wall_s:>8.2f}{cpu_s:>8.2f}{rates}")
    return "\n".join(lines)


def comparisons_text(comparisons: Sequence[SparkComparison]) -> str:
    """Return a table with a line per comparison, with its target and whether it is met."""
    lines = [f"{'times faster':18}{'than':15}{'wall':>8}{'CPU':>8}{'target':>9}"]
    for each in comparisons:
        cpu = "" if each.cpu is None else f"{each.cpu:.2f}"
        target = "" if each.target is None else f"{each.target:.2f}"
        end = "" if each.is_met else "  MISSED"
        lines.append(f"{each.operation:18}{each.other:15}{each.wall:>8.2f}{cpu:>8}{target:>9}{end}")
    return "\n".join(lines)
