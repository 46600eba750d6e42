"""The sparse index of one segment: offset → position, and timestamp → offset; in memory and as two files.

An entry stands at the beginning of a batch, every ``index_interval_bytes`` or so, and always at the first batch. A
lookup finds the entry at or below and walks headers from there. Each entry also holds the greatest timestamp of all
batches *before* it, which never falls along the segment: a search by time is a bisect too, although the timestamps
of the records themselves may be in any order.

Both files begin with the same header, then hold two columns of ``count`` 64-bit integers (``.index``: offsets and
positions; ``.timeindex``: timestamps and offsets). All big-endian.

    offset  size  meaning
    0       4     magic
    4       8     base_offset of the segment
    12      8     next_offset, exclusive: batches below it are indexed
    20      8     size_bytes: position of next_offset in the log file
    28      8     max_timestamp_ms of the indexed batches, -1 without one
    36      4     count
    40      4     CRC-32C over the columns
    44      4     CRC-32C over bytes 0..43

The files are written whole, after the log file was synced up to ``size_bytes``. They are hints: whatever does not
match is thrown away and made again from the log.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from milena.model.errors import CorruptLogError
from milena.model.types import NO_TIMESTAMP

_INDEX_MAGIC = b"MIX1"
_TIME_INDEX_MAGIC = b"MTX1"

_FIELDS = Struct(">4sqqqqII")
_CRC = Struct(">I")

INDEX_HEADER_BYTES = _FIELDS.size + _CRC.size


class SegmentSummary(NamedTuple):
    """A segment in four numbers."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int


class SegmentIndex:
    """Three parallel columns, all ascending.

    Invariants:
        - entry 0, if there is one, is the segment's first batch, at position 0;
        - offsets and positions ascend strictly; ``timestamps`` never falls and starts at -1.

    Only the owner adds or truncates; other threads may look up at the same time, since entries below the length of
    ``timestamps``, the column that grows last, never change and truncation makes new columns.
    """

    __slots__ = ("offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.timestamps = array("q")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, offset: int, position: int, timestamp_before_ms: int) -> None:
        """An entry for the batch at ``position``; the greatest timestamp before it is ``timestamp_before_ms``."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.timestamps.append(timestamp_before_ms)

    def floor(self, offset: int) -> int:
        """Index of the last entry at or below ``offset``, -1 when there is none."""
        return bisect_right(self.offsets, offset, 0, len(self.timestamps)) - 1

    def floor_by_timestamp(self, timestamp_ms: int) -> int:
        """Index of the last entry before which every timestamp is below ``timestamp_ms``, -1 in an empty index."""
        if not self.timestamps:
            return -1
        return max(bisect_left(self.timestamps, timestamp_ms) - 1, 0)

    def truncated_to(self, offset: int) -> "SegmentIndex":
        """The entries below ``offset``, as a new index."""
        count = bisect_left(self.offsets, offset)
        kept = SegmentIndex()
        kept.offsets = self.offsets[:count]
        kept.positions = self.positions[:count]
        kept.timestamps = self.timestamps[:count]
        return kept


def encode_index(summary: SegmentSummary, index: SegmentIndex) -> bytes:
    """The content of an ``.index`` file."""
    return _encode(_INDEX_MAGIC, summary, index.offsets, index.positions)


def encode_time_index(summary: SegmentSummary, index: SegmentIndex) -> bytes:
    """The content of a ``.timeindex`` file."""
    return _encode(_TIME_INDEX_MAGIC, summary, index.timestamps, index.offsets)


def decode_summary(content: bytes) -> SegmentSummary:
    """The summary at the head of an ``.index`` file, whose columns need not be there.

    Raises:
        CorruptLogError: damaged.
    """
    return _decode_header(_INDEX_MAGIC, content)[0]


def decode_index(index_content: bytes, time_content: bytes) -> tuple[SegmentSummary, SegmentIndex]:
    """The index in the two files of a segment.

    Raises:
        CorruptLogError: one of them is damaged, or they do not belong together.
    """
    summary, offsets, positions = _decode(_INDEX_MAGIC, index_content)
    time_summary, timestamps, time_offsets = _decode(_TIME_INDEX_MAGIC, time_content)
    if time_summary != summary or time_offsets != offsets:
        raise CorruptLogError("the index and the time index do not belong together")
    index = SegmentIndex()
    index.offsets, index.positions, index.timestamps = offsets, positions, timestamps
    _check(summary, index)
    return summary, index


def _check(summary: SegmentSummary, index: SegmentIndex) -> None:
    if not index.offsets:
        is_whole = summary.size_bytes == 0 and summary.next_offset == summary.base_offset
    else:
        is_whole = (
            index.offsets[0] == summary.base_offset
            and index.positions[0] == 0
            and index.timestamps[0] == NO_TIMESTAMP
            and index.offsets[-1] < summary.next_offset
            and index.positions[-1] < summary.size_bytes
        )
    if not is_whole:
        raise CorruptLogError(f"the index does not cover its segment: {summary}")


def _encode(magic: bytes, summary: SegmentSummary, *columns: "array[int]") -> bytes:
    body = b"".join(_big_endian(column).tobytes() for column in columns)
    fields = _FIELDS.pack(magic, *summary, len(columns[0]), crc32c(body))
    return fields + _CRC.pack(crc32c(fields)) + body


def _decode_header(magic: bytes, content: bytes) -> tuple[SegmentSummary, int, int]:
    if len(content) < INDEX_HEADER_BYTES:
        raise CorruptLogError(f"{len(content)} bytes are too few for an index")
    if _CRC.unpack_from(content, _FIELDS.size)[0] != crc32c(content[: _FIELDS.size]):
        raise CorruptLogError("the checksum of the index header does not match")
    found, base, end, size, timestamp, count, checksum = _FIELDS.unpack_from(content)
    if found != magic:
        raise CorruptLogError(f"the index begins with {found!r} instead of {magic!r}")
    return SegmentSummary(base, end, size, timestamp), count, checksum


def _decode(magic: bytes, content: bytes) -> tuple[SegmentSummary, "array[int]", "array[int]"]:
    summary, count, checksum = _decode_header(magic, content)
    body = content[INDEX_HEADER_BYTES:]
    if len(body) != 16 * count or crc32c(body) != checksum:
        raise CorruptLogError("the checksum of the index does not match")
    first, second = array("q"), array("q")
    first.frombytes(body[: 8 * count])
    second.frombytes(body[8 * count :])
    return summary, _big_endian(first), _big_endian(second)


def _big_endian(column: "array[int]") -> "array[int]":
    """The column with its bytes turned round where the machine is little-endian; its own inverse."""
    if sys.byteorder == "big":
        return column
    turned = column[:]
    turned.byteswap()
    return turned
