"""Reads of a log, by offset and by time, on the owner's thread or any other.

A read takes the log's bounds and its table of segments once, at the start. Later changes by the owner do not affect
the read: appends lie above its bounds, and the file of a removed segment stays open while it is pinned.
"""

from collections.abc import Mapping
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from milena.disk.files import Buffer, File
from milena.model.batch.decode import (
    check_batch,
    decode_columns,
    iterate_batches,
    iterate_headers,
    offsets_of,
    timestamps_of,
)
from milena.model.batch.encode import encode_filler
from milena.model.batch.header import CONTROL_BIT, HEADER_BYTES, BatchHeader
from milena.model.errors import CorruptBatchError, CorruptLogError, OffsetOutOfRangeError
from storage.segments.segment import Segment
from storage.segments.table import SegmentTable
from storage.state.transactions import AbortedRange, Identity, is_aborted

_COUNTS = Struct(">Hii")
_COUNTS_POSITION = 35
"""Layout of attributes, record_count and last_offset_delta in a batch's header, from ``_COUNTS_POSITION`` on."""
_SIZE = Struct(">I31xHi")
"""Layout of batch_bytes, attributes and record_count in a batch's header."""
_PLACE = Struct(">7xq26xi")
"""Layout of base_offset and last_offset_delta in a batch's header."""

_BASE_OFFSET = slice(7, 15)
"""The bytes of base_offset in a batch's header."""

_SEARCH_BYTES = 1 << 20
"""Bytes that a search by time reads at once."""


class Bounds(NamedTuple):
    """The readable offsets of a log, from ``start`` (inclusive) to ``end`` (exclusive); ``name`` is for messages."""

    start: int
    end: int
    name: str

    def out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        """Return the error for an offset outside of the range."""
        return OffsetOutOfRangeError(
            f"offset {offset} of {self.name} is out of range: the log goes from {self.start} to {self.end}"
        )


def read_span(
    table: SegmentTable,
    bounds: Bounds,
    offset: int,
    *,
    max_bytes: int,
    end_offset: int | None,
    is_cached: bool,
) -> bytes | None:
    """Return whole batches as stored, from the batch that holds ``offset`` on; see ``PartitionLog``.

    Args:
        table: the log's segments.
        bounds: the readable range.
        offset: where to start.
        max_bytes: the limit of bytes; the first batch is returned whatever its size.
        end_offset: batches that start at or above it are left out; None = ``bounds.end``.
        is_cached: read from the page cache only, and return None if the disk would have to be read.

    Raises:
        OffsetOutOfRangeError: the offset is outside of the bounds.
        CorruptLogError: the bytes on the disk are not batches.
    """
    if not bounds.start <= offset <= bounds.end:
        raise bounds.out_of_range(offset)
    end = bounds.end if end_offset is None else min(end_offset, bounds.end)
    if offset >= end:
        return b""
    spans: list[bytes] = []
    left, at = max_bytes, offset
    while True:
        try:
            found = _read_segment(
                table, bounds, at, max_bytes=left, end_offset=end, is_cached=is_cached
            )
        except (CorruptLogError, OffsetOutOfRangeError):
            if spans:
                break  # the response ends before what is damaged or deleted, which the next read reports
            raise
        if found is None:
            return None
        span, next_offset = found
        if spans and _base_of(span) < at:
            # Since the segment before was read, compaction has merged its batches with this one. Read them again.
            spans, left, at = [], max_bytes, offset
            continue
        if spans and len(span) > left:
            # The first batch of this segment, which is returned whatever its size, does not fit behind the others.
            break
        spans.append(span)
        left -= len(span)
        # A reader takes a response that is not full for all that there is, so it must not end where a segment ends.
        if next_offset is None or next_offset >= end or left <= HEADER_BYTES:
            break
        at = next_offset
    return spans[0] if len(spans) == 1 else b"".join(spans)


