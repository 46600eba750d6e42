"""Events by the time at which they happened: which of them count, and when they come too late (for streams and tables).

A job that counts by event time makes of records *events*: rows with ``time`` and ``reason``, where a reason says why
the record is no event, and nothing else of such a row means anything.

The rule of the watermark, as Spark has it: the watermark of a micro-batch is the latest time of the events of all
batches before it, less the lateness that the job allows, and never moves back. At the end of a batch every window that
ends at or before its watermark is written, with the events of that batch, and is closed: an event of a closed window is
late, and is left out. So a window is written once; one that no later event has closed stays open. Lateness is a matter
of event times alone: how long the job did not run is none of it. In a table nothing is late, and
every window is written.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

AHEAD_MAX = "1 hour"
"""How far an event may be ahead of its record's timestamp: as far as a cluster lets that be ahead of its clock."""


def dated(events: DataFrame) -> DataFrame:
    """The events, where those whose time is too far ahead of their record's ``timestamp`` have a reason.

    One event that claims to be of next year would close all windows until then, and make every other event late.
    """
    latest = sf.col("timestamp") + sf.expr(f"interval {AHEAD_MAX}")
    is_ahead = sf.col("reason").isNull() & (sf.col("time") > latest)
    reason = sf.when(is_ahead, f"ahead of its record by more than {AHEAD_MAX}")
    return events.withColumn("reason", reason.otherwise(sf.col("reason")))


def in_time(events: DataFrame, *, late_s: int) -> DataFrame:
    """Events that have no reason, with the watermark ``late_s`` seconds behind the latest of them."""
    return events.where(sf.col("reason").isNull()).withWatermark("time", f"{late_s} seconds")
