"""Rolling: when a log closes its active segment and continues in a new one.

An append rolls if the active segment has no room (``append_plan``). This module rolls by age, and on request. Without a
limit of age, a small segment would stay active, and retention and compaction work on closed segments only.
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
        - the new segment begins at the log end, and the folder entry of its file is synced with the next batch;
        - a log with remains rolls only by an append, because an append first cuts the remains.
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
        """Start a new segment at the log end; do nothing if the active one is empty or the disk is full.

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
    """The age of a log's active segment, counted from the append time of its first batch.

    The first batch is read once per segment.
    """

    __slots__ = ("_segment", "_since_ms")

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._since_ms = 0

    def has_reached(self, roll_ms: int, segment: Segment, now_ms: int) -> bool:
        """Whether the first batch of ``segment``, which must have one, was appended at least ``roll_ms`` ago."""
        if self._segment is not segment:
            self._segment, self._since_ms = segment, _first_append_ms(segment, now_ms)
        # If the clock was set back since the append, the append time lies in the future. ``abs`` then rolls the segment
        # too, instead of waiting until that time.
        return now_ms > 0 and abs(now_ms - self._since_ms) >= roll_ms


def _first_append_ms(segment: Segment, now_ms: int) -> int:
    """Return the append time of the first batch, or ``now_ms`` if the batch is damaged; readers report the damage."""
    try:
        return next(segment.headers_from(0))[1].append_time_ms
    except CorruptLogError:
        return now_ms
