"""Options of ``milena consume`` (pure values)."""

from dataclasses import dataclass

from milena.commands.formats import Layout
from milena.reading.cursor import OnOutOfRange
from milena.records import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The options that say what to read, and how to print it.

    ``group`` None means no group; ``partitions`` empty means all; ``records_max`` None means no limit.
    """

    topic: str
    group: str | None
    partitions: tuple[int, ...]
    start: Position
    is_following: bool
    is_by_time: bool
    records_max: int | None
    on_out_of_range: OnOutOfRange
    layout: Layout
