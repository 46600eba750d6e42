"""Any records survive the way through a batch; any bytes at all raise nothing but typed errors."""

from contextlib import suppress
from random import Random
from struct import pack_into

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import check_batch, decode_columns, iterate_batches, records_in
from milena.model.batch.encode import encode_batch, rewrite_batch, stamp_batch
from milena.model.batch.header import (
    HEADER_BYTES,
    STAMP_BYTES,
    IdempotencyExtension,
    ProducerStamp,
    decode_header,
)
from milena.model.codecs import compress, decompress
from milena.model.columns import RecordColumns, are_plain, pack_columns, unpack_columns
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import COLUMN_CODECS, TimestampType

NOW_MS = 1_700_000_000_000

small = st.binary(max_size=20)
maybe = st.none() | small
codecs = st.sampled_from(COLUMN_CODECS)
header_lists = st.lists(st.tuples(st.text(max_size=5), maybe), max_size=3)
producers = st.none() | st.builds(
    ProducerStamp,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 15) - 1),
    st.integers(0, (1 << 31) - 1),
)
keys_of_requests = st.just(()) | st.tuples(
    st.builds(
        IdempotencyExtension,
        st.binary(min_size=16, max_size=16),
        st.binary(min_size=8, max_size=8),
        st.integers(0, (1 << 32) - 1),
    )
)


@st.composite
def record_columns(draw, min_size=0, max_size=12):
    count = draw(st.integers(min_size, max_size))

    def column(items):
        return draw(st.none() | st.lists(items, min_size=count, max_size=count))

    return RecordColumns(
        None,
        column(st.integers(-1000, 1000)),
        column(maybe),
        draw(st.lists(maybe, min_size=count, max_size=count)),
        column(st.none() | header_lists),
    )


@st.composite
def batches(draw, min_size=1):
    return encode_batch(
        draw(record_columns(min_size=min_size)),
        base_timestamp_ms=draw(st.integers(1000, NOW_MS)),
        codec=draw(codecs),
        timestamp_type=draw(st.sampled_from(TimestampType)),
        producer=draw(producers),
        request_keys=draw(keys_of_requests),
    )


@given(
    record_columns(), st.integers(0, NOW_MS), codecs, producers, keys_of_requests, st.integers(0, 9)
)
def test_round_trip(columns, base_timestamp_ms, codec, producer, request_keys, shift):
    batch = encode_batch(
        columns,
        base_timestamp_ms=base_timestamp_ms,
        codec=codec,
        producer=producer,
        request_keys=request_keys,
    )
    buffer = bytes(shift) + batch
    header = check_batch(buffer, shift)
    assert header.batch_bytes == len(batch)
    assert header.request_keys == request_keys
    assert header.record_count == len(columns.values)
    if producer is not None:
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
            producer.producer_id,
            producer.producer_epoch,
            producer.base_sequence,
        )
    assert decode_columns(buffer, header, shift) == columns


@given(
    record_columns(min_size=1), codecs, producers, st.integers(0, 1 << 60), st.integers(0, 1 << 30)
)
def test_what_we_encode_a_node_accepts_and_readers_see(columns, codec, producer, offset, epoch):
    batch = encode_batch(columns, base_timestamp_ms=NOW_MS, codec=codec, producer=producer)
    validate_client_batch(batch, bytes_max=1 << 20, now_ms=NOW_MS)
    stored = (
        stamp_batch(batch, base_offset=offset, leader_epoch=epoch, append_time_ms=NOW_MS)
        + batch[STAMP_BYTES:]
    )
    count = len(columns.values)
    assert list(records_in(stored)) == list(
        zip(
            range(offset, offset + count),
            [NOW_MS + delta for delta in columns.timestamp_deltas or [0] * count],
            columns.keys or [None] * count,
            columns.values,
            columns.headers or [None] * count,
            strict=True,
        )
    )


