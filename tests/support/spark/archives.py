"""A log and a writer of Parquet files without Spark, for tests of the archive job."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from milena.disk.files import Files
from spark_ext.jobs.archiving import run as archive_run
from spark_ext.jobs.archiving.manifest import Manifest, PartitionKey
from spark_ext.jobs.archiving.plan import PartitionState, ReadRange, Runs
from spark_ext.jobs.archiving.run import ClusterPartitions, RunSummary

SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
    }
)


def key(partition: int = 0, topic: str = "orders", topic_id: str = "id-1") -> PartitionKey:
    """Return the key of a partition."""
    return PartitionKey(topic=topic, topic_id=topic_id, partition=partition)


def parquet_bytes(of: PartitionKey, offsets: Sequence[int], *, row_group_size: int = 3) -> bytes:
    """Return an archive file; the value of a record is its offset in decimal."""
    count = len(offsets)
    table = pa.table(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": [str(offset).encode() for offset in offsets],
            "topic": [of.topic] * count,
            "partition": [of.partition] * count,
            "offset": list(offsets),
            "timestamp": [offset * 1000 for offset in offsets],
            "timestampType": [0] * count,
        },
        SCHEMA,
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=row_group_size)
    return out.getvalue()


def write_file(files: Files, path: str, content: bytes) -> None:
    """Write a file like Spark, without a sync."""
    file = files.open(path, create=True)
    file.pwritev([content], 0)
    file.close()


@dataclass
class FakeLog:
    """Partitions with all offsets from log start to end, except the ``missing`` ones; writes files like Spark.

    It reports the ``empty`` offsets as having no record. ``per_file`` offsets go to one staged file. ``spoil`` may
    change the offsets that are written of a range.
    """

    files: Files
    partitions: dict[PartitionKey, tuple[int, int]]
    missing: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    per_file: int = 4
    cluster_id: str = "c-1"
    is_compacted: bool = False
    writes: int = 0
    runs: int = 0
    doubled: tuple[int, ...] = field(default=())

    def state(self) -> ClusterPartitions:
        return ClusterPartitions(
            cluster_id=self.cluster_id,
            partitions=tuple(
                PartitionState(
                    key=of,
                    log_start_offset=start,
                    high_watermark=end,
                    is_compacted=self.is_compacted,
                )
                for of, (start, end) in self.partitions.items()
            ),
        )

    def empty_in(self, key: PartitionKey, start: int, end: int) -> Runs:
        return tuple((at, at + 1) for at in sorted(self.empty) if start <= at < end)

    def write(self, ranges: Sequence[ReadRange], folder: str) -> None:
        self.writes += 1
        for planned in ranges:
            of = planned.key
            target = f"{folder}/archive_topic={of.topic}/archive_partition={of.partition}"
            self.files.make_directory(target)
            offsets = [o for o in range(planned.start, planned.end) if o not in self.missing]
            pieces = [offsets[i : i + self.per_file] for i in range(0, len(offsets), self.per_file)]
            pieces += [[offset] for offset in self.doubled if offset in offsets]
            for number, piece in enumerate(pieces):
                # Spark's file names are random, and do not follow the order of the contents.
                name = f"part-{9 - number % 10}{number}-{self.writes:x}.snappy.parquet"
                write_file(self.files, f"{target}/{name}", parquet_bytes(of, piece))
        write_file(self.files, f"{folder}/_SUCCESS", b"")


def archived_offsets(files: Files, root: str, manifest: Manifest) -> dict[PartitionKey, list[int]]:
    """Return the offsets of each partition that a reader of the manifest sees, in the order of its files."""
    found: dict[PartitionKey, list[int]] = {}
    for partition in manifest.partitions:
        offsets = found.setdefault(partition.key, [])
        for entry in partition.files:
            raw = files.read_bytes(f"{root}/{entry.path}")
            table = pq.read_table(io.BytesIO(raw))
            offsets += table.column("offset").to_pylist()
    return found


def run_archive(
    files: Files,
    root: str,
    log: FakeLog,
    *,
    records_max: int | None = None,
    is_loss_accepted: bool = False,
) -> RunSummary:
    """Run the job once, with a new id."""
    log.runs += 1
    return archive_run.run_archive(
        files,
        root,
        log,
        run_id=f"run-{log.runs}",
        records_max=records_max,
        is_loss_accepted=is_loss_accepted,
    )


def follow_archive(
    files: Files,
    root: str,
    log: FakeLog,
    grow: Iterator[Callable[[], None]],
    *,
    records_max: int | None = None,
) -> list[RunSummary]:
    """Run the job repeatedly: ``grow`` changes the log in each wait; when it is exhausted, the run ends."""
    log.runs += 1
    summaries: list[RunSummary] = []

    def is_over() -> bool:
        step = next(grow, None)
        if step is not None:
            step()
        return step is None

    archive_run.follow_archive(
        files,
        root,
        log,
        run_id=f"run-{log.runs}",
        is_over=is_over,
        on_commit=summaries.append,
        records_max=records_max,
    )
    return summaries
