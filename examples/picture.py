"""Save plots of a job's results, all in the same style, and the command-line option for them.

A job draws on its own ``Figure``, and changes no matplotlib state that other code in the process uses.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import click

from spark_ext.jobs.running.errors import JobInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import Row

DPI = 120
WIDTH, PANEL_HEIGHT = 11.0, 3.2
"""The width of a figure and the height of one panel, in inches."""
TITLE_CHARS_MAX, NAME_CHARS_MAX = 100, 28
"""The most characters of a title, which fit the width, and of a name in a legend: a fifth of the width."""
SPAN_DAYS_MIN = 1 / 24
"""The shortest time axis: an hour. A shorter axis would have no tick with a day or an hour."""
MARGIN = 0.04
"""The margin between the curves and the frame, as a share of the axis."""
NAMES_MAX = 8
"""The most curves of one panel: more colours cannot be told apart."""
GOOD, BAD, QUIET = "#1f6fb4", "#b2182b", "#888888"
COLOURS = (GOOD, "#d9822b", "#2a9d5c", BAD, "#7b5ea7", "#8c564b", "#e377c2", "#17a2b8")
"""The colours of names; as many as ``NAMES_MAX``."""
GAP_DAYS = 0.5 / 86_400
"""Window ends are floats. Two windows that are less than half a second apart count as adjacent."""

plot_option = click.option(
    "--plot", "picture", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
    help="Draw what was found, as the file's ending says: .png, .svg or .pdf.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One of the plots below each other; ``draw`` gets its axes. The axis of a count has only whole numbers."""

    title: str
    unit: str
    draw: Callable[["Axes"], None]
    is_count: bool = False


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
            # matplotlib's default labels, such as "05-17 12" and "31 08:15", do not say which number is the hour or the
            # day.
            "date.autoformatter.hour": "%m-%d %H:%M",
            "date.autoformatter.minute": "%m-%d %H:%M",
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "font.size": 9.5,
            # Names are shown as they are: matplotlib takes the text between two dollars for a formula.
            "text.parse_math": False,
        }
    ):
        figure = _figure(title, panels)
        try:
            figure.savefig(path, dpi=DPI)
        except (OSError, ValueError) as error:
            raise JobInputError(f"{path} cannot be drawn: {error}") from error


def _figure(title: str, panels: tuple[Panel, ...]) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH, 0.5 + PANEL_HEIGHT * len(panels)), layout="constrained")
    figure.suptitle(shortened(title, TITLE_CHARS_MAX), fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        axis.xaxis_date("UTC")
        panel.draw(axis)
        axis.set_title(panel.title)
        axis.set_ylabel(panel.unit)
        _limit_height(axis)
        if panel.is_count:
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        if axis.get_legend_handles_labels()[0]:
            # The legend is beside the plot, because curves may be anywhere inside.
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _limit_times(list(axes))
    figure.autofmt_xdate()
    return figure


def _limit_height(axis: "Axes") -> None:
    """Leave room above the curves. matplotlib leaves none above adjacent bars."""
    top = axis.dataLim.y1
    axis.set_ylim(0, top * (1 + MARGIN) if isfinite(top) and top > 0 else 1)


def _limit_times(axes: Sequence["Axes"]) -> None:
    """Show the time range of the data, at least an hour. Around a single time matplotlib would show four years."""
    spans = [axis.dataLim for axis in axes if isfinite(axis.dataLim.width)]
    if not spans:
        for axis in axes:
            axis.text(
                0.5, 0.5, "nothing was found", transform=axis.transAxes, ha="center", color=QUIET
            )
        axes[-1].set_xticks([])
        axes[-1].set_xlabel("UTC")
        return
    first, last = min(span.x0 for span in spans), max(span.x1 for span in spans)
    room = max(MARGIN * (last - first), (SPAN_DAYS_MIN - (last - first)) / 2)
    axes[-1].set_xlim(first - room, last + room)
    # The labels of hours and minutes have no year.
    days = sorted(
        {f"{datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}" for day in (first, last)}
    )
    axes[-1].set_xlabel(f"UTC, {' to '.join(days)}")


def shortened(name: str, most: int) -> str:
    """Return a name with at most ``most`` characters; the middle of a longer name is replaced."""
    if len(name) <= most:
        return name
    kept = most - 1
    return f"{name[: kept // 3]}…{name[kept // 3 - kept :]}"


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Return a short label for each name. Names with the same label get a number."""
    labels: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for name in names:
        label = shortened(name, NAME_CHARS_MAX) or "(empty)"
        counts[label] += 1
        # matplotlib leaves a label that begins with "_" out of the legend.
        shown = f" {label}" if label.startswith("_") else label
        labels[name] = shown if counts[label] == 1 else f"{shown} ({counts[label]})"
    return labels


def day_number(at: "datetime") -> float:
    """Return a time as matplotlib's days since 1970. Spark's times are local, unless they have a time zone."""
    return at.timestamp() / 86_400


@dataclass(frozen=True, slots=True)
class Window:
    """A value that holds in [start, end), in days since 1970."""

    start: float
    end: float
    value: float


def window_of(row: "Row", value: float) -> Window:
    """Return the window of a row with ``window_start`` and ``window_end``."""
    return Window(day_number(row.window_start), day_number(row.window_end), float(value))


def draw_windows(axis: "Axes", windows: Iterable[Window], *, color: str, label: str = "") -> None:
    """Draw values as steps over their windows; between windows nothing is drawn."""
    times: list[float] = []
    values: list[float] = []
    end = inf
    for window in sorted(windows, key=lambda w: w.start):
        if window.start - end > GAP_DAYS:
            times.append(end)
            values.append(nan)
        times += (window.start, window.end)
        values += (window.value, window.value)
        end = window.end
    axis.plot(times, values, color=color, label=label or "_", solid_capstyle="butt")


def series_by_name(
    windows: Iterable[tuple[str, Window]],
) -> dict[str, list[Window]]:
    """Return the windows of each name by time, only for the names with the greatest sums, greatest first."""
    sums: dict[str, float] = {}
    found: dict[str, list[Window]] = {}
    for name, window in sorted(windows, key=lambda each: each[1].start):
        sums[name] = sums.get(name, 0.0) + window.value
        found.setdefault(name, []).append(window)
    kept = sorted(sums, key=lambda name: (-sums[name], name))[:NAMES_MAX]
    return {name: found[name] for name in kept}
