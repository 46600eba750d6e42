"""Plan what a stream reads next, from its last offset and the cluster's current state (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds, clamp, loss_at
from spark_ext.options.selection import Selection, missing_of, selects
from spark_ext.reading.planner import PlannedRange
from spark_ext.streaming.offsets import StreamOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The cluster's state at one moment: the selected partitions that exist, and the ids of their topics."""

    ends: Mapping[TopicPartition, PartitionEnds]
    topic_ids: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The ranges from which a stream continues, and its losses.

    ``ranges`` has every partition up to its current end, including empty ranges. ``losses`` are certain. ``doubts`` are
    losses that a node with old metadata may have reported by mistake; look again before they count.
    """

    ranges: tuple[PlannedRange, ...]
    losses: tuple[str, ...]
    doubts: tuple[str, ...]


def resume(start: StreamOffset, seen: Sighting, selection: Selection) -> Resumption:
    """Return where a stream continues after ``start``.

    New partitions are read from their first record, and so is a topic that was deleted and created again. Lost records
    are skipped. Partitions that are no longer selected are dropped.
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
    """Yield the partitions that the last batch read and that still exist, with its end and their ends."""
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
    """Return how many offsets of the ranges together take about ``bytes_max`` bytes; at least one.

    ``record_bytes`` has the approximate bytes of one offset in each range. ``admit`` takes an equal share of each.
    """
    counts = [r.record_count for r in ranges]
    total_bytes = sum(count * size for count, size in zip(counts, record_bytes, strict=True))
    total = max(1, sum(counts))
    return total if total_bytes <= bytes_max else max(1, int(total * bytes_max / total_bytes))


def admit(ranges: Sequence[PlannedRange], offsets_max: int | None) -> tuple[PlannedRange, ...]:
    """Return the ranges, cut so that they have ``offsets_max`` offsets together.

    Each range gets a share by its length, and at least one offset. If there are fewer offsets than ranges, the longest
    ranges get one each.
    """
    total = sum(r.record_count for r in ranges)
    if offsets_max is None or total <= offsets_max:
        return tuple(ranges)
    longest = sorted((r for r in ranges if r.record_count), key=lambda r: -r.record_count)
    shares = _shares(longest[:offsets_max], offsets_max)
    return tuple(replace(r, end=r.start + shares.get(r.partition, 0)) for r in ranges)


def _shares(ranges: Sequence[PlannedRange], offsets_max: int) -> dict[TopicPartition, int]:
    """Return one offset per range plus its proportional share of the rest; the shares add up to ``offsets_max``."""
    rest = offsets_max - len(ranges)
    total = sum(r.record_count - 1 for r in ranges)
    shares: dict[TopicPartition, int] = {}
    before = 0
    for r in ranges:
        after = before + r.record_count - 1
        shares[r.partition] = 1 + (after * rest // total - before * rest // total if total else 0)
        before = after
    return shares
