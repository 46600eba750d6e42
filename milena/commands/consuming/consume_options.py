"""Options of ``milena consume`` (pure values)."""

from dataclasses import dataclass

from milena.commands.formats import Layout
from milena.reading.cursor import OnOutOfRange
from milena.records import Position, TimestampMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The options that say what to read, and how to print it.

    ``group`` None means no group, ``until`` None means the end, ``records_max`` None means no limit. ``partitions``
    empty means all.
    """

    topic: str
    group: str | None
    session_timeout_ms: int
    """The session timeout of a member of a group, in ms."""
    partitions: tuple[int, ...]
    start: Position
    until: int | TimestampMs | None
    is_following: bool
    is_by_time: bool
    records_max: int | None
    on_out_of_range: OnOutOfRange
    layout: Layout
