"""Run a replay: check the request, bind the name to it, and write the remaining files, each in its own transaction.

Source partitions are written in parallel, the files of a partition one after the other. A file is one Spark task with
its rows in offset order, so records keep their order. After the start of its transaction, the task finds out whether
its file is already committed. The positions that a run reads before that only save work.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from milena.disk.files import Files
from milena.model.clock import SystemClock
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.manifest import ArchivedFile, PartitionArchive
from spark_ext.jobs.archiving.reader import read_files
from spark_ext.jobs.archiving.verify import verify_file
from spark_ext.jobs.replaying.plan import (
    ReplayFilter,
    ReplaySource,
    agreed_number,
    files_below,
    find_source,
    require_partitions,
)
from spark_ext.jobs.replaying.report import PartitionReplay, ReplayReport, notes_on
from spark_ext.jobs.replaying.target import ReplayTarget
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.errors import DamagedArchiveError, JobInputError

EVERYTHING = ReplayFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWanted:
    """The request of a replay: a topic of an archive, the target topic, and the replay's name.

    ``topic`` None means the only topic of the archive, ``topic_id`` None the only id of that topic. ``to`` None means
    the topic of the same name.
    """

    root: str
    cluster: JobCluster
    name: str
    topic: str | None = None
    topic_id: str | None = None
    to: str | None = None
    chosen: ReplayFilter = EVERYTHING
    is_by_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """The counts of a written file; ``first_ms`` is the earliest time."""

    records: int
    size_bytes: int
    first_ms: int | None


def run_replay(
    files: Files,
    wanted: ReplayWanted,
    session: Callable[[], SparkSession],
    *,
    on_records: Callable[[int], None] = lambda _: None,
) -> ReplayReport:
    """Write the remaining files. ``session`` is called only if there are any, ``on_records`` after each file.

    Raises:
        JobInputError: the archive, the topic or the name does not allow the replay; nothing was written.
        DamagedArchiveError: a file differs from its entry in the manifest; earlier files may have been written.
    """
    source = find_source(
        read_manifest(files, wanted.root), wanted.topic, wanted.topic_id, wanted.chosen
    )
    to = source.topic if wanted.to is None else wanted.to
    target = ReplayTarget(cluster=wanted.cluster, topic=to, name=wanted.name)
    state = target.state()
    partition_count = len(state.partitions)
    if (source.cluster_id, source.topic_id) == (
        state.cluster_id,
        state.partitions[0].key.topic_id,
    ):
        raise JobInputError(
            f"topic {to} is what was archived: its records would be there twice. Name another topic with --to, or "
            "another cluster with --url"
        )
    if not wanted.is_by_key:
        require_partitions(source, to, partition_count)
    number = agreed_number(source, wanted.chosen, to, is_by_key=wanted.is_by_key)
    starts = target.agree(number, [p.key.partition for p in source.partitions])
    replay = _Replay(files, wanted, target, partition_count, on_records)
    found, first_ms = replay.run(source, starts, session)
    return ReplayReport(
        name=wanted.name,
        topic=to,
        partitions=found,
        notes=notes_on(target.view(), first_ms, SystemClock().wall_ms()),
    )


class _Replay:
    """Writes the remaining files of one run to the target topic."""

    def __init__(
        self,
        files: Files,
        wanted: ReplayWanted,
        target: ReplayTarget,
        partition_count: int,
        on_records: Callable[[int], None],
    ) -> None:
        self._files = files
        self._wanted = wanted
        self._target = target
        self._partition_count = partition_count
        self._on_records = on_records
        self._is_over = Event()

    def run(
        self, source: ReplaySource, starts: dict[int, int], session: Callable[[], SparkSession]
    ) -> tuple[tuple[PartitionReplay, ...], int | None]:
        """Write all partitions; return the counts of each, and the earliest time of a record."""
        skipped = [files_below(p, starts[p.key.partition]) for p in source.partitions]
        found = [
            PartitionReplay(
                partition=p.key.partition, next_offset=starts[p.key.partition], skipped=count
            )
            for p, count in zip(source.partitions, skipped, strict=True)
        ]
        left = [i for i, p in enumerate(source.partitions) if len(p.files) > skipped[i]]
        if not left:
            return tuple(found), None
        spark = session()
        workers = min(len(left), spark.sparkContext.defaultParallelism)
        with ThreadPoolExecutor(workers, "replay", partial(_make_active, spark)) as pool:
            futures = {
                i: pool.submit(self._partition, spark, source.partitions[i], found[i]) for i in left
            }
            try:
                wait(futures.values(), return_when=FIRST_EXCEPTION)
            finally:
                # After an error or an interrupt, the other partitions end with their current file.
                self._is_over.set()
        firsts: list[int] = []
        for i, future in futures.items():
            found[i], first_ms = future.result()
            firsts += [] if first_ms is None else [first_ms]
        return tuple(found), min(firsts, default=None)

    def _partition(
        self, spark: SparkSession, archived: PartitionArchive, report: PartitionReplay
    ) -> tuple[PartitionReplay, int | None]:
        firsts: list[int] = []
        for file in archived.files[report.skipped :]:
            if self._is_over.is_set():
                break
            problem, _ = verify_file(self._files, self._wanted.root, archived.key, file)
            if problem is not None:
                raise DamagedArchiveError(f"{problem}; nothing of it was replayed")
            counts = self._write(spark, archived.key.partition, file)
            report = replace(
                report,
                next_offset=file.last_offset + 1,
                records=report.records + counts.records,
                size_bytes=report.size_bytes + counts.size_bytes,
                files=report.files + 1,
            )
            firsts += [] if counts.first_ms is None else [counts.first_ms]
            self._on_records(counts.records)
        return report, min(firsts, default=None)

    def _write(self, spark: SparkSession, partition: int, file: ArchivedFile) -> _Counts:
        rows = read_files(spark, self._wanted.root, [file])
        seen = Observation()
        rows = in_order(
            as_written(rows, self._wanted, self._partition_count).observe(seen, *_observed())
        )
        options = {
            **self._target.cluster.options(),
            "topic": self._target.topic,
            "includeTimestamps": "true",
            "transactionalId": self._target.id_of(partition),
            "batchId": str(file.last_offset),
        }
        rows.write.format("milena").options(**options).mode("append").save()
        found = seen.get
        return _Counts(
            records=found["records"],
            size_bytes=found["bytes"] or 0,
            first_ms=found["first_ms"],
        )


def as_written(records: DataFrame, wanted: ReplayWanted, partition_count: int) -> DataFrame:
    """Return the requested archived records, with the columns that the sink writes.

    If keys choose the partition, records without a key keep the source's partition, so that they stay in order.
    """
    chosen = wanted.chosen
    if chosen.from_ms is not None:
        records = records.where(sf.col("timestamp") >= _instant(chosen.from_ms))
    if chosen.until_ms is not None:
        records = records.where(sf.col("timestamp") < _instant(chosen.until_ms))
    if not wanted.is_by_key:
        return records
    place = sf.when(sf.col("key").isNull(), sf.col("partition") % sf.lit(partition_count))
    return records.withColumn("partition", place.cast("int"))


def in_order(rows: DataFrame) -> DataFrame:
    """Return the rows as one task in offset order: Spark promises no order for the pieces of a large file."""
    return rows.coalesce(1).sortWithinPartitions("offset")


def _make_active(spark: SparkSession) -> None:
    """Make the session active in this thread, where Spark looks for formats; creating a table does that."""
    spark.createDataFrame([], "nothing int")


def _instant(ms: int) -> Column:
    return sf.timestamp_millis(sf.lit(ms))


def _observed() -> tuple[Column, ...]:
    sizes = [sf.coalesce(sf.octet_length(name), sf.lit(0)) for name in ("key", "value")]
    return (
        sf.count("*").alias("records"),
        sf.sum((sizes[0] + sizes[1]).cast("bigint")).alias("bytes"),
        sf.unix_millis(sf.min("timestamp")).alias("first_ms"),
    )
