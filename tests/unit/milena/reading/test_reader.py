"""The reader against a partition on paper: order, prefetch, patience, and every way to end."""

import asyncio
import logging

import pytest

from milena.errors import (
    ClientClosedError,
    NotNowError,
    OutOfRangeError,
    ServerFailedError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
    UnreadableOffsetError,
)
from milena.reading.cursor import OnOutOfRange, ReadPlan
from milena.reading.patience import BAD_ANSWERS_MAX
from milena.reading.reader import PartitionReader
from milena.records import LastN, StartAt
from tests.support.fakes.partition import Answer, FakePartition, InstantClock, no_leader, stored

PATIENCE_MS = 5_000


@pytest.fixture
def clock():
    return InstantClock()


@pytest.fixture
def partition():
    return FakePartition(*(stored(n * 2, b"%d" % (n * 2), b"%d" % (n * 2 + 1)) for n in range(5)))


@pytest.fixture
def read(partition, clock):
    def make(*, prefetch_chunks=4, **plan):
        return PartitionReader(
            ReadPlan(topic="t", partition=0, **plan),
            transport=partition,
            metadata=partition,
            clock=clock,
            prefetch_chunks=prefetch_chunks,
            patience_ms=PATIENCE_MS,
        )

    return make


async def offsets(reader, count=None):
    found = []
    if count == 0:
        return found
    async for record in reader:
        assert record.value == b"%d" % record.offset
        found.append(record.offset)
        if len(found) == count:
            break
    return found


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, range(10)),
        ({"start": 3}, range(3, 10)),
        ({"start": 10}, ()),
        ({"start": 3, "end": 8}, range(3, 8)),
        ({"start": 8, "end": 3}, ()),
        ({"start": LastN(3)}, range(7, 10)),
        ({"start": StartAt.LATEST}, ()),
        ({"end": 99}, range(10)),
    ],
)
async def test_a_reader_gives_each_record_of_its_range_once(read, plan, expected):
    async with read(**plan) as reader:
        assert await offsets(reader) == list(expected)
        assert await offsets(reader) == [], "the end is there for whoever asks again"


@pytest.mark.parametrize("is_following", [False, True])
@pytest.mark.parametrize("start", [3, StartAt.EARLIEST])
async def test_only_a_reader_that_follows_waits_at_the_node(read, partition, start, is_following):
    async with read(start=start, is_following=is_following) as reader:
        assert len(await offsets(reader, 2)) == 2
    assert {wait_ms > 0 for _, wait_ms in partition.requests} == {is_following}


async def test_the_end_is_what_it_was_at_the_start(read, partition):
    async with read() as reader:
        partition.append(b"10")
        assert await offsets(reader) == list(range(10))
        assert reader.end_offset == 10


async def test_batches_and_chunks_cover_the_same_range(read):
    async with read(start=1, end=8) as reader:
        batches = [[r.offset for r in records] async for records in reader.batches()]
    assert batches == [[1], [2, 3], [4, 5], [6, 7]]
    async with read(start=1, end=8) as reader:
        chunks = [(c.start_offset, c.end_offset) async for c in reader.chunks()]
    assert chunks == [(1, 2), (2, 4), (4, 6), (6, 8)]


async def test_a_reader_may_be_left_and_taken_up_again(read):
    async with read() as reader:
        found = []
        for count in (1, 2, 4):
            found += await offsets(reader, count)
            assert reader.next_offset == found[-1] + 1
        assert found + await offsets(reader) == list(range(10))


async def test_the_position_is_known_before_the_first_record_where_it_can_be(read):
    async with read(start=StartAt.LATEST, is_following=True) as reader:
        assert reader.next_offset == 10
        assert reader.high_watermark == 10
    async with read(start=4, is_following=True) as reader:
        assert reader.next_offset == 4
        assert reader.high_watermark is None
    async with read(is_following=True) as reader:
        assert reader.next_offset is None