def _read_segment(
    table: SegmentTable,
    bounds: Bounds,
    offset: int,
    *,
    max_bytes: int,
    end_offset: int,
    is_cached: bool,
) -> tuple[bytes, int | None] | None:
    """Read in one segment as ``read_span`` does; return the batches, and where the next segment begins.

    None instead of that offset if the batches do not reach the segment's end.
    """
    if is_cached and not table.find(offset).has_index:
        return None
    segment, file = _pin(table, bounds, offset)
    try:
        if segment.base_offset > offset:
            # Retention removed the segment after the bounds were taken. This one must not be taken for it.
            raise bounds.out_of_range(offset)
        next_offset = segment.next_offset
        found = segment.read(
            file, offset, max_bytes=max_bytes, end_offset=end_offset, is_cached=is_cached
        )
    finally:
        segment.unpin()
    table.note_use(segment)
    if found is None:
        return None
    span, is_to_end = found
    base_offset = _base_of(span)
    if not segment.base_offset <= base_offset <= offset:
        raise CorruptLogError(
            f"{file.path} has a batch of offset {base_offset} where offset {offset} is expected"
        )
    # If the owner cut or extended the segment meanwhile, it is not known which batches are next.
    return span, next_offset if is_to_end and segment.next_offset == next_offset else None


def _base_of(span: bytes) -> int:
    return int.from_bytes(span[_BASE_OFFSET], "big")


def _pin(table: SegmentTable, bounds: Bounds, offset: int) -> tuple[Segment, File]:
    """Return the segment that holds ``offset``, pinned, and its file."""
    segment = table.find(offset)
    while True:
        try:
            return segment, segment.pin()
        except FileNotFoundError:
            found = table.find(offset)
            if found is segment:
                # Retention removed the segment after the bounds were taken.
                raise bounds.out_of_range(offset) from None
            # Compaction replaced it with another segment.
            segment = found


def first_with_records(span: bytes, start: int, end: int) -> int | None:
    """Return the offset to read from for the first record in [start, end); None if compaction removed all of them.

    The result is ``start`` or the base offset of a batch.

    Args:
        span: result of ``read_span`` for ``start``.
        start: the lowest offset.
        end: exclusive.

    Raises:
        CorruptBatchError: a batch up to the first with records is damaged, or is none.
    """
    attributes, count, last_offset_delta = _COUNTS.unpack_from(span, _COUNTS_POSITION)
    if count == last_offset_delta + 1 and not attributes & CONTROL_BIT:
        # The first batch still has all its records, so it has one at ``start``. Almost every fetch ends here.
        return start
    # A changed bit can make a batch look empty. Its reader would never see it, so it would not find the damage either.
    next_offset = start
    try:
        for at, header in iterate_batches(span):
            if header.record_count and not header.is_control:
                offsets = offsets_of(header, decode_columns(span, header, at))
                if any(start <= offset < end for offset in offsets):
                    return header.base_offset
            next_offset = header.next_offset
    except CorruptLogError as error:
        # The reader asked for an earlier offset, perhaps in another segment.
        error.offset = next_offset
        raise
    return None


def tally_span(span: bytes, start: int, end: int) -> tuple[int, int]:
    """Return how many records of a span lie in [start, end), and the offset where the span ends.

    Every fetch calls this function. It reads only the sizes in each header and checks nothing, at a tenth of the cost
    of decoding headers. It stops at the first bytes that cannot be a batch. If compaction removed records of the first
    batch, the count may be a few records too high. The count never exceeds the number of offsets.

    Args:
        span: result of ``read_span`` for ``start``.
        start: the lowest offset.
        end: exclusive.
    """
    count = position = at = 0
    next_offset = start
    last = len(span) - HEADER_BYTES
    while position <= last:
        at = position
        batch_bytes, attributes, records = _SIZE.unpack_from(span, at)
        if batch_bytes <= HEADER_BYTES:
            break
        if not attributes & CONTROL_BIT:
            count += records
        position += batch_bytes
    if position:
        base_offset, last_offset_delta = _PLACE.unpack_from(span, at)
        next_offset = base_offset + last_offset_delta + 1
    return max(0, min(count, min(next_offset, end) - start)), next_offset


