"""The record batch: its layout byte by byte, what damage is found, and what clients may not send."""

import gzip
import threading
import zlib
from dataclasses import replace
from struct import pack, pack_into, unpack_from

import lz4.frame
import msgpack
import pytest
import zstandard
from crc32c import crc32c

from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import (
    check_batch,
    decode_columns,
    iterate_batches,
    iterate_headers,
    offsets_of,
    records_in,
    timestamps_of,
)
from milena.model.batch.encode import (
    encode_batch,
    encode_filler,
    rewrite_batch,
    stamp_batch,
    with_codec,
    with_timestamp_type,
)
from milena.model.batch.header import (
    HEADER_BYTES,
    STAMP_BYTES,
    BatchHeader,
    IdempotencyExtension,
    KeyPlace,
    ProducerStamp,
    decode_header,
    shared_key_bytes,
)
from milena.model.batch.timestamps import ANY_TIMESTAMP, TimestampBounds
from milena.model.codecs import compress, decompress
from milena.model.columns import HEADERS_PER_RECORD_MAX, RecordColumns, unpack_columns
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import COLUMN_CODECS, Codec, TimestampType

NOW_MS = 1_700_000_000_000
KEY = IdempotencyExtension(b"k" * 16, b"b" * 8, 6)


def columns(*values, offsets=None, timestamps=None, keys=None, headers=None):
    return RecordColumns(offsets, timestamps, keys, list(values), headers)


def fields_of(header):
    """All that a header says, by name."""
    names = (
        name
        for name in dir(header)
        if not name.startswith("_") and name not in ("stamped", "numbered")
    )
    return {name: getattr(header, name) for name in names}


def batch_of(*values, base_offset=0, epoch=3, append_time_ms=NOW_MS, **options):
    """A stamped batch."""
    options.setdefault("base_timestamp_ms", NOW_MS)
    made = {
        name: options.pop(name)
        for name in ("offsets", "timestamps", "keys", "headers")
        if name in options
    }
    batch = encode_batch(columns(*values, **made), **options)
    stamp = stamp_batch(
        batch, base_offset=base_offset, leader_epoch=epoch, append_time_ms=append_time_ms
    )
    return stamp + batch[STAMP_BYTES:]


def resealed(batch, **fields):
    """The batch with other header fields and checksums that hold all the same: what an attacker sends."""
    positions = {
        "batch_bytes": (">I", 0),
        "magic": (">B", 4),
        "header_bytes": (">H", 5),
        "attributes": (">H", 35),
        "record_count": (">i", 37),
        "last_offset_delta": (">i", 41),
        "base_timestamp_ms": (">q", 45),
        "max_timestamp_ms": (">q", 53),
        "producer_id": (">q", 61),
        "producer_epoch": (">h", 69),
        "base_sequence": (">i", 71),
        "uncompressed_bytes": (">I", 75),
    }
    changed = bytearray(batch)
    for name, value in fields.items():
        layout, position = positions[name]
        pack_into(layout, changed, position, value)
    pack_into(">I", changed, 27, crc32c(changed[:27]))
    pack_into(">I", changed, 31, crc32c(changed[35:]))
    return bytes(changed)


def extended(batch, *extensions):
    """The batch with extensions of its header: (type, value) each."""
    added = b"".join(bytes([kind]) + pack(">H", len(value)) + value for kind, value in extensions)
    grown = batch[:HEADER_BYTES] + added + batch[HEADER_BYTES:]
    return resealed(grown, batch_bytes=len(grown), header_bytes=HEADER_BYTES + len(added))


def _shared_key(key, *places):
    """One of the keys of extension 5."""
    value = key * 16 + b"b" * 8 + pack(">IH", 6, len(places))
    return value + b"".join(pack(">HII", *place) for place in places)


def with_payload(payload, *, count, codec=Codec.NONE, stored=None, **fields):
    """A client's batch around any payload, with every length and checksum right."""
    stored = compress(codec, payload) if stored is None else stored
    batch = encode_batch(columns(), base_timestamp_ms=NOW_MS)[:HEADER_BYTES] + stored
    return resealed(
        batch,
        **{
            "batch_bytes": len(batch),
            "attributes": int(codec),
            "record_count": count,
            "last_offset_delta": count - 1,
            "uncompressed_bytes": len(payload),
            **fields,
        },
    )


def validated(batch, **options):
    return validate_client_batch(batch, **{"bytes_max": 1 << 20, "now_ms": NOW_MS, **options})


def keyed(*keys):
    columns = RecordColumns(None, None, list(keys), [b"v"] * len(keys), None)
    return encode_batch(columns, base_timestamp_ms=NOW_MS)


def test_a_compacted_topic_takes_records_with_keys_alone():
    assert validated(keyed(b"a", b""), needs_keys=True).record_count == 2
    assert validated(keyed(b"a", None)).record_count == 2
    with pytest.raises(InvalidRecordError, match="record 1 has no key, but the topic is compacted"):
        validated(keyed(b"a", None), needs_keys=True)
    with pytest.raises(InvalidRecordError, match="record 0 has no key"):
        validated(batch_of(b"v"), needs_keys=True)


