"""The feeds of all partitions that a consumer reads: whose records come next, and how much each may buffer."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import ClusterTransport
from milena.consuming.feed import Feed
from milena.consuming.options import ConsumerOptions
from milena.errors import TargetNotFoundError, UnreadableOffsetError
from milena.model.clock import Clock
from milena.reading.cursor import OnOutOfRange, ReadPlan
from milena.reading.reader import PartitionReader
from milena.records import ConsumedRecord, Position, StartAt, TopicPartition

logger = logging.getLogger(__name__)

FETCH_BYTES_MIN = 64 << 10
PREFETCH_CHUNKS = 2
FEW_FEEDS = 16
"""With more feeds than this, each fetches only one response ahead."""

GONE_REST_MS = 1_000
"""Interval in which a group's member looks for a deleted topic, in ms, because the topic may be created again."""

Run = tuple[Feed, list[ConsumedRecord]]


class Feeds:
    """Feeds by partition. They take turns: after a feed has given records, all others with records come first."""

    def __init__(
        self,
        options: ConsumerOptions,
        *,
        transport: ClusterTransport,
        metadata: MetadataCache,
        clock: Clock,
        on_news: Callable[[], None],
    ) -> None:
        self._options = options
        self._transport = transport
        self._metadata = metadata
        self._clock = clock
        self._on_news = on_news
        self._feeds: dict[TopicPartition, Feed] = {}
        self._line: deque[Feed] = deque()
        self.outlasts_topics = False
        """True if a deleted topic is no error, because the group's coordinator notices it and revokes the partition.

        If the topic is created again at once, reading continues in the new topic.
        """

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds.values())

    def find(self, where: TopicPartition) -> Feed | None:
        """Return the feed of a partition, or None if it is not read."""
        return self._feeds.get(where)

    def add(
        self, starts: Mapping[TopicPartition, Position], committed: Mapping[TopicPartition, int]
    ) -> None:
        """Add feeds for these partitions; the caller then calls ``begin`` of each.

        They begin only when all are added, because the number of feeds decides how much each may buffer.
        """
        for where, start in sorted(starts.items(), key=lambda entry: entry[0]):
            feed = Feed(where, start, open_reader=self._open, clock=self._clock, on_news=self._note)
            feed.committed = committed.get(where)
            self._feeds[where] = feed

    async def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = [feed for where in partitions if (feed := self._feeds.pop(where, None))]
        self._line = deque(feed for feed in self._line if feed not in gone)
        await asyncio.gather(*(feed.close() for feed in gone))

    def take(self, most: int, *, is_one_run: bool) -> list[Run]:
        """Return the next records in turn: at most ``most``, or those of one partition only (``is_one_run``).

        Raises:
            ClientError: a partition cannot be read, and no other partition has records.
        """
        runs: list[Run] = []
        left = most
        # ``_line`` holds only feeds with records. A paused or empty feed is removed, and added with its next records.
        for _ in range(len(self._line)):
            feed = self._line[0]
            if runs and (left <= 0 or is_one_run or feed.has_failed):
                break
            self._line.popleft()
            records = self._take_of(feed, left)
            if feed.has_news:
                self._line.append(feed)
            if records:
                runs.append((feed, records))
                left -= len(records)
        return runs

    def resume(self, feed: Feed) -> None:
        """Give records of this feed again."""
        feed.is_paused = False
        self._note(feed)

    def _take_of(self, feed: Feed, most: int) -> list[ConsumedRecord]:
        try:
            return feed.take(most) if feed.has_news else []
        except TargetNotFoundError:
            if not self.outlasts_topics:
                raise
            feed.restart(self._start_of_successor, rest_ms=GONE_REST_MS)
        except UnreadableOffsetError as error:
            if not (self.outlasts_topics and error.is_made_again):
                raise
            logger.warning("the member continues in the new topic: %s", error)
            feed.restart(self._start_of_successor)
        return []

    @property
    def _start_of_successor(self) -> Position:
        """Where to begin in a topic that was created again."""
        match self._options.on_out_of_range:
            case OnOutOfRange.EARLIEST:
                return StartAt.EARLIEST
            case OnOutOfRange.LATEST:
                return StartAt.LATEST
            case OnOutOfRange.FAIL:
                return self._options.start

    def _note(self, feed: Feed) -> None:
        if feed.has_news and feed not in self._line and self._feeds.get(feed.where) is feed:
            self._line.append(feed)
        self._on_news()

    def _open(self, where: TopicPartition, start: Position, topic_tag: str) -> PartitionReader:
        count = len(self._feeds)
        prefetch_chunks = PREFETCH_CHUNKS if count <= FEW_FEEDS else 1
        # The reader buffers ``prefetch_chunks``. The feed holds two more: one that waits, and one that is being taken.
        share = self._options.buffer_bytes // (count * (prefetch_chunks + 2))
        return PartitionReader(
            ReadPlan(
                topic=where.topic,
                partition=where.partition,
                start=start,
                is_following=True,
                on_out_of_range=self._options.on_out_of_range,
                topic_tag=topic_tag,
            ),
            transport=self._transport,
            metadata=self._metadata,
            clock=self._clock,
            max_bytes=min(self._options.fetch_bytes, max(FETCH_BYTES_MIN, share)),
            wait_ms=self._options.fetch_wait_ms,
            prefetch_chunks=prefetch_chunks,
            patience_ms=self._options.patience_ms,
        )
