"""Start a node, fill a topic, and start a Spark session for measurements."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from loadtest.bench.spark.bare import BareDataSource
from loadtest.bench.spark.tuples import TupleDataSource
from loadtest.cluster.local_cluster import LocalCluster
from milena import sync
from spark_ext import register

VALUE_BYTES = 100
ROOT = Path(__file__).parents[3]


@contextmanager
def one_node(folder: Path) -> Iterator[LocalCluster]:
    """Start a cluster of one node, and wait until it is ready."""
    cluster = LocalCluster(folder / "nodes", node_count=1)
    cluster.start()
    try:
        asyncio.run(cluster.wait_ready())
        yield cluster
    finally:
        cluster.kill()


@contextmanager
def warm_session(folder: Path, cores: int) -> Iterator[SparkSession]:
    """Yield a session that knows our source and the sources that are compared with it."""
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
        # A query that is stopped within a batch would log an error.
        "spark.log.level": "FATAL",
        "spark.sql.shuffle.partitions": str(cores),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(f"local[{cores}]").appName("bench-spark").getOrCreate()
    try:
        register(spark)
        spark.dataSource.register(TupleDataSource)
        spark.dataSource.register(BareDataSource)
        yield spark
    finally:
        spark.stop()


def fill(url: str, topic: str, records: int, partitions: int) -> None:
    """Fill a topic with values that are JSON objects, like those of most topics."""
    with sync.Client(url) as client:
        client.admin.create_topic(topic, partitions=partitions, replication_factor=1)
        with client.producer() as producer:
            for number in range(records):
                text = (
                    f'{{"id": {number}, "user": "u{number % 9973}", "path": "/page/{number % 211}"'
                )
                value = text.ljust(VALUE_BYTES - 1).encode() + b"}"
                producer.send(topic, value, partition=number % partitions)
