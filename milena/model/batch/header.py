"""The record batch: the unit that is produced, stored, replicated and fetched, with the same bytes on every replica.

Big-endian; the last column says which checksum covers the field.

    offset  size  field
    0       4     batch_bytes         the whole batch, this field included            stamp
    4       1     magic               1                                               stamp
    6       2     header_bytes        where the payload starts, >= 79                 stamp
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

    attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon, 7 Kafka's version 2
    extension 1: idempotency key: key_hash 16, body_hash 8, partition_count 4
    extension 2: delete horizon: wall ms 8; compaction may drop the batch's tombstones from then on; comes with bit 6
    extension 3: transaction: owner's broker id 4 (-1: a client's), its broker epoch 8, timeout ms 4; comes with bit 4
    extension 4: marker: committed 1, first_offset 8, end_offset 8, and for each extent topic id 16, partition 4,
                 base_offset 8, end_offset 8; comes with bits 4 and 5, and without records
    extension 5: idempotency keys of requests that share the transaction, instead of extension 1; for each of them
                 key_hash 16, body_hash 8, partition_count 4, place_count 2, and for each place extent 2, first 4,
                 records 4
    extension 6: Kafka client's numbers: producer_id 8, producer_epoch 2, base_sequence 4; comes with bits 4 and 7. The
                 header's own producer fields then name the transaction, without a sequence

A batch with bit 4 belongs to the transaction (producer_id, producer_epoch). When the transaction is decided, the leader
appends its marker: records of the transaction below ``end_offset`` are committed, all others in this log are aborted.

The client encodes the batch and its ``crc``. The node that accepts the request may change bit 3 of the attributes, the
codec, the producer's fields and the extensions; it then computes ``crc`` again. From there on, ``crc`` holds up to the
last replica: the leader sets only the stamp. The stamp has its own checksum, because a flipped epoch would corrupt the
leader-epoch table. ``milena.model.columns`` describes the payload.

With bit 7, a Kafka client encoded the records. The payload is its record batch of version 2 from byte 16 on, and is
stored as it came (``v2``). ``uncompressed_bytes`` is then the size of the records after decompression. Only these
batches may have the codec snappy (2).

There are three degrees of checking. ``decode_header`` checks the header, ``check_batch`` (``decode``) also the checksum
over the body, and ``validate_client_batch`` (``client_checks``) everything that a client sent. All three raise only
typed errors on hostile bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from milena.model.errors import CorruptBatchError
from milena.model.types import (
    COLUMN_CODECS,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

Buffer = bytes | bytearray | memoryview

MAGIC = 1

HEADER_BYTES = 79

STAMP_BYTES = 31
"""Bytes that ``stamp_batch`` replaces: frame, stamp and its checksum."""

BATCH_BYTES_MAX = 1 << 30
"""Limit of every batch, compressed or not; the limit of a topic is far below."""

SEQUENCE_MASK = (1 << 31) - 1

HEADER = Struct(">IBHqiqIIHiiqqqhiI")
STAMP = Struct(">IBHqiq")
BODY = Struct(">HiiqqqhiI")
CRC = Struct(">I")
ATTRIBUTES = Struct(">H")
_PRODUCER = Struct(">qh")
_PRODUCER_POSITION = 61
_EXTENSION = Struct(">BH")
_IDEMPOTENCY = Struct(">16s8sI")
_DELETE_HORIZON = Struct(">q")

STAMP_CRC_POSITION = STAMP.size
CRC_POSITION = STAMP_BYTES
BODY_POSITION = CRC_POSITION + CRC.size

_IDEMPOTENCY_TYPE = 1
_DELETE_HORIZON_TYPE = 2

_TRANSACTION = Struct(">iqi")
_MARKER = Struct(">?qq")
_EXTENT = Struct(">16sIqq")

_SHARED_KEY = Struct(">16s8sIH")
_KEY_PLACE = Struct(">HII")

_CLIENT = Struct(">qhi")

_TRANSACTION_TYPE = 3
_MARKER_TYPE = 4
_SHARED_KEYS_TYPE = 5
_CLIENT_TYPE = 6

CODEC_MASK = 0b111
TIMESTAMP_TYPE_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
"""Attribute bit of batches that a leader writes for itself; readers skip them."""
DELETE_HORIZON_BIT = 1 << 6
V2_BIT = 1 << 7
"""Attribute bit of batches whose payload is a Kafka batch of version 2."""

V2_LEAD_BYTES = 16
"""Bytes before the magic of a Kafka batch: base offset, length, leader epoch. They are not stored."""

CODECS = {int(codec): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The writer of a batch, for deduplication: id and epoch fence it, ``base_sequence`` is its first record's."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class KeyPlace(NamedTuple):
    """Records of one request in a transaction that several share.

    ``extent``: which of the transaction's extents has them. ``first``: how many records of other requests precede them.
    """

    extent: int
    first: int
    records: int


@dataclass(frozen=True, slots=True)
class IdempotencyExtension:
    """The HTTP idempotency key of a request with records in the batch.

    ``key_hash`` has 16 bytes, ``body_hash`` 8. ``partition_count`` is the topic's when the key was first used.
    ``places`` are the places of all its records, those in this batch first. If empty, no other request shares the
    batch or its transaction.
    """

    key_hash: bytes
    body_hash: bytes
    partition_count: int
    places: tuple[KeyPlace, ...] = ()

    def span(self, base_offset: int, last_offset: int) -> tuple[int, int]:
        """Return the offsets of its records in a batch with these offsets; all inclusive."""
        if not self.places:
            return base_offset, last_offset
        first = base_offset + self.places[0].first
        return first, first + self.places[0].records - 1


@dataclass(frozen=True, slots=True)
class TransactionExtension:
    """The fields by which a leader can end a transaction that nothing else ends.

    ``owner`` and ``owner_epoch`` are the id and epoch of the broker that will commit it; the transaction ends with that
    broker epoch. -1: a client will commit it. ``timeout_ms`` counts from the transaction's first batch in a log.
    """

    owner: int
    owner_epoch: int
    timeout_ms: int


class Extent(NamedTuple):
    """The range that a transaction wrote in one partition, from ``base_offset`` to ``end_offset`` (exclusive)."""

    topic_id: str
    partition: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction in one log.

    ``first_offset`` is that of its first batch in this log. Its records below ``end_offset`` are committed; an aborted
    transaction has none. ``extents`` are all that it wrote, in every partition. They are present in a log where its
    idempotency key is looked up.
    """

    is_commit: bool
    first_offset: int
    end_offset: int
    extents: tuple[Extent, ...] = ()


