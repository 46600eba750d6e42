"""From what the user asked for to the ranges that tasks read (pure).

``resolve`` pins every partition to one range [start, end) of offsets, once a query; ``plan_tasks`` divides the ranges
among tasks. Both are told what the cluster said; the shell asks it, times first and then the ends, so that no time is
found beyond an end.
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
"""What it costs to begin with another range, a request and its answer, in records that could be read meanwhile.

It keeps ten thousand small partitions from becoming one long task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """Offsets [start, end) of one partition; ``topic_id`` is the topic's when the query was planned."""

    partition: TopicPartition
    topic_id: str | None
    start: int
    end: int

    @property
    def record_count(self) -> int:
        """Offsets in the range; compaction may have left fewer records."""
        return self.end - self.start


def time_queries(bounds: Iterable[Bound], partitions: Sequence[TopicPartition]) -> set[TimeQuery]:
    """Times that the shell has to look up before it can resolve.

    Raises:
        OffsetError: a bound in JSON names other partitions than those that are read.
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
    """The range of every partition in ``ends``, empty ones too, and a line for each offset that is lost.

    An offset that was named and lies outside of the partition is lost; its nearest end takes its place.

    Args:
        options: what was asked for.
        ends: each partition to read.
        topic_ids: each topic's id.
        found: the answers to ``time_queries``; None where no record is at or after the time.

    Raises:
        OffsetError: no record matches a starting time, or a range ends before it begins.
        DataLossError: offsets that were named are gone, or not there yet, and that is to fail the query.
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
        # "Latest" is the end of the query, wherever that is: nothing is read.
        start = limits.high_watermark if end is None else end
    if end is None:
        end = limits.high_watermark
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
    """The offset that a bound means, or None where no record matches a time."""
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
    """Retention may have gone on since a time was looked up: the records asked for are those that are left."""
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
    """Ranges for each task: all tasks about equal, small ranges together, large ones split.

    The ranges are laid end to end on one line, which is cut into as many equal parts as tasks are needed. Every
    (partition, offset) is in exactly one task, the tasks are in the order of the ranges, and none is empty.

    Args:
        ranges: what to read; empty ones cost nothing.
        target_records: how many records a task should have.
        tasks_min: at least this many tasks, if there are as many records.
        records_max: no task has more records.
    """
    filled = [r for r in ranges if r.record_count > 0]
    total = sum(r.record_count for r in filled)
    needed = max(tasks_min or 0, -(-total // records_max) if records_max else 0)
    if needed:
        # Hints are kept to the letter: only records count.
        return _cut(filled, total, min(max(needed, -(-total // target_records)), total))
    line = total + RANGE_COST_RECORDS * len(filled)
    # The nearest number of tasks: one more for the sake of a few records would cost more than they do.
    parts = max(1, (2 * line + target_records) // (2 * target_records)) if filled else 0
    return _cut(filled, line, parts, range_cost=RANGE_COST_RECORDS)


def _cut(
    ranges: Sequence[PlannedRange], line: int, parts: int, *, range_cost: int = 0
) -> list[tuple[PlannedRange, ...]]:
    tasks: list[list[PlannedRange]] = [[] for _ in range(parts)]
    position = 0
    for r in ranges:
        # The range's records lie behind its cost on the line: [begin, finish).
        begin = position + range_cost
        finish = begin + r.record_count
        part = begin * parts // line
        while begin < finish:
            cut = min(-(-(part + 1) * line // parts), finish)
            tasks[part].append(
                replace(r, start=r.end - (finish - begin), end=r.end - (finish - cut))
            )
            begin = cut
            part += 1
        position = finish
    return [tuple(task) for task in tasks if task]