async def test_batches_of_control_records_are_never_given(read, partition):
    partition.batches = [stored(0, b"epoch", is_control=True), stored(1, b"1")]
    async with read() as reader:
        assert [[r.offset for r in records] async for records in reader.batches()] == [[1]]


async def test_a_follower_waits_for_records_and_gets_those_written_after_it_began(read, partition):
    async with read(start=StartAt.LATEST, is_following=True) as reader:
        partition.append(b"10")
        assert await offsets(reader, 1) == [10]
        waiting = asyncio.create_task(offsets(reader, 2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        partition.append(b"11")
        partition.append(b"12")
        assert await waiting == [11, 12]


async def test_a_follower_with_an_end_waits_for_it_and_stops(read, partition):
    async with read(start=8, end=11, is_following=True) as reader:
        waiting = asyncio.create_task(offsets(reader))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        partition.append(b"10", b"11")
        assert await waiting == [8, 9, 10]


# -- prefetch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2])
async def test_no_more_is_fetched_ahead_than_allowed(read, partition, ahead):
    async with read(prefetch_chunks=ahead, start=0, is_following=True) as reader:
        assert await offsets(reader, 1) == [0]
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(partition.requests) == 1 + ahead
        assert await offsets(reader, 2) == [1, 2]
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(partition.requests) == 2 + ahead


async def test_nothing_is_fetched_before_the_first_read(read, partition):
    async with read() as reader:
        for _ in range(20):
            await asyncio.sleep(0)
        assert partition.requests == [(StartAt.LATEST, 0)]
        assert len(await offsets(reader)) == 10


async def test_a_closed_reader_says_so(read):
    async with read(start=9, is_following=True) as reader:
        assert await offsets(reader, 1) == [9]
        waiting = asyncio.create_task(offsets(reader, 1))
        await asyncio.sleep(0)
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await offsets(reader)
    with pytest.raises(ClientClosedError):
        await offsets(read())


# -- what happens to nodes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        no_leader(),
        UnreachableError("gone"),
        ServerFailedError("500", status=500, error_code=None),
        UnknownResultError("504", status=504, error_code=50401),
        UnexpectedAnswerError("a proxy's page"),
        Answer(data=b"damaged", start_offset=0, high_watermark=10),
        Answer(data=stored(0, b"0"), start_offset=5, high_watermark=10),
    ],
    ids=str,
)
async def test_what_can_pass_is_waited_for_and_loses_nothing(read, partition, clock, failure):
    async with read() as reader:
        partition.failures.extend([failure] * 3)
        assert await offsets(reader) == list(range(10))
    assert partition.stale == 3, "the next attempt looks for the leader"
    assert clock.sleeps == [20, 40, 80]


async def test_a_damaged_answer_is_asked_for_again_checked_by_the_node(read, partition):
    """Else a node whose copy has rotted would never hear of it."""
    async with read() as reader:
        bad = Answer(data=b"damaged", start_offset=0, high_watermark=10)
        partition.failures.extend([bad, no_leader()])
        assert await offsets(reader) == list(range(10))
    where, *asked = partition.verified
    assert not where, "where it ends"
    assert asked[:4] == [False, True, True, False], "until an answer was whole"


async def test_the_pin_is_as_patient_as_the_rest(read, partition):
    partition.failures.extend([no_leader()] * 3)
    async with read() as reader:
        assert await offsets(reader) == list(range(10))


async def test_patience_ends(read, partition, clock):
    async with read() as reader:
        assert await offsets(reader, 1) == [0]
        partition.failures.extend([no_leader()] * 1000)
        with pytest.raises(NotNowError):
            await offsets(reader)
        assert PATIENCE_MS <= clock.now_ms() < PATIENCE_MS + 2_000
        with pytest.raises(NotNowError):
            await offsets(reader)


