"""Several partitions as one stream of records: one after the other, as they come, or merged by time.

Within a partition, the order is always that of its offsets. Between partitions the log promises no order, so a reader
of several partitions has to choose one.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from milena.reading.reader import PartitionReader
from milena.records import ConsumedRecord

Records = list[ConsumedRecord]

_MERGED_AT_ONCE = 1_000
"""The records that a merge yields at a time."""


async def one_after_the_other(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield all of the first partition, then all of the second, and so on."""
    for reader in readers:
        async for records in reader.batches():
            yield records


async def as_they_come(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield records as partitions have them. This is the only order in which a reader can follow several partitions."""
    streams = [reader.batches() for reader in readers]
    waiting = {asyncio.create_task(_next(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                records = task.result()
                if records is not None:
                    waiting[asyncio.create_task(_next(stream))] = stream
                    yield records
    finally:
        for task in waiting:
            task.cancel()
        # Read the errors beside the one that is raised, so that asyncio does not report them.
        await asyncio.gather(*waiting, return_exceptions=True)


async def by_time(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield records merged by timestamp: the next record is that of the partition whose next record is the oldest.

    Timestamps are the producers', and need not ascend within a partition. The partition's order is kept nevertheless.
    """
    heads: list[tuple[int, int]] = []
    streams = [reader.batches() for reader in readers]
    held = [await _next(stream) or [] for stream in streams]
    at = [0] * len(streams)
    for index, records in enumerate(held):
        if records:
            heapq.heappush(heads, (records[0].timestamp_ms, index))
    merged: Records = []
    while heads:
        _, index = heads[0]
        merged.append(held[index][at[index]])
        at[index] += 1
        if at[index] == len(held[index]):
            held[index], at[index] = await _next(streams[index]) or [], 0
        if held[index]:
            heapq.heapreplace(heads, (held[index][at[index]].timestamp_ms, index))
        else:
            heapq.heappop(heads)
        if len(merged) >= _MERGED_AT_ONCE:
            yield merged
            merged = []
    if merged:
        yield merged


async def _next(stream: AsyncIterator[Records]) -> Records | None:
    return await anext(stream, None)
