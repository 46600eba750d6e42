"""A topic that gets more partitions while writers let an idempotency key choose the partition.

Promises: a write with a key is in the topic once, whichever node gets it and whichever partition the key's hash chooses
at that time. A writer that repeats its request after the topic has grown gets the first response, or the error that the
topic has grown.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from raft_meta.machine.transactions import LEVEL
from tests.sim.cluster.history import Write
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.world import World

TOPIC = "rehashed"
PARTITIONS_MAX = 6


class RehashingClients(TopicClients):
    """Writers with keys, and a client that adds partitions."""

    topic = TOPIC
    prefix = "h"

    @property
    def partition_count(self) -> int:
        topic = self._world.checker.newest_image().topic(TOPIC)
        return 1 if topic is None else topic.partition_count

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients = (*[self._write_keyed] * 4, self._add_partitions)
        return [self._counted(client) for client in clients]

    def _new_write(self, kind: str) -> Write:
        write = super()._new_write(kind)
        if kind == "keyed":
            write.partition = None
        return write

    async def _add_partitions(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 12))
            count = self.partition_count
            if count < PARTITIONS_MAX:
                self.call(lambda ports, n=count + 1: ports.metadata.add_partitions(TOPIC, n))  # type: ignore[misc]


class RehashedTopic(Part):
    """The topic, and the checks; see the module."""

    level = LEVEL

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: RehashingClients = RehashingClients(world)

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )
