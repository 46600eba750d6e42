"""The archive's manifest: the offsets in each file, and the offset at which the next run continues (pure).

The manifest defines the archive. A file that it does not list is not part of the archive. A record is archived once
the manifest that lists its file has replaced the previous manifest. The manifest is one JSON file:

    {"format": 1, "cluster_id": "…", "commits": 17, "topics": [
        {"name": "orders", "topic_id": "…", "partitions": [
            {"partition": 0, "start_offset": 0, "next_offset": 500,
             "files": [{"path": "data/topic-orders/…/00000000000000000000-00000000000000000499.parquet",
                        "first_offset": 0, "last_offset": 499, "records": 500, "bytes": 61035, "crc32c": 42}],
             "gaps": []}]}],
     "crc32c": 815}

``crc32c`` is the checksum of the file's own content without that field, as compact JSON with sorted keys. A topic
that was deleted and created again has another id, and its own entry.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from itertools import pairwise

from crc32c import crc32c

from milena.errors import UnexpectedAnswerError
from milena.fields import AnswerFields, Json
from spark_ext.jobs.running.amounts import counted, json_fields
from spark_ext.jobs.running.errors import DamagedArchiveError, JobInputError

FORMAT = 1
MANIFEST_NAME = "manifest.json"
DATA_FOLDER = "data"
OFFSET_DIGITS = 20
"""Digits of an offset in a file name, as in the log's segments, so that names sort like offsets."""


