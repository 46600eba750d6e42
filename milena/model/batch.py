"""The record batch: the one unit that is produced, stored, replicated and fetched, byte for byte the same everywhere.

Big-endian; the last column says which checksum covers the field.

    offset  size  field
    0       4     batch_bytes         the whole batch, this field included            stamp
    4       1     magic               1                                               stamp
    5       2     header_bytes        where the payload begins, >= 79                 stamp
    7       8     base_offset         offset of the first record                      stamp
    15      4     leader_epoch        epoch of the leader that appended it            stamp
    19      8     append_time_ms      the leader's clock at the append                stamp
    27      4     stamp_crc           CRC-32C over bytes 0..26
    31      4     crc                 CRC-32C over bytes 35..end
    35      2     attributes          see below                                       crc
    37      4     record_count        may be 0 after compaction                       crc
    41      4     last_offset_delta   last offset - base_offset                       crc
    45      8     base_timestamp_ms                                                   crc
    53      8     max_timestamp_ms                                                    crc
    61      8     producer_id         -1 = not idempotent                             crc
    69      2     producer_epoch                                                      crc
    71      4     base_sequence       sequences wrap at 2**31                         crc
    75      4     uncompressed_bytes  size of the payload after decompression         crc
    79      ..    extensions          type 1, length 2, value; then the payload       crc

    attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    extension 1: idempotency key: key_hash 16, body_hash 8, partition_count 4
    extension 2: delete horizon: wall ms 8; from then on compaction may drop the batch's tombstones; comes with bit 6

A producer makes everything but the leader's stamp; the leader sets that alone, without touching the rest, so that
``crc`` holds from the client to the last replica. The stamp has a checksum of its own, because a flipped epoch would
poison the leader-epoch table. The payload is described in ``milena.model.columns``.

Three degrees of trust: ``decode_header`` looks at the header, ``check_batch`` adds the checksum over the body, and
``validate_client_batch`` believes nothing. Nothing here raises anything but typed errors on hostile bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from milena.model.codecs import compress, decompress
from milena.model.columns import Headers, RecordColumns, are_plain, pack_columns, unpack_columns
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import NO_EPOCH, NO_PRODUCER, NO_TIMESTAMP, Codec, TimestampType

__all__ = [
    "BATCH_BYTES_MAX",
    "HEADER_BYTES",
    "MAGIC",
    "RECORDS_MAX",
    "STAMP_BYTES",
    "BatchHeader",
    "Headers",
    "IdempotencyExtension",
    "ProducerStamp",
    "Record",
    "RecordColumns",
    "check_batch",
    "decode_columns",
    "decode_header",
    "encode_batch",
    "encode_filler",
    "iterate_batches",
    "iterate_headers",
    "offsets_of",
    "records_in",
    "rewrite_batch",
    "stamp_batch",
    "timestamps_of",
    "validate_client_batch",
    "with_codec",
    "with_idempotency",
    "with_timestamp_type",
]

Buffer = bytes | bytearray | memoryview

Record = tuple[int, int, bytes | None, bytes | None, Headers | None]
"""Offset, timestamp in ms, key, value, headers."""

MAGIC = 1

HEADER_BYTES = 79

STAMP_BYTES = 31
"""Bytes that ``stamp_batch`` replaces: frame, stamp and its checksum."""

BATCH_BYTES_MAX = 1 << 30
"""No batch is ever larger, compressed or not; what a topic allows is far below."""

RECORDS_MAX = 1 << 20
"""Records a client may put into one batch: 8 MiB of 8 bytes each; more is an attack on its readers."""

SEQUENCE_MASK = (1 << 31) - 1

TIMESTAMP_AHEAD_MS_MAX = 3_600_000
"""How far ahead of the node's clock a client's timestamp may be; Kafka's default too."""

