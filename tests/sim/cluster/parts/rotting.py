"""A topic whose stored bytes rot: bits flip in closed segments of running nodes, without notice.

Promises: the scrub finds the damage, no reader gets damaged bytes as sound ones, and at the end every copy is sound and
complete again. This needs one sound copy in sync, so a copy rots only while there is another. Power cuts, moves and
lost leaders happen, too. A machine loses its disk only while no copy is damaged.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.errors import CorruptBatchError, CorruptLogError
from milena.model.types import ReplicaHealth
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey
from storage.segments.segment import LOG_SUFFIX, Segment
from tests.sim.cluster.invariants import READ_BYTES, ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "rotting"
BITS_MAX = 3
"""The most bits that flip at a time."""
MOVES = frozenset({"move", "drain", "cancel_moves"})


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica on one machine."""

    node_id: int
    key: PartitionKey


class RottingClients(TopicClients):
    """Writers, and readers that verify the bytes."""

    topic = TOPIC
    prefix = "r"

    def __init__(self, world: "World", part: "RottingTopic") -> None:
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
            # The run waits until damage is found and restored that happens after the other clients have ended.
            self._counted(self._rot),
        ]

    async def _rot(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.1, 1))
            # Note the copies that are sound again, which may then rot again.
            if not self._part.is_settled() and self._rng.random() < 0.5:
                continue
            self._part.rot()

    async def _read_on(
        self, node: "NodeProcess", partition: int, offset: int, is_local: bool
    ) -> int:
        try:
            return await super()._read_on(node, partition, offset, is_local)
        except CorruptBatchError:
            # The scrub has not checked this segment yet.
            if not self._part.rotted:
                raise
            return offset


class RottingTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: RottingClients = RottingClients(world, self)
        self._rotten: set[Copy] = set()
        self._found: set[Copy] = set()
        self.rotted = self.found = self.restored = 0
        """Counts: copies that were damaged, that were found damaged, and that are sound again."""
        interval_ms = world.rng.choice((1_000, 1_000, 4_000))
        for machine in world.machines.values():
            machine.config = replace(machine.config, scrub_interval_ms=interval_ms)

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=self.clients.partition_count,
            replication_factor=min(3, len(self.world.node_ids)),
            # Some clients send batches with timestamps of 1970; retention must not delete them.
            configs={"min.insync.replicas": "2", "retention.ms": "-1", "segment.ms": "500"},
        )

    # Damage.

    def rot(self) -> None:
        """Flip some bits in a copy that is not the last sound one in sync, if there is one."""
        rng, copies = self.world.rng, [copy for copy in self._copies() if self._may_rot(copy)]
        if not copies:
            return
        copy = rng.choice(copies)
        runner = self._runner(copy)
        assert runner is not None
        files = self.world.machines[copy.node_id].files
        for _ in range(rng.randint(1, BITS_MAX)):
            segment = rng.choice(self._closed(copy, runner))
            position = rng.randrange(segment.size_bytes)
            files.flip_bit(segment.path(LOG_SUFFIX), position, rng.randrange(8))
            self.world.note(f"rot at {position} of {segment.path(LOG_SUFFIX)} on {copy.node_id}")
        self.rotted += copy not in self._rotten
        self._rotten.add(copy)

    def _copies(self) -> list[Copy]:
        keys = [(self.clients.topic_id, number) for number in range(self.clients.partition_count)]
        return [Copy(node_id, key) for key in keys for node_id in self.world.node_ids]

    def _may_rot(self, copy: Copy) -> bool:
        runner = self._runner(copy)
        state = self.world.checker.newest_image().partitions.get(copy.key)
        if runner is None or state is None or not self._closed(copy, runner):
            return False
        if self.world.faults.has_lost_any and not self.world.is_whole():
            return False
        others = {other for other in self._rotten if other.key == copy.key} - {copy}
        # A move needs only two members in sync, and removes the third one's copy.
        if len(others) >= (1 if self.world.faults.strikes_any(MOVES) else 2):
            return False
        doubtful = {suspect.broker_id for suspect in state.suspects}.union(state.damaged)
        end = self._closed(copy, runner)[-1].next_offset
        return any(
            self._is_sound(Copy(member, copy.key), end)
            for member in set(state.isr) & set(state.replicas) - doubtful - {copy.node_id}
        )

    def _closed(self, copy: Copy, runner: PartitionRunner) -> list[Segment]:
        """Return the segments that may rot: closed and committed, so that the checker has read them."""
        end = self.ledger(copy.key[1]).end
        return [segment for segment in closed(runner) if segment.next_offset <= end]

    def _is_sound(self, copy: Copy, end: int) -> bool:
        stored = self.world.checker.stored.get((copy.node_id, copy.key), 0)
        has_lost = self.world.faults.has_lost(copy.node_id)
        committed = self.ledger(copy.key[1]).end
        return copy not in self._rotten and not has_lost and stored >= max(end, committed)

    def _runner(self, copy: Copy) -> PartitionRunner | None:
        return self.world.checker.runner(copy.node_id, copy.key)

    # Repair.

    def is_rotten(self, node_id: int, key: PartitionKey) -> bool:
        copy = Copy(node_id, key)
        if copy in self._rotten:
            self._maybe_restored(copy)
        return copy in self._rotten

    @property
    def is_at_risk(self) -> bool:
        return not self.is_settled()

    def is_settled(self) -> bool:
        for copy in sorted(self._rotten, key=lambda copy: (copy.key, copy.node_id)):
            self._maybe_restored(copy)
        return not self._rotten

    def _maybe_restored(self, copy: Copy) -> None:
        machine, runner = self.world.machines[copy.node_id], self._runner(copy)
        if machine.process is None or machine.process.node is None:
            return
        is_gone = runner is None and not machine.files_of(copy.key)
        if is_gone or (runner is not None and is_whole(runner)):
            self._rotten.discard(copy)
            self._found.discard(copy)
            self.restored += 1
            self.world.note(f"partition {copy.key[1]} on {copy.node_id} is sound again")

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        copy = Copy(process.machine.node_id, key)
        if copy not in self._rotten or copy in self._found:
            return
        if runner.log.health is ReplicaHealth.DAMAGED:
            self._found.add(copy)
            self.found += 1

    def check_end(self) -> None:
        if self._rotten:
            raise ViolationError(f"still rotten at the end: {self._rotten}")
        for copy in self._copies():
            runner = self._runner(copy)
            has_lost = self.world.faults.has_lost(copy.node_id)
            if runner is not None and not has_lost and not is_whole(runner):
                raise ViolationError(f"{copy} is not whole at the end")
        self.world.note(
            f"{self.rotted} copies rotted, {self.found} found, {self.restored} sound again"
        )


def closed(runner: PartitionRunner) -> list[Segment]:
    """Return the segments below the recovery point, which do not change any more."""
    log = runner.log
    if log.health is ReplicaHealth.DAMAGED:
        return []
    return [
        segment
        for segment in log.state.table.segments[:-1]
        if segment not in log.state.table.unsealed
        and segment.size_bytes
        and segment.next_offset <= min(log.replica.checkpoint.recovery_point, log.stored_end_offset)
    ]


def is_whole(runner: PartitionRunner) -> bool:
    """Return whether every batch of a log is as it was written."""
    log = runner.log
    if log.health is not ReplicaHealth.SOUND:
        return False
    offset, end = log.log_start_offset, log.log_end_offset
    try:
        while offset < end:
            data = log.read_span(offset, max_bytes=READ_BYTES, end_offset=end)
            batches = list(iterate_batches(data))
            if not batches:
                return False
            for position, header in batches:
                decode_columns(data, header, position, bytes_max=READ_BYTES)
                if header.base_offset > offset:
                    return False
                offset = header.next_offset
    except (CorruptBatchError, CorruptLogError):
        return False
    return True
