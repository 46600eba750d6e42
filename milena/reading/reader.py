"""Read one partition over HTTP: fetch ahead, check every byte, and survive failures of nodes (asyncio shell).

``milena.reading.cursor`` decides what to request and how a response counts. This module has the requests, the retries
and the buffer. One task fetches ahead of the reader, at most ``prefetch_chunks`` responses. The reader takes them in
order.

After any failed request, the next one asks for the same offset, so nothing is skipped or given out twice. Temporary
failures (a leader that died, an election, a full node) are retried at growing intervals, until ``patience_ms`` have
passed without a useful response. Permanent failures are raised at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from milena.errors import (
    ClientClosedError,
    ClientError,
    OutOfRangeError,
    UnexpectedAnswerError,
    UnreachableError,
    is_worth_another_try,
)
from milena.model.clock import Clock
from milena.model.errors import CorruptBatchError
from milena.reading.chunk_records import records_of
from milena.reading.cursor import FetchedData, ReadCursor, ReadPlan
from milena.reading.patience import Patience
from milena.records import ConsumedRecord, FetchedChunk, Position, StartAt

logger = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""The bytes of a request: more does not raise throughput, and a chunk's records are still few enough to hold."""
WAIT_MS = 5_000
"""How long a node may wait for new records, in ms. A leader that stopped responding is noticed that much later."""
PREFETCH_CHUNKS = 4
PATIENCE_MS = 60_000
"""Longer than an election, a restart and a recovery together, in ms."""
_EMPTY_PAUSE_MS = 50
_AT_ONCE_MS = 20
"""A node that was asked to wait but responds empty within ``_AT_ONCE_MS`` is asked again after ``_EMPTY_PAUSE_MS``."""


class FetchPort(Protocol):
    """The transport of a reader: one attempt at a fetch, at the leader if it can be reached."""

    async def fetch(
        self,
        topic: str,
        partition: int,
        *,
        offset: Position,
        max_bytes: int,
        wait_ms: int,
        is_verified: bool = False,
    ) -> FetchedData:
        """Fetch stored batches from ``offset`` on. ``is_verified``: the node checks them before it sends them."""


class ReaderMetadataPort(Protocol):
    """Metadata of ``milena.cluster.metadata`` that a reader needs."""

    def mark_stale(self, topic: str | None = None) -> None:
        """Note that what is known may be stale, because it led to a failure: fetch it again before the next use."""