@given(
    st.lists(record_columns(min_size=1), max_size=5), codecs, st.integers(0, 60), st.integers(0, 60)
)
def test_records_in_is_a_slice_of_all_records(batches, codec, start, end):
    data, base = b"", 0
    for columns in batches:
        batch = encode_batch(columns, base_timestamp_ms=NOW_MS, codec=codec)
        data += stamp_batch(batch, base_offset=base, leader_epoch=0, append_time_ms=0)
        data += batch[STAMP_BYTES:]
        base += len(columns.values)
    every = list(records_in(data))
    assert [record[0] for record in every] == list(range(base))
    assert list(records_in(data, start, end)) == every[start:end]


@given(record_columns(min_size=1), codecs, st.data())
def test_compaction_keeps_the_records_it_was_told_to(columns, codec, data):
    batch = encode_batch(columns, base_timestamp_ms=NOW_MS, codec=codec)
    header = check_batch(batch)
    kept = sorted(data.draw(st.sets(st.integers(0, header.last_offset))))

    def pick(column):
        return None if column is None else [column[offset] for offset in kept]

    left = rewrite_batch(
        header,
        RecordColumns(
            kept,
            pick(columns.timestamp_deltas),
            pick(columns.keys),
            pick(columns.values),
            pick(columns.headers),
        ),
    )
    every = list(records_in(batch))
    assert list(records_in(left)) == [every[offset] for offset in kept]
    assert check_batch(left).next_offset == header.next_offset


@given(batches(), st.data())
def test_a_changed_byte_is_always_found(batch, data):
    position = data.draw(st.integers(0, len(batch) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != batch[position]))
    with pytest.raises(CorruptBatchError):
        check_batch(batch[:position] + bytes((value,)) + batch[position + 1 :])


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_raise_only_typed_errors(data, position):
    for read in (decode_header, check_batch):
        with pytest.raises(CorruptBatchError):
            read(data, position)
    with pytest.raises(InvalidRecordError):
        validate_client_batch(data, bytes_max=1000, now_ms=NOW_MS)
    if data:
        with pytest.raises(CorruptBatchError):
            list(iterate_batches(data))
    assert not data or raises_corrupt(lambda: list(records_in(data)))


def raises_corrupt(call):
    try:
        call()
    except CorruptBatchError:
        return True
    return False


