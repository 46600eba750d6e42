"""Pictures of a web site: its hours, and its alerts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_ext.jobs.running.picture import BAD, GOOD, QUIET, Panel, day_number, series_by_name
from spark_ext.jobs.weblog.site_report import STATUS_CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASS_COLOURS = ("#bbbbbb", "#2a9d5c", "#9ecae1", "#f4a261", BAD)
HOUR_DAYS = 1 / 24
"""Width of a bar: matplotlib's dates are days."""


def hour_panels(rows: Sequence[Any]) -> tuple[Panel, ...]:
    """Of rows of ``site_report.HOURLY_SCHEMA``."""
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
        axis.step(hours, shares, where="post", color=BAD)

    def clients(axis: "Axes") -> None:
        axis.step(hours, [row.clients for row in ordered], where="post", color=GOOD)

    return (
        Panel(
            title="Requests by the hour, by class of their answers", unit="requests", draw=answers
        ),
        Panel(title="Answers of status 400 and above", unit="% of requests", draw=share),
        Panel(title="Distinct clients", unit="clients", draw=clients),
    )


def alert_panels(rows: Sequence[Any]) -> tuple[Panel, ...]:
    """Of rows of ``error_rates.alerts_of``."""

    def rates(axis: "Axes") -> None:
        points: list[tuple[str, float, float]] = [
            (
                " ".join(filter(None, (row.site, row.path))),
                day_number(row.window_start),
                100 * row.rate,
            )
            for row in rows
        ]
        for name, (times, values) in series_by_name(points).items():
            axis.plot(times, values, "o", markersize=4, label=name)

    def requests(axis: "Axes") -> None:
        times = [day_number(row.window_start) for row in rows]
        axis.vlines(times, 0, [row.requests for row in rows], color=QUIET, label="requests")
        axis.vlines(times, 0, [row.errors for row in rows], color=BAD, linewidth=3, label="errors")

    return (
        Panel(title="Windows with an alert", unit="% of requests failed", draw=rates),
        Panel(title="Requests in them", unit="requests", draw=requests),
    )
