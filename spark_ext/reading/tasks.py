"""Read the ranges of one task as Arrow record batches, on the executor.

A ``ReadTask`` has everything that a task needs. One thread fetches and decodes in turns. While it decodes, and while
Spark takes rows, the responses to the next requests arrive in the kernel's buffers.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from milena.records import FetchedChunk
from spark_ext.options.parsing import Fetching
from spark_ext.reading.paused_loop import PausedLoop
from spark_ext.reading.planner import PlannedRange
from spark_ext.reading.range_fetch import fetch_ranges
from spark_ext.rows.decode import ArrowRows
from spark_ext.rows.read_schema import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A Spark task: the ranges that it reads, how it fetches them, and the columns that it makes."""

    ranges: tuple[PlannedRange, ...]
    fetching: Fetching
    projection: Projection


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task, in the order of its ranges; raises the errors of ``fetch_ranges``."""
    rows = ArrowRows(task.projection)
    with closing(chunks_of(task)) as chunks:
        for chunk in chunks:
            yield from rows.add(chunk)
    if rows.record_count:
        yield rows.take()


def chunks_of(task: ReadTask) -> Generator[FetchedChunk]:
    """Yield the chunks of a task's ranges; the next ones are in flight. Close the generator to stop early."""
    chunks = fetch_ranges(task.ranges, task.fetching)
    with asyncio.Runner(loop_factory=PausedLoop) as runner:
        # ``Runner.run`` is slow here: to install its signal handler it formats the last result, which is a chunk.
        run = runner.get_loop().run_until_complete
        while (chunk := run(_next(chunks))) is not None:
            yield chunk


async def _next(chunks: AsyncIterator[FetchedChunk]) -> FetchedChunk | None:
    return await anext(chunks, None)
