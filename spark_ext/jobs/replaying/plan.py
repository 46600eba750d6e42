"""Plan a replay: which files of an archive to write to a topic, and to which request the replay's name is bound (pure).

A partition is written file by file, each file as its own batch. Files never change, so a batch is the same in every
run. The number of a batch is the last offset in its file. The sink commits that number plus one as the offset of a
group. So the committed offset is the archived offset from which the next run continues.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

from spark_ext.jobs.archiving.manifest import Manifest, PartitionArchive, topic_in
from spark_ext.jobs.running.amounts import counted
from spark_ext.jobs.running.errors import JobInputError

PARTITIONS_MAX = 999
"""The most partitions. A transaction commits at most 1,000 offsets: one per partition, and one for the request."""

_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFilter:
    """The filter of records. Times are in ms since 1970, the end is exclusive. ``partitions`` None means all."""

    from_ms: int | None = None
    until_ms: int | None = None
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySource:
    """A topic of an archive, and the requested partitions."""

    cluster_id: str
    topic: str
    topic_id: str
    partitions: tuple[PartitionArchive, ...]


def parse_partitions(text: str) -> tuple[int, ...]:
    """Parse ``0,2,5-7``; return the numbers, ascending.

    Raises:
        ValueError: the text is not such a list.
    """
    pieces = [_PIECE.fullmatch(piece.strip()) for piece in text.split(",")]
    ranges = [(int(m[1]), int(m[2] or m[1])) for m in pieces if m is not None]
    if len(ranges) < len(pieces) or any(first > last for first, last in ranges):
        raise ValueError(f"{text!r} are not partitions: write 0,2,5-7")
    if sum(last - first + 1 for first, last in ranges) > PARTITIONS_MAX:
        raise ValueError(f"{text!r} are more than {PARTITIONS_MAX} partitions: replay some of them")
    return tuple(sorted(set(chain.from_iterable(range(a, b + 1) for a, b in ranges))))


def find_source(
    manifest: Manifest, topic: str | None, topic_id: str | None, chosen: ReplayFilter
) -> ReplaySource:
    """Return the topic to replay; without a name, the only topic of the archive.

    Raises:
        JobInputError: the archive has no such topic, or several and no name was given; or not these partitions.
    """
    name = topic_in(manifest, topic)
    found_id = _the_incarnation(manifest, name, topic_id)
    held = [p for p in manifest.partitions if (p.key.topic, p.key.topic_id) == (name, found_id)]
    if chosen.partitions is not None:
        unknown = set(chosen.partitions) - {p.key.partition for p in held}
        if unknown:
            raise JobInputError(
                f"the archive holds no partition {_numbers(unknown)} of topic {name}, but "
                f"{_numbers(p.key.partition for p in held)}: name some of these in --partitions"
            )
        held = [p for p in held if p.key.partition in chosen.partitions]
    if len(held) > PARTITIONS_MAX:
        raise JobInputError(
            f"topic {name} has {counted(len(held), 'partition')}, and {PARTITIONS_MAX} can be replayed under one name: "
            "choose some with --partitions"
        )
    assert manifest.cluster_id is not None, "an archive that holds a topic knows its cluster"
    return ReplaySource(
        cluster_id=manifest.cluster_id, topic=name, topic_id=found_id, partitions=tuple(held)
    )


def _the_incarnation(manifest: Manifest, topic: str, topic_id: str | None) -> str:
    held = manifest.topic_ids(topic)
    if topic_id is None and len(held) > 1:
        raise JobInputError(
            f"topic {topic} was deleted and made again while it was archived: say which one with --topic-id, of "
            + ", ".join(held)
        )
    if topic_id is not None and topic_id not in held:
        raise JobInputError(
            f"the archive holds no topic {topic} with the id {topic_id}, but {', '.join(held)}"
        )
    return held[0] if topic_id is None else topic_id


def agreed_number(source: ReplaySource, chosen: ReplayFilter, to: str, *, is_by_key: bool) -> int:
    """Return 63 bits of a hash of the request, which is stored as the offset of a group (``replaying.target``).

    A later run under the same name must have the same number, so that one name never mixes two requests. The hash has
    the partitions as requested: "all" gives the same number after the topic got more partitions.
    """
    said = {
        "cluster": source.cluster_id,
        "topic": source.topic,
        "topic_id": source.topic_id,
        "from": chosen.from_ms,
        "until": chosen.until_ms,
        "partitions": chosen.partitions,
        "to": to,
        "by_key": is_by_key,
    }
    digest = sha256(json.dumps(said, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def require_partitions(source: ReplaySource, to: str, partition_count: int) -> None:
    """Check that a topic has the partitions whose numbers the records keep.

    Raises:
        JobInputError: the topic has too few partitions.
    """
    largest = max((p.key.partition for p in source.partitions if p.files), default=-1)
    if largest >= partition_count:
        raise JobInputError(
            f"the archive has records of partition {largest}, "
            f"and topic {to} has {counted(partition_count, 'partition')}: "
            f"give it more (milena topics alter {to} --partitions {largest + 1}), or let keys choose with --by-key"
        )


def files_below(partition: PartitionArchive, next_offset: int) -> int:
    """Return how many of a partition's files are written if all offsets below ``next_offset`` are written.

    Raises:
        JobInputError: no file ends there, so the files of another archive were written.
    """
    files = partition.files
    count = bisect_right(files, next_offset, key=lambda file: file.last_offset + 1)
    if next_offset and (count == 0 or files[count - 1].last_offset + 1 != next_offset):
        raise JobInputError(
            f"partition {partition.key.partition} was replayed up to offset {next_offset} under this name, where no "
            "file of this archive ends: it was another archive. Name that in --archive, or give another --name"
        )
    return count


def _numbers(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
