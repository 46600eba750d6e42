"""Checks of a batch that a Kafka client encoded, and the batch that stores it."""

from collections.abc import Callable
from itertools import islice

from milena.model.batch.client_checks import RECORDS_MAX, check_client_times
from milena.model.batch.encode import frame_batch
from milena.model.batch.header import (
    BODY,
    CODEC_MASK,
    CODECS,
    NO_STAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    V2_BIT,
    V2_LEAD_BYTES,
    BatchHeader,
    Buffer,
    decode_header,
)
from milena.model.batch.timestamps import USUAL_TIMESTAMPS, TimestampBounds
from milena.model.batch.v2 import HEAD_BYTES, V2Head, check_v2, payload_of
from milena.model.batch.v2_records import check_records, columns_in, encode_records
from milena.model.codecs import compress, decompress_within
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import NO_PRODUCER, NO_TIMESTAMP, Codec, TimestampType

PLAIN_BYTES_MAX = 32 << 20
"""Limit of the records of a batch once decompressed, for topics whose ``max.message.bytes`` is below a quarter of it.
Kafka's clients fill a batch up to its compressed size, so the decompressed size is above ``max.message.bytes``."""

REFUSED_SHOWN_MAX = 10_000
"""How many records an error names at most. A client may send the others again."""

_CLIENT_BITS = CODEC_MASK | TRANSACTIONAL_BIT
_NO_PRODUCER = (NO_PRODUCER, -1, -1)


def wrap_v2(
    batch: Buffer,
    *,
    bytes_max: int,
    now_ms: int,
    timestamps: TimestampBounds = USUAL_TIMESTAMPS,
    timestamp_type: TimestampType = TimestampType.CREATE,
    needs_keys: bool = False,
    codec: Codec | None = None,
    records_max: int = RECORDS_MAX,
    is_in_transaction: bool = False,
    plain_bytes_max: int | None = None,
    pause: Callable[[], None] | None = None,
) -> tuple[bytes, BatchHeader]:
    """Check everything in a batch that a Kafka client encoded; return the batch that stores it, and its header.

    The base offset and the leader epoch of the Kafka batch are ignored. Records without a time (-1) get the node's.

    Args:
        batch: exactly one batch of version 2.
        bytes_max: the topic's ``max.message.bytes``, a limit of the Kafka batch.
        now_ms: the node's wall clock.
        timestamps: the topic's limits; a topic whose records get the leader's time accepts any.
        timestamp_type: the topic's ``message.timestamp.type``.
        needs_keys: whether the topic is compacted, so that a record without a key is refused.
        codec: the codec into which the topic's ``compression.type`` converts the records; None: they stay unchanged.
        records_max: the limit of records in the batch.
        is_in_transaction: whether the batch belongs to an open transaction. The caller then adds the transaction to the
            result (``encode.with_extensions``), and the batch must have the transactional bit. Otherwise it must not.
        plain_bytes_max: a lower limit of the records once decompressed; None: that of the topic.
        pause: called between some thousands of records, so that a thread can let others run.

    Raises:
        CorruptBatchError: the batch is damaged: its length, magic, checksum, compression, or the form of a record.
        RequestTooLargeError: the batch is larger than ``bytes_max``, or its records are too large once decompressed.
        InvalidRecordError: the batch may not be stored for another reason. ``records`` and ``is_time`` say which.
    """
    _check_size(len(batch), bytes_max)
    head = check_v2(batch)
    if head.batch_bytes != len(batch):
        raise InvalidRecordError(
            f"{len(batch)} bytes of records hold a batch of {head.batch_bytes} bytes: "
            "send exactly one batch for each partition"
        )
    _check_head(head, records_max)
    if head.is_transactional is not is_in_transaction:
        raise InvalidRecordError(
            "the batch is transactional, but its producer has no open transaction"
            if head.is_transactional
            else "the batch is not transactional, but its producer has an open transaction"
        )
    own_codec = CODECS[head.attributes & CODEC_MASK]
    records = memoryview(batch)[HEAD_BYTES:]
    limit = max(PLAIN_BYTES_MAX, 4 * bytes_max)
    if plain_bytes_max is not None:
        limit = min(limit, plain_bytes_max)
    plain = bytes(decompress_within(own_codec, records, limit))
    walked = check_records(plain, head.record_count, pause)
    if needs_keys and walked.keyless >= 0:
        raise InvalidRecordError(
            f"record {walked.keyless} has no key, but the topic is compacted: it keeps the last record of each key; "
            "give every record a key, or set the topic's cleanup.policy to delete",
            records=_keyless(plain, head, walked.keyless),
        )
    is_timed = head.base_timestamp_ms + walked.least != NO_TIMESTAMP
    if not is_timed:
        plain = _with_times(plain, head, now_ms)
        walked = check_records(plain, head.record_count)
    least = head.base_timestamp_ms + walked.least
    greatest = head.base_timestamp_ms + walked.greatest
    check_client_times(least, greatest, timestamps, now_ms)
    payload: bytes | memoryview = memoryview(batch)[V2_LEAD_BYTES:]
    codec = own_codec if codec is None else codec
    if codec is not own_codec or not is_timed:
        fields = head.fields(
            attributes=head.attributes & ~CODEC_MASK | codec,
            max_timestamp_ms=greatest,
            record_count=head.record_count,
        )
        payload = payload_of(fields, compress(codec, plain))
        _check_size(V2_LEAD_BYTES + len(payload), bytes_max)
        own_codec = codec
    body = BODY.pack(
        own_codec | timestamp_type << 3 | V2_BIT,
        head.record_count,
        head.last_offset_delta,
        head.base_timestamp_ms,
        greatest,
        *_producer_of(head),
        len(plain),
    )
    wrapped = frame_batch(NO_STAMP, body, b"", payload)
    return wrapped, decode_header(wrapped)