@given(batches(), st.data())
@settings(max_examples=400)
def test_hostile_headers_with_right_checksums_raise_only_typed_errors(batch, data):
    """An attacker computes checksums too: any bytes of the header, any of the payload, both sealed again."""
    hostile = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(4, len(hostile) - 1))
        hostile[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        pack_into(">I", hostile, 0, len(hostile))
    pack_into(">I", hostile, 27, crc32c(hostile[:27]))
    pack_into(">I", hostile, 31, crc32c(hostile[35:]))
    judge(bytes(hostile))


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | small | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=20,
), st.integers(0, 5), codecs)  # fmt: skip
def test_any_msgpack_as_payload_is_refused_or_read_alike_both_ways(value, count, codec):
    payload = msgpack.packb(value)
    results = []
    for limit in (1 << 20, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("milena.model.columns._ONE_CALL_BYTES_MAX", limit)
            try:
                results.append(unpack_columns(payload, count))
            except CorruptBatchError:
                results.append(None)
    assert results[0] == results[1]
    judge(client_batch(payload, count, codec))


def is_plain(payload, count):
    """Whether it is what ``are_plain`` is to find, as told by who unpacks it."""
    try:
        columns = unpack_columns(payload, count)
    except CorruptBatchError:
        return False
    return columns.offset_deltas is columns.timestamp_deltas is columns.headers is None


@given(record_columns(), st.binary(max_size=4), st.binary(max_size=4))
def test_records_without_headers_and_times_need_not_be_unpacked(columns, before, behind):
    payload = pack_columns(columns)
    found = are_plain(
        before + payload + behind, len(before), len(before) + len(payload), len(columns.values)
    )
    assert found == (columns.timestamp_deltas is None and columns.headers is None)


@given(
    st.lists(maybe, max_size=4),
    st.sampled_from([(0, 0), (0, 1), (0, 2), (4, 0), (40, 0)]),
    st.data(),
)
@settings(max_examples=300)
def test_what_need_not_be_unpacked_is_what_unpacks(values, lengths, data):
    """Also with longer forms of lengths than were needed, and with any byte changed."""
    array, binary = lengths
    packed = bytearray(b"\x95\xc0\xc0")
    for items in data.draw(st.sampled_from([(None, values), (values, values)])):
        packed += b"\xc0" if items is None else column(items, array, binary)
    packed += data.draw(st.sampled_from([b"\xc0", b"", b"\xc0\xc0"]))
    for _ in range(data.draw(st.integers(0, 2))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(
            st.sampled_from([0x90, 0x91, 0xC0, 0xC4, 0xC5, 0xC6, 0xDC, 0xDD, 0xFF])
            | st.integers(0, 255)
        )
    payload = bytes(packed)
    count = data.draw(st.sampled_from([len(values), len(values) + 1]))
    assert are_plain(payload, 0, len(payload), count) == is_plain(payload, count)


def column(items, array, binary):
    """A column whose array has a length of so many bytes, and its binaries lengths of 1, 2 or 4."""
    head = {
        0: lambda: bytes([0x90 | len(items)]),
        4: lambda: b"\xdd" + len(items).to_bytes(4, "big"),
        40: lambda: b"\xdc" + len(items).to_bytes(2, "big"),
    }[array]()
    kind = (0xC4, 0xC5, 0xC6)[binary]
    return head + b"".join(
        b"\xc0" if item is None else bytes([kind]) + len(item).to_bytes(1 << binary, "big") + item
        for item in items
    )


@given(st.binary(max_size=60), st.integers(0, 4), codecs)
def test_any_bytes_as_payload_raise_only_typed_errors(payload, count, codec):
    judge(client_batch(payload, count, codec))


@given(st.binary(max_size=100), codecs, st.integers(0, 1000))
def test_any_bytes_decompress_to_the_size_declared_or_not_at_all(stored, codec, size):
    with suppress(CorruptBatchError):
        assert len(decompress(codec, stored, size)) == size


@given(st.binary(max_size=2000), codecs, st.integers(0, 1 << 30))
def test_damaged_frames_decompress_to_the_size_declared_or_not_at_all(plain, codec, seed):
    stored = bytearray(compress(codec, plain))
    rng = Random(seed)
    if stored:
        stored[rng.randrange(len(stored))] ^= 1 << rng.randrange(8)
    with suppress(CorruptBatchError):
        assert len(decompress(codec, bytes(stored), len(plain))) == len(plain)


def client_batch(payload, count, codec):
    batch = bytearray(encode_batch(RecordColumns(None, None, None, [], None), base_timestamp_ms=5))
    batch[HEADER_BYTES:] = compress(codec, payload)
    pack_into(">I", batch, 0, len(batch))
    pack_into(">Hii", batch, 35, int(codec), count, max(count - 1, 0))
    pack_into(">I", batch, 75, len(payload))
    pack_into(">I", batch, 27, crc32c(batch[:27]))
    pack_into(">I", batch, 31, crc32c(batch[35:]))
    return bytes(batch)


def judge(batch):
    """Whatever it is: refused with a typed error, or safe to store and read."""
    try:
        header = validate_client_batch(batch, bytes_max=100_000, now_ms=NOW_MS)
    except (InvalidRecordError, RequestTooLargeError):
        pass
    else:
        assert header.batch_bytes == len(batch)
        assert len(list(records_in(batch, header.base_offset))) == header.record_count
    with suppress(CorruptBatchError):
        for _ in records_in(batch, bytes_max=100_000):
            pass
