"""A stream's eyes: where its partitions end now, and when that changes (asyncio shell).

A partition that has nothing new is *watched*: a fetch at its end waits at the node until there is something, and as
long as it waits nothing has to be asked. So an idle stream costs a few requests a second however many partitions it
reads, and hears of a record at once.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

from milena.client import Client
from milena.cluster.first_of import first_of
from milena.cluster.view import TopicView
from milena.errors import ClientError, OutOfRangeError, TargetNotFoundError
from milena.model.clock import Clock
from milena.reading.patience import Patience
from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds, TimeQuery
from spark_ext.cluster.questions import Questions, all_urls
from spark_ext.options.parsing import ReadOptions
from spark_ext.options.selection import named_topics, selects
from spark_ext.streaming.plan import Sighting

METADATA_AGE_MS = 5_000
"""How long new topics and partitions may go unnoticed; the age that the client is given."""

WATCHES_MAX = 900
"""Fetches that wait at the same time, each on a connection of its own; beyond it partitions take turns."""

WATCH_MS_MIN = 5_000
WATCH_MS_PER_PARTITION = 125
"""The longer each waits, the fewer requests: eight a second, and at most one for each in five seconds."""

EMPTY_REST_MS = 50
"""A node that stops answers at once that there is nothing."""

FAILED_REST_MS = 1_000
"""After a watch that failed its partition is asked again, but not sooner than this."""

SAMPLE_BYTES = 32 << 10
"""Of a partition, to tell how large its records are; at least a batch."""

logger = logging.getLogger(__name__)

_Place = tuple[TopicPartition, str | None]
"""A partition, and the id of its topic."""


class StreamWatch:
    """Looks at the partitions that a stream selects. Owned by one event loop."""

    def __init__(self, client: Client, options: ReadOptions, clock: Clock) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._questions = Questions(
            client, options, clock=clock, patience_ms=options.fetching.poll_timeout_ms
        )
        self._ends: dict[_Place, PartitionEnds] = {}
        self._watches: dict[_Place, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(WATCHES_MAX)
        self._news = asyncio.Event()

    async def look(self, known: Collection[str] = ()) -> Sighting:
        """The selected partitions and their ends; topics of ``known`` are asked for by name before they are gone.

        Raises:
            ClientError: the cluster does not answer.
        """
        patience = Patience(self._options.fetching.poll_timeout_ms)
        while True:
            try:
                return await self._look(known)
            # A topic was deleted since the metadata are from.
            except TargetNotFoundError:
                wait_ms = patience.on_failure(self._clock.now_ms())
                if wait_ms is None:
                    raise
            self.mark_stale()
            await self._clock.sleep(wait_ms)

    async def _look(self, known: Collection[str]) -> Sighting:
        self._news.clear()
        topics = await self._topics(known)
        places: list[_Place] = [
            (partition, topic.topic_id)
            for name, topic in sorted(topics.items())
            for partition in (TopicPartition(name, n) for n in range(len(topic.partitions)))
            if selects(self._options.selection, partition)
        ]
        self._forget(places)
        unsure = [place for place in places if place not in self._ends]
        answers = await self._questions.ask_all(
            self._questions.ends_of, [partition for partition, _ in unsure]
        )
        found = self._ends | dict(zip(unsure, answers, strict=True))
        self._ends = {place: found[place] for place in places}
        return Sighting(
            ends={partition: ends for (partition, _), ends in self._ends.items()},
            topic_ids={partition.topic: topic_id for partition, topic_id in places},
        )

    async def _topics(self, known: Collection[str]) -> dict[str, TopicView]:
        return await self._questions.topics({*named_topics(self._options.selection), *known})

    def _forget(self, places: Sequence[_Place]) -> None:
        """Keep nothing but the ends that are still watched, of places that are still there."""
        for place in self._watches.keys() - set(places):
            self._watches.pop(place).cancel()
        self._watches = {p: task for p, task in self._watches.items() if not task.done()}
        self._ends = {place: self._ends[place] for place in self._watches}

    def mark_stale(self) -> None:
        """What was seen is to be asked anew."""
        self._client.metadata.mark_stale()
        self._forget(())

    async def offsets_at(self, queries: Sequence[TimeQuery]) -> list[int | None]:
        """The first record at or after each time; None without one."""
        return await self._questions.ask_all(self._questions.offset_at, queries)

    async def record_bytes(self, places: Sequence[tuple[TopicPartition, int]]) -> list[float]:
        """How many stored bytes an offset takes from each place on, as the first ones there do; 0: nobody can tell."""
        return await self._questions.ask_all(self._record_bytes, places)

    async def _record_bytes(self, place: tuple[TopicPartition, int]) -> float:
        partition, offset = place
        try:
            answer = await self._client.transport.fetch(
                *partition, offset=offset, max_bytes=SAMPLE_BYTES, wait_ms=0
            )
        # Gone since it was looked at: who reads there will say so.
        except (OutOfRangeError, TargetNotFoundError):
            return 0.0
        count = answer.next_offset - answer.start_offset
        return len(answer.data) / count if count > 0 else 0.0

    async def wait(self, timeout_ms: float) -> None:
        """Wait until some partition may have more than when it was looked at, or for so long."""
        wait_ms = max(WATCH_MS_MIN, WATCH_MS_PER_PARTITION * min(len(self._ends), WATCHES_MAX))
        for place in self._ends.keys() - self._watches.keys():
            end = self._ends[place].high_watermark
            self._watches[place] = asyncio.create_task(self._watch(place[0], end, wait_ms))
        await first_of(self._news.wait(), self._clock.sleep(timeout_ms))

    async def _watch(self, partition: TopicPartition, end: int, wait_ms: int) -> None:
        try:
            async with self._room:
                while await self._end_after(partition, end, wait_ms) == end:
                    await self._clock.sleep(EMPTY_REST_MS)
        except ClientError as error:
            logger.info("%s is asked again: %s", partition, error.message)
            await self._clock.sleep(FAILED_REST_MS)
        self._news.set()

    async def _end_after(self, partition: TopicPartition, end: int, wait_ms: int) -> int:
        answer = await self._client.transport.fetch(
            *partition, offset=end, max_bytes=1, wait_ms=wait_ms
        )
        return answer.readable_end

    async def urls(self) -> tuple[str, ...]:
        """URLs of all nodes that tasks may ask."""
        return await all_urls(self._client, self._options.fetching)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._forget(())
