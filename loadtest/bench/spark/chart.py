"""Plot a run: how many times faster ours is than other ways, the targets, and the delays of records."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.bench.measuring.samples import percentile
from loadtest.bench.spark.ways import SparkComparison

DPI = 120
GOOD, MISSED, SHOWN = "#2a9d5c", "#b2182b", "#888888"
_TITLE_COLUMNS = 110


def draw_spark(
    comparisons: Sequence[SparkComparison], delays_ms: Sequence[float], path: Path, *, title: str
) -> None:
    """Draw the ratios above, and the delays below."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(10, 3.6 + 0.34 * len(comparisons)), layout="constrained")
        ratios = [0.34 * len(comparisons) + 0.6, 2.4]
        above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": ratios})
        _draw_ratios(above, comparisons)
        _draw_delays(below, delays_ms)
        figure.suptitle(
            fill(title, _TITLE_COLUMNS), x=0.01, ha="left", fontsize=10, fontweight="bold"
        )
        figure.savefig(path, dpi=DPI)


def _draw_ratios(axis: Axes, comparisons: Sequence[SparkComparison]) -> None:
    for place, each in enumerate(comparisons):
        colour = SHOWN if each.target is None else GOOD if each.is_met else MISSED
        axis.barh(place, each.wall, color=colour, height=0.6)
        axis.annotate(f"{each.wall:.2f}", (each.wall, place), xytext=(4, 0),
                      textcoords="offset points", va="center")  # fmt: skip
        if each.target is not None:
            axis.plot(each.target, place, "|", color="#222222", markersize=14)
    axis.set_yticks(range(len(comparisons)), [f"{c.operation} : {c.other}" for c in comparisons])
    axis.set_ylim(len(comparisons) - 0.4, -0.6)
    axis.axvline(1, color="#dddddd", linewidth=1, zorder=0)
    axis.set_xlabel("times as fast as the other way; the mark is the target")


def _draw_delays(axis: Axes, delays_ms: Sequence[float]) -> None:
    axis.set_xlabel("ms from the append of a record to its reader behind the sink")
    axis.set_ylabel("% of records")
    if not delays_ms:
        return
    ranked = sorted(delays_ms)
    axis.plot(ranked, [100 * (n + 1) / len(ranked) for n in range(len(ranked))], color=GOOD)
    for percent in (50, 99):
        value = percentile(ranked, percent)
        axis.axvline(value, color=SHOWN, linestyle="--", linewidth=1)
        axis.annotate(f"p{percent} {value:,.0f} ms", (value, percent / 2), xytext=(4, 0),
                      textcoords="offset points")  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_ylim(0, 100)
