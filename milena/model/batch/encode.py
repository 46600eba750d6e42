"""Encoding of batches, also with fewer records, and changes of their stamp, codec, key, or timestamp type."""

from collections.abc import Sequence
from struct import error as StructError  # noqa: N812

from crc32c import crc32c

from milena.model.batch.header import (
    ATTRIBUTES,
    BATCH_BYTES_MAX,
    BODY,
    BODY_POSITION,
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    CRC,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC,
    NO_STAMP,
    STAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    V2_BIT,
    BatchHeader,
    Buffer,
    IdempotencyExtension,
    Marker,
    ProducerStamp,
    Stamp,
    TransactionExtension,
    decode_header,
    encode_extensions,
)
from milena.model.codecs import compress, decompress
from milena.model.columns import RecordColumns, pack_columns
from milena.model.errors import InvalidRecordError
from milena.model.types import COLUMN_CODECS, NO_PRODUCER, Codec, TimestampType


def encode_batch(
    columns: RecordColumns,
    *,
    base_timestamp_ms: int,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    producer: ProducerStamp | None = None,
    request_keys: Sequence[IdempotencyExtension] = (),
    transaction: TransactionExtension | None = None,
    is_control: bool = False,
) -> bytes:
    """Encode a batch with base offset 0, leader epoch -1 and append time -1; the leader stamps it.

    Raises:
        InvalidRecordError: no batch can hold these records.
    """
    attributes = codec | (timestamp_type << 3) | (CONTROL_BIT if is_control else 0)
    if transaction is not None:
        assert producer is not None, "a transaction is named by its producer"
        attributes |= TRANSACTIONAL_BIT
    offset_deltas = columns.offset_deltas
    last_offset_delta = offset_deltas[-1] if offset_deltas else len(columns.values) - 1
    return _assemble(
        columns,
        stamp=NO_STAMP,
        attributes=attributes,
        last_offset_delta=max(last_offset_delta, 0),
        base_timestamp_ms=base_timestamp_ms,
        producer=producer,
        extensions=encode_extensions(request_keys, transaction=transaction),
    )


def encode_payload(
    payload: bytes,
    *,
    record_count: int,
    base_timestamp_ms: int,
    latest_timestamp_ms: int,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Encode the payload of ``pack_columns`` as ``encode_batch`` would encode the columns, without offset deltas.

    Raises:
        InvalidRecordError: no batch can hold these records.
    """
    return _assemble_payload(
        payload,
        record_count,
        stamp=NO_STAMP,
        attributes=codec,
        last_offset_delta=max(record_count - 1, 0),
        base_timestamp_ms=base_timestamp_ms,
        latest_timestamp_ms=latest_timestamp_ms,
        producer=None,
        extensions=b"",
    )


def encode_marker(
    marker: Marker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Encode the end of the transaction (producer_id, producer_epoch) in one log; its leader appends it."""
    return _assemble(
        RecordColumns(None, None, None, [], None),
        stamp=NO_STAMP,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        producer=ProducerStamp(producer_id, producer_epoch, -1),
        extensions=encode_extensions((), transaction=marker),
    )


def rewrite_batch(
    header: BatchHeader,
    columns: RecordColumns,
    *,
    delete_horizon_ms: int | None = None,
    keeps_transaction: bool = False,
) -> bytes:
    """Encode the batch of ``header`` with fewer records, for compaction.

    Stamp, producer, idempotency keys and the range of offsets stay. ``columns.offset_deltas`` names the remaining
    records. Unless ``keeps_transaction``, the batch no longer belongs to a transaction. If a Kafka client sent it, it
    becomes a batch of columns.
    """
    attributes = _column_attributes(header) & ~DELETE_HORIZON_BIT
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    if keeps_transaction:
        extensions = encode_extensions(header.request_keys, delete_horizon_ms, header.transaction)
        return _reassemble(header, columns, attributes, extensions)
    extensions = encode_extensions(header.request_keys, delete_horizon_ms)
    return _reassemble(header.numbered(), columns, attributes & ~TRANSACTIONAL_BIT, extensions)


def column_batch(header: BatchHeader, columns: RecordColumns) -> bytes:
    """Encode the records of a stored batch that a Kafka client sent as columns, for readers without ``v2``.

    Nothing else changes, except that a client's numbers are left out. Snappy becomes lz4.
    """
    extensions = encode_extensions(
        header.request_keys, header.delete_horizon_ms, header.transaction
    )
    return _reassemble(header, columns, _column_attributes(header), extensions)


def _column_attributes(header: BatchHeader) -> int:
    """Return the attributes of the batch if its payload becomes columns."""
    codec = header.codec if header.codec in COLUMN_CODECS else Codec.LZ4
    return header.attributes & ~(V2_BIT | CODEC_MASK) | codec


def _reassemble(
    header: BatchHeader, columns: RecordColumns, attributes: int, extensions: bytes
) -> bytes:
    producer = (
        None
        if header.producer_id == NO_PRODUCER
        else ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence)
    )
    return _assemble(
        columns,
        stamp=Stamp(header.base_offset, header.leader_epoch, header.append_time_ms),
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=header.base_timestamp_ms,
        producer=producer,
        extensions=extensions,
    )


def encode_filler(
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    append_time_ms: int,
    timestamp_ms: int,
) -> bytes:
    """Encode a stamped batch without records, for the offsets of batches that compaction removed.

    ``timestamp_ms`` is the latest timestamp of the removed batches, so retention by time treats the segment as before.
    """
    return _assemble(
        RecordColumns(None, None, None, [], None),
        stamp=Stamp(base_offset, leader_epoch, append_time_ms),
        attributes=Codec.NONE,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=timestamp_ms,
        producer=None,
        extensions=b"",
    )


