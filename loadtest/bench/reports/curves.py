"""Curves of a run: rates of contenders that differ in one number, and distributions of latencies (pure).

A point of a curve is a contender. The stage that measures the contenders and the plot that shows them both take their
names from this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from loadtest.bench.measuring.samples import Quantity, Rounds, Spread

TURNS = "curves of rates"
"""The name of the fact that the stage has fewer and shorter turns than others."""

Curve = Mapping[int, str]
"""The name of each contender, by the number in which the contenders differ."""

_RECORDS = (1, 10, 100, 1_000, 10_000)
JSON: Curve = {count: f"curve: JSON {count} x 100 B" for count in _RECORDS}
BATCHES: Curve = {count: f"curve: a batch of {count} x 100 B" for count in _RECORDS}
PARTITIONS: Curve = {count: f"curve: partitions: {count}" for count in (1, 3, 6, 12, 24)}
ONE_REPLICA: Curve = {count: f"curve: nodes: {count}, one replica" for count in (1, 3, 5)}
ALL_REPLICAS: Curve = {
    **{count: f"curve: nodes: {count}, a replica on each" for count in ONE_REPLICA},
    1: ONE_REPLICA[1],
}
READERS: Curve = {count: f"curve: readers: {count}" for count in (1, 2, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePanel:
    """A panel of rates, in ``unit`` per second, over the number in which contenders differ. ``curves`` is by label."""

    stage: ClassVar[str] = "curves"
    title: str
    across: str
    unit: str
    curves: Mapping[str, Curve]
    is_logarithmic: bool = False
    """True if the axis of the rate is logarithmic; else it starts at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPanel:
    """A panel of latencies over percentiles. ``contenders`` has the contender of each label."""

    stage: str
    title: str
    contenders: Mapping[str, str]


def points(rounds: Rounds, curve: Curve) -> dict[float, Spread]:
    """Return the rates of the curve's contenders that were measured, by their number."""
    rates = {count: rounds.figures(name, Quantity.RATE) for count, name in curve.items()}
    return {count: Spread.of(values) for count, values in rates.items() if values}


def distribution(rounds: Rounds, contender: str) -> dict[float, Spread]:
    """Return the latencies in ms by percentile, only for percentiles that every round has.

    With others, the median of p99.9 could be below that of p99, because it would be from fewer rounds.
    """
    samples = [s for s in rounds.samples.get(contender, []) if s is not None]
    told = [set(sample.percentiles) for sample in samples]
    return {
        percent: Spread.of([sample.percentiles[percent] for sample in samples])
        for percent in (sorted(set.intersection(*told)) if told else ())
    }