def test_a_rewritten_batch_says_until_when_its_tombstones_stay():
    header = decode_header(keyed(b"a", b"b", b"c"))
    columns = RecordColumns([1], None, [b"b"], [None], None)
    stays = rewrite_batch(header, columns, delete_horizon_ms=NOW_MS + 5)
    found = check_batch(stays)
    assert (found.delete_horizon_ms, found.attributes) == (NOW_MS + 5, 0b1000000)
    assert (found.base_offset, found.last_offset, found.record_count) == (0, 2, 1)
    assert [record[0] for record in records_in(stays)] == [1]
    again = check_batch(rewrite_batch(found, columns))
    assert (again.delete_horizon_ms, again.attributes, again.is_filler) == (None, 0, False)
    for damaged in (stays[:79] + b"\x02\0\7" + stays[82:], stays[:81] + b"\x09" + stays[82:]):
        with pytest.raises(CorruptBatchError, match=r"extension|horizon"):
            decode_header(damaged)


def test_a_filler_stands_for_offsets_and_nothing_else():
    filler = encode_filler(
        base_offset=7, last_offset=90, leader_epoch=3, append_time_ms=5, timestamp_ms=6
    )
    header = check_batch(filler)
    assert header.is_filler
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (7, 91, 3)
    assert (header.append_time_ms, header.latest_timestamp_ms) == (5, 6)
    assert list(records_in(filler)) == []
    assert not decode_header(keyed(b"a")).is_filler


