"""One partition runner on a memory disk, with a record of everything that it reports to other parts."""

import asyncio
from dataclasses import dataclass, field

from immutables import Map

from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.columns import RecordColumns
from milena.model.requests import Acks, BatchReceipt
from milena.model.types import WallMs
from node.metadata.topic_settings import log_config
from node.metrics.counts import NodeCounts
from node.process.cluster_clock import NodeClock
from node.replica.leader import IsrProposal
from node.replica.runner import PartitionRunner
from node.replica.runner_context import RunnerContext
from raft_meta.machine.image import Broker, Partition, Topic
from raft_meta.machine.topics.configs import TopicSettings
from storage.log.partition_log import PartitionLog
from tests.support.clusters import leaders
from tests.support.disk.memory_files import MemoryFiles
from tests.support.time.virtual_time import LoopClock, LoopExecutor, settle

TOPIC_ID = "0" * 31 + "1"
DIRECTORY = "/data/topics/t/0"


def settings(**configs: str) -> TopicSettings:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicSettings.of(
        Topic(
            topic_id=TOPIC_ID,
            name="t",
            partition_count=1,
            replication_factor=3,
            configs=Map(named),
            created_ms=WallMs(0),
        )
    )


def batch(*values: str, producer: ProducerStamp | None = None, key: bytes | None = None) -> bytes:
    """Return a batch of these values. ``key`` has the 16 bytes of an idempotency key for them."""
    idempotency = None
    if key is not None:
        body = repr(values).encode()[:8].ljust(8, b".")
        idempotency = IdempotencyExtension(key_hash=key, body_hash=body, partition_count=1)
    return encode_batch(
        RecordColumns(
            offset_deltas=None,
            timestamp_deltas=None,
            keys=None,
            values=[value.encode() for value in values],
            headers=None,
        ),
        base_timestamp_ms=1,
        producer=producer,
        request_keys=() if idempotency is None else (idempotency,),
    )


def values_of(data: bytes) -> list[str]:
    """Return the values of all records in log bytes."""
    found: list[str] = []
    for position, header in iterate_batches(data):
        columns = decode_columns(data, header, position, bytes_max=1 << 20)
        found += [(value or b"").decode() for value in columns.values]
    return found


@dataclass(eq=False)
class Bench:
    """Broker ``broker_id``'s replica of a partition with replicas 1, 2 and 3."""

    broker_id: int = 1
    files: MemoryFiles = field(default_factory=MemoryFiles)
    pool: LoopExecutor = field(default_factory=LoopExecutor)
    clock: NodeClock = field(default_factory=LoopClock)
    settings: TopicSettings = field(default_factory=settings)
    proposals: list[IsrProposal] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)
    full_disks: list[PartitionRunner] = field(default_factory=list)
    doubts: list[int | None] = field(default_factory=list)
    counts: NodeCounts = field(default_factory=NodeCounts)
    appends: int = 0
    """How often the runner reported an append."""
    brokers: dict[int, Broker] = field(default_factory=lambda: leaders.brokers(1, 2, 3))

    def __post_init__(self) -> None:
        self.runner = self.open()

    def open(self, *, is_listed: bool = False, was_clean: bool = False) -> PartitionRunner:
        log = PartitionLog.open(
            self.files,
            DIRECTORY,
            config=log_config(self.settings),
            topic_id=TOPIC_ID,
            topic_name="t",
            partition=0,
            is_listed=is_listed,
            was_clean=was_clean,
            now_ms=1,
        )
        return PartitionRunner(
            log,
            topic_id=TOPIC_ID,
            topic="t",
            partition=0,
            settings=self.settings,
            context=RunnerContext(
                broker_id=self.broker_id,
                clock=self.clock,
                pool=self.pool,
                sync_pool=self.pool,
                lag_ms_max=10_000,
                on_fatal=self.fatal.append,
                on_proposal=lambda _, proposal: self.proposals.append(proposal),
                on_disk_full=self.full_disks.append,
                on_doubt=lambda _, offset: self.doubts.append(offset),
                counts=self.counts,
                on_write=self._count_append,
            ),
        )

    def _count_append(self) -> None:
        self.appends += 1

    @property
    def log(self) -> PartitionLog:
        return self.runner.log

    def image(self, state: Partition) -> None:
        """Publish an image with this state of the partition."""
        self.runner.on_image(
            state,
            settings=self.settings,
            broker_epoch=self.broker_id * 10,
            brokers=self.brokers,
        )

    def lead(self, isr: tuple[int, ...] = (1, 2, 3), epoch: int = 5, version: int = 7) -> None:
        self.image(
            leaders.partition(
                isr, leader=self.broker_id, leader_epoch=epoch, partition_epoch=version
            )
        )

    def follow(self, leader: int, epoch: int = 6, version: int = 8) -> None:
        self.image(leaders.partition(leader=leader, leader_epoch=epoch, partition_epoch=version))

    def send(
        self,
        data: bytes,
        acks: Acks = Acks.ALL,
        timeout_ms: int = 1_000,
        *,
        expected_end: int | None = None,
    ) -> "asyncio.Task[BatchReceipt]":
        """Start an append as a writer would; return its task."""

        async def append() -> BatchReceipt:
            return await self.runner.append(
                data,
                decode_header(data),
                acks=acks,
                timeout_ms=timeout_ms,
                expected_end=expected_end,
            )

        return asyncio.get_running_loop().create_task(append())

    async def sent(self, *values: str, acks: Acks = Acks.LEADER) -> BatchReceipt:
        """Append, and wait for the response."""
        task = self.send(batch(*values), acks)
        await settle()
        return await task

    def ack(self, follower: int, offset: int | None = None, last_epoch: int | None = None) -> str:
        """Report a follower's position, by default the log's end; return the name of the verdict."""
        runner = self.runner
        return runner.on_replica_fetch(
            follower=follower,
            broker_epoch=self.brokers[follower].broker_epoch,
            leader_epoch=runner.leader_epoch,
            offset=self.log.log_end_offset if offset is None else offset,
            last_epoch=self.log.state.epochs.last_epoch if last_epoch is None else last_epoch,
            brokers=self.brokers,
        ).name

    def content(self) -> list[str]:
        """Return all values in the log."""
        data = b"".join(self.log.read_span(offset, max_bytes=1) for offset in self._bases())
        return values_of(data)

    def _bases(self) -> list[int]:
        offset, found = self.log.log_start_offset, []
        while offset < self.log.log_end_offset:
            found.append(offset)
            header = decode_header(self.log.read_span(offset, max_bytes=1))
            offset = header.next_offset
        return found


def leading(isr: tuple[int, ...] = (1,), **configs: str) -> Bench:
    bench = Bench(settings=settings(**({"min_insync_replicas": "1"} | configs)))
    bench.lead(isr)
    return bench


def following(*values: str, hw: int = 0) -> Bench:
    """Return replica 1 as a follower of broker 2 in epoch 6, with these values of epoch 5."""
    bench = Bench()
    source = leading()
    bench.follow(2, epoch=5, version=7)
    source.log.append_as_leader([batch(v) for v in values], leader_epoch=5, now_ms=1)
    if values:
        data = source.log.read_span(0, max_bytes=1 << 20)
        bench.runner.append_as_follower(data, leader_epoch=5)
    bench.runner.advance_as_follower(leader_epoch=5, high_watermark=hw, log_start=0)
    bench.follow(2)
    return bench
