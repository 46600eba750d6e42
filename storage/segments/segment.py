"""One segment: consecutive batches in a file that is named by the first offset, and the index of this file.

A segment writes, reads and cuts bytes; the modules of ``storage.log`` decide which bytes. Only the last segment of a
log grows. Its file is preallocated in steps, so the file is longer than its content. Bytes behind ``size_bytes`` do not
belong to the log, whatever they are.

Only the owner's thread changes a segment. Other threads may read and sync while they hold a pin. A file is closed only
when no thread has it pinned. Otherwise the number of the closed descriptor could be given to another file, and a reader
would read from that file.
"""

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from milena.disk.files import Buffer, File, Files
from milena.model.batch.decode import check_batch
from milena.model.batch.header import HEADER_BYTES, MAGIC, BatchHeader, decode_header
from milena.model.errors import CorruptBatchError, CorruptLogError, DiskFullError
from milena.model.types import NO_TIMESTAMP
from storage.segments.index import (
    SegmentIndex,
    SegmentSummary,
    decode_index,
    encode_index,
)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".producers"

ALLOCATION_BYTES_MIN = 1 << 20
"""First step of preallocation. Later steps are as large as the segment's content, up to ``preallocate_bytes``."""

RECENT_BATCHES_MAX = 1024
"""Number of last batches whose positions are kept in memory. A read there needs no walk over headers to find them."""

SCAN_CHUNK_BYTES = 1 << 20
"""Bytes that a scan reads at a time."""

_LOCATE_BYTES_MAX = 64 << 10
"""Largest distance from an index entry to the wanted batch at which one read both finds and returns the batch."""

_NAME_DIGITS = 20

_FRAME = Struct(">IBHq26xi")
"""Layout of batch_bytes, magic, header_bytes, base_offset and last_offset_delta in a batch's header."""


class Frame(NamedTuple):
    """The fields of a header that a walk over batches needs."""

    batch_bytes: int
    base_offset: int
    next_offset: int


