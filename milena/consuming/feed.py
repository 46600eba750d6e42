"""A feed fetches one partition of a consumer ahead, and knows the application's position in it (asyncio shell).

A reader (``milena.reading.reader``) fetches, in the feed's own task. First it finds the offset of the start. From then
on the position is a number that can be committed. Fetched data waits in the feed, and is decoded only when records are
taken. Records that were taken and not used may be put back.
"""

import asyncio
from collections.abc import Callable

from milena.errors import ClientClosedError, ClientError
from milena.model.clock import Clock
from milena.reading.chunk_records import ChunkRecords
from milena.reading.reader import PartitionReader
from milena.records import ConsumedRecord, FetchedChunk, Position, TopicPartition

OpenReader = Callable[[TopicPartition, Position, str], PartitionReader]
"""Opens a reader from a position on. The last argument has the first digits of the topic's id; empty: any topic."""


class Feed:
    """The records of one partition, from a position on. Owned by its consumer's loop.

    Invariants:
        - ``position`` is the offset of the next record that ``take`` returns; None until the start is located;
        - ``position`` is an offset of the topic ``topic_tag``, and of no later topic with the same name;
        - ``take`` raises an error once; after that, the feed fetches again from its position.
    """

    def __init__(
        self,
        where: TopicPartition,
        start: Position,
        *,
        open_reader: OpenReader,
        clock: Clock,
        on_news: Callable[["Feed"], None],
    ) -> None:
        self.where = where
        self._clock = clock
        self._open_reader = open_reader
        self._on_news = on_news
        self._start = start
        self.position = start if isinstance(start, int) else None
        self.origin = self.position
        """The offset of the start or of the last ``seek``; None until it is located."""
        self.topic_tag = ""
        """The first digits of the topic's id; empty if it is not known."""
        self.committed: int | None = None
        """The group's committed offset, as far as this consumer knows; None without one."""
        self.is_paused = False
        self._reader: PartitionReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._error: ClientError | None = None
        self._chunk: FetchedChunk | None = None
        self._room = asyncio.Event()
        self._records: ChunkRecords | None = None
        """The rest of the chunk from which ``take`` returns records."""
        self._returned: list[ConsumedRecord] = []
        """Records that were put back; ``take`` returns them first."""
        self._goes_on_at = 0
        """The offset at which the taken records end, including offsets behind the last one that compaction removed."""

    # -- position ----------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """True if ``take`` would return records or raise, and the feed is not paused."""
        if self.is_paused:
            return False
        fetched = (self._records, self._chunk, self._error)
        return bool(self._returned) or any(part is not None for part in fetched)

    @property
    def has_failed(self) -> bool:
        """True if the next ``take`` may raise."""
        return self._error is not None

    @property
    def is_begun(self) -> bool:
        """True if ``begin`` or ``seek`` was called."""
        return self._task is not None

    @property
    def last_stable_offset(self) -> int | None:
        """The greatest last stable offset of all responses so far; None before the first response."""
        return None if self._reader is None else self._reader.last_stable_offset

    def begin(self) -> None:
        """Start to fetch, unless the feed fetches already."""
        if not self.is_begun:
            self._go_on(self._start)

    def seek(self, start: Position, *, rest_ms: float = 0) -> None:
        """Drop the fetched records, wait for ``rest_ms``, and continue from ``start`` in the topic that exists now."""
        self.origin = start if isinstance(start, int) else None
        self.topic_tag = ""
        self._go_on(start, rest_ms=rest_ms)

    def restart(self, start: Position, *, rest_ms: float = 0) -> None:
        """Continue from ``start`` in the topic that replaces the deleted one, after waiting for ``rest_ms``."""
        self.committed = None
        self.seek(start, rest_ms=rest_ms)

    def rewind(self) -> None:
        """Drop the fetched records, and go back to ``origin``."""
        if self.origin is not None:
            self._go_on(self.origin)

    def _go_on(self, start: Position, *, rest_ms: float = 0) -> None:
        self._stop()
        self._start = start
        self._returned, self._records, self._chunk, self._error = [], None, None, None
        self.position = start if isinstance(start, int) else None
        self._room.set()
        self._task = asyncio.create_task(self._fetch(rest_ms))
        self._task.add_done_callback(self._on_end)

    async def located(self) -> int:
        """Wait until the position is known, and return it.

        Raises:
            ClientError: the feed failed before the position was known.
        """
        self.begin()
        while self.position is None:
            if self._is_closed:
                raise ClientClosedError(f"{self.where} is not read any more")
            if self._error is not None:
                self._raise_error()
            self._room.clear()
            await self._room.wait()
        return self.position

    async def close(self) -> None:
        """Stop fetching."""
        self._stop()
        self._is_closed = True
        self._room.set()
        if self._ending:
            await asyncio.wait(self._ending)

    # -- records -----------------------------------------------------------------------------------

    def take(self, most: int) -> list[ConsumedRecord]:
        """Return the next records, at most ``most``; an empty list if none are fetched.

        Raises:
            ClientError: the partition cannot be read. The next call tries again.
        """
        records: list[ConsumedRecord] = []
        if self._returned:
            records, self._returned = self._returned[:most], self._returned[most:]
            if len(records) < most and self._records is not None and self._records.has_records:
                records += self._take_of_chunk(most - len(records))
            self.position = self._next_offset()
        while not records:
            if self._records is None and not self._begin_chunk():
                break
            records = self._take_of_chunk(most)
        return records

    def put_back(self, records: list[ConsumedRecord]) -> None:
        """Put back the last records that ``take`` returned, because they were not used; ``take`` returns them next."""
        if records:
            self._returned = records + self._returned
            self.position = records[0].offset
            self._on_news(self)

    def _begin_chunk(self) -> bool:
        """Continue with the fetched chunk; return False if there is none."""
        if self._chunk is None:
            if self._error is not None:
                self._raise_error()
            return False
        if self.topic_tag and self._chunk.topic_tag != self.topic_tag:
            # The reader continues in a topic that replaced a deleted one, by ``on_out_of_range``.
            self.committed, self.origin = None, self._chunk.start_offset
        self.topic_tag = self._chunk.topic_tag
        self._records = ChunkRecords(self._chunk)
        self._chunk = None
        self._room.set()
        return True

    def _take_of_chunk(self, most: int) -> list[ConsumedRecord]:
        assert self._records is not None, "a chunk has started"
        try:
            records = self._records.take(most)
        except ClientError:
            # Fetch the chunk again: another node may have an undamaged replica.
            self._go_on(self._records.next_offset)
            raise
        self._goes_on_at = self._records.next_offset
        if self._records.is_done:
            self._records = None
        self.position = self._goes_on_at
        return records

    # -- fetching ----------------------------------------------------------------------------------

    async def _fetch(self, rest_ms: float) -> None:
        if rest_ms:
            await self._clock.sleep(rest_ms)
        async with self._open_reader(self.where, self._start, self.topic_tag) as reader:
            self._reader = reader
            at = await reader.locate()
            if self.position is None:
                self.position = at
                self.topic_tag = reader.topic_tag
            if self.origin is None:
                self.origin = at
            self._on_news(self)
            self._room.set()
            async for chunk in reader.chunks():
                while self._chunk is not None:
                    self._room.clear()
                    await self._room.wait()
                self._chunk = chunk
                self._on_news(self)

    def _next_offset(self) -> int:
        return self._returned[0].offset if self._returned else self._goes_on_at

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        assert error is not None
        if not self.topic_tag and self._reader is not None:
            self.topic_tag = self._reader.topic_tag
        self._go_on(self._start if self.position is None else self.position)
        raise error

    def _stop(self) -> None:
        task = self._task
        if task is not None and not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if task is not self._task:
            return
        # The reader has no end, so it stops only by an error. An error other than ``ClientError`` is a bug: raise it.
        if error is not None and not isinstance(error, ClientError):
            raise error
        self._error = error
        self._room.set()
        self._on_news(self)
