"""The durations of a measurement, and their report (pure)."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from random import Random

from milena.commands import output
from milena.fields import Json

KEPT_MAX = 1_000_000
"""Eight megabytes. Of more durations, a random sample of this size is kept, each with the same probability."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_BAR_WIDTH = 40


class Latencies:
    """Durations in ms. The maximum and the mean cover all of them, percentiles those that are kept."""

    def __init__(self, chance: Random, *, kept_max: int = KEPT_MAX) -> None:
        self._chance = chance
        self._kept_max = kept_max
        self._kept = array("d")
        self._sum_ms = 0.0
        self.count = 0
        self.max_ms = 0.0

    def add(self, ms: float) -> None:
        """Count one duration."""
        if self.count < self._kept_max:
            self._kept.append(ms)
        else:
            place = self._chance.randrange(self.count + 1)
            if place < self._kept_max:
                self._kept[place] = ms
        self.count += 1
        self._sum_ms += ms
        self.max_ms = max(self.max_ms, ms)

    def text(self, title: str) -> str:
        """Return a line of percentiles, and the number of durations within each bound."""
        if not self.count:
            return f"{title}: nothing was measured"
        ordered = sorted(self._kept)
        told = [f"p{p:g} {_percentile(ordered, p):.2f}" for p in PERCENTILES]
        line = f"{title} in ms: {', '.join(told)}, max {self.max_ms:.2f}, mean {self.mean_ms:.2f}"
        if self.count > len(ordered):
            line += f"\npercentiles of {len(ordered)} of {self.count}, taken by chance"
        return f"{line}\n\n{_histogram(ordered)}"

    def as_json(self) -> Json:
        """Return the same for programs."""
        ordered = sorted(self._kept)
        percentiles: dict[str, Json] = {
            f"p{p:g}": round(_percentile(ordered, p), 3) if ordered else None for p in PERCENTILES
        }
        buckets: list[Json] = [
            {"up_to_ms": bound, "count": count} for bound, count in _buckets(ordered)
        ]
        return {
            "count": self.count,
            "kept": len(ordered),
            "mean": round(self.mean_ms, 3),
            **percentiles,
            "max": round(self.max_ms, 3),
            "histogram": buckets,
        }

    @property
    def mean_ms(self) -> float:
        """The mean; 0 without durations."""
        return self._sum_ms / self.count if self.count else 0.0


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest duration that this percentage of all does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _buckets(ordered: Sequence[float]) -> list[tuple[int | None, int]]:
    """Return how many durations are above the bound before and not above this one; None: above all bounds."""
    found: list[tuple[int | None, int]] = []
    below = 0
    for bound in BOUNDS_MS:
        upto = bisect_right(ordered, bound)
        found.append((bound, upto - below))
        below = upto
    found.append((None, len(ordered) - below))
    return found


def _histogram(ordered: Sequence[float]) -> str:
    buckets = _buckets(ordered)
    used = [i for i, (_, count) in enumerate(buckets) if count]
    most = max(count for _, count in buckets)
    rows = [
        (
            f"<= {bound}" if bound is not None else f"> {BOUNDS_MS[-1]}",
            count,
            f"{100 * count / len(ordered):.1f} %",
            "#" * math.ceil(_BAR_WIDTH * count / most),
        )
        for bound, count in buckets[used[0] : used[-1] + 1]
    ]
    return output.table(("MS", "COUNT", "SHARE", ""), rows)
