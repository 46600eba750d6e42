"""Turn the bounds of a query into the ranges that its tasks read (pure).

``resolve`` fixes one range [start, end) of offsets for every partition, once per query. ``plan_tasks`` divides the
ranges among tasks. The caller asks the cluster: first for the offsets of times, then for the ends of partitions. In
this order no offset of a time lies beyond an end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds, TimeQuery, clamp, loss_at
from spark_ext.errors import DataLossError, OffsetError
from spark_ext.options.bounds import (
    Bound,
    Edge,
    GlobalTimestamp,
    NoMatch,
    SpecificOffsets,
    SpecificTimestamps,
)
from spark_ext.options.parsing import ReadOptions

RANGE_COST_RECORDS = 2_000
"""The cost of starting a range (one request and its response), as the number of records read in that time.

Without this cost, ten thousand small partitions would become one long task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """Offsets [start, end) of one partition. ``topic_id`` is the topic's id when the query was planned."""

    partition: TopicPartition
    topic_id: str | None
    start: int
    end: int

    @property
    def record_count(self) -> int:
        """Return the number of offsets in the range; compaction may have left fewer records."""
        return self.end - self.start


def time_queries(bounds: Iterable[Bound], partitions: Sequence[TopicPartition]) -> set[TimeQuery]:
    """Return the times that the caller must look up before it calls ``resolve``.

    Raises:
        OffsetError: a bound in JSON does not name exactly the partitions that are read.
    """
    queries: set[TimeQuery] = set()
    for bound in bounds:
        match bound:
            case GlobalTimestamp(timestamp_ms):
                queries.update((partition, timestamp_ms) for partition in partitions)
            case SpecificTimestamps(timestamps):
                _check_names_all(bound, partitions)
                queries.update(timestamps.items())
            case SpecificOffsets():
                _check_names_all(bound, partitions)
            case Edge():
                pass
    return queries


def _check_names_all(
    bound: SpecificOffsets | SpecificTimestamps, partitions: Sequence[TopicPartition]
) -> None:
    # Spark's Kafka source demands the same. A default for an unnamed partition would hide a typing error.
    missing = sorted(set(partitions) - bound.partitions)
    if missing:
        raise OffsetError(
            f"{bound.option}: every partition that is read must be named; "
            f"missing: {', '.join(map(str, missing))}"
        )
    odd = sorted(bound.partitions - set(partitions))
    if odd:
        raise OffsetError(
            f"{bound.option}: names partitions that are not read: {', '.join(map(str, odd))}"
        )


def resolve(
    options: ReadOptions,
    ends: Mapping[TopicPartition, PartitionEnds],
    topic_ids: Mapping[str, str | None],
    found: Mapping[TimeQuery, int | None],
) -> tuple[tuple[PlannedRange, ...], tuple[str, ...]]:
    """Return the range of every partition in ``ends``, including empty ones, and a line for each lost offset.

    A named offset outside of the partition is lost; the nearest end of the partition replaces it.

    Args:
        options: the options of the query.
        ends: the ends of each partition to read.
        topic_ids: the id of each topic.
        found: the offset for each of ``time_queries``; None if no record is at or after the time.

    Raises:
        OffsetError: no record matches a starting time, or a range ends before it starts.
        DataLossError: named offsets are deleted or do not exist yet, and the query fails on data loss.
    """
    ranges: list[PlannedRange] = []
    losses: list[str] = []
    for partition, limits in sorted(ends.items()):
        start, end, lost = _resolve_one(options, partition, limits, found)
        losses += lost
        ranges.append(
            PlannedRange(
                partition=partition,
                topic_id=topic_ids.get(partition.topic),
                start=start,
                end=end,
            )
        )
    if losses and options.fetching.fail_on_data_loss:
        raise DataLossError(losses[0])
    return tuple(ranges), tuple(losses)


