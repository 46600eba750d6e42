"""Fetch the chunks of planned ranges in order, a few ranges ahead (asyncio), and detect lost records.

The client checks every checksum, follows leaders and retries. This module checks that the records that arrive are the
planned ones. Offsets may have been deleted since planning, and the topic may have been deleted and created again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice

from milena.client import Client
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS_MAX
from milena.cluster.view import TopicView
from milena.errors import (
    AnswerError,
    ClientError,
    TargetNotFoundError,
    UnreadableOffsetError,
    is_worth_another_try,
)
from milena.model.clock import Clock
from milena.reading.patience import Patience
from milena.records import FetchedChunk
from spark_ext.cluster.patience import patiently
from spark_ext.errors import DataLossError, StalledReadError
from spark_ext.options.parsing import Fetching
from spark_ext.reading.paused_loop import PausedClock
from spark_ext.reading.planner import PlannedRange

RANGES_AHEAD = 4
CHUNKS_AHEAD = 2
"""Bounds of the fetched data that Spark has not taken yet: ranges, and chunks of ``fetchBytes`` in each range."""

CATCH_UP_MS = 2_000
"""How far the metadata of two running nodes may be apart, in ms; in practice they are much closer."""

logger = logging.getLogger(__name__)

_Line = asyncio.Queue[FetchedChunk | Exception | None]
"""The chunks of one range, then None, or the error that ended the range."""


async def fetch_ranges(
    ranges: Sequence[PlannedRange], fetching: Fetching
) -> AsyncIterator[FetchedChunk]:
    """Yield the chunks of each range, one range after the other; a chunk's offsets are cut to its range.

    Raises:
        DataLossError: records of a range are lost, and the query fails on data loss.
        StalledReadError: no useful response arrived for as long as the query waits.
    """
    # The loop stops while Spark works on a chunk. A clock that continues would count that time as missing responses.
    clock = PausedClock()
    async with Client(
        fetching.urls,
        credentials=fetching.credentials,
        clock=clock,
        # The driver has reached the cluster, so the addresses are right. A task waits for ``poll_timeout_ms`` and then
        # raises its own error.
        connect_timeout_ms=CONNECT_TIMEOUT_MS_MAX,
    ) as client:
        fetcher = _RangeFetcher(client, fetching, clock)
        waiting = iter(ranges)
        tasks: list[asyncio.Task[None]] = []
        lines: deque[_Line] = deque()
        try:
            while True:
                # Reading a small range takes less time than its round trip, so the next ranges are fetched ahead.
                # Each range has its own queue, because Spark gets the ranges in order.
                for r in islice(waiting, RANGES_AHEAD - len(lines)):
                    line: _Line = asyncio.Queue(CHUNKS_AHEAD)
                    lines.append(line)
                    tasks.append(asyncio.create_task(fetcher.fill(line, r)))
                if not lines:
                    break
                line = lines.popleft()
                while (found := await line.get()) is not None:
                    if isinstance(found, Exception):
                        raise found
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # This check confirms a complete result. It does not stand in ``finally``, because a read that failed or that
        # the caller stopped has no complete result.
        await fetcher.check_topics(ranges)


class _RangeFetcher:
    """Fetches ranges with one client."""

    def __init__(self, client: Client, fetching: Fetching, clock: Clock) -> None:
        self._client = client
        self._fetching = fetching
        self._clock = clock

    async def fill(self, line: _Line, r: PlannedRange) -> None:
        """Put the chunks of a range into its queue."""
        try:
            if await self._is_same_topic(r):
                await self._fill(line, r)
        # The ranges before this one may still be in their queues. ``fetch_ranges`` raises the error at its place in
        # the order, after their records.
        except Exception as error:  # noqa: BLE001
            await line.put(error)
        else:
            await line.put(None)

    async def _fill(self, line: _Line, r: PlannedRange) -> None:
        position: int | None = r.start
        while position is not None and position < r.end:
            position = await self._fill_from(line, r, position)

    async def _fill_from(self, line: _Line, r: PlannedRange, start: int) -> int | None:
        """Fetch from ``start``; return the offset to continue at, or None if the range has no more records."""
        position = start
        reader = self._client.reader(
            *r.partition,
            start=start,
            end=r.end,
            max_bytes=self._fetching.fetch_bytes,
            prefetch_chunks=1,
            patience_ms=self._fetching.poll_timeout_ms,
        )
        try:
            async with reader:
                async for chunk in reader.chunks():
                    await line.put(chunk)
                    position = chunk.next_offset
        except UnreadableOffsetError as error:
            return self._after_deletion(r, error)
        except TargetNotFoundError as error:
            self._lose(f"{r.partition} does not exist any more", error)
            return None
        except ClientError as error:
            if not is_worth_another_try(error):
                raise
            raise self._stalled(f"{r.partition}, offset {position}", error) from error
        # Offsets without a chunk are no loss: compaction or a transaction left a hole. A partition that now ends
        # below the planned end is a loss, because the records up to that end were committed when it was planned.
        end = reader.end_offset
        if end is not None and end < r.end:
            self._lose(f"{r.partition} ends at offset {end}; records up to {r.end} were there")
        return None

    def _after_deletion(self, r: PlannedRange, error: UnreadableOffsetError) -> int | None:
        self._lose(error.message, error)
        first = error.log_start_offset
        # Continue only if that makes progress and stays in the range; otherwise the loop would not end.
        return first if error.offset < first < r.end else None

    async def _is_same_topic(self, r: PlannedRange) -> bool:
        """Return whether the topic is the planned one. A node's metadata may be older or newer than the plan."""
        topic = r.partition.topic
        patience = Patience(CATCH_UP_MS)
        while True:
            try:
                found = (await self._topic(topic)).topic_id
            except TargetNotFoundError as error:
                self._lose(f"topic {topic} was deleted since the query was planned", error)
                return False
            # A node that has just heard of a topic may not know its id yet. An unknown id proves nothing.
            if found is None or r.topic_id in (None, found):
                return True
            # A different id may come from a node that is behind: ask again before it counts as a loss.
            wait_ms = patience.on_failure(self._clock.now_ms())
            if wait_ms is None:
                self._lose(f"topic {topic} was deleted and made again since the query was planned")
                return False
            self._client.metadata.mark_stale(topic)
            await self._clock.sleep(wait_ms)

    async def _topic(self, name: str) -> TopicView:
        try:
            return await patiently(
                lambda: self._client.metadata.topic(name),
                self._clock,
                patience_ms=self._fetching.poll_timeout_ms,
            )
        except ClientError as error:
            if not is_worth_another_try(error):
                raise
            raise self._stalled(f"topic {name}", error) from error

    async def check_topics(self, ranges: Iterable[PlannedRange]) -> None:
        """Check after the last record that the planned topics still exist. If so, all records came from them."""
        # The check before each range cannot see a topic that is replaced during the read. An id is given to one topic
        # only, so the planned id after the read covers the time between. Cached metadata would not.
        self._client.metadata.mark_stale()
        for r in {r.partition.topic: r for r in ranges}.values():
            await self._is_same_topic(r)

    def _stalled(self, where: str, error: ClientError) -> StalledReadError:
        span = f"{self._fetching.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs)"
        if isinstance(error, AnswerError):
            code = "" if error.error_code is None else f", error {error.error_code}"
            return StalledReadError(
                f"{where}: refused for {span}, status {error.status}{code}: {error.message}"
            )
        return StalledReadError(f"{where}: no answer for {span}: {error.message}")

    def _lose(self, message: str, cause: Exception | None = None) -> None:
        if self._fetching.fail_on_data_loss:
            raise DataLossError(message) from cause
        logger.warning("%s; what there is is read", message)
