"""Read topics for the archive job: offsets from the cluster, records through the data source ``milena``."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from milena.cluster.view import TopicView
from milena.errors import TargetNotFoundError, UnexpectedAnswerError
from milena.model.batch.decode import decode_columns, iterate_headers, offsets_of
from milena.records import FetchedChunk
from spark_ext.jobs.archiving.directory import STAGED_PARTITION, STAGED_TOPIC
from spark_ext.jobs.archiving.manifest import PartitionKey
from spark_ext.jobs.archiving.plan import PartitionState, ReadRange, Runs
from spark_ext.jobs.archiving.run import ClusterPartitions
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.errors import JobInputError
from spark_ext.options.parsing import parse_read_options
from spark_ext.reading.pinning import pin
from spark_ext.reading.planner import PlannedRange

WRITERS_MAX = 64
"""The most files that a task has open at once; with more, Spark sorts the task's rows by partition first."""

CODECS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """A choice of topics: by name, and by a regular expression that matches the whole name."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def choose(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Return the chosen names, and those of ``topics`` that match; sorted.

        Raises:
            JobInputError: no topic is chosen.
        """
        matching = {
            name for name in topics if self.pattern is not None and re.fullmatch(self.pattern, name)
        }
        if not self.names and not matching:
            raise JobInputError(f"no topic matches {self.pattern}")
        return tuple(sorted({*self.names, *matching}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLogSource:
    """A cluster that Spark reads; an implementation of ``archiving.run.LogSource``.

    ``session`` makes a Spark session, whose settings this class changes. It is called only if there are records to
    read, because Spark takes seconds to start.
    """

    session: Callable[[], SparkSession]
    cluster: JobCluster
    topics: TopicChoice
    compression: str
    records_per_file: int

    def state(self) -> ClusterPartitions:
        """Ask the cluster for topics, ids and readable offsets."""
        return log_state(self.cluster, self.topics)

    def empty_in(self, key: PartitionKey, start: int, end: int) -> Runs:
        """Read the partition's log again. A batch without offset gaps is not decoded: its header has its offsets."""
        return asyncio.run(_empty_in(self.cluster, key, start, end))

    def write(self, ranges: Sequence[ReadRange], folder: str) -> None:
        """Write one file per task and partition, or more if they grow too large."""
        spark = self.session()
        settings = spark.conf
        settings.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        settings.set("spark.sql.maxConcurrentOutputFileWriters", WRITERS_MAX)
        rows = read_ranges(spark, self.cluster, ranges)
        staged = rows.withColumns(
            {STAGED_TOPIC: sf.col("topic"), STAGED_PARTITION: sf.col("partition")}
        )
        writer = staged.write.mode("error").partitionBy(STAGED_TOPIC, STAGED_PARTITION)
        writer.option("maxRecordsPerFile", self.records_per_file).parquet(
            f"file://{folder}", compression=self.compression
        )


def read_ranges(
    spark: SparkSession,
    cluster: JobCluster,
    ranges: Sequence[ReadRange],
    *,
    is_loss_accepted: bool = False,
) -> DataFrame:
    """Return the records of exactly these ranges. If ``is_loss_accepted``, deleted records may be missing."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        name, partition = r.key.topic, r.key.partition
        assigned.setdefault(name, []).append(partition)
        starts.setdefault(name, {})[str(partition)] = r.start
        ends.setdefault(name, {})[str(partition)] = r.end
    reader = spark.read.format("milena").options(**cluster.options())
    reader = reader.option("assign", json.dumps(assigned)).option("includeHeaders", "true")
    reader = reader.option("failOnDataLoss", "false" if is_loss_accepted else "true")
    reader = reader.option("startingOffsets", json.dumps(starts))
    return reader.option("endingOffsets", json.dumps(ends)).load()


async def _empty_in(cluster: JobCluster, key: PartitionKey, start: int, end: int) -> Runs:
    """Return the offsets in [start, end) that have no record, as runs.

    The reason of a run is not known here. Responses of a node omit batches without records, so a run may be a
    transaction's marker, an empty batch, or an offset that compaction removed.
    """
    found: list[tuple[int, int]] = []
    at = start
    async with (
        cluster.client() as client,
        client.reader(key.topic, key.partition, start=start, end=end) as reader,
    ):
        async for chunk in reader.chunks():
            for first, following in record_runs(chunk):
                if first > at:
                    found.append((at, first))
                at = following
    if reader.end_offset == end and at < end:
        found.append((at, end))
    return tuple(found)


def record_runs(chunk: FetchedChunk) -> Iterator[tuple[int, int]]:
    """Return the ranges [first, next) of offsets in the chunk that have records, ascending.

    Raises:
        CorruptBatchError: the payload of a batch is not columns of records.
    """
    for position, header in iterate_headers(chunk.data):
        if header.is_control or not header.record_count:
            continue
        if header.record_count == header.next_offset - header.base_offset:
            runs = [(header.base_offset, header.next_offset)]
        else:
            offsets = offsets_of(header, decode_columns(chunk.data, header, position))
            runs = [(offset, offset + 1) for offset in offsets]
        for run in runs:
            first, following = max(run[0], chunk.start_offset), min(run[1], chunk.end_offset)
            if first < following:
                yield first, following


async def topic_facts(
    cluster: JobCluster, choice: TopicChoice
) -> tuple[str, tuple[TopicView, ...]]:
    """Return the cluster's id, and the chosen topics with their configs."""
    async with cluster.client() as client:
        cluster_id = await client.admin.cluster_id()
        names = choice.choose(await client.admin.topic_names())
        try:
            # Ask by name: a node that has not heard of a new topic then asks the quorum.
            topics = await asyncio.gather(*(client.admin.topic(name) for name in names))
        except TargetNotFoundError as error:
            raise JobInputError(error.message) from error
    return cluster_id, tuple(topics)


def log_state(cluster: JobCluster, choice: TopicChoice) -> ClusterPartitions:
    """Return the partitions of the chosen topics and their readable offsets."""
    cluster_id, topics = asyncio.run(topic_facts(cluster, choice))
    policies = {topic.name: topic.configs.get("cleanup.policy", "") for topic in topics}
    names = ",".join(policies)
    options = parse_read_options({**cluster.options(), "subscribe": names})
    return ClusterPartitions(
        cluster_id=cluster_id,
        partitions=tuple(
            PartitionState(
                key=partition_key(found),
                log_start_offset=found.start,
                high_watermark=found.end,
                is_compacted="compact" in policies[found.partition.topic],
            )
            for found in pin(options).ranges
        ),
    )


def partition_key(found: PlannedRange) -> PartitionKey:
    """Return the key of a range's partition, which includes the topic's id."""
    topic, partition = found.partition
    if found.topic_id is None:
        raise UnexpectedAnswerError(f"the node does not give the id of topic {topic}")
    return PartitionKey(topic=topic, topic_id=found.topic_id, partition=partition)