class BatchSource(Protocol):
    """A source from which batches are read; a ``File`` is one."""

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end."""


def offset_name(offset: int, suffix: str) -> str:
    """Return the name of a file that starts at ``offset``; names sort as offsets do."""
    return f"{offset:0{_NAME_DIGITS}d}{suffix}"


def parse_offset_name(name: str, suffix: str) -> int | None:
    """Return the offset in the name of a file; None for a name that ``offset_name`` does not produce."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def scan_batches(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch from ``position`` to ``end``; both checksums are verified.

    Raises:
        CorruptLogError: the bytes at the next position are not a whole, undamaged batch, or are zeros.
    """
    for _, header, _ in read_batches(file, position, end):
        yield position, header
        position += header.batch_bytes


def read_batches(
    file: BatchSource, position: int, end: int
) -> Iterator[tuple[bytes, BatchHeader, int]]:
    """Yield for each batch a chunk of the file that holds it, its header, and its position in the chunk.

    Raises:
        CorruptLogError: the bytes at the next position are not a whole, undamaged batch.
    """
    chunk, chunk_start = b"", position
    while position < end:
        at = position - chunk_start
        if len(chunk) - at < HEADER_BYTES or not _holds_batch(chunk, at):
            chunk, chunk_start, at = _read_batch(file, position, end), position, 0
        header = check_batch(chunk, at)
        yield chunk, header, at
        position += header.batch_bytes


def _holds_batch(chunk: bytes, at: int) -> bool:
    return int.from_bytes(chunk[at : at + 4], "big") <= len(chunk) - at


def _read_batch(file: BatchSource, position: int, end: int) -> bytes:
    """Read at least the batch at ``position``, if its header is valid and the batch ends below ``end``."""
    chunk = file.pread(min(SCAN_CHUNK_BYTES, end - position), position)
    if len(chunk) >= HEADER_BYTES and not _holds_batch(chunk, 0):
        # Only a header with a valid checksum may cause a read, and an allocation, of this size.
        batch_bytes = decode_header(chunk).batch_bytes
        if batch_bytes <= end - position:
            return file.pread(batch_bytes, position)
    return chunk


def _no_positions() -> "tuple[array[int], array[int]]":
    """Return empty columns of base offsets and positions. Lists would take five times the memory of arrays."""
    return array("q"), array("q")


class Segment:
    """Batches with ``base_offset <= offset < next_offset`` in the first ``size_bytes`` of its file.

    Invariants:
        - ``next_offset``, ``size_bytes`` and the index change together, after the bytes were written;
        - ``_index`` may be None only for a sealed segment, and is then loaded when it is needed;
        - ``_recent`` has the positions of the last batches, without a gap, up to ``size_bytes``.
    """

    __slots__ = (
        "_directory",
        "_file",
        "_files",
        "_index",
        "_index_interval_bytes",
        "_is_let_go",
        "_is_replaced",
        "_lock",
        "_pins",
        "_recent",
        "allocated_bytes",
        "base_offset",
        "max_timestamp_ms",
        "next_offset",
        "size_bytes",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, *, index_interval_bytes: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._file: File | None = None
        self._index: SegmentIndex | None = SegmentIndex()
        self._recent = _no_positions()
        self._lock = threading.Lock()
        self._pins = 0
        self._is_let_go = False
        self._is_replaced = False
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.allocated_bytes = 0
        self.max_timestamp_ms: int = NO_TIMESTAMP

    def create_file(self) -> None:
        """Create an empty log file; it is durable only after the folder is synced.

        Raises:
            DiskFullError: no room for another file in the folder.
        """
        # A crash may have left a file with this name. Its content must not become a part of the segment.
        self._files.remove(self.path(LOG_SUFFIX))
        self._file = self._files.open(self.path(LOG_SUFFIX), create=True)

    def successor(self, base_offset: int, *, index_interval_bytes: int) -> "Segment":
        """Return a segment of the same log that has no file yet."""
        return Segment(
            self._files, self._directory, base_offset, index_interval_bytes=index_interval_bytes
        )

    @property
    def has_index(self) -> bool:
        """Whether the index is in memory."""
        return self._index is not None

    @property
    def summary(self) -> SegmentSummary:
        """The segment's offsets, size and highest timestamp."""
        return SegmentSummary(
            self.base_offset, self.next_offset, self.size_bytes, self.max_timestamp_ms
        )

    def path(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return f"{self._directory}/{offset_name(self.base_offset, suffix)}"

    # Pins and descriptors.

    def give_up_names(self) -> None:
        """Note that compaction gives the names of this segment's files to another segment.

        An open file stays open for readers. The segment opens no file by name any more.
        """
        self._is_replaced = True

    @property
    def is_replaced(self) -> bool:
        """Whether another segment has the names of this one's files; then look the offset up in the table again."""
        return self._is_replaced

    def pin(self) -> File:
        """Return the segment's file, which stays open until ``unpin``.

        Raises:
            FileNotFoundError: the segment was removed or replaced, and its file was not open.
        """
        with self._lock:
            file = self._open()
            self._pins += 1
            return file

    def open_apart(self) -> File:
        """Open the file with a separate descriptor, so that hints to the kernel do not affect readers; close it later.

        Raises:
            FileNotFoundError: the segment was removed or replaced.
        """
        file = self._files.open(self.path(LOG_SUFFIX))
        if self._is_replaced:
            file.close()
            raise FileNotFoundError(self.path(LOG_SUFFIX))
        return file

    def unpin(self) -> None:
        """Release one pin."""
        with self._lock:
            self._pins -= 1
            if self._is_let_go and not self._pins:
                self._close()

    def let_go(self) -> None:
        """Close the file as soon as no thread has it pinned; the next use opens it again."""
        with self._lock:
            if self._pins:
                self._is_let_go = True
            else:
                self._close()

    def drop_index(self) -> None:
        """Free the memory of the index of a sealed segment."""
        self._index = None
        self._recent = _no_positions()

    def _open(self) -> File:
        self._is_let_go = False
        if self._file is None:
            if self._is_replaced:
                raise FileNotFoundError(self.path(LOG_SUFFIX))
            self._file = self._files.open(self.path(LOG_SUFFIX))
        return self._file

    def _close(self) -> None:
        self._is_let_go = False
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def file(self) -> File:
        """The segment's file; for the owner's thread."""
        with self._lock:
            return self._open()

    # Writing.

    def write(self, chunks: Sequence[Buffer], total_bytes: int, *, allocation_end: int) -> None:
        """Write chunks behind the last batch; call ``add_batch`` for each batch afterwards.

        Args:
            chunks: whole batches.
            total_bytes: their length.
            allocation_end: where preallocation may end; no preallocation if it is not above ``size_bytes``.

        Raises:
            DiskFullError: what was written is cut off again, durably.
        """
        end = self.size_bytes + total_bytes
        file = self.file
        try:
            if end > self.allocated_bytes and allocation_end > self.size_bytes:
                self._allocate(file, end, allocation_end)
            file.pwritev(chunks, self.size_bytes)
        except DiskFullError:
            self.cut_leftovers()
            raise

    def _allocate(self, file: File, end: int, allocation_end: int) -> None:
        step = min(max(self.size_bytes, ALLOCATION_BYTES_MIN), allocation_end - self.size_bytes)
        target = max(end, self.size_bytes + step)
        try:
            file.allocate(target)
        except DiskFullError:
            # A nearly full disk may still have room for this write.
            if target == end:
                raise
            file.allocate(end)
            target = end
        self.allocated_bytes = target

    def cut_leftovers(self) -> None:
        """Cut the bytes behind the last batch, durably."""
        file = self.file
        if file.size() > self.size_bytes:
            file.truncate(self.size_bytes)
            file.sync()
        self.allocated_bytes = self.size_bytes

    def add_batch(self, header: BatchHeader) -> None:
        """Add the batch that was written at ``size_bytes`` to the segment: its size, offsets, timestamp and index."""
        index = self._index
        assert index is not None, f"segment {self.base_offset} is sealed"
        position = self.size_bytes
        positions = index.positions
        if not positions or position - positions[-1] >= self._index_interval_bytes:
            index.add(header.base_offset, position, self.max_timestamp_ms)
        self._remember(header.base_offset, position)
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.latest_timestamp_ms)
        self.size_bytes = position + header.batch_bytes
        self.next_offset = header.next_offset

    def _remember(self, base_offset: int, position: int) -> None:
        offsets, positions = self._recent
        if len(positions) >= 2 * RECENT_BATCHES_MAX:
            # Make new columns, because a reader on another thread may hold the old ones.
            offsets, positions = offsets[-RECENT_BATCHES_MAX:], positions[-RECENT_BATCHES_MAX:]
            self._recent = (offsets, positions)
        offsets.append(base_offset)
        positions.append(position)

    # Looking up.

    def load_index(self) -> SegmentIndex:
        """Return the index: from its file, or rebuilt from the log if the file is not valid.

        Raises:
            CorruptLogError: the log itself is damaged.
        """
        index = self._index
        if index is None:
            index = self._read_index()
            if index is None:
                index = self._rebuild_index(self.size_bytes)
            self._index = index
        return index

    def _read_index(self) -> SegmentIndex | None:
        if self._is_replaced:
            return None
        try:
            summary, index = decode_index(self._files.read_bytes(self.path(INDEX_SUFFIX)))
        except (FileNotFoundError, CorruptLogError):
            return None
        return index if summary == self.summary and not self._is_replaced else None

    def _rebuild_index(self, end: int) -> SegmentIndex:
        rebuilt = self.successor(self.base_offset, index_interval_bytes=self._index_interval_bytes)
        for _, header in scan_batches(self.file, 0, end):
            rebuilt.add_batch(header)
        return rebuilt.load_index()

    def read(
        self,
        file: File,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        is_cached: bool,
    ) -> tuple[bytes, bool] | None:
        """Return whole batches from the one that holds ``offset`` on, and whether they reach the segment's end.

        None if ``is_cached`` and the disk is needed.

        Args:
            file: result of ``pin``.
            offset: at least ``base_offset``, and below ``next_offset`` and ``end_offset``.
            max_bytes: the limit of bytes; the first batch is returned whatever its size.
            end_offset: batches that start at or above it are left out.
            is_cached: read from the page cache only.

        Raises:
            CorruptLogError: the bytes are not batches.
        """
        size = self.size_bytes
        offsets, positions = self._recent
        count = len(positions)
        if count and offsets[0] <= offset:
            return _read_recent(
                _Window(file, size, is_cached=is_cached),
                offsets,
                positions,
                _Wish(offset, max_bytes, end_offset),
            )
        return _read_sparse(
            _Window(file, size, is_cached=is_cached),
            self.load_index(),
            _Wish(offset, max_bytes, end_offset),
        )

    def locate(self, offset: int) -> tuple[int, int]:
        """Return position and base offset of the batch that holds ``offset``.

        If ``offset`` lies above the segment, return ``size_bytes`` and ``next_offset``.

        Raises:
            CorruptLogError: the bytes are not batches.
        """
        if offset >= self.next_offset:
            return self.size_bytes, self.next_offset
        index = self.load_index()
        expected = index.offsets[index.floor(offset)]
        for position, header in self.headers_from(index.positions[index.floor(offset)]):
            if header.base_offset != expected:
                break
            if header.next_offset > offset:
                return position, header.base_offset
            expected = header.next_offset
        raise CorruptLogError(f"{self.path(LOG_SUFFIX)} does not hold offset {offset}")

    def headers_from(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from ``position``, which must be the start of a batch.

        Raises:
            CorruptLogError: a batch is damaged.
        """
        return scan_batches(self.file, position, self.size_bytes)

    # Cutting and sealing.

    def truncate_to(self, offset: int) -> None:
        """Cut the batch that holds ``offset`` and all batches after it, durably.

        Raises:
            CorruptLogError: batches that stay are damaged.
        """
        position, base_offset = self.locate(offset)
        index = self.load_index()
        entry = max(index.floor(base_offset - 1), 0)
        timestamps = [NO_TIMESTAMP, *index.timestamps[entry : entry + 1]]
        if position:
            kept = scan_batches(self.file, index.positions[entry], position)
            timestamps.extend(header.latest_timestamp_ms for _, header in kept)
        self._index = index.truncated_to(base_offset)
        self._recent = _no_positions()
        self.max_timestamp_ms = max(timestamps)
        self.next_offset = base_offset
        self.size_bytes = position
        self.cut_leftovers()

    def end_before(self, position: int, offset: int) -> None:
        """End before the batch at ``offset``, which starts at ``position``, in memory only; the file does not change.

        Raises:
            CorruptLogError: batches before ``position`` are damaged too.
        """
        try:
            index = self.load_index()
        except CorruptLogError:
            index = self._rebuild_index(position)
        self._index = index.truncated_to(offset)
        self._recent = _no_positions()
        self.next_offset = offset
        self.size_bytes = position
        self.allocated_bytes = self.file.size()

    def encode_index(self) -> tuple[str, bytes]:
        """Return path and content of the index file for the current state."""
        return self.path(INDEX_SUFFIX), encode_index(self.summary, self.load_index())

    def adopt(self, summary: SegmentSummary, index: SegmentIndex | None) -> None:
        """Set offsets, size and index as the index file describes them; None: load the index when it is needed."""
        self._index = index
        self.next_offset = summary.next_offset
        self.size_bytes = summary.size_bytes
        self.max_timestamp_ms = summary.max_timestamp_ms
        self._recent = _no_positions()

    def remove(self) -> None:
        """Remove the segment's files; the removal is durable only after the folder is synced."""
        for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
            self._files.remove(self.path(suffix))
        self.let_go()


class _Wish(NamedTuple):
    """Parameters of a read."""

    offset: int
    max_bytes: int
    end_offset: int


class _Window:
    """One chunk of a segment's file in memory; bytes outside of it are read on demand."""

    __slots__ = ("_chunk", "_file", "_is_cached", "_start", "size")

    def __init__(self, file: File, size: int, *, is_cached: bool) -> None:
        self._file = file
        self._is_cached = is_cached
        self._chunk = b""
        self._start = 0
        self.size = size

    def read(self, start: int, end: int) -> bytes | None:
        """Return the bytes from ``start`` to ``end``; None if ``is_cached`` and they are not in the page cache.

        Raises:
            CorruptLogError: the file ends before ``end``.
        """
        at = start - self._start
        if at >= 0 and end - self._start <= len(self._chunk):
            return self._chunk[at : end - self._start]
        length = end - start
        if self._is_cached:
            content = self._file.pread_cached(length, start)
            if content is None:
                return None
        else:
            content = self._file.pread(length, start)
        if len(content) < length:
            raise CorruptLogError(
                f"{self._file.path} ends at {start + len(content)}, expected {end} bytes"
            )
        return content

    def read_batches(self, start: int, end: int) -> tuple[bytes, bool] | None:
        """Return the bytes as ``read`` does, and whether they reach the segment's end."""
        content = self.read(start, end)
        return None if content is None else (content, end == self.size)

    def load(self, start: int, end: int) -> bool:
        """Load the chunk from ``start`` to ``end``; False if ``is_cached`` and it is not in the page cache."""
        chunk = self.read(start, min(end, self.size))
        if chunk is None:
            return False
        self._chunk, self._start = chunk, start
        return True

    def holds(self, position: int) -> bool:
        """Whether the frame at ``position`` lies in the chunk."""
        return 0 <= position - self._start <= len(self._chunk) - _FRAME.size

    def frame(self, position: int) -> Frame | None:
        """Return the frame of the batch at ``position``; None if ``is_cached`` and it is not in the page cache.

        Raises:
            CorruptBatchError: there is no batch at ``position``.
        """
        end = position + _FRAME.size
        if end > self.size:
            raise CorruptBatchError(f"{self._file.path} has no batch at {position}")
        at = position - self._start
        if at >= 0 and end - self._start <= len(self._chunk):
            fields = _FRAME.unpack_from(self._chunk, at)
        else:
            content = self.read(position, end)
            if content is None:
                return None
            fields = _FRAME.unpack(content)
        batch_bytes, magic, _, base_offset, last_offset_delta = fields
        if (
            magic != MAGIC
            or not HEADER_BYTES < batch_bytes <= self.size - position
            or last_offset_delta < 0
        ):
            raise CorruptBatchError(f"{self._file.path} has no batch at {position}")
        return Frame(batch_bytes, base_offset, base_offset + last_offset_delta + 1)


def _read_recent(
    window: _Window, offsets: "array[int]", positions: "array[int]", wish: _Wish
) -> tuple[bytes, bool] | None:
    """Read a part of the segment for which the position of every batch is in memory."""
    count = len(positions)
    first = bisect_right(offsets, wish.offset, 0, count) - 1
    start = positions[first]
    # The owner may add batches meanwhile. The read ends at ``window.size``, which was taken at its start.
    past = bisect_left(offsets, wish.end_offset, first + 1, count)
    end = min(positions[past] if past < count else window.size, window.size)
    limit = start + wish.max_bytes
    if end > limit:
        fitting = bisect_right(positions, limit, first + 1, count) - 1
        if fitting > first:
            end = positions[fitting]
        elif first + 1 < count:
            end = min(positions[first + 1], window.size)
    return window.read_batches(start, end)


def _read_sparse(window: _Window, index: SegmentIndex, wish: _Wish) -> tuple[bytes, bool] | None:
    """Read from the nearest index entry on; walk headers to find both ends."""
    entry = index.floor(wish.offset)
    near = index.positions[entry]
    if not window.load(near, _first_chunk_end(window, index, entry, wish)):
        return None
    start = _walk_to(window, near, index.offsets[entry], wish.offset)
    if start is None:
        return None
    end = _walk_end(window, index, start, wish)
    return None if end is None else window.read_batches(start, end)


def _first_chunk_end(window: _Window, index: SegmentIndex, entry: int, wish: _Wish) -> int:
    """Return where the first chunk ends; it starts at an index entry, at or before the wanted batches.

    For a small read, one chunk holds all wanted batches, and the result is cut out of it. For a large read, the first
    chunk holds only the headers that show where the wanted batches start and end. Reading 4 KB twice costs less than
    copying a megabyte.
    """
    near = index.positions[entry]
    is_last = entry + 1 >= len(index)
    slack = min((window.size if is_last else index.positions[entry + 1]) - near, _LOCATE_BYTES_MAX)
    is_exact = index.offsets[entry] == wish.offset
    if wish.max_bytes > _LOCATE_BYTES_MAX:
        return near + (HEADER_BYTES if is_exact else slack)
    end = near + (0 if is_exact else slack) + max(wish.max_bytes, HEADER_BYTES)
    past = bisect_left(index.offsets, wish.end_offset, entry + 1)
    return min(end, index.positions[past]) if past < len(index) else end


def _walk_to(window: _Window, position: int, base_offset: int, offset: int) -> int | None:
    """Return the position of the batch that holds ``offset``; the walk starts at the batch of ``base_offset``."""
    while True:
        frame = window.frame(position)
        if frame is None:
            return None
        if frame.base_offset != base_offset:
            raise CorruptBatchError(
                f"offset {frame.base_offset} lies at {position}, where {base_offset} was expected"
            )
        if frame.next_offset > offset:
            return position
        position += frame.batch_bytes
        base_offset = frame.next_offset


def _walk_end(window: _Window, index: SegmentIndex, start: int, wish: _Wish) -> int | None:
    """Return the end position of the last batch that starts below ``end_offset`` and fits into ``max_bytes``.

    The first batch counts whatever its size. None if ``is_cached`` and a header is not in the page cache.
    """
    limit = start + wish.max_bytes
    count = len(index)
    entry = min(
        bisect_right(index.positions, limit, 0, count),
        bisect_left(index.offsets, wish.end_offset, 0, count),
    )
    end = max(start, min(index.positions[entry - 1], window.size))
    if not window.holds(end) and end < limit:
        past = index.positions[entry] if entry < count else window.size
        if not window.load(end, min(limit, max(past, end + HEADER_BYTES), end + _LOCATE_BYTES_MAX)):
            return None
    while end < window.size and (end < limit or end == start):
        try:
            frame = window.frame(end)
        except CorruptLogError:
            if end == start:
                raise
            break  # the batches before the damage are returned, and the next read reports it
        if frame is None:
            return None
        is_wanted = frame.base_offset < wish.end_offset and end + frame.batch_bytes <= limit
        if not is_wanted and end > start:
            break
        end += frame.batch_bytes
    return end
