"""A topic whose writers name the offset of their record; several of them name the same one.

Promises: an acknowledged record is at the offset that it named. So of several writers for one offset, at most one is
acknowledged. A record that was refused because of the partition's end is not in the log, even if earlier attempts got
no response. The end in a refusal is committed, and is not below what was acknowledged before the request.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from milena.model.errors import FateUnknownError, MilenaError, PreconditionFailedError
from milena.model.requests import Acks, IdempotencyKey, ProduceReceipt, ProduceRequest
from tests.sim.cluster.clients import TIMEOUT_MS
from tests.sim.cluster.history import Write
from tests.sim.cluster.invariants import Ledger, ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "conditional"
RIVALS = 3
"""The number of writers that send to one node at the same moment for the same offset."""


class ConditionalClients(TopicClients):
    """Writers with a condition, other writers without one, and readers."""

    topic = TOPIC
    prefix = "i"

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.end = 0
        """The partition's end, from the latest response."""
        self.holders: dict[int, str] = {}
        """The acknowledged value of each offset."""
        self.refused = 0

    @property
    def partition_count(self) -> int:
        return 1

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self._write_plain,
            *[self._write_if] * 2,
            *[self._write_keyed_if] * 2,
            self._write_as_rivals,
            lambda: self._read(0, is_local=False),
            lambda: self._read(0, is_local=True),
        )
        return [self._counted(client) for client in clients]

    async def _write_if(self) -> None:
        """Write with a condition, with one attempt each."""
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None:
                await self._try(node, self._new_write("plain"), self._guess(), None)

    async def _write_keyed_if(self) -> None:
        """Repeat a request with its key until its fate is known."""
        while not self._is_over:
            write, end = self._new_write("keyed"), self._guess()
            key = IdempotencyKey(
                key_hash=write.value.encode().ljust(16, b"-"), body_hash=b"12345678"
            )
            while write.offset is None and not write.is_given_up and not write.is_refused:
                await self._pause()
                node = self._some_node()
                if node is not None:
                    await self._try(node, write, end, key)

    async def _write_as_rivals(self) -> None:
        """Write for one offset on one node at the same moment, so that the leader gets all writes in one turn."""
        while not self._is_over:
            await self._pause()
            node, end = self._some_node(), self.end
            if node is not None:
                tries = [
                    self._try(node, self._new_write("plain"), end, None) for _ in range(RIVALS)
                ]
                await asyncio.gather(*tries)

    def _guess(self) -> int:
        """Return an offset to name: mostly the end, as far as it is known."""
        return max(0, self.end + self._rng.choice((0, 0, 0, 0, -1, 1)))

    async def _try(
        self, node: "NodeProcess", write: Write, end: int, key: IdempotencyKey | None
    ) -> None:
        known = self._acknowledged_end(0)
        request = ProduceRequest(
            topic=TOPIC,
            records=self._records(write),
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partition=0,
            idempotency=key,
            expected_end=end,
        )
        try:
            [receipt] = await node.ask(lambda ports: ports.produce.produce(request))
        except MilenaError as raised:
            receipt = ProduceReceipt(partition=0, offset=None, error=raised)
        if isinstance(receipt.error, PreconditionFailedError):
            self._on_refused(node, write, end, known, receipt.error)
        else:
            write.is_in_doubt |= isinstance(receipt.error, FateUnknownError)
            self._note(write, receipt.error, receipt.offset)
            self._on_written(node, write, end)

    def _on_written(self, node: "NodeProcess", write: Write, end: int) -> None:
        if write.offset is None:
            return
        if write.offset != end:
            raise ViolationError(f"{node.name} wrote {write.value} at {write.offset}, not at {end}")
        holder = self.holders.setdefault(end, write.value)
        if holder != write.value:
            raise ViolationError(f"{node.name} gave {end} to {holder} and to {write.value}")
        self.end = end + 1

    def _on_refused(
        self,
        node: "NodeProcess",
        write: Write,
        end: int,
        known: int,
        refusal: PreconditionFailedError,
    ) -> None:
        told = refusal.end_offset
        who = f"{node.name} refused {write.value} at {end} for an end at {told}"
        if told is None or told == end:
            raise ViolationError(f"{who}, which is no reason")
        if told < known:
            raise ViolationError(f"{who}, after {known - 1} was acknowledged")
        if told > self._world.checker.ledgers.get(self._key(0), Ledger()).end:
            raise ViolationError(f"{who}, which is not committed")
        self.end = told
        self.refused += 1
        if not write.is_in_doubt or told > end:
            write.is_refused, write.why = True, str(refusal)
        else:
            # An earlier attempt may still be in transit, and arrive when the partition has grown to that offset.
            write.is_given_up = True


class ConditionalTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: ConditionalClients = ConditionalClients(world)

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )

    def check_end(self) -> None:
        written = len(self.clients.holders)
        self.world.note(f"{written} written under a condition, {self.clients.refused} refused")