_HEADER = Struct(">IBHqiqIIHiiqqqhiI")
_STAMP = Struct(">IBHqiq")
_BODY = Struct(">HiiqqqhiI")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">H")
_EXTENSION = Struct(">BH")
_IDEMPOTENCY = Struct(">16s8sI")
_DELETE_HORIZON = Struct(">q")

_STAMP_CRC_POSITION = _STAMP.size
_CRC_POSITION = STAMP_BYTES
_BODY_POSITION = _CRC_POSITION + _CRC.size

_IDEMPOTENCY_TYPE = 1
_DELETE_HORIZON_TYPE = 2

_CODEC_MASK = 0b111
_TIMESTAMP_TYPE_BIT = 1 << 3
_TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
"""Of the attributes: written by a leader for itself, and skipped by readers."""
_DELETE_HORIZON_BIT = 1 << 6
_CLIENT_BITS = _CODEC_MASK | _TIMESTAMP_TYPE_BIT

_CODECS = {int(codec): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Who wrote the batch, for deduplication: (id, epoch) fences, ``base_sequence`` of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class IdempotencyExtension:
    """The HTTP idempotency key that the batch was sent under.

    ``key_hash`` has 16 bytes, ``body_hash`` 8; ``partition_count`` is the topic's when the key was first used.
    """

    key_hash: bytes
    body_hash: bytes
    partition_count: int


class Stamp(NamedTuple):
    """Where a batch lies, in which leader epoch and when (wall ms) it was appended: the leader's part of its header."""

    base_offset: int
    leader_epoch: int
    append_time_ms: int


NO_STAMP = Stamp(0, NO_EPOCH, NO_TIMESTAMP)
"""Of a batch that no leader has taken yet."""


@dataclass(slots=True, init=False)
class BatchHeader:
    """A batch's header.

    One is made for each batch on every path, so ``__init__`` is written out: what dataclasses and named tuples generate
    stays interpreted where this module is compiled.
    """

    batch_bytes: int
    magic: int
    header_bytes: int
    base_offset: int
    leader_epoch: int
    append_time_ms: int
    stamp_crc: int
    crc: int
    attributes: int
    record_count: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    uncompressed_bytes: int
    idempotency: IdempotencyExtension | None
    delete_horizon_ms: int | None
    """Wall ms from which on compaction may drop the tombstones in here; None: it has not kept any yet."""

    def __init__(
        self,
        batch_bytes: int,
        magic: int,
        header_bytes: int,
        base_offset: int,
        leader_epoch: int,
        append_time_ms: int,
        stamp_crc: int,
        crc: int,
        attributes: int,
        record_count: int,
        last_offset_delta: int,
        base_timestamp_ms: int,
        max_timestamp_ms: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        uncompressed_bytes: int,
        idempotency: IdempotencyExtension | None = None,
        delete_horizon_ms: int | None = None,
    ) -> None:
        self.batch_bytes = batch_bytes
        self.magic = magic
        self.header_bytes = header_bytes
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.append_time_ms = append_time_ms
        self.stamp_crc = stamp_crc
        self.crc = crc
        self.attributes = attributes
        self.record_count = record_count
        self.last_offset_delta = last_offset_delta
        self.base_timestamp_ms = base_timestamp_ms
        self.max_timestamp_ms = max_timestamp_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.uncompressed_bytes = uncompressed_bytes
        self.idempotency = idempotency
        self.delete_horizon_ms = delete_horizon_ms

    def stamped(self, *, base_offset: int, leader_epoch: int, append_time_ms: int) -> "BatchHeader":
        """The same batch where its leader puts it; the checksum of the stamp is still the old one's."""
        return BatchHeader(
            self.batch_bytes,
            self.magic,
            self.header_bytes,
            base_offset,
            leader_epoch,
            append_time_ms,
            self.stamp_crc,
            self.crc,
            self.attributes,
            self.record_count,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.uncompressed_bytes,
            self.idempotency,
            self.delete_horizon_ms,
        )

    @property
    def codec(self) -> Codec:
        """How the payload is compressed."""
        return _CODECS[self.attributes & _CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether records carry their own timestamps or the append time."""
        is_append = self.attributes & _TIMESTAMP_TYPE_BIT
        return TimestampType.APPEND if is_append else TimestampType.CREATE

    @property
    def is_control(self) -> bool:
        """Written by a leader for itself; readers skip it."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Reserved."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_filler(self) -> bool:
        """Holds nothing but the place of records that compaction removed."""
        return (
            not self.record_count
            and self.producer_id == NO_PRODUCER
            and self.idempotency is None
            and not self.attributes & (CONTROL_BIT | _TRANSACTIONAL_BIT)
        )

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive; kept by compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Base offset of the batch that follows."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1 without a producer."""
        if self.producer_id == NO_PRODUCER:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def latest_timestamp_ms(self) -> int:
        """The greatest timestamp that a reader sees: retention and the time index go by it."""
        if self.attributes & _TIMESTAMP_TYPE_BIT:
            return self.append_time_ms
        return self.max_timestamp_ms


def encode_batch(
    columns: RecordColumns,
    *,
    base_timestamp_ms: int,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    producer: ProducerStamp | None = None,
    idempotency: IdempotencyExtension | None = None,
    is_control: bool = False,
) -> bytes:
    """A batch with base offset 0, leader epoch -1 and append time -1; the leader stamps it.

    Raises:
        InvalidRecordError: records that no batch can hold.
    """
    attributes = codec | (timestamp_type << 3) | (CONTROL_BIT if is_control else 0)
    offset_deltas = columns.offset_deltas
    last_offset_delta = offset_deltas[-1] if offset_deltas else len(columns.values) - 1
    return _assemble(
        columns,
        stamp=NO_STAMP,
        attributes=attributes,
        last_offset_delta=max(last_offset_delta, 0),
        base_timestamp_ms=base_timestamp_ms,
        producer=producer,
        extensions=_encode_extensions(idempotency),
    )


def rewrite_batch(
    header: BatchHeader, columns: RecordColumns, *, delete_horizon_ms: int | None = None
) -> bytes:
    """The batch of ``header`` with fewer records, for compaction.

    Stamp, producer, idempotency key and the range of offsets stay; ``columns.offset_deltas`` says which are left.
    """
    attributes = header.attributes & ~_DELETE_HORIZON_BIT
    if delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON_BIT
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
        extensions=_encode_extensions(header.idempotency, delete_horizon_ms),
    )


def encode_filler(
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    append_time_ms: int,
    timestamp_ms: int,
) -> bytes:
    """A stamped batch without records for the offsets of batches that compaction removed.

    ``timestamp_ms`` is the latest of theirs, so that retention by time judges their segment as before.
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
    fields, payload = _describe(
        columns,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        producer=producer,
    )
    return _frame(stamp, _BODY.pack(*fields), extensions, payload)


_Fields = tuple[int, int, int, int, int, int, int, int, int]
"""What ``_BODY`` packs: a header's fields from ``attributes`` to ``uncompressed_bytes``."""


def _describe(
    columns: RecordColumns,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    producer: ProducerStamp | None,
) -> tuple[_Fields, bytes]:
    """What a header says of these records, and the payload."""
    record_count = len(columns.values)
    for column in (columns.offset_deltas, columns.timestamp_deltas, columns.keys, columns.headers):
        assert column is None or len(column) == record_count, (len(column), record_count)
    deltas = columns.timestamp_deltas
    plain = pack_columns(columns)
    if len(plain) > BATCH_BYTES_MAX:
        raise InvalidRecordError(f"{len(plain)} bytes of records do not fit into one batch")
    fields = (
        attributes,
        record_count,
        last_offset_delta,
        base_timestamp_ms,
        base_timestamp_ms + max(deltas) if deltas else base_timestamp_ms,
        NO_PRODUCER if producer is None else producer.producer_id,
        -1 if producer is None else producer.producer_epoch,
        -1 if producer is None else producer.base_sequence,
        len(plain),
    )
    codec = _CODECS[attributes & _CODEC_MASK]
    return fields, plain if codec is Codec.NONE else compress(codec, plain)


def with_idempotency(batch: bytes, idempotency: IdempotencyExtension) -> bytes:
    """The same unstamped batch under an idempotency key; the payload is not touched."""
    header = decode_header(batch)
    body = batch[_BODY_POSITION:HEADER_BYTES]
    payload = memoryview(batch)[header.header_bytes :]
    return _frame(NO_STAMP, body, _encode_extensions(idempotency), payload)


def with_codec(batch: bytes, codec: Codec) -> bytes:
    """The same unstamped batch, checked before, under another compression; its records and all else are as they were.

    Raises:
        CorruptBatchError: the payload does not decompress.
    """
    header = decode_header(batch)
    if header.codec is codec:
        return batch
    payload = memoryview(batch)[header.header_bytes :]
    plain = bytes(decompress(header.codec, payload, header.uncompressed_bytes))
    attributes = _ATTRIBUTES.pack(header.attributes & ~_CODEC_MASK | codec)
    body = attributes + batch[_BODY_POSITION + len(attributes) : HEADER_BYTES]
    extensions = batch[HEADER_BYTES : header.header_bytes]
    return _frame(NO_STAMP, body, extensions, compress(codec, plain))


def with_timestamp_type(batch: bytes, timestamp_type: TimestampType) -> bytes:
    """The batch under the topic's timestamp type; only the attributes and their checksum change."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _BODY_POSITION)
    changed = (attributes & ~_TIMESTAMP_TYPE_BIT) | (timestamp_type << 3)
    if changed == attributes:
        return batch
    covered = _ATTRIBUTES.pack(changed)
    rest = memoryview(batch)[_BODY_POSITION + len(covered) :]
    return b"".join(
        (batch[:_CRC_POSITION], _CRC.pack(crc32c(rest, crc32c(covered))), covered, rest)
    )


def _frame(stamp: Stamp, body: bytes, extensions: bytes, payload: bytes | memoryview) -> bytes:
    header_bytes = HEADER_BYTES + len(extensions)
    frame = _STAMP.pack(header_bytes + len(payload), MAGIC, header_bytes, *stamp)
    covered = body + extensions
    return b"".join(
        (
            frame,
            _CRC.pack(crc32c(frame)),
            _CRC.pack(crc32c(payload, crc32c(covered))),
            covered,
            payload,
        )
    )


def _encode_extensions(
    idempotency: IdempotencyExtension | None, delete_horizon_ms: int | None = None
) -> bytes:
    extensions = b""
    if idempotency is not None:
        assert len(idempotency.key_hash) == 16, idempotency
        assert len(idempotency.body_hash) == 8, idempotency
        value = _IDEMPOTENCY.pack(
            idempotency.key_hash, idempotency.body_hash, idempotency.partition_count
        )
        extensions += _EXTENSION.pack(_IDEMPOTENCY_TYPE, len(value)) + value
    if delete_horizon_ms is not None:
        value = _DELETE_HORIZON.pack(delete_horizon_ms)
        extensions += _EXTENSION.pack(_DELETE_HORIZON_TYPE, len(value)) + value
    return extensions


def stamp_batch(
    batch: Buffer, *, base_offset: int, leader_epoch: int, append_time_ms: int
) -> bytes:
    """The batch's first ``STAMP_BYTES`` under this leader's stamp; the rest, ``batch[31:]``, stays as it is."""
    batch_bytes, magic, header_bytes, *_ = _STAMP.unpack_from(batch)
    frame = _STAMP.pack(batch_bytes, magic, header_bytes, base_offset, leader_epoch, append_time_ms)
    return frame + _CRC.pack(crc32c(frame))


def decode_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at ``position``; the payload need not be in the buffer.

    Raises:
        CorruptBatchError: too few bytes, a wrong ``stamp_crc``, or fields that contradict each other.
    """
    if position + HEADER_BYTES > len(buffer):
        raise CorruptBatchError(
            f"{max(len(buffer) - position, 0)} bytes are too few for the header of a batch"
        )
    header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    stamped = memoryview(buffer)[position : position + _STAMP_CRC_POSITION]
    if crc32c(stamped) != header.stamp_crc:
        raise CorruptBatchError("the checksum of the leader's stamp does not match")
    if header.magic != MAGIC:
        raise CorruptBatchError(f"magic is {header.magic}; this version knows {MAGIC}")
    if not HEADER_BYTES <= header.header_bytes < header.batch_bytes <= BATCH_BYTES_MAX:
        raise CorruptBatchError(
            f"header_bytes={header.header_bytes} and batch_bytes={header.batch_bytes} "
            f"are out of range (79 <= header_bytes < batch_bytes <= {BATCH_BYTES_MAX})"
        )
    _check_counts(header)
    if header.header_bytes == HEADER_BYTES:
        return header
    return _decode_extensions(buffer, position, header)


def _check_counts(header: BatchHeader) -> None:
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatchError(
            f"record_count={header.record_count} and "
            f"last_offset_delta={header.last_offset_delta} contradict each other"
        )
    if header.last_offset_delta < 0:
        raise CorruptBatchError(f"last_offset_delta={header.last_offset_delta} is negative")
    if header.attributes & _CODEC_MASK not in _CODECS:
        raise CorruptBatchError(f"codec {header.attributes & _CODEC_MASK} is unknown")
    if header.uncompressed_bytes > BATCH_BYTES_MAX:
        raise CorruptBatchError(f"uncompressed_bytes={header.uncompressed_bytes} is out of range")


def _decode_extensions(buffer: Buffer, position: int, header: BatchHeader) -> BatchHeader:
    at = position + HEADER_BYTES
    end = position + header.header_bytes
    if end > len(buffer):
        raise CorruptBatchError("too few bytes for the extensions of the batch's header")
    found: dict[int, bytes] = {}
    while at < end:
        if at + _EXTENSION.size > end:
            raise CorruptBatchError("the last extension of the header is cut off")
        kind, length = _EXTENSION.unpack_from(buffer, at)
        at += _EXTENSION.size
        if at + length > end:
            raise CorruptBatchError(f"extension {kind} of the header is cut off")
        if kind in found:
            raise CorruptBatchError(f"extension {kind} of the header is there twice")
        found[kind] = bytes(buffer[at : at + length])
        at += length
    # Unknown types are kept and not understood: later versions may write them.
    value = found.get(_IDEMPOTENCY_TYPE)
    if value is not None:
        if len(value) != _IDEMPOTENCY.size:
            raise CorruptBatchError(
                f"the idempotency extension has {len(value)} bytes instead of 28"
            )
        header.idempotency = IdempotencyExtension(*_IDEMPOTENCY.unpack(value))
    value = found.get(_DELETE_HORIZON_TYPE)
    if value is not None:
        if len(value) != _DELETE_HORIZON.size:
            raise CorruptBatchError(f"the delete horizon has {len(value)} bytes instead of 8")
        header.delete_horizon_ms = _DELETE_HORIZON.unpack(value)[0]
    return header


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of a whole batch whose checksums both hold.

    Raises:
        CorruptBatchError: the bytes are anything else.
    """
    header = decode_header(buffer, position)
    end = position + header.batch_bytes
    if end > len(buffer):
        raise CorruptBatchError(
            f"batch_bytes={header.batch_bytes}, but only {len(buffer) - position} bytes are left"
        )
    if crc32c(memoryview(buffer)[position + _BODY_POSITION : end]) != header.crc:
        raise CorruptBatchError("the checksum of the batch does not match")
    return header


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch; checksums verified.

    Raises:
        CorruptBatchError: at the first byte that does not belong to a whole, unharmed batch.
    """
    position = 0
    while position < len(buffer):
        header = check_batch(buffer, position)
        yield position, header
        position += header.batch_bytes


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """The same without the checksum over the bodies, for bytes that were checked before.

    Raises:
        CorruptBatchError: at the first header that is damaged or batch that is cut off.
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
    """The records of the batch at ``position``, whose header is ``header``.

    Args:
        buffer: holds the whole batch.
        header: what ``decode_header`` or ``check_batch`` made of it.
        position: where in the buffer the batch begins.
        bytes_max: the most bytes that the payload may have once decompressed.

    Raises:
        CorruptBatchError: the payload is larger, is not columns of records, or contradicts the header.
    """
    if header.uncompressed_bytes > bytes_max:
        raise CorruptBatchError(
            f"uncompressed_bytes={header.uncompressed_bytes} is above the bound of {bytes_max}"
        )
    start = position + header.header_bytes
    payload = memoryview(buffer)[start : position + header.batch_bytes]
    plain = decompress(header.codec, payload, header.uncompressed_bytes)
    columns = unpack_columns(plain, header.record_count)
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
    """The records' offsets."""
    base = header.base_offset
    if columns.offset_deltas is None:
        return range(base, base + len(columns.values))
    return [base + delta for delta in columns.offset_deltas]


def timestamps_of(header: BatchHeader, columns: RecordColumns) -> Sequence[int]:
    """The records' timestamps in ms, as readers see them."""
    count = len(columns.values)
    if header.attributes & _TIMESTAMP_TYPE_BIT:
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
    """The records of all batches in the buffer with ``start_offset <= offset < end_offset``; control batches skipped.

    Raises:
        CorruptBatchError: the bytes are not whole, unharmed batches.
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


def validate_client_batch(
    batch: bytes,
    *,
    bytes_max: int,
    now_ms: int,
    timestamp_ahead_ms_max: int = TIMESTAMP_AHEAD_MS_MAX,
    records_max: int = RECORDS_MAX,
    needs_keys: bool = False,
) -> BatchHeader:
    """The header of a batch that a client encoded, once nothing about it needs to be believed any more.

    Args:
        batch: exactly one batch.
        bytes_max: the topic's ``max.message.bytes``; holds for the batch and for its payload once decompressed.
        now_ms: the node's wall clock.
        timestamp_ahead_ms_max: how far above ``now_ms`` a timestamp may be.
        records_max: the most records in a batch.
        needs_keys: the topic is compacted, and a record without a key has no place in it.

    Raises:
        RequestTooLargeError: larger than ``bytes_max``.
        InvalidRecordError: anything else that may not be stored; the message says what to change.
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
    _check_client_timestamps(header, timestamp_deltas, now_ms + timestamp_ahead_ms_max)
    return header


def _is_plain(batch: bytes, header: BatchHeader) -> bool:
    """Whether the records need not be unpacked to be believed."""
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
    header: BatchHeader, deltas: list[int] | None, timestamp_ms_max: int
) -> None:
    base = header.base_timestamp_ms
    least, greatest = (base + min(deltas), base + max(deltas)) if deltas else (base, base)
    if greatest != header.max_timestamp_ms:
        raise InvalidRecordError(
            f"max_timestamp_ms={header.max_timestamp_ms}, but the latest record is at {greatest}"
        )
    if least < 0 or base < 0:
        raise InvalidRecordError(f"timestamp {min(least, base)} is before 1970")
    if greatest > timestamp_ms_max:
        raise InvalidRecordError(
            f"timestamp {greatest} is too far ahead of the node's clock "
            f"(the latest allowed is {timestamp_ms_max})"
        )
