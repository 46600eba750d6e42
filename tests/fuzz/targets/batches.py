"""Decoders of record batches."""

import crc32c

from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import check_batch, decode_columns, records_in, timestamps_of
from milena.model.batch.encode import column_batch, encode_batch, encode_marker, rewrite_batch
from milena.model.batch.header import (
    HEADER_BYTES,
    Extent,
    IdempotencyExtension,
    KeyPlace,
    Marker,
    ProducerStamp,
    TransactionExtension,
)
from milena.model.batch.header import decode_header as decode_batch_header
from milena.model.batch.timestamps import AFTER_MS
from milena.model.batch.v2 import HEAD_BYTES as V2_HEAD_BYTES
from milena.model.batch.v2 import check_v2, encode, kafka_batch, rewrite_v2
from milena.model.batch.v2_checks import wrap_v2
from milena.model.batch.v2_records import columns_in
from milena.model.codecs import compress, decompress
from milena.model.columns import RecordColumns, pack_columns, unpack_columns
from milena.model.errors import (
    CorruptBatchError,
    MilenaError,
)
from milena.model.types import COLUMN_CODECS, Codec
from tests.fuzz.targets.target import BYTES_MAX, Target
from tests.support.disk.kafka_batches import (
    PACKERS,
    KafkaRecord,
    encoded,
    numbered,
    record_bytes,
    streamed_zstd,
    xerial,
)
from tests.support.disk.log_model import NOW_MS, make_batch, stamped


def _sound_batches() -> list[bytes]:
    columns = RecordColumns(
        None, [0, 1, 2], [b"a", None, b"k"], [b"one", b"two" * 40, None], [None, [("h", b"x")], []]
    )
    made = [encode_batch(columns, base_timestamp_ms=NOW_MS, codec=codec) for codec in COLUMN_CODECS]
    made.append(encode_batch(columns, base_timestamp_ms=NOW_MS, is_control=True))
    made.append(
        make_batch(
            2,
            producer=ProducerStamp(5, 1, 7),
            key=IdempotencyExtension(b"k" * 16, b"b" * 8, 3),
        )
    )
    sharers = [
        IdempotencyExtension(b"k" * 16, b"b" * 8, 3, (KeyPlace(0, 0, 1), KeyPlace(1, 4, 2))),
        IdempotencyExtension(b"l" * 16, b"b" * 8, 3, (KeyPlace(0, 1, 1),)),
    ]
    made.append(
        encode_batch(
            columns,
            base_timestamp_ms=NOW_MS,
            producer=ProducerStamp(5, 1, -1),
            request_keys=sharers,
            transaction=TransactionExtension(1, 2, 30_000),
        )
    )
    extents = (Extent("ab" * 16, 0, 1, 9), Extent("cd" * 16, 3, 7, 9))
    made.append(
        encode_marker(
            Marker(True, 1, 9, extents), producer_id=5, producer_epoch=1, timestamp_ms=NOW_MS
        )
    )
    stored = stamped(made[0], base_offset=9, leader_epoch=2, append_time_ms=NOW_MS)
    return [*made, stored + made[1]]


def _reseal_batch(data: bytes) -> bytes:
    """Both checksums, for a batch that is as long as the bytes."""
    if len(data) < HEADER_BYTES:
        return data
    frame = len(data).to_bytes(4, "big") + data[4:27]
    return b"".join(
        (
            frame,
            crc32c.crc32c(frame).to_bytes(4, "big"),
            crc32c.crc32c(data[35:]).to_bytes(4, "big"),
            data[35:],
        )
    )


def _read_batches(data: bytes) -> object:
    return list(records_in(data, 1, 1 << 40, bytes_max=BYTES_MAX))


def _validate(data: bytes) -> object:
    header = validate_client_batch(data, bytes_max=BYTES_MAX, now_ms=NOW_MS)
    assert not header.is_control
    assert not header.is_transactional
    columns = decode_columns(data, header, bytes_max=BYTES_MAX)
    assert len(columns.values) == header.record_count == header.last_offset_delta + 1
    stored = stamped(data, base_offset=1 << 40, leader_epoch=1, append_time_ms=NOW_MS)
    latest = max(timestamps_of(decode_batch_header(stored), columns))
    assert latest <= NOW_MS + AFTER_MS
    assert len(list(records_in(stored, bytes_max=BYTES_MAX))) == header.record_count
    return rewrite_batch(header, columns)


def _columns(data: bytes) -> object:
    count = int.from_bytes(data[:3], "big")
    return unpack_columns(data[3:], count)


