"""One REST consumer as its coordinator holds it: where it stands, what its calls do, and who waits.

Everything here is in memory, and gone with the coordinator: its successor begins at what is committed. The calls of a
consumer touch it in ``turn``, one after the other; a records call gives its turn away while it waits for records, so
that a commit, a seek or a deletion need not wait with it.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from immutables import Map

from milena.model.errors import MilenaError, NotCoordinatorError, SubscriptionConflictError
from node.consumers.cursor import Cursor, Mark
from node.consumers.places import Places
from node.consumers.session_commits import SessionCommits
from node.consumers.session_tools import SessionTools
from node.consumers.view import ConsumerView
from raft_meta.machine.image import CommittedOffset, PartitionKey, RestConsumer

if TYPE_CHECKING:
    from node.consumers.tails import Waiter

logger = logging.getLogger(__name__)

PLACES_MS = 2_000
"""How long a subscription waits for leaders to tell where their partitions end; what is left is asked for later."""

_NO_OFFSETS: Map[PartitionKey, CommittedOffset] = Map()


class ConsumerSession:
    """``view`` is what the image says of it, ``places`` where it begins to read, ``commits`` what it commits."""

    __slots__ = (
        "_coordinates",
        "calls",
        "commits",
        "cursor",
        "key",
        "one_at_a_time",
        "places",
        "queued",
        "seeks",
        "turn",
        "under_way",
        "view",
        "waiter",
    )

    def __init__(self, consumer: RestConsumer, tools: SessionTools) -> None:
        self.view = ConsumerView(consumer, tools.image)
        self.key = self.view.key
        self.cursor = Cursor(is_auto_commit=consumer.is_auto_commit, now_ms=tools.clock.now_ms())
        self.commits = SessionCommits(self.view, self.cursor, tools)
        self.places = Places(self.view, self.cursor, self.commits, tools.fetch)
        self.turn = asyncio.Lock()
        self.one_at_a_time = asyncio.Lock()
        """Records calls, whole."""
        self.calls = 0
        """Under way or waiting for their turn."""
        self.queued: set[str] = set()
        """Ids of records calls that have begun or wait for their turn, and whose answer is wanted."""
        self.under_way = ""
        """The id of the records call that has begun; empty: none, or its answer is not wanted any more."""
        self.waiter: Waiter | None = None
        self.seeks = 0
        """How often its client went elsewhere. Records calls from before that are none that it waits for."""
        self._coordinates = tools.coordinates

    # -- its calls -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to go on where another node may have begun.

        Raises:
            NotCoordinatorError, ConsumerNotFoundError: nothing is delivered.
        """
        if not self._coordinates(self.key[0]):
            raise NotCoordinatorError(f"this node coordinates group {self.key[0]!r} no longer")
        self.view.consumer  # noqa: B018  raises when it is gone

    def wake(self) -> None:
        """A waiting records call looks again."""
        if self.waiter is not None:
            self.waiter.wake()

    def take_back(self, call_id: str) -> None:
        """Nobody waits for this call's answer any more, or ever got it."""
        self.queued.discard(call_id)
        if self.under_way == call_id:
            self.under_way = ""
            self.wake()
        else:
            self.cursor.take_back(call_id)

    # -- positions -------------------------------------------------------------------------------

    def take_assignment(self) -> None:
        """Stand in what is assigned now, and nowhere else."""
        consumer = self.view.consumer
        offsets = self.view.image.offsets.get(self.key[0], _NO_OFFSETS)

        def committed(key: PartitionKey) -> int | None:
            found = offsets.get(key)
            return None if found is None else found.offset

        self.cursor.assign(self.view.assigned(), committed, is_exclusive=not consumer.assigned)

    def has_new(self) -> bool:
        """Whether it was given something that it does not stand in yet."""
        return any(key not in self.cursor for key in self.view.assigned())

    async def settle_places(self) -> None:
        """What is written from now on is read, also where the policy is to begin at the end."""
        self.take_assignment()
        self.wake()
        try:
            async with asyncio.timeout(PLACES_MS / 1000):
                await self.places.find()
        except (MilenaError, TimeoutError) as error:
            logger.debug("consumer=%s/%s has no beginning yet: %s", *self.key, error)

    def to_commit(self) -> dict[PartitionKey, Mark]:
        """What the client has been given; of a call that is still gathering nothing counts."""
        self.take_assignment()
        return self.cursor.arrived() if self.under_way else self.cursor.delivered()

    async def commit_delivered(self) -> None:
        """The client closes, or reads something else from now on: it has what it was given, if it commits by itself."""
        if self.cursor.is_auto_commit:
            await self.commits.commit_quietly(self.to_commit())

    async def commit_arrived(self) -> None:
        """Before it expires: what its client certainly has, if it commits by itself."""
        if self.cursor.is_auto_commit:
            self.take_assignment()
            await self.commits.commit_quietly(self.cursor.arrived())

    def seek(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Deliver from there next.

        Raises:
            SubscriptionConflictError: one of them is not assigned; nothing was changed.
        """
        self.check_assigned(offsets)
        self.cursor.take_back(self.under_way)
        for key, offset in offsets.items():
            self.cursor.seek(key, offset)
        self.seeks += 1
        self.wake()

    def check_assigned(self, keys: Iterable[PartitionKey]) -> None:
        """Refuse what has no position.

        Raises:
            SubscriptionConflictError: one of them is not assigned.
        """
        self.take_assignment()
        for key in keys:
            if key not in self.cursor:
                raise SubscriptionConflictError(
                    f"{self.view.name(key)} is not assigned to consumer {self.key[1]!r}; only what is assigned has a"
                    " position"
                )
