"""Measure an exactly-once stream from files to a topic, the same stream to other sinks, and a plain write."""

from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import DataFrame, SparkSession

from loadtest.bench.spark.bare import FORMAT as BARE_FORMAT
from loadtest.bench.spark.ways import BARE, MILENA, PARQUET, MeasuredOperation
from milena import sync

NOTHING, PLAIN = "no sink", "plain write"
FILES = 4
"""The number of files; each is a micro-batch."""


class SinkWays:
    """The ways to write; each run writes to its own topic or folder."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, *, records: int) -> None:
        self._spark, self._url, self._folder = spark, url, folder
        self._runs = 0
        self._input = str(folder / "sink-input")
        rows = spark.range(records).selectExpr(
            "cast(id as string) as key", "rpad(concat('{\"id\": ', id, '}'), 100, ' ') as value"
        )
        rows.repartition(FILES).write.parquet(self._input)
        self._schema = rows.schema
        self._records = records

    def operation(self) -> MeasuredOperation:
        """Return the operation. Targets: at most twice the time of no sink, at least 0.7 of a plain write's rate."""
        return MeasuredOperation(
            name="sink",
            ways={
                MILENA: self._to_topic,
                PARQUET: self._to_files,
                NOTHING: self._to_nothing,
                BARE: self._to_bare,
                PLAIN: self._written,
            },
            records=self._records,
            targets={NOTHING: 0.5, PLAIN: 0.7},
        )

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(self._input)

    def _topic(self) -> str:
        self._runs += 1
        name = f"sink-{self._runs}"
        with sync.Client(self._url) as client:
            client.admin.create_topic(name, partitions=2, replication_factor=1)
        return name

    def _run(self, name: str, **options: str) -> int:
        checkpoint = mkdtemp(dir=self._folder)
        writer = self._stream().writeStream.format(name).options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(batch["numInputRows"] for batch in query.recentProgress)

    def _to_topic(self) -> int:
        return self._run(MILENA, url=self._url, topic=self._topic())

    def _to_files(self) -> int:
        return self._run("parquet", path=mkdtemp(dir=self._folder))

    def _to_nothing(self) -> int:
        return self._run("noop")

    def _to_bare(self) -> int:
        return self._run(BARE_FORMAT)

    def _written(self) -> int:
        rows = self._spark.read.parquet(self._input)
        rows.write.format(MILENA).options(url=self._url, topic=self._topic()).mode("append").save()
        return self._records
