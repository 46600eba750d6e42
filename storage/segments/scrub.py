"""Looks through stored segments for bytes that are not what was written, before a reader meets them.

Below the recovery point recovery trusts what the indexes say, and readers take bytes as they lie there: what rots on
the disk stays unseen for as long as nobody reads it, and replicas that rot one after the other would be lost together.
A ``SegmentScrub`` checks one segment as recovery would: checksums, offsets that follow each other, epochs that do not
fall.

It touches nothing but a descriptor of its own, so that any thread may take the steps while the log goes on. What it
finds is true of the segment as it was when the scrub began: ``PartitionLog.is_current`` says whether that still is one.
The copy in the page cache is what it sees where there is one, as readers do.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from milena.disk.files import File
from milena.model.batch.header import BatchHeader
from milena.model.errors import CorruptLogError
from storage.segments.index import SegmentSummary
from storage.segments.segment import LOG_SUFFIX, Segment, read_batches
from storage.segments.table import SegmentTable

STEP_BYTES = 256 << 10
STEP_BATCHES = 500
"""Whichever comes first: a batch costs some microseconds of the interpreter, however small it is."""
NEAR_BYTES = 4 << 20
"""What is checked from a place on that somebody doubts, before all of its segment is: that one may take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A segment's first bad batch that was seen: ``offset`` is where it should begin, and lies at byte ``position``."""

    segment: Segment
    summary: SegmentSummary
    path: str
    offset: int
    position: int
    epoch: int
    """Of the batch before it; -1 without one."""
    reason: str


class _Once:
    """A file that is read in passing."""

    def __init__(self, file: File) -> None:
        self._file = file

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread_once(length, position)


class SegmentScrub:
    """One way through a sealed segment; ``close`` it in the end."""

    def __init__(
        self, segment: Segment, *, again: Damage | None = None, near: int | None = None
    ) -> None:
        """Begin at the beginning and go on to the end.

        Args:
            segment: to be checked.
            again: begin at this damage, to see whether it is still there.
            near: begin where the index knows a place before this offset, and go on for ``NEAR_BYTES``.

        Raises:
            FileNotFoundError: the segment was removed or replaced.
        """
        self.segment = segment
        self.summary = segment.summary
        self.damage: Damage | None = None
        self._file = segment.open_apart()
        self._position = 0 if again is None else again.position
        self._offset = segment.base_offset if again is None else again.offset
        self._epoch = -1 if again is None else again.epoch
        self._near = near
        self._stop = self.summary.size_bytes
        self._batches = self._read_on()
        self.is_done = False

    def _read_on(self) -> Iterator[tuple[bytes, BatchHeader, int]]:
        return read_batches(_Once(self._file), self._position, self.summary.size_bytes)

    def _seek(self, offset: int) -> None:
        """Go to what the index knows before it; stay where its files are gone and the log cannot tell either."""
        with suppress(CorruptLogError, FileNotFoundError):
            index = self.segment.load_index()
            # It may know what was written since, and nothing at all where the segment was cut.
            entry = index.floor(min(offset, self.summary.next_offset - 1))
            if entry >= 0:
                self._position, self._offset = index.positions[entry], index.offsets[entry]
            self._stop = min(self._stop, self._position + NEAR_BYTES)
            self._batches = self._read_on()

    def step(self) -> int:
        """Check some batches; returns how many bytes they have. ``is_done`` and ``damage`` say the rest."""
        if self._near is not None:
            # Not before: it may have to read files, and steps are what worker threads take.
            near, self._near = self._near, None
            self._seek(near)
        began = self._position
        try:
            for _ in range(STEP_BATCHES):
                if not self._check_next() or self._position - began >= STEP_BYTES:
                    break
        except CorruptLogError as error:
            self.is_done = True
            self.damage = Damage(
                segment=self.segment,
                summary=self.summary,
                path=self.segment.path(LOG_SUFFIX),
                offset=self._offset,
                position=self._position,
                epoch=self._epoch,
                reason=str(error),
            )
        return self._position - began

    def _check_next(self) -> bool:
        """Check one batch; False at the end of the segment."""
        found = next(self._batches, None)
        if found is None:
            self.is_done = True
            if self._offset != self.summary.next_offset:
                raise CorruptLogError(f"offset {self.summary.next_offset - 1} is not there")
            return False
        header = found[1]
        if header.base_offset != self._offset:
            raise CorruptLogError(f"offset {header.base_offset} where {self._offset} follows")
        if header.leader_epoch < self._epoch:
            raise CorruptLogError(f"leader epoch {header.leader_epoch} after {self._epoch}")
        self._position += header.batch_bytes
        self._offset, self._epoch = header.next_offset, header.leader_epoch
        if self._stop <= self._position < self.summary.size_bytes:
            self.is_done = True
            return False
        return True

    def close(self) -> None:
        """Close its descriptor."""
        self._file.close()


def scrub_above(
    table: SegmentTable,
    offset: int,
    limit: int,
    *,
    again: Damage | None = None,
    near: int | None = None,
) -> SegmentScrub | None:
    """A scrub of the first segment that ends above ``offset`` and is sealed below ``limit``; None without one."""
    for segment in table.segments[:-1]:
        if segment.next_offset > limit or segment in table.unsealed:
            return None
        if segment.next_offset > offset:
            # A removal or a swap may be ahead of the table.
            with suppress(FileNotFoundError):
                return SegmentScrub(segment, again=again, near=near)
    return None


def scrub_of(segment: Segment, *, near: int | None = None) -> SegmentScrub | None:
    """A scrub of what is written by now of this segment; None if it was removed or replaced."""
    with suppress(FileNotFoundError):
        return SegmentScrub(segment, near=near)
    return None


def is_current(table: SegmentTable, damage: Damage) -> bool:
    """Whether the segment in which it was found is still the same sealed part of the log."""
    segment = damage.segment
    return (
        segment in table.segments[:-1]
        and segment not in table.unsealed
        and segment.summary == damage.summary
    )
