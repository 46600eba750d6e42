"""Several partitions as one stream."""

import asyncio

import pytest

from milena.reading.cursor import ReadPlan
from milena.reading.reader import PartitionReader
from milena.reading.topic_order import as_they_come, by_time, one_after_the_other
from tests.support.fakes.partition import FakePartition, InstantClock, no_leader, stored


def partition_of(*stamps, per_batch=2):
    batches = []
    for start in range(0, len(stamps), per_batch):
        part = stamps[start : start + per_batch]
        batches.append(
            stored(start, *(b"%d" % s for s in part), base_timestamp_ms=0, timestamp_deltas=[*part])
        )
    return FakePartition(*batches)


async def merged(order, *partitions, **plan):
    readers = [
        PartitionReader(
            ReadPlan(topic="t", partition=number, **plan),
            transport=partition,
            metadata=partition,
            clock=InstantClock(),
            patience_ms=1_000,
        )
        for number, partition in enumerate(partitions)
    ]
    found = []
    async with readers[0], readers[1], readers[2]:
        async for records in order(readers):
            assert records
            found += [(r.partition, r.timestamp_ms) for r in records]
    return found


async def test_one_after_the_other():
    found = await merged(
        one_after_the_other, partition_of(5, 6, 9), partition_of(), partition_of(1, 2)
    )
    assert found == [(0, 5), (0, 6), (0, 9), (2, 1), (2, 2)]


async def test_by_time_keeps_each_partitions_order():
    found = await merged(
        by_time, partition_of(5, 6, 1, 20), partition_of(), partition_of(2, 6, 7, 30, 31)
    )
    assert found == [
        (2, 2), (0, 5), (0, 6), (0, 1), (2, 6), (2, 7), (0, 20), (2, 30), (2, 31),
    ]  # fmt: skip


async def test_by_time_merges_more_than_it_gives_at_a_time():
    stamps = [range(0, 9_000, 3), range(1, 9_000, 3), range(2, 9_000, 3)]
    found = await merged(by_time, *(partition_of(*s, per_batch=70) for s in stamps))
    assert [stamp for _, stamp in found] == list(range(9_000))


async def test_as_they_come_gives_everything_and_each_partition_in_order():
    found = await merged(
        as_they_come, partition_of(1, 2, 3), partition_of(4), partition_of(5, 6, 7, 8)
    )
    for number, stamps in enumerate([[1, 2, 3], [4], [5, 6, 7, 8]]):
        assert [s for p, s in found if p == number] == stamps


async def test_one_silent_partition_does_not_hold_up_the_others():
    silent, busy = FakePartition(), FakePartition(stored(0, b"1"))
    readers = [
        PartitionReader(
            ReadPlan(topic="t", partition=number, start=0, is_following=True),
            transport=partition,
            metadata=partition,
            clock=InstantClock(),
        )
        for number, partition in enumerate((silent, busy))
    ]
    async with readers[0], readers[1]:
        stream = as_they_come(readers)
        assert [r.value for r in await anext(stream)] == [b"1"]
        busy.append(b"2")
        assert [r.value for r in await anext(stream)] == [b"2"]
        silent.append(b"3")
        assert [r.value for r in await anext(stream)] == [b"3"]
        await stream.aclose()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("order", [one_after_the_other, as_they_come, by_time])
async def test_an_error_of_one_partition_is_the_streams(order):
    broken = FakePartition()
    broken.failures.extend([no_leader()] * 999)
    with pytest.raises(type(no_leader())):
        await merged(order, partition_of(1), partition_of(2), broken, end=0, start=0)
    assert len(asyncio.all_tasks()) == 1
