"""The executor's side: the ranges of one task as Arrow record batches.

Everything that a task needs is in its ``ReadTask``. Chunks are fetched on a thread with a loop of its own while this
one decodes.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from milena.blocking.loop_thread import ClientLoopThread
from milena.records import FetchedChunk
from spark_ext.options.parsing import Fetching
from spark_ext.reading.planner import PlannedRange
from spark_ext.reading.range_fetch import fetch_ranges
from spark_ext.rows.decode import ArrowRows
from spark_ext.rows.read_schema import Projection

CHUNKS_READY = 4
"""How many fetched chunks may wait for the thread that decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Task of Spark: what it reads, and how."""

    ranges: tuple[PlannedRange, ...]
    fetching: Fetching
    projection: Projection


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The records of a task, in the order of its ranges; raises as ``fetch_ranges`` does."""
    rows = ArrowRows(task.projection)
    with ChunkStream(task) as chunks:
        for chunk in chunks:
            yield from rows.add(chunk)
    if rows.record_count:
        yield rows.take()


class ChunkStream:
    """The chunks of a task's ranges, fetched ahead on a thread. A context manager; iterate it once."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._ready: asyncio.Queue[FetchedChunk | Exception | None] = asyncio.Queue(CHUNKS_READY)
        self._thread: ClientLoopThread | None = None
        self._work: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread = ClientLoopThread()
        return self

    def __exit__(self, *_: object) -> None:
        # What is still fetched is cancelled.
        if self._thread is not None:
            self._thread.close()

    def __iter__(self) -> Iterator[FetchedChunk]:
        assert self._thread is not None, "use it as a context manager"
        while (found := self._thread.run(self._next())) is not None:
            if isinstance(found, Exception):
                raise found
            yield found

    async def _next(self) -> FetchedChunk | Exception | None:
        if self._work is None:
            self._work = asyncio.create_task(self._fetch())
        return await self._ready.get()

    async def _fetch(self) -> None:
        end: Exception | None = None
        try:
            await fetch_ranges(self._task.ranges, self._task.fetching, self._ready.put)
        # Whatever it is, it is raised where the chunks are read.
        except Exception as error:  # noqa: BLE001
            end = error
        await self._ready.put(end)
