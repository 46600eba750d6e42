"""A topic with retention by time, and writes that are repeated with their keys, while a minority of clocks is wrong.

Promises: a node that knows the cluster's time never uses a wrong time. No record is deleted before the topic's
retention time, and no record of a run reaches that age. A request that is repeated later with its key gets its first
response.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from milena.model.errors import MilenaError
from milena.model.requests import Acks, IdempotencyKey, ProduceRequest
from node.control.controller import CLOCKS_LEVEL
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey
from tests.sim.cluster.clients import TIMEOUT_MS
from tests.sim.cluster.history import Write
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "aging"
RETENTION_MS = 3_600_000
"""The retention time: longer than a run, and far shorter than the errors of clocks."""
WRONG_MS_MAX = 6_000
"""The largest error of a node's time: of correct clocks, the bound on either side, and half a round trip."""


class AgingClients(TopicClients):
    """Writers, some of which repeat a write later with its key."""

    topic = TOPIC
    prefix = "y"

    @property
    def partition_count(self) -> int:
        return 2

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients = (
            *[self._write_plain] * 2,
            *[self._write_and_repeat] * 3,
            *(lambda p=partition: self._read(p, is_local=False) for partition in range(2)),
        )
        return [self._counted(client) for client in clients]

    async def _write_and_repeat(self) -> None:
        while not self._is_over:
            write = self._new_write("keyed")
            key = IdempotencyKey(
                key_hash=write.value.encode().ljust(16, b"-"), body_hash=b"12345678"
            )
            while write.offset is None:
                await self._pause()
                node = self._some_node()
                if node is not None:
                    await self._produce(node, write, key)
            await asyncio.sleep(self._rng.uniform(0, 5))
            node = self._some_node()
            if node is not None:
                await self._repeat(node, write, key)

    async def _repeat(self, node: "NodeProcess", write: Write, key: IdempotencyKey) -> None:
        request = ProduceRequest(
            topic=TOPIC,
            records=self._records(write),
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partition=write.partition,
            idempotency=key,
        )
        try:
            [receipt] = await node.ask(lambda ports: ports.produce.produce(request))
        except MilenaError:
            return
        if receipt.error is None and receipt.offset != write.offset:
            raise ViolationError(
                f"{node.name} forgot the key of {write.value}: {receipt.offset}, not {write.offset}"
            )


class AgingTopic(Part):
    """The topic, and the checks; see the module."""

    needs_right_majority = True
    level = CLOCKS_LEVEL

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: AgingClients = AgingClients(world)

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=2,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={
                "min.insync.replicas": "2",
                "retention.ms": str(RETENTION_MS),
                "segment.ms": "1000",
            },
        )

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        if key[0] == self.clients.topic_id and runner.log.log_start_offset > 0:
            raise ViolationError(
                f"{process.name} deleted records below {runner.log.log_start_offset} of {TOPIC}/{key[1]}"
            )
        node = process.node
        if node is None or not node.clock.expiry_ms():
            return
        wrong_ms = node.clock.expiry_ms() - process.clock.true_ms()
        if abs(wrong_ms) > WRONG_MS_MAX:
            raise ViolationError(f"{process.name} tells a time that is {wrong_ms} ms ahead")
