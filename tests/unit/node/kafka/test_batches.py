"""Batches of the log as Kafka clients get them: all records, and no offset that is left behind."""

import asyncio
import random
from collections.abc import Callable

import pytest

from milena.model.batch import encode
from milena.model.batch.header import Marker, decode_header
from milena.model.batch.v2_checks import wrap_v2
from milena.model.batch.v2_records import RECORDS_AT_ONCE
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptBatchError, RequestTooLargeError
from milena.model.requests import FetchResult
from milena.model.types import Codec, TimestampType
from node.kafka import batches
from tests.support.clusters.runners import settings
from tests.support.disk.kafka_batches import NOW_MS, KafkaRecord, decoded, encoded, numbered
from tests.support.time.virtual_time import virtual

APPENDED_MS = NOW_MS + 5_000


def at(offset: int, batch: bytes) -> bytes:
    """The batch as a leader stored it."""
    stamp = encode.stamp_batch(
        batch, base_offset=offset, leader_epoch=3, append_time_ms=APPENDED_MS
    )
    return stamp + batch[len(stamp) :]


def kafka(*values: str) -> bytes:
    return encoded(numbered(*(KafkaRecord(value.encode()) for value in values)))


def from_kafka(offset: int, *values: str, **options: TimestampType) -> bytes:
    return at(offset, wrap_v2(kafka(*values), bytes_max=10**6, now_ms=NOW_MS, **options)[0])


def from_http(offset: int, *values: str) -> bytes:
    columns = RecordColumns(None, None, None, [value.encode() for value in values], None)
    return at(offset, encode.encode_batch(columns, base_timestamp_ms=NOW_MS))


def marker(offset: int) -> bytes:
    ended = Marker(is_commit=True, first_offset=0, end_offset=offset, extents=())
    return at(
        offset, encode.encode_marker(ended, producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS)
    )


def result(data: bytes, start: int, end: int) -> FetchResult:
    return FetchResult(
        start_offset=start, high_watermark=end, log_start_offset=0, leader_epoch=3, batches=data
    )


def read(found: FetchResult) -> list[tuple[int, int, list[str]]]:
    """First and last offset of each batch, and its records; a control batch has none."""
    data, rows = b"".join(batches.kafka_batches(found).pieces), []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        batch = decoded(data[:size])
        is_control = bool(batch.attributes & 1 << 5)
        values = [] if is_control else [(row.value or b"").decode() for row in batch.records]
        rows.append((batch.base_offset, batch.base_offset + batch.last_offset_delta, values))
        data = data[size:]
    return rows


def test_batches_of_both_interfaces_are_sent_in_order() -> None:
    data = from_kafka(0, "a", "b") + from_http(2, "c") + from_kafka(3, "d")
    assert read(result(data, 0, 4)) == [(0, 1, ["a", "b"]), (2, 2, ["c"]), (3, 3, ["d"])]


def test_what_a_kafka_client_wrote_is_a_view() -> None:
    data = from_kafka(0, "a")
    found = result(data, 0, 1)
    lead, view = batches.kafka_batches(found).pieces
    assert len(lead) == 16
    assert isinstance(view, memoryview)
    assert view.obj is found.batches
    assert bytes(view) == kafka("a")[16:]


def test_a_batch_is_sent_whole_if_the_fetch_starts_within_it() -> None:
    assert read(result(from_kafka(0, "a", "b"), 1, 2)) == [(0, 1, ["a", "b"])]


def test_a_gap_before_records_is_left_out_and_one_at_the_end_is_filled() -> None:
    data = marker(0) + from_http(1, "a") + marker(2) + from_kafka(3, "b") + marker(4) + marker(5)
    assert read(result(data, 0, 6)) == [(1, 1, ["a"]), (3, 3, ["b"]), (4, 5, [])]


def test_batches_without_records_alone_are_one_filler() -> None:
    data = marker(5) + marker(6) + marker(7)
    assert read(result(data, 6, 8)) == [(6, 7, [])]


def test_what_lies_beyond_the_end_is_not_sent() -> None:
    data = from_kafka(0, "a") + marker(1) + from_kafka(2, "b")
    assert read(result(data, 0, 2)) == [(0, 0, ["a"]), (1, 1, [])]
    assert read(result(b"", 4, 4)) == []


def test_the_leaders_time_is_sent_where_the_topic_has_it() -> None:
    stored = from_kafka(0, "a", timestamp_type=TimestampType.APPEND)
    batch = decoded(b"".join(batches.kafka_batches(result(stored, 0, 1)).pieces))
    assert batch.attributes & 1 << 3
    assert batch.max_time == APPENDED_MS