def _assemble(
    columns: RecordColumns,
    *,
    stamp: Stamp,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    producer: ProducerStamp | None,
    extensions: bytes,
) -> bytes:
    record_count = len(columns.values)
    for column in (columns.offset_deltas, columns.timestamp_deltas, columns.keys, columns.headers):
        assert column is None or len(column) == record_count, (len(column), record_count)
    deltas = columns.timestamp_deltas
    return _assemble_payload(
        pack_columns(columns),
        record_count,
        stamp=stamp,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        latest_timestamp_ms=base_timestamp_ms + max(deltas) if deltas else base_timestamp_ms,
        producer=producer,
        extensions=extensions,
    )


def _assemble_payload(
    plain: bytes,
    record_count: int,
    *,
    stamp: Stamp,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    latest_timestamp_ms: int,
    producer: ProducerStamp | None,
    extensions: bytes,
) -> bytes:
    if len(plain) > BATCH_BYTES_MAX:
        raise InvalidRecordError(f"{len(plain)} bytes of records do not fit into one batch")
    codec = CODECS[attributes & CODEC_MASK]
    payload = plain if codec is Codec.NONE else compress(codec, plain)
    try:
        body = BODY.pack(
            attributes,
            record_count,
            last_offset_delta,
            base_timestamp_ms,
            latest_timestamp_ms,
            NO_PRODUCER if producer is None else producer.producer_id,
            -1 if producer is None else producer.producer_epoch,
            -1 if producer is None else producer.base_sequence,
            len(plain),
        )
    except StructError:
        raise InvalidRecordError(
            f"timestamp {base_timestamp_ms} is not a number of 64 bits (ms since 1970)"
        ) from None
    return frame_batch(stamp, body, extensions, payload)


def with_codec(batch: bytes, codec: Codec) -> bytes:
    """Compress an unstamped batch, which was checked before, with another codec; nothing else changes.

    Raises:
        CorruptBatchError: the payload does not decompress.
    """
    header = decode_header(batch)
    if header.codec is codec:
        return batch
    payload = memoryview(batch)[header.header_bytes :]
    plain = bytes(decompress(header.codec, payload, header.uncompressed_bytes))
    attributes = ATTRIBUTES.pack(header.attributes & ~CODEC_MASK | codec)
    body = attributes + batch[BODY_POSITION + len(attributes) : HEADER_BYTES]
    extensions = batch[HEADER_BYTES : header.header_bytes]
    return frame_batch(NO_STAMP, body, extensions, compress(codec, plain))


def with_extensions(
    batch: bytes,
    *,
    request_keys: Sequence[IdempotencyExtension] = (),
    transaction: TransactionExtension | None = None,
    producer: ProducerStamp | None = None,
    client: ProducerStamp | None = None,
) -> bytes:
    """Add keys, a transaction, or both to an unstamped batch that was checked before and has no extensions.

    ``producer`` replaces the batch's producer fields; pass it if the batch has none. ``client``: the numbers of a Kafka
    client, if the producer fields name its transaction.
    """
    header = decode_header(batch)
    assert header.header_bytes == HEADER_BYTES, "the extensions that it has would be lost"
    attributes, *counts, producer_id, epoch, sequence, size = BODY.unpack_from(batch, BODY_POSITION)
    if producer is not None:
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        sequence = producer.base_sequence
    if transaction is not None:
        assert producer_id != NO_PRODUCER, "a transaction is named by its producer"
        attributes |= TRANSACTIONAL_BIT
    body = BODY.pack(attributes, *counts, producer_id, epoch, sequence, size)
    extensions = encode_extensions(request_keys, transaction=transaction, client=client)
    return frame_batch(NO_STAMP, body, extensions, memoryview(batch)[HEADER_BYTES:])


def with_timestamp_type(batch: bytes, timestamp_type: TimestampType) -> bytes:
    """Set the topic's timestamp type; only the attributes and their checksum change."""
    (attributes,) = ATTRIBUTES.unpack_from(batch, BODY_POSITION)
    changed = (attributes & ~TIMESTAMP_TYPE_BIT) | (timestamp_type << 3)
    if changed == attributes:
        return batch
    covered = ATTRIBUTES.pack(changed)
    rest = memoryview(batch)[BODY_POSITION + len(covered) :]
    return b"".join((batch[:CRC_POSITION], CRC.pack(crc32c(rest, crc32c(covered))), covered, rest))


def frame_batch(stamp: Stamp, body: bytes, extensions: bytes, payload: bytes | memoryview) -> bytes:
    """Join the parts of a batch: ``body`` holds the fields from ``attributes`` to ``uncompressed_bytes``."""
    header_bytes = HEADER_BYTES + len(extensions)
    frame = STAMP.pack(header_bytes + len(payload), MAGIC, header_bytes, *stamp)
    covered = body + extensions
    return b"".join(
        (
            frame,
            CRC.pack(crc32c(frame)),
            CRC.pack(crc32c(payload, crc32c(covered))),
            covered,
            payload,
        )
    )


def stamp_batch(
    batch: Buffer, *, base_offset: int, leader_epoch: int, append_time_ms: int
) -> bytes:
    """Return the batch's first ``STAMP_BYTES`` with this leader's stamp; the rest, ``batch[31:]``, is unchanged."""
    batch_bytes, magic, header_bytes, *_ = STAMP.unpack_from(batch)
    frame = STAMP.pack(batch_bytes, magic, header_bytes, base_offset, leader_epoch, append_time_ms)
    return frame + CRC.pack(crc32c(frame))
