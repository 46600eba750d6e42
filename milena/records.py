"""Value classes of the client: partitions, records, receipts, and positions at which reading begins."""

from dataclasses import dataclass
from enum import Enum, unique
from typing import Literal, NamedTuple, Self

from milena.model.types import TimestampType


class TopicPartition(NamedTuple):
    """A partition, by its topic's name and its number."""

    topic: str
    partition: int

    @classmethod
    def of(cls, where: object) -> Self:
        """Return the partition for a pair that a program passes.

        Raises:
            TypeError: the value is no pair of a topic's name and a number.
        """
        match where:
            case (str() as topic, int() as partition):
                return cls(topic, partition)
            case _:
                raise TypeError(f"{where!r} is not a partition: give (topic, number)")

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ConsumedRecord(NamedTuple):
    """One committed record. A value of None is a tombstone. ``headers`` is empty if there are none.

    The type is a named tuple, because a reader creates millions of records a second, and other types are slower.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The partition and offset of a written record. With ``acks=0``, ``offset`` is None."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int


@unique
class StartAt(Enum):
    """The two ends of a partition: its first readable offset, and its high watermark."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TimestampMs:
    """The first record at or after this time, in ms since 1970; the high watermark if there is none."""

    value: int


@dataclass(frozen=True, slots=True)
class LastN:
    """Start at the last ``value`` committed records, or at the first record if there are fewer.

    The node looks back through at most 16 MiB of stored records. Further back it counts offsets instead of records, so
    fewer records may arrive.
    """

    value: int


_INT64_MAX = (1 << 63) - 1
"""The largest offset and the latest time that the protocol can carry."""

Position = int | StartAt | TimestampMs | LastN
"""The place in a partition where reading begins; an integer is an offset."""


def is_whole(number: object) -> bool:
    """Return whether a value is a whole number; True and False are none."""
    return isinstance(number, int) and not isinstance(number, bool)


def check_range(name: str, value: object, least: float, most: float) -> None:
    """Refuse a value of an option that is no number in its range.

    Raises:
        ValueError: the message has the range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = repr(value)
    elif least <= value <= most:
        return
    else:
        shown = f"{value:.15g}"
    raise ValueError(f"{name}={shown} must be between {least:.15g} and {most:.15g}")


def check_position(start: object, name: str = "start") -> None:
    """Raise an error if a value is no position, for example a text or an offset below 0.

    Raises:
        TypeError: the message lists the valid positions.
        ValueError: the number is out of range.
    """
    if isinstance(start, bool) or not isinstance(start, Position):
        raise TypeError(
            f"{name}={start!r} is not a position: give an offset, StartAt.EARLIEST, StartAt.LATEST, TimestampMs(ms) or "
            "LastN(count)"
        )
    number = start if isinstance(start, int | StartAt) else start.value
    if isinstance(number, StartAt):
        return
    if not is_whole(number):
        raise TypeError(f"{name}={start!r} is not a position: it takes a whole number")
    if number < 0 and not isinstance(start, TimestampMs):
        raise ValueError(f"{name}={start!r} must be 0 or above; LastN counts from the end")
    if number > _INT64_MAX:
        raise ValueError(f"{name}={start!r} must be at most {_INT64_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedChunk:
    """Whole stored batches as a node sent them, with verified checksums, not decoded.

    The first batch may begin before ``start_offset``, and the last one may end after ``end_offset``. Use only records
    with ``start_offset <= offset < end_offset``. Continue reading at ``next_offset``. There may be no record just below
    it, because compaction leaves gaps. ``topic_tag`` has the first digits of the topic's id; empty if not known.
    """

    topic: str
    partition: int
    data: bytes
    start_offset: int
    end_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    topic_tag: str = ""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch under which an idempotent producer writes."""

    producer_id: int
    producer_epoch: int


Acks = Literal["all", 1, 0]
"""The replicas that must have a record before the response to its write: all in sync, the leader, or none."""
