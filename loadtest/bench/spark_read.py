"""How fast Spark reads a topic: count, aggregate and archive, beside the same rows as JSON lines files and as tuples.

    python -m loadtest.bench.spark_read [--records 2000000] [--partitions 16] [--rounds 5] [--json FILE]

All ways run in one warm session, alternating within each round, so that what else the machine does meets all of them;
ratios are taken round by round, and their median counts. CPU is that of everything that was started here, the node
included.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from loadtest.bench.process_cpu import tree_cpu_s
from loadtest.bench.spark_tuples import FORMAT as TUPLES
from loadtest.bench.spark_tuples import TupleDataSource
from loadtest.local_cluster import LocalCluster
from milena import sync
from spark_ext import register

TOPIC = "spark-read"
VALUE_BYTES = 100
ROOT = Path(__file__).parents[2]

MILENA, JSON_LINES, PARQUET = "milena", "json lines", "parquet"
COUNT, AGGREGATE, ARCHIVE = "count", "aggregate", "archive"

TARGETS = {
    (COUNT, JSON_LINES): 1.5,
    (AGGREGATE, JSON_LINES): 1.1,
    (ARCHIVE, JSON_LINES): 1.3,
    (COUNT, TUPLES): 2.5,
}
"""How many times faster than the other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One run of one way of one operation."""

    operation: str
    way: str
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkComparison:
    """Milena against another way: medians of the ratios of the rounds, above 1 when Milena is faster."""

    operation: str
    other: str
    wall: float
    cpu: float
    target: float | None


@click.command(context_settings={"show_default": True})
@click.option("--records", type=click.IntRange(min=1), default=2_000_000)
@click.option("--partitions", type=click.IntRange(min=1), default=16)
@click.option("--rounds", type=click.IntRange(min=1), default=5)
@click.option("--cores", type=click.IntRange(min=1), default=2, help="Of local[n].")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write all figures to a file.")  # fmt: skip
def main(*, records: int, partitions: int, rounds: int, cores: int, json_path: Path | None) -> None:
    """Measure Spark's reading of a topic."""
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name)) as url:
        folder = Path(name)
        _fill(url, records, partitions)
        with _session(folder, cores) as spark:
            ways = _ways(spark, url, folder)
            tasks = ways[MILENA]().rdd.getNumPartitions()
            click.echo(
                f"{records:,} records of {VALUE_BYTES} B in {partitions} partitions, "
                f"{tasks} tasks on {cores} cores"
            )
            measured = _measure(spark, ways, folder, records, rounds)
    comparisons = _compare(measured)
    _show(measured, comparisons, records)
    if json_path is not None:
        figures = {
            "records": records,
            "partitions": partitions,
            "cores": cores,
            "tasks": tasks,
            "runs": [asdict(run) for run in measured],
            "comparisons": [asdict(each) for each in comparisons],
        }
        json_path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    cluster = LocalCluster(folder / "nodes", node_count=1)
    cluster.start()
    try:
        asyncio.run(cluster.wait_ready())
        yield cluster.node(1).url
    finally:
        cluster.kill()


@contextmanager
def _session(folder: Path, cores: int) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(f"local[{cores}]").appName("spark-read").getOrCreate()
    try:
        register(spark)
        spark.dataSource.register(TupleDataSource)
        yield spark
    finally:
        spark.stop()


def _fill(url: str, records: int, partitions: int) -> None:
    """Values are JSON objects, as most topics hold them."""
    with sync.Client(url) as client:
        client.admin.create_topic(TOPIC, partitions=partitions, replication_factor=1)
        with client.producer() as producer:
            for number in range(records):
                text = (
                    f'{{"id": {number}, "user": "u{number % 9973}", "path": "/page/{number % 211}"'
                )
                value = text.ljust(VALUE_BYTES - 1).encode() + b"}"
                producer.send(TOPIC, value, partition=number % partitions)


Way = Callable[[], DataFrame]


