"""Decoding of batches and records from bytes that may be damaged: checksums, columns, offsets, timestamps."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add

from crc32c import crc32c

from milena.model.batch.header import (
    BATCH_BYTES_MAX,
    BODY_POSITION,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    decode_header,
)
from milena.model.batch.v2 import columns_of_v2, plain_records
from milena.model.codecs import decompress
from milena.model.columns import Headers, RecordColumns, unpack_columns
from milena.model.errors import CorruptBatchError

Record = tuple[int, int, bytes | None, bytes | None, Headers | None]
"""Offset, timestamp in ms, key, value, headers."""


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of a whole batch whose checksums both match.

    Raises:
        CorruptBatchError: the bytes are no whole, undamaged batch.
    """
    header = decode_header(buffer, position)
    end = position + header.batch_bytes
    if end > len(buffer):
        raise CorruptBatchError(
            f"batch_bytes={header.batch_bytes}, but only {len(buffer) - position} bytes are left"
        )
    if crc32c(memoryview(buffer)[position + BODY_POSITION : end]) != header.crc:
        raise CorruptBatchError("the checksum of the batch does not match")
    return header


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch; checksums are verified.

    Raises:
        CorruptBatchError: at the first byte that is not part of a whole, undamaged batch.
    """
    position = 0
    while position < len(buffer):
        header = check_batch(buffer, position)
        yield position, header
        position += header.batch_bytes


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch; bodies are not verified. Use it for bytes that were checked before.

    Raises:
        CorruptBatchError: at the first damaged header, or a batch that is cut off.
    """
    position = 0
    while position < len(buffer):
        header = decode_header(buffer, position)
        if position + header.batch_bytes > len(buffer):
            raise CorruptBatchError(f"the last batch is cut off: batch_bytes={header.batch_bytes}")
        yield position, header
        position += header.batch_bytes


def decode_columns(
    buffer: Buffer, header: BatchHeader, position: int = 0, *, bytes_max: int = BATCH_BYTES_MAX
) -> RecordColumns:
    """Decode the records of the batch at ``position``, whose header is ``header``.

    Args:
        buffer: contains the whole batch.
        header: result of ``decode_header`` or ``check_batch`` for the batch.
        position: where the batch starts in the buffer.
        bytes_max: the limit of the decompressed payload.

    Raises:
        CorruptBatchError: the payload is larger, is not columns of records, or contradicts the header.
    """
    return columns_of(header, plain_payload(buffer, header, position, bytes_max=bytes_max))


def plain_payload(
    buffer: Buffer, header: BatchHeader, position: int = 0, *, bytes_max: int = BATCH_BYTES_MAX
) -> bytes | memoryview:
    """Return the decompressed payload of the batch; arguments as for ``decode_columns``.

    Of a Kafka batch these are the records, without its head.

    Raises:
        CorruptBatchError: the payload is larger than the limit, or cannot be decompressed.
    """
    if header.uncompressed_bytes > bytes_max:
        raise CorruptBatchError(
            f"uncompressed_bytes={header.uncompressed_bytes} is above the bound of {bytes_max}"
        )
    start = position + header.header_bytes
    payload = memoryview(buffer)[start : position + header.batch_bytes]
    if header.is_v2:
        return plain_records(header, payload)
    return decompress(header.codec, payload, header.uncompressed_bytes)


def columns_of(header: BatchHeader, payload: bytes | memoryview) -> RecordColumns:
    """Decode the records of a batch from its ``plain_payload``.

    Raises:
        CorruptBatchError: the payload is not records, or contradicts the header.
    """
    if header.is_v2:
        return columns_of_v2(header, payload)
    columns = unpack_columns(payload, header.record_count)
    _check_offset_deltas(columns.offset_deltas, header)
    return columns


def _check_offset_deltas(offset_deltas: list[int] | None, header: BatchHeader) -> None:
    if offset_deltas is None:
        if header.record_count not in (0, header.last_offset_delta + 1):
            raise CorruptBatchError(
                f"offset_deltas is missing, but record_count={header.record_count} and "
                f"last_offset_delta={header.last_offset_delta} leave gaps"
            )
    elif offset_deltas and (
        offset_deltas[0] < 0
        or offset_deltas[-1] > header.last_offset_delta
        or not all(map(int.__lt__, offset_deltas, offset_deltas[1:]))
    ):
        raise CorruptBatchError("offset_deltas do not ascend from 0 to last_offset_delta")


def offsets_of(header: BatchHeader, columns: RecordColumns) -> Sequence[int]:
    """Return the records' offsets."""
    base = header.base_offset
    if columns.offset_deltas is None:
        return range(base, base + len(columns.values))
    return [base + delta for delta in columns.offset_deltas]


def timestamps_of(header: BatchHeader, columns: RecordColumns) -> Sequence[int]:
    """Return the records' timestamps in ms, as readers see them."""
    count = len(columns.values)
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return [header.append_time_ms] * count
    base = header.base_timestamp_ms
    if columns.timestamp_deltas is None:
        return [base] * count
    return list(map(add, columns.timestamp_deltas, repeat(base, count)))


def records_in(
    buffer: Buffer,
    start_offset: int = 0,
    end_offset: int | None = None,
    *,
    bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[Record]:
    """Yield the records of all batches with ``start_offset <= offset < end_offset``; control batches are skipped.

    Raises:
        CorruptBatchError: the bytes are not whole, undamaged batches.
    """
    for position, header in iterate_batches(buffer):
        if header.is_control or header.last_offset < start_offset:
            continue
        if end_offset is not None and header.base_offset >= end_offset:
            return
        columns = decode_columns(buffer, header, position, bytes_max=bytes_max)
        rows: Iterator[Record] = zip(
            offsets_of(header, columns),
            timestamps_of(header, columns),
            columns.keys or repeat(None),
            columns.values,
            columns.headers or repeat(None),
            strict=False,
        )
        if start_offset <= header.base_offset and (
            end_offset is None or header.last_offset < end_offset
        ):
            yield from rows
            continue
        for row in rows:
            if start_offset <= row[0] and (end_offset is None or row[0] < end_offset):
                yield row