class TestLayout:
    def test_every_field_stands_where_the_table_says(self):
        batch = batch_of(
            b"v0",
            b"v1",
            base_offset=1000,
            epoch=7,
            append_time_ms=NOW_MS + 5,
            timestamps=[0, 9],
            codec=Codec.ZSTD,
            timestamp_type=TimestampType.APPEND,
            producer=ProducerStamp(42, 2, 100),
        )
        payload = msgpack.packb([None, [0, 9], None, [b"v0", b"v1"], None])
        assert unpack_from(">IBHqiq", batch) == (len(batch), 1, 79, 1000, 7, NOW_MS + 5)
        assert unpack_from(">I", batch, 27) == (crc32c(batch[:27]),)
        assert unpack_from(">I", batch, 31) == (crc32c(batch[35:]),)
        assert unpack_from(">Hiiqqqhi", batch, 35) == (
            0b1100,
            2,
            1,
            NOW_MS,
            NOW_MS + 9,
            42,
            2,
            100,
        )
        assert unpack_from(">I", batch, 75) == (len(payload),)
        assert zstandard.decompress(batch[79:]) == payload

    def test_a_fresh_batch_has_no_stamp_and_no_producer(self):
        header = check_batch(encode_batch(columns(b"v"), base_timestamp_ms=5))
        assert (header.base_offset, header.leader_epoch, header.append_time_ms) == (0, -1, -1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert header.last_sequence == -1
        assert not header.request_keys

    def test_the_same_records_make_the_same_bytes(self):
        for codec in COLUMN_CODECS:
            one, two = (
                encode_batch(columns(b"v" * 1000, keys=[b"k"]), base_timestamp_ms=1, codec=codec)
                for _ in range(2)
            )
            assert one == two

    def test_the_idempotency_extension(self):
        batch = batch_of(b"v", request_keys=(KEY,))
        assert batch[79:82] == b"\x01\x00\x1c"
        assert batch[82:110] == b"k" * 16 + b"b" * 8 + b"\0\0\0\x06"
        header = check_batch(batch)
        assert (header.header_bytes, header.request_keys) == (110, (KEY,))
        assert decode_columns(batch, header).values == [b"v"]

    def test_the_extension_of_keys_that_share_a_transaction(self):
        keys = (
            replace(KEY, places=(KeyPlace(0, 1, 2), KeyPlace(3, 7, 1))),
            IdempotencyExtension(b"K" * 16, b"B" * 8, 7, (KeyPlace(0, 3, 1),)),
        )
        batch = batch_of(*[b"v"] * 5, request_keys=keys)
        assert batch[79:82] == b"\x05\x00\x5a"
        places = b"\0\0\0\0\0\x01\0\0\0\x02" + b"\0\x03\0\0\0\x07\0\0\0\x01"
        assert batch[82:132] == b"k" * 16 + b"b" * 8 + b"\0\0\0\x06\0\x02" + places
        header = check_batch(batch)
        assert (header.header_bytes, header.request_keys) == (172, keys)
        assert [key.span(100, 104) for key in keys] == [(101, 102), (103, 103)]
        assert KEY.span(100, 104) == (100, 104)
        assert sum(shared_key_bytes(len(key.places)) for key in keys) == 90
        assert decode_columns(batch, header).values == [b"v"] * 5

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"", "0 shared idempotency keys"),
            (_shared_key(b"k", (0, 0, 1))[:-1], "has no 1 places"),
            (_shared_key(b"k", (0, 0, 1)) + b"x" * 29, "is cut off"),
            (_shared_key(b"k"), "has no 0 places"),
            (_shared_key(b"k", (0, 0, 0)), "not told apart"),
            (_shared_key(b"k", (0, 0, 1), (1, 0, 0)), "not told apart"),
            (_shared_key(b"k", (0, 0, 2)) + _shared_key(b"l", (0, 1, 1)), "not told apart"),
            (_shared_key(b"k", (0, 1, 1)) + _shared_key(b"l", (0, 0, 1)), "not told apart"),
            (_shared_key(b"k", (0, 0, 1)) + _shared_key(b"k", (0, 1, 1)), "cannot be of the batch"),
            (_shared_key(b"k", (0, 2, 2)), "cannot be of the batch"),
            (_shared_key(b"k", (0, 0, (1 << 32) - 1)), "cannot be of the batch"),
        ],
    )
    def test_keys_that_cannot_share_the_batch_are_refused(self, value, message):
        with pytest.raises(CorruptBatchError, match=message):
            check_batch(extended(batch_of(*[b"v"] * 3), (5, value)))

    def test_nor_may_one_be_under_a_key_of_its_own_besides(self):
        own = b"k" * 16 + b"b" * 8 + b"\0\0\0\x06"
        batch = extended(batch_of(b"v"), (1, own), (5, _shared_key(b"l", (0, 0, 1))))
        with pytest.raises(CorruptBatchError, match="a key of its own"):
            check_batch(batch)

    def test_the_timestamp_type_can_be_set_to_the_topics(self):
        made = {
            kind: batch_of(b"v", codec=Codec.ZSTD, timestamp_type=kind) for kind in TimestampType
        }
        for batch in made.values():
            for kind in TimestampType:
                assert with_timestamp_type(batch, kind) == made[kind]

    @pytest.mark.parametrize("codec", COLUMN_CODECS)
    def test_another_codec_changes_nothing_but_the_payload(self, codec):
        records = columns(b"a" * 100, b"b" * 100, timestamps=[1, 2], keys=[b"k", None])
        made = {
            kind: encode_batch(
                records,
                base_timestamp_ms=NOW_MS,
                codec=kind,
                timestamp_type=TimestampType.APPEND,
                producer=ProducerStamp(5, 1, 7),
                request_keys=(KEY,),
            )
            for kind in COLUMN_CODECS
        }
        for batch in made.values():
            again = with_codec(batch, codec)
            header = check_batch(again)
            assert (header.codec, header.producer_id, header.base_sequence) == (codec, 5, 7)
            assert (header.request_keys, header.timestamp_type) == ((KEY,), TimestampType.APPEND)
            assert decode_columns(again, header) == records
        assert with_codec(made[codec], codec) is made[codec]

    def test_offsets_sequences_and_timestamps_of_the_header(self):
        header = check_batch(
            batch_of(
                b"a", b"b", base_offset=10, timestamps=[3, -3], producer=ProducerStamp(1, 0, 5)
            )
        )
        assert (header.last_offset, header.next_offset) == (11, 12)
        assert header.last_sequence == 6
        assert header.max_timestamp_ms == header.latest_timestamp_ms == NOW_MS + 3
        assert (header.codec, header.timestamp_type) == (Codec.NONE, TimestampType.CREATE)
        assert not header.is_control
        assert not header.is_transactional

    def test_sequences_wrap_at_two_to_the_31(self):
        header = check_batch(batch_of(b"a", b"b", producer=ProducerStamp(1, 0, (1 << 31) - 1)))
        assert header.last_sequence == 0

    def test_the_append_time_is_the_timestamp_when_the_type_says_so(self):
        batch = batch_of(
            b"a", b"b", timestamp_type=TimestampType.APPEND, append_time_ms=77, timestamps=[1, 2]
        )
        header = check_batch(batch)
        assert header.latest_timestamp_ms == 77
        assert [record[1] for record in records_in(batch)] == [77, 77]

    def test_the_stamp_replaces_the_first_31_bytes_and_the_rest_holds(self):
        batch = encode_batch(columns(b"v"), base_timestamp_ms=1)
        stamp = stamp_batch(batch, base_offset=5, leader_epoch=2, append_time_ms=9)
        assert len(stamp) == STAMP_BYTES
        header = check_batch(stamp + batch[STAMP_BYTES:])
        assert (header.base_offset, header.leader_epoch, header.append_time_ms) == (5, 2, 9)

    def test_the_header_of_any_kind_of_buffer(self):
        batch = batch_of(b"v", base_offset=4)
        for buffer in (batch, bytearray(batch), memoryview(batch)):
            assert fields_of(check_batch(buffer)) == fields_of(check_batch(batch))
        behind = decode_header(b"xxx" + batch[:HEADER_BYTES], 3)
        assert fields_of(behind) == fields_of(check_batch(batch))