def _column_seeds() -> list[bytes]:
    plain = pack_columns(
        RecordColumns(None, None, [b"k", None], [b"v", None], [None, [("h", b"")]])
    )
    # Large enough to be read in slices.
    large = pack_columns(RecordColumns(None, None, None, [b""] * 17_000, None))
    return [(2).to_bytes(3, "big") + plain, (17_000).to_bytes(3, "big") + large]


def _decompress(data: bytes) -> object:
    codecs = list(Codec)
    codec = codecs[data[0] % len(codecs)] if data else Codec.NONE
    size = int.from_bytes(data[1:4], "big") % BYTES_MAX
    plain = decompress(codec, data[4:], size)
    assert len(plain) == size
    return plain


def _compressed() -> list[bytes]:
    plain = b"some text that repeats, some text that repeats" * 5
    return [
        bytes([number]) + len(plain).to_bytes(3, "big") + compress(codec, plain)
        for number, codec in enumerate(Codec)
    ] + [
        # Bombs: a megabyte of zeros, and a header that owns up to a few bytes only.
        bytes([number]) + (9).to_bytes(3, "big") + compress(codec, bytes(1 << 20))
        for number, codec in enumerate(Codec)
        if codec is not Codec.NONE
    ]


def _sound_kafka_batches() -> list[bytes]:
    rows = numbered(
        KafkaRecord(b"one", b"k", [(b"h", b"x"), ("ä".encode(), None)]),
        KafkaRecord(None, b"k2", time=-300),
        KafkaRecord(b"two" * 40, time=70_000),
    )
    packers = [(int(codec), PACKERS[codec]) for codec in Codec]
    made = [
        encoded(rows, attributes=codec, pack_records=packer)
        for codec, packer in (*packers, (2, xerial), (4, streamed_zstd))
    ]
    return [*made, encoded(rows, attributes=0x10, producer=(5, 1, 7))]


def _reseal_kafka_batch(data: bytes) -> bytes:
    """Length, magic and checksum, for a batch that is as long as the bytes."""
    if len(data) < V2_HEAD_BYTES:
        return data
    length = (len(data) - 12).to_bytes(4, "big")
    crc = crc32c.crc32c(data[21:]).to_bytes(4, "big")
    return b"".join((data[:8], length, data[12:16], b"\2", crc, data[21:]))


def _wrap(data: bytes) -> object:
    is_in_transaction = len(data) > 22 and bool(data[22] & 0x10)
    batch, header = wrap_v2(
        data, bytes_max=BYTES_MAX, now_ms=NOW_MS, is_in_transaction=is_in_transaction
    )
    kept = stamped(batch, base_offset=1 << 40, leader_epoch=1, append_time_ms=NOW_MS)
    header = check_batch(kept)
    head, view = kafka_batch(kept, header)
    assert view == data[16:]
    assert check_v2(head + view).record_count == header.record_count
    columns = decode_columns(kept, header)
    assert len(columns.values) == header.record_count == header.last_offset_delta + 1
    assert header.max_timestamp_ms == max(timestamps_of(header, columns)) <= NOW_MS + AFTER_MS
    assert not check_v2(encode(header, columns)).is_control
    places = range(0, header.record_count, 2)
    less = rewrite_v2(kept, header, places, latest_timestamp_ms=header.max_timestamp_ms)
    assert len(list(records_in(less))) == len(places)
    return list(records_in(column_batch(header, columns)))


def _kafka_records(data: bytes) -> object:
    """Records of a stored batch that no check has seen, of which the first three bytes are the count."""
    count = int.from_bytes(data[:3], "big")
    return columns_in(data[3:], count, max(count - 1, 0))


def _kafka_record_seeds() -> list[bytes]:
    rows = numbered(
        KafkaRecord(b"v", b"k", [(b"h", None)], time=5), KafkaRecord(None), KafkaRecord(b"x" * 200)
    )
    return [(3).to_bytes(3, "big") + b"".join(map(record_bytes, rows))]


BATCHES: tuple[Target, ...] = (
    Target("batch", _read_batches, (CorruptBatchError,), _sound_batches, _reseal_batch),
    Target("client-batch", _validate, (MilenaError,), _sound_batches, _reseal_batch),
    Target("columns", _columns, (CorruptBatchError,), _column_seeds),
    Target("kafka-batch", _wrap, (MilenaError,), _sound_kafka_batches, _reseal_kafka_batch),
    Target("kafka-records", _kafka_records, (CorruptBatchError,), _kafka_record_seeds),
    Target("decompress", _decompress, (CorruptBatchError,), _compressed),
)