class PartitionReader:
    """Read a partition in order, each record once. An asynchronous context manager, for one consumer in one loop.

        async with client.reader("orders", 0, start=LastN(10)) as reader:
            async for record in reader:
                print(record.offset, record.value)

    A reader takes one of three ways to read: ``async for record in reader``, ``async for records in reader.batches()``,
    or ``async for chunk in reader.chunks()``. You may leave the loop and continue later; nothing is lost. The loop ends
    at the plan's end, or never if the plan follows without an end. Errors are raised at the position of the reader:

        TargetNotFoundError     no such topic or partition
        UnreadableOffsetError   the next offset was deleted, or is above the end; names the readable range
        UnexpectedAnswerError   damaged or contradictory responses, again and again
        NeverReachedError       no node has ever responded to the client
        other ClientErrors      no useful response for ``patience_ms``
    """

    def __init__(
        self,
        plan: ReadPlan,
        *,
        transport: FetchPort,
        metadata: ReaderMetadataPort,
        clock: Clock,
        max_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        prefetch_chunks: int = PREFETCH_CHUNKS,
        patience_ms: float = PATIENCE_MS,
    ) -> None:
        self.plan = plan
        self._cursor = ReadCursor(plan)
        self._transport = transport
        self._metadata = metadata
        self._clock = clock
        self._max_bytes = max_bytes
        self._wait_ms = wait_ms
        self._patience = Patience(patience_ms)
        self._room = asyncio.Semaphore(max(1, prefetch_chunks))
        self._fetched: asyncio.Queue[FetchedChunk | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_verified = False
        """True if the last response was damaged: the node should check the next one before it sends it."""
        self._records: Iterator[ConsumedRecord] = iter(())
        self._skipped_told = 0
        self._begins_at: Position = plan.start
        self._last: ConsumedRecord | FetchedChunk | None = None

    async def __aenter__(self) -> Self:
        """Find out where to begin and end, as far as that depends on the present end of the partition."""
        while self._cursor.must_pin:
            await self._attempt(self._pin)
        self._begins_at = self._cursor.position
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                # Read an error that no caller has met, so that asyncio does not report it as never retrieved.
                self._task.exception()

    # -- position ----------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int | None:
        """The offset at which a new reader would continue; None before the first record, unless it is known."""
        match self._last:
            case ConsumedRecord():
                return self._last.offset + 1
            case FetchedChunk():
                return self._last.next_offset
            case None:
                # The cursor is ahead of the reader: it is where the fetches are.
                return self._begins_at if isinstance(self._begins_at, int) else None

    @property
    def end_offset(self) -> int | None:
        """The offset at which this reader ends, exclusive; None without an end."""
        return self._cursor.end

    @property
    def high_watermark(self) -> int | None:
        """The greatest high watermark of any response; None before the first."""
        return None if self._cursor.high_watermark < 0 else self._cursor.high_watermark

    @property
    def last_stable_offset(self) -> int | None:
        """The greatest last stable offset of any response, where committed records end; None before the first."""
        return None if self._cursor.readable_end < 0 else self._cursor.readable_end

    @property
    def skipped(self) -> int:
        """How many offsets were deleted unread and skipped, as ``on_out_of_range`` allows."""
        return self._cursor.skipped

    async def locate(self) -> int:
        """Return the offset at which the reader begins; find it out now if needed. Call this before reading.

        Raises:
            ClientError: as reading does.
        """
        while not isinstance(self._cursor.position, int):
            await self._attempt(self._locate)
        self._begins_at = self._cursor.position
        return self._cursor.position

    # -- three ways to read ------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        while True:
            for record in self._records:
                self._last = record
                return record
            chunk = await self._next_chunk()
            if chunk is None:
                raise StopAsyncIteration
            self._records = iter(records_of(chunk))

    async def batches(self) -> AsyncIterator[list[ConsumedRecord]]:
        """Yield the records of one chunk at a time, never an empty list: the quickest way to whole records."""
        async for chunk in self.chunks():
            records = records_of(chunk)
            if records:
                yield records

    async def chunks(self) -> AsyncIterator[FetchedChunk]:
        """Yield stored batches with verified checksums, not decoded."""
        while (chunk := await self._next_chunk()) is not None:
            self._last = chunk
            yield chunk

    async def _next_chunk(self) -> FetchedChunk | None:
        if not self._is_open:
            raise ClientClosedError(f"the reader of {self._cursor.name} is not open")
        if self._task is None:
            self._task = asyncio.create_task(self._fetch_ahead())
            self._task.add_done_callback(lambda _: self._fetched.put_nowait(None))
        chunk = await self._fetched.get()
        if chunk is not None:
            self._room.release()
            return chunk
        # Put the end back, for a caller that asks again.
        self._fetched.put_nowait(None)
        if self._task.cancelled():
            raise ClientClosedError(f"the reader of {self._cursor.name} was closed")
        self._task.result()
        return None

    # -- fetching ----------------------------------------------------------------------------------

    async def _fetch_ahead(self) -> None:
        """Fetch until the end, as far ahead as there is room. This is the task."""
        while not self._cursor.is_done:
            await self._room.acquire()
            chunk = None
            while chunk is None and not self._cursor.is_done:
                chunk = await self._attempt(self._fetch)
            if chunk is not None:
                self._fetched.put_nowait(chunk)

    async def _attempt(
        self, work: Callable[[], Awaitable[FetchedChunk | None]]
    ) -> FetchedChunk | None:
        """Make one attempt. After a temporary failure, wait and return None.

        Raises:
            ClientError: the failure is permanent, or the patience is over.
        """
        try:
            return await work()
        except CorruptBatchError as error:
            # Damaged in transit, or on the node's disk. The node checks its copy now, and has it restored.
            self._is_verified = True
            bad = UnexpectedAnswerError(f"{self._cursor.name}: damaged answers: {error.message}")
            await self._be_patient(bad, cause=error)
        except UnexpectedAnswerError as error:
            await self._be_patient(error)
        except OutOfRangeError:
            # A request for the end is never out of range. A node that says so would keep us in this recursion forever.
            if work == self._go_into_range:
                raise
            await self._attempt(self._go_into_range)
        except ClientError as error:
            # A fetch changes nothing, so it is retried even after an unknown result.
            if not is_worth_another_try(error):
                raise
            await self._be_patient(error)
        return None

    async def _be_patient(self, error: ClientError, *, cause: BaseException | None = None) -> None:
        self._metadata.mark_stale(self.plan.topic)
        wait_ms = self._patience.on_failure(
            self._clock.now_ms(), is_bad_answer=isinstance(error, UnexpectedAnswerError)
        )
        if wait_ms is None:
            raise error from cause
        await self._clock.sleep(wait_ms)

    async def _pin(self) -> None:
        self._cursor.pin(await self._ask(self._cursor.pin_at))
        self._patience.on_success()

    async def _locate(self) -> None:
        self._cursor.locate(await self._ask(self._cursor.position))
        self._patience.on_success()

    async def _go_into_range(self) -> None:
        """Ask the leader for the readable range.

        The cursor fails, or moves there and is requested again in a moment.
        """
        position = self._cursor.position
        if not isinstance(position, int):
            raise UnexpectedAnswerError(
                f"{self._cursor.name}: out of range, although no offset was asked for"
            )
        answer = await self._ask(StartAt.LATEST)
        self._cursor.go_into_range(answer.log_start_offset, answer.start_offset)
        self._tell_skipped()
        raise UnreachableError(
            f"{self._cursor.name}: offset {position} cannot be read, although nodes say that it is there"
        )

    async def _fetch(self) -> FetchedChunk | None:
        cursor = self._cursor
        before, begun_ms = cursor.position, self._clock.now_ms()
        # A reader that ends at the end seen at the start must not wait: a hole may follow the last record.
        wait_ms = self._wait_ms if self.plan.is_following else 0
        answer = await self._transport.fetch(
            self.plan.topic,
            self.plan.partition,
            offset=cursor.position,
            max_bytes=self._max_bytes,
            wait_ms=wait_ms,
            is_verified=self._is_verified,
        )
        chunk = cursor.take(answer)
        self._is_verified = False
        self._tell_skipped()
        if chunk is None and cursor.position == before and not self.plan.is_following:
            raise UnreachableError(
                f"{cursor.name}: the nodes that answer have nothing at offset {before}, "
                f"although it ended at {cursor.end}"
            )
        self._patience.on_success()
        if chunk is None and self._clock.now_ms() - begun_ms < _AT_ONCE_MS:
            await self._clock.sleep(_EMPTY_PAUSE_MS)
        return chunk

    def _tell_skipped(self) -> None:
        """Log skipped records: a reader that continues over deleted records must not do so silently."""
        if self._cursor.skipped > self._skipped_told:
            logger.warning(
                "records were deleted before they were read topic=%s partition=%d skipped=%d",
                self.plan.topic,
                self.plan.partition,
                self._cursor.skipped - self._skipped_told,
            )
            self._skipped_told = self._cursor.skipped

    async def _ask(self, position: Position) -> FetchedData:
        """Fetch at a position, without waiting, to learn its offset and the partition's bounds."""
        return await self._transport.fetch(
            self.plan.topic, self.plan.partition, offset=position, max_bytes=1, wait_ms=0
        )