def end_of_span(span: bytes) -> int:
    """Return the offset after the last batch of a span, which must hold at least one batch.

    Raises:
        CorruptBatchError: the bytes are not batches.
    """
    next_offset = -1
    for _, header in iterate_headers(span):
        next_offset = header.next_offset
    return next_offset


def without_aborted(span: bytes, aborted: Mapping[Identity, AbortedRange]) -> bytes:
    """Return the span with each batch of an aborted transaction replaced by an empty batch.

    Args:
        span: batches below the last stable offset.
        aborted: the log's aborted transactions. Take the mapping before the batches are read.
    """
    pieces: list[Buffer] = []
    view = memoryview(span)
    done = 0
    # A changed bit can make a committed batch look aborted. So damaged bytes stay as they are, and readers find them.
    with suppress(CorruptBatchError):
        for position, header in iterate_headers(span):
            if is_aborted(header, aborted) and _is_sound(span, position):
                filler = encode_filler(
                    base_offset=header.base_offset,
                    last_offset=header.last_offset,
                    leader_epoch=header.leader_epoch,
                    append_time_ms=header.append_time_ms,
                    timestamp_ms=header.latest_timestamp_ms,
                )
                pieces += (view[done:position], filler)
                done = position + header.batch_bytes
    return b"".join((*pieces, view[done:])) if pieces else span


def _is_sound(span: bytes, position: int) -> bool:
    with suppress(CorruptBatchError):
        check_batch(span, position)
        return True
    return False


def find_by_timestamp(
    table: SegmentTable,
    bounds: Bounds,
    timestamp_ms: int,
    *,
    aborted: Mapping[Identity, AbortedRange],
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record with a timestamp >= ``timestamp_ms``; None without one.

    Args:
        table: the log's segments.
        bounds: the readable range.
        timestamp_ms: milliseconds since 1970.
        aborted: transactions whose records are skipped.

    Raises:
        CorruptLogError: the bytes on the disk are not batches.
    """
    while True:
        segments = table.segments
        try:
            for segment in segments:
                if segment.max_timestamp_ms >= timestamp_ms:
                    found = _search(table, bounds, segment, timestamp_ms, aborted)
                    if found is not None:
                        return found
        except FileNotFoundError:
            if table.segments == segments:
                raise bounds.out_of_range(segments[0].base_offset) from None
            # Compaction replaced some of the segments.
            continue
        return None


def _search(
    table: SegmentTable,
    bounds: Bounds,
    segment: Segment,
    timestamp_ms: int,
    aborted: Mapping[Identity, AbortedRange],
) -> tuple[int, int] | None:
    index = segment.load_index()
    entry = index.floor_by_timestamp(timestamp_ms)
    # A segment without batches has no entry, and -1 as its highest timestamp. A search for a time before 1970 gets
    # here.
    first = index.offsets[entry] if entry >= 0 else segment.base_offset
    offset = max(first, bounds.start)
    end_offset = min(segment.next_offset, bounds.end)
    try:
        while offset < end_offset:
            span = read_span(
                table,
                bounds,
                offset,
                max_bytes=_SEARCH_BYTES,
                end_offset=end_offset,
                is_cached=False,
            )
            assert span, f"nothing at offset {offset}, below {end_offset}"
            # A changed bit in a batch's times could otherwise hide the batch, and its reader would skip it.
            for position, header in iterate_batches(span):
                is_late = header.latest_timestamp_ms >= timestamp_ms
                if is_late and not (header.is_control or is_aborted(header, aborted)):
                    found = _search_batch(span, position, header, timestamp_ms, bounds.start)
                    if found is not None:
                        return found
                offset = header.next_offset
    except CorruptLogError as error:
        # The caller knows only the time. Without a place, all closed segments would be checked, and not the active one.
        error.offset = offset
        raise
    return None


def _search_batch(
    span: bytes, position: int, header: BatchHeader, timestamp_ms: int, log_start_offset: int
) -> tuple[int, int] | None:
    columns = decode_columns(span, header, position)
    rows = zip(offsets_of(header, columns), timestamps_of(header, columns), strict=True)
    for offset, timestamp in rows:
        if timestamp >= timestamp_ms and offset >= log_start_offset:
            return offset, timestamp
    return None
