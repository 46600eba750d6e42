"""The records of a fetched chunk, built from columns (pure).

One C loop over all columns creates the records, at a sixth of a microsecond each. While many records are created, the
garbage collector would walk over them a dozen times, which takes twice as long as creating them. So the collector is
paused meanwhile, and walks over them once afterwards. If a program takes a few hundred records at a time, and drops
them before it takes the next, the collector does not run at all.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, repeat

from milena.errors import UnexpectedAnswerError
from milena.model.batch.decode import decode_columns, iterate_headers, offsets_of, timestamps_of
from milena.model.batch.header import BatchHeader
from milena.model.columns import Headers, RecordColumns
from milena.model.errors import CorruptBatchError
from milena.records import ConsumedRecord, FetchedChunk

BATCH_RECORDS_BYTES_MAX = 256 << 20
"""The most bytes that one batch may unpack to: far above what topics allow, and little enough for a process."""


def records_of(chunk: FetchedChunk) -> list[ConsumedRecord]:
    """Return the records of a chunk with offsets in [start_offset, end_offset), in order. Skip control batches.

    Raises:
        UnexpectedAnswerError: the content of a batch cannot be decoded, although its checksum is valid.
    """
    records: list[ConsumedRecord] = []
    with _collector_paused():
        for position, header in iterate_headers(chunk.data):
            if header.is_control or header.record_count == 0:
                continue
            records += _lazy_records(chunk, header, _columns(chunk, header, position))[1]
    return records


class ChunkRecords:
    """The records of a chunk in [start_offset, end_offset), in order. A record is created when it is taken."""

    def __init__(self, chunk: FetchedChunk) -> None:
        self._chunk = chunk
        self._headers = iterate_headers(chunk.data)
        self._offsets: Sequence[int] = ()
        self._made: Iterator[ConsumedRecord] = iter(())
        self._at = 0
        self._bad_offset: int | None = None
        self._error: UnexpectedAnswerError | None = None
        self._advance()

    @property
    def has_records(self) -> bool:
        """True if ``take`` returns records."""
        return self._at < len(self._offsets)

    @property
    def is_done(self) -> bool:
        """True if all records were taken, and no batch failed to decode."""
        return not self.has_records and self._error is None

    @property
    def next_offset(self) -> int:
        """The offset at which to continue: of the next record, of the batch that cannot be read, or the chunk's end."""
        if self.has_records:
            return self._offsets[self._at]
        return self._chunk.next_offset if self._bad_offset is None else self._bad_offset

    def take(self, most: int) -> list[ConsumedRecord]:
        """Return the next records, at most ``most``, from one or more batches.

        Raises:
            UnexpectedAnswerError: the next batch cannot be decoded; all records before it were taken.
        """
        records: list[ConsumedRecord] = []
        with _collector_paused():
            while len(records) < most and self._at < len(self._offsets):
                some = list(islice(self._made, most - len(records)))
                self._at += len(some)
                # Most calls take records of one batch only. Then the list is not copied.
                records = records + some if records else some
                if self._at >= len(self._offsets):
                    self._advance()
        if not records and self._error is not None:
            raise self._error
        return records

    def _advance(self) -> None:
        """Move on to the next batch of the chunk that has records."""
        self._at, self._offsets = 0, ()
        for position, header in self._headers:
            if header.is_control or header.record_count == 0:
                continue
            try:
                columns = _columns(self._chunk, header, position)
            except UnexpectedAnswerError as error:
                self._bad_offset = max(header.base_offset, self._chunk.start_offset)
                self._error = error
                return
            offsets, made = _lazy_records(self._chunk, header, columns)
            if offsets:
                self._offsets, self._made = offsets, made
                return


def _columns(chunk: FetchedChunk, header: BatchHeader, position: int) -> RecordColumns:
    try:
        return decode_columns(chunk.data, header, position, bytes_max=BATCH_RECORDS_BYTES_MAX)
    except CorruptBatchError as error:
        raise UnexpectedAnswerError(
            f"{chunk.topic}-{chunk.partition}: the batch at offset {header.base_offset} "
            f"cannot be read: {error.message}"
        ) from error


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector; start it again at the end only if it was running."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lazy_records(
    chunk: FetchedChunk, header: BatchHeader, columns: RecordColumns
) -> tuple[Sequence[int], Iterator[ConsumedRecord]]:
    """Return the offsets of a batch's records within the chunk's bounds, and an iterator that creates the records."""
    offsets = offsets_of(header, columns)
    first = bisect_left(offsets, chunk.start_offset)
    last = bisect_left(offsets, chunk.end_offset)
    columns_of_records = zip(
        repeat(chunk.topic),
        repeat(chunk.partition),
        offsets[first:last],
        timestamps_of(header, columns)[first:last],
        repeat(header.timestamp_type),
        repeat(None) if columns.keys is None else columns.keys[first:last],
        columns.values[first:last],
        _headers(columns.headers, first, last),
        strict=False,
    )
    # ``ConsumedRecord._make`` would do the same, but with a Python call per record.
    return offsets[first:last], map(partial(tuple.__new__, ConsumedRecord), columns_of_records)


def _headers(
    column: list[Headers | None] | None, first: int, last: int
) -> Iterable[tuple[tuple[str, bytes | None], ...]]:
    if column is None:
        return repeat(())
    return [() if row is None else tuple(row) for row in column[first:last]]
