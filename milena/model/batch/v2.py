"""Kafka's record batch of version 2 (magic 2), which Milena stores as a Kafka client sent it.

Big-endian; the last column says which checksum covers the field.

    offset  size  field
    0       8     base offset           of the first record
    8       4     batch length          of everything from byte 12 on
    12      4     partition leader epoch
    16      1     magic                 2
    17      4     crc                   CRC-32C over bytes 21..end
    21      2     attributes            see below                                      crc
    23      4     last offset delta     last offset - base offset                      crc
    27      8     base timestamp                                                       crc
    35      8     max timestamp                                                        crc
    43      8     producer id           -1 = not idempotent                            crc
    51      2     producer epoch                                                       crc
    53      4     base sequence                                                        crc
    57      4     record count                                                         crc
    61      ..    records               compressed as a whole (``v2_records``)         crc

    attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon

Milena stores the bytes from the magic on as the payload of a batch with attribute bit 7 (``header``). A fetch by a
Kafka client puts 16 new bytes before them. No checksum covers those, so the bytes that a producer checksummed reach its
readers. The outer header has the same codec, producer, and base timestamp. It overrides the inner one in three fields:

- the timestamp type, which is the topic's: ``kafka_batch`` sets the inner bit for readers;
- the transactional bit, which compaction clears;
- the record count, which the walk over the records has confirmed.

``v2_checks`` checks what a producer sent. Source: Kafka's ``DefaultRecordBatch``, KIP-98.
"""

from collections.abc import Sequence
from struct import Struct

from crc32c import crc32c

from milena.model.batch.encode import frame_batch
from milena.model.batch.header import (
    BODY,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    V2_LEAD_BYTES,
    BatchHeader,
    Buffer,
    Stamp,
    encode_extensions,
)
from milena.model.batch.v2_records import columns_in, encode_records, keep_records
from milena.model.codecs import compress, decompress
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptBatchError
from milena.model.types import NO_PRODUCER, NO_TIMESTAMP, Codec

MAGIC = 2
HEAD_BYTES = 61
"""Where the records begin."""
PAYLOAD_HEAD_BYTES = HEAD_BYTES - V2_LEAD_BYTES
"""Where the records begin in a stored payload."""

_LEAD = Struct(">qii")
_REST = Struct(">BIHiqqqhii")
_COVERED = Struct(">HiqqqhiI")
_CRC = Struct(">BI")
_COVERED_POSITION = 21
_LENGTH_END = 12
"""The batch length counts from here."""
_NO_LEAD = (0, 0, 0)
_NO_PRODUCER = (NO_PRODUCER, -1, -1)

V2Fields = tuple[int, int, int, int, int, int, int, int]
"""The fields of a head that its checksum covers, in the order of the table above."""
_OFFSET_DELTA_MAX = (1 << 31) - 1

_COMMIT_KEY = b"\x00\x00\x00\x01"
"""Version 0, type 1: COMMIT."""
_COMMIT_VALUE = b"\x00\x00\x00\x00\x00\x00"
"""Version 0, coordinator epoch 0."""


