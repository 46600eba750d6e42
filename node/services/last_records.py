"""Find where the last N records of a log begin, for a reader that may not see everything that has an offset.

An offset may belong to a marker, to an aborted transaction, or to a record that compaction removed. So the search goes
back from the end, window by window, and counts records in the headers of batches. It stops after
``LOOK_BACK_BYTES_MAX``. Further back, every offset counts as a record, and the reader may get fewer records.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from milena.model.batch.decode import decode_columns, iterate_headers, offsets_of
from milena.model.batch.header import BatchHeader
from milena.model.turns import one_turn
from storage.state.transactions import AbortedRange, Identity, is_aborted

ReadSpan = Callable[[int, int], Awaitable[bytes]]
"""Takes an offset and an end; returns whole stored batches from the one with the offset, below the end; at least
one."""

LOOK_BACK_BYTES_MAX = 16 << 20
"""Stored bytes that one search reads."""
READ_BYTES_MAX = 256 << 10
"""Stored bytes that one step of the search asks for. Their headers hold the loop for a few ms."""
_READ_BYTES_MIN = 4 << 10
"""The least that a step counts for. A step costs as much as reading this many bytes, however few it finds."""
_WINDOW_OFFSETS_MIN, _WINDOW_OFFSETS_MAX = 16, 4_096


@dataclass(frozen=True, slots=True)
class _CountedBatch:
    """A batch with records for the reader. The records lie in ``span``, the stored bytes that were read."""

    header: BatchHeader
    span: bytes
    position: int
    count: int


@dataclass(slots=True, kw_only=True)
class LastRecords:
    """A search. ``aborted``: the transactions whose records the reader does not see."""

    read: ReadSpan
    start: int
    """The first offset of the log."""
    end: int
    """The end of reading, exclusive."""
    aborted: Mapping[Identity, AbortedRange]
    bytes_left: int = LOOK_BACK_BYTES_MAX

    async def find(self, count: int) -> int:
        """Return the offset of the ``count``-th record from the end, or the log's start if there are fewer.

        Raises:
            CorruptBatchError: the bytes are not batches.
        """
        found = await self._find(count)
        return self.start if found is None else found

    async def records_end(self) -> int:
        """Return one above the offset of the last record, or the log's start if there is none.

        Raises:
            CorruptBatchError: the bytes are not batches.
        """
        found = await self._find(1)
        return self.start if found is None else found + 1

    async def _find(self, count: int) -> int | None:
        wanted, end, width = count, self.end, _WINDOW_OFFSETS_MIN // 2
        while wanted > 0 and end > self.start and self.bytes_left > 0:
            # Double the window: few of a compacted log's offsets may have a record. Start small: a few records may be
            # large.
            width = min(2 * width, _WINDOW_OFFSETS_MAX)
            first = max(self.start, end - width)
            begin, batches = await self._window(first, end)
            for batch in reversed(batches):
                if batch.count >= wanted:
                    return self._offset_in(batch, wanted)
                wanted -= batch.count
            end = begin
        return end - wanted if end - wanted >= self.start else None

    async def _window(self, first: int, end: int) -> tuple[int, list[_CountedBatch]]:
        """Return the batches from the one that holds ``first`` up to ``end``, and the offset where they begin.

        If they are larger than what is left to read, return ``end`` and no batches.
        """
        begin, offset = first, first
        found: list[_CountedBatch] = []
        while offset < end:
            if self.bytes_left <= 0:
                return end, []
            span = await self.read(offset, end)
            self.bytes_left -= max(len(span), _READ_BYTES_MIN)
            for position, header in iterate_headers(span):
                begin = min(begin, header.base_offset)
                if header.base_offset >= end:
                    break
                offset = header.next_offset
                if count := self._count(header, span, position):
                    found.append(_CountedBatch(header, span, position, count))
            await one_turn()
        return begin, found

    def _count(self, header: BatchHeader, span: bytes, position: int) -> int:
        """Return how many records of a batch the reader may see."""
        is_seen = header.record_count and not header.is_control
        if not is_seen or is_aborted(header, self.aborted):
            return 0
        if self.start <= header.base_offset and header.next_offset <= self.end:
            return header.record_count
        return len(self._offsets(header, span, position))

    def _offsets(self, header: BatchHeader, span: bytes, position: int) -> list[int]:
        offsets = offsets_of(header, decode_columns(span, header, position))
        return [offset for offset in offsets if self.start <= offset < self.end]

    def _offset_in(self, batch: _CountedBatch, wanted: int) -> int:
        header = batch.header
        if batch.count == header.record_count == header.last_offset_delta + 1:
            return header.next_offset - wanted
        return self._offsets(header, batch.span, batch.position)[-wanted]
