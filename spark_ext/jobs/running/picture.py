"""Pictures of what a job found: how they look, and the option of a command line that asks for one.

A job draws on a ``Figure`` of its own; nothing of matplotlib that the whole process shares is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from spark_ext.jobs.running.errors import JobInputError

if TYPE_CHECKING:
    from datetime import datetime

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
WIDTH, PANEL_HEIGHT = 11.0, 3.2
"""Inches."""
NAMES_MAX = 8
"""Curves of one panel: more have no colours that an eye can tell apart."""
GOOD, BAD, QUIET = "#1f6fb4", "#b2182b", "#888888"

plot_option = click.option(
    "--plot", "picture", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
    help="Draw what was found, as the file's ending says: .png, .svg or .pdf.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One of the pictures below each other; ``draw`` gets its axes."""

    title: str
    unit: str
    draw: Callable[["Axes"], None]


def save_picture(path: str, *, title: str, panels: tuple[Panel, ...]) -> None:
    """Draw the panels on one scale of time.

    Raises:
        JobInputError: the file cannot be written, its ending is none that matplotlib knows, or that is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415  # who draws nothing needs none of it
    except ImportError as error:
        raise JobInputError("--plot needs matplotlib: pip install matplotlib") from error
    with mpl.rc_context(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "font.size": 9.5,
        }
    ):
        figure = _figure(title, panels)
        try:
            figure.savefig(path, dpi=DPI)
        except (OSError, ValueError) as error:
            raise JobInputError(f"{path} cannot be drawn: {error}") from error


def _figure(title: str, panels: tuple[Panel, ...]) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above

    figure = Figure(figsize=(WIDTH, 0.5 + PANEL_HEIGHT * len(panels)), layout="constrained")
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    for axis, panel in zip(
        figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels, strict=True
    ):
        axis.xaxis_date("UTC")
        panel.draw(axis)
        axis.set_title(panel.title)
        axis.set_ylabel(panel.unit)
        axis.set_ylim(bottom=0)
        if axis.get_legend_handles_labels()[0]:
            # Beside the plot: curves may be anywhere in it.
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.set_xlabel("UTC")
    figure.autofmt_xdate()
    return figure


def day_number(at: "datetime") -> float:
    """Days since 1970, as matplotlib counts them, of a time of Spark: of this machine's zone, unless it has its own."""
    return at.timestamp() / 86_400


def series_by_name(
    points: list[tuple[str, float, float]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Days and values of each name, by time: of the names with the greatest sums, most of all first."""
    sums: dict[str, float] = {}
    for name, _, value in points:
        sums[name] = sums.get(name, 0.0) + value
    kept = sorted(sums, key=lambda name: (-sums[name], name))[:NAMES_MAX]
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in kept}
    for name, at, value in sorted(points, key=lambda point: point[1]):
        if name in found:
            found[name][0].append(at)
            found[name][1].append(value)
    return found
