"""Questions of the driver to the cluster: topics, ends of partitions, offsets of times."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from milena.client import Client
from milena.cluster.routing import NodeRoutes
from milena.cluster.view import TopicView
from milena.errors import ClientError, TargetNotFoundError
from milena.model.clock import Clock, SystemClock
from milena.reading.patience import Patience
from milena.records import StartAt, TimestampMs, TopicPartition
from spark_ext.cluster.ends import PartitionEnds, TimeQuery
from spark_ext.options.parsing import Fetching, ReadOptions, WriteOptions

ELECTION_MS = 30_000
"""How long a partition may be without a leader before the query fails; an election takes a second."""

QUESTIONS_AT_ONCE = 32
"""A thousand partitions are asked about in a few round trips, and no node is flooded."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")


async def all_urls(client: Client, given: Fetching | WriteOptions) -> tuple[str, ...]:
    """URLs that the user named, and of all other nodes: the one named may be down by the time that a task begins.

    To a task's client all of them are named; so those are left out to which this one sends no credentials.
    """
    nodes = (await client.metadata.view()).nodes
    routes = NodeRoutes(given.urls, is_guarded=given.credentials.is_guarded)
    live = (node.url for node in nodes if node.is_live and routes.may_ask(node.url))
    return tuple(dict.fromkeys((*given.urls, *live)))


class Questions:
    """Questions that are repeated while their failure can pass, for ``patience_ms`` where a partition is asked."""

    def __init__(
        self,
        client: Client,
        options: ReadOptions,
        *,
        clock: Clock | None = None,
        patience_ms: float = ELECTION_MS,
    ) -> None:
        self._client = client
        self._options = options
        self._clock = SystemClock() if clock is None else clock
        self._patience_ms = patience_ms
        self._room = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def topics(self, names: Collection[str]) -> dict[str, TopicView]:
        """All topics by name; those of ``names`` are in it if they exist."""
        view = await self._first_contact(self._client.metadata.view)
        topics = {topic.name: topic for topic in view.topics}
        # A node may not have heard of a new topic yet; by its name it asks the quorum.
        for name in sorted(set(names) - topics.keys()):
            topics |= await self._topic(name)
        return topics

    async def _topic(self, name: str) -> dict[str, TopicView]:
        try:
            return {name: await self._client.metadata.topic(name)}
        except TargetNotFoundError:
            return {}

    async def _first_contact(self, ask: Callable[[], Awaitable[T]]) -> T:
        """As often as the user said: a wrong URL should not take long to be told from a right one."""
        for _ in range(self._options.retries):
            try:
                return await ask()
            except ClientError as error:
                if not error.is_retriable:
                    raise
                logger.info("asking the cluster again: %s", error.message)
            await self._clock.sleep(self._options.retry_interval_ms)
        return await ask()

    async def ask_all(self, ask: Callable[[Q], Awaitable[T]], questions: Sequence[Q]) -> list[T]:
        """The answers, in the order of the questions."""
        return await asyncio.gather(*(self._patiently(ask, question) for question in questions))

    async def _patiently(self, ask: Callable[[Q], Awaitable[T]], question: Q) -> T:
        patience = Patience(self._patience_ms)
        async with self._room:
            while True:
                try:
                    return await ask(question)
                except ClientError as error:
                    wait_ms = patience.on_failure(self._clock.now_ms())
                    if wait_ms is None or not error.is_retriable:
                        raise
                    self._client.metadata.mark_stale()
                await self._clock.sleep(wait_ms)

    async def ends_of(self, partition: TopicPartition) -> PartitionEnds:
        """Readable offsets of a partition now, as its leader says."""
        answer = await self._client.transport.fetch(
            *partition, offset=StartAt.LATEST, max_bytes=1, wait_ms=0
        )
        return PartitionEnds(
            log_start_offset=answer.log_start_offset, high_watermark=answer.start_offset
        )

    async def offset_at(self, query: TimeQuery) -> int | None:
        """The first record at or after a time; None without one."""
        partition, timestamp_ms = query
        answer = await self._client.transport.fetch(
            *partition, offset=TimestampMs(timestamp_ms), max_bytes=1, wait_ms=0
        )
        return None if answer.start_offset >= answer.readable_end else answer.start_offset