class TestRecords:
    def test_every_column_comes_back(self):
        made = columns(
            b"v0",
            None,
            b"",
            keys=[b"k", None, b""],
            timestamps=[0, -5, 7],
            headers=[None, [("a", b"1"), ("a", None)], []],
        )
        for codec in COLUMN_CODECS:
            batch = encode_batch(made, base_timestamp_ms=100, codec=codec)
            assert decode_columns(batch, check_batch(batch)) == made

    def test_records_in_yields_offset_timestamp_key_value_and_headers(self):
        batch = batch_of(
            b"x", None, base_offset=5, keys=[None, b"k"], headers=[[("h", b"1")], None]
        )
        assert list(records_in(batch)) == [
            (5, NOW_MS, None, b"x", [("h", b"1")]),
            (6, NOW_MS, b"k", None, None),
        ]

    def test_records_in_cuts_the_first_and_last_batch(self):
        data = b"".join(batch_of(b"a", b"b", b"c", base_offset=base) for base in (0, 3, 6))
        assert [r[0] for r in records_in(data)] == list(range(9))
        assert [r[0] for r in records_in(data, 2, 7)] == [2, 3, 4, 5, 6]
        assert [r[0] for r in records_in(data, 4, 5)] == [4]
        assert list(records_in(data, 5, 5)) == []
        assert [r[0] for r in records_in(data, 8)] == [8]

    def test_records_in_skips_control_batches(self):
        data = batch_of(b"x", is_control=True) + batch_of(b"y", base_offset=1)
        assert [r[0] for r in records_in(data)] == [1]

    def test_a_compacted_batch_keeps_its_offsets(self):
        whole = batch_of(
            *(b"%d" % number for number in range(5)),
            base_offset=10,
            producer=ProducerStamp(1, 2, 3),
            request_keys=(KEY,),
        )
        header = check_batch(whole)
        left = rewrite_batch(header, columns(b"1", b"4", offsets=[1, 4]))
        after = check_batch(left)
        for name in ("base_offset", "last_offset", "last_sequence", "leader_epoch", "request_keys"):
            assert getattr(after, name) == getattr(header, name)
        assert [(r[0], r[3]) for r in records_in(left)] == [(11, b"1"), (14, b"4")]
        assert [r[0] for r in records_in(left, 12)] == [14]

    def test_a_batch_may_be_empty_after_compaction(self):
        whole = batch_of(b"a", b"b", base_offset=10)
        for made in (columns(), columns(offsets=[])):
            left = rewrite_batch(check_batch(whole), made)
            assert check_batch(left).next_offset == 12
            assert list(records_in(left)) == []

    def test_offsets_and_timestamps_as_columns(self):
        header = check_batch(batch_of(b"a", b"b", base_offset=7))
        assert list(offsets_of(header, columns(b"a", b"b"))) == [7, 8]
        assert list(offsets_of(header, columns(b"b", offsets=[1]))) == [8]
        assert timestamps_of(header, columns(b"a", b"b", timestamps=[1, 2])) == [
            NOW_MS + 1,
            NOW_MS + 2,
        ]
        assert timestamps_of(header, columns(b"a", b"b")) == [NOW_MS, NOW_MS]

    def test_large_payloads_are_unpacked_in_slices_to_the_same_columns(self):
        count = 20_001
        made = columns(
            *(b"%d" % number for number in range(count)),
            keys=[None if number % 3 else b"k" for number in range(count)],
            timestamps=list(range(count)),
            headers=[[("n", b"v")] if number % 2 else None for number in range(count)],
        )
        batch = encode_batch(made, base_timestamp_ms=1, codec=Codec.LZ4)
        assert decode_columns(batch, check_batch(batch)) == made

    @pytest.mark.parametrize("name", ["\ud800", "a\udfff"])
    def test_a_header_name_that_utf8_cannot_hold_is_refused(self, name):
        with pytest.raises(InvalidRecordError, match="header name"):
            encode_batch(columns(b"v", headers=[[(name, b"")]]), base_timestamp_ms=1)

    def test_too_many_headers_are_refused(self):
        many = [[("h", None)] * (HEADERS_PER_RECORD_MAX + 1)]
        with pytest.raises(InvalidRecordError, match="1024 headers"):
            encode_batch(columns(b"v", headers=many), base_timestamp_ms=1)

    def test_an_integer_that_does_not_fit_is_refused(self):
        with pytest.raises(InvalidRecordError, match="packed"):
            encode_batch(columns(b"v", timestamps=[1 << 70]), base_timestamp_ms=1)

    def test_more_bytes_than_a_batch_can_have_are_refused(self, monkeypatch):
        monkeypatch.setattr("milena.model.batch.encode.BATCH_BYTES_MAX", 100)
        with pytest.raises(InvalidRecordError, match="do not fit into one batch"):
            encode_batch(columns(b"v" * 100), base_timestamp_ms=1)

    def test_columns_of_unequal_length_are_a_fault_of_ours(self):
        with pytest.raises(AssertionError):
            encode_batch(columns(b"v", keys=[]), base_timestamp_ms=1)


