"""Select the events that count, by the time at which they happened, in streams and tables.

A job that counts by event time first turns records into *events*: rows with ``time`` and ``reason``. A ``reason`` says
why the record could not be read; the other columns of such a row are undefined.

The rule is Spark's. The watermark of a micro-batch is the latest event time of all earlier batches, minus the lateness
that the job allows. It never moves back. At the end of a batch, every window that ends at or before the watermark is
written, with the events of this batch, and closed. An event of a closed window is late, and is dropped. So a window is
written once, and a window stays open until a later event closes it. Lateness depends only on event times, not on how
long the job was stopped. In a table nothing is late, and every window is written.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

AHEAD_MAX = "1 hour"
"""How far an event may be ahead of its record's timestamp. A node lets a timestamp be as far ahead of its own clock."""


def dated(events: DataFrame) -> DataFrame:
    """Return the events; an event whose time is too far ahead of its record's ``timestamp`` gets a reason.

    One event with a time in the next year would close all windows until then, and make every other event late.
    """
    latest = sf.col("timestamp") + sf.expr(f"interval {AHEAD_MAX}")
    is_ahead = sf.col("reason").isNull() & (sf.col("time") > latest)
    reason = sf.when(is_ahead, f"ahead of its record by more than {AHEAD_MAX}")
    return events.withColumn("reason", reason.otherwise(sf.col("reason")))


def in_time(events: DataFrame, *, late_s: int) -> DataFrame:
    """Return events without a reason, with a watermark ``late_s`` seconds behind the latest of them."""
    return events.where(sf.col("reason").isNull()).withWatermark("time", f"{late_s} seconds")
