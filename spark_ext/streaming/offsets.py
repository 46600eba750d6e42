"""Offsets of a stream, as Spark keeps them in the checkpoint (pure values and their JSON).

    {"version": 1,
     "topics": {"clicks": {"id": "…", "partitions": {"0": {"next": 23}, "1": {"from": 0, "next": 5}}}},
     "tasks": {"target": 1000000, "min": 8}}

``next`` is the end of the batch, and the start of the next one. ``from`` is the start of the batch in partitions that
do not continue from the previous batch: all partitions in batch 0, new partitions, and partitions that lost records.

Spark stores neither the start of batch 0 nor any option. With ``from``, the topics' ids and the hints of ``tasks``,
the two offsets of a batch determine its records and its tasks. So a batch that is repeated after a failure is the same.

The offset before batch 0 is a symbol, ``{"version": 1, "at": "latest"}``. It tells people how the start is found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milena.errors import UnexpectedAnswerError
from milena.fields import AnswerFields, Json
from milena.records import TopicPartition
from spark_ext.errors import OffsetError
from spark_ext.options.bounds import Bound, Edge
from spark_ext.options.parsing import ReadOptions
from spark_ext.reading.planner import PlannedRange, plan_tasks

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHints:
    """The parameters that cut a batch into tasks; see ``plan_tasks``."""

    target_records: int
    tasks_min: int | None
    records_max: int | None


def hints_of(options: ReadOptions) -> TaskHints:
    """Return the hints of the options, or their defaults."""
    return TaskHints(
        target_records=options.target_records_per_task,
        tasks_min=options.partitions_min,
        records_max=options.records_per_partition_max,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The offset at the end of a batch; see the module.

    Invariants:
        - ``begins`` has only partitions of ``ends``; the topics of ``ends`` are those of ``topic_ids``.
    """

    topic_ids: Mapping[str, str | None]
    ends: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int]
    hints: TaskHints


def initial_symbol(start: Bound) -> dict[str, Json]:
    """Return the symbol that is the offset before batch 0."""
    return {"version": VERSION, "at": start.value if isinstance(start, Edge) else start.option}


def offset_after(
    start: StreamOffset | None, ranges: Iterable[PlannedRange], hints: TaskHints
) -> StreamOffset | None:
    """Return the offset at the end of a batch of these ranges; None if it would equal ``start``."""
    ranges = tuple(ranges)
    end = StreamOffset(
        topic_ids={r.partition.topic: r.topic_id for r in ranges},
        ends={r.partition: r.end for r in ranges},
        begins={r.partition: r.start for r in ranges if not _goes_on(start, r)},
        hints=hints,
    )
    is_same = (
        start is not None
        and (start.topic_ids, start.ends) == (end.topic_ids, end.ends)
        and not end.begins
    )
    return None if is_same else end


def _goes_on(start: StreamOffset | None, r: PlannedRange) -> bool:
    return start is not None and start.ends.get(r.partition) == r.start


def ranges_between(start: StreamOffset | None, end: StreamOffset) -> tuple[PlannedRange, ...]:
    """Return the ranges of the batch from ``start`` to ``end``; ``start`` is None for batch 0.

    Raises:
        OffsetError: the two offsets do not belong together.
    """
    former = {} if start is None else start.ends
    ranges: list[PlannedRange] = []
    for partition, offset in sorted(end.ends.items()):
        begin = end.begins.get(partition, former.get(partition))
        if begin is None or begin > offset:
            raise OffsetError(f"checkpoint: {partition} ends at {offset} and begins at {begin}")
        ranges.append(
            PlannedRange(
                partition=partition,
                topic_id=end.topic_ids[partition.topic],
                start=begin,
                end=offset,
            )
        )
    return tuple(ranges)


def tasks_between(start: StreamOffset | None, end: StreamOffset) -> list[tuple[PlannedRange, ...]]:
    """Return the tasks of the batch from ``start`` to ``end``; raises the errors of ``ranges_between``."""
    return plan_tasks(
        ranges_between(start, end),
        target_records=end.hints.target_records,
        tasks_min=end.hints.tasks_min,
        records_max=end.hints.records_max,
    )


# -- JSON ------------------------------------------------------------------------------------------


def offset_json(offset: StreamOffset) -> dict[str, Json]:
    """Return an offset as the checkpoint stores it; equal offsets give equal JSON text."""
    described = _by_topic(offset.ends)
    for partition, begin in sorted(offset.begins.items()):
        described[partition.topic][str(partition.partition)]["from"] = begin
    topics: dict[str, Json] = {
        topic: {"id": offset.topic_ids[topic], "partitions": dict(partitions)}
        for topic, partitions in described.items()
    }
    hints = offset.hints
    tasks: dict[str, Json] = {"target": hints.target_records}
    if hints.tasks_min is not None:
        tasks["min"] = hints.tasks_min
    if hints.records_max is not None:
        tasks["max"] = hints.records_max
    return {"version": VERSION, "topics": topics, "tasks": tasks}


def ends_json(ends: Mapping[TopicPartition, int]) -> dict[str, Json]:
    """Return the current ends of partitions, for the query's progress."""
    topics: dict[str, Json] = {
        topic: {"partitions": dict(partitions)} for topic, partitions in _by_topic(ends).items()
    }
    return {"version": VERSION, "topics": topics}


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[str, dict[str, dict[str, Json]]]:
    topics: dict[str, dict[str, dict[str, Json]]] = {}
    for partition, offset in sorted(ends.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = {"next": offset}
    return topics


def parse_offset(json: Mapping[str, Json]) -> StreamOffset | None:
    """Return an offset of the checkpoint; None for the symbol before batch 0.

    Raises:
        OffsetError: another release wrote the offset, or it is malformed.
    """
    if json.get("version") != VERSION:
        raise OffsetError(
            f"checkpoint: offsets of version {json.get('version')!r}; this release reads {VERSION}"
        )
    if "at" in json:
        return None
    try:
        fields = AnswerFields(dict(json), "checkpoint")
        return _parse(fields, AnswerFields(json.get("tasks"), "checkpoint.tasks"))
    except UnexpectedAnswerError as error:
        raise OffsetError(error.message) from None


def _parse(fields: AnswerFields, tasks: AnswerFields) -> StreamOffset:
    topic_ids: dict[str, str | None] = {}
    ends: dict[TopicPartition, int] = {}
    begins: dict[TopicPartition, int] = {}
    for topic, described in fields.members("topics"):
        topic_ids[topic] = described.optional_text("id")
        for name, offsets in described.members("partitions"):
            if not (name.isascii() and name.isdigit()):
                raise OffsetError(f"checkpoint: {name!r} is not a partition of {topic}")
            partition = TopicPartition(topic, int(name))
            ends[partition] = offsets.integer("next")
            if offsets.has("from"):
                begins[partition] = offsets.integer("from")
    hints = TaskHints(
        target_records=tasks.integer("target"),
        tasks_min=tasks.optional_integer("min"),
        records_max=tasks.optional_integer("max"),
    )
    return StreamOffset(topic_ids=topic_ids, ends=ends, begins=begins, hints=hints)
