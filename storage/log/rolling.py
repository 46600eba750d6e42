"""When a log continues in a new segment, apart from an append for which the active one has no room.

A segment rolls by age, however small it is, because retention and compaction work on closed segments only.
"""

from contextlib import suppress

from milena.model.errors import CorruptLogError, DiskFullError
from storage.log.flushing import Flushing
from storage.log.state import LogState
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import Segment
from storage.segments.tail import NO_TAIL


class Rolling:
    """The change from one active segment of a log to the next.

    Invariants:
        - the new segment begins at the log end, and its name is synced with the next batch;
        - a log with remains rolls only by an append, which has dropped the remains.
    """

    __slots__ = ("_age", "_flushing", "_replica", "_state")

    def __init__(self, replica: ReplicaFiles, state: LogState, flushing: Flushing) -> None:
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._age = SegmentAge()

    def push(self, segment: Segment) -> None:
        """Make a new segment the active one; the next checkpoint seals the one before."""
        state = self._state
        state.tail = NO_TAIL
        state.table.push(segment, state.writers.freeze(state.end_offset))
        self._flushing.note_name()

    def try_roll(self) -> None:
        """Start a new segment at the log end, unless the active one is empty; on a full disk, leave it for later.

        Raises:
            DiskFailedError: stop the process.
        """
        if self._state.table.active.size_bytes:
            with suppress(DiskFullError):
                self.push(self._replica.new_segment(self._state.end_offset))

    def roll_by_age(self, now_ms: int) -> None:
        """Call ``try_roll`` if the active segment is old enough.

        Raises:
            DiskFailedError: stop the process.
        """
        active, roll_ms = self._state.table.active, self._state.config.roll_ms
        if roll_ms is None or not active.size_bytes or self._state.has_remains:
            return
        if self._age.has_reached(roll_ms, active, now_ms):
            self.try_roll()

    def close_segment(self, offset: int) -> None:
        """Call ``try_roll`` if the active segment holds ``offset``.

        Raises:
            DiskFailedError: stop the process.
        """
        if self._state.table.active.base_offset <= offset and not self._state.has_remains:
            self.try_roll()


class SegmentAge:
    """The age of a log's active segment, counted from its first batch, which is read once per segment."""

    __slots__ = ("_segment", "_since_ms")

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._since_ms = 0

    def has_reached(self, roll_ms: int, segment: Segment, now_ms: int) -> bool:
        """Whether the first batch of ``segment``, which has one, was appended ``roll_ms`` ago."""
        if self._segment is not segment:
            self._segment, self._since_ms = segment, _first_append_ms(segment, now_ms)
        # The time lies in the future if a clock was ahead. The segment must not stay open until then.
        return now_ms > 0 and abs(now_ms - self._since_ms) >= roll_ms


def _first_append_ms(segment: Segment, now_ms: int) -> int:
    """Return when the first batch was appended; the current time if the batch cannot be read.

    Readers report a damaged batch. It is no reason to stop here.
    """
    try:
        return next(segment.headers_from(0))[1].append_time_ms
    except CorruptLogError:
        return now_ms
