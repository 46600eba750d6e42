"""Rebalancing: the steps in which partitions come and go, in their order (asyncio shell).

- Give back: tell the listener, commit what the application is done with, stop fetching, and then tell the group.
- Take: get the committed offsets, tell the listener (which may seek), and then fetch.
- Lose: stop fetching, tell the listener, commit nothing.

The steps run between two batches of the application, when it works on no records.
"""

import logging
from collections.abc import Callable, Mapping, Set
from inspect import isawaitable

from milena.cluster.group_views import GroupOffset
from milena.consuming.assignment import Assignment
from milena.consuming.feeds import Feeds
from milena.consuming.group import GroupLink, GroupPort, OffsetCommits
from milena.consuming.options import ConsumerOptions, RebalanceListener
from milena.errors import ClientError, is_worth_another_try
from milena.model.clock import Clock
from milena.reading.patience import Patience
from milena.records import Position, StartAt, TopicPartition

logger = logging.getLogger(__name__)


class Rebalancer:
    """Change what a consumer reads to what it should read."""

    def __init__(
        self,
        options: ConsumerOptions,
        *,
        assignment: Assignment,
        feeds: Feeds,
        calls: GroupPort,
        clock: Clock,
        commits: OffsetCommits | None,
        link: GroupLink | None,
        is_growing: bool = False,
    ) -> None:
        """Build a rebalancer. ``is_growing``: partitions after the first ones were added to the topics later."""
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
        """Give back, take and lose partitions until there is nothing left to do.

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
        """Give these partitions back. If the listener raises, they are not committed: it was not done with them."""
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
        """End the consumer: give back what it owns, and tell it what it lost."""
        if self.assignment.is_lost:
            await self._lose()
        elif self.assignment.owned:
            await self.give_back(self.assignment.owned, patience_ms=patience_ms)

    async def commit_quietly(
        self, positions: Mapping[TopicPartition, int | None], patience_ms: float
    ) -> None:
        """Commit the positions that changed. A failure is only logged: it means that records are read twice."""
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
        await self._commits.commit(news, patience_ms=patience_ms)
        for where, position in news.items():
            feed = self._feeds.find(where)
            if feed is not None:
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
            # Partitions that are added to a topic are read from their first record on.
            default = StartAt.EARLIEST
        offsets = {where: found.offset for where, found in committed.items()}
        starts: dict[TopicPartition, Position] = {w: offsets.get(w, default) for w in added}
        self._has_begun = True
        self.assignment.take(added)
        if self._link is not None:
            # A heartbeat that does not list them would be answered at once, instead of being held. Send one that lists
            # them.
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
        """Return the last committed offsets. A guess could skip records, so the call retries until they are known."""
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
