"""A topic whose replicas are always moving: moves are started, redirected and cancelled at any time.

Its operators do not wait long for a response, and ignore the fate of the move then. There is one more node than
replicas. In some runs, added replicas catch up slowly. Promises: once faults stop, each move ends, with as many
replicas as before. Brokers without a replica then have no file of one on their disks (``World`` waits for that, for
every topic).
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic, Ports, ReassignmentRequest, ReplicaTarget
from milena.model.errors import MilenaError
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "moving"
REPLICAS_MAX = 3
PATIENCE_S = 2.0
"""The timeout of a request for a move, in s."""
PAUSE_S_MAX = 1.5
CANCEL_CHANCE = 0.2
SLOW_BYTES_PER_S = 20_000
"""The throttle of a slow node for added replicas: a second for all that a run writes."""


class MovingClients(TopicClients):
    """Writers, readers, and operators that move the partitions."""

    topic = TOPIC
    prefix = "m"

    def __init__(self, world: "World", part: "MovingTopic") -> None:
        super().__init__(world)
        self._part = part

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        writers = (self._write_plain, self._write_plain, self._write_keyed, self._write_idempotent)
        readers = [
            lambda partition=partition, is_local=is_local: self._read(partition, is_local)
            for partition in range(self.partition_count)
            for is_local in (False, True)
        ]
        return [
            *(self._counted(client) for client in (*writers, *readers)),
            self._ask_for_ends,
            self._counted(self._move_about),
        ]

    async def _move_about(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.05, PAUSE_S_MAX))
            node = self._some_node()
            if node is None:
                continue
            if self._rng.random() < CANCEL_CHANCE:
                self._part.cancels += 1
                await self._ask_to(node, lambda ports: ports.reassignments.cancel(TOPIC, None))
            else:
                self._part.moves += 1
                move = self._move()
                await self._ask_to(
                    node,
                    lambda ports, move=move: ports.reassignments.reassign(move),  # type: ignore[misc]
                )

    def _move(self) -> ReassignmentRequest:
        partition = self._rng.randrange(self.partition_count)
        replicas = tuple(self._rng.sample(self._world.node_ids, self._part.replicas))
        target = ReplicaTarget(topic=TOPIC, partition=partition, replicas=replicas)
        limit = self._rng.choice((0, 1))
        self._world.note(f"move {TOPIC}/{partition} to {replicas}")
        return ReassignmentRequest(partitions=(target,), max_concurrent=limit)

    async def _ask_to(
        self, node: "NodeProcess", make: Callable[[Ports], Coroutine[Any, Any, object]]
    ) -> None:
        try:
            await node.ask(make, patience_s=PATIENCE_S)
        except TimeoutError:
            self._part.hung_up += 1
        except MilenaError as error:
            self._world.note(f"  {type(error).__name__}: {error}")


class MovingTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: MovingClients = MovingClients(world, self)
        self.moves = self.cancels = self.hung_up = self.arrivals = 0
        """Counts: requested moves; moves whose response was not awaited; moves that took a partition elsewhere."""
        self.replicas = min(REPLICAS_MAX, len(world.node_ids) - 1)
        # With two replicas and two in sync required, no write would succeed while one replica is away.
        self.in_sync = min(2, self.replicas - 1)
        self._settled: dict[int, tuple[int, ...]] = {}
        rate = world.rng.choice((0, SLOW_BYTES_PER_S))
        for machine in world.machines.values():
            machine.config = replace(machine.config, replication_throttle_bytes_per_s=rate)

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=self.clients.partition_count,
            replication_factor=self.replicas,
            # Some clients send batches with timestamps of 1970; retention must not delete them.
            configs={"min.insync.replicas": str(self.in_sync), "retention.ms": "-1"},
        )

    @property
    def is_at_risk(self) -> bool:
        # If one in-sync replica is enough, all others may be out of sync when its disk turns out to be lost.
        return self.in_sync < 2

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        state = self.world.checker.newest_applied.partitions.get(key)
        if key[0] == self.clients.topic_id and state is not None:
            before = self._settled.setdefault(key[1], state.settled)
            self.arrivals += set(before) != set(state.settled)
            self._settled[key[1]] = state.settled

    def check_end(self) -> None:
        image = self.world.checker.newest_image()
        for number in range(self.clients.partition_count):
            replicas = image.partitions[self.clients.topic_id, number].replicas
            if len(replicas) != self.replicas:
                raise ViolationError(
                    f"{TOPIC}/{number} is on {replicas}, and was moved as {self.replicas} replicas"
                )
        self.world.note(
            f"{self.moves} moves, {self.cancels} cancels, {self.hung_up} not waited for, "
            f"{self.arrivals} arrivals"
        )
