"""The records of a fetched chunk, a column at a time (pure).

A record is made by one C loop over all columns, at a sixth of a microsecond each. The garbage collector would walk over
the new records a dozen times while they are made, and take twice as long as that: it waits until they are there.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat

from milena.errors import UnexpectedAnswerError
from milena.model.batch.decode import decode_columns, iterate_headers, offsets_of, timestamps_of
from milena.model.batch.header import BatchHeader
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptBatchError
from milena.records import ConsumedRecord, FetchedChunk, Headers

BATCH_RECORDS_BYTES_MAX = 256 << 20
"""The most that one batch may unpack to: far above what topics allow, and still what a process survives."""


def records_of(chunk: FetchedChunk) -> list[ConsumedRecord]:
    """The records of [start_offset, end_offset), in order; control batches hold none.

    Raises:
        UnexpectedAnswerError: a batch's checksum held when it was fetched, but what it covers are not records.
    """
    records: list[ConsumedRecord] = []
    with _collector_paused():
        for position, header in iterate_headers(chunk.data):
            if header.is_control or header.record_count == 0:
                continue
            records += _records(chunk, header, _columns(chunk, header, position))
    return records


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
    """Only where it runs; a program that has switched it off keeps it off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _records(
    chunk: FetchedChunk, header: BatchHeader, columns: RecordColumns
) -> list[ConsumedRecord]:
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
    # What ``ConsumedRecord._make`` does, without its Python frame.
    return list(map(partial(tuple.__new__, ConsumedRecord), columns_of_records))


def _headers(
    column: list[Headers | None] | None, first: int, last: int
) -> Iterable[tuple[tuple[str, bytes | None], ...]]:
    if column is None:
        return repeat(())
    return [() if row is None else tuple(row) for row in column[first:last]]
