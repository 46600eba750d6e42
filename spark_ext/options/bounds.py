"""The start and end of a query in each partition, as the options give them (pure values and their parsing).

Three options can set each end. The first one that is given wins:

    startingTimestamp > startingOffsetsByTimestamp > startingOffsets     default earliest, in a stream latest
    endingTimestamp   > endingOffsetsByTimestamp   > endingOffsets       default latest

The JSON forms are ``{"topic": {"partition": number}}``. As an offset, -2 means earliest and -1 means latest.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TypeVar

from milena.records import TopicPartition
from spark_ext.errors import OptionError

EARLIEST_IN_JSON = -2
LATEST_IN_JSON = -1
OFFSET_MAX = (1 << 63) - 1

T = TypeVar("T")


@unique
class Edge(Enum):
    """An end of a partition: its first readable offset, or its high watermark."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset in each partition; all partitions that are read must be named.

    ``option`` is the option that set it, for messages.
    """

    offsets: Mapping[TopicPartition, int | Edge]
    option: str = field(default="startingOffsets", kw_only=True)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Return the named partitions."""
        return set(self.offsets)


@dataclass(frozen=True, slots=True)
class SpecificTimestamps:
    """The first record at or after a time in each partition, ms since 1970; all partitions must be named."""

    timestamps: Mapping[TopicPartition, int]
    option: str = field(default="startingOffsetsByTimestamp", kw_only=True)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Return the named partitions."""
        return set(self.timestamps)


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """The first record at or after a time, in every partition."""

    timestamp_ms: int
    option: str = field(default="startingTimestamp", kw_only=True)


Bound = Edge | SpecificOffsets | SpecificTimestamps | GlobalTimestamp


@unique
class NoMatch(Enum):
    """The policy for a partition that has no record at or after the starting time."""

    ERROR = "error"
    LATEST = "latest"


def parse_offsets(option: str, text: str, *, refused: Edge | None) -> Bound:
    """Parse ``earliest``, ``latest`` or JSON; refuse ``refused``, which makes no sense at this end of a batch query."""
    word = text.strip()
    if word.lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        edge = Edge(word.lower())
        if edge is refused:
            raise OptionError(f"{option}: {edge.value} is not possible in a batch query")
        return edge
    words = " or ".join(edge.value for edge in Edge if edge is not refused)
    offsets = _parse_numbers(
        option, text, lambda number: _offset(option, number, refused), other=f"{words}, or "
    )
    return SpecificOffsets(offsets, option=option)


def _offset(option: str, number: int, refused: Edge | None) -> int | Edge:
    edges = {EARLIEST_IN_JSON: Edge.EARLIEST, LATEST_IN_JSON: Edge.LATEST}
    found = edges.get(number, number)
    if refused is not None and found is refused:
        raise OptionError(f"{option}: {number} ({refused.value}) is not possible in a batch query")
    if isinstance(found, int) and not 0 <= found <= OFFSET_MAX:
        raise OptionError(
            f"{option}: {number} is not an offset; give 0 or more, -2 for earliest, -1 for latest"
        )
    return found


def parse_timestamps(option: str, text: str) -> SpecificTimestamps:
    """Parse ``{"orders": {"0": 1700000000000}}``, times in ms since 1970."""

    def checked(number: int) -> int:
        if not 0 <= number <= OFFSET_MAX:
            raise OptionError(f"{option}: {number} is not a time in ms since 1970")
        return number

    return SpecificTimestamps(_parse_numbers(option, text, checked), option=option)


def parse_timestamp(option: str, text: str) -> GlobalTimestamp:
    """Parse ``1700000000000``, a time in ms since 1970."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= OFFSET_MAX:
        raise OptionError(f"{option}: expected a time in ms since 1970, got {text!r}")
    return GlobalTimestamp(number, option=option)


def _parse_numbers(
    option: str, text: str, convert: Callable[[int], T], *, other: str = ""
) -> dict[TopicPartition, T]:
    wanted = f'{option}: expected {other}JSON such as {{"orders": {{"0": 23}}}}'
    try:
        topics = json.loads(text)
    except ValueError:
        raise OptionError(f"{wanted}, got {text[:80]!r}") from None
    if not isinstance(topics, dict) or not topics:
        raise OptionError(f"{wanted}, got {text[:80]!r}")
    found: dict[TopicPartition, T] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{wanted}; {topic!r} has {json.dumps(partitions)[:80]}")
        for name, number in partitions.items():
            if not (name.isascii() and name.isdigit()):
                raise OptionError(f"{option}: {name!r} is not a partition of {topic!r}")
            if not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(
                    f"{option}: {topic}-{name} has {json.dumps(number)[:80]}, not a number"
                )
            found[TopicPartition(topic, int(name))] = convert(number)
    return found
