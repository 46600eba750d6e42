"""Plot prices: surcharges, the demand and supply behind them, and their delays."""

from collections.abc import Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from examples.picture import (
    BAD,
    COLOURS,
    GOOD,
    Panel,
    Window,
    day_number,
    draw_windows,
    labels_of,
    series_by_name,
    window_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def price_panels(rows: Sequence[Any]) -> tuple[Panel, ...]:
    """Return the panels for rows of ``surcharges.surcharges_of``."""

    def surcharges(axis: "Axes") -> None:
        found = series_by_name((row.area, window_of(row, row.surcharge_percent)) for row in rows)
        labels = labels_of(found)
        for colour, (name, windows) in zip(COLOURS, found.items(), strict=False):
            draw_windows(axis, windows, color=colour, label=labels[name])

    def market(axis: "Axes") -> None:
        for kind, colour in (("demand", BAD), ("supply", GOOD)):
            sums: dict[tuple[float, float], float] = {}
            for row in rows:
                window = window_of(row, row[kind])
                place = (window.start, window.end)
                sums[place] = sums.get(place, 0.0) + window.value
            windows = (Window(*place, value) for place, value in sums.items())
            draw_windows(axis, windows, color=colour, label=kind)

    def delays(axis: "Axes") -> None:
        times = [day_number(row.window_start) for row in rows]
        delays_s = [row.delay_ms / 1000 for row in rows]
        axis.plot(times, delays_s, "o", color=GOOD, markersize=3)
        for label, value in percentiles_s(delays_s).items():
            axis.axhline(value, color=BAD, linewidth=1, linestyle="--" if label == "p50" else "-",
                         label=f"{label}: {value:,.1f} s")  # fmt: skip

    return (
        Panel(title="Surcharge", unit="%", draw=surcharges),
        Panel(
            title="Demand and supply of all areas", unit="in a window", draw=market, is_count=True
        ),
        Panel(title="From the latest event of a window to its price", unit="seconds", draw=delays),
    )


def percentiles_s(delays_s: Sequence[float]) -> dict[str, float]:
    """Return the delays' p50 and p99 in s; nothing for fewer than two delays."""
    if len(delays_s) < 2:
        return {}
    cuts = quantiles(delays_s, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}
