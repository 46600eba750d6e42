"""Several partitions as one stream of records: one after the other, as they arrive, or merged by timestamp.

Within a partition, the order is always that of its offsets. Between partitions the log promises no order, so these
functions offer three.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from milena.reading.reader import PartitionReader
from milena.records import ConsumedRecord

Records = list[ConsumedRecord]

_MERGED_AT_ONCE = 1_000
"""Number of records in one list that ``by_time`` yields."""


async def one_after_the_other(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield all records of the first partition, then all of the second one, and so on."""
    for reader in readers:
        async for records in reader.batches():
            yield records


async def as_they_come(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield records as they arrive. Only this order works with readers that follow partitions without an end."""
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
        # Read the exceptions of the other tasks, so that asyncio does not report them as never retrieved.
        await asyncio.gather(*waiting, return_exceptions=True)


async def by_time(readers: Sequence[PartitionReader]) -> AsyncGenerator[Records, None]:
    """Yield records merged by timestamp: of the next records of all partitions, the one with the lowest comes first.

    Producers set timestamps, so these may fall within a partition. The order of offsets is kept there.
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
