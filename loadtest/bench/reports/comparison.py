"""Compare the rounds of two trees in a row: the same, better or worse (pure).

Each round gives one ratio: the new tree's figure over the base's. They are measured one right after the other, by
nodes that were started for the round. So differences between two starts of the same program count as noise, too.

A row is worse (better) when both hold:

- The median of its ratios lies more than the tolerance on the worse (better) side of 1. Less is of no interest.
- The interval that has the true median with ``CONFIDENCE`` lies on that side of 1 as a whole. So it is hardly noise.

The interval's ends are order statistics, by the sign test: the k+1 least of n ratios all lie above the true median as
often as n tosses of a coin show k heads or fewer. This assumes nothing about the distribution of noise. With fewer than
eight ratios, even the least and the greatest do not have that confidence, but they are used all the same. With five,
six in a hundred rows whose noise exceeds the tolerance come out as worse or better by chance.

Source: J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, theorem 2.1 (the interval); A.
Georges, D. Buytaert and L. Eeckhout, Statistically Rigorous Java Performance Evaluation, OOPSLA 2007 (intervals rather
than best runs, of newly started processes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, unique
from math import comb
from statistics import median

from loadtest.bench.measuring.samples import Rounds, Spread
from loadtest.bench.reports.report import Machine, Tree, number, stage_figures
from loadtest.bench.targets import Target
from milena.commands import output

TOLERANCE = 0.05
"""The default tolerance."""
CONFIDENCE = 0.99
ROUNDS_MIN = 5
"""The fewest rounds: with fewer, all ratios would lie on one side by chance too often."""


@unique
class RowVerdict(StrEnum):
    """The verdict on a row."""

    SAME = "same"
    BETTER = "better"
    WORSE = "WORSE"
    ABSENT = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of both trees; ``interval`` has the median of the ratios and the ends of its confidence interval."""

    target: Target
    change: RowVerdict
    interval: Spread | None = None
    old: float | None = None
    new: float | None = None
    note: str = ""


def base_name(contender: str) -> str:
    """Return the name of the base's contender beside the new tree's."""
    return f"{contender}, base"


def compare(target: Target, rounds: Rounds, tolerance: float = TOLERANCE) -> ComparedRow:
    """Return the verdict on one row, from the ratios of its rounds."""
    name, quantity = target.subject, target.quantity
    ratios = rounds.ratios(name, base_name(name), quantity)
    if not ratios:
        note = rounds.failures.get(name, "")
        return ComparedRow(target=target, change=RowVerdict.ABSENT, note=note)
    interval = interval_of(ratios)
    return ComparedRow(
        target=target,
        change=change_of(interval, tolerance, is_less_better=target.is_less_better),
        interval=interval,
        old=median(rounds.figures(base_name(name), quantity)),
        new=median(rounds.figures(name, quantity)),
    )


def interval_of(ratios: Sequence[float]) -> Spread:
    """Return the narrowest interval between order statistics that has ``CONFIDENCE``; else the widest."""
    ranked = sorted(ratios)
    count = len(ranked)
    left_out = 0
    while _miss(count, left_out + 1) <= 1 - CONFIDENCE:
        left_out += 1
    return Spread(
        median=median(ranked),
        least=ranked[left_out],
        greatest=ranked[count - 1 - left_out],
        count=count,
    )


def _miss(count: int, left_out: int) -> float:
    """Return the probability that the true median is outside the interval without ``left_out`` ratios at each end."""
    return sum(comb(count, heads) for heads in range(left_out + 1)) / (1 << count - 1)


def change_of(interval: Spread, tolerance: float, *, is_less_better: bool) -> RowVerdict:
    """Return the verdict by the rule in the module's docstring."""
    if interval.median > 1 + tolerance and interval.least > 1:
        return RowVerdict.WORSE if is_less_better else RowVerdict.BETTER
    if interval.median < 1 - tolerance and interval.greatest < 1:
        return RowVerdict.BETTER if is_less_better else RowVerdict.WORSE
    return RowVerdict.SAME


def exit_code(comparisons: Sequence[ComparedRow]) -> int:
    """Return 1 if a row is worse, 2 if nothing was measured, else 0."""
    changes = {comparison.change for comparison in comparisons}
    if RowVerdict.WORSE in changes:
        return 1
    return 2 if changes <= {RowVerdict.ABSENT} else 0


def table(comparisons: Sequence[ComparedRow]) -> str:
    """Return a table with one line per row; the line says whether higher or lower ratios are better."""
    lines = []
    for row in comparisons:
        ratio, ends, both = "-", "-", ""
        if row.interval is not None:
            ratio = f"{row.interval.median:.3f}"
            ends = f"{row.interval.least:.3f} .. {row.interval.greatest:.3f}"
            both = f"{number(row.new)} / {number(row.old)} {row.target.quantity.value}"
        better = "below 1" if row.target.is_less_better else "above 1"
        names = (row.target.name, row.target.subject)
        lines.append((*names, ratio, ends, better, row.change.value, both))
    head = ("ROW", "OF", "NEW / BASE", "INTERVAL", "BETTER", "", "FIGURES")
    notes = [f"{row.target.name}: {row.note}" for row in comparisons if row.note]
    return "\n".join([output.table(head, lines), *([""] if notes else []), *notes])


def figures(
    comparisons: Sequence[ComparedRow], stages: Mapping[str, Rounds], machine: Machine
) -> dict[str, Tree]:
    """Return all results for JSON."""
    return {
        "machine": asdict(machine),
        "rows": [asdict(comparison) for comparison in comparisons],
        "stages": {name: stage_figures(rounds) for name, rounds in stages.items()},
    }
