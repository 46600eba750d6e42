"""Curves of a run: contenders that differ in one number only, and distributions of latencies (pure).

A point of a curve is a contender. The stage that measures them and the picture that shows them have their names from
here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.bench.measuring.samples import Quantity, Rounds, Spread

TURNS = "curves of rates"
"""A fact of the stage: it takes fewer and shorter turns than the others."""

Curve = Mapping[int, str]
"""Contenders by the number in which they differ."""

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
    """Units a second, ``unit``, over the number in which contenders differ. ``curves``: by their labels."""

    stage: str
    title: str
    across: str
    unit: str
    curves: Mapping[str, Curve]
    is_logarithmic: bool = False
    """True if the axis of the rate is logarithmic; else it starts at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPanel:
    """How long calls took, percentile by percentile. ``contenders``: by their labels."""

    stage: str
    title: str
    contenders: Mapping[str, str]


def points(rounds: Rounds, curve: Curve) -> dict[float, Spread]:
    """Rates of the contenders that were measured."""
    rates = {count: rounds.figures(name, Quantity.RATE) for count, name in curve.items()}
    return {count: Spread.of(values) for count, values in rates.items() if values}


def distribution(rounds: Rounds, contender: str) -> dict[float, Spread]:
    """By percentile, in ms; of those that every round could tell, without which medians of a tail could fall."""
    samples = [s for s in rounds.samples.get(contender, []) if s is not None]
    told = [set(sample.percentiles) for sample in samples]
    return {
        percent: Spread.of([sample.percentiles[percent] for sample in samples])
        for percent in (sorted(set.intersection(*told)) if told else ())
    }
