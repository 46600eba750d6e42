"""A scrub: it checks stored segments for bytes that differ from those written, before a reader meets them.

Below the recovery point, recovery trusts the indexes, and readers take the bytes as they are. Damage stays unseen until
the bytes are read, and replicas that are damaged one after the other would be lost together. A ``SegmentScrub`` checks
one segment as recovery would: checksums, offsets without gaps, epochs that do not fall.

A scrub uses only its own descriptor, so any thread may run its steps while the log is in use. Its finding is about the
segment as it was when the scrub began; ``PartitionLog.is_current`` says whether the segment still is the same. If a
page is in the page cache, the scrub checks that copy, because readers see it.
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
"""Limits of one step. Each batch costs some microseconds of the interpreter, however small it is."""
NEAR_BYTES = 4 << 20
"""Bytes checked first, from a doubted place on; the rest of the segment may take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The first bad batch found in a segment: it should start at ``offset``, at byte ``position``."""

    segment: Segment
    summary: SegmentSummary
    path: str
    offset: int
    position: int
    epoch: int
    """Leader epoch of the batch before it; -1 without one."""
    reason: str


class _Once:
    """A file whose pages do not stay in the page cache because of a read."""

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
            segment: to be checked.
            again: start at this damage instead, to see whether it is still there.
            near: start at the index entry before this offset, and check ``NEAR_BYTES``.

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
            # The index may cover later writes, or nothing if the segment was cut.
            entry = index.floor(min(offset, self.summary.next_offset - 1))
            if entry >= 0:
                self._position, self._offset = index.positions[entry], index.offsets[entry]
            self._stop = min(self._stop, self._position + NEAR_BYTES)
            self._batches = self._read_on()

    def step(self) -> int:
        """Check some batches; return their bytes. ``is_done`` and ``damage`` hold the result."""
        if self._near is not None:
            # Not in the constructor: this may read files, and steps run on worker threads.
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
    """Return a scrub of the first segment that ends above ``offset`` and is sealed below ``limit``, or None."""
    for segment in table.segments[:-1]:
        if segment.next_offset > limit or segment in table.unsealed:
            return None
        if segment.next_offset > offset:
            # The table may not show a removal or a swap yet.
            with suppress(FileNotFoundError):
                return SegmentScrub(segment, again=again, near=near)
    return None


def scrub_of(segment: Segment, *, near: int | None = None) -> SegmentScrub | None:
    """Return a scrub of the written part of this segment; None if it was removed or replaced."""
    with suppress(FileNotFoundError):
        return SegmentScrub(segment, near=near)
    return None


def is_current(table: SegmentTable, damage: Damage) -> bool:
    """Whether the segment with the damage is still the same sealed part of the log."""
    segment = damage.segment
    return (
        segment in table.segments[:-1]
        and segment not in table.unsealed
        and segment.summary == damage.summary
    )
