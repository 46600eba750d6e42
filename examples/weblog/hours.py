"""Compute hourly statistics of a web site as a stream: rows like those of ``site_report``, each when its hour is over.

The functions work on a stream or a table of events (``events.watermark``) with the columns ``time``, ``client``,
``path``, ``status`` and ``bytes``.

A stream can neither count distinct values nor rank. So there are two aggregations: the first by hour and path, the
second by hour. The first gives a row per path, with its distinct clients, only for hours that are over. These rows are
few, and the second aggregation keeps an hour for one batch only.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from examples.weblog.site_report import HOURLY_COLUMNS, is_error, status_counts

HOUR = "1 hour"


def hours_of(events: DataFrame, *, top: int) -> DataFrame:
    """Return a row of ``site_report.HOURLY_SCHEMA`` per hour; ``top`` is the number of paths to name.

    The state has, for each open hour, its paths and the distinct clients of each.
    """
    by_path = events.groupBy(sf.window("time", HOUR), "path").agg(
        sf.count("*").alias("requests"),
        sf.count_if(is_error()).alias("errors"),
        sf.sum("bytes").alias("bytes"),
        sf.collect_set("client").alias("clients"),
        *status_counts(),
    )
    sums = [name for name in by_path.columns if name not in {"window", "path", "clients"}]
    by_hour = by_path.groupBy("window").agg(
        *(sf.sum(name).alias(name) for name in sums),
        sf.collect_list("clients").alias("clients"),
        # Requests that are not HTTP have no path: they count, and are in no ranking.
        sf.collect_list(
            sf.when(sf.col("path").isNotNull(), sf.struct("path", "requests", "errors"))
        ).alias("paths"),
    )
    rows = by_hour.withColumns(
        {
            "hour": sf.col("window.start"),
            "clients": sf.size(sf.array_distinct(sf.flatten("clients"))).cast("long"),
            "top_paths": _top("requests", top),
            "top_error_paths": _top("errors", top),
        }
    )
    return rows.select(*HOURLY_COLUMNS)


def _top(measure: str, count: int) -> Column:
    """Return the entries of the column ``paths`` with the greatest counts; ties are sorted by name."""
    counted = sf.filter("paths", lambda path: path[measure] > 0)
    # Ascending, so the greatest come first as the smallest negatives.
    ranked = sf.sort_array(
        sf.transform(
            counted, lambda p: sf.struct((-p[measure]).alias("n"), p["path"].alias("path"))
        )
    )
    return sf.transform(
        sf.slice(ranked, 1, count),
        lambda p: sf.struct(p["path"].alias("path"), (-p["n"]).alias(measure)),
    )
