"""A picture of a run: how far each row is from its floor, and from its ambition."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from loadtest.bench.targets import TargetOutcome, TargetVerdict

DPI = 120
COLOURS = {
    TargetVerdict.AMBITION: "#2a9d5c",
    TargetVerdict.FLOOR: "#1f6fb4",
    TargetVerdict.BELOW: "#b2182b",
    TargetVerdict.SHOWN: "#888888",
}
_TITLE_COLUMNS = 110
"""Characters of a title's line; the picture is as wide."""
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)


def draw(outcomes: Sequence[TargetOutcome], path: Path, *, title: str) -> None:
    """Rows that have a floor, on one scale: 1 is the floor, further right is better."""
    rows = [o for o in outcomes if o.spread is not None and o.target.floor is not None]
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(10, 1.4 + 0.36 * max(1, len(rows))), layout="constrained")
        axis = figure.subplots()
        for place, outcome in enumerate(rows):
            spread, target = outcome.spread, outcome.target
            assert spread is not None, "rows that were measured"
            colour = COLOURS[outcome.verdict]
            ends = sorted(_above_floor(outcome, end) for end in (spread.least, spread.greatest))
            axis.plot(ends, [place, place], color=colour, linewidth=2, alpha=0.5)
            axis.plot(_above_floor(outcome, spread.median), place, "o", color=colour, markersize=6)
            if target.ambition is not None:
                reach = _above_floor(outcome, target.ambition)
                axis.plot(reach, place, "|", color="#222222", markersize=12)
        axis.axvline(1, color="#b2182b", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks(_TICKS)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(
            range(len(rows)), [f"{o.target.what} ({o.target.durability})" for o in rows]
        )
        # The first row on top, and no more room above and below than between two rows.
        axis.set_ylim(max(1, len(rows)) - 0.4, -0.6)
        axis.grid(visible=True, axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_xlabel(
            "times as good as the floor (red)\nthe mark is the ambition, the line the spread"
        )
        # Of the figure and not of the axis, whose left edge the rows' names push far to the right.
        figure.suptitle(
            fill(title, _TITLE_COLUMNS), x=0.01, ha="left", fontsize=10, fontweight="bold"
        )
        figure.savefig(path, dpi=DPI)


def _above_floor(outcome: TargetOutcome, value: float) -> float:
    floor = outcome.target.floor
    assert floor is not None, "rows that have a floor"
    # A node that takes nothing at all is infinitely good, which no scale shows.
    least = floor / 1000
    ratio = (
        floor / max(value, least) if outcome.target.is_less_better else max(value, least) / floor
    )
    return min(ratio, 100.0)
