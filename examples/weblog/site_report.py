"""Compute statistics of a web site per hour and in total, and format them.

An hour is an hour of UTC, whatever offset the server wrote. So a line that arrives late, or from a server in another
time zone, counts in its own hour. All lines are read before anything is counted, so no line is too late.

Spark counts. The result has one row per hour, so this module combines the rows on the driver.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from milena.commands.output import table
from milena.fields import Json
from spark_ext.jobs.running.amounts import counted

STATUS_CLASSES = (1, 2, 3, 4, 5)

HOURLY_SCHEMA = (
    "hour timestamp, requests bigint, bytes bigint, clients bigint, status_1xx bigint, status_2xx bigint, "
    "status_3xx bigint, status_4xx bigint, status_5xx bigint, errors bigint, "
    "top_paths array<struct<path: string, requests: bigint>>, "
    "top_error_paths array<struct<path: string, errors: bigint>>"
)

HOURLY_COLUMNS = (
    *("hour", "requests", "bytes", "clients"),
    *(f"status_{digit}xx" for digit in STATUS_CLASSES),
    *("errors", "top_paths", "top_error_paths"),
)

Ranking = tuple[tuple[str, int], ...]
"""Paths with their counts, greatest first; paths with equal counts are sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of one hour, or of all hours if ``hour`` is None. ``by_class`` counts responses 1xx to 5xx."""

    hour: datetime | None
    requests: int
    size_bytes: int
    clients: int
    by_class: tuple[int, ...]
    top_paths: Ranking
    top_error_paths: Ranking

    @property
    def errors(self) -> int:
        """Return the number of responses with status 400 and above."""
        return self.by_class[3] + self.by_class[4]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """The result of a run. ``malformed`` counts unreadable lines by reason; the other counts do not include these."""

    overall: Counts
    hours: tuple[Counts, ...]
    malformed: tuple[tuple[str, int], ...]

    @property
    def malformed_count(self) -> int:
        """Return the number of unreadable lines."""
        return sum(count for _, count in self.malformed)


def site_report(lines: DataFrame, *, top: int) -> SiteReport:
    """Count the lines from ``access_log.parsed``, which should be persisted, because they are read three times.

    ``top`` is the number of paths to name per hour.
    """
    reasons = lines.where(sf.col("reason").isNotNull()).groupBy("reason").count().collect()
    events = lines.where(sf.col("reason").isNull()).withColumn(
        "hour", sf.date_trunc("hour", "time")
    )
    rows = events.rollup(_epoch("hour").alias("epoch")).agg(*_measures()).collect()
    paths = (
        events.where(sf.col("path").isNotNull())
        .groupBy("hour", "path")
        .agg(sf.count("*").alias("requests"), sf.count_if(is_error()).alias("errors"))
    )
    rankings = _rankings(paths, top)
    counts = sorted(
        (
            Counts(
                hour=None if row.epoch is None else datetime.fromtimestamp(row.epoch, UTC),
                requests=row.requests,
                size_bytes=row.bytes or 0,
                clients=row.clients,
                by_class=tuple(row[f"status_{digit}xx"] for digit in STATUS_CLASSES),
                top_paths=rankings.get((row.epoch, "requests"), ()),
                top_error_paths=rankings.get((row.epoch, "errors"), ()),
            )
            for row in rows
        ),
        key=lambda c: (c.hour is not None, c.hour),
    )
    overall, *hours = counts or [NOTHING]
    return SiteReport(
        overall=overall,
        hours=tuple(hours),
        malformed=tuple(sorted((row.reason, row["count"]) for row in reasons)),
    )


NOTHING = Counts(
    hour=None,
    requests=0,
    size_bytes=0,
    clients=0,
    by_class=(0, 0, 0, 0, 0),
    top_paths=(),
    top_error_paths=(),
)


def _epoch(column: str) -> Column:
    """Return the seconds since 1970. Collected timestamps would be in this machine's time zone."""
    return sf.unix_timestamp(column)


def is_error() -> Column:
    """Return whether the response had status 400 or above."""
    return sf.col("status") >= 400


def status_counts() -> list[Column]:
    """Return the columns ``status_1xx`` to ``status_5xx``: responses by status class."""
    return [
        sf.count_if(sf.floor(sf.col("status") / 100) == digit).alias(f"status_{digit}xx")
        for digit in STATUS_CLASSES
    ]


