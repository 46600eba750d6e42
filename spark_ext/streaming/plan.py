"""What a stream reads next: from its last offset, and what the cluster says now (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds, clamp, loss_at
from spark_ext.options.selection import Selection, missing_of, selects
from spark_ext.reading.planner import PlannedRange
from spark_ext.streaming.offsets import StreamOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The cluster at one moment: the selected partitions that exist, and the ids of their topics."""

    ends: Mapping[TopicPartition, PartitionEnds]
    topic_ids: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where a stream goes on: ranges of all partitions up to their ends now, empty ones too, and what is lost.

    ``doubts`` are losses that a node which is behind may have made us believe; look again before they count.
    """

    ranges: tuple[PlannedRange, ...]
    losses: tuple[str, ...]
    doubts: tuple[str, ...]


def resume(start: StreamOffset, seen: Sighting, selection: Selection) -> Resumption:
    """Where a stream goes on after ``start``.

    New partitions are read from their first record, and so is a topic that was made again. What is lost is passed
    over. Partitions that are not selected any more are dropped.
    """
    ranges = tuple(_go_on(start, seen, partition) for partition in sorted(seen.ends))
    losses = tuple(_retention_losses(start, seen))
    return Resumption(
        ranges=ranges, losses=losses, doubts=tuple(dict.fromkeys(_doubts(start, seen, selection)))
    )


def _go_on(start: StreamOffset, seen: Sighting, partition: TopicPartition) -> PlannedRange:
    limits = seen.ends[partition]
    topic = partition.topic
    begin = None if _is_other_topic(start, seen, topic) else start.ends.get(partition)
    return PlannedRange(
        partition=partition,
        # A node that has just heard of a topic may not know its id yet.
        topic_id=seen.topic_ids[topic] or start.topic_ids.get(topic),
        start=limits.log_start_offset if begin is None else clamp(begin, limits),
        end=limits.high_watermark,
    )


def _is_other_topic(start: StreamOffset, seen: Sighting, topic: str) -> bool:
    known, found = start.topic_ids.get(topic), seen.topic_ids[topic]
    return known is not None and found is not None and known != found


def _known(
    start: StreamOffset, seen: Sighting
) -> Iterator[tuple[TopicPartition, int, PartitionEnds]]:
    """Partitions that are still those of the last batch, with where it ended."""
    for partition, limits in sorted(seen.ends.items()):
        if partition in start.ends and not _is_other_topic(start, seen, partition.topic):
            yield partition, start.ends[partition], limits


def _retention_losses(start: StreamOffset, seen: Sighting) -> Iterator[str]:
    for partition, offset, limits in _known(start, seen):
        if offset < limits.log_start_offset and (loss := loss_at(partition, offset, limits)):
            yield loss


def _doubts(start: StreamOffset, seen: Sighting, selection: Selection) -> Iterator[str]:
    for topic in sorted(start.topic_ids.keys() & seen.topic_ids.keys()):
        if _is_other_topic(start, seen, topic):
            yield f"topic {topic} was deleted and made again"
    for partition, offset, limits in _known(start, seen):
        if offset > limits.high_watermark and (loss := loss_at(partition, offset, limits)):
            yield loss
    for partition in sorted(start.ends.keys() - seen.ends.keys()):
        if not selects(selection, partition):
            continue
        if partition.topic not in seen.topic_ids:
            yield f"topic {partition.topic} was deleted"
        elif not _is_other_topic(start, seen, partition.topic):
            yield f"{partition} does not exist any more"
    yield from missing_of(selection, start.ends.keys() | seen.ends.keys())


def offsets_within(
    ranges: Sequence[PlannedRange], record_bytes: Sequence[float], bytes_max: int
) -> int:
    """How many offsets of the ranges together take about so many bytes; one at least.

    ``record_bytes``: of an offset of each range, about. Who ``admit``-s as many has of each range the same part.
    """
    counts = [r.record_count for r in ranges]
    total_bytes = sum(count * size for count, size in zip(counts, record_bytes, strict=True))
    total = max(1, sum(counts))
    return total if total_bytes <= bytes_max else max(1, int(total * bytes_max / total_bytes))


def admit(ranges: Sequence[PlannedRange], offsets_max: int | None) -> tuple[PlannedRange, ...]:
    """The ranges, cut so that they have ``offsets_max`` offsets together.

    Each gets a share by its length, and at least one offset; where there is not one for each, the longest get one.
    """
    total = sum(r.record_count for r in ranges)
    if offsets_max is None or total <= offsets_max:
        return tuple(ranges)
    longest = sorted((r for r in ranges if r.record_count), key=lambda r: -r.record_count)
    shares = _shares(longest[:offsets_max], offsets_max)
    return tuple(replace(r, end=r.start + shares.get(r.partition, 0)) for r in ranges)


def _shares(ranges: Sequence[PlannedRange], offsets_max: int) -> dict[TopicPartition, int]:
    """One offset each, and of the rest as much as the range has of all that is left; rounding adds up to nothing."""
    rest = offsets_max - len(ranges)
    total = sum(r.record_count - 1 for r in ranges)
    shares: dict[TopicPartition, int] = {}
    before = 0
    for r in ranges:
        after = before + r.record_count - 1
        shares[r.partition] = 1 + (after * rest // total - before * rest // total if total else 0)
        before = after
    return shares