class Stamp(NamedTuple):
    """The leader's part of a header: the batch's offset, leader epoch and append time (wall ms)."""

    base_offset: int
    leader_epoch: int
    append_time_ms: int


NO_STAMP = Stamp(0, NO_EPOCH, NO_TIMESTAMP)
"""The stamp of a batch that no leader has appended yet."""


HeaderFields = tuple[
    int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int
]  # fmt: skip
"""A header's fields in the order of the table above, as ``HEADER`` packs them."""


class BatchHeader:
    """A batch's header; the table above describes the fields.

    ``delete_horizon_ms`` is the wall clock from which compaction may drop the batch's tombstones; None: compaction has
    not kept any yet. ``request_keys`` are the idempotency keys of its records. ``transaction`` is set for a batch of a
    transaction, and is a ``Marker`` for its end. ``client`` are the numbers by which a Kafka client's batch in a
    transaction is recognised.
    """

    # Every path makes one header per batch. Code that a dataclass generates stays interpreted when this module is
    # compiled, at twice the cost. A tuple costs less to pass there than 17 arguments, which would be packed into a
    # tuple first.
    def __init__(
        self,
        fields: HeaderFields,
        request_keys: tuple[IdempotencyExtension, ...] = (),
        delete_horizon_ms: int | None = None,
        transaction: TransactionExtension | Marker | None = None,
        client: ProducerStamp | None = None,
    ) -> None:
        (
            self.batch_bytes,
            self.magic,
            self.header_bytes,
            self.base_offset,
            self.leader_epoch,
            self.append_time_ms,
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
        ) = fields
        self.request_keys = request_keys
        self.delete_horizon_ms = delete_horizon_ms
        self.transaction = transaction
        self.client = client

    def stamped(self, *, base_offset: int, leader_epoch: int, append_time_ms: int) -> "BatchHeader":
        """Return the header with the leader's fields; ``stamp_crc`` is still that of the old stamp."""
        fields = (
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
        )
        return BatchHeader(
            fields, self.request_keys, self.delete_horizon_ms, self.transaction, self.client
        )

    def numbered(self) -> "BatchHeader":
        """Return the header with the producer fields by which a retry of the batch is recognised.

        This is the header itself, except for a Kafka client's batch in a transaction: the result then has the client's
        numbers and is in no transaction.
        """
        client = self.client
        if client is None:
            return self
        header = self.stamped(
            base_offset=self.base_offset,
            leader_epoch=self.leader_epoch,
            append_time_ms=self.append_time_ms,
        )
        header.attributes &= ~TRANSACTIONAL_BIT
        header.producer_id, header.producer_epoch = client.producer_id, client.producer_epoch
        header.base_sequence = client.base_sequence
        header.transaction = header.client = None
        return header

    @property
    def codec(self) -> Codec:
        """Compression of the payload."""
        return CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether records carry their own timestamps or the append time."""
        is_append = self.attributes & TIMESTAMP_TYPE_BIT
        return TimestampType.APPEND if is_append else TimestampType.CREATE

    @property
    def is_control(self) -> bool:
        """Whether a leader wrote the batch for itself; readers skip it."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_v2(self) -> bool:
        """Whether the payload is a Kafka batch of version 2, without its first 16 bytes."""
        return bool(self.attributes & V2_BIT)

    @property
    def message_bytes(self) -> int:
        """The size that the topic's ``max.message.bytes`` bounds: of the batch as its client sent it."""
        if self.attributes & V2_BIT:
            return self.batch_bytes - self.header_bytes + V2_LEAD_BYTES
        return self.batch_bytes

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction, or its marker."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def marker(self) -> Marker | None:
        """The transaction's end, if the batch is a marker."""
        transaction = self.transaction
        return transaction if isinstance(transaction, Marker) else None

    @property
    def is_filler(self) -> bool:
        """Whether the batch only covers the offsets of records that compaction removed."""
        return (
            not self.record_count
            and self.producer_id == NO_PRODUCER
            and not self.request_keys
            and not self.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)
        )

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive; kept by compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Base offset of the next batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1 without a producer."""
        if self.producer_id == NO_PRODUCER:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def latest_timestamp_ms(self) -> int:
        """The highest timestamp that a reader sees; retention and the time index use it."""
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return self.append_time_ms
        return self.max_timestamp_ms


def producer_in(batch: Buffer) -> tuple[int, int] | None:
    """Return the producer id and epoch of a batch that is not checked yet; None if it has none."""
    if len(batch) < HEADER_BYTES:
        return None
    producer_id, producer_epoch = _PRODUCER.unpack_from(batch, _PRODUCER_POSITION)
    return (producer_id, producer_epoch) if producer_id >= 0 else None


def decode_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header of the batch at ``position``; the buffer may lack the payload.

    Raises:
        CorruptBatchError: too few bytes, a wrong ``stamp_crc``, or fields that contradict each other.
    """
    if position + HEADER_BYTES > len(buffer):
        raise CorruptBatchError(
            f"{max(len(buffer) - position, 0)} bytes are too few for the header of a batch"
        )
    fields: HeaderFields = HEADER.unpack_from(buffer, position)
    header = BatchHeader(fields)
    stamped = memoryview(buffer)[position : position + STAMP_CRC_POSITION]
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
    if header.attributes & CODEC_MASK not in CODECS:
        raise CorruptBatchError(f"codec {header.attributes & CODEC_MASK} is unknown")
    if header.codec not in COLUMN_CODECS and not header.is_v2:
        raise CorruptBatchError(
            f"codec {header.codec} ({header.codec.name.lower()}) is in batches of Kafka's version 2 only"
        )
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
    # Unknown types are allowed, because later versions may write them.
    header.request_keys = _decode_request_keys(header, found)
    value = found.get(_DELETE_HORIZON_TYPE)
    if value is not None:
        if len(value) != _DELETE_HORIZON.size:
            raise CorruptBatchError(f"the delete horizon has {len(value)} bytes instead of 8")
        header.delete_horizon_ms = _DELETE_HORIZON.unpack(value)[0]
    header.transaction = _decode_transaction(header, found)
    value = found.get(_CLIENT_TYPE)
    if value is not None:
        header.client = _decode_client(header, value)
    return header


