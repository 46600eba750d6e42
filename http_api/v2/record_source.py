"""The source of a stream of one partition's records, in pieces.

A source reads a limited amount at a time, waits if there are no records, and continues after a change of leader.
``streaming.answer`` drives it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from http_api.describing.schemas import integer_text
from http_api.formats.answers import rows_of
from http_api.formats.framing import frame
from http_api.formats.rows import RowWriter
from http_api.formats.selection import select
from http_api.ports.node import Ports
from http_api.protocol.media import RecordFormat, StreamFraming
from http_api.records.topic_tags import EXAMPLE, split, tag_of, tagged
from http_api.serving.places import (
    KEEP_ALIVE_MS,
    PASSING_ERRORS,
    PIECE_BYTES,
    RETRY_S_TOTAL,
    Retries,
)
from milena.model.errors import MalformedRequestError
from milena.model.requests import Doubt, FetchRequest, FetchResult

_THREAD_BYTES_MIN = 1 << 20
"""Batches above this size, in bytes, are encoded on another thread."""

NOT_THERE_YET_MS = 1_000
"""How long to wait on a replica for records that its leader has committed, which the replica knows a moment later."""


class Resumed(NamedTuple):
    """The position at which a stream resumes: the offset after the last event, and the tag of the event's topic."""

    topic_tag: str
    next_offset: int


