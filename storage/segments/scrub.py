"""Scrub: check stored segments for damaged bytes before a reader needs them.

Recovery does not read segments below the recovery point. Without a scrub, damage there is found only when the bytes are
read. If one replica after the other is damaged until then, no good copy is left. A ``SegmentScrub`` checks one segment
as recovery would: checksums, offsets without gaps, leader epochs that never fall.

A scrub opens its own file descriptor, so any thread may run its steps while the log is in use. It checks the segment as
it was when the scrub began. ``PartitionLog.is_current`` says whether the segment has changed since. If a page is in the
page cache, the scrub checks the cached page, because readers get that one.
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
"""Limits of one step; the number of batches too, because even a small batch costs some microseconds to check."""
NEAR_BYTES = 4 << 20
"""Bytes that a scrub with ``near`` checks. A whole segment may take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The first damaged batch of a segment: a batch with base offset ``offset`` was expected at byte ``position``."""

    segment: Segment
    summary: SegmentSummary
    path: str
    offset: int
    position: int
    epoch: int
    """Leader epoch of the batch before the damage; -1 without one."""
    reason: str


class _Once:
    """A file whose reads do not fill the page cache."""

    def __init__(self, file: File) -> None:
        self._file = file

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread_once(length, position)


class SegmentScrub:
    """One pass over a segment; call ``close`` at its end."""

    def __init__(
        self, segment: Segment, *, again: Damage | None = None, near: int | None = None
    ) -> None:
        """Start at the segment's beginning, and check up to its end.

        Args:
            segment: the segment to check.
            again: start at this damage instead, to confirm it with a second read.
            near: start at the index entry before this offset instead, and check ``NEAR_BYTES``.

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
        """Go to the index entry before ``offset``; stay at the beginning if there is no usable index."""
        with suppress(CorruptLogError, FileNotFoundError):
            index = self.segment.load_index()
            # The index may be newer than ``summary``: it may have entries of later writes, or none after a cut.
            entry = index.floor(min(offset, self.summary.next_offset - 1))
            if entry >= 0:
                self._position, self._offset = index.positions[entry], index.offsets[entry]
            self._stop = min(self._stop, self._position + NEAR_BYTES)
            self._batches = self._read_on()

    def step(self) -> int:
        """Check some batches; return the number of bytes checked. ``is_done`` and ``damage`` hold the result."""
        if self._near is not None:
            # This may read files. So it is a part of the first step, which runs on a worker thread, and not of
            # ``__init__``, which runs on the owner's thread.
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
        """Check one batch; return False at the end of the segment, or after ``NEAR_BYTES``."""
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
        """Close the scrub's file descriptor."""
        self._file.close()


def scrub_above(
    table: SegmentTable,
    offset: int,
    limit: int,
    *,
    again: Damage | None = None,
    near: int | None = None,
) -> SegmentScrub | None:
    """Return a scrub of the first sealed segment that ends above ``offset``; None if it ends above ``limit``."""
    for segment in table.segments[:-1]:
        if segment.next_offset > limit or segment in table.unsealed:
            return None
        if segment.next_offset > offset:
            # Another thread may have removed or replaced the files already. Then try the next segment.
            with suppress(FileNotFoundError):
                return SegmentScrub(segment, again=again, near=near)
    return None


def scrub_of(segment: Segment, *, near: int | None = None) -> SegmentScrub | None:
    """Return a scrub of the written part of this segment; None if it was removed or replaced."""
    with suppress(FileNotFoundError):
        return SegmentScrub(segment, near=near)
    return None


def is_current(table: SegmentTable, damage: Damage) -> bool:
    """Whether the damaged segment is still in the log, sealed, with the offsets and size that the scrub saw."""
    segment = damage.segment
    return (
        segment in table.segments[:-1]
        and segment not in table.unsealed
        and segment.summary == damage.summary
    )
