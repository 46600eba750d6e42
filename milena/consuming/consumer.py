"""Reads topics as a member of a group, or alone: order, positions, commits, rebalances (asyncio shell).

    async with client.consumer("orders", group="billing") as consumer:
        async for record in consumer:
            ...

What the application was given counts as done when it comes back for more; that, and nothing else, is what is committed
by itself. So every record is handled at least once, whatever dies in between. Partitions come and go between two
batches: while the application works on records, nothing is taken from it.

The parts: ``consumer_membership`` what a member says and hears, ``consumer_group`` heartbeats and commits,
``consumer_rebalance`` what happens when partitions come and go, ``consumer_feeds`` fetching, ``consumer_hand`` what the
application is at, ``consumer_tending`` what goes on beside it, ``consumer_part`` how they are put together.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from milena.consuming.active_subscription import ActiveSubscription, ConsumerPorts
from milena.consuming.assignment import StandaloneAssignment
from milena.consuming.background import BackgroundWork
from milena.consuming.feed import Feed
from milena.consuming.feeds import Run
from milena.consuming.membership import GroupMembership
from milena.consuming.options import ConsumerOptions, Subscription
from milena.consuming.polled import PolledRecords
from milena.errors import ClientClosedError
from milena.records import ConsumedRecord, Position, StartAt, TopicPartition

CLOSE_PATIENCE_MS = 5_000
"""For the last commit: what cannot be committed within this is read again by somebody else."""

RUN_RECORDS = 500
"""What an iteration takes at a time: fewer than make the garbage collector look at them (700)."""


class Consumer:
    """Reads what is subscribed or assigned. An asynchronous context manager, for one task of one event loop.

    Take records by ``async for record in consumer``, which never ends by itself, or by ``poll``; one may change between
    the two. Leaving the context commits (unless an error is under way, what was given out last as well), gives the
    partitions back and leaves the group. ``poll`` and the iteration raise

        UnreadableOffsetError, TargetNotFoundError   as a reader does; the latter not in a group, which notices itself
        ConsumerFencedError                          another process took over the instance id
        other ClientErrors                           nothing of use was answered for ``patience_ms``; poll again
        what a listener raises
    """

    def __init__(
        self,
        options: ConsumerOptions,
        subscription: Subscription | None,
        *,
        ports: ConsumerPorts,
        new_id: Callable[[], str],
    ) -> None:
        if subscription is not None and subscription.pattern and options.group is None:
            raise ValueError("a pattern needs a group, whose coordinator matches it")
        self.options = options
        self._subscription = subscription
        self._is_told_what = subscription is not None
        """Somebody said what it reads, be it nothing."""
        self._ports = ports
        self._clock = ports.clock
        self._new_id = new_id
        self.polled = PolledRecords()
        self._rest: Iterator[ConsumedRecord] = iter(())
        self._news = asyncio.Event()
        self.wants_attention = True
        """The iteration may not go on with the records it has: something came up."""
        self._is_open = False
        self.is_polling = False
        self.polls = 0
        self._adopting: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self.active = self._active_for(subscription)

    async def __aenter__(self) -> Self:
        """Join the group. The partitions come with the first ``poll``."""
        await self.active.begin()
        self._is_open = True
        background = BackgroundWork(self, self.options, self._clock, on_change=self._call_attention)
        self._background = asyncio.create_task(background.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(is_done=error is None)

    async def close(self) -> None:
        """Commit what was given out, give the partitions back, leave the group. Safe to call again."""
        await self._close(is_done=True)

    # -- what it reads -----------------------------------------------------------------------------

    @property
    def is_rebalancing(self) -> bool:
        """Partitions come or go."""
        return self._adopting is not None

    @property
    def subscription(self) -> Subscription | None:
        """Topics or the pattern it is subscribed to; None when partitions were assigned by hand."""
        return self._subscription

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that it reads now."""
        return self.active.assignment.owned

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Those of them that are not given out now."""
        return frozenset(feed.where for feed in self.active.feeds if feed.is_paused)

    @property
    def member_id(self) -> str | None:
        """Under which the group knows it; None without a group."""
        assignment = self.active.assignment
        return assignment.member_id if isinstance(assignment, GroupMembership) else None

    @property
    def member_epoch(self) -> int | None:
        """Under which it commits; None without a group, or before it has joined."""
        assignment = self.active.assignment
        return assignment.member_epoch if isinstance(assignment, GroupMembership) else None

    @property
    def generation(self) -> int | None:
        """The group's generation as last heard; None without a group."""
        assignment = self.active.assignment
        return assignment.generation if isinstance(assignment, GroupMembership) else None

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read these topics instead of what was read before.

        Raises:
            TargetNotFoundError: without a group, a topic that is not there.
        """
        subscription = Subscription(topics=topics, pattern=pattern)
        assignment, link = self.active.assignment, self.active.link
        self._subscription = subscription
        self._is_told_what = True
        if link is not None and isinstance(assignment, GroupMembership):
            assignment.subscribe(subscription)
            link.hurry()
        else:
            await self._replace(self._active_for(subscription))

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these, without sharing them with a group's members; none: read nothing.

        With a group, its offsets are used and committed all the same; it must have no members then.
        """
        wanted = frozenset(TopicPartition(*where) for where in partitions)
        assignment = self.active.assignment
        self._subscription = None
        self._is_told_what = True
        if isinstance(assignment, StandaloneAssignment) and not self.active.is_growing:
            assignment.wanted = wanted
            self._call_attention()
        else:
            await self._replace(self._active_for(None, wanted))

    # -- records -----------------------------------------------------------------------------------

    async def poll(
        self, max_records: int | None = None, timeout_s: float | None = None
    ) -> list[ConsumedRecord]:
        """The next records, as soon as there are some; none when there were none for ``timeout_s``.

        Those of a partition are in order. Coming back says that everything that was given before is done with.

        Args:
            max_records: the most to give; None: ``max_poll_records``.
            timeout_s: how long to wait; None: until there are some.

        Raises:
            ValueError: nobody has said what it reads.
        """
        most = self.options.max_poll_records if max_records is None else max_records
        if most < 1:
            raise ValueError(f"max_records={most} must be 1 or more")
        runs = await self._next(most, timeout_s, is_iterated=False)
        if len(runs) == 1:
            return runs[0][1]
        return [record for _, records in runs for record in records]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        while True:
            if not self.wants_attention:
                for record in self._rest:
                    self.polled.current = record
                    return record
            self._rest = iter(await self.next_run())

    # -- for whoever hands records out one by one (``__anext__``, ``milena.sync``) -----------------

    async def next_run(self) -> list[ConsumedRecord]:
        """Records of one partition, of which none was given yet: ``mark`` says which one the application is at."""
        ((_, records),) = await self._next(RUN_RECORDS, None, is_iterated=True)
        return records

    def mark(self, record: ConsumedRecord) -> None:
        """The application was given this one of the run, and came back for it."""
        self.polled.current = record

    def take_back(self) -> None:
        """Give again what was given last: it has not come to anybody."""
        self.polled.settle(is_done=False)
        self._call_attention()

    async def _next(self, most: int, timeout_s: float | None, *, is_iterated: bool) -> list[Run]:
        self._check_open()
        if not self._is_told_what:
            raise ValueError(
                "the consumer reads nothing yet: subscribe to topics, or assign partitions"
            )
        if self.is_polling:
            raise RuntimeError("one poll at a time, and none from within a rebalance listener")
        deadline_ms = None if timeout_s is None else self._clock.now_ms() + timeout_s * 1000
        self.is_polling = True
        try:
            self.polled.settle(is_done=True)
            return await self._take(most, deadline_ms, is_iterated=is_iterated)
        finally:
            self.is_polling = False
            self.polls += 1

    async def _take(self, most: int, deadline_ms: float | None, *, is_iterated: bool) -> list[Run]:
        while True:
            self._news.clear()
            self.wants_attention = False
            self._check_open()
            self._raise_failure()
            if self._adopting is not None or self.active.assignment.is_due:
                if not await self._adopt(deadline_ms):
                    return []
                continue
            runs = self.active.feeds.take(most, is_one_run=is_iterated)
            if runs:
                self.polled.runs, self.polled.is_iterated = runs, is_iterated
                return runs
            if not await self._wait_for_news(deadline_ms):
                return []

    async def _wait_for_news(self, deadline_ms: float | None) -> bool:
        try:
            await asyncio.wait_for(self._news.wait(), self._left_s(deadline_ms))
        except TimeoutError:
            return False
        return True

    async def _adopt(self, deadline_ms: float | None) -> bool:
        """Take part in a rebalance; False when time is up. It goes on even when this wait is cancelled."""
        if self._adopting is None:
            self._adopting = asyncio.create_task(self.active.rebalancer.adopt())
        done, _ = await asyncio.wait({self._adopting}, timeout=self._left_s(deadline_ms))
        if not done:
            return False
        task, self._adopting = self._adopting, None
        task.result()
        return True

    # -- positions ---------------------------------------------------------------------------------

    async def position(self, topic: str, partition: int) -> int:
        """The offset of the next record to be given."""
        feed = self._feed(topic, partition)
        found = await feed.located()
        reached = self.polled.reached(feed)
        return found if reached is None else reached

    async def lag(self, topic: str, partition: int) -> int:
        """How many offsets are between the position and the end of what is committed, as last heard of the leader."""
        position = await self.position(topic, partition)
        end = self._feed(topic, partition).last_stable_offset
        if end is None:
            answer = await self._ports.transport.fetch(
                topic, partition, offset=StartAt.LATEST, max_bytes=1, wait_ms=0
            )
            end = answer.readable_end
        return max(0, end - position)

    async def committed(self, topic: str, partition: int) -> int | None:
        """Offset that the group has committed in a partition, as the cluster says; None without one."""
        found = await self._ports.calls.committed(self._group(), [topic])
        offset = found.get(TopicPartition(topic, partition))
        return None if offset is None else offset.offset

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commit these offsets, each that of the next record to read, or (None) everything that was given out.

        Raises:
            CommitFailedError: a partition is not this consumer's any more; nothing was committed.
            ClientError: it cannot be committed now; nothing, or (``UnknownResultError``) not known whether.
        """
        self._group()
        reached: dict[TopicPartition, int | None] = (
            {feed.where: self.polled.reached(feed) for feed in self.active.feeds}
            if offsets is None
            else {TopicPartition(*where): offset for where, offset in offsets.items()}
        )
        await self.active.rebalancer.commit(reached, self.options.patience_ms)

    def given_out(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of which records were given out: what a commit would say now."""
        reached = {feed.where: self.polled.reached(feed) for feed in self.active.feeds}
        return {where: offset for where, offset in reached.items() if offset is not None}

    async def rewind(self) -> None:
        """Give out again what was given since the group's last commit, or from where it began.

        Raises:
            ClientError: what is committed cannot be asked for now.
        """
        feeds = list(self.active.feeds)
        topics = sorted({feed.where.topic for feed in feeds})
        committed = await self._ports.calls.committed(self._group(), topics)
        for feed in feeds:
            found = committed.get(feed.where)
            begins_at = feed.origin if found is None else found.offset
            if begins_at is not None:
                self.seek(*feed.where, begins_at)

    def seek(self, topic: str, partition: int, position: Position) -> None:
        """Go on there: an offset, an end of the partition, a time, or the last so many records."""
        feed = self._feed(topic, partition)
        self.polled.drop(feed)
        feed.seek(position)
        self._call_attention()

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give no records of these out until ``resume``; they stay this consumer's."""
        for where in partitions:
            self._feed(*where).is_paused = True
        self._call_attention()

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give their records out again."""
        for where in partitions:
            self.active.feeds.resume(self._feed(*where))

    # -- inside ------------------------------------------------------------------------------------

    def _active_for(
        self,
        subscription: Subscription | None,
        assigned: frozenset[TopicPartition] = frozenset(),
    ) -> ActiveSubscription:
        if subscription is not None and self.options.group is not None:
            return ActiveSubscription.of_group(
                self.options,
                subscription,
                self._ports,
                new_id=self._new_id,
                on_change=self._call_attention,
                on_news=self._news.set,
            )
        return ActiveSubscription(
            self.options,
            self._ports,
            assignment=StandaloneAssignment(assigned),
            topics=None if subscription is None else subscription.topics,
            on_change=self._call_attention,
            on_news=self._news.set,
        )

    async def _replace(self, active: ActiveSubscription) -> None:
        former, self.active = self.active, active
        self.polled.settle(is_done=True)
        self._call_attention()
        if self._is_open:
            await former.end(patience_ms=self.options.patience_ms)
            await active.begin()

    async def _close(self, *, is_done: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._call_attention()
        self.polled.settle(is_done=is_done)
        for task in (self._background, self._adopting):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()
        await self.active.end(patience_ms=CLOSE_PATIENCE_MS)

    def _call_attention(self) -> None:
        self.wants_attention = True
        self._news.set()

    def _raise_failure(self) -> None:
        failure = None if self.active.link is None else self.active.link.take_failure()
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientClosedError(
                "the consumer is not open: use it in a block, with client.consumer(...) as consumer"
            )

    def _group(self) -> str:
        if self.options.group is None:
            raise ValueError("a consumer without a group has no committed offsets")
        return self.options.group

    def _feed(self, topic: str, partition: int) -> Feed:
        feed = self.active.feeds.find(TopicPartition(topic, partition))
        if feed is None:
            raise ValueError(f"{topic}-{partition} is not assigned to this consumer")
        return feed

    def _left_s(self, deadline_ms: float | None) -> float | None:
        return None if deadline_ms is None else max(0.0, deadline_ms - self._clock.now_ms()) / 1000
