"""Select and decode the records of a fetch that go into a response, up to limits of number and bytes."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of, timestamps_of
from milena.model.batch.header import BatchHeader
from milena.model.columns import Headers, RecordColumns
from milena.model.errors import CorruptBatchError
from milena.model.requests import FetchResult


@dataclass(frozen=True, slots=True)
class Slice:
    """Records of one batch as columns of equal length."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    """Wall ms; negative for a record without one."""
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None

    def between(self, first: int, last: int) -> "Slice":
        """Return the records at positions ``first`` to ``last``, exclusive."""
        if first == 0 and last >= len(self.values):
            return self
        return Slice(
            self.offsets[first:last],
            self.timestamps[first:last],
            None if self.keys is None else self.keys[first:last],
            self.values[first:last],
            None if self.headers is None else self.headers[first:last],
        )


@dataclass(slots=True)
class Selection:
    """The selected records. ``next_offset`` is where the next request should start."""

    next_offset: int
    slices: list[Slice] = field(default_factory=list)
    damaged_at: int | None = None
    """The offset at which damaged bytes start, before which the selection ends; None: no bytes are damaged."""


def select(result: FetchResult, *, count: int | None, bytes_max: int) -> Selection:
    """Select readable records of a fetch: at most ``count``, from batches of up to ``bytes_max`` bytes decompressed.

    The first batch with records may have any size; otherwise a reader could never get past a large one. The selection
    ends before a damaged batch.
    """
    selection = Selection(result.start_offset)
    try:
        _fill(selection, result, count, bytes_max)
    except CorruptBatchError:
        selection.damaged_at = selection.next_offset
    return selection


def _fill(selection: Selection, result: FetchResult, count: int | None, bytes_max: int) -> None:
    """Add records to ``selection`` up to the limits. A damaged batch raises an error; earlier records stay added."""
    left = count
    budget = bytes_max
    for position, header in iterate_batches(result.batches):
        if header.last_offset < result.start_offset:
            continue
        budget -= header.uncompressed_bytes
        is_full = left == 0 or (budget < 0 and selection.slices)
        if header.base_offset >= result.readable_end or is_full:
            return
        next_offset = min(header.next_offset, result.readable_end)
        if header.is_control or header.record_count == 0:
            selection.next_offset = next_offset
            continue
        columns = decode_columns(result.batches, header, position)
        piece = _trim(_slice_of(header, columns), result)
        selection.next_offset = next_offset
        if left is not None:
            left = _limit(selection, piece, left)
        elif piece.values:
            selection.slices.append(piece)


def _limit(selection: Selection, piece: Slice, left: int) -> int:
    """Take at most ``left`` records; return how many may still be taken."""
    taken = piece.between(0, left)
    if taken.values:
        selection.slices.append(taken)
    if len(taken.values) < len(piece.values):
        selection.next_offset = taken.offsets[-1] + 1
    return left - len(taken.values)


def _slice_of(header: BatchHeader, columns: RecordColumns) -> Slice:
    return Slice(
        offsets_of(header, columns),
        timestamps_of(header, columns),
        columns.keys,
        columns.values,
        columns.headers,
    )


def _trim(piece: Slice, result: FetchResult) -> Slice:
    offsets = piece.offsets
    if result.start_offset <= offsets[0] and offsets[-1] < result.readable_end:
        return piece
    first = bisect_left(offsets, result.start_offset)
    return piece.between(first, bisect_left(offsets, result.readable_end))
