"""A node in memory that implements the ports of the API, with real batches, an image, and errors on request.

There is one process and one replica, and each write is committed at once. Its logs have the bytes that
``milena.model.batch`` makes for a disk.
"""

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from immutables import Map

from http_api.access import on_behalf
from http_api.access.refusals import Refusals
from http_api.ports.node import (
    ApiLimits,
    BusyPartition,
    HistorySeries,
    HistoryView,
    NewTopic,
    PlannedReassignment,
    Ports,
    ProducerState,
    Readiness,
    ReassignmentRequest,
    RunningReassignment,
    StoredBytes,
    TopicHere,
)
from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import iterate_headers
from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.batch.header import decode_header
from milena.model.batch.timestamps import ANY_TIMESTAMP, TIMESTAMP_MS_MAX
from milena.model.columns import Headers, RecordColumns
from milena.model.errors import (
    IdempotencyKeyReusedError,
    InvalidTopicNameError,
    MilenaError,
    NoLeaderError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    PreconditionFailedError,
    TopicExistsError,
    TopicNotFoundError,
)
from milena.model.pending import Pending
from milena.model.requests import (
    Acks,
    BatchReceipt,
    Doubt,
    FetchRequest,
    FetchResult,
    IdempotencyKey,
    PartitionOffsets,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Receipts,
    Records,
)
from milena.model.types import Codec, WallMs
from node.metadata.lookup import made_again
from node.services import reassignment_plans
from node.services.producers import principal_to_own
from node.services.record_batches import check_placed
from raft_meta.machine import producers
from raft_meta.machine.brokers import check_removable
from raft_meta.machine.commands import AllocateProducer, ReassignPartitions, StepReassignments
from raft_meta.machine.image import Broker, Image, Partition, Topic
from raft_meta.machine.topics import configs, reassignments
from tests.support.fakes.access import NodeAccess
from tests.support.fakes.rest import FakeConsumers, FakeGroups
from tests.support.fakes.transactions import FakeTransactions

T = TypeVar("T")
NODE_ID = 1
CLUSTER_ID = "cluster-in-memory"
NOW_MS = 1_700_000_000_000
LEADER_EPOCH = 5


@dataclass
class FakeLog:
    """One partition: stored batches, and the idempotency keys with which they were written."""

    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    open_from: int | None = None
    """The offset of the first batch of an open transaction; None if no transaction is open."""
    keys: dict[bytes, tuple[bytes, list[ProduceReceipt]]] = field(default_factory=dict)

    def append(self, batch: bytes) -> int:
        base_offset = self.high_watermark
        stamp = stamp_batch(
            batch, base_offset=base_offset, leader_epoch=LEADER_EPOCH, append_time_ms=NOW_MS
        )
        self.batches.append(stamp + batch[len(stamp) :])
        self.high_watermark = decode_header(self.batches[-1]).next_offset
        return base_offset

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.open_from is None else self.open_from

    def end_for(self, request: FetchRequest) -> int:
        return self.high_watermark if request.is_uncommitted else self.last_stable_offset

    def refusal(self, expected_end: int) -> PreconditionFailedError:
        return PreconditionFailedError(
            f"it ends at {self.high_watermark}, not at {expected_end}; nothing was written",
            end_offset=self.high_watermark,
        )

    def rot(self, index: int) -> None:
        """Flip a bit in a batch's payload; a second call flips it back."""
        batch = self.batches[index]
        self.batches[index] = batch[:-1] + bytes([batch[-1] ^ 1])

    def read(self, offset: int, max_bytes: int) -> bytes:
        found: list[bytes] = []
        size = 0
        for batch in self.batches:
            if decode_header(batch).last_offset < offset:
                continue
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)


