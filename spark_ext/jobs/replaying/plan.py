"""Plan of a replay: which files of an archive go to a topic, and what a name stands for (pure).

A partition is written file by file, each a batch of its own: files never change, so that a batch is the same whoever
writes it, and when. Its number is the last offset in it, for files are numbered by their offsets: what is committed is
then the offset of the source that the next run goes on from.
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
"""Of a replay: what is agreed is written with where each begins, in one transaction of 1,000 offsets."""

_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFilter:
    """Which records: times are in ms since 1970, the latter exclusive; ``partitions`` None: all of the topic."""

    from_ms: int | None = None
    until_ms: int | None = None
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySource:
    """A topic of an archive, and its partitions that are asked for."""

    cluster_id: str
    topic: str
    topic_id: str
    partitions: tuple[PartitionArchive, ...]


def parse_partitions(text: str) -> tuple[int, ...]:
    """Numbers of ``0,2,5-7``, ascending.

    Raises:
        ValueError: it is no such list.
    """
    pieces = [_PIECE.fullmatch(piece.strip()) for piece in text.split(",")]
    ranges = [(int(m[1]), int(m[2] or m[1])) for m in pieces if m is not None]
    if len(ranges) < len(pieces) or any(first > last for first, last in ranges):
        raise ValueError(f"{text!r} are no partitions: write 0,2,5-7")
    if sum(last - first + 1 for first, last in ranges) > PARTITIONS_MAX:
        raise ValueError(f"{text!r} are more than {PARTITIONS_MAX} partitions: replay some of them")
    return tuple(sorted(set(chain.from_iterable(range(a, b + 1) for a, b in ranges))))


def find_source(
    manifest: Manifest, topic: str | None, topic_id: str | None, chosen: ReplayFilter
) -> ReplaySource:
    """The topic to replay; without a name the only one that the archive holds.

    Raises:
        JobInputError: it holds none of this name, or several and nobody says which; or not these partitions.
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
    """What a name stands for, as a number that a group can have as its offset: 63 bits of a hash.

    The partitions count as they were asked for, so that all stays all when the topic gets more of them.
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
    """Check that a topic has the partitions whose numbers records shall keep.

    Raises:
        JobInputError: it has not.
    """
    largest = max((p.key.partition for p in source.partitions if p.files), default=-1)
    if largest >= partition_count:
        raise JobInputError(
            f"the archive has records of partition {largest}, "
            f"and topic {to} has {counted(partition_count, 'partition')}: "
            f"give it more (milena topics alter {to} --partitions {largest + 1}), or let keys choose with --by-key"
        )


def files_below(partition: PartitionArchive, next_offset: int) -> int:
    """How many of a partition's files are written, when all offsets below ``next_offset`` are.

    Raises:
        JobInputError: no file ends there: another archive's files were written.
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