@pytest.mark.parametrize(
    "damaged",
    [
        from_http(2, "b"),
        from_kafka(2, "b"),
        from_kafka(2, "b", timestamp_type=TimestampType.APPEND),
        marker(2),
    ],
    ids=["http", "kafka", "kafka-append-time", "marker"],
)
def test_wherever_a_batch_is_damaged_the_response_ends_before_it(damaged: bytes) -> None:
    for place in range(len(damaged)):
        for bit in range(8):
            flipped = bytearray(damaged)
            flipped[place] ^= 1 << bit
            data = from_http(0, "a") + marker(1) + flipped + from_kafka(3, "c")
            assert read(result(data, 0, 4)) == [(0, 0, ["a"]), (1, 1, [])]
            assert batches.kafka_batches(result(data, 0, 4)).damaged_at == 2
            assert batches.kafka_batches(result(bytes(flipped), 2, 4)) == ([], 2)


def test_whether_a_batch_is_of_a_transaction_is_seen_before_it_is_stored() -> None:
    assert batches.is_transactional(memoryview(encoded([KafkaRecord()], attributes=1 << 4)))
    assert not batches.is_transactional(memoryview(kafka("a")))
    assert not batches.is_transactional(memoryview(b"short"))


@pytest.mark.parametrize(("write", "is_on_thread"), [(from_http, True), (from_kafka, False)])
@virtual
async def test_large_batches_are_encoded_on_a_thread_with_the_same_result(
    write: Callable[..., bytes], is_on_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 0

    async def to_thread(work: Callable[..., object], *arguments: object) -> object:
        nonlocal threads
        threads += 1
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    large = write(0, *("x" * 1_000 for _ in range(400)))
    assert len(large) > batches.THREAD_BYTES
    found = result(large + marker(400), 0, 401)
    assert await batches.sent(found) == batches.kafka_batches(found)
    assert threads == is_on_thread
    assert await batches.sent(result(b"", 0, 0)) == ([], None)


@pytest.mark.parametrize("codec", range(5))
@virtual
async def test_a_batch_is_stored_with_its_codec_or_that_of_the_topic(codec: int) -> None:
    data = memoryview(encoded([KafkaRecord(b"v" * 300_000)], attributes=codec))
    stored, header = await batches.stored(data, settings(), now_ms=NOW_MS)
    assert header.codec == decode_header(stored).codec == codec
    for name, expected in (("lz4", Codec.LZ4), ("snappy", Codec.SNAPPY)):
        wanted = settings(compression_type=name)
        _, converted = await batches.stored(data, wanted, now_ms=NOW_MS)
        assert converted.codec is expected
    with pytest.raises(CorruptBatchError):
        await batches.stored(data[:-1], settings(), now_ms=NOW_MS)


def plain(size: int) -> bytes:
    return encoded([KafkaRecord(random.Random(1).randbytes(size))])


def packed(size: int, codec: Codec = Codec.ZSTD) -> bytes:
    return encoded([KafkaRecord(bytes(size))], attributes=int(codec))


@pytest.mark.parametrize(
    ("data", "is_on_thread"),
    [
        (plain(1_000), False),
        (plain(batches.THREAD_BYTES), True),
        (packed(1_000), False),
        (packed(batches.PLAIN_ON_LOOP_BYTES - 100), False),
        *((packed(batches.PLAIN_ON_LOOP_BYTES, codec), True) for codec in Codec if codec),
    ],
    ids=["small", "large", "packed", "below", *(codec.name for codec in Codec if codec)],
)
@virtual
async def test_large_batches_are_checked_on_a_thread(
    data: bytes, is_on_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = asyncio.to_thread, 0

    async def to_thread(work: Callable[..., object], *arguments: object) -> object:
        nonlocal threads
        threads += 1
        return await real(work, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    batch, _ = await batches.stored(memoryview(data), settings(), now_ms=NOW_MS)
    assert batch == wrap_v2(data, bytes_max=10**6, now_ms=NOW_MS)[0]
    assert threads == is_on_thread


@virtual
async def test_a_batch_that_is_too_large_unpacked_is_refused_whatever_its_size() -> None:
    for size in (batches.PLAIN_ON_LOOP_BYTES, 33 << 20):
        limits = settings(max_message_bytes="300000")
        asking = batches.stored(memoryview(packed(size)), limits, now_ms=NOW_MS)
        if size < 32 << 20:
            assert (await asking)[1].record_count == 1
        else:
            with pytest.raises(RequestTooLargeError, match="once decompressed"):
                await asking


def test_a_check_on_a_thread_pauses_every_few_thousand_records() -> None:
    pauses: list[None] = []
    data = encoded(numbered(*(KafkaRecord(b"v") for _ in range(2 * RECORDS_AT_ONCE + 1))))
    wrap_v2(data, bytes_max=10**6, now_ms=NOW_MS, pause=lambda: pauses.append(None))
    assert len(pauses) == 3