def _resolve_one(
    options: ReadOptions,
    partition: TopicPartition,
    limits: PartitionEnds,
    found: Mapping[TimeQuery, int | None],
) -> tuple[int, int, list[str]]:
    start = _offset(options.start, partition, limits, found)
    end = _offset(options.end, partition, limits, found)
    if start is None:
        if options.on_no_match is NoMatch.ERROR:
            raise OffsetError(
                f"{partition}: no record is at or after the starting time; "
                "set startingOffsetsByTimestampStrategy to latest to read nothing from it"
            )
        # "latest" means the end of the query, which the user may have set below the high watermark. A start at the
        # high watermark would lie above it, and "read nothing" would become an error.
        start = limits.high_watermark if end is None else end
    if end is None:
        end = limits.high_watermark
    # Find losses before clamping: a clamped offset always looks valid.
    losses = [loss for offset in (start, end) if (loss := loss_at(partition, offset, limits))]
    start, end = clamp(start, limits), clamp(end, limits)
    if start > end:
        raise OffsetError(f"{partition}: the query begins at offset {start} and ends at {end}")
    return start, end, losses


def _offset(
    bound: Bound,
    partition: TopicPartition,
    limits: PartitionEnds,
    found: Mapping[TimeQuery, int | None],
) -> int | None:
    """Return the offset that a bound means, or None if no record matches its time."""
    match bound:
        case Edge():
            return _edge(bound, limits)
        case SpecificOffsets():
            named = bound.offsets[partition]
            return _edge(named, limits) if isinstance(named, Edge) else named
        case SpecificTimestamps():
            return _still_there(found[partition, bound.timestamps[partition]], limits)
        case GlobalTimestamp():
            return _still_there(found[partition, bound.timestamp_ms], limits)


def _still_there(offset: int | None, limits: PartitionEnds) -> int | None:
    """Move a looked-up offset into the partition. Retention since the lookup is no loss: the user named a time."""
    return None if offset is None else clamp(offset, limits)


def _edge(edge: Edge, limits: PartitionEnds) -> int:
    return limits.log_start_offset if edge is Edge.EARLIEST else limits.high_watermark


def plan_tasks(
    ranges: Iterable[PlannedRange],
    *,
    target_records: int,
    tasks_min: int | None = None,
    records_max: int | None = None,
) -> list[tuple[PlannedRange, ...]]:
    """Return the ranges for each task: small ranges are combined, large ones split, so that tasks are about equal.

    The ranges are laid end to end on one line. The line is cut into one equal part per task. Every (partition, offset)
    is in exactly one task. Tasks follow the order of the ranges; none is empty.

    Args:
        ranges: the ranges to read; empty ones cost nothing.
        target_records: how many records a task should have.
        tasks_min: the minimum number of tasks, if there are as many records.
        records_max: the most records that a task may have.
    """
    filled = [r for r in ranges if r.record_count > 0]
    total = sum(r.record_count for r in filled)
    needed = max(tasks_min or 0, -(-total // records_max) if records_max else 0)
    if needed:
        # ``tasks_min`` and ``records_max`` are exact promises about records. The cost of ranges would shift the cuts
        # and break them, so only records count here.
        return _cut(filled, total, min(max(needed, -(-total // target_records)), total))
    line = total + RANGE_COST_RECORDS * len(filled)
    # Round to the nearest number of tasks. Rounding up would start a task for a few records, and the task would
    # cost more than they do.
    parts = max(1, (2 * line + target_records) // (2 * target_records)) if filled else 0
    return _cut(filled, line, parts, range_cost=RANGE_COST_RECORDS)


def _cut(
    ranges: Sequence[PlannedRange], line: int, parts: int, *, range_cost: int = 0
) -> list[tuple[PlannedRange, ...]]:
    tasks: list[list[PlannedRange]] = [[] for _ in range(parts)]
    position = 0
    for r in ranges:
        # On the line, a range's cost comes before its records [begin, finish). A part that has only the cost of a
        # range gets no records, hence the filter at the end.
        begin = position + range_cost
        finish = begin + r.record_count
        part = begin * parts // line
        while begin < finish:
            # Integers, and one multiplication per cut: no rounding error adds up, and the last cut ends the line.
            cut = min(-(-(part + 1) * line // parts), finish)
            tasks[part].append(
                replace(r, start=r.end - (finish - begin), end=r.end - (finish - cut))
            )
            begin = cut
            part += 1
        position = finish
    return [tuple(task) for task in tasks if task]
