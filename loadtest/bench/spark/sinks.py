"""Measure an exactly-once stream from files to a topic, the same stream to other sinks, and a plain write."""

from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import SparkSession

from loadtest.bench.spark.bare import FORMAT as BARE_FORMAT
from loadtest.bench.spark.ways import BARE, MILENA, PARQUET, MeasuredOperation
from milena import sync

NOTHING, PLAIN = "no sink", "plain write"
FILES = 4
"""The number of files; each is a micro-batch."""


def sink_operation(
    spark: SparkSession, url: str, folder: Path, *, records: int
) -> MeasuredOperation:
    """Return the ways to write; each run writes to its own topic or folder.

    Targets: at most twice the time of no sink, at least 0.7 of a plain write's rate.
    """
    made = spark.range(records).selectExpr(
        "cast(id as string) as key", "rpad(concat('{\"id\": ', id, '}'), 100, ' ') as value"
    )
    source = str(folder / "sink-input")
    made.repartition(FILES).write.parquet(source)
    numbers = count(1)

    def topic() -> str:
        name = f"sink-{next(numbers)}"
        with sync.Client(url) as client:
            client.admin.create_topic(name, partitions=2, replication_factor=1)
        return name

    def run(form: str, **options: str) -> int:
        reader = spark.readStream.schema(made.schema).option("maxFilesPerTrigger", 1)
        writer = reader.parquet(source).writeStream.format(form).options(**options)
        writer = writer.option("checkpointLocation", mkdtemp(dir=folder))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(batch["numInputRows"] for batch in query.recentProgress)

    def written() -> int:
        rows = spark.read.parquet(source)
        rows.write.format(MILENA).options(url=url, topic=topic()).mode("append").save()
        return records

    return MeasuredOperation(
        name="sink",
        ways={
            MILENA: lambda: run(MILENA, url=url, topic=topic()),
            PARQUET: lambda: run("parquet", path=mkdtemp(dir=folder)),
            NOTHING: lambda: run("noop"),
            BARE: lambda: run(BARE_FORMAT),
            PLAIN: written,
        },
        records=records,
        targets={NOTHING: 0.5, PLAIN: 0.7},
    )
