"""Pictures of prices: surcharges, what they come of, and how long they took."""

from collections.abc import Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from spark_ext.jobs.running.picture import BAD, GOOD, Panel, day_number, series_by_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def price_panels(rows: Sequence[Any]) -> tuple[Panel, ...]:
    """Of rows of ``surcharges.surcharges_of``."""

    def surcharges(axis: "Axes") -> None:
        points = [
            (row.area, day_number(row.window_start), float(row.surcharge_percent)) for row in rows
        ]
        for name, (times, values) in series_by_name(points).items():
            axis.step(times, values, where="post", label=name)

    def market(axis: "Axes") -> None:
        starts = sorted({day_number(row.window_start) for row in rows})
        for kind, colour in (("demand", BAD), ("supply", GOOD)):
            sums = dict.fromkeys(starts, 0)
            for row in rows:
                sums[day_number(row.window_start)] += row[kind]
            axis.step(starts, list(sums.values()), where="post", color=colour, label=kind)

    def delays(axis: "Axes") -> None:
        times = [day_number(row.window_start) for row in rows]
        delays_s = [row.delay_ms / 1000 for row in rows]
        axis.plot(times, delays_s, "o", color=GOOD, markersize=3)
        for label, value in percentiles_s(delays_s).items():
            axis.axhline(value, color=BAD, linewidth=1, linestyle="--" if label == "p50" else "-",
                         label=f"{label}: {value:,.1f} s")  # fmt: skip

    return (
        Panel(title="Surcharge", unit="%", draw=surcharges),
        Panel(title="Demand and supply of all areas", unit="in a window", draw=market),
        Panel(title="From the latest event of a window to its price", unit="seconds", draw=delays),
    )


def percentiles_s(delays_s: Sequence[float]) -> dict[str, float]:
    """Half of the prices took no longer than p50, all but one of a hundred than p99; nothing of fewer than two."""
    if len(delays_s) < 2:
        return {}
    cuts = quantiles(delays_s, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}
