"""The executor's side: the ranges of one task as Arrow record batches.

Everything that a task needs is in its ``ReadTask``. One thread fetches and decodes by turns: while it decodes, and
while Spark takes what it has, the answers to the next requests come into the kernel's buffers.
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
    """Task of Spark: what it reads, and how."""

    ranges: tuple[PlannedRange, ...]
    fetching: Fetching
    projection: Projection


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The records of a task, in the order of its ranges; raises as ``fetch_ranges`` does."""
    rows = ArrowRows(task.projection)
    with closing(chunks_of(task)) as chunks:
        for chunk in chunks:
            yield from rows.add(chunk)
    if rows.record_count:
        yield rows.take()


def chunks_of(task: ReadTask) -> Generator[FetchedChunk]:
    """The chunks of a task's ranges, of which the next ones are on their way; close it where it is left early."""
    chunks = fetch_ranges(task.ranges, task.fetching)
    with asyncio.Runner(loop_factory=PausedLoop) as runner:
        # Not by ``Runner.run``: to set its handler of signals it makes a text of the last result, which is a chunk.
        run = runner.get_loop().run_until_complete
        while (chunk := run(_next(chunks))) is not None:
            yield chunk


async def _next(chunks: AsyncIterator[FetchedChunk]) -> FetchedChunk | None:
    return await anext(chunks, None)