def _with_times(plain: bytes, head: V2Head, now_ms: int) -> bytes:
    """Return the records with the node's time in place of none, and change ``head`` accordingly.

    Retention and searches by time need a time, and records of HTTP clients without one get the node's, too.
    """
    columns = columns_in(plain, head.record_count, head.last_offset_delta)
    deltas = columns.timestamp_deltas or [0] * head.record_count
    times = [head.base_timestamp_ms + delta for delta in deltas]
    times = [now_ms if time == NO_TIMESTAMP else time for time in times]
    head.base_timestamp_ms = times[0]
    columns.timestamp_deltas = [time - times[0] for time in times]
    return encode_records(columns)


def _keyless(plain: bytes, head: V2Head, first: int) -> tuple[int, ...]:
    """Return the places of the records without a key, from the first one on, up to ``REFUSED_SHOWN_MAX``."""
    keys = columns_in(plain, head.record_count, head.last_offset_delta).keys
    places = range(first, head.record_count)
    keyless = (place for place in places if keys is None or keys[place] is None)
    return tuple(islice(keyless, REFUSED_SHOWN_MAX))


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise RequestTooLargeError(
            f"a batch of {size} bytes is above the topic's max.message.bytes={bytes_max}; "
            "send fewer records at a time"
        )


def _check_head(head: V2Head, records_max: int) -> None:
    if head.attributes & CODEC_MASK not in CODECS:
        raise CorruptBatchError(f"codec {head.attributes & CODEC_MASK} is unknown")
    if head.attributes & TIMESTAMP_TYPE_BIT:
        raise InvalidRecordError(
            "a producer may not set the timestamp type: the topic's message.timestamp.type decides",
            is_time=True,
        )
    if head.attributes & ~_CLIENT_BITS:
        raise InvalidRecordError(
            f"attributes={head.attributes:#06x}: producers may set the codec and the transactional bit only"
        )
    if not 1 <= head.record_count <= records_max:
        raise InvalidRecordError(
            f"a batch of {head.record_count} records: send between 1 and {records_max}"
        )
    if head.record_count != head.last_offset_delta + 1:
        raise InvalidRecordError(
            f"the last offset delta is {head.last_offset_delta}, but the batch has {head.record_count} records"
        )
    producer = _producer_of(head)
    if producer != _NO_PRODUCER and min(producer) < 0:
        raise InvalidRecordError(
            f"producer id {producer[0]}, epoch {producer[1]} and sequence {producer[2]} must all be 0 or above, or the "
            "producer id -1"
        )


def _producer_of(head: V2Head) -> tuple[int, int, int]:
    """Return the producer's id, epoch and first sequence; all -1 if the batch is not idempotent.

    Without an id, epoch and sequence mean nothing, and clients send any: aiokafka sends -1 and 0.
    """
    if head.producer_id == NO_PRODUCER:
        return _NO_PRODUCER
    return head.producer_id, head.producer_epoch, head.base_sequence