def _ways(spark: SparkSession, url: str, folder: Path) -> dict[str, Way]:
    """The rows of the topic, read in different ways; the files are written from the topic."""

    def topic(name: str) -> DataFrame:
        return spark.read.format(name).options(url=url, subscribe=TOPIC).load()

    rows = topic(MILENA).withColumn("value", sf.col("value").cast("string"))
    json_folder, parquet_folder = str(folder / "json"), str(folder / "parquet")
    rows.write.json(json_folder)
    topic(MILENA).write.parquet(parquet_folder)
    return {
        MILENA: lambda: topic(MILENA),
        JSON_LINES: lambda: spark.read.schema(rows.schema).json(json_folder),
        TUPLES: lambda: topic(TUPLES),
        PARQUET: lambda: spark.read.parquet(parquet_folder),
    }


def _measure(
    spark: SparkSession, ways: dict[str, Way], folder: Path, records: int, rounds: int
) -> list[TimedRun]:
    archive = str(folder / "archive")
    operations: dict[str, Callable[[DataFrame], int | None]] = {
        COUNT: lambda frame: frame.count(),
        AGGREGATE: _aggregate,
        ARCHIVE: lambda frame: frame.write.mode("overwrite").parquet(archive),
    }
    measured = []
    # The first round warms the JVM up and is thrown away.
    for number in range(rounds + 1):
        for operation, run in operations.items():
            for way, read in ways.items():
                cpu_s, wall_s = tree_cpu_s(), time.perf_counter()
                found = run(read())
                wall_s, cpu_s = time.perf_counter() - wall_s, tree_cpu_s() - cpu_s
                if operation == ARCHIVE:
                    found = spark.read.parquet(archive).count()
                if found != records:
                    raise click.ClickException(f"{operation} of {way} found {found} records")
                if number:
                    measured.append(
                        TimedRun(operation=operation, way=way, wall_s=wall_s, cpu_s=cpu_s)
                    )
    return measured


def _aggregate(frame: DataFrame) -> int:
    grouped = frame.groupBy("partition").agg(
        sf.count("*").alias("records"),
        sf.max("offset"),
        sf.max("timestamp"),
        sf.sum(sf.length("value")),
    )
    return sum(row.records for row in grouped.collect())


def _compare(measured: list[TimedRun]) -> list[SparkComparison]:
    by_key: dict[tuple[str, str], list[TimedRun]] = {}
    for run in measured:
        by_key.setdefault((run.operation, run.way), []).append(run)
    comparisons = []
    for (operation, way), theirs in by_key.items():
        if way == MILENA:
            continue
        ours = by_key[operation, MILENA]
        pairs = list(zip(ours, theirs, strict=True))
        comparisons.append(
            SparkComparison(
                operation=operation,
                other=way,
                wall=statistics.median(b.wall_s / a.wall_s for a, b in pairs),
                cpu=statistics.median(b.cpu_s / a.cpu_s for a, b in pairs),
                target=TARGETS.get((operation, way)),
            )
        )
    return comparisons


def _show(measured: list[TimedRun], comparisons: list[SparkComparison], records: int) -> None:
    click.echo(f"{'':10}{'':15}{'wall s':>8}{'CPU s':>8}{'k rec/s':>9}{'k rec/CPU s':>13}")
    for operation, way in dict.fromkeys((run.operation, run.way) for run in measured):
        runs = [run for run in measured if (run.operation, run.way) == (operation, way)]
        wall_s = statistics.median(run.wall_s for run in runs)
        cpu_s = statistics.median(run.cpu_s for run in runs)
        rates = f"{records / wall_s / 1000:>9.0f}{records / cpu_s / 1000:>13.0f}"
        click.echo(f"{operation:10}{way:15}{wall_s:>8.2f}{cpu_s:>8.2f}{rates}")
    click.echo("")
    click.echo(f"{'times faster':10}{'':13}{'wall':>8}{'CPU':>8}{'target':>9}")
    for each in comparisons:
        target = "" if each.target is None else f"{each.target:.1f}"
        click.echo(
            f"{each.operation:10}{each.other:15}{each.wall:>8.2f}{each.cpu:>8.2f}{target:>9}"
        )


if __name__ == "__main__":
    main()
