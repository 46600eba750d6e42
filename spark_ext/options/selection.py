"""Select the partitions that a query reads: by topic names, a pattern, or partition numbers (pure)."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milena.records import TopicPartition
from spark_ext.errors import OffsetError, OptionError


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A selection of all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """A selection of all partitions of every topic whose whole name matches. Topics may change between queries."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """A selection of single partitions."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


def parse_subscribe(text: str) -> Subscribe:
    """Parse ``orders,payments``."""
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise OptionError("subscribe: give one topic or several, separated by commas")
    return Subscribe(topics)


def parse_subscribe_pattern(text: str) -> SubscribePattern:
    """Parse a regular expression."""
    pattern = text.strip()
    if not pattern:
        raise OptionError("subscribePattern: give a regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(
            f"subscribePattern: {pattern!r} is not a regular expression: {error}"
        ) from None
    return SubscribePattern(pattern)


def parse_assign(text: str) -> Assign:
    """Parse ``{"orders": [0, 1]}``."""
    wanted = 'assign: expected JSON such as {"orders": [0, 1]}'
    try:
        topics = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{wanted}: {error}") from None
    if not isinstance(topics, dict) or not topics:
        raise OptionError(wanted)
    partitions: set[TopicPartition] = set()
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not numbers or not all(map(_is_partition, numbers)):
            raise OptionError(f"{wanted}; {topic!r} has {json.dumps(numbers)}")
        partitions.update(TopicPartition(topic, number) for number in numbers)
    return Assign(tuple(sorted(partitions)))


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def topics_of(selection: Selection, existing: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that a selection may read, sorted.

    Raises:
        OffsetError: a named topic does not exist.
    """
    known = set(existing)
    if isinstance(selection, SubscribePattern):
        return tuple(sorted(name for name in known if re.fullmatch(selection.pattern, name)))
    names = named_topics(selection)
    missing = sorted(names - known)
    if missing:
        raise OffsetError(f"no such topic: {', '.join(missing)}")
    return tuple(sorted(names))


def named_topics(selection: Selection) -> set[str]:
    """Return the topics that the selection names; they must exist."""
    match selection:
        case Subscribe():
            return set(selection.topics)
        case Assign():
            return {partition.topic for partition in selection.partitions}
        case SubscribePattern():
            return set()


def selects(selection: Selection, partition: TopicPartition) -> bool:
    """Return whether the selection reads the partition if it exists."""
    match selection:
        case Subscribe(topics):
            return partition.topic in topics
        case SubscribePattern(pattern):
            return re.fullmatch(pattern, partition.topic) is not None
        case Assign(partitions):
            return partition in partitions


def missing_of(selection: Selection, existing: Iterable[TopicPartition]) -> tuple[str, ...]:
    """Return a sentence for each named topic or partition that does not exist, sorted."""
    found = set(existing)
    if isinstance(selection, Assign):
        missing = sorted(set(selection.partitions) - found)
        return tuple(f"no such partition: {partition}" for partition in missing)
    names = named_topics(selection) - {partition.topic for partition in found}
    return tuple(f"no such topic: {name}" for name in sorted(names))


def partitions_of(
    selection: Selection, partition_counts: Mapping[str, int]
) -> tuple[TopicPartition, ...]:
    """Return the partitions to read, sorted; ``partition_counts`` has every topic of ``topics_of``.

    Raises:
        OffsetError: an assigned partition does not exist.
    """
    every = tuple(
        TopicPartition(topic, number)
        for topic, count in sorted(partition_counts.items())
        for number in range(count)
    )
    if not isinstance(selection, Assign):
        return every
    missing = sorted(set(selection.partitions) - set(every))
    if missing:
        raise OffsetError(
            f"assign: no such partition: {', '.join(map(str, missing))}; "
            f"{missing[0].topic} has {partition_counts.get(missing[0].topic, 0)}"
        )
    return selection.partitions
