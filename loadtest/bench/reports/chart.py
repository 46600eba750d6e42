"""Plot a run: each row's figure in relation to its floor and its ambition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from loadtest.bench.targets import Target, TargetOutcome, TargetVerdict

DPI = 120
COLOURS = {
    TargetVerdict.AMBITION: "#2a9d5c",
    TargetVerdict.FLOOR: "#1f6fb4",
    TargetVerdict.BELOW: "#b2182b",
    TargetVerdict.SHORT: "#888888",
    TargetVerdict.SHOWN: "#888888",
}
_MARK = "#222222"
_TITLE_COLUMNS = 110
"""The most characters of a title's line; they are as wide as the plot."""
_LABEL_COLUMNS = 80
"""The width of a row's name, beside which two lines fit."""
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Rows on one scale. On it, 1 is the floor or ambition of each row, and further right is better."""

    rows: Sequence[TargetOutcome]
    unit: Callable[[Target], float | None]
    named: str
    colour: str


def draw(outcomes: Sequence[TargetOutcome], path: Path, *, title: str) -> None:
    """Draw rows with a floor in relation to it; below them, rows without a floor in relation to their ambition."""
    measured = [o for o in outcomes if o.spread is not None]
    panels = [
        _Panel(
            rows=[o for o in measured if o.target.floor is not None],
            unit=lambda target: target.floor,
            named="the floor (red)\nthe mark is the ambition, the line the spread",
            colour=COLOURS[TargetVerdict.BELOW],
        ),
        _Panel(
            rows=[o for o in measured if o.target.host_row is not None],
            unit=lambda target: target.ambition,
            named="the ambition: this host bounds the row,\nand its floor is in the one that is named",
            colour=_MARK,
        ),
    ]
    shown = [panel for panel in panels if panel.rows] or panels[:1]
    heights = [1 + max(1, len(panel.rows)) for panel in shown]
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(10, 1.0 + 0.36 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(shown), squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, shown, strict=True):
            _draw_panel(axis, panel)
        # Set the title of the figure, not of the axes: long row names move the left edge of the axes far to the right.
        figure.suptitle(
            fill(title, _TITLE_COLUMNS), x=0.01, ha="left", fontsize=10, fontweight="bold"
        )
        figure.savefig(path, dpi=DPI)


def _draw_panel(axis: Axes, panel: _Panel) -> None:
    for place, outcome in enumerate(panel.rows):
        spread, target = outcome.spread, outcome.target
        unit = panel.unit(target)
        assert spread is not None, "rows that were measured"
        assert unit is not None, "rows that have what they are held against"
        colour = COLOURS[outcome.verdict]
        least, greatest = (
            _times_as_good(target, end, unit) for end in (spread.least, spread.greatest)
        )
        axis.plot([least, greatest], [place, place], color=colour, linewidth=2, alpha=0.5)
        reached = _times_as_good(target, spread.median, unit)
        axis.plot(reached, place, "o", color=colour, markersize=6)
        if target.ambition is not None and target.ambition != unit:
            reach = _times_as_good(target, target.ambition, unit)
            axis.plot(reach, place, "|", color=_MARK, markersize=12)
    axis.axvline(1, color=panel.colour, linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks(_TICKS)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_yticks(range(len(panel.rows)), [_label(outcome.target) for outcome in panel.rows])
    # The first row is at the top. The space above and below equals the space between two rows.
    axis.set_ylim(max(1, len(panel.rows)) - 0.4, -0.6)
    axis.grid(visible=True, axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xlabel(f"times as good as {panel.named}")


def _label(target: Target) -> str:
    floor = "" if target.host_row is None else f" ({target.host_row})"
    return fill(f"{target.name}: {target.what}{floor}", _LABEL_COLUMNS)


def _times_as_good(target: Target, value: float, unit: float) -> float:
    # A node that takes nothing at all is infinitely better, and no scale shows that.
    value = max(value, unit / 1000)
    return min(unit / value if target.is_less_better else value / unit, 100.0)
