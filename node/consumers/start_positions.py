"""Finds start positions of a REST consumer: by reset policy, by name or by time. The partitions' leaders know them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from http_api.ports.groups import Reset, Seek
from milena.model.errors import MilenaError, OffsetOutOfRangeError, PartitionNotFoundError
from milena.model.requests import FetchRequest, FetchResult
from node.consumers.consumer_views import ConsumerView
from node.consumers.cursor import Cursor, OffsetAndEpoch
from node.consumers.session_commits import SessionCommits
from raft_meta.machine.image import PartitionKey

if TYPE_CHECKING:
    from immutables import Map

    from raft_meta.machine.image import Topic

logger = logging.getLogger(__name__)

PARALLEL = 8
"""Number of partitions about which leaders are asked at the same time, for one consumer."""
NO_RESET = "none"


class StartPositions:
    """Finds start positions. Owned by the consumer's session; used only by the call whose turn it is."""

    __slots__ = ("_born", "_commits", "_cursor", "_fetch", "_view")

    def __init__(
        self,
        view: ConsumerView,
        cursor: Cursor,
        commits: SessionCommits,
        fetch: Callable[[FetchRequest], Awaitable[FetchResult]],
    ) -> None:
        self._view = view
        self._cursor = cursor
        self._commits = commits
        self._fetch = fetch
        self._born: Map[str, Topic] = view.image.topics

    async def find(self) -> bool:
        """Set the position of every partition without one; return False if a leader could not be asked.

        With the policy ``latest``, the position is also committed. The next reader of the partition then starts there
        and misses no record that was written in between. It may be another member, or this consumer after a change of
        the coordinator. A partition that was added after the subscription starts at its first record.

        Raises:
            OffsetOutOfRangeError: a partition has no commit, and the policy is ``none``.
        """
        policy = self._view.consumer.auto_offset_reset
        wanted = self._cursor.without_position()
        if wanted and policy == NO_RESET:
            raise OffsetOutOfRangeError(
                f"{self._view.name(wanted[0])} has no committed offset, and auto.offset.reset is none;"
                " seek, or commit one"
            )
        is_complete = True
        pins: dict[PartitionKey, OffsetAndEpoch] = {}
        for start in range(0, len(wanted), PARALLEL):
            some = wanted[start : start + PARALLEL]
            found = await asyncio.gather(*(self._beginning(key, policy) for key in some))
            for key, offset in zip(some, found, strict=True):
                if offset is None:
                    is_complete = False
                    continue
                self._cursor.put(key, offset)
                if policy == Reset.LATEST:
                    pins[key] = OffsetAndEpoch(offset, -1)
        if pins:
            await self._commits.commit_quietly(pins)
        return is_complete

    async def _beginning(self, key: PartitionKey, policy: str) -> int | None:
        topic = self._born.get(key[0])
        was_there = topic is not None and key[1] < topic.partition_count
        where = Reset(policy) if was_there else Reset.EARLIEST
        try:
            return await self.offset_of(key, where)
        except MilenaError as error:
            logger.debug("no beginning for %s: %s", self._view.name(key), error)
            return None

    async def of_seek(self, key: PartitionKey, seek: Seek) -> int:
        """Return the offset to which a seek points."""
        if seek.offset is not None:
            return seek.offset
        if seek.timestamp_ms is not None:
            return await self.offset_of(key, seek.timestamp_ms)
        assert seek.name is not None, "one of the three is set"
        return await self.offset_of(key, seek.name)

    async def offset_of(self, key: PartitionKey, where: Reset | int) -> int:
        """Return the offset of a name, or of the first record at or after a wall time in ms, as the leader knows it."""
        if isinstance(where, Reset):
            result = await self.fetch(key, where.value, max_bytes=1)
        else:
            result = await self.fetch(key, 0, max_bytes=1, timestamp_ms=where)
        return result.start_offset

    async def fetch(
        self,
        key: PartitionKey,
        offset: int | str,
        *,
        max_bytes: int,
        timestamp_ms: int | None = None,
        is_unconfirmed: bool = False,
    ) -> FetchResult:
        """Read the records that are there now. ``is_unconfirmed``: see ``FetchRequest``.

        Raises:
            PartitionNotFoundError: the topic was deleted, and perhaps created again.
            MilenaError: as ``RecordsPort.fetch``.
        """
        topic = self._view.image.topics.get(key[0])
        if topic is None:
            raise PartitionNotFoundError(f"partition {key[1]} of {key[0]} was deleted")
        result = await self._fetch(
            FetchRequest(
                topic=topic.name,
                partition=key[1],
                offset=offset,
                timestamp_ms=timestamp_ms,
                max_bytes=max_bytes,
                timeout_ms=0,
                is_local=False,
                is_unconfirmed=is_unconfirmed,
            )
        )
        if self._view.image.topic_ids.get(topic.name) != key[0]:
            raise PartitionNotFoundError(f"topic {topic.name!r} is another one now")
        return result

    async def reset(self, key: PartitionKey, error: OffsetOutOfRangeError) -> None:
        """Move a position that is outside the log to the position that the policy gives.

        Raises:
            OffsetOutOfRangeError: the policy is ``none``.
            MilenaError: the leader could not be asked.
        """
        policy = self._view.consumer.auto_offset_reset
        if policy == NO_RESET:
            raise error
        position = await self.offset_of(key, Reset(policy))
        logger.info(
            "consumer=%s/%s goes on at offset=%d of %s: %s",
            *self._view.key,
            position,
            self._view.name(key),
            error.message,
        )
        self._cursor.put(key, position)

    def begin_anew(self) -> None:
        """Note that the subscription changed. From now on, only later partitions start at their first record."""
        self._born = self._view.image.topics