class TestDamage:
    def test_any_flipped_bit_is_found(self):
        batch = batch_of(b"value", keys=[b"key"], request_keys=(KEY,))
        for position in range(len(batch)):
            for bit in range(8):
                damaged = bytearray(batch)
                damaged[position] ^= 1 << bit
                with pytest.raises(CorruptBatchError):
                    check_batch(damaged)

    def test_a_flipped_stamp_is_found_without_the_body(self):
        batch = bytearray(batch_of(b"v"))
        batch[18] ^= 1
        with pytest.raises(CorruptBatchError, match="stamp"):
            decode_header(batch[:HEADER_BYTES])

    def test_any_cut_is_found(self):
        batch = batch_of(b"value", request_keys=(KEY,))
        for length in range(len(batch)):
            with pytest.raises(CorruptBatchError):
                check_batch(batch[:length])

    def test_zeros_are_not_a_batch(self):
        with pytest.raises(CorruptBatchError):
            decode_header(bytes(4096))

    def test_a_position_beyond_the_buffer_is_not_a_batch(self):
        with pytest.raises(CorruptBatchError, match="0 bytes are too few"):
            decode_header(b"", 10)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"magic": 2}, "magic is 2"),
            ({"header_bytes": 78}, "header_bytes=78"),
            ({"header_bytes": 60_000}, "header_bytes=60000"),
            ({"batch_bytes": 79}, "batch_bytes=79"),
            ({"batch_bytes": 0xFFFFFFFF}, "out of range"),
            ({"record_count": -1}, "record_count=-1"),
            ({"record_count": 2}, "contradict"),
            ({"record_count": 0, "last_offset_delta": -1}, "negative"),
            ({"last_offset_delta": -5}, "contradict"),
            ({"attributes": 2}, r"codec 2 \(snappy\)"),
            ({"attributes": 7}, "codec 7 is unknown"),
            ({"uncompressed_bytes": 0xFFFFFFFF}, "uncompressed_bytes"),
        ],
    )
    def test_contradictory_fields_are_refused_though_the_checksums_hold(self, fields, message):
        batch = resealed(batch_of(b"v" * 100), **fields)
        with pytest.raises(CorruptBatchError, match=message):
            check_batch(batch)

    @pytest.mark.parametrize(
        ("extensions", "message"),
        [
            (b"\x01", "cut off"),
            (b"\x01\x00\x1c" + b"x" * 27, "cut off"),
            (b"\x01\x00\x02xx", "instead of 28"),
            (b"\x09\x00\x00" * 2, "twice"),
        ],
    )
    def test_broken_extensions_are_refused(self, extensions, message):
        batch = batch_of(b"v")
        grown = batch[:HEADER_BYTES] + extensions + batch[HEADER_BYTES:]
        grown = resealed(grown, batch_bytes=len(grown), header_bytes=HEADER_BYTES + len(extensions))
        with pytest.raises(CorruptBatchError, match=message):
            check_batch(grown)

    def test_unknown_extensions_are_passed_over(self):
        batch = batch_of(b"v")
        grown = batch[:HEADER_BYTES] + b"\x63\x00\x03abc" + batch[HEADER_BYTES:]
        grown = resealed(grown, batch_bytes=len(grown), header_bytes=HEADER_BYTES + 6)
        header = check_batch(grown)
        assert not header.request_keys
        assert decode_columns(grown, header).values == [b"v"]

    def test_iterators_stop_at_the_first_damage(self):
        good = batch_of(b"a")
        flipped = bytearray(good)
        flipped[-1] ^= 1
        for iterate, harm in ((iterate_batches, flipped), (iterate_headers, good[:-1])):
            found = iterate(good + good + bytes(harm))
            assert [next(found)[0], next(found)[0]] == [0, len(good)]
            with pytest.raises(CorruptBatchError):
                next(found)

    def test_iterators_agree_on_whole_batches(self):
        data = batch_of(b"a") + batch_of(b"b", b"c", base_offset=1)
        checked, unchecked = iterate_batches(data), iterate_headers(data)
        for (position, header), (other_position, other) in zip(checked, unchecked, strict=True):
            assert position == other_position
            assert fields_of(header) == fields_of(other)
        assert list(iterate_batches(b"")) == []


