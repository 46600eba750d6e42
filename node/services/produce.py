"""Produce on any node: encodes a request's records and brings each batch to its partition's leader.

One call crosses the peer port: ``produce`` carries an encoded batch to the leader, which never forwards it on. The
sender tries again only after an answer that says that nothing was appended, or a batch that a log recognises.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from milena.disk.files import Buffer
from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import check_batch
from milena.model.batch.encode import encode_batch, encode_stamped, with_codec, with_timestamp_type
from milena.model.batch.header import BatchHeader, IdempotencyExtension, decode_header
from milena.model.errors import (
    CorruptBatchError,
    FateUnknownError,
    InvalidProducerError,
    InvalidRecordError,
    MalformedRequestError,
    MilenaError,
    NoLeaderError,
    NotLeaderError,
    RequestTooLargeError,
    TooManyRequestsError,
)
from milena.model.requests import (
    Acks,
    BatchReceipt,
    IdempotencyKey,
    ProduceRequest,
    Queued,
    Receipt,
)
from milena.model.turns import LARGE_BYTES, Steps, Turns
from node.control.membership import Membership
from node.metadata.lookup import check_partition
from node.metadata.store import MetadataStore
from node.metadata.topic_settings import record_codec, stored_codec, topic_settings
from node.metrics.counts import NodeCounts
from node.peers.port import Peers, PeerUnreachableError
from node.process.clock import Clock
from node.replication.local_replicas import LocalReplicas
from node.services.gather import OnDone, WriteGatherer
from node.services.producers import ProducerService
from node.services.record_batches import (
    PartitionBatch,
    halve,
    keyless_record,
    receipts_of,
    receipts_of_one,
    size_of,
    size_of_columns,
    split_request,
)
from raft_meta.machine.configs import TopicSettings
from raft_meta.machine.image import Image, PartitionKey, Topic

logger = logging.getLogger(__name__)

PRODUCE = "produce"

LEADER_WAIT_MS = 1_000
"""How long a write of which nothing was sent may wait for the image to name another leader before it is refused. Long
enough for a planned change of leader and for most of a failover, short enough to count as "at once"."""

REACH_MS = 1_000
"""How long a write may wait for a connection to its leader; nothing was sent, so the refusal is certain."""

SUCCESSOR_WAIT_MS = 5_000
"""How long a write that a log recognises may wait for the successor of a leader that fell silent over it: longer than
a session and an election take. Its client could only send it again."""

HANDOVER_MS = 500
"""How long a forwarded write may go on after its leader was replaced: in a planned change the old leader still sees it
committed; in any other nobody will answer."""

ANSWER_MARGIN_MS = 500
UNACKED_MAX = 10_000
"""Requests with acks=0 that may be under way; nobody waits for them, so nothing else bounds them."""
UNACKED_BYTES_MAX = 128 << 20
"""What those may hold, where a leader elsewhere takes them slower than clients send them."""

GetTopic = Callable[[str], Awaitable[Topic]]
"""The topic of a name, made when it is missing and auto-creation is on."""


@dataclass(slots=True, eq=False)
class LeaderWatch:
    """A forwarded write that wants to hear when its leader epoch is over."""

    leader_epoch: int
    moved: "asyncio.Future[None]"


class ProduceService:
    """The writing half of ``http_api.ports.RecordsPort``."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        replicas: LocalReplicas,
        membership: Membership,
        peer: Peers,
        clock: Clock,
        counts: NodeCounts,
        producers: ProducerService,
        topic_to_write: GetTopic,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._membership = membership
        self._peer = peer
        self._clock = clock
        self._counts = counts
        self._producers = producers
        self._topic_to_write = topic_to_write
        self._gatherer = WriteGatherer(self._append_columns, self._begin_append)
        self._turns = Turns()
        self._sticky = 0
        self._unacked: set[asyncio.Task[None]] = set()
        self._unacked_bytes = 0
        self._watches: dict[PartitionKey, list[LeaderWatch]] = {}
        self._partitions = metadata.image.partitions
        metadata.listen(self._on_image)

    @property
    def _node_id(self) -> int:
        return self._metadata.node_id

    async def close(self) -> None:
        """Wait for writes that nobody waits for."""
        if self._unacked:
            await asyncio.wait(self._unacked, timeout=1)

    # -- produce ---------------------------------------------------------------------------------

    async def produce(self, request: ProduceRequest) -> Sequence[Receipt]:
        """Append the request's records; one receipt each, in order."""
        topic = await self._topic_to_write(request.topic)
        settings = topic_settings(topic)
        self._sticky = (self._sticky + 1) % topic.partition_count
        parts, errors = split_request(
            topic, request, sticky=self._sticky, now_ms=self._clock.wall_ms()
        )
        if request.acks is Acks.NONE:
            self._append_unacked(
                [partial(self._append_part, topic, settings, part, request) for part in parts],
                size_of(request.records),
            )
            outcomes: list[MilenaError | Sequence[int | None]] = [
                [None] * len(part.places) for part in parts
            ]
        elif len(parts) == 1:
            outcomes = [await _outcome(self._append_part(topic, settings, parts[0], request))]
        else:
            appends = [self._append_part(topic, settings, part, request) for part in parts]
            outcomes = list(await asyncio.gather(*(_outcome(a) for a in appends)))
        if len(parts) == 1 and not errors:
            return receipts_of_one(parts[0], outcomes[0])
        return receipts_of(len(request.records.values), parts, outcomes, errors)

    def queue(self, request: ProduceRequest) -> Queued | None:
        """Append a few records of one partition together with others'; None: nothing was done, ``produce`` them.

        Raises:
            PartitionNotFoundError: nothing was done.
        """
        topic = self._metadata.image.topic(request.topic)
        if topic is None or request.idempotency is not None:
            return None
        settings = topic_settings(topic)
        sticky = (self._sticky + 1) % topic.partition_count
        parts, errors = split_request(topic, request, sticky=sticky, now_ms=self._clock.wall_ms())
        if len(parts) != 1 or errors or settings.is_compacted:
            return None
        part = parts[0]
        size = size_of_columns(part.columns)
        if not self._gatherer.takes(part, size, settings, request.acks):
            return None
        self._sticky = sticky
        offsets = self._gatherer.submit(
            topic, settings, part, size=size, acks=request.acks, timeout_ms=request.timeout_ms
        )
        return Queued(part.partition, offsets)

    def _append_unacked(
        self, appends: Sequence[Callable[[], Awaitable[Sequence[int | None]]]], size: int
    ) -> None:
        is_full = len(self._unacked) + len(appends) > UNACKED_MAX
        if is_full or self._unacked_bytes + size > UNACKED_BYTES_MAX:
            raise TooManyRequestsError("too many writes with acks=0 are under way; try again")

        async def ignore(append: Callable[[], Awaitable[Sequence[int | None]]]) -> None:
            outcome = await _outcome(append())
            if isinstance(outcome, MilenaError):
                logger.info("write with acks=0 failed: %s", outcome)

        def on_done(task: asyncio.Task[None], share: int) -> None:
            self._unacked.discard(task)
            self._unacked_bytes -= share

        for append in appends:
            share = size // len(appends)
            task = asyncio.create_task(ignore(append))
            self._unacked.add(task)
            self._unacked_bytes += share
            task.add_done_callback(partial(on_done, share=share))

    def _append_part(
        self, topic: Topic, settings: TopicSettings, part: PartitionBatch, request: ProduceRequest
    ) -> Awaitable[Sequence[int | None]]:
        """One partition's records of a request: together with others', or on their own."""
        if settings.is_compacted:
            error = keyless_record(topic, part)
            if error is not None:
                return _refused(error)
        size = size_of_columns(part.columns)
        acks, timeout_ms, key = request.acks, request.timeout_ms, request.idempotency
        if key is None and self._gatherer.takes(part, size, settings, acks):
            return self._gatherer.submit(
                topic, settings, part, size=size, acks=acks, timeout_ms=timeout_ms
            )
        return self._append_columns(topic, settings, part, size, acks, timeout_ms, key)

    async def _append_columns(
        self,
        topic: Topic,
        settings: TopicSettings,
        part: PartitionBatch,
        size: int,
        acks: Acks,
        timeout_ms: int,
        key: IdempotencyKey | None = None,
    ) -> Sequence[int | None]:
        """Encode and append one partition's records, of about ``size`` bytes; their offsets."""
        # All is encoded, and may be refused as too large, before the first piece is written.
        pieces = await self._turns.run(self._encode(topic, settings, part, size, key), size)
        if len(pieces) == 1:
            return await self._append_piece(topic, part.partition, *pieces[0], acks, timeout_ms)
        offsets: list[int | None] = []
        for batch, count in pieces:
            try:
                offsets += await self._append_piece(
                    topic, part.partition, batch, count, acks, timeout_ms
                )
            except FateUnknownError:
                raise
            except MilenaError as error:
                if not offsets:
                    raise
                # "Nothing was written" holds for the rest alone.
                raise FateUnknownError(
                    f"{topic.name}-{part.partition}: the first {len(offsets)} of {len(part.places)} records "
                    f"were written, the others not: {error.message}"
                ) from error
        return offsets

    def _begin_append(
        self,
        topic: Topic,
        settings: TopicSettings,
        part: PartitionBatch,
        size: int,
        acks: Acks,
        timeout_ms: int,
        on_done: OnDone,
    ) -> bool:
        """As ``_append_columns`` for a small batch that this node may append at once; False: nothing was done.

        Turns of the loop, and a task, are most of what a lone writer would wait for.
        """
        if size >= LARGE_BYTES:
            return False
        state = self._metadata.image.partition(topic.topic_id, part.partition)
        if state is None or state.leader != self._node_id or not self._membership.has_lease:
            return False
        runner = self._replicas.find(topic.topic_id, part.partition)
        if runner is None or runner.leader_epoch != state.leader_epoch:
            return False
        if not runner.may_append(acks):
            return False
        batch, header = encode_stamped(
            part.columns,
            stamp=runner.next_stamp(),
            base_timestamp_ms=part.base_timestamp_ms,
            codec=record_codec(settings),
            timestamp_type=settings.timestamp_type,
        )
        if len(batch) > settings.max_message_bytes:
            return False

        def on_appended(outcome: BatchReceipt | MilenaError) -> None:
            if isinstance(outcome, MilenaError):
                on_done(outcome)
                return
            assert outcome.base_offset is not None, "somebody waits for it"
            on_done(range(outcome.base_offset, outcome.base_offset + header.record_count))

        runner.begin_append(batch, header, acks=acks, timeout_ms=timeout_ms, on_done=on_appended)
        return True

    async def _append_piece(
        self, topic: Topic, partition: int, batch: bytes, count: int, acks: Acks, timeout_ms: int
    ) -> Sequence[int | None]:
        receipt = await self._append(
            topic,
            partition,
            batch,
            decode_header(batch),
            acks=acks,
            timeout_ms=timeout_ms,
        )
        if receipt.base_offset is None:
            return [None] * count
        return range(receipt.base_offset, receipt.base_offset + count)

    def _encode(
        self,
        topic: Topic,
        settings: TopicSettings,
        part: PartitionBatch,
        size: int,
        key: IdempotencyKey | None,
    ) -> Steps[list[tuple[bytes, int]]]:
        """Batches and how many records each holds: a request may be larger than a batch.

        Raises:
            RequestTooLargeError: a single record is, or the records of one idempotency key are.
        """
        count = len(part.columns.values)
        bytes_max = settings.max_message_bytes
        if key is None and count > 1 and size > bytes_max:
            # Encoding all of it first would be for nothing.
            return (yield from self._encode_halves(topic, settings, part))
        batch = self._encode_whole(topic, settings, part, key)
        yield
        if len(batch) <= bytes_max:
            return [(batch, count)]
        if count == 1 or key is not None:
            what = "a record" if count == 1 else "the records of one idempotency key"
            raise RequestTooLargeError(
                f"{what} for {topic.name}-{part.partition} take {len(batch)} bytes, max.message.bytes is "
                f"{bytes_max}; send less at once or raise it"
            )
        return (yield from self._encode_halves(topic, settings, part))

    def _encode_halves(
        self, topic: Topic, settings: TopicSettings, part: PartitionBatch
    ) -> Steps[list[tuple[bytes, int]]]:
        pieces: list[tuple[bytes, int]] = []
        for half in halve(part):
            size = size_of_columns(half.columns)
            pieces += yield from self._encode(topic, settings, half, size, None)
        return pieces

    def _encode_whole(
        self,
        topic: Topic,
        settings: TopicSettings,
        part: PartitionBatch,
        key: IdempotencyKey | None,
    ) -> bytes:
        idempotency = None
        if key is not None:
            idempotency = IdempotencyExtension(
                key_hash=key.key_hash,
                body_hash=key.body_hash,
                partition_count=topic.partition_count,
            )
        return encode_batch(
            part.columns,
            base_timestamp_ms=part.base_timestamp_ms,
            codec=record_codec(settings),
            timestamp_type=settings.timestamp_type,
            idempotency=idempotency,
        )

    async def produce_batch(
        self, topic: str, partition: int, batch: bytes, *, acks: Acks, timeout_ms: int
    ) -> BatchReceipt:
        """Append one batch that a client encoded."""
        found = await self._topic_to_write(topic)
        check_partition(found, partition)
        settings = topic_settings(found)
        header = validate_client_batch(
            batch,
            bytes_max=settings.max_message_bytes,
            now_ms=self._clock.wall_ms(),
            needs_keys=settings.is_compacted,
        )
        if settings.timestamp_type is not header.timestamp_type:
            batch = with_timestamp_type(batch, settings.timestamp_type)
            header = decode_header(batch)
        codec = stored_codec(settings)
        if codec is not None and codec is not header.codec:
            batch = with_codec(batch, codec)
            header = decode_header(batch)
        if header.producer_id >= 0:
            await self._check_producer(header)

        async def append() -> BatchReceipt:
            receipt = await self._append(
                found, partition, batch, header, acks=acks, timeout_ms=timeout_ms
            )
            return replace(receipt, leader_epoch=self._leader_epoch(found.topic_id, partition))

        if acks is Acks.NONE:

            async def nobody_waits() -> Sequence[int | None]:
                await append()
                return []

            self._append_unacked([nobody_waits], len(batch))
            return BatchReceipt(
                partition=partition,
                base_offset=None,
                last_offset=None,
                leader_epoch=self._leader_epoch(found.topic_id, partition),
            )
        return await append()

    def _leader_epoch(self, topic_id: str, partition: int) -> int:
        state = self._metadata.image.partition(topic_id, partition)
        return 0 if state is None else state.leader_epoch

    async def _check_producer(self, header: BatchHeader) -> None:
        if not _is_allocated(header, self._metadata.image):
            image = await self._metadata.barrier(timeout_ms=2_000)
            if not _is_allocated(header, image):
                raise InvalidProducerError(
                    f"producer id {header.producer_id} epoch {header.producer_epoch} was never allocated; "
                    "POST /producers gives one"
                )

    # -- getting a batch to its leader -----------------------------------------------------------

    async def _append(
        self,
        topic: Topic,
        partition: int,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
    ) -> BatchReceipt:
        """Append at the leader, wherever it is.

        When a change of leader leaves the fate of a batch open that a log recognises, it is sent again: the next
        leader either has it and says where, or never will but by this.
        """
        is_recognised = header.idempotency is not None or header.producer_id >= 0
        deadline = self._clock.now_ms() + timeout_ms
        unknown: FateUnknownError | None = None
        while True:
            state = self._metadata.image.partition(topic.topic_id, partition)
            leader_epoch = -1 if state is None else state.leader_epoch
            left = max(1, int(deadline - self._clock.now_ms()))
            try:
                return await self._append_once(
                    topic, partition, batch, header, acks=acks, timeout_ms=left
                )
            except FateUnknownError as error:
                unknown = error
            except MilenaError as error:
                # This try wrote nothing, but an earlier one may have.
                if unknown is None:
                    raise
                raise unknown from error
            left = min(SUCCESSOR_WAIT_MS, int(deadline - self._clock.now_ms()))
            is_open = not is_recognised or left <= 0
            if is_open or not await self._leader_moved(topic, partition, leader_epoch, left):
                raise unknown

    async def _append_once(
        self,
        topic: Topic,
        partition: int,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
    ) -> BatchReceipt:
        """Append at the leader, wherever it is; try again while it is certain that nothing was appended."""
        deadline = self._clock.now_ms() + timeout_ms
        patience = self._clock.now_ms() + min(LEADER_WAIT_MS, timeout_ms)
        while True:
            seen_epoch = -1
            failed: MilenaError
            try:
                state = self._metadata.image.partition(topic.topic_id, partition)
                if state is None:
                    raise NoLeaderError(
                        f"{topic.name}-{partition} is not known here; nothing was written"
                    )
                seen_epoch = state.leader_epoch
                if state.leader is None:
                    raise NoLeaderError(
                        f"{topic.name}-{partition} has no leader; nothing was written"
                    )
                left = max(1, deadline - self._clock.now_ms())
                if state.leader == self._node_id:
                    return await self._append_here(
                        topic.topic_id, partition, state.leader_epoch, batch, header, acks, left
                    )
                return await self._append_there(
                    state.leader, state.leader_epoch, topic, partition, batch, acks, left
                )
            except (NotLeaderError, NoLeaderError, PeerUnreachableError) as error:
                failed = error
            # Who is cut off will not hear of another leader.
            is_hopeful = self._membership.has_lease
            left = max(0, min(patience, deadline) - self._clock.now_ms()) if is_hopeful else 0
            if not await self._leader_moved(topic, partition, seen_epoch, left):
                raise NoLeaderError(
                    f"{topic.name}-{partition}: {failed.message}; nothing was written"
                    if isinstance(failed, PeerUnreachableError)
                    else failed.message
                ) from failed

    async def _leader_moved(
        self, topic: Topic, partition: int, leader_epoch: int, timeout_ms: float
    ) -> bool:
        """Wait for a leader of another epoch than the one that was tried."""

        def has_moved(image: Image) -> bool:
            state = image.partition(topic.topic_id, partition)
            return (
                state is not None
                and state.leader_epoch != leader_epoch
                and state.leader is not None
            )

        return await self._metadata.wait_until(has_moved, timeout_ms=timeout_ms)

    async def _append_here(
        self,
        topic_id: str,
        partition: int,
        leader_epoch: int,
        batch: bytes,
        header: BatchHeader,
        acks: Acks,
        timeout_ms: float,
    ) -> BatchReceipt:
        runner = self._replicas.find(topic_id, partition)
        if runner is None or runner.leader_epoch < leader_epoch:
            patience_ms = min(timeout_ms, LEADER_WAIT_MS)
            runner = await self._replicas.leading(
                topic_id, partition, leader_epoch, timeout_ms=patience_ms
            )
        if runner is None or runner.leader_epoch != leader_epoch:
            raise NotLeaderError(
                f"broker {self._node_id} does not lead this partition in epoch {leader_epoch}; "
                "nothing was written"
            )
        if not self._membership.has_lease:
            raise NoLeaderError(
                f"broker {self._node_id} is cut off from the metadata quorum; nothing was written"
            )
        self._producers.check_epoch(header)
        return await runner.append(batch, header, acks=acks, timeout_ms=int(timeout_ms))

    async def _append_there(
        self,
        leader_id: int,
        leader_epoch: int,
        topic: Topic,
        partition: int,
        batch: bytes,
        acks: Acks,
        timeout_ms: float,
    ) -> BatchReceipt:
        self._counts.forwarded_requests += 1
        key = (topic.topic_id, partition)
        if not self._peer.is_connected(leader_id):
            await self._reach(leader_id, key, leader_epoch, timeout_ms)
        call = asyncio.ensure_future(
            self._peer.call(
                leader_id,
                PRODUCE,
                {
                    "topic": topic.topic_id,
                    "partition": partition,
                    "epoch": leader_epoch,
                    "acks": int(acks),
                    "timeout_ms": int(timeout_ms),
                },
                [batch],
                timeout_ms=timeout_ms + ANSWER_MARGIN_MS,
            )
        )
        watch = self._watch_leader(key, leader_epoch)
        try:
            either: list[asyncio.Future[Any]] = [call, watch.moved]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait([call], timeout=HANDOVER_MS / 1000)
            if not call.done():
                raise FateUnknownError(
                    f"{topic.name}-{partition}: leader {leader_id} was replaced before it answered; "
                    "the records may or may not have been written"
                )
            answer, _ = call.result()
        finally:
            call.cancel()
            self._unwatch_leader(key, watch)
        match answer:
            case {"base": int(base), "last": int(last), "dup": bool(is_duplicate)}:
                return BatchReceipt(
                    partition=partition,
                    base_offset=base if base >= 0 else None,
                    last_offset=last if base >= 0 else None,
                    is_duplicate=is_duplicate,
                )
            case _:
                raise FateUnknownError("the leader's answer has the wrong shape")

    async def _reach(
        self, leader_id: int, key: PartitionKey, leader_epoch: int, timeout_ms: float
    ) -> None:
        """Connect to the leader, but not for longer than it leads: nothing was sent yet.

        Raises:
            PeerUnreachableError: it does not answer; nothing was sent.
            NotLeaderError: another one leads now.
        """
        dial = asyncio.ensure_future(
            self._peer.connect(leader_id, timeout_ms=min(timeout_ms, REACH_MS))
        )
        watch = self._watch_leader(key, leader_epoch)
        try:
            either: list[asyncio.Future[Any]] = [dial, watch.moved]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not dial.done():
                raise NotLeaderError(
                    f"broker {leader_id} does not lead any more; nothing was written"
                )
            dial.result()
        finally:
            dial.cancel()
            self._unwatch_leader(key, watch)

    def _watch_leader(self, key: PartitionKey, leader_epoch: int) -> LeaderWatch:
        watch = LeaderWatch(leader_epoch, asyncio.get_running_loop().create_future())
        self._watches.setdefault(key, []).append(watch)
        self._look(key, [watch])
        return watch

    def _unwatch_leader(self, key: PartitionKey, watch: LeaderWatch) -> None:
        watch.moved.cancel()
        watches = self._watches[key]
        watches.remove(watch)
        if not watches:
            del self._watches[key]

    def _on_image(self, image: Image) -> None:
        if image.partitions is self._partitions:
            return
        self._partitions = image.partitions
        for key, watches in self._watches.items():
            self._look(key, watches)

    def _look(self, key: PartitionKey, watches: Sequence[LeaderWatch]) -> None:
        state = self._metadata.image.partitions.get(key)
        for watch in watches:
            is_same = state is not None and state.leader_epoch == watch.leader_epoch
            if not is_same and not watch.moved.done():
                watch.moved.set_result(None)

    async def on_produce(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> tuple[dict[str, object], Sequence[Buffer]]:
        """A batch that another node forwards to this leader; never forwarded again."""
        match header:
            case {
                "topic": str(topic_id),
                "partition": int(partition),
                "epoch": int(leader_epoch),
                "acks": (0 | 1 | -1) as acks,
                "timeout_ms": int(timeout_ms),
            }:
                pass
            case _:
                raise MalformedRequestError("produce: the request has the wrong shape")
        batch = bytes(body)
        try:
            batch_header = check_batch(batch)
        except CorruptBatchError as error:
            raise InvalidRecordError(f"a batch from node {peer_id} is damaged: {error}") from error
        receipt = await self._append_here(
            topic_id, partition, leader_epoch, batch, batch_header, Acks(acks), max(1, timeout_ms)
        )
        base = -1 if receipt.base_offset is None else receipt.base_offset
        last = -1 if receipt.last_offset is None else receipt.last_offset
        return {"base": base, "last": last, "dup": receipt.is_duplicate}, ()


def _is_allocated(header: BatchHeader, image: Image) -> bool:
    epoch = image.producer_epoch(header.producer_id)
    return epoch is not None and header.producer_epoch <= epoch


async def _refused(error: MilenaError) -> Sequence[int | None]:
    raise error


async def _outcome(
    append: Awaitable[Sequence[int | None]],
) -> MilenaError | Sequence[int | None]:
    try:
        return await append
    except MilenaError as error:
        return error
