"""Measure the memory of a stream from topic to topic over many micro-batches, for each kind of process.

    python -m loadtest.bench.spark.memory [--records 10000000]

Growth is the difference between the second third of the run and the last third. The first third does not count, because
caches fill in it. A JVM takes all the memory that it may before it collects garbage, and gives little back. So for the
JVM the heap that is in use after a collection counts. The exit code is 1 if something grows by more than
``--growth-max``, or records are missing.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from time import perf_counter

import click
import psutil
from pyspark.sql import SparkSession

from loadtest.bench.measuring.process_cpu import tree
from loadtest.bench.spark.session import VALUE_BYTES, one_node, warm_session
from milena import sync

SOURCE, TARGET = "memory-from", "memory-to"
VALUE = f"rpad(concat('{{\"id\": ', id, '}}'), {VALUE_BYTES}, ' ') as value"
SAMPLE_S = 0.5
HEAP_SAMPLES = 4
"""Measure the heap only at each fourth sample, because the collection before it halts the JVM."""

JVM, HEAP, WORKERS, NODE = "JVM", "JVM's heap", "Python workers", "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindMemory:
    """The memory of a kind of process, in MB: the median in each third of a run, and the maximum."""

    kind: str
    thirds: tuple[float, ...]
    most: float

    @property
    def growth(self) -> float:
        """Return the growth of the last third over the second third."""
        return self.thirds[-1] / self.thirds[-2] - 1 if self.thirds[-2] else 0.0

    @property
    def is_judged(self) -> bool:
        """Return whether the growth of this kind counts; the JVM's heap counts in the place of the JVM."""
        return self.kind != JVM


class MemoryWatch:
    """Samples the memory of all processes that this process started, until ``watching`` ends.

    ``heap_mb`` returns the memory in use in the JVM's heap after a collection.
    """

    def __init__(self, heap_mb: Callable[[], float]) -> None:
        self.samples: list[dict[str, float]] = []
        self._heap_mb = heap_mb
        self._is_over = Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take samples during the block."""
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self._look)
            try:
                yield
            finally:
                self._is_over.set()
                looking.result()

    def _look(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            is_turn = len(self.samples) % HEAP_SAMPLES == 0
            heap = {HEAP: self._heap_mb()} if is_turn else {}
            self.samples.append(resident_mb() | heap)

    def by_kind(self) -> list[KindMemory]:
        """Return the measured memory, kind by kind."""
        kinds = sorted({kind for sample in self.samples for kind in sample})
        return [_in_thirds(kind, [s[kind] for s in self.samples if kind in s]) for kind in kinds]


def _in_thirds(kind: str, seen_mb: Sequence[float]) -> KindMemory:
    third = max(1, len(seen_mb) // 3)
    parts = (seen_mb[:third], seen_mb[third : 2 * third], seen_mb[2 * third :])
    thirds = tuple(statistics.median(part) for part in parts)
    return KindMemory(kind=kind, thirds=thirds, most=max(seen_mb))


def heap_after_collection_mb(spark: SparkSession) -> float:
    """Return the JVM's live heap after a collection, in MB, without memory that it merely has not released."""
    assert spark._jvm is not None, "it is not a session of Spark Connect"
    java = spark._jvm.java.lang
    java.System.gc()
    found: int = java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    return found / 1e6


def resident_mb() -> dict[str, float]:
    """Return the resident MB of the JVM, of all Python workers, and of all nodes; this process is left out."""
    found: dict[str, float] = {}
    for process in tree()[1:]:
        # The process may end while it is measured.
        with suppress(psutil.Error):
            kind = _kind_of(process.cmdline())
            found[kind] = found.get(kind, 0.0) + process.memory_info().rss / 1e6
    return found


def _kind_of(command: Sequence[str]) -> str:
    if command and "java" in command[0]:
        return JVM
    return WORKERS if any("pyspark" in word for word in command) else NODE


@click.command(context_settings={"show_default": True})
@click.option("--records", type=click.IntRange(min=1000), default=10_000_000)
@click.option("--partitions", type=click.IntRange(min=1), default=8)
@click.option("--batches", type=click.IntRange(min=3), default=30, help="Micro-batches, about.")
@click.option("--cores", type=click.IntRange(min=1), default=2, help="Of local[n].")
@click.option("--growth-max", type=click.FloatRange(min=0), default=0.1)
@click.option("--out", default="bench-report", type=click.Path(file_okay=False, path_type=Path))
def main(
    *, records: int, partitions: int, batches: int, cores: int, growth_max: float, out: Path
) -> None:
    """Watch the memory of a stream from topic to topic."""
    with (
        tempfile.TemporaryDirectory() as name,
        one_node(Path(name)) as cluster,
        warm_session(Path(name), cores) as spark,
    ):
        url = cluster.node(1).url
        watch = MemoryWatch(lambda: heap_after_collection_mb(spark))
        with sync.Client(url) as client:
            for topic in (SOURCE, TARGET):
                client.admin.create_topic(topic, partitions=partitions, replication_factor=1)
        made = spark.range(records).selectExpr("cast(id as string) as key", VALUE)
        made.write.format("milena").options(url=url, topic=SOURCE).mode("append").save()
        click.echo(f"{records:,} records are there", err=True)
        rows = (
            spark.readStream.format("milena")
            .options(url=url, subscribe=SOURCE, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", -(-records // batches))
            .load()
        )
        writer = rows.select("key", "value", "partition").writeStream.format("milena")
        writer = writer.options(url=url, topic=TARGET, checkpointLocation=f"{name}/checkpoint")
        began_s = perf_counter()
        with watch.watching():
            writer.trigger(availableNow=True).start().awaitTermination()
        seconds = perf_counter() - began_s
        copy = spark.read.format("milena").options(url=url, subscribe=TARGET)
        found = copy.schema("offset bigint").load().count()
    kinds = watch.by_kind()
    lines = [
        f"{records:,} records in {seconds:,.0f} s ({records / seconds:,.0f}/s), {found:,} in the target"
    ]
    lines += [
        f"{each.kind:15} MB in thirds {', '.join(f'{mb:,.0f}' for mb in each.thirds)}; most {each.most:,.0f}; "
        f"last third {each.growth:+.1%}"
        for each in kinds
    ]
    report = "\n".join(lines)
    out.mkdir(parents=True, exist_ok=True)
    figures = {"records": records, "seconds": seconds, "memory": [asdict(each) for each in kinds]}
    (out / "bench-spark-memory.json").write_text(
        json.dumps(figures, indent=2) + "\n", encoding="utf-8"
    )
    click.echo(report)
    is_flat = all(each.growth <= growth_max for each in kinds if each.is_judged)
    sys.exit(0 if is_flat and found == records else 1)


if __name__ == "__main__":
    main()