PAYLOADS = {
    "nothing": b"",
    "not a list": msgpack.packb(1),
    "four columns": msgpack.packb([None, None, None, [b"v"]]),
    "six columns": msgpack.packb([None, None, None, [b"v"], None, None]),
    "no values": msgpack.packb([None, None, None, None, None]),
    "values not a list": msgpack.packb([None, None, None, b"v", None]),
    "too few values": msgpack.packb([None, None, None, [], None]),
    "too many values": msgpack.packb([None, None, None, [b"v", b"v"], None]),
    "text value": msgpack.packb([None, None, None, ["v"], None]),
    "number value": msgpack.packb([None, None, None, [1], None]),
    "map value": msgpack.packb([None, None, None, [{}], None]),
    "filled map value": msgpack.packb([None, None, None, [{1: 2}], None]),
    "list value": msgpack.packb([None, None, None, [[]], None]),
    "extension value": msgpack.packb([None, None, None, [msgpack.ExtType(5, b"")], None]),
    "timestamp value": msgpack.packb([None, None, None, [msgpack.Timestamp(1)], None]),
    "text key": msgpack.packb([None, None, ["k"], [b"v"], None]),
    "too many keys": msgpack.packb([None, None, [b"k", b"k"], [b"v"], None]),
    "fraction as timestamp": msgpack.packb([None, [1.5], None, [b"v"], None]),
    "truth as timestamp": msgpack.packb([None, [True], None, [b"v"], None]),
    "nil as timestamp": msgpack.packb([None, [None], None, [b"v"], None]),
    "offset below 0": msgpack.packb([[-1], None, None, [b"v"], None]),
    "offset beyond the last": msgpack.packb([[1], None, None, [b"v"], None]),
    "headers not lists": msgpack.packb([None, None, None, [b"v"], [b"h"]]),
    "header not a pair": msgpack.packb([None, None, None, [b"v"], [[b"h"]]]),
    "header of three": msgpack.packb([None, None, None, [b"v"], [[["h", b"", b""]]]]),
    "header of one": msgpack.packb([None, None, None, [b"v"], [[["h"]]]]),
    "header name binary": msgpack.packb([None, None, None, [b"v"], [[[b"h", b""]]]]),
    "header name nil": msgpack.packb([None, None, None, [b"v"], [[[None, b""]]]]),
    "header value text": msgpack.packb([None, None, None, [b"v"], [[["h", "x"]]]]),
    "a pair where headers should be": msgpack.packb([None, None, None, [b"v"], [["h", b""]]]),
    "too deep": msgpack.packb([None, None, None, [b"v"], [[[["h", b""]]]]]),
    "very deep": b"\x91" * 3000 + b"\xc0",
    "header name not UTF-8": b"\x95\xc0\xc0\xc0\x91\xc4\x01v\x91\x91\x92\xa1\xff\xc0",
    "reserved byte": b"\x95\xc0\xc0\xc0\x91\xc1\xc0",
    "cut off": msgpack.packb([None, None, None, [b"v"], None])[:-1],
    "bytes after it": msgpack.packb([None, None, None, [b"v"], None]) + b"\xc0",
    "a huge array": b"\x95\xc0\xc0\xc0\xdd\xff\xff\xff\xff",
    "a huge value": b"\x95\xc0\xc0\xc0\x91\xc6\xff\xff\xff\xff",
    "a huge map": b"\x95\xc0\xc0\xc0\x91\xdf\xff\xff\xff\xff",
    "nested huge arrays": b"\x95\xc0\xc0\xc0" + b"\xdd\x00\x0f\xff\xff" * 300,
}


class TestPayload:
    @pytest.mark.parametrize("name", PAYLOADS)
    def test_what_is_not_columns_is_refused(self, name):
        batch = with_payload(PAYLOADS[name], count=1)
        with pytest.raises(CorruptBatchError):
            decode_columns(batch, check_batch_of_any_size(batch))

    @pytest.mark.parametrize("name", PAYLOADS)
    def test_the_way_for_large_payloads_refuses_the_same(self, name, monkeypatch):
        monkeypatch.setattr("milena.model.columns._ONE_CALL_BYTES_MAX", -1)
        batch = with_payload(PAYLOADS[name], count=1)
        with pytest.raises(CorruptBatchError):
            decode_columns(batch, check_batch_of_any_size(batch))

    @pytest.mark.parametrize("bytes_max", [-1, 1 << 20])
    def test_wrong_types_far_into_a_column_are_found(self, monkeypatch, bytes_max):
        monkeypatch.setattr("milena.model.columns._ONE_CALL_BYTES_MAX", bytes_max)
        values = [b"v"] * 9999 + [1]
        with pytest.raises(CorruptBatchError, match="values holds items of a wrong type: int"):
            unpack_columns(msgpack.packb([None, None, None, values, None]), 10_000)

    @pytest.mark.parametrize("offsets", [[0, 0], [1, 0], [0, 5], [-1, 0]])
    def test_offsets_that_do_not_ascend_are_refused(self, offsets):
        payload = msgpack.packb([offsets, None, None, [b"a", b"b"], None])
        batch = with_payload(payload, count=2, last_offset_delta=4)
        with pytest.raises(CorruptBatchError, match="ascend"):
            decode_columns(batch, check_batch(batch))

    def test_gaps_need_offsets(self):
        payload = msgpack.packb([None, None, None, [b"a", b"b"], None])
        batch = with_payload(payload, count=2, last_offset_delta=4)
        with pytest.raises(CorruptBatchError, match="leave gaps"):
            decode_columns(batch, check_batch(batch))

    def test_a_payload_above_the_readers_bound_is_refused(self):
        batch = batch_of(b"v" * 1000)
        with pytest.raises(CorruptBatchError, match="bound of 1000"):
            decode_columns(batch, check_batch(batch), bytes_max=1000)


def check_batch_of_any_size(batch):
    """The header, also of a batch without payload, which ``check_batch`` refuses before."""
    return check_batch(batch) if len(batch) > HEADER_BYTES else check_batch(batch + b"\0")


