"""Read one partition over HTTP: fetch ahead, check every byte, and survive failures of nodes (asyncio shell).

``milena.reading.cursor`` decides what to request and checks the responses. This module sends the requests, retries, and
buffers. One task fetches ahead of the reader, at most ``prefetch_chunks`` responses. The reader takes them in order.

After a failed request, the next one asks for the same offset, so no record is skipped or given out twice. Temporary
failures (a leader that crashed, an election, an overloaded node) are retried at growing intervals, until
``patience_ms`` have passed without a useful response. Permanent failures are raised at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Self

from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import ClusterTransport, FetchAnswer
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
from milena.reading.cursor import ReadCursor, ReadPlan
from milena.reading.patience import Patience
from milena.records import ConsumedRecord, FetchedChunk, Position, StartAt

logger = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""Default limit of the bytes that one request fetches. More does not raise throughput, and takes more memory."""
WAIT_MS = 5_000
"""How long a node may wait for new records, in ms. The longer, the later a reader notices a node that hangs."""
PREFETCH_CHUNKS = 4
PATIENCE_MS = 60_000
"""Default limit of the time without a useful response, in ms: longer than an election, a restart and a recovery."""
_EMPTY_PAUSE_MS = 50
_AT_ONCE_MS = 20
"""A node that was asked to wait but responds empty within ``_AT_ONCE_MS`` is asked again after ``_EMPTY_PAUSE_MS``."""


class PartitionReader:
    """Read a partition in order, each record once. An asynchronous context manager, for one consumer in one loop.

        async with client.reader("orders", 0, start=LastN(10)) as reader:
            async for record in reader:
                print(record.offset, record.value)

    Use one of three loops: ``async for record in reader``, ``async for records in reader.batches()``, or
    ``async for chunk in reader.chunks()``. You may leave the loop and continue later; no record is lost. The loop ends
    at the plan's end, or never if the plan follows without an end. An error is raised after all records before it:

        TargetNotFoundError     no such topic or partition
        UnreadableOffsetError   the next offset was deleted, or is above the end; names the readable range
        UnexpectedAnswerError   several damaged or contradictory responses in a row
        NeverReachedError       no node has ever responded to the client
        other ClientErrors      no useful response for ``patience_ms``
    """

    def __init__(
        self,
        plan: ReadPlan,
        *,
        transport: ClusterTransport,
        metadata: MetadataCache,
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
        """True if the last response was damaged. The next request then asks the node to verify what it sends."""
        self._records: Iterator[ConsumedRecord] = iter(())
        self._skipped_told = 0
        self._begins_at: Position = plan.start
        self._last: ConsumedRecord | FetchedChunk | None = None

    async def __aenter__(self) -> Self:
        """Ask for the partition's end, if the start or the end of reading depends on it."""
        while self._cursor.must_pin:
            await self._attempt(self._pin)
        self._begins_at = self._cursor.position
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                # Read the exception, so that asyncio does not report it as never retrieved.
                self._task.exception()

    # -- position ----------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int | None:
        """The offset at which a new reader would continue; None while the start is not located."""
        match self._last:
            case ConsumedRecord():
                return self._last.offset + 1
            case FetchedChunk():
                return self._last.next_offset
            case None:
                # Do not use the cursor's position, because the cursor is ahead of the records that were given out.
                return self._begins_at if isinstance(self._begins_at, int) else None

    @property
    def end_offset(self) -> int | None:
        """The offset at which this reader ends, exclusive; None without an end."""
        return self._cursor.end

    @property
    def high_watermark(self) -> int | None:
        """The greatest high watermark of all responses so far; None before the first response."""
        return None if self._cursor.high_watermark < 0 else self._cursor.high_watermark

    @property
    def last_stable_offset(self) -> int | None:
        """The greatest last stable offset (end of committed records) of all responses so far; None before the first."""
        return None if self._cursor.readable_end < 0 else self._cursor.readable_end

    @property
    def topic_tag(self) -> str:
        """The first digits of the id of the topic that is being fetched; empty if it is not known."""
        return self._cursor.topic_tag

    @property
    def skipped(self) -> int:
        """The number of offsets that were skipped, because their records were deleted before they were read."""
        return self._cursor.skipped

    async def locate(self) -> int:
        """Return the offset at which the reader begins, asking a node if needed. Call this before reading.

        Raises:
            ClientError: the errors of reading.
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
        """Yield the records of one response at a time, never an empty list. This is the fastest way to get records."""
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
        # Put the end mark back, so that a later call ends too instead of waiting.
        self._fetched.put_nowait(None)
        if self._task.cancelled():
            raise ClientClosedError(f"the reader of {self._cursor.name} was closed")
        self._task.result()
        return None

    # -- fetching ----------------------------------------------------------------------------------

    async def _fetch_ahead(self) -> None:
        """Fetch until the end, at most ``prefetch_chunks`` ahead of the reader; runs as the reader's task."""
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
            ClientError: the failure is permanent, or failures have lasted for ``patience_ms``.
        """
        try:
            return await work()
        except CorruptBatchError as error:
            # The batch was damaged in transit, or on the node's disk. With ``is_verified``, the node checks its replica
            # and has it restored if needed.
            self._is_verified = True
            bad = UnexpectedAnswerError(f"{self._cursor.name}: damaged answers: {error.message}")
            await self._be_patient(bad, cause=error)
        except UnexpectedAnswerError as error:
            await self._be_patient(error)
        except OutOfRangeError:
            # A request for the end is never out of range. If a faulty node says that it is, this call must not recurse
            # without an end.
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
        """Ask the leader for the readable range, and apply the policy if the position is outside of it.

        Unless the policy fails, raise ``UnreachableError``, so that ``_attempt`` waits and the fetch is retried.
        """
        position = self._cursor.position
        if not isinstance(position, int):
            raise UnexpectedAnswerError(
                f"{self._cursor.name}: out of range, although no offset was asked for"
            )
        answer = await self._ask(StartAt.LATEST)
        self._cursor.recover(answer)
        self._tell_skipped()
        raise UnreachableError(
            f"{self._cursor.name}: offset {position} cannot be read, although nodes say that it is there"
        )

    async def _fetch(self) -> FetchedChunk | None:
        cursor = self._cursor
        before, begun_ms = cursor.position, self._clock.now_ms()
        # A reader with a fixed end must not wait for new records: below its end, there may be only a gap.
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
        """Log a warning if offsets were skipped since the last call, because records were deleted unread."""
        if self._cursor.skipped > self._skipped_told:
            logger.warning(
                "records were deleted before they were read topic=%s partition=%d skipped=%d",
                self.plan.topic,
                self.plan.partition,
                self._cursor.skipped - self._skipped_told,
            )
            self._skipped_told = self._cursor.skipped

    async def _ask(self, position: Position) -> FetchAnswer:
        """Fetch from a position, without waiting for records, to get its offset and the partition's bounds."""
        return await self._transport.fetch(
            self.plan.topic, self.plan.partition, offset=position, max_bytes=1, wait_ms=0
        )
