"""The producers with which a node writes the transactions of single requests. Each has one transaction at a time.

The names of these producers belong to the node. After a restart, the node takes over the names, which aborts the
transactions that it had left open. The end of a transaction raises its producer's epoch. If the node does not know
whether a transaction has ended, it does not know the epoch either, and takes over the name again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from milena.model.errors import FateUnknownError, NoQuorumError, TooManyTransactionsError
from milena.model.types import PRODUCER_EPOCH_MAX
from node.config.budgets import PROPOSE_MS
from node.metadata.store import MetadataStore
from raft_meta.machine.commands import AllocateProducer
from raft_meta.machine.producers import RESERVED_PREFIX

SLOTS_MAX = 256
"""Largest number of such transactions that a node has in flight."""


class TransactionSlot:
    """A producer for one transaction. ``is_known``: the node knows ``producer_epoch``, so it may be used again."""

    def __init__(self, number: int, producer_id: int, producer_epoch: int) -> None:
        self.number = number
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.is_known = False

    def on_ended(self) -> None:
        """Note that the transaction was decided."""
        self.producer_epoch += 1
        self.is_known = self.producer_epoch < PRODUCER_EPOCH_MAX


class TransactionSlots:
    """The producers of one node. Owned by the data loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._free: list[TransactionSlot] = []
        self._unknown = list(range(SLOTS_MAX - 1, -1, -1))
        """Numbers of the producers whose epoch this node does not know."""
        self._room = asyncio.Semaphore(SLOTS_MAX)

    @asynccontextmanager
    async def taken(self, *, timeout_ms: float) -> AsyncIterator[TransactionSlot]:
        """Reserve a producer for the block. If ``on_ended`` is not called in the block, its epoch counts as unknown.

        Raises:
            TooManyTransactionsError: all producers were in use until the timeout.
            NoQuorumError: no producer could be allocated.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._room.acquire()
        except TimeoutError:
            raise TooManyTransactionsError(
                f"this node has {SLOTS_MAX} transactions under way; try again"
            ) from None
        try:
            if self._free:
                slot = self._free.pop()
            else:
                left_ms = max(1, int((deadline_s - loop.time()) * 1000))
                slot = await self._allocate(self._unknown.pop(), min(left_ms, PROPOSE_MS))
            try:
                yield slot
            finally:
                if slot.is_known:
                    slot.is_known = False
                    self._free.append(slot)
                else:
                    self._unknown.append(slot.number)
        finally:
            self._room.release()

    async def _allocate(self, number: int, timeout_ms: int) -> TransactionSlot:
        name = f"{RESERVED_PREFIX}transactions.{self._metadata.node_id}.{number}"
        try:
            while True:
                answer = await self._metadata.propose(
                    AllocateProducer(name=name), timeout_ms=timeout_ms
                )
                assert isinstance(answer, tuple), answer
                producer_id, producer_epoch = answer
                assert isinstance(producer_id, int), answer
                assert isinstance(producer_epoch, int), answer
                if producer_epoch < PRODUCER_EPOCH_MAX:
                    return TransactionSlot(number, producer_id, producer_epoch)
        except BaseException as error:
            self._unknown.append(number)
            if isinstance(error, FateUnknownError):
                # The name may or may not have its next epoch. Either is harmless: the next attempt raises the epoch.
                raise NoQuorumError(f"{error.message}; nothing was written") from error
            raise