class TestCodecs:
    @pytest.mark.parametrize("codec", COLUMN_CODECS)
    @pytest.mark.parametrize("size", [1, 100, 5_000_000])
    def test_round_trip(self, codec, size):
        plain = bytes(range(256)) * (size // 256 + 1)
        assert decompress(codec, compress(codec, plain), len(plain)) == plain

    @pytest.mark.parametrize("codec", COLUMN_CODECS)
    @pytest.mark.parametrize("wrong_by", [-10, -1, 1, 10])
    def test_another_size_than_declared_is_refused(self, codec, wrong_by):
        stored = compress(codec, b"x" * 1000)
        with pytest.raises(CorruptBatchError):
            decompress(codec, stored, 1000 + wrong_by)

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
    @pytest.mark.parametrize("junk", [b"", b"x", b"not a frame at all", bytes(100)])
    def test_what_is_not_a_frame_is_refused(self, codec, junk):
        with pytest.raises(CorruptBatchError):
            decompress(codec, junk, 100)

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
    def test_a_frame_cut_anywhere_is_refused(self, codec):
        plain = b"some plain text " * 40
        stored = compress(codec, plain)
        for length in range(len(stored)):
            with pytest.raises(CorruptBatchError):
                decompress(codec, stored[:length], len(plain))

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
    def test_bytes_or_a_frame_after_the_frame_are_refused(self, codec):
        stored = compress(codec, b"x" * 100)
        for tail in (b"\0", b"tail", stored, compress(codec, b"")):
            with pytest.raises(CorruptBatchError):
                decompress(codec, stored + tail, 100)
            with pytest.raises(CorruptBatchError):
                decompress(codec, stored + tail, 200)

    def test_frames_without_a_declared_size_are_read_up_to_the_expected_one(self):
        plain = b"x" * 100_000
        stored = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
        assert decompress(Codec.ZSTD, stored, len(plain)) == plain
        with pytest.raises(CorruptBatchError):
            decompress(Codec.ZSTD, stored, 1000)

    def test_a_window_above_the_bound_is_refused(self):
        parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
        encoder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        stored = encoder.compress(b"x" * 1000) + encoder.flush()
        with pytest.raises(CorruptBatchError, match="zstd"):
            decompress(Codec.ZSTD, stored, 1000)

    def test_other_encoders_frames_are_read(self):
        plain = b"plain" * 100
        assert decompress(Codec.GZIP, gzip.compress(plain), 500) == plain
        assert decompress(Codec.LZ4, lz4.frame.compress(plain, store_size=False), 500) == plain

    @pytest.mark.parametrize(
        ("codec", "bomb"),
        [
            (Codec.GZIP, zlib.compressobj(9, zlib.DEFLATED, 31)),
            (Codec.LZ4, None),
            (Codec.ZSTD, None),
        ],
    )
    def test_a_bomb_allocates_no_more_than_was_declared(self, codec, bomb, peak_bytes):
        zeros = bytes(64 << 20)
        if bomb is not None:
            stored = bomb.compress(zeros) + bomb.flush()
        elif codec is Codec.ZSTD:
            stored = zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
        else:
            stored = lz4.frame.compress(zeros, store_size=False)
        del zeros
        with peak_bytes() as peak, pytest.raises(CorruptBatchError):
            decompress(codec, stored, 10_000)
        assert peak() < 2 << 20

    def test_threads_have_compressors_of_their_own(self):
        results = []
        plain = b"shared" * 10_000

        def work():
            results.extend(
                decompress(Codec.ZSTD, compress(Codec.ZSTD, plain), len(plain)) == plain
                for _ in range(50)
            )

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 200


class TestMemory:
    """Small payloads that ask for much: what is allocated must stay near what was sent."""

    @pytest.mark.parametrize(
        "payload",
        [
            b"\x95\xc0\xc0\xc0" + b"\xdd\x00\x0f\x42\x40" * 500,
            b"\x95\xc0\xc0\xc0\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000 + b"\xc0",
            b"\x95\xc0\xc0\xc0\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000 + b"\xc0",
            b"\x95\xc0\xc0\xc0\xdd\x00\x0f\x42\x40"
            + b"\xc0" * 1_000_000
            + b"\xdd\x00\x0f\x42\x40"
            + b"\x91\x90" * 500_000,
        ],
        ids=["claims", "empty lists", "empty maps", "headers of empty lists"],
    )
    def test_a_million_claimed_records(self, payload, peak_bytes):
        with peak_bytes() as peak, pytest.raises(CorruptBatchError):
            unpack_columns(payload, 1_000_000)
        assert peak() < 32 << 20

    @pytest.mark.parametrize("item", [b"\x90", b"\x80"])
    def test_a_payload_small_enough_for_one_call(self, item, peak_bytes):
        count = 16_384
        payload = b"\x95\xc0\xc0\xc0\xdd" + count.to_bytes(4, "big") + item * count + b"\xc0"
        with peak_bytes() as peak, pytest.raises(CorruptBatchError):
            unpack_columns(payload, count)
        assert peak() < 4 << 20


class TestClientBatch:
    def test_a_good_batch_passes_with_every_codec(self):
        for codec in COLUMN_CODECS:
            batch = encode_batch(
                columns(b"v", None, keys=[b"k", None], timestamps=[0, -5], headers=[None, []]),
                base_timestamp_ms=NOW_MS,
                codec=codec,
                producer=ProducerStamp(5, 0, 0),
            )
            assert fields_of(validated(batch)) == fields_of(check_batch(batch))
            assert isinstance(validated(batch), BatchHeader)

    def test_a_batch_above_the_bound_is_too_large(self):
        batch = batch_of(b"v" * 1000)
        assert validated(batch, bytes_max=len(batch))
        with pytest.raises(RequestTooLargeError, match=r"max\.message\.bytes=1000"):
            validated(batch, bytes_max=1000)

    def test_a_small_batch_of_a_large_payload_is_too_large(self):
        batch = batch_of(b"v" * 100_000, codec=Codec.ZSTD)
        assert len(batch) < 1000
        with pytest.raises(RequestTooLargeError, match=r"max\.message\.bytes=50000"):
            validated(batch, bytes_max=50_000)

    @pytest.mark.parametrize("tail", [b"\0", b"x" * 79])
    def test_bytes_after_the_batch_are_refused(self, tail):
        with pytest.raises(InvalidRecordError, match="exactly one batch"):
            validated(batch_of(b"v") + tail)

    def test_two_batches_are_refused(self):
        with pytest.raises(InvalidRecordError, match="exactly one batch"):
            validated(batch_of(b"v") * 2)

    @pytest.mark.parametrize("bit", [4, 5, 6, 7, 8, 15])
    def test_reserved_attributes_are_refused(self, bit):
        with pytest.raises(InvalidRecordError, match="transactional, control"):
            validated(resealed(batch_of(b"v"), attributes=1 << bit))

    def test_extensions_are_refused(self):
        with pytest.raises(InvalidRecordError, match="extensions"):
            validated(batch_of(b"v", request_keys=(KEY,)))

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"attributes": 2}, r"codec 2 \(snappy\)"),
            ({"attributes": int(Codec.ZSTD)}, "not exactly one zstd frame"),
            ({"record_count": 0}, "record_count=0 must be between 1 and"),
            ({"record_count": 1}, "last_offset_delta=1 must be record_count - 1"),
            ({"record_count": 3, "last_offset_delta": 2}, "record_count=3"),
            ({"record_count": -1}, "damaged"),
            ({"last_offset_delta": 100}, "must be record_count - 1 = 1"),
            ({"max_timestamp_ms": NOW_MS + 1}, "the latest record is at"),
            ({"base_timestamp_ms": -1, "max_timestamp_ms": -1}, "before 1970"),
            ({"producer_id": 5}, "must all be -1"),
            ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, "must all be -1"),
            ({"base_sequence": 5}, "must all be -1"),
            ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, "must all be -1"),
            ({"uncompressed_bytes": 5}, "uncompressed_bytes=5"),
        ],
    )
    def test_fields_that_lie_are_refused(self, fields, message):
        with pytest.raises(InvalidRecordError, match=message):
            validated(resealed(batch_of(b"a", b"b"), **fields))

    def test_more_records_than_the_bound_are_refused(self):
        with pytest.raises(InvalidRecordError, match="between 1 and 2"):
            validated(batch_of(b"a", b"b", b"c"), records_max=2)

    def test_offsets_with_gaps_are_refused(self):
        payload = msgpack.packb([[0, 1], None, None, [b"a", b"b"], None])
        with pytest.raises(InvalidRecordError, match="offset_deltas must be nil"):
            validated(with_payload(payload, count=2))

    def test_timestamps_have_bounds(self):
        hour = 3_600_000
        assert validated(batch_of(b"v", timestamps=[hour]))
        with pytest.raises(InvalidRecordError, match="too far ahead"):
            validated(batch_of(b"v", timestamps=[hour + 1]))
        wider = TimestampBounds(before_ms=hour, after_ms=2 * hour)
        assert validated(batch_of(b"v", timestamps=[hour + 1]), timestamps=wider)
        assert validated(batch_of(b"a", b"b", timestamps=[0, -hour]), timestamps=wider)
        with pytest.raises(InvalidRecordError, match=r"too far before .*before\.max\.ms=3600000"):
            validated(batch_of(b"a", b"b", timestamps=[0, -hour - 1]), timestamps=wider)
        assert validated(batch_of(b"v", timestamps=[hour + 1]), timestamps=ANY_TIMESTAMP)
        assert validated(batch_of(b"v", timestamps=[-NOW_MS]))
        with pytest.raises(InvalidRecordError, match="before 1970"):
            validated(batch_of(b"a", b"b", timestamps=[0, -NOW_MS - 1]))

    def test_a_damaged_batch_is_refused(self):
        damaged = bytearray(batch_of(b"value"))
        damaged[-1] ^= 1
        with pytest.raises(InvalidRecordError, match="damaged: the checksum"):
            validated(bytes(damaged))

    @pytest.mark.parametrize("name", PAYLOADS)
    def test_what_is_not_columns_is_refused(self, name):
        with pytest.raises(InvalidRecordError):
            validated(with_payload(PAYLOADS[name], count=1))

    @pytest.mark.parametrize("length", [0, 1, 78, 79])
    def test_too_few_bytes_are_refused(self, length):
        with pytest.raises(InvalidRecordError, match="damaged"):
            validated(batch_of(b"v")[:length])