@unique
class GapReason(StrEnum):
    """The reason why offsets between two archived ones are in no file.

    ``RETENTION``: they were deleted before they could be archived, and the run was told to accept that.
    ``COMPACTION``: the topic keeps only the last record of a key. ``TRANSACTIONS``: the marker of a transaction, or a
    record of an aborted transaction.
    """

    RETENTION = "retention"
    COMPACTION = "compaction"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionKey:
    """A partition of one incarnation of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveGap:
    """A range [start, end), of which ``missing`` offsets are in no file. A joined gap also spans archived records."""

    start: int
    end: int
    reason: GapReason
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One Parquet file; ``path`` is relative to the archive, both offsets are inclusive."""

    path: str
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionArchive:
    """The archive of a partition, or the part of it that one run adds, from the end of the previous run.

    Invariants: files and gaps are sorted and account for every offset of [start_offset, next_offset) exactly once
    (gaps may lie inside a file's range).
    """

    key: PartitionKey
    start_offset: int
    next_offset: int
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[ArchiveGap, ...] = ()

    @property
    def records(self) -> int:
        """Return the number of records in all files."""
        return sum(file.records for file in self.files)

    @property
    def missing(self) -> int:
        """Return the number of offsets in no file. Each of them is in a gap, which has the reason."""
        return sum(gap.missing for gap in self.gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole archive after ``commits`` commits; partitions are sorted by key."""

    cluster_id: str | None = None
    commits: int = 0
    partitions: tuple[PartitionArchive, ...] = ()

    def partition(self, key: PartitionKey) -> PartitionArchive | None:
        """Return the archive of this partition; None if there is none."""
        return next((p for p in self.partitions if p.key == key), None)

    def topic_ids(self, topic: str) -> tuple[str, ...]:
        """Return the ids of the archived topics with this name."""
        return tuple(dict.fromkeys(p.key.topic_id for p in self.partitions if p.key.topic == topic))

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted."""
        return tuple(sorted({p.key.topic for p in self.partitions}))

    def paths(self) -> frozenset[str]:
        """Return the paths of all files of the archive."""
        return frozenset(file.path for p in self.partitions for file in p.files)

    def with_additions(
        self, cluster_id: str, additions: tuple[PartitionArchive, ...]
    ) -> "Manifest":
        """Return the manifest of the next commit.

        Raises:
            JobInputError: the archive holds another cluster's records.
        """
        if self.cluster_id not in {None, cluster_id}:
            raise JobInputError(
                f"the archive holds records of cluster {self.cluster_id}, not of {cluster_id}"
            )
        partitions = {p.key: p for p in self.partitions}
        for addition in additions:
            partitions[addition.key] = _extended(partitions.get(addition.key), addition)
        return Manifest(
            cluster_id=cluster_id,
            commits=self.commits + 1,
            partitions=tuple(partitions[key] for key in sorted(partitions)),
        )


def topic_in(manifest: Manifest, topic: str | None) -> str:
    """Return the topic of this name; for None, the only topic of the archive.

    Raises:
        JobInputError: the archive has no topic of this name; or no name was given and it has several topics.
    """
    held = manifest.topics()
    if topic is None and len(held) == 1:
        return held[0]
    if not held:
        raise JobInputError("the archive holds nothing yet: archive a topic to it first")
    if topic is None:
        raise JobInputError(f"the archive holds {', '.join(held)}: say which with --topic")
    if topic not in held:
        raise JobInputError(
            f"the archive holds nothing of topic {topic}, but of {', '.join(held)}: name one in --topic"
        )
    return topic


def _extended(archived: PartitionArchive | None, addition: PartitionArchive) -> PartitionArchive:
    if archived is None:
        extended = replace(addition, gaps=joined_gaps(addition.gaps))
    else:
        assert archived.next_offset == addition.start_offset, (archived.next_offset, addition)
        extended = replace(
            archived,
            next_offset=addition.next_offset,
            files=archived.files + addition.files,
            gaps=joined_gaps(archived.gaps + addition.gaps),
        )
    problem = partition_problem(extended)
    assert problem is None, problem
    return extended


def whole_gap(start: int, end: int, reason: GapReason) -> ArchiveGap:
    """Return a gap that has every offset of [start, end)."""
    return ArchiveGap(start=start, end=end, reason=reason, missing=end - start)


def joined_gaps(gaps: tuple[ArchiveGap, ...]) -> tuple[ArchiveGap, ...]:
    """Join neighbouring gaps of one reason, so that a compacted topic's list does not grow with every run.

    Gaps of transactions are joined even with records between them, because every transaction makes a gap.
    """
    joined: list[ArchiveGap] = []
    for gap in gaps:
        last = joined[-1] if joined else None
        is_near = gap.reason is GapReason.TRANSACTIONS or (
            last is not None and last.end == gap.start
        )
        if last is not None and last.reason is gap.reason and is_near:
            joined[-1] = replace(last, end=gap.end, missing=last.missing + gap.missing)
        else:
            joined.append(gap)
    return tuple(joined)


def partition_problem(partition: PartitionArchive) -> str | None:
    """Return the invariant that a partition's entry breaks, as a sentence; None if it keeps all."""
    edges = [(f.first_offset, f.last_offset + 1) for f in partition.files]
    for spans in (edges, [(g.start, g.end) for g in partition.gaps]):
        if any(start >= end for start, end in spans):
            return "an empty range of offsets"
        if any(before[1] > after[0] for before, after in pairwise(spans)):
            return "ranges of offsets that overlap or are out of order"
        if spans and (spans[0][0] < partition.start_offset or spans[-1][1] > partition.next_offset):
            return "offsets outside of what was archived"
    span = partition.next_offset - partition.start_offset
    if any(not 0 < gap.missing <= gap.end - gap.start for gap in partition.gaps):
        return "a gap of more offsets than it has, or of none"
    if partition.records + partition.missing != span:
        return (
            f"{counted(partition.records, 'record')} and {counted(partition.missing, 'explained gap')} "
            f"for {counted(span, 'offset')}"
        )
    return None


def file_path(key: PartitionKey, first_offset: int, last_offset: int) -> str:
    """Return the path of a file with these offsets, relative to the archive.

    The name depends only on the file's records, so the same records always get the same name. Folders have a prefix,
    because a topic's name may start with an underscore or a dot, and Spark ignores these.
    """
    name = f"{first_offset:0{OFFSET_DIGITS}}-{last_offset:0{OFFSET_DIGITS}}.parquet"
    return f"{partition_folder(key)}/{name}"


def partition_folder(key: PartitionKey) -> str:
    """Return the folder of a partition's files, relative to the archive."""
    return f"{DATA_FOLDER}/topic-{key.topic}/{key.topic_id}/partition-{key.partition}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of the manifest file."""
    content = _as_json(manifest)
    content["crc32c"] = _checksum(content)
    return json.dumps(content, indent=1).encode() + b"\n"


def decode_manifest(raw: bytes) -> Manifest:
    """Return the manifest that ``encode_manifest`` wrote.

    Raises:
        DamagedArchiveError: the file is not a manifest, or is damaged.
        JobInputError: a later version wrote it.
    """
    try:
        content = json.loads(raw)
        if not isinstance(content, dict):
            raise DamagedArchiveError("the manifest is not a JSON object")
        fields = AnswerFields(content, "manifest")
        if fields.integer("format") != FORMAT:
            raise JobInputError(
                f"the manifest has format {fields.integer('format')}; this version reads {FORMAT}"
            )
        if content.pop("crc32c", None) != _checksum(content):
            raise DamagedArchiveError("the manifest's checksum is wrong")
        manifest = Manifest(
            cluster_id=fields.optional_text("cluster_id"),
            commits=fields.integer("commits"),
            partitions=tuple(
                _partition(fields.text("name"), fields.text("topic_id"), partition)
                for fields in fields.objects("topics")
                for partition in fields.objects("partitions")
            ),
        )
    except (UnexpectedAnswerError, ValueError) as error:
        raise DamagedArchiveError(f"the manifest cannot be read: {error}") from error
    return _sound(manifest)


def _sound(manifest: Manifest) -> Manifest:
    for partition in manifest.partitions:
        problem = partition_problem(partition)
        if problem is not None:
            key = partition.key
            raise DamagedArchiveError(f"the manifest lists {problem} ({key.topic} {key.partition})")
    return manifest


def _checksum(content: dict[str, Json]) -> int:
    return crc32c(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())


def _as_json(manifest: Manifest) -> dict[str, Json]:
    topics: dict[tuple[str, str], list[Json]] = {}
    for partition in manifest.partitions:
        key, fields = partition.key, json_fields(partition)
        fields["partition"] = fields.pop("key")["partition"]
        topics.setdefault((key.topic, key.topic_id), []).append(fields)
    return {
        "format": FORMAT,
        "cluster_id": manifest.cluster_id,
        "commits": manifest.commits,
        "topics": [
            {"name": name, "topic_id": topic_id, "partitions": partitions}
            for (name, topic_id), partitions in topics.items()
        ],
    }


def _partition(topic: str, topic_id: str, fields: AnswerFields) -> PartitionArchive:
    return fields.read(
        PartitionArchive,
        key=fields.read(PartitionKey, topic=topic, topic_id=topic_id),
        files=tuple(
            file.read(ArchivedFile, size_bytes=file.integer("bytes"))
            for file in fields.objects("files")
        ),
        gaps=tuple(
            gap.read(ArchiveGap, reason=GapReason(gap.text("reason")))
            for gap in fields.objects("gaps")
        ),
    )
