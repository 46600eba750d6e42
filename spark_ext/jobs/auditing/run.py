"""Run an audit: join the archive and the topic by partition and offset, as hashes of the records' parts.

The topic changes during the run. So the ranges are fixed when the run starts. After the topic was read, the run asks
for the partitions' starts again, and leaves out the records that retention deleted meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as sf

from milena.disk.files import Files
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.log_source import TopicChoice, log_state, read_ranges
from spark_ext.jobs.archiving.manifest import Manifest, topic_in
from spark_ext.jobs.archiving.reader import read_files
from spark_ext.jobs.archiving.run import ClusterPartitions
from spark_ext.jobs.auditing.report import (
    AuditRange,
    AuditReport,
    Difference,
    audit_of,
    audit_ranges,
    example_text,
)
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.errors import JobInputError

PLACE = ["partition", "offset"]
PARTS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWanted:
    """The request of an audit. ``topic`` None means the archive's only topic; ``examples_max`` limits examples."""

    root: str
    cluster: JobCluster
    topic: str | None = None
    examples_max: int = 10


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The result of the comparison."""

    compared: int = 0
    counts: Sequence[Row] = ()
    examples: Sequence[Row] = ()


def run_audit(
    files: Files, wanted: AuditWanted, session: Callable[[], SparkSession]
) -> AuditReport:
    """Compare the archive with its topic; ``session`` is called only if there are records to compare.

    Raises:
        JobInputError: there is no archive, or none of this topic; or the topic is not the archived one.
        DamagedArchiveError: the manifest cannot be trusted.
    """
    manifest = read_manifest(files, wanted.root)
    topic = topic_in(manifest, wanted.topic)

    def ask() -> ClusterPartitions:
        state = log_state(wanted.cluster, TopicChoice(names=(topic,)))
        _require_archived(manifest, state, topic)
        return state

    ranges = audit_ranges(manifest, ask().partitions)
    found, starts = _compare(wanted, ranges, session, ask)
    counts: dict[int, dict[Difference, int]] = {}
    for row in found.counts:
        counts.setdefault(row.partition, {})[Difference(row.kind)] = row.records
    return AuditReport(
        topic=topic,
        compared=found.compared,
        partitions=tuple(
            audit_of(r, counts.get(r.state.key.partition, {}), starts[r.state.key.partition])
            for r in ranges
        ),
        examples=tuple(
            example_text(row.partition, row.offset, Difference(row.kind), row.parts)
            for row in found.examples
        ),
    )


def _require_archived(manifest: Manifest, state: ClusterPartitions, topic: str) -> None:
    if state.cluster_id != manifest.cluster_id:
        raise JobInputError(
            f"the archive holds records of cluster {manifest.cluster_id}, and --url names {state.cluster_id}: name a "
            "node of the former"
        )
    topic_id = state.partitions[0].key.topic_id
    if topic_id not in manifest.topic_ids(topic):
        raise JobInputError(
            f"topic {topic} was deleted and made again since it was archived: there is nothing that it could be "
            "compared with until it is archived again"
        )


def _compare(
    wanted: AuditWanted,
    ranges: Sequence[AuditRange],
    session: Callable[[], SparkSession],
    ask: Callable[[], ClusterPartitions],
) -> tuple[_Comparison, dict[int, int]]:
    """Return the differences, and the starts of the partitions after they were read."""
    files = [file for r in ranges for file in r.files]
    to_read = [r for each in ranges if (r := each.to_read) is not None]
    if not files and not to_read:
        return _Comparison(), {r.state.key.partition: r.start for r in ranges}
    spark = session()
    archived = read_files(spark, wanted.root, files)
    there = archived.limit(0)
    if to_read:
        there = read_ranges(spark, wanted.cluster, to_read, is_loss_accepted=True)
    seen = Observation()
    rows = differences(in_ranges(archived, ranges), there, seen).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        # Read everything here, once, before the partitions' starts are asked for.
        rows.count()
        starts = {p.key.partition: p.log_start_offset for p in ask().partitions}
        left = rows.where(~_is_deleted(ranges, starts))
        counts = left.groupBy("partition", "kind").agg(sf.count("*").alias("records")).collect()
        compacted = [r.state.key.partition for r in ranges if r.state.is_compacted]
        gone = (sf.col("kind") == Difference.MISSING) & sf.col("partition").isin(compacted)
        examples = left.where(~gone).orderBy(*PLACE).limit(wanted.examples_max).collect()
    finally:
        rows.unpersist()
    return _Comparison(seen.get["compared"], counts, examples), starts


def in_ranges(archived: DataFrame, ranges: Sequence[AuditRange]) -> DataFrame:
    """Return the archived records from the starts of their ranges; files may start before that."""
    starts = {r.state.key.partition: r.start for r in ranges}
    return archived.where(sf.col("offset") >= _by_partition(starts))


def differences(archived: DataFrame, there: DataFrame, seen: Observation) -> DataFrame:
    """Return the offsets that differ, with ``kind`` and ``parts``; observe how many are on both sides."""
    left = _hashed(archived, "archived").withColumn("is_archived", sf.lit(True))
    right = _hashed(there, "there").withColumn("is_there", sf.lit(True))
    joined = left.join(right, PLACE, "full_outer")
    parts = [
        sf.when(~sf.col(f"archived_{part}").eqNullSafe(sf.col(f"there_{part}")), sf.lit(part))
        for part in PARTS
    ]
    is_both = sf.col("is_archived").isNotNull() & sf.col("is_there").isNotNull()
    rows = joined.observe(seen, sf.count_if(is_both).alias("compared")).select(
        *PLACE,
        sf.concat_ws(", ", *parts).alias("parts"),
        sf.when(sf.col("is_there").isNull(), sf.lit(Difference.MISSING.value))
        .when(sf.col("is_archived").isNull(), sf.lit(Difference.EXTRA.value))
        .when(sf.concat_ws("", *parts) != "", sf.lit(Difference.DIFFERENT.value))
        .alias("kind"),
    )
    return rows.where(sf.col("kind").isNotNull())


def _hashed(records: DataFrame, side: str) -> DataFrame:
    """Return the partition and offset of each record, and a hash of each part: Spark then shuffles no values."""
    # Spark's hash skips nulls and ignores the bounds of fields, so different lists of headers could hash alike.
    headers = sf.to_json("headers")
    columns: dict[str, Column] = {
        "key": _hash(sf.col("key")),
        "value": _hash(sf.col("value")),
        "headers": _hash(headers),
        "timestamp": sf.unix_micros("timestamp"),
    }
    return records.select(*PLACE, *(columns[part].alias(f"{side}_{part}") for part in PARTS))


def _hash(column: Column) -> Column:
    return sf.when(column.isNotNull(), sf.xxhash64(column))


def _is_deleted(ranges: Sequence[AuditRange], starts: dict[int, int]) -> Column:
    """Return whether a record is missing because retention deleted it since the run started."""
    moved = {
        p: starts[p] for r in ranges if starts.get(p := r.state.key.partition, r.start) > r.start
    }
    if not moved:
        return sf.lit(False)
    return (sf.col("kind") == Difference.MISSING.value) & sf.coalesce(
        sf.col("offset") < _by_partition(moved), sf.lit(False)
    )


def _by_partition(offsets: dict[int, int]) -> Column:
    pairs = [sf.lit(number).cast("bigint") for pair in offsets.items() for number in pair]
    return sf.create_map(*pairs)[sf.col("partition").cast("bigint")]
