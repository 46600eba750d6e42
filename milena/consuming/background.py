"""Background work next to the application: commits, and a check that the application still polls (asyncio shell)."""

import logging
from collections.abc import Callable
from typing import Protocol

from milena.consuming.active_subscription import ActiveSubscription
from milena.consuming.options import ConsumerOptions
from milena.consuming.polled import PolledRecords
from milena.model.clock import Clock

logger = logging.getLogger(__name__)

LOOKS_PER_POLL_INTERVAL = 4


class WatchedConsumer(Protocol):
    """The part of a consumer that the background work reads."""

    @property
    def active(self) -> ActiveSubscription:
        """The subscription or assignment that is read now."""

    @property
    def polled(self) -> PolledRecords:
        """The records that were given to the application last."""

    @property
    def polls(self) -> int:
        """How often the application has polled."""

    @property
    def is_polling(self) -> bool:
        """True while the application waits for records."""

    @property
    def is_rebalancing(self) -> bool:
        """True during a rebalance, which commits the offsets of the partitions that are given up."""


class BackgroundWork:
    """Commit finished records every ``auto_commit_interval_ms``; leave the group after ``max_poll_interval_ms``."""

    def __init__(
        self,
        consumer: WatchedConsumer,
        options: ConsumerOptions,
        clock: Clock,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._clock = clock
        self._on_change = on_change
        self._seen: tuple[int, object] = (-1, None)
        self._seen_ms = clock.now_ms()
        self._told_missing: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        interval_ms = min(
            self._options.auto_commit_interval_ms,
            self._options.max_poll_interval_ms / LOOKS_PER_POLL_INTERVAL,
        )
        while True:
            await self._clock.sleep(interval_ms)
            await self._tell_missing()
            if self._is_hanging():
                await self._give_up()
            if self._options.auto_commit and not self._consumer.is_rebalancing:
                await self._commit()

    async def _tell_missing(self) -> None:
        """Log a warning once for each topic that does not exist. The member waits for it, and gets no error."""
        active = self._consumer.active
        for topic in await active.missing_topics() if active.link is not None else ():
            if topic not in self._told_missing and active.link is not None:
                self._told_missing.add(topic)
                logger.warning(
                    "waiting for a topic that does not exist topic=%s group=%s",
                    topic,
                    active.link.group,
                )

    def _is_hanging(self) -> bool:
        consumer, now_ms = self._consumer, self._clock.now_ms()
        # An iteration takes many records with one poll. So moving on to the next record also counts as a poll.
        seen = consumer.polls, consumer.polled.current
        if seen != self._seen or consumer.is_polling:
            self._seen, self._seen_ms = seen, now_ms
        return now_ms - self._seen_ms > self._options.max_poll_interval_ms

    async def _give_up(self) -> None:
        active = self._consumer.active
        if active.link is not None and active.assignment.owned and not active.assignment.is_lost:
            logger.warning("no poll for too long: leaving the group group=%s", active.link.group)
            await active.link.leave()
            self._on_change()

    async def _commit(self) -> None:
        active, polled = self._consumer.active, self._consumer.polled
        done = {feed.where: polled.done(feed) for feed in active.feeds}
        await active.rebalancer.commit_quietly(done, self._options.auto_commit_interval_ms)
