"""Find sessions: requests of one client to a site without a pause longer than ``gap_s`` seconds.

A site is a topic of access-log lines. The functions work on a stream or a table of events (``events.watermark``) with
the columns ``topic``, ``client``, ``time``, ``path``, ``status`` and ``bytes``.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


def sessions_of(events: DataFrame, *, gap_s: int) -> DataFrame:
    """Return a row per session, from its first request to its last. Paths are null if no request has one.

    Requests of the same second have no order. Of these the entry is the first path by name, and the exit the last.

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
    # Spark's session ends ``gap_s`` after its last request.
    end = sf.col("session.end") - sf.expr(f"interval {gap_s} seconds")
    return found.select(
        sf.col("topic").alias("site"),
        "client",
        start.alias("session_start"),
        end.alias("session_end"),
        (sf.unix_seconds(end) - sf.unix_seconds(start)).alias("duration_s"),
        *("requests", "errors", "bytes", "entry_path", "exit_path"),
    )
