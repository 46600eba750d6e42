"""Watch the partitions of a stream: where they end now, and when that changes (asyncio).

A partition without new records is *watched*: a fetch at its end waits at the node until a record arrives. While it
waits, the partition needs no other request. So an idle stream costs a few requests a second, for any number of
partitions, and sees a new record at once.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

from milena.client import Client
from milena.cluster.first_of import first_of
from milena.cluster.view import TopicView
from milena.errors import ClientError, OutOfRangeError, TargetNotFoundError
from milena.model.clock import Clock
from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds, TimeQuery
from spark_ext.cluster.patience import patiently
from spark_ext.cluster.questions import Questions, all_urls
from spark_ext.options.parsing import ReadOptions
from spark_ext.options.selection import named_topics, selects
from spark_ext.streaming.plan import Sighting

METADATA_AGE_MS = 5_000
"""How long new topics and partitions may go unnoticed, in ms; the client's maximum age of metadata."""

WATCHES_MAX = 900
"""The most fetches that wait at the same time, each on its own connection; more partitions take turns."""

WATCH_MS_MIN = 5_000
WATCH_MS_PER_PARTITION = 125
"""How long a watch waits, in ms: eight requests a second in all, and at most one per partition in five seconds."""

EMPTY_REST_MS = 50
"""The pause after an empty response, in ms: a node that is stopping responds to a watch at once."""

FAILED_REST_MS = 1_000
"""The pause after a failed watch before its partition is asked again, in ms."""

SAMPLE_BYTES = 32 << 10
"""How many bytes of a partition to fetch to estimate the size of its records; at least one batch."""

logger = logging.getLogger(__name__)

_Place = tuple[TopicPartition, str | None]
"""A partition, and the id of its topic."""


class StreamWatch:
    """The watch over the partitions that a stream selects. One event loop owns it."""

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
        """Return the selected partitions and their ends.

        A topic of ``known`` that the metadata lacks is asked for by name before it counts as deleted.

        Raises:
            ClientError: the cluster does not respond.
        """
        return await patiently(
            lambda: self._look(known),
            self._clock,
            patience_ms=self._options.fetching.poll_timeout_ms,
            # A topic was deleted after the metadata were fetched.
            can_pass=lambda error: isinstance(error, TargetNotFoundError),
            before_retry=self.mark_stale,
        )

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
        """Stop the watches of other partitions than ``places``; keep only ends that a running watch confirms."""
        for place in self._watches.keys() - set(places):
            self._watches.pop(place).cancel()
        self._watches = {p: task for p, task in self._watches.items() if not task.done()}
        self._ends = {place: self._ends[place] for place in self._watches}

    def mark_stale(self) -> None:
        """Forget what was seen, so that the next ``look`` asks again."""
        self._client.metadata.mark_stale()
        self._forget(())

    async def offsets_at(self, queries: Sequence[TimeQuery]) -> list[int | None]:
        """Return the offset of the first record at or after each time; None if there is none."""
        return await self._questions.ask_all(self._questions.offset_at, queries)

    async def record_bytes(self, places: Sequence[tuple[TopicPartition, int]]) -> list[float]:
        """Return the stored bytes of one offset at each place, estimated from its first records; 0 if unknown."""
        return await self._questions.ask_all(self._record_bytes, places)

    async def _record_bytes(self, place: tuple[TopicPartition, int]) -> float:
        partition, offset = place
        try:
            answer = await self._client.transport.fetch(
                *partition, offset=offset, max_bytes=SAMPLE_BYTES, wait_ms=0
            )
        # The place was deleted since the last look. The tasks that read there report the loss.
        except (OutOfRangeError, TargetNotFoundError):
            return 0.0
        count = answer.next_offset - answer.start_offset
        return len(answer.data) / count if count > 0 else 0.0

    async def wait(self, timeout_ms: float) -> None:
        """Wait until a partition may have more records than at the last ``look``, or until the timeout."""
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
        """Return the URLs of all nodes that tasks may ask."""
        return await all_urls(self._client, self._options.fetching)

    def close(self) -> None:
        """Cancel all watches."""
        self._forget(())