class V2Head:
    """The first 61 bytes of a Kafka batch, without its magic."""

    def __init__(
        self,
        lead: tuple[int, int, int],
        rest: tuple[int, int, int, int, int, int, int, int, int, int],
    ) -> None:
        self.base_offset, self.batch_length, self.leader_epoch = lead
        (
            _,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = rest

    def fields(self, *, attributes: int, max_timestamp_ms: int, record_count: int) -> V2Fields:
        """Return the fields that the checksum covers, with other attributes, latest timestamp and count."""
        return (
            attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            record_count,
        )

    @property
    def batch_bytes(self) -> int:
        """Size of the whole batch."""
        return self.batch_length + _LENGTH_END

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch is the end of a transaction."""
        return bool(self.attributes & CONTROL_BIT)


def decode_head(buffer: Buffer, position: int = 0) -> V2Head:
    """Decode the head of the Kafka batch at ``position``; the buffer may lack the records.

    Raises:
        CorruptBatchError: too few bytes, another magic, or a length that is too small.
    """
    if position + HEAD_BYTES > len(buffer):
        raise CorruptBatchError(
            f"{max(len(buffer) - position, 0)} bytes are too few for the head of a Kafka batch"
        )
    if buffer[position + V2_LEAD_BYTES] != MAGIC:
        raise CorruptBatchError(
            f"the batch has magic {buffer[position + V2_LEAD_BYTES]}; only version {MAGIC} is supported"
        )
    head = V2Head(
        _LEAD.unpack_from(buffer, position), _REST.unpack_from(buffer, position + V2_LEAD_BYTES)
    )
    if head.batch_bytes < HEAD_BYTES:
        raise CorruptBatchError(f"the batch claims a length of {head.batch_length} bytes")
    return head


def check_v2(buffer: Buffer) -> V2Head:
    """Return the head of a whole Kafka batch whose checksum matches.

    Raises:
        CorruptBatchError: the bytes are no whole, undamaged batch of version 2.
    """
    head = decode_head(buffer)
    if head.batch_bytes > len(buffer):
        raise CorruptBatchError(
            f"the batch claims {head.batch_bytes} bytes, but only {len(buffer)} are left"
        )
    if crc32c(memoryview(buffer)[_COVERED_POSITION : head.batch_bytes]) != head.crc:
        raise CorruptBatchError("the checksum of the Kafka batch does not match")
    return head


def kafka_batch(buffer: Buffer, header: BatchHeader, position: int = 0) -> tuple[bytes, memoryview]:
    """Return the stored batch with bit 7 at ``position`` as a Kafka batch: its first bytes, and a view of the others.

    The view is of ``buffer``, and nothing else of the batch is copied. In a topic whose records have the leader's time,
    the first bytes are the whole head: the timestamp type and the latest timestamp change, and so does the checksum.
    """
    assert header.is_v2, "a column batch is encoded by ``encode``"
    start = position + header.header_bytes
    end = position + header.batch_bytes
    lead = _lead(header.base_offset, header.leader_epoch, end - start)
    view = memoryview(buffer)
    if not header.attributes & TIMESTAMP_TYPE_BIT:
        return lead, view[start:end]
    head = V2Head(_NO_LEAD, _REST.unpack_from(buffer, start))
    fields = head.fields(
        attributes=head.attributes | TIMESTAMP_TYPE_BIT,
        max_timestamp_ms=header.append_time_ms,
        record_count=head.record_count,
    )
    records = view[start + PAYLOAD_HEAD_BYTES : end]
    return lead + _checked(fields, records), records


def encode(header: BatchHeader, columns: RecordColumns, *, codec: Codec = Codec.NONE) -> bytes:
    """Encode the records of a stored batch as a Kafka batch at the same offsets, without a producer.

    A batch without records becomes a filler.

    Raises:
        InvalidRecordError: a header name that UTF-8 cannot hold.
    """
    if not columns.values:
        return encode_filler(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
        )
    is_append_time = header.attributes & TIMESTAMP_TYPE_BIT
    fields = (
        codec | is_append_time,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.append_time_ms if is_append_time else header.max_timestamp_ms,
        *_NO_PRODUCER,
        len(columns.values),
    )
    records = compress(codec, encode_records(columns))
    return _whole(header.base_offset, header.leader_epoch, fields, records)


def encode_filler(*, base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Encode Kafka batches that cover offsets without records, both inclusive, for a reader's position to pass them.

    Each is a COMMIT control batch of no producer with one record, at its last offset. Clients skip control records and
    take their offsets into account. An empty batch would leave the position of librdkafka behind. One batch covers up
    to 2**31 offsets.
    """
    batches: list[bytes] = []
    while base_offset <= last_offset:
        delta = min(last_offset - base_offset, _OFFSET_DELTA_MAX)
        columns = RecordColumns([delta], None, [_COMMIT_KEY], [_COMMIT_VALUE], None)
        fields = (
            TRANSACTIONAL_BIT | CONTROL_BIT,
            delta,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            *_NO_PRODUCER,
            1,
        )
        batches.append(_whole(base_offset, leader_epoch, fields, encode_records(columns)))
        base_offset += delta + 1
    return b"".join(batches)


def _lead(base_offset: int, leader_epoch: int, payload_bytes: int) -> bytes:
    return _LEAD.pack(base_offset, V2_LEAD_BYTES - _LENGTH_END + payload_bytes, leader_epoch)


def _whole(base_offset: int, leader_epoch: int, fields: V2Fields, records: bytes) -> bytes:
    lead = _lead(base_offset, leader_epoch, PAYLOAD_HEAD_BYTES + len(records))
    # In one step: a large batch would be copied twice.
    return b"".join((lead, _checked(fields, records), records))


def payload_of(fields: V2Fields, records: bytes | memoryview) -> bytes:
    """Return the payload of a stored batch from the fields of its head and its compressed records."""
    return b"".join((_checked(fields, records), records))


def _checked(fields: V2Fields, records: bytes | memoryview) -> bytes:
    """Return the head of a payload, with the checksum over the records."""
    covered = _COVERED.pack(*fields)
    return _CRC.pack(MAGIC, crc32c(records, crc32c(covered))) + covered


def plain_records(header: BatchHeader, payload: memoryview) -> bytes | memoryview:
    """Return the decompressed records of a stored batch with bit 7, whose size the caller has checked.

    Raises:
        CorruptBatchError: they cannot be decompressed, or have another size than the header says.
    """
    if len(payload) < PAYLOAD_HEAD_BYTES:
        raise CorruptBatchError(f"{len(payload)} bytes are too few for a Kafka batch")
    return decompress(header.codec, payload[PAYLOAD_HEAD_BYTES:], header.uncompressed_bytes)


def columns_of_v2(header: BatchHeader, records: bytes | memoryview) -> RecordColumns:
    """Decode the result of ``plain_records``.

    Raises:
        CorruptBatchError: the bytes are not records, or contradict the header.
    """
    return columns_in(bytes(records), header.record_count, header.last_offset_delta)


def rewrite_v2(
    batch: Buffer,
    header: BatchHeader,
    places: Sequence[int],
    *,
    latest_timestamp_ms: int,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode a stored batch with bit 7 with only the records at ``places``, which ascend, for compaction.

    The bytes of these records, the offsets, stamp, codec and the producer's numbers stay. ``latest_timestamp_ms`` is
    that of these records. The batch no longer belongs to a transaction, in both headers. If nothing else changes, its
    payload stays as the producer sent it.
    """
    payload = memoryview(batch)[header.header_bytes : header.batch_bytes]
    head = V2Head(_NO_LEAD, _REST.unpack_from(payload))
    records: bytes | memoryview = payload[PAYLOAD_HEAD_BYTES:]
    size, latest_inner_ms = header.uncompressed_bytes, head.max_timestamp_ms
    if len(places) < header.record_count:
        plain = keep_records(bytes(plain_records(header, payload)), places)
        size, latest_inner_ms = len(plain), latest_timestamp_ms
        records = compress(header.codec, plain)
    fields = head.fields(
        attributes=head.attributes & ~TRANSACTIONAL_BIT,
        max_timestamp_ms=latest_inner_ms,
        record_count=len(places),
    )
    attributes = header.attributes & ~(DELETE_HORIZON_BIT | TRANSACTIONAL_BIT)
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    numbered = header.numbered()
    body = BODY.pack(
        attributes,
        len(places),
        header.last_offset_delta,
        header.base_timestamp_ms,
        latest_timestamp_ms,
        numbered.producer_id,
        numbered.producer_epoch,
        numbered.base_sequence,
        size,
    )
    return frame_batch(
        Stamp(header.base_offset, header.leader_epoch, header.append_time_ms),
        body,
        encode_extensions(header.request_keys, delete_horizon_ms),
        payload_of(fields, records),
    )
