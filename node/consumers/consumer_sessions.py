"""REST consumers in their coordinator's memory: their positions, and their calls.

All of this is lost with the coordinator. The next coordinator starts at the committed offsets. A session is created at
the first call of its consumer. It is dropped when the consumer is deleted, or another node becomes the coordinator.

The calls of a consumer take turns (``turn``): only one at a time uses the session. While a records call waits for
records, another call may have its turn. So a commit, a seek or a deletion does not wait for it.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from typing import TYPE_CHECKING

from immutables import Map

from milena.model.errors import (
    MilenaError,
    NotCoordinatorError,
    SubscriptionConflictError,
    TooManyRequestsError,
)
from milena.model.requests import FetchRequest, FetchResult
from node.consumers.consumer_views import ConsumerView, find_consumer
from node.consumers.cursor import Cursor, OffsetAndEpoch
from node.consumers.session_commits import SessionCommits, SessionContext
from node.consumers.start_positions import StartPositions
from node.context import NodeContext
from node.groups.group_assembly import Groups
from raft_meta.machine.image import (
    Broker,
    CommittedOffset,
    ConsumerKey,
    Group,
    Image,
    PartitionKey,
    PartitionSet,
    RestConsumer,
)

if TYPE_CHECKING:
    from node.consumers.partition_ends import EndWaiter

logger = logging.getLogger(__name__)

POSITIONS_MS = 2_000
"""How long a subscription waits for leaders to give start positions, in ms. Missing positions are found later."""

CALLS_PER_CONSUMER_MAX = 16
"""Largest number of calls of one consumer that run or wait for their turn."""

_NO_OFFSETS: Map[PartitionKey, CommittedOffset] = Map()


class ConsumerSession:
    """One consumer. ``view``: its entry in the image; ``positions``: finds start positions; ``commits``: commits."""

    __slots__ = (
        "_coordinates",
        "calls",
        "commits",
        "cursor",
        "key",
        "one_at_a_time",
        "positions",
        "queued",
        "seeks",
        "turn",
        "under_way",
        "view",
        "waiter",
    )

    def __init__(self, consumer: RestConsumer, context: SessionContext) -> None:
        self.view = ConsumerView(consumer, context.image)
        self.key = self.view.key
        self.cursor = Cursor(is_auto_commit=consumer.is_auto_commit, now_ms=context.clock.now_ms())
        self.commits = SessionCommits(self.view, self.cursor, context)
        self.positions = StartPositions(self.view, self.cursor, self.commits, context.fetch)
        self.turn = asyncio.Lock()
        self.one_at_a_time = asyncio.Lock()
        """Held by a records call from its start to its end, so that only one runs."""
        self.calls = 0
        """Number of calls that run or wait for their turn."""
        self.queued: set[str] = set()
        """Ids of the records calls that run or wait for their turn, except those that were given up."""
        self.under_way = ""
        """Id of the records call that runs; empty if none runs, or if its client does not wait any more."""
        self.waiter: EndWaiter | None = None
        self.seeks = 0
        """Number of seeks. If a seek comes during a records call, no client waits for that call any more."""
        self._coordinates = context.coordinates

    # -- its calls -------------------------------------------------------------------------------

    def check(self) -> None:
        """End a call if this node is not the coordinator any more, or the consumer was deleted.

        Raises:
            NotCoordinatorError, ConsumerNotFoundError: the call must deliver nothing.
        """
        version = self.view.image.coordinators_version
        if not self._coordinates(self.key[0]) or self.commits.coordinators_version != version:
            raise NotCoordinatorError(f"this node coordinates group {self.key[0]!r} no longer")
        self.view.consumer  # noqa: B018  raises when it is gone

    def wake(self) -> None:
        """Let a records call that waits read again."""
        if self.waiter is not None:
            self.waiter.wake()

    def take_back(self, call_id: str, *, is_refused: bool) -> None:
        """Take back a call's response, which did not reach the client. ``is_refused``: it got an error instead."""
        self.queued.discard(call_id)
        if self.under_way == call_id:
            self.under_way = ""
            self.wake()
        else:
            self.cursor.take_back(call_id, is_refused=is_refused)

    # -- positions -------------------------------------------------------------------------------

    def take_assignment(self) -> None:
        """Take over the present assignment: exactly these partitions, no others."""
        consumer = self.view.consumer
        offsets = self.view.image.offsets.get(self.key[0], _NO_OFFSETS)

        def committed(key: PartitionKey) -> int | None:
            found = offsets.get(key)
            return None if found is None else found.offset

        self.cursor.assign(self.view.assigned(), committed, is_exclusive=not consumer.assigned)

    def has_new(self) -> bool:
        """Return whether the consumer has been assigned a partition that the cursor does not have yet."""
        return any(key not in self.cursor for key in self.view.assigned())

    async def settle_positions(self) -> None:
        """Find the positions of new partitions now, so that with ``latest`` all later records are read."""
        self.take_assignment()
        self.wake()
        try:
            async with asyncio.timeout(POSITIONS_MS / 1000):
                await self.positions.find()
        except (MilenaError, TimeoutError) as error:
            logger.debug("consumer=%s/%s has no beginning yet: %s", *self.key, error)

    def to_commit(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Return the offsets up to which the client has got records. A call that still gathers does not count."""
        self.take_assignment()
        return self.cursor.arrived() if self.under_way else self.cursor.delivered()

    async def commit_delivered(self) -> None:
        """Make an automatic commit of what was delivered: the consumer closes, or changes what it reads.

        If the client uses tokens, commit only what has certainly arrived.
        """
        if self.cursor.token:
            await self.commit_arrived()
        elif self.cursor.is_auto_commit:
            await self.commits.commit_quietly(self.to_commit())

    async def commit_arrived(self) -> None:
        """Make an automatic commit of what has certainly reached the client."""
        if self.cursor.is_auto_commit:
            self.take_assignment()
            await self.commits.commit_quietly(self.cursor.arrived())

    def seek(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Set the positions from which records are delivered next.

        Raises:
            SubscriptionConflictError: a partition is not assigned; nothing was changed.
        """
        self.check_assigned(offsets)
        self.cursor.take_back(self.under_way)
        for key, offset in offsets.items():
            self.cursor.seek(key, offset)
        self.seeks += 1
        self.wake()

    def check_assigned(self, keys: Iterable[PartitionKey]) -> None:
        """Refuse partitions that are not assigned.

        Raises:
            SubscriptionConflictError: a partition is not assigned.
        """
        self.take_assignment()
        for key in keys:
            if key not in self.cursor:
                raise SubscriptionConflictError(
                    f"{self.view.name(key)} is not assigned to consumer {self.key[1]!r}; only what is assigned has a"
                    " position"
                )


class IdleClocks:
    """Consumers in the order of their last calls, so that finding idle ones needs no search. Pure.

    Invariants:
        Times ascend. A consumer with a call in flight is never idle.
    """

    __slots__ = ("_busy", "_heard_ms", "_idle_ms")

    def __init__(self, idle_ms: int) -> None:
        self._idle_ms = idle_ms
        self._heard_ms: OrderedDict[ConsumerKey, int] = OrderedDict()
        self._busy: dict[ConsumerKey, int] = {}

    def __len__(self) -> int:
        return len(self._heard_ms)

    def __iter__(self) -> Iterator[ConsumerKey]:
        return iter(self._heard_ms)

    def __contains__(self, key: ConsumerKey) -> bool:
        return key in self._heard_ms

    def keep(self, keys: Collection[ConsumerKey], now_ms: int) -> None:
        """Watch exactly these consumers. A new one has its full time."""
        for key in [key for key in self._heard_ms if key not in keys]:
            del self._heard_ms[key]
        for key in keys:
            if key not in self._heard_ms:
                self._heard_ms[key] = now_ms

    def begin(self, key: ConsumerKey, now_ms: int) -> None:
        """Note that a call of the consumer starts."""
        self._busy[key] = self._busy.get(key, 0) + 1
        self.hear(key, now_ms)

    def end(self, key: ConsumerKey, now_ms: int) -> None:
        """Note that a call of the consumer has ended. Its idle time starts again now."""
        left = self._busy.pop(key) - 1
        if left:
            self._busy[key] = left
        if key in self._heard_ms:
            self.hear(key, now_ms)

    def hear(self, key: ConsumerKey, now_ms: int) -> None:
        """Restart the consumer's idle time."""
        self._heard_ms[key] = now_ms
        self._heard_ms.move_to_end(key)

    def expired(self, now_ms: int, limit: int) -> list[ConsumerKey]:
        """Return at most ``limit`` consumers that are idle for too long; those that are idle longest first."""
        found: list[ConsumerKey] = []
        for key, heard_ms in self._heard_ms.items():
            if now_ms - heard_ms < self._idle_ms or len(found) == limit:
                break
            if key not in self._busy:
                found.append(key)
        return found


class SessionTable:
    """The sessions of consumers whose groups this node coordinates, and their background tasks.

    Owned by the data loop.
    """

    def __init__(
        self,
        node: NodeContext,
        *,
        fetch: Callable[[FetchRequest], Awaitable[FetchResult]],
        groups: Groups,
        idle: IdleClocks,
    ) -> None:
        self._node = node
        self._idle = idle
        self._calls = groups.calls
        self._sessions: dict[ConsumerKey, ConsumerSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._brokers: Map[int, Broker] | None = None
        self._groups: Map[str, Group] | None = None
        self._version = 0
        """``coordinators_version`` of the last image."""
        self._context = SessionContext(
            image=lambda: node.metadata.image,
            fetch=fetch,
            commits=groups.commits,
            coordinates=self._calls.coordinates,
            memberships=groups.coordinator,
            spawn=self._spawn,
            clock=node.clock,
        )

    def get(self, key: ConsumerKey) -> ConsumerSession | None:
        """Return the consumer's session; None if this node has none."""
        return self._sessions.get(key)

    @contextlib.asynccontextmanager
    async def call(self, key: ConsumerKey) -> AsyncIterator[ConsumerSession]:
        """Yield the consumer's session for one call.

        Raises:
            ConsumerNotFoundError: there is no such consumer in the newest image.
            NotCoordinatorError: this node does not coordinate its group any more.
            TooManyRequestsError: too many calls of the consumer wait already.
        """
        consumer = await find_consumer(self._node.metadata, key)
        session = self._sessions.get(key)
        if session is None or session.view.created_index != consumer.created_index:
            self._calls.check(key[0])
            session = self._sessions[key] = ConsumerSession(consumer, self._context)
        if session.calls >= CALLS_PER_CONSUMER_MAX:
            raise TooManyRequestsError(
                f"{CALLS_PER_CONSUMER_MAX} calls of consumer {key[1]!r} wait for their turn already"
            )
        session.calls += 1
        self._idle.begin(key, self._node.clock.now_ms())
        try:
            yield session
        finally:
            session.calls -= 1
            self._idle.end(key, self._node.clock.now_ms())

    def on_image(self, image: Image) -> None:
        """Wake calls whose assignment may have changed; drop the sessions that now belong to another coordinator."""
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            # If images were skipped, another node may have coordinated any of the groups in between.
            has_gap = image.coordinators_version > self._version + 1
            self._version = image.coordinators_version
            for key, session in list(self._sessions.items()):
                if has_gap or not self._context.coordinates(key[0]):
                    self.drop(session)
                else:
                    session.commits.coordinators_version = self._version
        if image.groups is not self._groups:
            before, self._groups = self._groups, image.groups
            for session in list(self._sessions.values()):
                group_id = session.key[0]
                if before is None or before.get(group_id) is not image.groups.get(group_id):
                    self._on_group(session)

    def _on_group(self, session: ConsumerSession) -> None:
        if session.waiter is not None:
            session.wake()
        elif session.key in self._node.metadata.image.consumers and session.has_new():
            self._spawn(self._find_positions(session))

    def drop(self, session: ConsumerSession) -> None:
        """Drop a session, because the consumer was deleted or another node is the coordinator."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        session.wake()

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """See ``RestMembers``. Before a records call delivers, it checks the image, so it need not end first."""
        session = self._sessions.get((group_id, instance))
        return session is None or session.commits.may_release(partitions)

    # -- background tasks ------------------------------------------------------------------------

    async def _find_positions(self, session: ConsumerSession) -> None:
        """Find the positions of partitions that a rebalance has assigned between two calls."""
        async with session.turn:
            is_known = self._sessions.get(session.key) is session
            if is_known and self._context.coordinates(session.key[0]):
                await session.settle_positions()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all background tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Coroutine[object, object, None]) -> None:
    try:
        await work
    except MilenaError as error:
        logger.debug("in the background: %s", error)