def _decode_client(header: BatchHeader, value: bytes) -> ProducerStamp:
    if len(value) != _CLIENT.size:
        raise CorruptBatchError(f"the client extension has {len(value)} bytes instead of 14")
    if not header.is_v2 or not header.is_transactional or header.is_control:
        raise CorruptBatchError(
            "a client's numbers in a batch that no Kafka client wrote in a transaction"
        )
    client = ProducerStamp(*_CLIENT.unpack(value))
    if min(client.producer_id, client.producer_epoch, client.base_sequence) < 0:
        raise CorruptBatchError(f"a client cannot have numbered its records as {client}")
    return client


def _decode_request_keys(
    header: BatchHeader, found: dict[int, bytes]
) -> tuple[IdempotencyExtension, ...]:
    value, shared = found.get(_IDEMPOTENCY_TYPE), found.get(_SHARED_KEYS_TYPE)
    if value is None:
        return () if shared is None else _decode_shared_keys(shared, header.last_offset_delta + 1)
    if shared is not None:
        raise CorruptBatchError("the batch is under a key of its own and shares others")
    if len(value) != _IDEMPOTENCY.size:
        raise CorruptBatchError(f"the idempotency extension has {len(value)} bytes instead of 28")
    return (IdempotencyExtension(*_IDEMPOTENCY.unpack(value)),)


