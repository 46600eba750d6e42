"""The consumer reads topics as a member of a group, or alone (asyncio shell).

    async with client.consumer("orders", group="billing") as consumer:
        async for record in consumer:
            ...

A record counts as done when the application asks for the next records. Automatic commits cover only records that are
done. If the process crashes before that, the records are read again, so every record is handled at least once.
Partitions are added and given up only between two polls: while the application works on records, the consumer keeps
their partitions.

The parts, in ``milena.consuming``:

    membership            the messages of a group's member, and its state
    group                 heartbeats and commits
    rebalance             the steps with which the consumer gets, gives up or loses partitions
    feeds                 fetching
    polled                the records that the application works on
    background            automatic commits, and the check that the application still polls
    active_subscription   how the parts fit together
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
from milena.hints import Hinting
from milena.records import (
    ConsumedRecord,
    Position,
    StartAt,
    TopicPartition,
    check_position,
    is_whole,
)

CLOSE_PATIENCE_MS = 5_000
"""Time limit of the last commit, in ms. Records that are not committed by then are read again by another member."""

RUN_RECORDS = 500
"""Number of records that an iteration takes at a time. Creating 700 objects would start the garbage collector."""


class Consumer(Hinting, hints="Consumer"):
    """Read subscribed or assigned partitions. An asynchronous context manager, for one task of one event loop.

        async with client.consumer("orders", group="billing") as consumer:
            async for record in consumer:
                print(record.key, record.value)

    Take records by ``async for record in consumer``, which ends only after ``stop``, or by ``poll``. You may alternate
    between the two. Leaving the block commits, gives up the partitions and leaves the group. This commit includes the
    records that were given out last, unless an exception leaves the block. ``poll`` and the iteration raise:

        UnreadableOffsetError, TargetNotFoundError   as a reader does; a group's member never raises the latter, because
                                                     its group notices deleted topics, and it goes on in a new topic
                                                     of the name
        ConsumerFencedError                          another process took over the instance id
        NeverReachedError                            no node has ever responded to the client; poll again
        other ClientErrors                           no useful response for ``patience_ms``; poll again
        errors that a listener raises
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
        """True if the program has subscribed, or has assigned partitions, even an empty list."""
        self._ports = ports
        self._clock = ports.clock
        self._new_id = new_id
        self.polled = PolledRecords()
        self._rest: Iterator[ConsumedRecord] = iter(())
        self._news = asyncio.Event()
        self.wants_attention = True
        """True if the iteration must look at an event (a stop, a seek, a rebalance) before its next record."""
        self._is_open = False
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self.is_polling = False
        self.polls = 0
        self._adopting: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self.active = self._active_for(subscription)

    async def __aenter__(self) -> Self:
        """Join the group. The first ``poll`` waits for the partitions."""
        self._loop = asyncio.get_running_loop()
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
        """Commit all records that were given out, give up the partitions, and leave the group.

        A second call does nothing.
        """
        await self._close(is_done=True)

    def stop(self) -> None:
        """End the loops of the program: the running ``poll`` and all later ones return an empty list, iterations end.

        The consumer stays a member until its block is left. Any thread and any signal handler may call this, at any
        time: ``loop.add_signal_handler(signal.SIGTERM, consumer.stop)``.
        """
        # Keep this order. ``_take`` resets ``wants_attention`` before it reads ``_is_stopped``, so it sees the stop.
        self._is_stopped = True
        # While an iteration has fetched records, the loop runs no other work. The iteration sees only this attribute.
        self.wants_attention = True
        # If there is no open loop, no ``poll`` is waiting.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_waits)

    @property
    def is_stopped(self) -> bool:
        """True after ``stop``: the condition to end a loop of ``poll``."""
        return self._is_stopped

    # -- subscription and assignment ---------------------------------------------------------------

    @property
    def is_rebalancing(self) -> bool:
        """True during a rebalance: the consumer is getting, giving up or losing partitions."""
        return self._adopting is not None

    @property
    def subscription(self) -> Subscription | None:
        """The topics or the pattern that the consumer is subscribed to; None if partitions were assigned by hand."""
        return self._subscription

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads now."""
        return self.active.assignment.owned

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(feed.where for feed in self.active.feeds if feed.is_paused)

    @property
    def member_id(self) -> str | None:
        """The id under which the group knows the consumer; None without a group."""
        assignment = self.active.assignment
        return assignment.member_id if isinstance(assignment, GroupMembership) else None

    @property
    def member_epoch(self) -> int | None:
        """The epoch under which the consumer commits; None without a group, 0 before it has joined."""
        assignment = self.active.assignment
        return assignment.member_epoch if isinstance(assignment, GroupMembership) else None

    @property
    def generation(self) -> int | None:
        """The group's generation as last reported; None without a group."""
        assignment = self.active.assignment
        return assignment.generation if isinstance(assignment, GroupMembership) else None

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read these topics (or those that match ``pattern``) instead of the former topics or partitions.

        Raises:
            TargetNotFoundError: a topic does not exist. Only without a group.
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
        """Read exactly these partitions, without sharing them with a group's members. An empty list reads nothing.

        With a group, the group's offsets are still used and committed. The group must then have no members.
        """
        wanted = frozenset(TopicPartition.of(where) for where in partitions)
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
        """Return the next records as soon as there are some; an empty list if none arrive within ``timeout_s``.

        The records of a partition are in order. The call marks the records of earlier calls as done.

        Args:
            max_records: the most records to return; None: ``max_poll_records``.
            timeout_s: how long to wait, in seconds; None: until there are records, or until ``stop``.

        Raises:
            ValueError: the consumer has neither a subscription nor an assignment, or ``max_records`` is not 1 or more.
        """
        most = self.options.max_poll_records if max_records is None else max_records
        if not is_whole(most) or most < 1:
            raise ValueError(f"max_records={most!r} must be a whole number, 1 or more")
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
            if self._is_stopped:
                raise StopAsyncIteration

    # -- for callers that give records out one by one (``__anext__``, ``milena.sync``) --------------

    async def next_run(self) -> list[ConsumedRecord]:
        """Return records of one partition; an empty list after ``stop``.

        No record counts as given to the application before the caller passes it to ``mark``.
        """
        runs = await self._next(RUN_RECORDS, None, is_iterated=True)
        return runs[0][1] if runs else []

    def mark(self, record: ConsumedRecord) -> None:
        """Note that the application was given this record of the run, and so is done with the records before it."""
        self.polled.current = record

    def take_back(self) -> None:
        """Give the last records again, because they did not reach the application."""
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
            if self._is_stopped:
                # A program that calls ``poll`` in a loop and ignores ``is_stopped`` must not block the event loop.
                await self._clock.sleep(0)
                return []
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
        """Take part in a rebalance; return False on a timeout. Cancelling this wait does not cancel the rebalance."""
        if self._adopting is None:
            self._adopting = asyncio.create_task(self.active.rebalancer.adopt())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(
                {self._adopting, stopped},
                timeout=self._left_s(deadline_ms),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopped.cancel()
        if not self._adopting.done():
            return False
        task, self._adopting = self._adopting, None
        task.result()
        return True

    # -- positions ---------------------------------------------------------------------------------

    async def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record to be given."""
        feed = self._feed(topic, partition)
        found = await feed.located()
        reached = self.polled.reached(feed)
        return found if reached is None else reached

    async def lag(self, topic: str, partition: int) -> int:
        """Return how many offsets lie between the position and the end of committed records.

        The end is the greatest last stable offset of all responses so far. Before the first response, ask a node.
        """
        position = await self.position(topic, partition)
        end = self._feed(topic, partition).last_stable_offset
        if end is None:
            answer = await self._ports.transport.fetch(
                topic, partition, offset=StartAt.LATEST, max_bytes=1, wait_ms=0
            )
            end = answer.readable_end
        return max(0, end - position)

    async def committed(self, topic: str, partition: int) -> int | None:
        """Return the offset that the group has committed in a partition, from the cluster; None without one."""
        found = await self._ports.calls.committed(self._group(), [topic])
        offset = found.get(TopicPartition(topic, partition))
        return None if offset is None else offset.offset

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commit offsets, each that of the next record to read; None: commit all records that were given out.

        Raises:
            CommitFailedError: another member has one of the partitions now. Nothing was committed.
            ClientError: the offsets cannot be committed now. Nothing was committed, or the result is unknown
                (``UnknownResultError``).
        """
        self._group()
        reached: dict[TopicPartition, int | None] = (
            {feed.where: self.polled.reached(feed) for feed in self.active.feeds}
            if offsets is None
            else {TopicPartition.of(where): offset for where, offset in offsets.items()}
        )
        await self.active.rebalancer.commit(reached, self.options.patience_ms)

    def given_out(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition whose records were given out: what a commit would commit now."""
        reached = {feed.where: self.polled.reached(feed) for feed in self.active.feeds}
        return {where: offset for where, offset in reached.items() if offset is not None}

    def topic_tags(self) -> dict[TopicPartition, str]:
        """Return, for each partition, the first digits of the id of the topic that ``given_out`` counts in."""
        return {feed.where: feed.topic_tag for feed in self.active.feeds if feed.topic_tag}

    async def rewind(self) -> None:
        """Go back to the group's committed offsets; in partitions without one, to where the consumer began.

        Raises:
            ClientError: the committed offsets cannot be fetched now.
        """
        feeds = list(self.active.feeds)
        topics = sorted({feed.where.topic for feed in feeds})
        committed = await self._ports.calls.committed(self._group(), topics)
        for feed in feeds:
            found = committed.get(feed.where)
            if found is not None:
                self.seek(*feed.where, found.offset)
            elif feed.origin is not None:
                self.polled.drop(feed)
                feed.rewind()
                self._call_attention()

    def seek(self, topic: str, partition: int, position: Position) -> None:
        """Continue at a position.

        Args:
            topic: the topic's name.
            partition: the partition's number, from 0.
            position: an offset, ``StartAt``, ``TimestampMs`` or ``LastN``.

        Raises:
            TypeError: the position is not one of these.
            ValueError: the partition is not assigned to this consumer, or the position is out of range.
        """
        check_position(position, "position")
        feed = self._feed(topic, partition)
        self.polled.drop(feed)
        feed.seek(position)
        self._call_attention()

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Stop giving records of these partitions until ``resume``. The consumer keeps the partitions."""
        for where in partitions:
            self._feed(*where).is_paused = True
        self._call_attention()

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give records of these partitions again."""
        for where in partitions:
            self.active.feeds.resume(self._feed(*where))

    # -- internals ---------------------------------------------------------------------------------

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

    def _end_waits(self) -> None:
        self._stopped.set()
        self._call_attention()

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
