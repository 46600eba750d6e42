"""Rebalancing: the steps with which a consumer gives up, takes and loses partitions (asyncio shell).

- Give up: call the listener, commit the offsets of finished records, stop fetching, and then report it to the group.
- Take: get the committed offsets, call the listener (which may seek), and then fetch.
- Lose: stop fetching, call the listener, commit nothing.

The steps run between two polls, when the application works on no records.
"""

import logging
from collections.abc import Callable, Mapping, Set
from inspect import isawaitable

from milena.cluster.group_views import GroupOffset
from milena.consuming.assignment import Assignment
from milena.consuming.feeds import Feeds
from milena.consuming.group import GroupLink, OffsetCommits
from milena.consuming.group_calls import GroupCalls
from milena.consuming.options import ConsumerOptions, RebalanceListener
from milena.errors import ClientError, is_worth_another_try
from milena.model.clock import Clock
from milena.reading.patience import Patience
from milena.records import Position, StartAt, TopicPartition

logger = logging.getLogger(__name__)


class Rebalancer:
    """Runs the steps until the partitions that a consumer reads are those of its assignment."""

    def __init__(
        self,
        options: ConsumerOptions,
        *,
        assignment: Assignment,
        feeds: Feeds,
        calls: GroupCalls,
        clock: Clock,
        commits: OffsetCommits | None,
        link: GroupLink | None,
        is_growing: bool = False,
    ) -> None:
        """Build a rebalancer. ``is_growing``: all partitions of some topics are read, and more may be added later."""
        self.assignment = assignment
        self._is_growing = is_growing
        self._options = options
        self._feeds = feeds
        self._calls = calls
        self._clock = clock
        self._commits = commits
        self._link = link
        self._listener = options.listener or RebalanceListener()
        self._has_begun = False

    async def adopt(self) -> None:
        """Give up, take and lose partitions until the consumer reads exactly what it should.

        Raises:
            ClientError: the committed offsets cannot be fetched.
            Exception: an error of the listener, raised after the step was finished.
        """
        while self.assignment.is_due:
            if self.assignment.is_lost:
                await self._lose()
            elif self.assignment.revoked:
                await self.give_back(self.assignment.revoked, patience_ms=self._options.patience_ms)
            else:
                await self._take_on(self.assignment.added)

    async def give_back(self, partitions: Set[TopicPartition], *, patience_ms: float) -> None:
        """Give up these partitions. If the listener raises, their offsets are not committed."""
        try:
            await self._tell(self._listener.on_revoked, partitions)
            if self._options.auto_commit:
                feeds = [feed for feed in self._feeds if feed.where in partitions]
                await self.commit_quietly({f.where: f.position for f in feeds}, patience_ms)
        finally:
            await self._feeds.drop(partitions)
            self.assignment.give_back(partitions)
            if self._link is not None:
                self._link.hurry()

    async def part_for_good(self, *, patience_ms: float) -> None:
        """Give up all partitions, because the consumer ends. If they are lost, tell the listener."""
        if self.assignment.is_lost:
            await self._lose()
        elif self.assignment.owned:
            await self.give_back(self.assignment.owned, patience_ms=patience_ms)

    async def commit_quietly(
        self, positions: Mapping[TopicPartition, int | None], patience_ms: float
    ) -> None:
        """Commit the positions that changed. Log a failure instead of raising it: some records are then read twice."""
        try:
            await self.commit(positions, patience_ms)
        except ClientError as error:
            logger.warning("offsets not committed: %s", error)

    async def commit(
        self, positions: Mapping[TopicPartition, int | None], patience_ms: float
    ) -> None:
        """Commit the positions that are known and not committed yet."""
        if self._commits is None:
            return
        news = {
            where: position
            for where, position in positions.items()
            if position is not None and position != self._committed(where)
        }
        tags = {feed.where: feed.topic_tag for feed in self._feeds if feed.where in news}
        await self._commits.commit(news, tags, patience_ms=patience_ms)
        for where, position in news.items():
            feed = self._feeds.find(where)
            if feed is not None and feed.topic_tag == tags.get(where):
                feed.committed = position

    def _committed(self, where: TopicPartition) -> int | None:
        feed = self._feeds.find(where)
        return None if feed is None else feed.committed

    async def _lose(self) -> None:
        lost = self.assignment.owned
        try:
            await self._feeds.drop(lost)
            await self._tell(self._listener.on_lost, lost)
        finally:
            self.assignment.forget()
            if self._link is not None:
                self._link.hurry()

    async def _take_on(self, partitions: Set[TopicPartition]) -> None:
        committed = await self._committed_offsets(partitions)
        # Partitions may have been revoked while the request was in flight.
        added = partitions & self.assignment.added
        if not added:
            return
        default: Position = self._options.start
        if self._is_growing and self._has_begun:
            # Read partitions that were added to a topic from their first record on, whatever ``options.start`` says.
            default = StartAt.EARLIEST
        offsets = {where: found.offset for where, found in committed.items()}
        starts: dict[TopicPartition, Position] = {w: offsets.get(w, default) for w in added}
        self._has_begun = True
        self.assignment.take(added)
        if self._link is not None:
            # The heartbeat in flight does not list these partitions. Send one that does.
            self._link.hurry()
        self._feeds.add(starts, offsets)
        try:
            await self._tell(self._listener.on_assigned, added)
        finally:
            for where in sorted(added):
                feed = self._feeds.find(where)
                if feed is not None:
                    feed.begin()

    async def _committed_offsets(
        self, partitions: Set[TopicPartition]
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the committed offsets. Retry until they are known: to begin elsewhere could skip records."""
        if self._options.group is None:
            return {}
        patience = Patience(self._options.patience_ms)
        topics = sorted({where.topic for where in partitions})
        while True:
            try:
                found = await self._calls.committed(self._options.group, topics)
            except ClientError as error:
                wait_ms = patience.on_failure(self._clock.now_ms())
                if wait_ms is None or not is_worth_another_try(error):
                    raise
                logger.debug("committed offsets not known yet: %s", error)
                await self._clock.sleep(wait_ms)
            else:
                return {where: found[where] for where in partitions if where in found}

    async def _tell(
        self, hear: Callable[[Set[TopicPartition]], object], partitions: Set[TopicPartition]
    ) -> None:
        heard = hear(partitions) if partitions else None
        if isawaitable(heard):
            await heard
