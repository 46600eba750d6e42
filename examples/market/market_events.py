"""Parse JSON records about the demand and supply of areas into columns, with Spark's own functions.

    {"kind": "demand", "area": "north", "time": "2026-01-31T08:15:00Z", "count": 2}
    {"kind": "supply", "area": "north", "time": "2026-01-31T09:15:00.250+01:00"}

``count`` is the number of requests or offers; its default is 1. Other fields are ignored. An unreadable record does not
stop the job, but gets a ``reason``.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

KINDS = ("demand", "supply")
COUNT_MAX = 1_000_000_000
"""The largest count of an event; it keeps the sums of a window far below 64 bits."""

_FIELDS = "kind string, area string, time string, count string"
_TIME_SHAPE = r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)\z"
"""The form of a time with its offset: a cast alone would also accept a year, or an hour of today."""
_COUNT_SHAPE = r"\A\d{1,10}\z"


def market_events(records: DataFrame) -> DataFrame:
    """Return the records with the columns ``kind, area, time, count`` and ``reason``; other columns stay.

    ``reason`` is null if the record could be read.
    """
    text = sf.make_valid_utf8(sf.col("value").cast("string"))
    fields = records.withColumn("fields", sf.from_json(text, _FIELDS))
    time = sf.col("fields.time")
    count = sf.coalesce("fields.count", sf.lit("1"))
    return (
        fields.withColumns(
            {
                "kind": sf.col("fields.kind"),
                "area": sf.col("fields.area"),
                "time": sf.when(time.rlike(_TIME_SHAPE), sf.try_to_timestamp(time)),
                "count": sf.when(count.rlike(_COUNT_SHAPE), count.try_cast("long")),
            }
        )
        .withColumn("reason", _reason())
        .drop("fields")
    )


def _reason() -> Column:
    return (
        sf.when(sf.col("value").isNull(), "no value")
        .when(sf.col("fields").isNull(), "no JSON object")
        .when(sf.col("kind").isNull() | ~sf.col("kind").isin(*KINDS), "neither demand nor supply")
        .when(sf.col("area").isNull() | (sf.col("area") == ""), "no area")
        .when(sf.col("time").isNull(), "no such time")
        .when(sf.col("count").isNull() | ~sf.col("count").between(1, COUNT_MAX), "no such count")
    )
