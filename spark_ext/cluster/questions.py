"""The driver's requests to the cluster: topics, ends of partitions, offsets of times."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from milena.client import Client
from milena.cluster.routing import NodeRoutes
from milena.cluster.view import TopicView
from milena.errors import ClientError, TargetNotFoundError
from milena.model.clock import Clock, SystemClock
from milena.records import StartAt, TimestampMs, TopicPartition
from spark_ext.cluster.ends import PartitionEnds, TimeQuery
from spark_ext.cluster.patience import patiently
from spark_ext.options.parsing import Fetching, ReadOptions, WriteOptions

ELECTION_MS = 30_000
"""How long a partition may have no leader before the query fails, in ms; an election takes a second."""

QUESTIONS_AT_ONCE = 32
"""The most requests in flight: a thousand partitions take a few round trips, and no node is overloaded."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")


async def all_urls(client: Client, given: Fetching | WriteOptions) -> tuple[str, ...]:
    """Return the URLs that the user named and those of all live nodes: a named node may be down when a task starts.

    Nodes to which ``client`` sends no credentials are left out, because a task's client sends its credentials to every
    URL of the result.
    """
    nodes = (await client.metadata.view()).nodes
    routes = NodeRoutes(given.urls, is_guarded=given.credentials.is_guarded)
    live = (node.url for node in nodes if node.is_live and routes.may_ask(node.url))
    return tuple(dict.fromkeys((*given.urls, *live)))


class Questions:
    """Requests that are retried while their error can pass; those about a partition for at most ``patience_ms``."""

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
        """Return all topics by name, including those of ``names`` that exist."""
        view = await self._first_contact(self._client.metadata.view)
        topics = {topic.name: topic for topic in view.topics}
        # A node may not have heard of a new topic yet. Asked for it by name, the node asks the quorum.
        for name in sorted(set(names) - topics.keys()):
            topics |= await self._topic(name)
        return topics

    async def _topic(self, name: str) -> dict[str, TopicView]:
        try:
            return {name: await self._client.metadata.topic(name)}
        except TargetNotFoundError:
            return {}

    async def _first_contact(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry as often as the options say, not by time: a wrong URL should fail soon."""
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
        """Return the responses, in the order of ``questions``."""
        return await asyncio.gather(*(self._patiently(ask, question) for question in questions))

    async def _patiently(self, ask: Callable[[Q], Awaitable[T]], question: Q) -> T:
        async with self._room:
            return await patiently(
                lambda: ask(question),
                self._clock,
                patience_ms=self._patience_ms,
                can_pass=lambda error: error.is_retriable,
                before_retry=self._client.metadata.mark_stale,
            )

    async def ends_of(self, partition: TopicPartition) -> PartitionEnds:
        """Return the current readable offsets of a partition, from its leader."""
        answer = await self._client.transport.fetch(
            *partition, offset=StartAt.LATEST, max_bytes=1, wait_ms=0
        )
        return PartitionEnds(
            log_start_offset=answer.log_start_offset, high_watermark=answer.start_offset
        )

    async def offset_at(self, query: TimeQuery) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none."""
        partition, timestamp_ms = query
        answer = await self._client.transport.fetch(
            *partition, offset=TimestampMs(timestamp_ms), max_bytes=1, wait_ms=0
        )
        return None if answer.start_offset >= answer.readable_end else answer.start_offset
