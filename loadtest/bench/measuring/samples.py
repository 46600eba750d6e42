"""Figures of one round, and of many together (pure).

Where other programs share the machine, a figure of one moment says little, and so do the medians of two figures that
were taken at different times. What says something is the ratio of two figures taken one right after the other. So
contenders take turns, each round gives one ratio, and the median of the rounds' ratios is the result; its spread is
that from the least to the greatest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from statistics import median


@unique
class Quantity(StrEnum):
    """Quantities that a figure may count."""

    RATE = "units/s"
    """Records, requests or megabytes, as the contender says."""
    P50 = "p50 ms"
    P99 = "p99 ms"
    CPU = "CPU %"
    """Percent of one core."""
    MEMORY = "MB"
    SECONDS = "s"
    GROWTH = "growth %"


PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9)
"""Where a distribution of latencies is told: as densely at its ends as a picture of them needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn of one contender.

    ``client_cpu`` is the part of a core that the client took, ``servers_cpu`` what all servers took together.
    ``percentiles``: ms within which so many percent of the calls were answered.
    """

    figures: Mapping[Quantity, float]
    percentiles: Mapping[float, float] = field(default_factory=dict)
    client_cpu: float = 0.0
    servers_cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of several values, and how far they lie apart."""

    median: float
    least: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one or more values."""
        return cls(
            median=median(values), least=min(values), greatest=max(values), count=len(values)
        )


@dataclass(slots=True)
class Rounds:
    """The samples of contenders that took turns; None where a turn failed, and why it did."""

    samples: dict[str, list[Sample | None]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    reduced: dict[str, str] = field(default_factory=dict)
    """Contenders that had less to do than their rows say, and how much."""
    foreign_cpu: float = 0.0
    """The CPU use of unmeasured programs in the worst turn, in cores."""
    facts: dict[str, str] = field(default_factory=dict)
    """Other facts that a reader of the figures should know."""

    def note(self, contender: str, sample: Sample | None) -> None:
        """Add a turn."""
        self.samples.setdefault(contender, []).append(sample)

    def figures(self, contender: str, quantity: Quantity) -> list[float]:
        """A contender's figures, failed turns left out."""
        return [
            sample.figures[quantity]
            for sample in self.samples.get(contender, [])
            if sample is not None and quantity in sample.figures
        ]

    def ratios(self, subject: str, reference: str, quantity: Quantity) -> list[float]:
        """One ratio a round in which both had a figure."""
        pairs = zip(self.samples.get(subject, []), self.samples.get(reference, []), strict=False)
        return [
            ours.figures[quantity] / theirs.figures[quantity]
            for ours, theirs in pairs
            if ours is not None
            and theirs is not None
            and quantity in ours.figures
            and theirs.figures.get(quantity)
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent of all do not exceed (nearest rank)."""
    ranked = sorted(values)
    place = -(-len(ranked) * percent // 100)
    return ranked[max(0, int(place) - 1)]


def sample_of(
    latencies_s: Sequence[float],
    *,
    units: float,
    seconds: float,
    client_cpu_s: float,
    servers_cpu_s: float,
) -> Sample:
    """A sample of calls that took so long each, and carried so many units together."""
    ranked = sorted(latencies_s)
    return Sample(
        figures={
            Quantity.RATE: units / seconds,
            Quantity.P50: 1000 * percentile(ranked, 50),
            Quantity.P99: 1000 * percentile(ranked, 99),
        },
        percentiles={
            percent: 1000 * percentile(ranked, percent)
            for percent in PERCENTS
            # One that no call exceeds is the slowest call by another name: p99.9 needs a thousand of them.
            if round(len(ranked) * (100 - percent) / 100, 6) >= 1
        },
        client_cpu=client_cpu_s / seconds,
        servers_cpu=servers_cpu_s / seconds,
    )
