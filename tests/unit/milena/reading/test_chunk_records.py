"""The records of a chunk, column by column, are the same as one by one."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from milena.errors import UnexpectedAnswerError
from milena.model.batch.decode import records_in
from milena.model.batch.header import decode_header
from milena.model.types import COLUMN_CODECS, Codec, TimestampType
from milena.reading.chunk_records import ChunkRecords, records_of
from milena.records import ConsumedRecord, FetchedChunk
from tests.support.fakes.partition import APPEND_TIME_MS, BASE_TIMESTAMP_MS, stored


def chunk(*batches, start=0, end=1000):
    return FetchedChunk(
        topic="t",
        partition=3,
        data=b"".join(batches),
        start_offset=start,
        end_offset=end,
        next_offset=end,
        high_watermark=end,
        log_start_offset=0,
    )


def test_a_record_has_everything_that_was_stored():
    batch = stored(
        5,
        b"a",
        None,
        keys=[b"k", None],
        headers=[None, [("h", b"1"), ("h", None)]],
        timestamp_deltas=[0, 7],
    )
    common = {"topic": "t", "partition": 3, "timestamp_type": TimestampType.CREATE}
    assert records_of(chunk(batch)) == [
        ConsumedRecord(offset=5, timestamp_ms=BASE_TIMESTAMP_MS, key=b"k", value=b"a", **common),
        ConsumedRecord(
            offset=6,
            timestamp_ms=BASE_TIMESTAMP_MS + 7,
            key=None,
            value=None,
            headers=(("h", b"1"), ("h", None)),
            **common,
        ),
    ]


def test_records_are_as_good_as_those_of_the_constructor():
    (found,) = records_of(chunk(stored(0, b"a")))
    made = ConsumedRecord(
        topic="t",
        partition=3,
        offset=0,
        timestamp_ms=BASE_TIMESTAMP_MS,
        timestamp_type=TimestampType.CREATE,
        key=None,
        value=b"a",
    )
    assert found == made
    assert hash(found) == hash(made)
    assert repr(found) == repr(made)


def test_append_time_is_the_leaders():
    (found,) = records_of(chunk(stored(0, b"a", timestamp_type=TimestampType.APPEND)))
    assert found.timestamp_ms == APPEND_TIME_MS
    assert found.timestamp_type is TimestampType.APPEND


batches = st.lists(
    st.tuples(
        st.lists(st.one_of(st.none(), st.binary(max_size=8)), min_size=1, max_size=6),
        st.sampled_from(COLUMN_CODECS),
        st.integers(0, 3),
        st.booleans(),
        st.randoms(use_true_random=False),
    ),
    min_size=1,
    max_size=6,
)


@given(batches, st.integers(0, 40), st.integers(0, 40))
def test_any_range_of_any_batches_is_what_reading_one_by_one_gives(rows, start, end):
    data, offset = b"", 0
    for values, codec, gap, is_control, chance in rows:
        keep = [d for d in range(len(values)) if chance.random() < 0.7] if gap else None
        data += stored(offset, *values, keep=keep, codec=codec, is_control=is_control)
        offset = decode_header(stored(offset, *values)).next_offset + gap
    found = [
        (r.offset, r.timestamp_ms, r.key, r.value, None)
        for r in records_of(chunk(data, start=start, end=end))
    ]
    assert found == list(records_in(data, start, end))


def rotten(offset):
    """A batch whose checksum holds, and whose payload is no records."""
    batch = bytearray(stored(offset, b"aaaa"))
    batch[-5:] = b"\xc1" * 5
    batch[31:35] = crc32c(bytes(batch[35:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 1000), (1, 8), (3, 4), (4, 6), (9, 9)])
def test_records_that_are_taken_by_and_by_are_the_same(most, start, end):
    given_chunk = chunk(
        stored(0, b"a", b"b", b"c", b"d", keep=[0, 2]),
        stored(4, b"x", is_control=True),
        stored(5, b"e", b"f", b"g", codec=Codec.LZ4),
        start=start,
        end=end,
    )
    records, found = ChunkRecords(given_chunk), []
    while not records.is_done:
        assert records.has_records
        at = records.next_offset
        some = records.take(most)
        assert 1 <= len(some) <= most
        assert some[0].offset == at
        found += some
    assert found == records_of(given_chunk)
    assert (records.next_offset, records.take(most)) == (end, [])


def test_what_comes_before_a_batch_that_cannot_be_read_is_given_first():
    records = ChunkRecords(chunk(stored(0, b"a", b"b"), rotten(2), stored(3, b"c")))
    assert [record.offset for record in records.take(10)] == [0, 1]
    assert (records.is_done, records.has_records, records.next_offset) == (False, False, 2)
    with pytest.raises(UnexpectedAnswerError, match="t-3: the batch at offset 2 cannot be read"):
        records.take(10)


def test_a_payload_that_is_no_records_is_a_typed_error():
    batch = rotten(9)
    with pytest.raises(UnexpectedAnswerError, match="t-3: the batch at offset 9 cannot be read"):
        records_of(chunk(bytes(batch)))
