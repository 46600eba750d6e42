"""Reads one partition over HTTP: fetches ahead, checks every byte, survives what happens to nodes (asyncio shell).

``milena.reading.cursor`` decides what to ask for and what an answer is worth; here are the requests, the patience and
the buffer. One task fetches ahead of the reader, never more than ``prefetch_chunks`` answers; the reader takes them in
order. Whatever goes wrong with a request, the next one asks for the same offset, so that nothing is skipped and nothing
is given out twice. What can pass (a leader that died, an election, a full node) is asked again, later and later, until
``patience_ms`` have gone by without an answer of use; what cannot pass is raised at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from milena.errors import (
    ClientClosedError,
    ClientError,
    NotNowError,
    OutOfRangeError,
    ServerFailedError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.model.clock import Clock
from milena.model.errors import CorruptBatchError
from milena.reading.chunk_records import records_of
from milena.reading.cursor import FetchedData, ReadCursor, ReadPlan
from milena.reading.patience import Patience
from milena.records import ConsumedRecord, FetchedChunk, Position, StartAt

logger = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""A request's bytes: where throughput no longer grows, and a chunk's records are still few enough to hold."""
WAIT_MS = 5_000
"""How long a node may wait for records to come: a leader that fell silent is noticed that much later."""
PREFETCH_CHUNKS = 4
PATIENCE_MS = 60_000
"""Longer than an election, a restart and a recovery together."""
_EMPTY_PAUSE_MS = 50
_AT_ONCE_MS = 20
"""A node that was asked to wait and answers empty within ``_AT_ONCE_MS`` is asked again after ``_EMPTY_PAUSE_MS``."""

_PASSING = (UnreachableError, NotNowError, ServerFailedError, UnknownResultError)
"""A fetch changes nothing, so that even an unknown result may be asked for again."""


class FetchPort(Protocol):
    """Transport of a reader: one attempt at a fetch, at the leader if it can be reached."""

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
        """Stored batches from ``offset`` on; ``is_verified``: the node checks them before it sends them."""


class ReaderMetadataPort(Protocol):
    """Metadata that a reader needs of ``milena.cluster.metadata``."""

    def mark_stale(self, topic: str | None = None) -> None:
        """Take what is known for stale, since it led to a failure: ask again before it is used."""


class PartitionReader:
    """Reads a partition in order, each record once. An asynchronous context manager, for one consumer in one loop.

    Three ways to read, of which a reader takes one: ``async for record in reader``, ``async for records in
    reader.batches()``, ``async for chunk in reader.chunks()``. Each may be left and taken up again; nothing is lost.
    They end at the plan's end, or never when it follows without one. Errors are raised where the reader stands:

        TargetNotFoundError     no such topic or partition
        UnreadableOffsetError   the next offset was deleted, or is above the end; names the readable range
        UnexpectedAnswerError   damaged or contradictory answers, again and again
        other ClientErrors      no answer of use for ``patience_ms``
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
        """The last answer was damaged: the node is to check the next one before it sends it."""
        self._records: Iterator[ConsumedRecord] = iter(())
        self._skipped_told = 0
        self._begins_at: Position = plan.start
        self._last: ConsumedRecord | FetchedChunk | None = None

    async def __aenter__(self) -> Self:
        """Find out where to begin and to end, as far as that depends on this moment."""
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
                # An error that nobody read on to meet is met here, so that asyncio does not report it.
                self._task.exception()

    # -- where it stands ---------------------------------------------------------------------------

    @property
    def next_offset(self) -> int | None:
        """Offset at which a reader that goes on from here starts; None before the first record, unless it is known."""
        match self._last:
            case ConsumedRecord():
                return self._last.offset + 1
            case FetchedChunk():
                return self._last.next_offset
            case None:
                # The cursor is where the fetches are, which is ahead of the reader.
                return self._begins_at if isinstance(self._begins_at, int) else None

    @property
    def end_offset(self) -> int | None:
        """Where this reader ends, exclusive; None when it does not."""
        return self._cursor.end

    @property
    def high_watermark(self) -> int | None:
        """The greatest that any answer named; None before the first."""
        return None if self._cursor.high_watermark < 0 else self._cursor.high_watermark

    @property
    def last_stable_offset(self) -> int | None:
        """Where committed records end: the greatest that any answer named; None before the first."""
        return None if self._cursor.readable_end < 0 else self._cursor.readable_end

    @property
    def skipped(self) -> int:
        """Offsets that were deleted unread and left out, as ``on_out_of_range`` allows."""
        return self._cursor.skipped

    async def locate(self) -> int:
        """The offset at which it begins, found out now unless it is known; before anything is read.

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
        """The records of a chunk at a time, never none: the quickest way to whole records."""
        async for chunk in self.chunks():
            records = records_of(chunk)
            if records:
                yield records

    async def chunks(self) -> AsyncIterator[FetchedChunk]:
        """Stored batches, checksums verified, nothing decoded."""
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
        # The end is there for whoever asks again.
        self._fetched.put_nowait(None)
        if self._task.cancelled():
            raise ClientClosedError(f"the reader of {self._cursor.name} was closed")
        self._task.result()
        return None

    # -- fetching ----------------------------------------------------------------------------------

    async def _fetch_ahead(self) -> None:
        """The task: fetch until the end, as far ahead as there is room."""
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
        """One attempt; a failure that can pass is waited for, and gives None.

        Raises:
            ClientError: it cannot pass, or patience is at its end.
        """
        try:
            return await work()
        except CorruptBatchError as error:
            # On the way, or on the node's disk: it finds out, and has its copy restored.
            self._is_verified = True
            bad = UnexpectedAnswerError(f"{self._cursor.name}: damaged answers: {error.message}")
            await self._be_patient(bad, cause=error)
        except UnexpectedAnswerError as error:
            await self._be_patient(error)
        except OutOfRangeError:
            # One who asks for the end is never out of range: a node that says so would keep us here for ever.
            if work == self._go_into_range:
                raise
            await self._attempt(self._go_into_range)
        except _PASSING as error:
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
        """Ask the leader what can be read: the cursor fails, or goes there and is asked again in a moment."""
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
        # A reader that ends where the partition ended has nothing to wait for: behind the last record may be a hole.
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
        """A reader that goes on over deleted records does not do so in silence."""
        if self._cursor.skipped > self._skipped_told:
            logger.warning(
                "records were deleted before they were read topic=%s partition=%d skipped=%d",
                self.plan.topic,
                self.plan.partition,
                self._cursor.skipped - self._skipped_told,
            )
            self._skipped_told = self._cursor.skipped

    async def _ask(self, position: Position) -> FetchedData:
        """Answer of the cluster at a position."""
        return await self._transport.fetch(
            self.plan.topic, self.plan.partition, offset=position, max_bytes=1, wait_ms=0
        )
