"""Finds out when readers see the end of a transaction: once its marker is committed in each of its partitions.

The leaders of the partitions know this first. The quorum learns it later, for many transactions in one command, and
then all nodes learn it by their images. So this module asks the leaders and watches the image.

For an aborted transaction, the image does not name the partitions. So the nodes report in which copies it has records,
and only the leaders of these partitions can tell when its markers are committed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from milena.model.errors import MilenaError, NotReadyError
from node.config.budgets import SHORT_RETRY_MS
from node.context import NodeContext
from node.peers.messages import Done, ask, peer_handler
from node.replication.transaction_markers import TransactionMarkers
from node.services.messages import (
    MARKED_TRANSACTION,
    HeldRow,
    MarkedTransactionRequest,
    PartitionRow,
)
from raft_meta.machine.image import Image, PartitionKey
from storage.state.transactions import Identity

ASKING_MAX = 64
"""Largest number of transactions whose leaders this node asks at the same time. Further ones wait for the image."""
ASK_MS = 2_000
"""How long a leader waits for markers before it refuses, in ms."""


_Unseen = tuple[Identity, tuple[PartitionKey, ...]]
"""A committed transaction, and the partitions in which its marker is not known to be committed."""


class TransactionSight:
    """Waits until readers see the ends of transactions; as a leader, tells other nodes. Owned by the data loop."""

    def __init__(self, node: NodeContext, *, markers: TransactionMarkers) -> None:
        self._node = node
        self._markers = markers
        self._unseen: dict[_Unseen, list[asyncio.Future[None]]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._ending = node.metadata.image.ending
        self.on_marked_transaction = peer_handler(MARKED_TRANSACTION, self._tell_marked)
        node.metadata.listen(self._on_image)

    async def seen(
        self, identity: Identity, keys: Sequence[PartitionKey], *, timeout_ms: float
    ) -> bool:
        """Wait until readers see a committed transaction in all of these partitions; False if the time is up first."""
        if not _is_ending(self._node.metadata.image, identity, keys):
            return True
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Two requests for the same commit share a key here. If several requests share a transaction, each waits only
        # for its own partitions.
        unseen = (identity, tuple(keys))
        self._unseen.setdefault(unseen, []).append(seen)
        asking = None
        if len(self._asking) < ASKING_MAX:
            asking = asyncio.get_running_loop().create_task(self._ask_leaders(identity, keys, seen))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await seen
        except TimeoutError:
            return False
        finally:
            if asking is not None:
                asking.cancel()
            self._unseen[unseen].remove(seen)
            if not self._unseen[unseen]:
                del self._unseen[unseen]
        return True

    async def ended(self, producer_id: int, held: Sequence[HeldRow], *, timeout_ms: float) -> bool:
        """Wait until no reader waits for the transactions in ``held``; return False if the time is up first.

        ``held``: ended transactions of a producer, in copies of partitions. No client can write to them any more.
        """
        places: dict[Identity, dict[PartitionKey, int]] = {}
        for row in held:
            epochs = places.setdefault((producer_id, row.producer_epoch), {})
            key = (row.topic_id, row.partition)
            epochs[key] = max(row.leader_epoch, epochs.get(key, -1))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*(self._ended(*place) for place in places.items()))
        except TimeoutError:
            return False
        return True

    async def _ended(self, identity: Identity, epochs: dict[PartitionKey, int]) -> None:
        """Ask the leaders, and their successors, until each has confirmed that the marker is committed."""
        while True:
            partitions = self._node.metadata.image.partitions
            # If a topic was deleted, its partitions have no readers.
            epochs = {key: epoch for key, epoch in epochs.items() if key in partitions}
            by_leader: dict[int, list[PartitionKey]] = {}
            for key, epoch in epochs.items():
                state = partitions[key]
                # A copy may know a later leader epoch than this node's image.
                if state.leader is not None and state.leader_epoch >= epoch:
                    by_leader.setdefault(state.leader, []).append(key)
            answers = await asyncio.gather(
                *(self._has_ended(leader, identity, led) for leader, led in by_leader.items())
            )
            for led, has_ended in zip(by_leader.values(), answers, strict=True):
                if has_ended:
                    for key in led:
                        del epochs[key]
            if not epochs:
                return
            await self._node.clock.sleep(SHORT_RETRY_MS)

    async def _has_ended(
        self, leader: int, identity: Identity, keys: Sequence[PartitionKey]
    ) -> bool:
        try:
            await self._ask(leader, identity, keys, may_lack=True)
        except MilenaError:
            return False
        return True

    def _on_image(self, image: Image) -> None:
        # One listener for all transactions. If each of hundreds waited for images by itself, every end would wake all.
        if image.ending is self._ending:
            return
        self._ending = image.ending
        for (identity, keys), waiters in self._unseen.items():
            if not _is_ending(image, identity, keys):
                for waiter in waiters:
                    _let_go(waiter)

    async def _ask_leaders(
        self, identity: Identity, keys: Sequence[PartitionKey], seen: "asyncio.Future[None]"
    ) -> None:
        """Wait until all leaders have responded. If one cannot be asked, wait for the image instead."""
        by_leader: dict[int, list[PartitionKey]] = {}
        for key in keys:
            state = self._node.metadata.image.partitions.get(key)
            if state is None or state.leader is None:
                return
            by_leader.setdefault(state.leader, []).append(key)
        with suppress(MilenaError):
            await asyncio.gather(
                *(self._ask(leader, identity, led) for leader, led in by_leader.items())
            )
            _let_go(seen)

    async def _ask(
        self,
        leader: int,
        identity: Identity,
        keys: Sequence[PartitionKey],
        *,
        may_lack: bool = False,
    ) -> None:
        request = MarkedTransactionRequest(
            producer_id=identity[0],
            producer_epoch=identity[1],
            partitions=tuple(PartitionRow(*key) for key in keys),
            may_lack=may_lack,
        )
        if leader == self._node.metadata.node_id:
            await self._tell_marked(request)
        else:
            await ask(self._node.peers, leader, MARKED_TRANSACTION, request, timeout_ms=ASK_MS)

    async def _tell_marked(self, request: MarkedTransactionRequest) -> Done:
        """Respond once the markers are committed in all these partitions, as their leader.

        Raises:
            NotLeaderError: this node does not lead all of them.
            NotReadyError: a marker was not committed within ``ASK_MS``.
        """
        identity = (request.producer_id, request.producer_epoch)
        try:
            async with asyncio.timeout(ASK_MS / 1000):
                for row in request.partitions:
                    await self._markers.committed(
                        (row.topic_id, row.partition), identity, may_lack=request.may_lack
                    )
        except TimeoutError:
            raise NotReadyError("a marker is not committed yet") from None
        return Done()


def _is_ending(image: Image, identity: Identity, keys: Sequence[PartitionKey]) -> bool:
    """Return whether the transaction is ending in one of the partitions, as far as the image tells.

    Also return True if the image does not have the end yet: another node may have committed the transaction.
    """
    producer_id, producer_epoch = identity
    producer = image.producers.get(producer_id)
    if producer is None or producer.producer_epoch <= producer_epoch:
        return True
    return any(identity in image.ending.get(key, ()) for key in keys)


def _let_go(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
