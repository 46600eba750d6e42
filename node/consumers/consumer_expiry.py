"""Deletes REST consumers that are idle for too long.

The idle times are in the coordinator's memory, so under a new coordinator every consumer has its full time again. While
consumers and brokers do not change, a check costs almost nothing.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from milena.model.errors import MilenaError
from node.consumers.consumer_coordinator import ConsumerCoordinator
from node.consumers.consumer_sessions import IdleClocks
from node.context import NodeContext
from node.groups.coordinator_calls import CoordinatorCalls
from raft_meta.machine.groups.coordinators import Coordinators
from raft_meta.machine.image import Broker, ConsumerKey, Image, RestConsumer

if TYPE_CHECKING:
    from immutables import Map

logger = logging.getLogger(__name__)

LOOK_MS = 2_000
EXPIRED_AT_ONCE_MAX = 500
"""Largest number of consumers that one command deletes."""
SLICE = 500
"""Number of consumers that are checked in one turn of the loop."""


class ConsumerExpiry:
    """Deletes the idle consumers of groups that this node coordinates. Owned by the data loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        calls: CoordinatorCalls,
        coordinator: ConsumerCoordinator,
        idle: IdleClocks,
    ) -> None:
        self._node = node
        self._calls = calls
        self._coordinator = coordinator
        self._idle = idle
        self._consumers: Map[ConsumerKey, RestConsumer] | None = None
        self._brokers: Map[int, Broker] | None = None
        self._mine: dict[str, bool] = {}
        """Group → whether this node coordinates it, for the present brokers."""

    async def run(self) -> None:
        """Check periodically, until cancelled."""
        while True:
            await self._node.clock.sleep(LOOK_MS)
            image = self._node.metadata.image
            if image.consumers is not self._consumers or image.brokers is not self._brokers:
                await self._take_stock(image)
            await self._expire()

    async def _take_stock(self, image: Image) -> None:
        """Find the consumers whose groups this node coordinates, in slices, because there may be tens of thousands."""
        if image.brokers is not self._brokers:
            self._mine.clear()
        coordinators = Coordinators(image)
        node_id = self._node.metadata.node_id
        mine: set[ConsumerKey] = set()
        for count, key in enumerate(image.consumers):
            is_mine = self._mine.get(key[0])
            if is_mine is None:
                is_mine = self._mine[key[0]] = coordinators.of(key[0]) == node_id
            if is_mine:
                mine.add(key)
            if count % SLICE == SLICE - 1:
                await self._node.clock.sleep(0)
        if len(self._mine) > 2 * len(image.consumers) + SLICE:
            self._mine.clear()
        self._idle.keep(mine, self._node.clock.now_ms())
        self._consumers, self._brokers = image.consumers, image.brokers

    async def _expire(self) -> None:
        expired = [
            key
            for key in self._idle.expired(self._node.clock.now_ms(), EXPIRED_AT_ONCE_MAX)
            if self._calls.coordinates(key[0])
        ]
        consumers = self._node.metadata.image.consumers
        found = [consumers[key] for key in expired if key in consumers]
        if not found:
            return
        await asyncio.gather(*(self._coordinator.commit_arrived(key) for key in expired))
        # A call of the consumer may have arrived during the commit. Then it is not idle any more.
        still = set(self._idle.expired(self._node.clock.now_ms(), 2 * EXPIRED_AT_ONCE_MAX))
        gone = [c for c in found if (c.group_id, c.instance) in still]
        try:
            count = await self._coordinator.delete(gone) if gone else 0
        except MilenaError as error:
            logger.warning("%d idle consumers could not be forgotten: %s", len(gone), error)
            return
        logger.info("forgot idle consumers count=%d", count)
