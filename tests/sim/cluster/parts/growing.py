"""A topic that gets more partitions, and whose records clients delete.

Promises: the number of partitions never falls, and writes go only to existing partitions. An acknowledged deletion
holds for all later leaders. A log never starts above the highest offset below which a client requested deletion. A
reader is told that an offset is deleted only if it is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from milena.model.errors import MilenaError, OffsetOutOfRangeError
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Image, PartitionKey
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "growing"
PARTITIONS_MAX = 4
DELETE_TIMEOUT_MS = 1_000
EVERYTHING = 1 << 62
"""A value instead of an offset: delete everything that is committed when the request arrives."""


class GrowingClients(TopicClients):
    """Writers and readers of the present partitions, and clients that add partitions and delete records."""

    topic = TOPIC
    prefix = "g"

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.asked: defaultdict[int, int] = defaultdict(int)
        """The highest offset below which a client requested deletion, by partition."""
        self.deleted: defaultdict[int, int] = defaultdict(int)
        """The offset below which deletion was acknowledged, by partition."""
        self._reading = 0

    @property
    def partition_count(self) -> int:
        topic = self._world.checker.newest_image().topic(TOPIC)
        return 1 if topic is None else topic.partition_count

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        writers = (self._write_plain, self._write_plain, self._write_keyed, self._write_idempotent)
        return [
            *(self._counted(writer) for writer in writers),
            self._counted(self._read_all),
            # The run waits until the last added partition has a leader, and the last deletion is applied everywhere.
            self._counted(self._add_partitions),
            self._counted(self._delete),
        ]

    async def _read_all(self) -> None:
        """Read each partition, from its creation on."""
        async with asyncio.TaskGroup() as readers:
            reading = 0
            while reading < self.partition_count or not self._is_over:
                if reading < self.partition_count:
                    readers.create_task(self._read(reading, self._rng.random() < 0.5))
                    reading += 1
                await self._pause()

    async def _add_partitions(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 8))
            count = self.partition_count
            if count < PARTITIONS_MAX:
                wanted = self._rng.randint(count, PARTITIONS_MAX)
                self.call(lambda ports, n=wanted: ports.metadata.add_partitions(TOPIC, n))  # type: ignore[misc]

    async def _delete(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.1, 3))
            node = self._some_node()
            partition = self._rng.randrange(self.partition_count)
            key = self._key(partition)
            if node is None or key not in self._world.checker.ledgers:
                continue
            end = self._world.checker.ledgers[key].end
            before = self._rng.choice((self._rng.randint(0, end), end, None))
            self.asked[partition] = max(
                self.asked[partition], EVERYTHING if before is None else before
            )
            try:
                start = await node.ask(
                    lambda ports, partition=partition, before=before: (  # type: ignore[misc]
                        ports.deletions.delete_records(
                            TOPIC, partition, before, timeout_ms=DELETE_TIMEOUT_MS
                        )
                    )
                )
            except MilenaError:
                continue
            if before is not None and start < before:
                raise ViolationError(
                    f"{node.name} deleted {partition} below {before}, it says, and starts at {start}"
                )
            # A higher log start than requested is from another client's deletion, which gets its response in time.
            told = end if before is None else before
            self.deleted[partition] = max(self.deleted[partition], told)

    def _read_elsewhere(
        self, node: "NodeProcess", partition: int, offset: int, error: OffsetOutOfRangeError
    ) -> int:
        """Skip deleted records, like a client that asks where the log now starts."""
        if offset >= self.asked[partition]:
            return super()._read_elsewhere(node, partition, offset, error)
        process = self._world.checker
        start = max(
            (
                runner.log.log_start_offset
                for node_id in self._world.node_ids
                if (runner := process.runner(node_id, self._key(partition))) is not None
            ),
            default=0,
        )
        return max(offset, start)


class GrowingTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: GrowingClients = GrowingClients(world)
        self._count = 0
        self._index = 0
        """The index of the newest image that was checked."""

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            # Some clients send batches with timestamps of 1970; retention must not delete them.
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        if key[0] != self.clients.topic_id:
            return
        start, partition = runner.log.log_start_offset, key[1]
        where = f"{process.name} {TOPIC}/{partition} epoch {runner.leader_epoch}"
        if start > self.clients.asked[partition]:
            raise ViolationError(
                f"{where}: starts at {start}, and nobody wanted more deleted than what is below "
                f"{self.clients.asked[partition]}"
            )
        deleted = self.clients.deleted[partition]
        # A deposed leader that does not know it may not know later deletions.
        is_last = runner.leader_epoch == max(self.ledger(partition).leaders, default=-1)
        if runner.leader is not None and is_last and start < deleted:
            raise ViolationError(f"{where}: leads from {start}, and {deleted} was deleted")
        self.check_count(self.world.checker.newest_image())

    def check_count(self, image: Image) -> None:
        """Check that the number of partitions never falls. If the node that has applied most is down, check nothing.

        Raises:
            ViolationError: the number fell.
        """
        if image.index < self._index:
            return
        topic = image.topic(TOPIC)
        count, self._index = 0 if topic is None else topic.partition_count, image.index
        if count < self._count:
            raise ViolationError(f"{TOPIC} had {self._count} partitions, and has {count}")
        self._count = count

    def check_end(self) -> None:
        for partition in range(self.clients.partition_count):
            for node_id in self.world.node_ids:
                runner = self.world.checker.runner(node_id, (self.clients.topic_id, partition))
                if (
                    runner is not None
                    and runner.log.log_start_offset < self.clients.deleted[partition]
                ):
                    raise ViolationError(
                        f"node {node_id} {TOPIC}/{partition} starts at {runner.log.log_start_offset}, "
                        f"and {self.clients.deleted[partition]} was deleted"
                    )