def parse_event_id(text: str) -> Resumed:
    """Parse the id of an event.

    Raises:
        MalformedRequestError: the id has another form, or does not name its topic.
    """
    tag, last = split(text)
    if not (last.isascii() and last.isdigit()):
        raise MalformedRequestError(f"Last-Event-ID '{text}' is not the id of an event")
    if not tag:
        raise MalformedRequestError(
            f"Last-Event-ID '{text}' does not name its topic, which may have been made again since. "
            f"Send an id as events have it, such as {EXAMPLE}.{text}, or begin with ?offset= and no id"
        )
    return Resumed(tag, integer_text("Last-Event-ID", last) + 1)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records as JSON texts, and their offsets. ``damaged_at`` is the offset of a damaged record behind them."""

    topic_id: str
    rows: Sequence[bytes]
    offsets: Sequence[int]
    start_offset: int
    next_offset: int
    damaged_at: int | None
    is_large: bool
    """Whether the piece is large enough to be encoded on another thread."""

    async def framed(self, framing: StreamFraming, ids: Iterable[bytes]) -> bytes:
        """Return the piece as lines or events. ``ids`` are the ids of events, one per record."""
        if self.is_large:
            return await asyncio.to_thread(frame, framing, self.rows, ids)
        return frame(framing, self.rows, ids)


class RecordSource:
    """One client's read of a partition.

    The read ends after ``count`` records (None: no limit). If it does not follow the partition, it also ends at the end
    that the partition had at the start. With a ``timeout_ms`` in ``request``, it instead ends after that time without
    new records.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        request: FetchRequest,
        format: RecordFormat,  # noqa: A002  (what the parameter is called)
        count: int | None,
        is_following: bool,
        topic_tag: str = "",
    ) -> None:
        """Prepare to read. ``topic_tag`` is the tag of the topic that must be read; empty: any topic of this name."""
        self._reads = ports.reads
        self._wait_ms = min(KEEP_ALIVE_MS, ports.limits.fetch_wait_ms_max)
        self._idle_ms = request.timeout_ms
        self._request = replace(
            request,
            timeout_ms=0,
            max_bytes=min(request.max_bytes, PIECE_BYTES),
            topic_tag=topic_tag,
        )
        self._format = format
        self._left = count
        self._is_following = is_following
        self._retries = Retries()

    async def bodies(self, framing: StreamFraming) -> AsyncGenerator[bytes, None]:
        """Yield the pieces as lines or events. The id of an event has its topic's tag and its offset."""
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                head = tagged(piece.topic_id, "").encode()
                ids = (head + b"%d" % offset for offset in piece.offsets)
                yield await piece.framed(framing, ids)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield all pieces, and an empty one now and then if there are no records.

        An error before the first piece is raised. After it, temporary errors are retried.
        """
        result, piece = await self._read()
        end = result.readable_end
        # A stream that ends at the partition's end tells its client that there are no further records. For that, the
        # end must be the leader's, and not the older one of a replica.
        is_end_known = self._is_following or self._idle_ms > 0 or self._request.is_local
        silent_ms = 0
        is_first = True
        while True:
            if self._left is not None:
                self._left -= len(piece.rows)
            has_moved = piece.next_offset > result.start_offset
            silent_ms = 0 if has_moved else silent_ms + self._request.timeout_ms
            is_over = self._left == 0 or self._is_over(piece.next_offset, end, silent_ms)
            if piece.rows or is_first or not is_over:
                yield piece
            if is_over and piece.rows and not (is_end_known or self._left == 0):
                end = await self._confirmed_end()
                is_end_known = True
                is_over = piece.next_offset >= end
            if is_over:
                return
            is_first = False
            self._go_on(piece.next_offset, end, silent_ms)
            result, piece = await self._read_on()

    async def _confirmed_end(self) -> int:
        """Return the partition's current end, as its leader knows it.

        The replica that was read may have lost the connection to its leader, and may not have all acknowledged records.
        """
        request = self._request
        offsets = await self._reads.offsets(request.topic, request.partition)
        return offsets.high_watermark if request.is_uncommitted else offsets.readable_end

    def _is_over(self, next_offset: int, end: int, silent_ms: int) -> bool:
        if self._is_following:
            return False
        if self._idle_ms == 0:
            return next_offset >= end or silent_ms >= RETRY_S_TOTAL * 1000
        return silent_ms >= self._idle_ms

    def _go_on(self, next_offset: int, end: int, silent_ms: int) -> None:
        wait_ms = self._wait_ms
        if not self._is_following:
            wait_ms = min(wait_ms, max(self._idle_ms - silent_ms, 0))
            if next_offset < end:
                wait_ms = max(wait_ms, NOT_THERE_YET_MS)
        self._request = replace(
            self._request,
            offset=next_offset,
            timestamp_ms=None,
            timeout_ms=wait_ms,
        )

    async def _read_on(self) -> tuple[FetchResult, Piece]:
        while True:
            try:
                found = await self._read()
            except PASSING_ERRORS as error:
                await self._retries.wait_after(error)
                # Retry without a wait for records. Otherwise a few retries would take far longer than they may in all.
                self._request = replace(self._request, timeout_ms=0)
            else:
                self._retries.reset()
                return found

    async def _read(self) -> tuple[FetchResult, Piece]:
        """Read the next records; if one is damaged, only the records before it.

        Raises:
            ReplicaDamagedError: the first record is damaged.
        """
        result = await self._reads.fetch(self._request)
        # Keep the tag, so that the stream does not continue in another topic of the same name.
        self._request = replace(self._request, topic_tag=tag_of(result.topic_id))
        piece = await self._encode(result)
        if piece.damaged_at is not None:
            doubt = Doubt(
                topic=self._request.topic,
                partition=self._request.partition,
                offset=piece.damaged_at,
                broker_id=result.broker_id,
            )
            await self._reads.doubt(doubt)
            if not piece.rows:
                raise doubt.error
        return result, piece

    async def _encode(self, result: FetchResult) -> Piece:
        if len(result.batches) < _THREAD_BYTES_MIN:
            return self._piece_of(result)
        return await asyncio.to_thread(self._piece_of, result)

    def _piece_of(self, result: FetchResult) -> Piece:
        selection = select(result, count=self._left, bytes_max=PIECE_BYTES)
        writer = RowWriter(self._request.topic, self._request.partition)
        rows = rows_of(writer, selection, self._format)
        return Piece(
            rows=rows,
            offsets=[offset for piece in selection.slices for offset in piece.offsets],
            topic_id=result.topic_id,
            start_offset=result.start_offset,
            next_offset=selection.next_offset,
            damaged_at=selection.damaged_at,
            is_large=len(result.batches) >= _THREAD_BYTES_MIN,
        )
