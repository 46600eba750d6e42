"""Finds where the last N records of a log begin, for a reader that does not see every offset.

An offset may belong to a marker, to a record of an aborted transaction, or to a record that compaction removed. So the
search goes back from the end, window by window, and counts records by the headers of batches. It stops after
``LOOK_BACK_BYTES_MAX``. Below the offset reached by then, every offset counts as a record, so the reader may get fewer
records.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from milena.model.batch.decode import check_batch, decode_columns, iterate_headers, offsets_of
from milena.model.batch.header import BatchHeader
from milena.model.errors import CorruptLogError
from milena.model.turns import one_turn
from storage.state.transactions import AbortedRange, Identity, is_aborted

ReadSpan = Callable[[int, int], Awaitable[bytes]]
"""Takes an offset and an end (exclusive); returns whole stored batches below the end, at least one. The first of them
contains the offset."""

LOOK_BACK_BYTES_MAX = 16 << 20
"""Largest number of stored bytes that one search reads."""
READ_BYTES_MAX = 256 << 10
"""Largest number of stored bytes that one step of the search reads. Their headers keep the loop busy for a few ms."""
_READ_BYTES_MIN = 4 << 10
"""Smallest number of bytes that a step counts for: even if it finds fewer, it takes as long as reading this many."""
_WINDOW_OFFSETS_MIN, _WINDOW_OFFSETS_MAX = 16, 4_096


@dataclass(frozen=True, slots=True)
class _CountedBatch:
    """A batch, of which the reader sees ``count`` records. ``span``: stored bytes; ``position``: its place there."""

    header: BatchHeader
    span: bytes
    position: int
    count: int


@dataclass(slots=True, kw_only=True)
class LastRecords:
    """One search. ``aborted``: the transactions whose records the reader does not see."""

    read: ReadSpan
    start: int
    """The first offset of the log."""
    end: int
    """The offset at which reading ends (exclusive)."""
    aborted: Mapping[Identity, AbortedRange]
    bytes_left: int = LOOK_BACK_BYTES_MAX

    async def find(self, count: int) -> int:
        """Return the offset of the ``count``-th record from the end; the log's start if there are fewer records.

        Raises:
            CorruptBatchError: the bytes are not batches.
        """
        found = await self._find(count)
        return self.start if found is None else found

    async def records_end(self) -> int:
        """Return one above the offset of the last record; the log's start if there is no record.

        Raises:
            CorruptBatchError: the bytes are not batches.
        """
        found = await self._find(1)
        return self.start if found is None else found + 1

    async def _find(self, count: int) -> int | None:
        wanted, end, width = count, self.end, _WINDOW_OFFSETS_MIN // 2
        while wanted > 0 and end > self.start and self.bytes_left > 0:
            # Start with a small window, because a few records may be large. Then double it, because in a compacted log
            # few offsets may have a record.
            width = min(2 * width, _WINDOW_OFFSETS_MAX)
            first = max(self.start, end - width)
            begin, batches = await self._window(first, end)
            for batch in reversed(batches):
                # A changed bit can make a batch look empty. Damage elsewhere in a batch, or before the wanted records,
                # does not change where these begin: their reader finds it.
                if batch.count <= batch.header.last_offset_delta:
                    self._check(batch)
                if batch.count >= wanted:
                    return self._offset_in(batch, wanted)
                wanted -= batch.count
            end = begin
        return end - wanted if end - wanted >= self.start else None

    async def _window(self, first: int, end: int) -> tuple[int, list[_CountedBatch]]:
        """Return the offset at which the window's batches begin, and these batches: from ``first`` up to ``end``.

        If reading them exceeds ``bytes_left``, return ``end`` and no batches.
        """
        begin, offset = first, first
        found: list[_CountedBatch] = []
        while offset < end:
            if self.bytes_left <= 0:
                return end, []
            span = await self.read(offset, end)
            self.bytes_left -= max(len(span), _READ_BYTES_MIN)
            try:
                for position, header in iterate_headers(span):
                    begin = min(begin, header.base_offset)
                    if header.base_offset >= end:
                        break
                    count = self._count(header, span, position)
                    found.append(_CountedBatch(header, span, position, count))
                    offset = header.next_offset
            except CorruptLogError as error:
                error.offset = offset
                raise
            await one_turn()
        return begin, found

    def _check(self, batch: _CountedBatch) -> None:
        try:
            check_batch(batch.span, batch.position)
        except CorruptLogError as error:
            error.offset = max(self.start, batch.header.base_offset)
            raise

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