def _measures() -> list[Column]:
    return [
        sf.count("*").alias("requests"),
        sf.sum("bytes").alias("bytes"),
        sf.count_distinct("client").alias("clients"),
        *status_counts(),
    ]


def _rankings(paths: DataFrame, top: int) -> dict[tuple[int | None, str], Ranking]:
    """Return the paths with the greatest counts, by hour (None for all hours) and measure."""
    measures = [
        sf.struct(sf.lit(name).alias("measure"), sf.col(name).alias("n"))
        for name in ("requests", "errors")
    ]
    counted = paths.select(
        _epoch("hour").alias("epoch"), "path", sf.inline(sf.array(*measures))
    ).where(sf.col("n") > 0)
    # Rank the paths of each hour and of all hours in one query, because another pass over the events costs more.
    sums = counted.rollup("measure", "path", "epoch").agg(sf.sum("n").alias("n"))
    keys = sums.where(sf.col("path").isNotNull())
    order = Window.partitionBy("measure", "epoch").orderBy(sf.desc("n"), "path")
    ranked = keys.withColumn("rank", sf.row_number().over(order)).where(sf.col("rank") <= top)
    found: dict[tuple[int | None, str], Ranking] = {}
    for row in sorted(ranked.collect(), key=lambda row: row.rank):
        place = (row.epoch, row.measure)
        found[place] = (*found.get(place, ()), (row.path, row.n))
    return found


def table_row(counts: Counts) -> tuple[object, ...]:
    """Return a row of ``HOURLY_SCHEMA``."""
    return (
        counts.hour,
        counts.requests,
        counts.size_bytes,
        counts.clients,
        *counts.by_class,
        counts.errors,
        list(counts.top_paths),
        list(counts.top_error_paths),
    )


def report_text(report: SiteReport, *, hours_shown: int) -> str:
    """Return a line per hour, the latest hour last, and then the total."""
    shown = report.hours[-hours_shown:]
    classes = [f"{digit}XX" for digit in STATUS_CLASSES]
    headings = ("HOUR (UTC)", "REQUESTS", "BYTES", "CLIENTS", *classes, "ERRORS", "TOP PATH")
    rows = [
        (
            "all" if c.hour is None else f"{c.hour:%Y-%m-%d %H:00}",
            *(c.requests, c.size_bytes, c.clients, *c.by_class, c.errors),
            c.top_paths[0][0] if c.top_paths else None,
        )
        for c in (*shown, report.overall)
    ]
    parts = [table(headings, rows)]
    if earlier := len(report.hours) - len(shown):
        parts.append(
            f"{counted(earlier, 'earlier hour')} {'is' if earlier == 1 else 'are'} not shown"
        )
    rankings = (
        ("PATH", report.overall.top_paths),
        ("PATH OF ERRORS", report.overall.top_error_paths),
    )
    parts += [table((heading, "COUNT"), ranking) for heading, ranking in rankings if ranking]
    parts.append(
        f"{counted(report.overall.requests, 'request')} in {counted(len(report.hours), 'hour')}, "
        f"{counted(report.malformed_count, 'line')} that could not be read"
    )
    parts[-1] += "".join(f"\n  {count:,} {reason}" for reason, count in report.malformed)
    return "\n\n".join(parts)


def report_json(report: SiteReport) -> Json:
    """Return the report as JSON, for programs, with every hour."""
    return {
        "overall": _counts_json(report.overall),
        "hours": [_counts_json(c) for c in report.hours],
        "malformed": {"lines": report.malformed_count, "by_reason": dict(report.malformed)},
    }


def _counts_json(counts: Counts) -> dict[str, Json]:
    return {
        "hour": None if counts.hour is None else f"{counts.hour:%Y-%m-%dT%H:00:00Z}",
        "requests": counts.requests,
        "bytes": counts.size_bytes,
        "clients": counts.clients,
        "by_class": {f"{d}xx": n for d, n in zip(STATUS_CLASSES, counts.by_class, strict=True)},
        "errors": counts.errors,
        "top_paths": [{"path": path, "requests": n} for path, n in counts.top_paths],
        "top_error_paths": [{"path": path, "errors": n} for path, n in counts.top_error_paths],
    }
