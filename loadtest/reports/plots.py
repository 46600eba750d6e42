"""Plot a run: its rates and latencies over time, and the longest gaps."""

from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from loadtest.reports.timeline import Direction, Gap, Timeline

OVERVIEW, GAPS = "overview.png", "gaps.png"
DPI = 120
COLOURS = {Direction.PRODUCE: "#1f6fb4", Direction.FETCH: "#2a9d5c"}
PERCENTILE_COLOURS = {50.0: "#9ecae1", 95.0: "#4292c6", 99.0: "#08519c", 100.0: "#b2182b"}
POINTS: dict[str, Any] = {"markersize": 3.5}
"""The style of points. A value between two gaps has no line, so only its marker shows it."""
TITLE_COLUMNS = 100
"""The most characters of a title's line; they are as wide as the plot."""
FAILED_COLOUR, INCIDENT_COLOUR = "#b2182b", "#555555"


def draw(timeline: Timeline, directory: Path, *, title: str) -> list[str]:
    """Draw all plots; return the names of the files."""
    title = "\n".join(fill(line, TITLE_COLUMNS) for line in title.splitlines())
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
        _overview(timeline, title).savefig(directory / OVERVIEW, dpi=DPI)
        _gaps(timeline, title).savefig(directory / GAPS, dpi=DPI)
    return [OVERVIEW, GAPS]


def _overview(timeline: Timeline, title: str) -> Figure:
    figure = Figure(figsize=(11, 12), layout="constrained")
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    axes: list[Axes] = list(
        figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": [3, 3, 3, 1.4]})
    )
    _draw_records(axes[0], timeline)
    _draw_requests(axes[1], timeline)
    _draw_latency(axes[2], timeline)
    _draw_failures(axes[3], timeline)
    end_s = max([*timeline.times_s(), *(at_s for at_s, _ in timeline.incidents())], default=1.0)
    for at, axis in enumerate(axes):
        _mark_incidents(axis, timeline, end_s, is_named=at == 0)
    axes[-1].set_xlabel("seconds since the start")
    axes[-1].set_xlim(0, end_s * 1.01)
    return figure


def _draw_records(axis: Axes, timeline: Timeline) -> None:
    times = timeline.times_s()
    for direction, label in (
        (Direction.PRODUCE, "acknowledged"),
        (Direction.FETCH, "fetched by readers"),
    ):
        series = timeline.records_per_s(direction)
        if series:
            axis.plot(
                times, series, ".-", color=COLOURS[direction], label=label, linewidth=1.6, **POINTS
            )
    axis.set_title("Throughput")
    axis.set_ylabel("records/s")
    axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axis.set_ylim(bottom=0)
    _legend(axis)


def _draw_requests(axis: Axes, timeline: Timeline) -> None:
    times = timeline.times_s()
    for report in timeline.endpoints():
        style = ".-" if report.direction is Direction.PRODUCE else ".--"
        series = timeline.requests_per_s(report.name)
        axis.plot(times, series, style, label=report.name, linewidth=1.3, **POINTS)
    axis.set_title("Requests")
    axis.set_ylabel("successful requests/s")
    axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axis.set_ylim(bottom=0)
    _legend(axis)


def _draw_latency(axis: Axes, timeline: Timeline) -> None:
    times = timeline.times_s()
    for percent, colour in PERCENTILE_COLOURS.items():
        label = "longest" if percent == 100 else f"p{percent:g}"
        series = timeline.latency_ms(Direction.PRODUCE, percent)
        if series:
            axis.plot(times, series, ".-", color=colour, label=label, linewidth=1.4, **POINTS)
    axis.set_title("Produce latency, first attempt to acknowledgement")
    axis.set_ylabel("milliseconds (log scale)")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axis.yaxis.set_minor_formatter(NullFormatter())
    _legend(axis)


def _legend(axis: Axes) -> None:
    """Draw the legend outside of the plot, at its upper right, because curves may be anywhere inside."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 0.98),
            ncols=6,
            borderaxespad=0.2,
            columnspacing=1.2,
            handlelength=1.6,
        )


def _draw_failures(axis: Axes, timeline: Timeline) -> None:
    series = timeline.failed_per_s()
    if series:
        width = timeline.bucket_s
        axis.bar(
            timeline.times_s(), series, width=width, color=FAILED_COLOUR, label="all endpoints"
        )
    axis.set_title("Failed attempts, repeated later or given up")
    axis.set_ylabel("attempts/s")
    axis.set_ylim(bottom=0, top=None if any(series) else 1)


def _mark_incidents(axis: Axes, timeline: Timeline, end_s: float, *, is_named: bool) -> None:
    if is_named:
        axis.set_ylim(top=axis.get_ylim()[1] * 1.2)
    for number, (at_s, text) in enumerate(timeline.incidents()):
        axis.axvline(at_s, color=INCIDENT_COLOUR, linestyle=":", linewidth=1.3)
        if is_named:
            is_late = at_s > 0.75 * end_s
            axis.annotate(
                text,
                (at_s, 1.0),
                xycoords=("data", "axes fraction"),
                # The labels of neighbouring incidents use two rows in turn, so that they do not overlap.
                xytext=(-4 if is_late else 4, -2 - 11 * (number % 2)),
                textcoords="offset points",
                ha="right" if is_late else "left",
                va="top",
                fontsize=8.5,
                color=INCIDENT_COLOUR,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
            )


def _gaps(timeline: Timeline, title: str) -> Figure:
    reports = timeline.endpoints()
    partitions = timeline.partition_gaps()
    title_inches = 0.2 * len(title.splitlines())
    figure = Figure(
        figsize=(11, 1.8 + title_inches + 0.32 * (len(reports) + len(partitions))),
        layout="constrained",
    )
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    ratios = [max(len(reports), 1), max(len(partitions), 1)]
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    _draw_bars(above, [(report.name, report.gap, COLOURS[report.direction]) for report in reports])
    above.set_title("Longest time without a success, by endpoint (produce blue, fetch green)")
    colour = COLOURS[Direction.PRODUCE]
    _draw_bars(below, [(f"partition {p}", gap, colour) for p, gap in partitions.items()])
    below.set_title("Longest time without an acknowledged write, by partition")
    below.set_xlabel("seconds")
    return figure


def _draw_bars(axis: Axes, bars: list[tuple[str, Gap, str]]) -> None:
    names = [name for name, _, _ in bars]
    lengths = [gap.seconds for _, gap, _ in bars]
    drawn = axis.barh(names, lengths, color=[colour for _, _, colour in bars], height=0.65)
    labels = [f"{gap.seconds:.2f} s, from {gap.at_s:.1f} s on" for _, gap, _ in bars]
    axis.bar_label(drawn, labels, padding=4, fontsize=8.5)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.2)


def _thousands(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
