"""Plot the hours and the alerts of a web site."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from examples.picture import (
    BAD,
    COLOURS,
    GOOD,
    QUIET,
    Panel,
    Window,
    day_number,
    draw_windows,
    labels_of,
    series_by_name,
    window_of,
)
from examples.weblog.site_report import STATUS_CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASS_COLOURS = ("#bbbbbb", "#2a9d5c", "#9ecae1", "#f4a261", BAD)
HOUR_DAYS = 1 / 24
"""The width of a bar, an hour in matplotlib's days."""


def hour_panels(rows: Sequence[Any]) -> tuple[Panel, ...]:
    """Return the panels for rows of ``site_report.HOURLY_SCHEMA``."""
    ordered = sorted(rows, key=lambda row: row.hour)
    hours = [day_number(row.hour) for row in ordered]

    def answers(axis: "Axes") -> None:
        below = [0] * len(hours)
        for digit, colour in zip(STATUS_CLASSES, CLASS_COLOURS, strict=True):
            counts = [row[f"status_{digit}xx"] for row in ordered]
            if any(counts):
                axis.bar(
                    hours, counts, HOUR_DAYS, below, align="edge", color=colour, label=f"{digit}xx"
                )
            below = [sum(pair) for pair in zip(below, counts, strict=True)]

    def share(axis: "Axes") -> None:
        shares = [100 * row.errors / row.requests for row in ordered]
        draw_windows(axis, map(of_hour, hours, shares), color=BAD)

    def clients(axis: "Axes") -> None:
        draw_windows(axis, map(of_hour, hours, [row.clients for row in ordered]), color=GOOD)

    return (
        Panel(
            title="Requests by the hour, by class of their answers",
            unit="requests",
            draw=answers,
            is_count=True,
        ),
        Panel(title="Answers of status 400 and above", unit="% of requests", draw=share),
        Panel(title="Distinct clients", unit="clients", draw=clients, is_count=True),
    )


def of_hour(start: float, value: float) -> Window:
    """Return the window of an hour with this value."""
    return Window(start, start + HOUR_DAYS, value)


def alert_panels(rows: Sequence[Any], *, rate_min: float) -> tuple[Panel, ...]:
    """Return the panels for rows of ``error_rates.alerts_of``; ``rate_min`` is the least share for an alert."""

    def rates(axis: "Axes") -> None:
        found = series_by_name(
            (" ".join(filter(None, (row.site, row.path))), window_of(row, 100 * row.rate))
            for row in rows
        )
        labels = labels_of(found)
        for colour, (name, windows) in zip(COLOURS, found.items(), strict=False):
            starts, ends = [w.start for w in windows], [w.end for w in windows]
            values = [w.value for w in windows]
            middles = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
            axis.hlines(values, starts, ends, color=colour, linewidth=2)
            # In a plot of a month, the line of one window is too short to be seen.
            axis.plot(middles, values, "o", color=colour, markersize=4, label=labels[name])
        if found:
            axis.axhline(100 * rate_min, color=QUIET, linestyle="--", linewidth=1,
                         label=f"alert from {100 * rate_min:g} % on")  # fmt: skip

    def requests(axis: "Axes") -> None:
        sums: dict[Window, list[int]] = {}
        for row in rows:
            counts = sums.setdefault(window_of(row, 0), [0, 0])
            counts[0] += row.requests
            counts[1] += row.errors
        starts, widths = [w.start for w in sums], [w.end - w.start for w in sums]
        for number, (label, colour) in enumerate((("requests", QUIET), ("errors", BAD))):
            heights = [counts[number] for counts in sums.values()]
            axis.bar(
                starts, heights, widths, align="edge", color=colour, edgecolor=colour, label=label
            )

    return (
        Panel(title="Windows with an alert", unit="% of requests failed", draw=rates),
        Panel(title="Requests in them", unit="requests", draw=requests, is_count=True),
    )
