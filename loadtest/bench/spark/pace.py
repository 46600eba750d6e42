"""Measure streams at a fixed rate: the duration of small micro-batches, and the delay of a record to its target topic.

The duration is compared with that of Spark's source ``rate``. The delay starts before a record is sent, and ends when a
reader of committed records has the record from the target topic. In between are a producer, the source's watch, a
micro-batch at the shortest trigger, its transaction, and a fetch. Both times are by this process's clock.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from loadtest.bench.spark.bare import FORMAT as BARE_FORMAT
from loadtest.bench.spark.session import VALUE_BYTES
from loadtest.bench.spark.ways import BARE, MILENA, RATE
from milena import sync

RATE_PER_S = 500
POLL_S = 0.002
SETTLED_BATCHES = 3
"""The first batches of a query, during which its Python workers start."""


@contextmanager
def _paced(url: str, topic: str, per_second: float) -> Iterator[None]:
    """Write records during the block, each with the time at which it was sent."""
    is_over = Event()

    def write() -> None:
        with sync.Client(url) as client, client.producer() as producer:
            due_s = time.perf_counter()
            while not is_over.wait(max(0.0, due_s - time.perf_counter())):
                producer.send(topic, str(time.perf_counter_ns()).encode(), partition=0)
                due_s += 1 / per_second

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            is_over.set()
            writing.result()


def batches_ms(
    spark: SparkSession, url: str, folder: Path, *, turns: int, seconds: float
) -> list[dict[str, float]]:
    """Return each turn's median duration of a small micro-batch: of a topic, of ``rate``, of a bare Python source.

    Records are written to the topic in every turn, because the writer needs the processor, too. A first turn warms the
    JVM up and is not counted.
    """
    name = "paced"
    with sync.Client(url) as client:
        client.admin.create_topic(name, partitions=1, replication_factor=1)
    few = {"records": RATE_PER_S // 4, "valueBytes": VALUE_BYTES}
    ways = {
        RATE: spark.readStream.format("rate").option("rowsPerSecond", RATE_PER_S).load(),
        BARE: spark.readStream.format(BARE_FORMAT).options(**few).load(),
        MILENA: spark.readStream.format("milena").options(url=url, subscribe=name).load(),
    }

    def turn() -> dict[str, float]:
        return {
            way: statistics.median(_durations_ms(rows, folder, seconds))
            for way, rows in ways.items()
        }

    with _paced(url, name, RATE_PER_S):
        return [turn() for _ in range(turns + 1)][1:]


def _durations_ms(rows: DataFrame, folder: Path, seconds: float) -> list[float]:
    writer = rows.writeStream.format("noop").option("checkpointLocation", mkdtemp(dir=folder))
    query = writer.start()
    try:
        _settle(query)
        query.awaitTermination(int(seconds))
        last = query.recentProgress[SETTLED_BATCHES:]
    finally:
        query.stop()
    return [batch["durationMs"]["triggerExecution"] for batch in last if batch["numInputRows"]]


def _settle(query: StreamingQuery) -> None:
    while len([b for b in query.recentProgress if b["numInputRows"]]) < SETTLED_BATCHES:
        query.awaitTermination(1)


def delays_ms(spark: SparkSession, url: str, folder: Path, *, seconds: float) -> list[float]:
    """Return the delay in ms of each record that a stream copied from topic to topic within ``seconds``."""
    with sync.Client(url) as client:
        for name in ("delay-from", "delay-to"):
            client.admin.create_topic(name, partitions=1, replication_factor=1)
    rows = spark.readStream.format("milena").options(url=url, subscribe="delay-from").load()
    writer = rows.select("value").writeStream.format("milena").options(url=url, topic="delay-to")
    query = writer.option("checkpointLocation", mkdtemp(dir=folder)).start()
    try:
        with _paced(url, "delay-from", RATE_PER_S / 10):
            _settle(query)
            return list(_arrivals_ms(url, "delay-to", seconds))
    finally:
        query.stop()


def _arrivals_ms(url: str, topic: str, seconds: float) -> Iterator[float]:
    with sync.Client(url) as client:
        view = client.admin.topic(topic)
        (ends,) = client.admin.offsets(view)
        at, end_s = ends.high_watermark, time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            with client.reader(topic, 0, start=at) as reader:
                for record in reader:
                    assert record.value is not None, "a time was written"
                    yield (time.perf_counter_ns() - int(record.value)) / 1e6
                    at = record.offset + 1
            time.sleep(POLL_S)
