"""Measure reads of a topic as table and stream, and of as many rows from JSON files, Parquet, tuples, or nothing."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from loadtest.bench.spark.bare import FORMAT as BARE_FORMAT
from loadtest.bench.spark.session import VALUE_BYTES
from loadtest.bench.spark.tuples import FORMAT as TUPLES
from loadtest.bench.spark.ways import (
    BARE,
    JSON_LINES,
    MILENA,
    PARQUET,
    TUPLES_WAY,
    MeasuredOperation,
)

Frame = Callable[[], DataFrame]
Action = Callable[[DataFrame], int]


def read_operations(
    spark: SparkSession, url: str, topic: str, records: int, folder: Path
) -> list[MeasuredOperation]:
    """Measure reads; the files are written from the topic."""

    def rows(name: str) -> DataFrame:
        return spark.read.format(name).options(url=url, subscribe=topic).load()

    text = rows(MILENA).withColumn("value", sf.col("value").cast("string"))
    json_folder, parquet_folder = str(folder / "json"), str(folder / "parquet")
    text.write.json(json_folder)
    rows(MILENA).write.parquet(parquet_folder)
    bare = {"records": records, "valueBytes": VALUE_BYTES}
    tables: dict[str, Frame] = {
        MILENA: lambda: rows(MILENA),
        JSON_LINES: lambda: spark.read.schema(text.schema).json(json_folder),
        BARE: lambda: spark.read.format(BARE_FORMAT).options(**bare).load(),
        TUPLES_WAY: lambda: rows(TUPLES),
        PARQUET: lambda: spark.read.parquet(parquet_folder),
    }
    streams: dict[str, Frame] = {
        MILENA: lambda: (
            spark.readStream.format(MILENA)
            .options(url=url, subscribe=topic, startingOffsets="earliest")
            .load()
        ),
        JSON_LINES: lambda: spark.readStream.schema(text.schema).json(json_folder),
        BARE: lambda: spark.readStream.format(BARE_FORMAT).options(**bare).load(),
    }

    def table(name: str, action: Action, targets: dict[str, float]) -> MeasuredOperation:
        ways = {way: lambda read=read: action(read()) for way, read in tables.items()}
        return MeasuredOperation(name=name, ways=ways, records=records, targets=targets)

    def stream(name: str, action: Action, targets: dict[str, float]) -> MeasuredOperation:
        ways = {way: lambda read=read: _streamed(read(), action) for way, read in streams.items()}
        return MeasuredOperation(name=name, ways=ways, records=records, targets=targets)

    def archive(frame: DataFrame) -> int:
        frame.write.mode("overwrite").parquet(str(folder / "archive"))
        return spark.read.parquet(str(folder / "archive")).count()

    # A count has almost only the cost that Spark has for any Python source, so the bare source is its reference. Our
    # own part, from the node's disk to the Arrow batch, may take as long again (0.5). A stream has a higher cost in
    # Spark, so there our part may take half of that (0.7).
    return [
        table("count", count, {BARE: 0.5, TUPLES_WAY: 2.5}),
        table("aggregate", aggregate, {JSON_LINES: 1.1}),
        table("archive", archive, {JSON_LINES: 1.3}),
        stream("stream count", count, {BARE: 0.7}),
        stream("stream aggregate", aggregate, {JSON_LINES: 1.0}),
    ]


def count(frame: DataFrame) -> int:
    """Return the number of rows."""
    return frame.count()


def aggregate(frame: DataFrame) -> int:
    """Group by partition, with an aggregate of each column; return the number of rows."""
    grouped = frame.groupBy("partition").agg(
        sf.count("*").alias("records"),
        sf.max("offset"),
        sf.max("timestamp"),
        sf.sum(sf.length("value")),
    )
    return sum(row.records for row in grouped.collect())


def _streamed(frame: DataFrame, action: Action) -> int:
    """Apply the action to each micro-batch of all current rows. Spark makes a temporary checkpoint, and removes it."""
    found = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.append(action(batch)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(found)
