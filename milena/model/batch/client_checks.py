"""Checks of a batch that a client encoded; afterwards every field of it can be trusted."""

from collections.abc import Sequence

from milena.model.batch.decode import check_batch, decode_columns
from milena.model.batch.header import (
    CODEC_MASK,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from milena.model.batch.timestamps import USUAL_TIMESTAMPS, TimestampBounds
from milena.model.columns import are_plain
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import NO_PRODUCER, Codec

RECORDS_MAX = 1 << 20
"""Limit of records in a client's batch: 8 MiB of 8 bytes each; more would be an attack on its readers."""

_CLIENT_BITS = CODEC_MASK | TIMESTAMP_TYPE_BIT


def validate_client_batch(
    batch: bytes,
    *,
    bytes_max: int,
    now_ms: int,
    timestamps: TimestampBounds = USUAL_TIMESTAMPS,
    records_max: int = RECORDS_MAX,
    needs_keys: bool = False,
) -> BatchHeader:
    """Check everything in a batch that a client encoded; return its header.

    Args:
        batch: exactly one batch.
        bytes_max: the topic's ``max.message.bytes``; a limit of the batch and of its decompressed payload.
        now_ms: the node's wall clock.
        timestamps: the topic's limits; a topic whose records get the leader's time accepts any.
        records_max: the limit of records in the batch.
        needs_keys: whether the topic is compacted, so that a record without a key is refused.

    Raises:
        RequestTooLargeError: the batch is larger than ``bytes_max``.
        InvalidRecordError: the batch may not be stored for another reason; the message says what to change.
    """
    _check_client_size(len(batch), bytes_max)
    try:
        header = check_batch(batch)
        if header.batch_bytes != len(batch):
            raise InvalidRecordError(
                f"the body has {len(batch)} bytes, its batch {header.batch_bytes}: "
                "send exactly one batch"
            )
        _check_client_header(header, records_max)
        _check_client_producer(header)
        _check_client_size(header.uncompressed_bytes, bytes_max)
        timestamp_deltas = None
        if needs_keys or not _is_plain(batch, header):
            columns = decode_columns(batch, header, bytes_max=bytes_max)
            if needs_keys:
                _check_client_keys(columns.keys)
            if columns.offset_deltas is not None:
                raise InvalidRecordError(
                    "offset_deltas must be nil: a producer's offsets have no gaps"
                )
            timestamp_deltas = columns.timestamp_deltas
    except CorruptBatchError as error:
        raise InvalidRecordError(f"the batch is damaged: {error}") from error
    _check_client_timestamps(header, timestamp_deltas, timestamps, now_ms)
    return header


def _is_plain(batch: bytes, header: BatchHeader) -> bool:
    """Whether the records can be trusted without unpacking them."""
    start, size = header.header_bytes, header.batch_bytes
    return (
        header.codec is Codec.NONE
        and header.uncompressed_bytes == size - start
        and are_plain(batch, start, size, header.record_count)
    )


def _check_client_keys(keys: Sequence[bytes | None] | None) -> None:
    if keys is None or None in keys:
        place = 0 if keys is None else keys.index(None)
        raise InvalidRecordError(
            f"record {place} has no key, but the topic is compacted: it keeps the last record of each key; "
            "give every record a key, or set the topic's cleanup.policy to delete"
        )


def _check_client_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise RequestTooLargeError(
            f"a batch of {size} bytes is above the topic's max.message.bytes={bytes_max}; "
            "send fewer records at a time"
        )


def _check_client_header(header: BatchHeader, records_max: int) -> None:
    if header.attributes & ~_CLIENT_BITS:
        raise InvalidRecordError(
            f"attributes={header.attributes:#06x}: clients may set the codec and the timestamp "
            "type only, not the transactional, control, delete horizon or unknown bits"
        )
    if header.header_bytes != HEADER_BYTES:
        raise InvalidRecordError("clients may not set extensions of the batch header")
    if not 1 <= header.record_count <= records_max:
        raise InvalidRecordError(
            f"record_count={header.record_count} must be between 1 and {records_max}"
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"last_offset_delta={header.last_offset_delta} must be record_count - 1 "
            f"= {header.record_count - 1}"
        )


def _check_client_producer(header: BatchHeader) -> None:
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if producer != (NO_PRODUCER, -1, -1) and min(producer) < 0:
        raise InvalidRecordError(
            f"producer_id={producer[0]}, producer_epoch={producer[1]} and "
            f"base_sequence={producer[2]} must all be -1 or all be 0 or above"
        )


def _check_client_timestamps(
    header: BatchHeader, deltas: list[int] | None, bounds: TimestampBounds, now_ms: int
) -> None:
    base = header.base_timestamp_ms
    least, greatest = (base + min(deltas), base + max(deltas)) if deltas else (base, base)
    if greatest != header.max_timestamp_ms:
        raise InvalidRecordError(
            f"max_timestamp_ms={header.max_timestamp_ms}, but the latest record is at {greatest}"
        )
    check_client_times(min(least, base), greatest, bounds, now_ms)


def check_client_times(least: int, greatest: int, bounds: TimestampBounds, now_ms: int) -> None:
    """Check the earliest and the latest timestamp of a client's records.

    Raises:
        InvalidRecordError: they are out of the topic's bounds.
    """
    if least < 0:
        raise InvalidRecordError(f"timestamp {least} is before 1970", is_time=True)
    earliest, latest = bounds.range_at(now_ms)
    if greatest > latest:
        raise bounds.refusal(greatest, now_ms)
    if least < earliest:
        raise bounds.refusal(least, now_ms)