def _decode_shared_keys(value: bytes, record_count: int) -> tuple[IdempotencyExtension, ...]:
    """Decode the keys of a batch that had ``record_count`` records; each request's records follow those before."""
    keys: list[IdempotencyExtension] = []
    at = end = 0
    while at < len(value):
        if at + _SHARED_KEY.size > len(value):
            raise CorruptBatchError("the last of the shared idempotency keys is cut off")
        key_hash, body_hash, partition_count, place_count = _SHARED_KEY.unpack_from(value, at)
        at += _SHARED_KEY.size
        places_end = at + place_count * _KEY_PLACE.size
        if not place_count or places_end > len(value):
            raise CorruptBatchError(f"a shared idempotency key has no {place_count} places")
        places = tuple(
            KeyPlace(extent, first, records)
            for extent, first, records in _KEY_PLACE.iter_unpack(value[at:places_end])
        )
        at, home = places_end, places[0]
        if not all(place.records for place in places) or home.first < end:
            raise CorruptBatchError("the records of shared idempotency keys are not told apart")
        end = home.first + home.records
        keys.append(IdempotencyExtension(key_hash, body_hash, partition_count, places))
    if not keys or end > record_count or len({key.key_hash for key in keys}) < len(keys):
        raise CorruptBatchError(f"{len(keys)} shared idempotency keys cannot be of the batch")
    return tuple(keys)