class FakeNode:
    """An implementation of all ports. Tests set ``errors``, ``is_ready`` and ``codec``, or call ``append``."""

    def __init__(self) -> None:
        self.node_id = NODE_ID
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.errors: dict[str, MilenaError | Exception] = {}
        """The error to raise, by name of the port's method."""
        self.partition_errors: dict[int, MilenaError] = {}
        """The error that ``produce`` returns for the records of a partition, by partition."""
        self.produce_requests: list[ProduceRequest] = []
        self.quick_requests: list[ProduceRequest] = []
        """The requests that the API passed to ``produce`` directly, without a task."""
        self.holds_quick = False
        self.held: list[tuple[ProduceRequest, Pending[Sequence[ProduceReceipt]]]] = []
        self.batch_requests: list[tuple[str, int, bytes, Acks, int]] = []
        self.batch_transactions: list[ProducerTransaction | None] = []
        self.batch_keys: list[IdempotencyKey | None] = []
        """The idempotency key of each batch request."""
        self.fetch_requests: list[FetchRequest] = []
        self.quick_fetches: list[FetchRequest] = []
        """The fetches that the API passed on without a task, and that were answered."""
        self.doubts: list[Doubt] = []
        self.codec = Codec.NONE
        self.is_ready = True
        self.drains: list[int] = []
        self.refusals = Refusals()
        self.noted: list[tuple[str, Mapping[str, object], str]] = []
        """Entries of the audit log: action, change and principal."""
        self.deletions: list[tuple[str, int, int | None, int]] = []
        self.can_drain = True
        self.has_started = True
        self.here: dict[str, TopicHere] = {}
        self.coordinator: int | None = 1
        self.groups = FakeGroups(self)
        self.consumers = FakeConsumers(self, self.groups)
        self.transactions = FakeTransactions(self)
        self._changed = asyncio.Event()
        self._round_robin = 0
        self.unheard: Image | None = None
        """The image that ``current_image`` sets: changes that other nodes have already reported to clients."""
        self.image = Image(
            index=7,
            cluster_id=CLUSTER_ID,
            controller_id=1,
            controller_epoch=3,
            brokers=Map({id_: broker(id_, is_fenced=id_ == 3) for id_ in (1, 2, 3)}),
        )
        self.access = NodeAccess(self)
        self.callers = self.access.callers

    def ports(self, limits: ApiLimits | None = None) -> Ports:
        return Ports(
            produce=self,
            reads=self,
            deletions=self,
            transactions=self.transactions,
            metadata=self,
            health=self,
            history=self,
            reassignments=self,
            groups=self.groups,
            consumers=self.consumers,
            callers=self.callers,
            access=self.access.service,
            refusals=self.refusals,
            limits=limits or ApiLimits(bad_credentials_delay_ms=0),
        )

    def add_topic(
        self, name: str, partition_count: int = 1, settings: Mapping[str, str] | None = None
    ) -> Topic:
        topic = Topic(
            topic_id=f"{len(self.image.topics):032x}",
            name=name,
            partition_count=partition_count,
            replication_factor=3,
            configs=Map(settings or {}),
            created_ms=WallMs(NOW_MS),
        )
        for partition in range(partition_count):
            self._add_partition(topic, partition)
        self._set_image(
            topics=self.image.topics.set(topic.topic_id, topic),
            topic_ids=self.image.topic_ids.set(name, topic.topic_id),
        )
        return topic

    def make_again(self, name: str) -> Topic:
        """Delete the topic, and create another one with the same name."""
        old = self.image.topics[self.image.topic_ids[name]]
        topic = replace(old, topic_id=f"{'f' * 12}{old.topic_id[12:]}")
        for partition in range(topic.partition_count):
            self._add_partition(topic, partition)
        self._set_image(
            topics=self.image.topics.delete(old.topic_id).set(topic.topic_id, topic),
            topic_ids=self.image.topic_ids.set(name, topic.topic_id),
        )
        return topic

    def _add_partition(self, topic: Topic, partition: int) -> None:
        state = Partition(
            replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=9
        )
        partitions = self.image.partitions.set((topic.topic_id, partition), state)
        self.image = replace(self.image, partitions=partitions)
        self.logs[topic.name, partition] = FakeLog()

    def add_broker(self, broker_id: int, *, is_fenced: bool) -> None:
        added = broker(broker_id, is_fenced=is_fenced)
        self._set_image(brokers=self.image.brokers.set(broker_id, added))

    def set_cluster_id(self, cluster_id: str) -> None:
        self._set_image(cluster_id=cluster_id)

    def set_partition(self, name: str, partition: int, **changes: Any) -> None:
        key = (self.image.topic_ids[name], partition)
        state = replace(self.image.partitions[key], **changes)
        self._set_image(partitions=self.image.partitions.set(key, state))

    def append(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        offset_deltas: list[int] | None = None,
        headers: list[Headers | None] | None = None,
        base_timestamp_ms: int = NOW_MS,
        is_control: bool = False,
    ) -> int:
        batch = encode_batch(
            RecordColumns(
                offset_deltas=offset_deltas,
                timestamp_deltas=None,
                keys=None if keys is None else list(keys),
                values=list(values),
                headers=headers,
            ),
            base_timestamp_ms=base_timestamp_ms,
            codec=self.codec,
            is_control=is_control,
        )
        base_offset = self.logs[topic, partition].append(batch)
        self._wake()
        return base_offset

    def _set_image(self, **changes: Any) -> None:
        self.image = replace(self.image, index=self.image.index + 1, **changes)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def check_tag(self, topic: str, tag: str) -> None:
        if not self.image.topic_ids[topic].startswith(tag):
            raise PreconditionFailedError("it is another topic; nothing was written")

    def fail(self, method: str) -> None:
        error = self.errors.get(method)
        if error is not None:
            raise error

    def log(self, topic: str, partition: int) -> FakeLog:
        if topic not in self.image.topic_ids:
            raise TopicNotFoundError(f"Topic '{topic}' not found.")
        log = self.logs.get((topic, partition))
        if log is None:
            raise PartitionNotFoundError(f"Partition {partition} of '{topic}' not found.")
        return log

    # -- ProducePort, ReadsPort, DeletionsPort

    def produce(self, request: ProduceRequest) -> Pending[Sequence[ProduceReceipt]]:
        receipts = Pending[Sequence[ProduceReceipt]]()
        is_quick = asyncio.current_task() is None
        try:
            self.fail("produce")
            (self.quick_requests if is_quick else self.produce_requests).append(request)
            if is_quick and self.holds_quick:
                self.held.append((request, receipts))
                return receipts
            receipts.set_result(self._produce(request))
        except Exception as error:
            receipts.set_exception(error)
        return receipts

    def _produce(self, request: ProduceRequest) -> Sequence[ProduceReceipt]:
        topic = self.image.topic(request.topic)
        if topic is not None and request.expected_end is not None:
            check_placed(topic, request)
        if request.partition is not None:
            return self._produce_to(request, request.partition, request.records)
        if request.topic not in self.image.topic_ids:
            raise TopicNotFoundError(f"Topic '{request.topic}' not found.")
        return self._scatter(request)

    def _scatter(self, request: ProduceRequest) -> Sequence[ProduceReceipt]:
        records = request.records
        topic = self.image.topic(request.topic)
        assert topic is not None
        count = topic.partition_count
        self._round_robin += 1
        partitions = [
            self._round_robin % count if p is None else p
            for p in records.partitions or [None] * len(records.values)
        ]
        rows: dict[int, list[int]] = {}
        for index, partition in enumerate(partitions):
            self.log(request.topic, partition)
            rows.setdefault(partition, []).append(index)
        if len(rows) == 1:
            return self._produce_to(request, partitions[0], records)
        receipts: dict[int, ProduceReceipt] = {}
        for partition, indexes in rows.items():
            part = Records(
                keys=_take(records.keys, indexes),
                values=[records.values[index] for index in indexes],
                headers=_take(records.headers, indexes),
                timestamps=_take(records.timestamps, indexes),
            )
            for index, receipt in zip(
                indexes, self._produce_to(request, partition, part), strict=True
            ):
                receipts[index] = receipt
        return [receipts[index] for index in range(len(partitions))]

    def _produce_to(
        self, request: ProduceRequest, partition: int, records: Records
    ) -> Sequence[ProduceReceipt]:
        log = self.log(request.topic, partition)
        count = len(records.values)
        error = self.partition_errors.get(partition)
        if error is not None:
            return Receipts.failed(partition, error, count)
        known = self._known(log, request.idempotency)
        if known is not None:
            return known
        self.check_tag(request.topic, request.topic_tag)
        if request.expected_end not in (None, log.high_watermark):
            return Receipts.failed(partition, log.refusal(request.expected_end), count)
        stamps = records.timestamps
        bad: dict[int, MilenaError] = {
            at: ANY_TIMESTAMP.refusal(stamp, NOW_MS)
            for at, stamp in enumerate(stamps or [])
            if stamp is not None and not 0 <= stamp <= TIMESTAMP_MS_MAX
        }
        if bad:
            good = [at for at in range(count) if at not in bad]
            part = Records(
                keys=_take(records.keys, good),
                values=[records.values[index] for index in good],
                headers=_take(records.headers, good),
                timestamps=_take(records.timestamps, good),
            )
            told = iter(self._produce_to(request, partition, part) if good else ())
            return [
                ProduceReceipt(partition=partition, offset=None, error=bad[at])
                if at in bad
                else next(told)
                for at in range(count)
            ]
        times = [NOW_MS if s is None else s for s in stamps or []]
        batch = encode_batch(
            RecordColumns(
                offset_deltas=None,
                timestamp_deltas=[time - min(times) for time in times] if times else None,
                keys=records.keys,
                values=records.values,
                headers=records.headers,
            ),
            base_timestamp_ms=min(times, default=NOW_MS),
            codec=self.codec,
        )
        base_offset = log.append(batch)
        self._wake()
        is_told = request.acks is not Acks.NONE
        receipts: Sequence[ProduceReceipt] = Receipts(
            partitions=[partition] * count,
            offsets=range(base_offset, base_offset + count) if is_told else [None] * count,
            times=(times or [NOW_MS] * count) if request.wants_times else None,
        )
        if request.idempotency is not None:
            log.keys[request.idempotency.key_hash] = (
                request.idempotency.body_hash,
                list(receipts),
            )
        return receipts

    @staticmethod
    def _known(log: FakeLog, key: IdempotencyKey | None) -> Sequence[ProduceReceipt] | None:
        if key is None or key.key_hash not in log.keys:
            return None
        body_hash, receipts = log.keys[key.key_hash]
        if body_hash != key.body_hash:
            raise IdempotencyKeyReusedError("This Idempotency-Key came with another body.")
        return receipts

    async def produce_batch(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks,
        timeout_ms: int,
        expected_end: int | None = None,
        topic_tag: str = "",
        transaction: ProducerTransaction | None = None,
        idempotency: IdempotencyKey | None = None,
        may_create: bool = True,
    ) -> BatchReceipt:
        self.fail("produce_batch")
        self.check_tag(topic, topic_tag)
        self.batch_requests.append((topic, partition, batch, acks, timeout_ms))
        self.batch_transactions.append(transaction)
        self.batch_keys.append(idempotency)
        log = self.log(topic, partition)
        header = validate_client_batch(batch, bytes_max=8 << 20, now_ms=NOW_MS)
        if expected_end not in (None, log.high_watermark):
            raise log.refusal(expected_end)
        base_offset = log.append(batch)
        self._wake()
        return BatchReceipt(
            partition=partition,
            base_offset=base_offset,
            last_offset=base_offset + header.last_offset_delta,
        )

    async def fetch(self, request: FetchRequest) -> FetchResult:
        self.fail("fetch")
        self.fetch_requests.append(request)
        if request.topic in self.image.topic_ids:
            await self.topic(request.topic, 0, request.topic_tag)
        log = self.log(request.topic, request.partition)
        topic_id = self.image.topic_ids[request.topic]
        start = self._start(log, request)
        if start == log.end_for(request) and request.timeout_ms:
            await self.wait(request.timeout_ms)
        return replace(self._fetched(log, start, request), topic_id=topic_id)

    def fetch_at_once(self, request: FetchRequest) -> FetchResult | None:
        log = self.logs.get((request.topic, request.partition))
        offset = request.offset
        if log is None or "fetch" in self.errors or request.timestamp_ms is not None:
            return None
        if not isinstance(offset, int) or not log.log_start_offset <= offset < log.end_for(request):
            return None
        self.quick_fetches.append(request)
        return self._fetched(log, offset, request)

    def _fetched(self, log: FakeLog, start: int, request: FetchRequest) -> FetchResult:
        return FetchResult(
            start_offset=start,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            is_uncommitted=request.is_uncommitted,
            log_start_offset=log.log_start_offset,
            leader_epoch=LEADER_EPOCH,
            batches=log.read(start, request.max_bytes),
            broker_id=self.node_id,
            topic_id=self.image.topic_ids[request.topic],
        )

    async def doubt(self, doubt: Doubt) -> None:
        self.doubts.append(doubt)

    @staticmethod
    def _start(log: FakeLog, request: FetchRequest) -> int:
        if request.timestamp_ms is not None:
            return _offset_for(log, request.timestamp_ms)
        if request.offset == "earliest":
            return log.log_start_offset
        end = log.end_for(request)
        if request.offset == "latest":
            return end
        offset = int(request.offset)
        if offset < 0:
            return max(end + offset, log.log_start_offset)
        if not log.log_start_offset <= offset <= log.high_watermark:
            raise OffsetOutOfRangeError(
                f"Offset {offset} is not in [{log.log_start_offset}, {log.high_watermark}]."
            )
        return offset

    async def wait(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def offsets(
        self,
        topic: str,
        partition: int,
        *,
        wants_records_end: bool = False,
    ) -> PartitionOffsets:
        del wants_records_end
        self.fail("offsets")
        log = self.log(topic, partition)
        return PartitionOffsets(
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            topic_id=self.image.topic_ids[topic],
        )

    async def delete_records(
        self, topic: str, partition: int, before: int | None, *, timeout_ms: int
    ) -> int:
        self.fail("delete_records")
        self.deletions.append((topic, partition, before, timeout_ms))
        log = self.log(topic, partition)
        offset = log.high_watermark if before is None else before
        if offset > log.high_watermark:
            raise OffsetOutOfRangeError(f"Offset {offset} is above {log.high_watermark}.")
        log.log_start_offset = max(log.log_start_offset, offset)
        return log.log_start_offset

    # -- MetadataPort

    async def topic(self, name: str, partition: int = 0, tag: str = "") -> Topic:
        self.fail("topic")
        topic = self.image.topic(name)
        if topic is not None and (
            partition >= topic.partition_count or not topic.topic_id.startswith(tag)
        ):
            topic = (await self.current_image()).topic(name)
        if topic is None:
            raise TopicNotFoundError(f"Topic '{name}' not found.")
        if not topic.topic_id.startswith(tag):
            raise made_again(name, tag)
        return topic

    async def create_topic(self, topic: NewTopic) -> Topic:
        self.fail("create_topic")
        if topic.name in self.image.topic_ids:
            raise TopicExistsError(f"Topic '{topic.name}' already exists.")
        if not topic.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise InvalidTopicNameError(f"Topic name '{topic.name}' is invalid.")
        valid = configs.validate(topic.configs.items(), topic.replication_factor or 3)
        before = self.image
        made = self.add_topic(topic.name, topic.partition_count or 1, dict(valid))
        if topic.is_validate_only:
            self.image = before
        return made

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        self.fail("add_partitions")
        topic = await self.topic(name)
        grown = replace(topic, partition_count=partition_count)
        for partition in range(topic.partition_count, partition_count):
            self._add_partition(grown, partition)
        self._set_image(topics=self.image.topics.set(topic.topic_id, grown))
        return grown

    async def remove_broker(self, broker_id: int) -> None:
        self.fail("remove_broker")
        check_removable(self.image, broker_id)
        self._set_image(brokers=self.image.brokers.delete(broker_id))

    async def delete_topic(self, name: str) -> Topic:
        self.fail("delete_topic")
        topic = await self.topic(name)
        self._set_image(
            topics=self.image.topics.delete(topic.topic_id),
            topic_ids=self.image.topic_ids.delete(name),
        )
        return topic

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, is_validate_only: bool
    ) -> None:
        self.fail("alter_configs")
        topic = await self.topic(name)
        altered = configs.alter(topic.configs, changes.items(), topic.replication_factor)
        if not is_validate_only:
            changed = replace(topic, configs=altered)
            self._set_image(topics=self.image.topics.set(topic.topic_id, changed))

    async def note(
        self, action: str, change: Mapping[str, object], *, timeout_ms: int = 10_000
    ) -> None:
        del timeout_ms
        self.fail("note")
        self.noted.append((action, change, on_behalf.principal.get()))

    async def allocate_producer(self, name: str | None) -> ProducerState:
        self.fail("allocate_producer")
        command = AllocateProducer(name=name, principal=principal_to_own(self.image))
        outcome = producers.apply(self.image, WallMs(NOW_MS), command)
        self.image = outcome.image
        assert isinstance(outcome.response, tuple)
        producer_id, producer_epoch = outcome.response
        assert isinstance(producer_id, int)
        assert isinstance(producer_epoch, int)
        return ProducerState(producer_id=producer_id, producer_epoch=producer_epoch)

    @property
    def version(self) -> int:
        return self.image.index

    async def current_image(self) -> Image:
        self.fail("current_image")
        if self.unheard is not None:
            self.image, self.unheard = self.unheard, None
            self.callers.on_image(self.image)
        return self.image

    async def image_since(self, version: int, *, timeout_ms: int) -> Image:
        self.fail("image_since")
        if self.version <= version and timeout_ms:
            await self.wait(timeout_ms)
        return self.image

    # ReassignmentsPort: the plans and the state machine are real, but no replica is moved.

    async def reassign(self, request: ReassignmentRequest) -> Sequence[PlannedReassignment]:
        self.fail("reassign")
        rows = reassignment_plans.plan(self.image, request)
        if not request.is_dry_run:
            moves = [row for row in rows if not row.is_cancelled]
            targets = (reassignment_plans.target_of(row, request) for row in moves)
            self._move(ReassignPartitions(targets=tuple(targets)))
        return rows

    async def running(self) -> Sequence[RunningReassignment]:
        self.fail("running")
        return [
            reassignment_plans.running_move(self.image, key, state, {})
            for key, state in reassignments.running(self.image)
        ]

    async def cancel(
        self, topic: str | None, partition: int | None
    ) -> Sequence[PlannedReassignment]:
        self.fail("cancel")
        keys = reassignment_plans.running_keys(self.image, topic, partition)
        steps, refused = reassignment_plans.cancel_steps(self.image, keys)
        self._move(StepReassignments(steps=tuple(step for _, step in steps)))
        return [*(row for row, _ in steps), *refused]

    def _move(self, command: ReassignPartitions | StepReassignments) -> None:
        self._set_image(partitions=reassignments.apply(self.image, command).image.partitions)

    # HistoryPort: node 1 has the last minute's figures, and node 2 does not respond.

    async def of_nodes(self) -> HistoryView:
        self.fail("history")
        return self._history("bytes_in_per_second", 1)

    async def of_topic(self, topic: str) -> HistoryView:
        self.fail("history")
        if self.image.topic(topic) is None:
            raise TopicNotFoundError(f"Topic '{topic}' not found.")
        return self._history("bytes_in_per_second", None)

    async def of_group(self, group: str) -> HistoryView:
        self.fail("history")
        return self._history("lag", None)

    def topics_here(self) -> Mapping[str, TopicHere]:
        return self.here

    def stored_bytes_here(self, topic_id: str, partition: int) -> int | None:
        return 100 + partition if topic_id in self.here else None

    async def stored_bytes(
        self, topic_ids: Collection[str], *, by_partition: bool = False
    ) -> StoredBytes:
        """Return twice the bytes of this node, because node 2 has as many; node 3 does not respond."""
        self.fail("sizes")
        known = {id_: 2 * self.here[id_].stored_bytes for id_ in topic_ids if id_ in self.here}
        if by_partition:
            known = {str(number): size + number for size in known.values() for number in range(3)}
        return StoredBytes(sizes=known, silent_nodes=[3])

    def _history(self, name: str, node_id: int | None) -> HistoryView:
        return HistoryView(
            end_ms=NOW_MS,
            step_ms=10_000,
            series=[HistorySeries(name=name, node_id=node_id, values=[math.nan, 0.25, 1e6 + 0.4])],
            busiest=[
                BusyPartition(
                    topic="orders",
                    partition=0,
                    leader=1,
                    records_in_per_second=2.06,
                    bytes_in_per_second=1500.5,
                    bytes_out_per_second=0,
                    records_out_per_second=3.5,
                )
            ],
            versions={1: "0.1.0", 3: None},
            silent_nodes=[2],
            left_out=0,
        )

    # -- HealthPort

    async def drain(self, *, timeout_ms: int) -> bool:
        self.drains.append(timeout_ms)
        return self.can_drain

    def is_started(self) -> bool:
        return self.has_started

    def readiness(self) -> Readiness:
        return Readiness(is_ready=self.is_ready, reason="" if self.is_ready else "catching up")

    def metrics(self, *, has_partitions: bool) -> bytes:
        of_partitions = b"milena_partition_fake 1\n" if has_partitions else b""
        return of_partitions + b"# TYPE milena_fake gauge\nmilena_fake 1\n"


def broker(broker_id: int, *, is_fenced: bool = False) -> Broker:
    return Broker(
        broker_id=broker_id,
        broker_epoch=broker_id,
        directory_id=f"d{broker_id}",
        incarnation=1,
        api_url=f"http://node{broker_id}.test:8082",
        peer_host=f"node{broker_id}.test",
        peer_port=7082,
        rack=f"r{broker_id}",
        is_fenced=is_fenced,
        is_draining=False,
        feature_min=1,
        feature_max=1,
    )


def no_leader() -> NoLeaderError:
    return NoLeaderError("Partition has no leader; nothing was written.")


def _take(column: Sequence[T] | None, indexes: list[int]) -> list[T] | None:
    return None if column is None else [column[index] for index in indexes]


def _offset_for(log: FakeLog, timestamp_ms: int) -> int:
    for _, header in iterate_headers(b"".join(log.batches)):
        if header.max_timestamp_ms >= timestamp_ms:
            return header.base_offset
    return log.high_watermark
