"""The figures of one turn, and statistics over many rounds (pure).

On a machine that other programs also use, a single figure says little. So do the medians of two figures that were taken
at different times. The ratio of two figures that were taken right after each other says something. So contenders take
turns. Each round gives one ratio, and the result is the median of the ratios. The spread goes from the least ratio to
the greatest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from statistics import median


@unique
class Quantity(StrEnum):
    """Quantities that a figure may count."""

    RATE = "units/s"
    """Records, requests or megabytes per second; each contender defines its unit."""
    P50 = "p50 ms"
    P99 = "p99 ms"
    CPU = "CPU %"
    """Percent of one core."""
    CPU_PER_UNIT = "us CPU/unit"
    """Microseconds of the servers' processor for each unit."""
    MEMORY = "MB"
    SECONDS = "s"
    GROWTH = "growth %"


PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9)
"""The percentiles of a latency curve, densest at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The figures of one turn of one contender.

    ``client_cpu`` is the client's CPU use in cores, ``servers_cpu`` that of all servers together. ``percentiles`` has
    latencies in ms by percentile.
    """

    figures: Mapping[Quantity, float]
    percentiles: Mapping[float, float] = field(default_factory=dict)
    client_cpu: float = 0.0
    servers_cpu: float = 0.0

    def figure(self, quantity: Quantity) -> float | None:
        """Return a figure; None if the turn has none of this quantity."""
        if quantity is Quantity.CPU_PER_UNIT:
            rate = self.figures.get(Quantity.RATE)
            return 1e6 * self.servers_cpu / rate if rate else None
        return self.figures.get(quantity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of several values, and the least and the greatest."""

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
    """The samples of contenders that took turns. A failed turn is None, and ``failures`` has its reason."""

    samples: dict[str, list[Sample | None]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    reduced: dict[str, str] = field(default_factory=dict)
    """Contenders that did less work than their rows say, and how much less."""
    foreign_cpu: float = 0.0
    """The CPU use of unmeasured programs in the worst turn, in cores."""
    facts: dict[str, str] = field(default_factory=dict)
    """Other facts that a reader of the figures should know."""

    def note(self, contender: str, sample: Sample | None) -> None:
        """Add the sample of a turn; None if the turn failed."""
        self.samples.setdefault(contender, []).append(sample)

    def figures(self, contender: str, quantity: Quantity) -> list[float]:
        """Return a contender's figures of one quantity, without failed turns."""
        return [
            figure
            for sample in self.samples.get(contender, [])
            if sample is not None and (figure := sample.figure(quantity)) is not None
        ]

    def ratios(self, subject: str, reference: str, quantity: Quantity) -> list[float]:
        """Return the subject's figure over the reference's, for each round in which both have one."""
        pairs = zip(self.samples.get(subject, []), self.samples.get(reference, []), strict=False)
        return [
            figure / base
            for ours, theirs in pairs
            if ours is not None
            and theirs is not None
            and (figure := ours.figure(quantity)) is not None
            and (base := theirs.figure(quantity))
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that is not below ``percent`` percent of all values (nearest rank)."""
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
    """Return the sample of a turn whose calls had these latencies and carried ``units`` together."""
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
            # Skip a percentile that no call exceeds, because it equals the slowest call: p99.9 needs a thousand calls.
            if round(len(ranked) * (100 - percent) / 100, 6) >= 1
        },
        client_cpu=client_cpu_s / seconds,
        servers_cpu=servers_cpu_s / seconds,
    )