def _decode_transaction(
    header: BatchHeader, found: dict[int, bytes]
) -> TransactionExtension | Marker | None:
    value = found.get(_MARKER_TYPE)
    if value is not None:
        if not (header.is_control and header.is_transactional) or header.record_count:
            raise CorruptBatchError("the marker of a transaction is not a control batch")
        return _decode_marker(value)
    value = found.get(_TRANSACTION_TYPE)
    if value is None:
        return None
    if not header.is_transactional or header.is_control:
        raise CorruptBatchError("a transaction's extension in a batch that belongs to none")
    if len(value) != _TRANSACTION.size:
        raise CorruptBatchError(f"the transaction extension has {len(value)} bytes instead of 16")
    return TransactionExtension(*_TRANSACTION.unpack(value))


def _decode_marker(value: bytes) -> Marker:
    size = len(value) - _MARKER.size
    if size < 0 or size % _EXTENT.size:
        raise CorruptBatchError(f"the marker of a transaction has {len(value)} bytes")
    is_commit, first_offset, end_offset = _MARKER.unpack_from(value)
    extents = tuple(
        Extent(topic_id.hex(), partition, base_offset, end)
        for topic_id, partition, base_offset, end in _EXTENT.iter_unpack(value[_MARKER.size :])
    )
    return Marker(is_commit, first_offset, end_offset, extents)


def encode_extensions(
    request_keys: Sequence[IdempotencyExtension],
    delete_horizon_ms: int | None = None,
    transaction: TransactionExtension | Marker | None = None,
    client: ProducerStamp | None = None,
) -> bytes:
    """Encode the bytes between a header's fields and the payload."""
    extensions = b""
    if request_keys:
        extensions += _encode_request_keys(request_keys)
    if delete_horizon_ms is not None:
        value = _DELETE_HORIZON.pack(delete_horizon_ms)
        extensions += _EXTENSION.pack(_DELETE_HORIZON_TYPE, len(value)) + value
    if isinstance(transaction, TransactionExtension):
        value = _TRANSACTION.pack(
            transaction.owner, transaction.owner_epoch, transaction.timeout_ms
        )
        extensions += _EXTENSION.pack(_TRANSACTION_TYPE, len(value)) + value
    elif transaction is not None:
        value = _MARKER.pack(
            transaction.is_commit, transaction.first_offset, transaction.end_offset
        ) + b"".join(
            _EXTENT.pack(
                bytes.fromhex(extent.topic_id),
                extent.partition,
                extent.base_offset,
                extent.end_offset,
            )
            for extent in transaction.extents
        )
        extensions += _EXTENSION.pack(_MARKER_TYPE, len(value)) + value
    if client is not None:
        value = _CLIENT.pack(client.producer_id, client.producer_epoch, client.base_sequence)
        extensions += _EXTENSION.pack(_CLIENT_TYPE, len(value)) + value
    return extensions


def _encode_request_keys(keys: Sequence[IdempotencyExtension]) -> bytes:
    for key in keys:
        assert len(key.key_hash) == 16, key
        assert len(key.body_hash) == 8, key
    if not keys[0].places:
        (key,) = keys
        value = _IDEMPOTENCY.pack(key.key_hash, key.body_hash, key.partition_count)
        return _EXTENSION.pack(_IDEMPOTENCY_TYPE, len(value)) + value
    value = b"".join(
        _SHARED_KEY.pack(key.key_hash, key.body_hash, key.partition_count, len(key.places))
        + b"".join(_KEY_PLACE.pack(*place) for place in key.places)
        for key in keys
    )
    return _EXTENSION.pack(_SHARED_KEYS_TYPE, len(value)) + value


def shared_key_bytes(place_count: int) -> int:
    """Return the header bytes of a request's key that shares its transaction and has this many places."""
    return _SHARED_KEY.size + place_count * _KEY_PLACE.size
