"""A compacted topic: few keys, written and deleted repeatedly, on nodes that compact during faults.

Promises: a record that is gone was replaced by a later record of its key, or is a deletion. Every replica has the last
committed record of each key, unless that is a deletion of sufficient age; then it has no record of the key. This is
checked after each compaction of a replica, for each response to a reader, and at the end.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import NewTopic
from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of
from milena.model.errors import CorruptBatchError, CorruptLogError
from milena.model.requests import FetchResult, Records
from milena.model.types import ReplicaHealth
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey
from tests.sim.cluster.history import Write
from tests.sim.cluster.invariants import READ_BYTES, TOMBSTONE, Ledger, ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "compacted"
KEYS = 6
TOMBSTONE_CHANCE = 0.2


class CompactedClients(TopicClients):
    """Writers of keys, and readers that know which records may be gone."""

    topic = TOPIC
    prefix = "c"

    @property
    def partition_count(self) -> int:
        return 1

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self._write_plain,
            self._write_plain,
            self._write_keyed,
            lambda: self._read(0, is_local=False),
            lambda: self._read(0, is_local=True),
        )
        return [self._counted(client) for client in clients]

    def _records(self, write: Write) -> Records:
        # The records must be the same in each attempt.
        number = int(write.value.removeprefix(self.prefix))
        is_deletion = write.kind == "plain" and number * 7919 % 100 < TOMBSTONE_CHANCE * 100
        if is_deletion:
            self.history.writes.pop(write.value, None)
        return Records(
            keys=[b"k%d" % (number * 104_729 % KEYS)],
            values=[None if is_deletion else write.value.encode()],
        )

    def _take(self, who: str, partition: int, offset: int, result: FetchResult) -> int:
        """Check records like the base class; offsets may be missing if there is a reason."""
        ledger = self._world.checker.ledgers[self._key(partition)]
        for position, header in list(iterate_batches(result.batches)):
            columns = decode_columns(result.batches, header, position, bytes_max=READ_BYTES)
            for at, value in zip(offsets_of(header, columns), columns.values, strict=True):
                if at < max(result.start_offset, offset) or at >= result.high_watermark:
                    continue
                require_gone(who, ledger, offset, at)
                text = TOMBSTONE if value is None else value.decode()
                self._world.checker.on_read(who, self._key(partition), at, text)
                self.history.reads += 1
                offset = at + 1
            end = min(header.next_offset, result.high_watermark)
            if end > offset:
                require_gone(who, ledger, offset, end)
                offset = end
        return offset


def require_gone(who: str, ledger: Ledger, start: int, end: int) -> None:
    """Check that each missing record in [start, end) was replaced later, or is a deletion."""
    for offset in range(start, end):
        if ledger.values.get(offset, TOMBSTONE) == TOMBSTONE:
            continue
        key = ledger.keys[offset]
        if not any(ledger.keys.get(later) == key for later in range(offset + 1, ledger.end)):
            raise ViolationError(f"{who}: {TOPIC}/{offset} is gone, the last of key {key!r}")


class CompactedTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: CompactedClients = CompactedClients(world)
        self._delete_retention_ms = world.rng.choice((0, 1_000, 60_000))
        self._clean_ends: dict[PartitionRunner, int] = {}
        self.runs = 0
        """The number of compactions."""

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={
                "min.insync.replicas": "2",
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.ms": "500",
                "delete.retention.ms": str(self._delete_retention_ms),
            },
        )

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        if key[0] != self.clients.topic_id:
            return
        end = runner.log.compaction.clean_end
        if self._clean_ends.get(runner, 0) != end:
            self._clean_ends[runner] = end
            self.runs += end > 0
            self._check_log(process.name, runner)

    def check_end(self) -> None:
        for node_id in self.world.node_ids:
            runner = self.world.checker.runner(node_id, (self.clients.topic_id, 0))
            if runner is not None:
                self._check_log(f"node {node_id} at the end", runner)
        self.world.note(f"{self.runs} compactions")

    def _check_log(self, who: str, runner: PartitionRunner) -> None:
        """Check that a log has the last committed record of each key, or none if that is a deletion."""
        if runner.log.health is not ReplicaHealth.SOUND:
            return
        ledger = self.ledger(0)
        clean_end = runner.log.compaction.clean_end
        if clean_end > ledger.end:
            raise ViolationError(
                f"{who}: {TOPIC} is compacted below {clean_end}, above {ledger.end}"
            )
        end = min(runner.high_watermark, ledger.end)
        try:
            left = last_records(runner, end)
        except (CorruptBatchError, CorruptLogError):
            if self.world.faults.has_lost_any:
                return
            raise
        for key, offset in last_offsets(ledger, runner.log.log_start_offset, end).items():
            found = left.pop(key, None)
            is_deletion = ledger.values[offset] == TOMBSTONE
            if found == offset or (found is None and is_deletion):
                continue
            if (found is None or found < offset) and self._is_replaced(runner, ledger, key, offset):
                continue
            raise ViolationError(
                f"{who}: the last of key {key!r} in {TOPIC} is at {found}, committed at {offset} as "
                f"{ledger.values[offset]!r}, compacted below {clean_end}"
            )
        if left:
            raise ViolationError(f"{who}: {left} in {TOPIC} is committed nowhere")

    @staticmethod
    def _is_replaced(
        runner: PartitionRunner, ledger: Ledger, key: bytes | None, offset: int
    ) -> bool:
        """Return whether a later record of the key is in the log, or still on its way to this copy.

        The later record may be above a high watermark that a restart has forgotten. Then the record at ``offset`` may
        be gone although an older one is still here: this copy got the older one before its leader compacted. A copy
        that still catches up gets only the records that its leader kept.
        """
        end = ledger.end
        if runner.is_in_sync:
            end = min(end, runner.log.log_end_offset)
        return key in last_offsets(ledger, offset + 1, end)


def last_offsets(ledger: Ledger, start: int, end: int) -> dict[bytes | None, int]:
    """Return the offset of the last committed record of each key in [start, end)."""
    return {ledger.keys[offset]: offset for offset in range(start, end) if offset in ledger.keys}


def last_records(runner: PartitionRunner, end: int) -> dict[bytes | None, int]:
    """Return the offset of the last record of each key below ``end`` on this replica."""
    found: dict[bytes | None, int] = {}
    offset = runner.log.log_start_offset
    while offset < end:
        data = runner.log.read_span(offset, max_bytes=READ_BYTES, end_offset=end)
        for position, header in iterate_batches(data):
            columns = decode_columns(data, header, position, bytes_max=READ_BYTES)
            keys = columns.keys or [None] * len(columns.values)
            for at, key in zip(offsets_of(header, columns), keys, strict=True):
                if at < end:
                    found[key] = at
            offset = header.next_offset
    return found
