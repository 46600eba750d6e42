"""The sessions of REST consumers whose groups this node coordinates, and what goes on in the background for them.

One is made when its consumer is first heard of, and dropped when the consumer is gone or another node's.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING

from milena.model.errors import MilenaError, TooManyRequestsError
from milena.model.requests import FetchRequest, FetchResult
from node.consumers import lookup
from node.consumers.idle import IdleClocks
from node.consumers.session import ConsumerSession
from node.consumers.session_tools import Commits, Memberships, SessionTools
from node.metadata.store import MetadataStore
from node.process.clock import Clock
from raft_meta.machine.image import Broker, ConsumerKey, Group, Image, PartitionSet

if TYPE_CHECKING:
    from immutables import Map

logger = logging.getLogger(__name__)

CALLS_PER_CONSUMER_MAX = 16
"""Under way or waiting for their turn."""


class SessionTable:
    """See the module. Owned by the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        current_image: Callable[[], Awaitable[Image]],
        fetch: Callable[[FetchRequest], Awaitable[FetchResult]],
        coordinates: Callable[[str], bool],
        memberships: Memberships,
        commits: Commits,
        idle: IdleClocks,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._current_image = current_image
        self._idle = idle
        self._clock = clock
        self._sessions: dict[ConsumerKey, ConsumerSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._brokers: Map[int, Broker] | None = None
        self._groups: Map[str, Group] | None = None
        self._tools = SessionTools(
            image=lambda: metadata.image,
            fetch=fetch,
            commits=commits,
            coordinates=coordinates,
            memberships=memberships,
            spawn=self._spawn,
            clock=clock,
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ConsumerKey) -> ConsumerSession | None:
        """The consumer's session, if it was heard of here."""
        return self._sessions.get(key)

    @contextlib.asynccontextmanager
    async def call(self, key: ConsumerKey) -> AsyncIterator[ConsumerSession]:
        """The consumer's session, for one call.

        Raises:
            ConsumerNotFoundError: a majority knows no such consumer.
            TooManyRequestsError: others of its calls wait already.
        """
        consumer = await lookup.consumer(self._metadata, key, self._current_image)
        session = self._sessions.get(key)
        if session is None or session.view.created_index != consumer.created_index:
            session = self._sessions[key] = ConsumerSession(consumer, self._tools)
        if session.calls >= CALLS_PER_CONSUMER_MAX:
            raise TooManyRequestsError(
                f"{CALLS_PER_CONSUMER_MAX} calls of consumer {key[1]!r} wait for their turn already"
            )
        session.calls += 1
        self._idle.begin(key, self._clock.now_ms())
        try:
            yield session
        finally:
            session.calls -= 1
            self._idle.end(key, self._clock.now_ms())

    def on_image(self, image: Image) -> None:
        """Wake those whose assignment may be another, and forget those that are another node's."""
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            for key, session in list(self._sessions.items()):
                if not self._tools.coordinates(key[0]):
                    self.drop(session)
        if image.groups is not self._groups:
            before, self._groups = self._groups, image.groups
            for session in list(self._sessions.values()):
                group_id = session.key[0]
                if before is None or before.get(group_id) is not image.groups.get(group_id):
                    self._on_group(session)

    def _on_group(self, session: ConsumerSession) -> None:
        if session.waiter is not None:
            session.wake()
        elif session.key in self._metadata.image.consumers and session.has_new():
            self._spawn(self._find_places(session))

    def drop(self, session: ConsumerSession) -> None:
        """The consumer is gone, or another node's."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        session.wake()

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Implements ``RestMembers``. What a records call delivers, the image decides at that moment."""
        session = self._sessions.get((group_id, instance))
        return session is None or session.commits.may_release(partitions)

    # -- the background --------------------------------------------------------------------------

    async def _find_places(self, session: ConsumerSession) -> None:
        """A rebalance brought partitions between two calls."""
        async with session.turn:
            is_known = self._sessions.get(session.key) is session
            if is_known and self._tools.coordinates(session.key[0]):
                await session.settle_places()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Nothing goes on in the background any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Coroutine[object, object, None]) -> None:
    try:
        await work
    except MilenaError as error:
        logger.debug("in the background: %s", error)
