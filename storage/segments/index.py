"""The sparse index of one segment: offset → position, and timestamp → offset; in memory and as a file.

An entry points to the start of a batch. The first batch has an entry, and then one batch about every
``index_interval_bytes``. A lookup finds the entry at or below an offset and walks headers from there. Each entry also
has the highest timestamp of all batches *before* it. These values never fall from entry to entry, even if the
timestamps of the records are in no order. So a search by time is a bisect too.

The file starts with a header, followed by three columns of ``count`` 64-bit integers: offsets, positions, timestamps.
All big-endian.

    offset  size  meaning
    0       4     magic, b"MIX2"
    4       8     base_offset of the segment
    12      8     next_offset, exclusive: batches below it are indexed
    20      8     size_bytes: position of next_offset in the log file
    28      8     max_timestamp_ms of the indexed batches, -1 without one
    36      4     count
    40      4     CRC-32C over the columns
    44      4     CRC-32C over bytes 0..43

The file is written as a whole, after the log file was synced up to ``size_bytes``. It is a hint: if it does not match
the log, the index is rebuilt from the log.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from milena.model.errors import CorruptLogError
from milena.model.types import NO_TIMESTAMP

_MAGIC = b"MIX2"

_FIELDS = Struct(">4sqqqqII")
_CRC = Struct(">I")

INDEX_HEADER_BYTES = _FIELDS.size + _CRC.size


class SegmentSummary(NamedTuple):
    """A segment's offsets, size and highest timestamp."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int


class SegmentIndex:
    """Three parallel columns, all ascending.

    Invariants:
        - entry 0, if it exists, is the segment's first batch, at position 0;
        - offsets and positions ascend strictly; ``timestamps`` never falls and starts at -1.

    Only the owner's thread adds or truncates. Other threads may look up at the same time. ``timestamps`` is the column
    that grows last, so entries below its length are complete, and they never change. A truncation makes a new index.
    """

    __slots__ = ("offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.timestamps = array("q")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, offset: int, position: int, timestamp_before_ms: int) -> None:
        """Add an entry for the batch at ``position``; ``timestamp_before_ms`` is the highest timestamp before it."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.timestamps.append(timestamp_before_ms)

    def floor(self, offset: int) -> int:
        """Return the index of the last entry at or below ``offset``; -1 without one."""
        return bisect_right(self.offsets, offset, 0, len(self.timestamps)) - 1

    def floor_by_timestamp(self, timestamp_ms: int) -> int:
        """Return the entry from which to search for the first timestamp >= ``timestamp_ms``; -1 if the index is empty.

        All batches before this entry have lower timestamps.
        """
        if not self.timestamps:
            return -1
        return max(bisect_left(self.timestamps, timestamp_ms) - 1, 0)

    def truncated_to(self, offset: int) -> "SegmentIndex":
        """Return the entries below ``offset`` as a new index."""
        count = bisect_left(self.offsets, offset)
        kept = SegmentIndex()
        kept.offsets = self.offsets[:count]
        kept.positions = self.positions[:count]
        kept.timestamps = self.timestamps[:count]
        return kept


def encode_index(summary: SegmentSummary, index: SegmentIndex) -> bytes:
    """Return the content of an ``.index`` file."""
    columns = (index.offsets, index.positions, index.timestamps)
    body = b"".join(_big_endian(column).tobytes() for column in columns)
    fields = _FIELDS.pack(_MAGIC, *summary, len(index), crc32c(body))
    return fields + _CRC.pack(crc32c(fields)) + body


def decode_summary(content: bytes) -> SegmentSummary:
    """Decode the summary in the header of an ``.index`` file; ``content`` may lack the columns.

    Raises:
        CorruptLogError: the header is damaged.
    """
    return _decode_header(content)[0]


def decode_index(content: bytes) -> tuple[SegmentSummary, SegmentIndex]:
    """Decode the file of a segment's index.

    Raises:
        CorruptLogError: the file is damaged, or does not cover its segment.
    """
    summary, count, checksum = _decode_header(content)
    body = content[INDEX_HEADER_BYTES:]
    if len(body) != 3 * 8 * count or crc32c(body) != checksum:
        raise CorruptLogError("the checksum of the index does not match")
    numbers = array("q")
    numbers.frombytes(body)
    numbers = _big_endian(numbers)
    index = SegmentIndex()
    index.offsets = numbers[:count]
    index.positions = numbers[count : 2 * count]
    index.timestamps = numbers[2 * count :]
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


def _decode_header(content: bytes) -> tuple[SegmentSummary, int, int]:
    if len(content) < INDEX_HEADER_BYTES:
        raise CorruptLogError(f"{len(content)} bytes are too few for an index")
    if _CRC.unpack_from(content, _FIELDS.size)[0] != crc32c(content[: _FIELDS.size]):
        raise CorruptLogError("the checksum of the index header does not match")
    found, base, end, size, timestamp, count, checksum = _FIELDS.unpack_from(content)
    if found != _MAGIC:
        raise CorruptLogError(f"the index begins with {found!r} instead of {_MAGIC!r}")
    return SegmentSummary(base, end, size, timestamp), count, checksum


def _big_endian(column: "array[int]") -> "array[int]":
    """Swap the bytes of the column on a little-endian machine; the function is its own inverse."""
    if sys.byteorder == "big":
        return column
    turned = column[:]
    turned.byteswap()
    return turned
