"""The segments of a log as a sorted table; a bisect finds the segment that holds an offset.

A change replaces the table as a whole, so a reader on another thread may keep the table that it took. A sealed segment
is opened when it is read. The few that were read last stay open.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from storage.segments.segment import Segment
from storage.state.writer_snapshot import WriterSnapshot

OPEN_SEALED_MAX = 4
"""Sealed segments whose file and index stay open; others are opened again when they are read."""


class SegmentTable:
    """Segments in ascending order.

    Invariants:
        - the table is never empty; each segment starts where the one before it ends;
        - only the last segment, the active one, grows;
        - ``unsealed`` maps segments that were closed since the last checkpoint to the writers' state at their end.
          Their index is only in memory. The next checkpoint writes their index, and the state as a snapshot.

    The owner's thread changes the table; any thread may call ``find`` and ``note_use``.
    """

    __slots__ = ("_lock", "_open_sealed", "_table", "unsealed")

    def __init__(
        self, segments: Sequence[Segment], unsealed: dict[Segment, WriterSnapshot]
    ) -> None:
        self._lock = threading.Lock()
        self._open_sealed: OrderedDict[int, Segment] = OrderedDict()
        self.unsealed = unsealed
        self._set(segments)

    def _set(self, segments: Sequence[Segment]) -> None:
        assert segments, "a log has at least one segment"
        bases = tuple(segment.base_offset for segment in segments)
        self._table: tuple[tuple[int, ...], tuple[Segment, ...]] = (bases, tuple(segments))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        return self._table[1]

    @property
    def bases(self) -> tuple[int, ...]:
        """Base offsets of the segments."""
        return self._table[0]

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self._table[1][-1]

    def find(self, offset: int) -> Segment:
        """Return the segment that holds ``offset``."""
        bases, segments = self._table
        return segments[max(bisect_right(bases, offset) - 1, 0)]

    def split_at(self, offset: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        """Return the segments that start below ``offset``, at least one, and the others."""
        bases, segments = self._table
        count = max(bisect_left(bases, offset), 1)
        return segments[:count], segments[count:]

    def above(self, offset: int) -> list[Segment]:
        """Return the segments that end above ``offset``."""
        return [segment for segment in self.segments if segment.next_offset > offset]

    def push(self, segment: Segment, state: WriterSnapshot) -> None:
        """Make ``segment`` the active one; ``state`` is the writers' state at its start."""
        self.unsealed[self.active] = state
        self._set((*self.segments, segment))

    def drop_last(self, kept: Sequence[Segment]) -> None:
        """Keep the first segments; the last of them takes appends again."""
        dropped = self.segments[len(kept) :]
        self._set(kept)
        self._forget((*dropped, kept[-1]))
        for segment in (*dropped, kept[-1]):
            self.unsealed.pop(segment, None)
        for segment in dropped:
            segment.let_go()

    def drop_first(self, count: int) -> None:
        """Remove the oldest segments and their files."""
        dropped = self.segments[:count]
        self._set(self.segments[count:])
        self._forget(dropped)
        for segment in dropped:
            segment.remove()

    def replace(self, old: Sequence[Segment], segment: Segment) -> None:
        """Replace neighbouring segments with one sealed segment, whose file has the name of the first of them."""
        first = self.segments.index(old[0])
        last = first + len(old)
        assert self.segments[first:last] == tuple(old), "compacted segments follow each other"
        self._set((*self.segments[:first], segment, *self.segments[last:]))
        self._forget(old)
        for replaced in old:
            replaced.let_go()

    def replace_all(self, segment: Segment) -> None:
        """Replace all segments with one."""
        dropped = self.segments
        self._set([segment])
        self._forget(dropped)
        self.unsealed.clear()
        for old in dropped:
            old.let_go()

    def mark_sealed(self, segments: Sequence[Segment]) -> None:
        """Note that a checkpoint wrote the index file of each of these segments."""
        for segment in segments:
            self.unsealed.pop(segment, None)
            self.note_use(segment)

    def note_use(self, segment: Segment) -> None:
        """Keep the last few sealed segments open; close the least recently used one."""
        with self._lock:
            if segment is self.active or segment in self.unsealed or segment.is_replaced:
                return
            self._open_sealed[segment.base_offset] = segment
            self._open_sealed.move_to_end(segment.base_offset)
            if len(self._open_sealed) > OPEN_SEALED_MAX:
                _, unused = self._open_sealed.popitem(last=False)
                unused.drop_index()
                unused.let_go()

    def _forget(self, segments: Sequence[Segment]) -> None:
        """Remove segments from the list of open sealed ones, so that ``note_use`` does not close them later."""
        with self._lock:
            for segment in segments:
                self._open_sealed.pop(segment.base_offset, None)

    def close(self) -> None:
        """Close all files."""
        for segment in self.segments:
            segment.let_go()
