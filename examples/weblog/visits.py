"""Sessions: requests of one client to a site with no longer pause between two of them than a gap.

A site is a topic of access-log lines. Works on a stream of events (``events.watermark``), which have the columns
``topic``, ``client``, ``time``, ``path``, ``status`` and ``bytes``, as on a table.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


def sessions_of(events: DataFrame, *, gap_s: int) -> DataFrame:
    """A row a session, from its first request to its last; paths are null where no request had one.

    Requests of one second have no order: of theirs the entry is the first path by its name, the exit the last.

    Columns: site, client string; session_start, session_end timestamp; duration_s, requests, errors, bytes bigint;
    entry_path, exit_path string.
    """
    at = sf.when(sf.col("path").isNotNull(), sf.struct("time", "path"))
    session = sf.session_window("time", f"{gap_s} seconds").alias("session")
    found = events.groupBy(session, "topic", "client").agg(
        sf.count("*").alias("requests"),
        sf.count_if(sf.col("status") >= 400).alias("errors"),
        sf.sum("bytes").alias("bytes"),
        sf.min(at)["path"].alias("entry_path"),
        sf.max(at)["path"].alias("exit_path"),
    )
    start: Column = sf.col("session.start")
    # Spark's session ends where a request would no longer belong to it.
    end = sf.col("session.end") - sf.expr(f"interval {gap_s} seconds")
    return found.select(
        sf.col("topic").alias("site"),
        "client",
        start.alias("session_start"),
        end.alias("session_end"),
        (sf.unix_seconds(end) - sf.unix_seconds(start)).alias("duration_s"),
        *("requests", "errors", "bytes", "entry_path", "exit_path"),
    )
