"""Kafka's batches of version 2: what is accepted, what is refused, and that they are stored and read as they came."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import replace
from struct import pack
from typing import Any

import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from milena.model.batch.decode import check_batch, decode_columns, offsets_of, timestamps_of
from milena.model.batch.encode import encode_batch, rewrite_batch, stamp_batch, with_extensions
from milena.model.batch.header import (
    STAMP_BYTES,
    V2_BIT,
    BatchHeader,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.batch.timestamps import ANY_TIMESTAMP
from milena.model.batch.v2 import decode_head, encode, encode_filler, kafka_batch, rewrite_v2
from milena.model.batch.v2_checks import PLAIN_BYTES_MAX, wrap_v2
from milena.model.batch.v2_records import check_records, columns_in, encode_records, keep_records
from milena.model.columns import HEADERS_PER_RECORD_MAX, RecordColumns
from milena.model.errors import CorruptBatchError, InvalidRecordError, RequestTooLargeError
from milena.model.types import Codec, TimestampType
from tests.support.disk.kafka_batches import (
    NOW_MS,
    PACKERS,
    KafkaBatch,
    KafkaRecord,
    batch_bytes,
    decoded,
    encoded,
    number,
    numbered,
    record_bytes,
    streamed_zstd,
    xerial,
)

ROWS = numbered(
    KafkaRecord(b"one", b"k1"),
    KafkaRecord(None, b"k2", [(b"name", b"text"), ("ä".encode(), None), (b"", b"")], time=7),
    KafkaRecord(b"", None, time=-5),
    KafkaRecord(b"x" * 300, b"k" * 70, time=90_000),
)


def wrapped(
    batch: bytes, *, bytes_max: int = 1 << 20, now_ms: int = NOW_MS, **options: Any
) -> tuple[bytes, BatchHeader]:
    made, header = wrap_v2(batch, bytes_max=bytes_max, now_ms=now_ms, **options)
    assert vars_of(check_batch(made)) == vars_of(header)
    return made, header


def vars_of(header: BatchHeader) -> list[object]:
    names = [
        name
        for name in dir(header)
        if not name.startswith("_") and name not in ("stamped", "numbered")
    ]
    return [getattr(header, name) for name in names]


def stored(batch: bytes, **options: Any) -> tuple[bytes, BatchHeader]:
    """The batch as a leader stores it, at offset 1000."""
    made, _ = wrapped(batch, **options)
    stamp = stamp_batch(made, base_offset=1000, leader_epoch=3, append_time_ms=NOW_MS + 5)
    kept = stamp + made[STAMP_BYTES:]
    return kept, check_batch(kept)


def fetched(kept: bytes, header: BatchHeader) -> bytes:
    """The batch as a Kafka client gets it from a span with something before it."""
    head, view = kafka_batch(b"before" + kept + b"after", header, 6)
    return head + view


def columns_of_rows(rows: Sequence[KafkaRecord]) -> list[tuple[object, ...]]:
    return [
        (row.key, row.value, [(name.decode(), value) for name, value in row.headers] or None)
        for row in rows
    ]


def rows_of(columns: RecordColumns) -> list[tuple[object, ...]]:
    count = len(columns.values)
    return list(
        zip(
            columns.keys or [None] * count,
            columns.values,
            columns.headers or [None] * count,
            strict=True,
        )
    )


class TestStored:
    @pytest.mark.parametrize("codec", Codec)
    def test_a_batch_comes_back_with_the_bytes_that_its_producer_checksummed(
        self, codec: Codec
    ) -> None:
        sent = encoded(ROWS, attributes=int(codec), producer=(77, 3, 12))
        kept, header = stored(sent)
        assert header.is_v2
        assert header.codec is codec
        assert (header.record_count, header.last_offset) == (4, 1003)
        assert header.base_timestamp_ms == NOW_MS
        assert header.max_timestamp_ms == NOW_MS + 90_000
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)
        assert header.uncompressed_bytes == len(b"".join(map(record_bytes, ROWS)))
        got = fetched(kept, header)
        assert got[16:] == sent[16:]
        assert decoded(got).base_offset == 1000
        assert decoded(got).leader_epoch == 3

    @pytest.mark.parametrize(
        ("codec", "pack_records"),
        [*((int(codec), PACKERS[codec]) for codec in Codec), (2, xerial), (4, streamed_zstd)],
    )
    def test_its_records_are_read_as_columns(
        self, codec: int, pack_records: Callable[[bytes], bytes]
    ) -> None:
        rows = numbered(*(replace(row, value=row.value and row.value * 900) for row in ROWS))
        kept, header = stored(encoded(rows, attributes=codec, pack_records=pack_records))
        columns = decode_columns(kept, header)
        assert rows_of(columns) == columns_of_rows(rows)
        assert list(offsets_of(header, columns)) == [1000, 1001, 1002, 1003]
        assert list(timestamps_of(header, columns)) == [NOW_MS + row.time for row in rows]

    def test_columns_that_no_record_needs_are_left_out(self) -> None:
        kept, header = stored(encoded(numbered(KafkaRecord(b"a"), KafkaRecord(b"b"))))
        assert decode_columns(kept, header) == RecordColumns(None, None, None, [b"a", b"b"], None)

    def test_nothing_of_it_is_copied_for_a_fetch(self) -> None:
        kept, header = stored(encoded(ROWS))
        buffer = bytearray(kept)
        head, view = kafka_batch(buffer, header)
        assert len(head) == 16
        buffer[-1] ^= 1
        assert view[-1] == buffer[-1]

    def test_records_with_the_leaders_time_are_stored_unchanged_and_stamped_for_readers(
        self,
    ) -> None:
        sent = encoded(ROWS, attributes=4, producer=(9, 0, 5))
        kept, header = stored(sent, timestamp_type=TimestampType.APPEND, timestamps=ANY_TIMESTAMP)
        assert kept[header.header_bytes :] == sent[16:]
        assert header.latest_timestamp_ms == NOW_MS + 5
        columns = decode_columns(kept, header)
        assert list(timestamps_of(header, columns)) == [NOW_MS + 5] * 4
        got = decoded(fetched(kept, header))
        assert got.attributes == 4 | 8
        assert got.max_time == NOW_MS + 5
        assert got.records == ROWS_AS_READ
        assert got.producer == (9, 0, 5)

    @pytest.mark.parametrize("codec", Codec)
    @pytest.mark.parametrize("sent_codec", Codec)
    def test_another_codec_of_the_topic_replaces_the_producers(
        self, sent_codec: Codec, codec: Codec
    ) -> None:
        sent = encoded(ROWS, attributes=int(sent_codec))
        kept, header = stored(sent, codec=codec)
        assert header.codec is codec
        assert decoded(fetched(kept, header)).attributes == codec
        assert decoded(fetched(kept, header)).records == ROWS_AS_READ
        assert rows_of(decode_columns(kept, header)) == columns_of_rows(ROWS)
        if codec is sent_codec:
            assert fetched(kept, header)[16:] == sent[16:]

    def test_the_size_that_counts_is_that_of_the_batch_as_it_was_sent(self) -> None:
        sent = encoded(ROWS)
        assert stored(sent, bytes_max=len(sent))[1].message_bytes == len(sent)
        with pytest.raises(RequestTooLargeError, match=f"{len(sent)} bytes"):
            wrapped(sent, bytes_max=len(sent) - 1)

    @pytest.mark.parametrize("rest", [(-1, -1), (-1, 0), (0, 0), (7, -5)])
    def test_epoch_and_sequence_without_a_producer_id_are_ignored(
        self, rest: tuple[int, int]
    ) -> None:
        sent = encoded(ROWS, producer=(-1, *rest))
        wrapped, header = stored(sent)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert b"".join(kafka_batch(wrapped, header))[16:] == sent[16:]

    def test_the_base_offset_and_epoch_of_a_producer_are_ignored(self) -> None:
        made, _ = wrapped(encoded(ROWS, base_offset=5, leader_epoch=7))
        assert made == wrapped(encoded(ROWS))[0]


ROWS_AS_READ = [replace(row, headers=tuple(row.headers)) for row in ROWS]


def of_records(records: bytes, count: int = 1, **head: Any) -> bytes:
    return batch_bytes(
        KafkaBatch([], count=count, last_offset_delta=count - 1, **head),
        records,
    )


def sized_record(body: bytes) -> bytes:
    return number(len(body)) + body


class TestDamage:
    @pytest.mark.parametrize("codec", Codec)
    def test_every_cut_is_found(self, codec: Codec) -> None:
        sent = encoded(ROWS, attributes=int(codec))
        for size in range(len(sent)):
            with pytest.raises(CorruptBatchError):
                wrapped(sent[:size])

    def test_every_flipped_bit_that_the_checksum_covers_is_found(self) -> None:
        sent = bytearray(encoded(ROWS))
        for place in range(8 * 16, 8 * len(sent)):
            sent[place // 8] ^= 1 << place % 8
            with pytest.raises(CorruptBatchError):
                wrapped(bytes(sent))
            sent[place // 8] ^= 1 << place % 8

    @pytest.mark.parametrize(
        ("records", "match"),
        [
            (b"", "cut off"),
            (number(-1), "length of -1"),
            (number(6) + b"\0\0\0\1\1", "length of 6"),
            (sized_record(b"\0\0\0\1\1\0") + b"x", "1 bytes follow"),
            (sized_record(b"\0\0\0" + number(-2) + b"\1\0"), "of -2 bytes"),
            (sized_record(b"\0\0\0\1" + number(-2) + b"\0"), "of -2 bytes"),
            (sized_record(b"\0\0\0" + number(50) + b"kk\1\0"), "cut off"),
            (sized_record(b"\0\0\0\1" + number(3) + b"vv\0"), "cut off"),
            (sized_record(b"\0\0\0\1\1\0x"), "but its length says"),
            (sized_record(b"\0\0\0\1\1" + number(-1)), "-1 headers"),
            (sized_record(b"\0\0\0\1\1" + number(1) + number(-1) + b"\1"), "name of -1"),
            (sized_record(b"\0\0\0\1\1" + number(1) + number(9) + b"n\1"), "name of 9"),
            (
                sized_record(b"\0\0\0\1\1" + number(1) + number(1) + b"n" + number(-2)),
                "value of -2",
            ),
            (sized_record(b"\0\0\0\1\1" + number(1) + number(1) + b"n" + number(9)), "value of 9"),
            (b"\x80\x80\x80\x80\x80\1", "more than 5"),
            (sized_record(b"\0" + b"\x80" * 10 + b"\1\0\1\1\0"), "more than 10"),
            (sized_record(b"\0" + b"\xff" * 9 + b"\x7f" + b"\0\1\1\0"), "more than 64 bits"),
        ],
    )
    def test_a_record_of_another_form_is_refused(self, records: bytes, match: str) -> None:
        with pytest.raises(CorruptBatchError, match=match):
            wrapped(of_records(records))
        # Stored bytes are not trusted either.
        kept, header = forged(records)
        with pytest.raises(CorruptBatchError):
            decode_columns(kept, header)

    @pytest.mark.parametrize("magic", [0, 1, 3])
    def test_another_magic_is_refused(self, magic: int) -> None:
        with pytest.raises(CorruptBatchError, match=f"magic {magic}"):
            wrapped(encoded(ROWS, magic=magic))

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_an_unknown_codec_is_refused(self, codec: int) -> None:
        with pytest.raises(CorruptBatchError, match=f"codec {codec}"):
            wrapped(encoded(ROWS, attributes=codec, pack_records=bytes))

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_records_that_are_not_of_the_codec_are_refused(self, codec: int) -> None:
        others = [PACKERS[other](b"p" * 50) for other in range(5) if other != codec]
        for packed in (b"", b"garbage" * 9, *others):
            with pytest.raises(CorruptBatchError):
                wrapped(of_records(packed, attributes=codec))

    @pytest.mark.parametrize(
        ("codec", "pack_twice"),
        [
            (1, lambda plain: gzip.compress(plain) * 2),
            (3, lambda plain: lz4.frame.compress(plain) * 2),
            (4, lambda plain: zstandard.ZstdCompressor().compress(plain) * 2),
            (1, lambda plain: gzip.compress(plain) + b"x"),
            (2, lambda plain: xerial(plain) + b"\0\0"),
            (3, lambda plain: lz4.frame.compress(plain) + b"x"),
            (4, lambda plain: streamed_zstd(plain) + b"x"),
        ],
    )
    def test_bytes_after_the_compressed_records_are_refused(
        self, codec: int, pack_twice: Callable[[bytes], bytes]
    ) -> None:
        with pytest.raises(CorruptBatchError):
            wrapped(encoded(ROWS, attributes=codec, pack_records=pack_twice))

    def test_snappy_is_for_kafkas_batches_only(self) -> None:
        batch = bytearray(
            encode_batch(RecordColumns(None, None, None, [b"v"], None), base_timestamp_ms=1)
        )
        batch[36] |= Codec.SNAPPY
        with pytest.raises(CorruptBatchError, match="snappy"):
            decode_header(bytes(batch))


def forged(records: bytes, count: int = 1, last_offset_delta: int = 0) -> tuple[bytes, BatchHeader]:
    """A stored batch around records that no check has seen."""
    inner = of_records(records, count)
    payload = inner[16:]
    body = pack(
        ">HiiqqqhiI", V2_BIT, count, last_offset_delta, NOW_MS, NOW_MS, -1, -1, -1, len(records)
    )
    frame = pack(">IBHqiq", 79 + len(payload), 1, 79, 0, 0, 0)
    kept = frame + pack(">II", crc32c(frame), crc32c(body + payload)) + body + payload
    return kept, check_batch(kept)


class TestBombs:
    def test_records_are_limited_once_they_are_decompressed(self) -> None:
        plain = b"\0" * (PLAIN_BYTES_MAX + 1)
        for codec in (1, 2, 3, 4):
            with pytest.raises(RequestTooLargeError, match="once decompressed"):
                wrapped(of_records(PACKERS[codec](plain), attributes=codec), bytes_max=8 << 20)
        for codec, packed in ((2, xerial(plain)), (4, streamed_zstd(plain))):
            with pytest.raises(RequestTooLargeError, match="once decompressed"):
                wrapped(of_records(packed, attributes=codec), bytes_max=8 << 20)

    def test_the_limit_is_four_times_a_large_message(self) -> None:
        rows = numbered(KafkaRecord(b"\0" * (PLAIN_BYTES_MAX + 1)))
        kept, header = stored(encoded(rows, attributes=4), bytes_max=9 << 20)
        assert decode_columns(kept, header).values == [rows[0].value]
        with pytest.raises(RequestTooLargeError):
            stored(encoded(rows, attributes=4), bytes_max=8 << 20)

    def test_a_declared_size_allocates_nothing(self) -> None:
        claims = b"\xff\xff\xff\xff\x0f" + b"x" * 20
        with pytest.raises(RequestTooLargeError):
            wrapped(of_records(claims, attributes=2))


class TestRefused:
    @pytest.mark.parametrize(
        ("head", "match"),
        [
            ({"count": 0}, "0 records"),
            ({"count": -1}, "-1 records"),
            ({"count": 3}, "delta is 3"),
            ({"last_offset_delta": 4}, "delta is 4"),
            ({"attributes": 0x20}, "attributes=0x0020"),
            ({"attributes": 0x40}, "attributes=0x0040"),
            ({"attributes": 0x80}, "attributes=0x0080"),
            ({"producer": (5, -1, 0)}, "epoch -1"),
            ({"producer": (5, 0, -1)}, "sequence -1"),
            ({"producer": (-2, -1, -1)}, "producer id -2"),
        ],
    )
    def test_a_head_that_contradicts_itself(self, head: dict[str, Any], match: str) -> None:
        with pytest.raises(InvalidRecordError, match=match) as caught:
            wrapped(encoded(ROWS, **head))
        assert not caught.value.is_time

    @pytest.mark.parametrize("offsets", [(1, 2), (0, 2), (0, 0), (1, 0)])
    def test_offsets_with_a_gap(self, offsets: tuple[int, int]) -> None:
        rows = [KafkaRecord(offset=offset) for offset in offsets]
        with pytest.raises(InvalidRecordError, match="no gaps") as caught:
            wrapped(encoded(rows, last_offset_delta=1))
        assert caught.value.records == (0 if offsets[0] else 1,)

    def test_a_transactional_batch_outside_of_a_transaction_and_another_inside(self) -> None:
        sent, other = encoded(ROWS, attributes=0x10, producer=(5, 0, 2)), encoded(ROWS)
        with pytest.raises(InvalidRecordError, match="no open transaction"):
            wrapped(sent)
        with pytest.raises(InvalidRecordError, match="has an open transaction"):
            wrapped(other, is_in_transaction=True)
        made, header = wrapped(sent, is_in_transaction=True)
        assert not header.is_transactional
        marked = with_extensions(made, transaction=TransactionExtension(-1, -1, 9))
        assert check_batch(marked).is_transactional
        assert rows_of(decode_columns(marked, check_batch(marked))) == columns_of_rows(ROWS)

    def test_two_batches(self) -> None:
        with pytest.raises(InvalidRecordError, match="exactly one batch"):
            wrapped(encoded(ROWS) * 2)

    def test_too_many_records(self) -> None:
        with pytest.raises(InvalidRecordError, match="between 1 and 3"):
            wrapped(encoded(ROWS), records_max=3)
        assert wrapped(encoded(ROWS), records_max=4)

    def test_the_first_record_without_a_key_in_a_compacted_topic(self) -> None:
        with pytest.raises(InvalidRecordError, match="record 2 has no key") as caught:
            wrapped(encoded(ROWS), needs_keys=True)
        assert caught.value.records == (2,)
        assert wrapped(encoded(ROWS[:2]), needs_keys=True)

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    @pytest.mark.parametrize("target", [None, Codec.ZSTD])
    def test_records_without_a_time_get_the_nodes(self, codec: Codec, target: Codec | None) -> None:
        """A client says so by -1, as librdkafka does if it is given that time."""
        rows = numbered(*(KafkaRecord(b"v", b"k", time=time) for time in (-1, 5_000, -1, 0)))
        sent = encoded(rows, base_time=0, attributes=int(codec), producer=(5, 1, 2))
        kept, header = stored(sent, codec=target, timestamps=ANY_TIMESTAMP)
        columns = decode_columns(kept, header)
        assert list(timestamps_of(header, columns)) == [NOW_MS, 5_000, NOW_MS, 0]
        assert rows_of(columns) == columns_of_rows(rows)
        assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW_MS, NOW_MS)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 2)
        assert header.codec is (codec if target is None else target)
        sent_on = decoded(fetched(kept, header))
        assert [sent_on.base_time + row.time for row in sent_on.records] == [
            NOW_MS,
            5_000,
            NOW_MS,
            0,
        ]
        assert sent_on.max_time == NOW_MS

    def test_a_time_before_1970(self) -> None:
        with pytest.raises(InvalidRecordError, match="timestamp -2 is before 1970") as caught:
            wrapped(encoded(numbered(KafkaRecord(time=-1), KafkaRecord(time=-2)), base_time=0))
        assert caught.value.is_time

    @pytest.mark.parametrize("name", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
    def test_a_header_name_that_is_no_text(self, name: bytes) -> None:
        rows = numbered(KafkaRecord(), KafkaRecord(headers=[(name, b"v")]))
        with pytest.raises(InvalidRecordError, match="not UTF-8") as caught:
            wrapped(encoded(rows))
        assert caught.value.records == (1,)

    def test_too_many_headers(self) -> None:
        headers = [(b"n", None)] * HEADERS_PER_RECORD_MAX
        assert wrapped(encoded([KafkaRecord(headers=headers)]))
        with pytest.raises(InvalidRecordError, match="1025 headers"):
            wrapped(encoded([KafkaRecord(headers=[*headers, (b"n", None)])]))

    @pytest.mark.parametrize(
        ("rows", "base"),
        [
            ([KafkaRecord(time=3_600_001)], NOW_MS),
            ([KafkaRecord(time=0), KafkaRecord(time=3_600_001, offset=1)], NOW_MS),
            ([KafkaRecord(time=-NOW_MS - 2)], NOW_MS),
            ([KafkaRecord()], -2),
            ([KafkaRecord()], NOW_MS * 1000),
            ([KafkaRecord(time=2**62)], 2**62),
        ],
    )
    def test_a_timestamp_out_of_bounds(self, rows: list[KafkaRecord], base: int) -> None:
        sent = encoded(rows, base_time=base, max_time=0)
        with pytest.raises(InvalidRecordError, match="timestamp") as caught:
            wrapped(sent)
        assert caught.value.is_time

    def test_a_producer_that_sets_the_timestamp_type(self) -> None:
        with pytest.raises(InvalidRecordError, match=r"message\.timestamp\.type") as caught:
            wrapped(encoded(ROWS, attributes=8))
        assert caught.value.is_time

    def test_a_base_timestamp_that_no_record_has_is_no_timestamp(self) -> None:
        _, header = wrapped(encoded([KafkaRecord(time=NOW_MS + 1)], base_time=-1))
        assert header.max_timestamp_ms == NOW_MS


class TestEncode:
    @pytest.mark.parametrize("codec", Codec)
    def test_columns_become_a_batch_at_their_offsets_and_without_a_producer(
        self, codec: Codec
    ) -> None:
        columns = RecordColumns(
            [1, 2, 20_000],
            [0, -3, 2**40],
            [b"k", None, b"l" * 20_000],
            [b"v", None, b""],
            [None, [("nä", b"x"), ("m", None)], []],
        )
        made = encode_batch(columns, base_timestamp_ms=NOW_MS, producer=ProducerStamp(5, 1, 9))
        stamp = stamp_batch(made, base_offset=500, leader_epoch=4, append_time_ms=1)
        header = decode_header(stamp + made[STAMP_BYTES:])
        got = decoded(encode(header, columns, codec=codec))
        assert (got.base_offset, got.leader_epoch, got.attributes) == (500, 4, codec)
        assert (got.base_time, got.max_time) == (NOW_MS, NOW_MS + 2**40)
        assert (got.last_offset_delta, got.producer) == (20_000, (-1, -1, -1))
        assert got.records == [
            KafkaRecord(b"v", b"k", (), 0, 1),
            KafkaRecord(None, None, (("nä".encode(), b"x"), (b"m", None)), -3, 2),
            KafkaRecord(b"", b"l" * 20_000, (), 2**40, 20_000),
        ]

    def test_the_leaders_time_is_that_of_the_batch(self) -> None:
        columns = RecordColumns(None, None, None, [b"v"], None)
        made = encode_batch(columns, base_timestamp_ms=1, timestamp_type=TimestampType.APPEND)
        stamp = stamp_batch(made, base_offset=5, leader_epoch=0, append_time_ms=NOW_MS)
        header = decode_header(stamp + made[STAMP_BYTES:])
        got = decoded(encode(header, columns))
        assert (got.attributes, got.max_time) == (8, NOW_MS)

    def test_offsets_after_the_last_record_stay_covered(self) -> None:
        columns = RecordColumns([0], None, None, [b"v"], None)
        made = encode_batch(columns, base_timestamp_ms=1)
        header = decode_header(made)
        header.last_offset_delta = 9
        assert decoded(encode(header, columns)).last_offset_delta == 9

    def test_a_batch_without_records_is_passed_as_a_gap(self) -> None:
        columns = RecordColumns([], None, None, [], None)
        header = decode_header(encode_batch(columns, base_timestamp_ms=1))
        header.last_offset_delta = 9
        assert encode(header, columns) == encode_filler(
            base_offset=0, last_offset=9, leader_epoch=-1
        )

    def test_a_header_name_that_is_no_text_is_refused(self) -> None:
        columns = RecordColumns(None, None, None, [b"v"], [[("\ud800", None)]])
        with pytest.raises(InvalidRecordError, match="header name"):
            encode(wrapped(encoded(ROWS))[1], columns)


class TestFiller:
    def test_a_gap_is_one_commit_marker_at_its_last_offset(self) -> None:
        got = decoded(encode_filler(base_offset=531, last_offset=630, leader_epoch=2))
        assert (got.base_offset, got.leader_epoch, got.last_offset_delta) == (531, 2, 99)
        assert got.attributes == 0x30
        assert got.records == [KafkaRecord(b"\0" * 6, b"\0\0\0\1", (), 0, 99)]

    def test_a_gap_above_31_bits_takes_several(self) -> None:
        made = encode_filler(base_offset=10, last_offset=10 + 2**31, leader_epoch=2)
        first = decode_head(made)
        second = decode_head(made, first.batch_bytes)
        assert (first.base_offset, first.last_offset_delta) == (10, 2**31 - 1)
        assert (second.base_offset, second.last_offset_delta) == (10 + 2**31, 0)
        assert first.batch_bytes + second.batch_bytes == len(made)

    def test_no_gap_is_nothing(self) -> None:
        assert encode_filler(base_offset=10, last_offset=9, leader_epoch=2) == b""


class TestRewrite:
    @pytest.mark.parametrize("codec", Codec)
    @pytest.mark.parametrize("places", [[0], [3], [0, 1], [1, 2], [0, 2, 3], [0, 1, 2, 3]])
    def test_the_bytes_of_kept_records_stay(self, codec: Codec, places: list[int]) -> None:
        sent = encoded(ROWS, attributes=int(codec) | 0x10, producer=(5, 0, 2))
        kept, header = stored(sent, is_in_transaction=True)
        latest = NOW_MS + max(ROWS[place].time for place in places)
        less = rewrite_v2(kept, header, places, latest_timestamp_ms=latest, delete_horizon_ms=99)
        after = check_batch(less)
        assert after.delete_horizon_ms == 99
        assert (after.base_offset, after.last_offset, after.leader_epoch) == (1000, 1003, 3)
        assert after.record_count == len(places)
        assert after.max_timestamp_ms == latest
        assert (after.producer_id, after.producer_epoch, after.base_sequence) == (5, 0, 2)
        columns = decode_columns(less, after)
        assert list(offsets_of(after, columns)) == [1000 + place for place in places]
        assert rows_of(columns) == columns_of_rows([ROWS[place] for place in places])
        got = decoded(fetched(less, after))
        assert got.attributes == codec
        assert (got.last_offset_delta, got.count, got.max_time) == (3, len(places), latest)
        assert got.records == [ROWS_AS_READ[place] for place in places]

    @pytest.mark.parametrize("codec", Codec)
    def test_a_batch_that_loses_no_record_keeps_its_payload(self, codec: Codec) -> None:
        sent = encoded(ROWS, attributes=int(codec), max_time=NOW_MS + 1)
        kept, header = stored(sent, codec=None)
        same = rewrite_v2(
            kept, header, range(4), latest_timestamp_ms=NOW_MS + 90_000, delete_horizon_ms=5
        )
        after = check_batch(same)
        assert after.delete_horizon_ms == 5
        assert fetched(same, after)[16:] == sent[16:]

    def test_a_batch_without_records_is_one_of_columns(self) -> None:
        _, header = stored(encoded(ROWS, attributes=2, producer=(5, 0, 2)))
        empty = rewrite_batch(header, RecordColumns(None, None, None, [], None))
        after = check_batch(empty)
        assert (after.record_count, after.last_offset, after.producer_id) == (0, 1003, 5)
        assert not after.is_v2
        assert decode_columns(empty, after).values == []


class TestRecords:
    @pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 16383, 16384, 1 << 20])
    def test_lengths_around_every_size_of_a_number(self, size: int) -> None:
        row = KafkaRecord(b"v" * size, b"k" * size, time=size, offset=size)
        columns = RecordColumns([size], [size], [row.key], [row.value], None)
        assert encode_records(columns) == record_bytes(row)
        assert columns_in(record_bytes(row), 1, size + 1) == replace(
            columns, timestamp_deltas=[size] if size else None
        )

    @pytest.mark.parametrize("time", [2**63 - 1, 1 - 2**63, -1, -64, -65])
    def test_timestamp_deltas_of_64_bits(self, time: int) -> None:
        row = KafkaRecord(b"v", time=time)
        assert check_records(record_bytes(row), 1) == (time, time, 0)
        columns = columns_in(record_bytes(row), 1, 0)
        assert columns.timestamp_deltas == [time]
        assert encode_records(columns) == record_bytes(row)

    def test_offsets_must_ascend_up_to_the_last_one(self) -> None:
        for offsets, last in (([0, 0], 5), ([1, 0], 5), ([-1, 0], 5), ([0, 6], 5)):
            rows = [KafkaRecord(offset=offset) for offset in offsets]
            with pytest.raises(CorruptBatchError, match="offset delta"):
                columns_in(b"".join(map(record_bytes, rows)), 2, last)

    def test_records_between_those_that_are_kept_are_cut_out(self) -> None:
        rows = [record_bytes(KafkaRecord(b"%d" % place * place)) for place in range(300)]
        places = [0, 5, 6, 7, 100, 299]
        assert keep_records(b"".join(rows), places) == b"".join(rows[place] for place in places)