async def test_patience_begins_anew_after_each_success(read, partition, clock):
    async with read(prefetch_chunks=1) as reader:
        found = []
        for _ in range(5):
            partition.failures.append(no_leader())
            clock.ms += PATIENCE_MS - 500
            found += await offsets(reader, 2)
        assert found == list(range(10))


async def test_a_server_that_speaks_nonsense_is_given_up_soon(read, partition, clock):
    partition.failures.extend([UnexpectedAnswerError("HTTP 200 with a page")] * 1000)
    with pytest.raises(UnexpectedAnswerError, match="page"):
        async with read():
            pass
    assert len(partition.requests) == BAD_ANSWERS_MAX
    assert clock.now_ms() < 1_000


async def test_a_partition_that_is_not_there_is_told_at_once(read, partition, clock):
    async with read() as reader:
        partition.failures.append(TargetNotFoundError("gone", status=404, error_code=40402))
        with pytest.raises(TargetNotFoundError):
            await offsets(reader)
    assert not clock.sleeps


async def test_a_node_that_answers_empty_at_once_is_not_asked_in_a_circle(read, partition, clock):
    partition.failures.extend([Answer(start_offset=10, next_offset=10, high_watermark=10)] * 8)
    async with read(start=10, is_following=True) as reader:
        partition.append(b"10")
        assert await offsets(reader, 1) == [10]
    assert clock.sleeps == [50] * 8


async def test_records_that_were_there_and_are_not_shown_are_waited_for_but_not_for_ever(
    read, partition, clock
):
    """The end came from the leader, the answers from a follower that lags: or from a cluster that lost them."""
    async with read(start=9) as reader:
        partition.failures.extend([Answer(start_offset=9, next_offset=9, high_watermark=9)] * 4)
        assert await offsets(reader) == [9]
    async with read(start=9) as reader:
        partition.failures.extend([Answer(start_offset=9, next_offset=9, high_watermark=9)] * 999)
        with pytest.raises(UnreachableError, match="nothing at offset 9, although it ended at 10"):
            await offsets(reader)


# -- what is not there -----------------------------------------------------------------------------


async def test_deleted_records_are_an_error_that_names_the_range(read, partition):
    async with read(prefetch_chunks=1) as reader:
        assert await offsets(reader, 1) == [0]
        partition.delete_below(6)
        with pytest.raises(
            UnreadableOffsetError, match=r"deleted; .* from 6 up to, and without, 10"
        ):
            await offsets(reader)


async def test_a_reset_goes_on_at_the_first_record_left_and_says_so(read, partition, caplog):
    policy = OnOutOfRange.EARLIEST
    async with read(prefetch_chunks=1, on_out_of_range=policy) as reader:
        found = await offsets(reader, 4)
        partition.delete_below(8)
        with caplog.at_level(logging.WARNING, logger="milena.reading.reader"):
            found += await offsets(reader)
        # What was fetched before the deletion is given out all the same.
        assert found in ([*range(4), 8, 9], [*range(6), 8, 9])
        assert reader.skipped == 8 - found[-3] - 1
    assert f"skipped={reader.skipped}" in caplog.text


async def test_a_start_that_was_deleted_long_ago_is_an_error(read, partition):
    partition.delete_below(4)
    async with read(start=2, is_following=True) as reader:
        with pytest.raises(UnreadableOffsetError):
            await offsets(reader)
    with pytest.raises(UnreadableOffsetError):
        async with read(start=11):
            pass


async def test_nodes_that_disagree_about_the_range_are_asked_again(read, partition):
    lie = OutOfRangeError("deleted", status=400, error_code=40002)
    async with read(start=0, is_following=True) as reader:
        partition.failures.append(lie)
        assert await offsets(reader, 2) == [0, 1]
    async with read(start=0, is_following=True) as reader:
        partition.failures.extend([lie] * 1000)
        with pytest.raises((UnreachableError, OutOfRangeError)):
            await offsets(reader)
