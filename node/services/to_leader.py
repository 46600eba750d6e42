"""Bring batches to their partition's leader: this node, or another node over the peer port.

Two calls cross the peer port. ``produce`` carries an encoded batch to the leader. ``produce_if`` carries a batch that
names its offset. The leader never forwards either.

The sender retries in two cases only: the response says that nothing was appended, or the batch is one that a log
recognises.

A leader may refuse a conditional batch because its log ends elsewhere. The refusal is valid only once the quorum has
confirmed that no other broker leads by now (``log_ends``). The log of a former leader may end before the current one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs

from milena.disk.files import Buffer
from milena.model.batch.decode import check_batch
from milena.model.batch.header import BatchHeader, IdempotencyExtension, decode_header
from milena.model.errors import (
    CorruptBatchError,
    FateUnknownError,
    FeatureLevelError,
    InvalidRecordError,
    InvalidRequestError,
    MilenaError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    PreconditionFailedError,
)
from milena.model.pending import Pending, in_a_task, mapped
from milena.model.requests import Acks, BatchReceipt
from milena.model.types import TimestampType
from node.config.budgets import TAKEOVER_WAIT_MS, WRITE_ANSWER_MARGIN_MS, WRITE_LEADER_WAIT_MS
from node.context import NodeContext
from node.metadata.leaderships import LeaderReplacedError, Leaderships
from node.peers.codec import Fields
from node.peers.messages import ask_with_body, pack, unpack
from node.peers.port import PeerUnreachableError
from node.replica.acknowledgements import ends_elsewhere
from node.replica.runner import PartitionRunner
from node.services.encoding import EncodedPiece
from node.services.in_time import in_time, nothing
from node.services.log_ends import LogEnds, MovedError
from node.services.messages import (
    PRODUCE,
    PRODUCE_IF,
    AppendBatchAnswer,
    AppendBatchRequest,
    AppendIfAnswer,
    AppendIfRequest,
)
from node.services.producers import ProducerService
from node.services.record_batches import Appended
from raft_meta.machine.image import Image, PartitionKey, Topic

if TYPE_CHECKING:
    import asyncio

V2_LEVEL = 12
"""The feature level from which on logs may hold Kafka's batches of version 2. Nodes of earlier releases cannot read or
compact them."""

REACH_MS = 1_000
"""How long a write may wait for a connection to its leader. Nothing was sent, so the refusal is certain."""

SUCCESSOR_WAIT_MS = 5_000
"""How long a write that a log recognises may wait for the successor of a leader that fell silent during the write. This
is longer than a session timeout and an election take. The client could only send the write again."""

HANDOVER_MS = 500
"""How long a forwarded write may continue after its leader was replaced. In a planned change, the former leader still
sees the write committed. In any other change, no response arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One batch on its way to the leader of its partition.

    ``deadline_ms``: the moment on this node's monotonic clock at which the leader must have answered.
    ``expected_end``: append only if this is the partition's next offset; None: no condition.
    """

    topic_name: str
    topic_id: str
    partition: int
    batch: bytes
    header: BatchHeader
    acks: Acks
    deadline_ms: float
    expected_end: int | None = None

    @property
    def key(self) -> PartitionKey:
        """The partition, as maps name it."""
        return (self.topic_id, self.partition)

    @property
    def name(self) -> str:
        """The partition, as errors name it."""
        return f"{self.topic_name}-{self.partition}"


class ToLeader:
    """Brings batches to their leaders, and takes the batches that other nodes bring. Belongs to the data loop."""

    def __init__(self, node: NodeContext, *, producers: ProducerService) -> None:
        self._metadata = node.metadata
        self._replicas = node.replicas
        self._membership = node.membership
        self._peer = node.peers
        self._clock = node.clock
        self._counts = node.counts
        self._producers = producers
        self._ends = LogEnds(node.metadata)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaderships = Leaderships(node.metadata)

    @property
    def _node_id(self) -> int:
        return self._metadata.node_id

    # -- entry points ----------------------------------------------------------------------------

    def append(
        self,
        topic: Topic,
        partition: int,
        pieces: Sequence[EncodedPiece],
        *,
        acks: Acks,
        timeout_ms: int,
    ) -> Pending[Appended]:
        """Append batches that no log recognises and that already waited for others; return where their records are.

        If this node leads, the append happens in this turn of the loop. For a lone writer, extra turns and a task are
        most of the latency.
        """
        runner = self._led_here(topic.topic_id, partition, acks)
        if runner is None or len(pieces) > 1:
            bringing = self.bring_all(topic, partition, pieces, acks=acks, timeout_ms=timeout_ms)
            return in_a_task(bringing, self._tasks)
        batch, count = pieces[0]
        header = decode_header(batch)
        # A batch that a log recognises may need retries (``bring``), and those need a task.
        assert header.producer_id < 0, "it would have to be brought again"
        receipt = runner.append(batch, header, acks=acks, timeout_ms=timeout_ms, at_once=True)
        return mapped(receipt, lambda done: _appended(done.result(), header, count))

    def append_led(
        self,
        topic: Topic,
        partition: int,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
    ) -> Pending[BatchReceipt]:
        """Append a batch if this node leads its partition; never bring it to another node.

        When this returns, the batch has its place behind all batches that were appended before. Its client repeats it
        after a failure, as a producer of Kafka does.

        Raises:
            NotLeaderError, NoLeaderError: this node does not lead, or may not; nothing was written. All other errors
                are raised by the returned ``Pending``.
            StaleProducerEpochError: the producer id has another holder; nothing was written.
        """
        state = self._metadata.image.partition(topic.topic_id, partition)
        runner = self._replicas.find(topic.topic_id, partition)
        if (
            state is None
            or runner is None
            or state.leader != self._node_id
            or runner.leader_epoch != state.leader_epoch
        ):
            raise NotLeaderError(
                f"node {self._node_id} does not lead {topic.name}-{partition}; nothing was written",
                leader=None if state is None else state.leader,
            )
        if not self._membership.has_lease:
            raise NoLeaderError(
                f"node {self._node_id} is cut off from the metadata quorum; nothing was written"
            )
        self._producers.check_epoch(header)
        return runner.append(batch, header, acks=acks, timeout_ms=timeout_ms)

    def _led_here(self, topic_id: str, partition: int, acks: Acks) -> PartitionRunner | None:
        """Return the replica if this node may append to it now, else None."""
        state = self._metadata.image.partition(topic_id, partition)
        if state is None or state.leader != self._node_id or not self._membership.has_lease:
            return None
        runner = self._replicas.find(topic_id, partition)
        # The replica may not have taken over in this epoch yet. The path through a task waits for it.
        if runner is None or runner.leader_epoch != state.leader_epoch:
            return None
        return runner if runner.may_append(acks) else None

    async def bring_all(
        self,
        topic: Topic,
        partition: int,
        pieces: Sequence[EncodedPiece],
        *,
        acks: Acks,
        timeout_ms: int,
        expected_end: int | None = None,
    ) -> Appended:
        """Append batches one after the other; return where their records are.

        With ``expected_end`` there is exactly one batch: a condition holds for all of its records.
        """
        assert expected_end is None or len(pieces) == 1, "a condition holds for all of its records"
        total = sum(count for _, count in pieces)
        offsets: list[int | None] = []
        times: list[int | None] = []
        for batch, count in pieces:
            header = decode_header(batch)
            try:
                receipt = await self.bring(
                    topic,
                    partition,
                    batch,
                    header,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    expected_end=expected_end,
                )
            except FateUnknownError:
                raise
            except MilenaError as error:
                if not offsets:
                    raise
                # The error says "nothing was written". That holds for the rest only.
                raise FateUnknownError(
                    f"{topic.name}-{partition}: the first {len(offsets)} of {total} records "
                    f"were written, the others not: {error.message}"
                ) from error
            appended = _appended(receipt, header, count)
            if len(pieces) == 1:
                return appended
            offsets += appended.offsets
            times += appended.times or ()
        return Appended(offsets, times or None)

    async def bring(
        self,
        topic: Topic,
        partition: int,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
        expected_end: int | None = None,
    ) -> BatchReceipt:
        """Append one batch at the leader, here or on another node. The caller runs in a task.

        If a change of leader leaves the fate of a recognised batch open, the batch is sent again. The next leader
        either has the batch and says where, or will have it only through this retry.

        Raises:
            PreconditionFailedError: ``expected_end`` was not the partition's next offset; nothing was written.
            FeatureLevelError: the batch is of Kafka's version 2, and a node has a release that cannot read it.
            FateUnknownError: the batch may have been written.
            MilenaError: any other error means that nothing was written.
        """
        # The leader does not check this again: a level never falls, and its image may be behind this one.
        if header.is_v2 and self._metadata.image.feature_level < V2_LEVEL:
            raise FeatureLevelError(
                f"{topic.name}-{partition}: Kafka's record batches need feature level {V2_LEVEL}, and the cluster has "
                f"level {self._metadata.image.feature_level}; upgrade all nodes first. Nothing was written"
            )
        write = Write(
            topic_name=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            batch=batch,
            header=header,
            acks=acks,
            deadline_ms=self._clock.now_ms() + timeout_ms,
            expected_end=expected_end,
        )
        # Without a key or a sequence, the log would take a retry for a new batch and append it twice.
        is_recognised = bool(header.request_keys) or header.base_sequence >= 0
        unknown: FateUnknownError | None = None
        while True:
            # The epoch is read before the attempt, so a leader that takes over during the attempt counts as a
            # successor.
            state = self._metadata.image.partition(*write.key)
            leader_epoch = -1 if state is None else state.leader_epoch
            try:
                return await self._bring_once(write)
            except FateUnknownError as error:
                unknown = error
            except PreconditionFailedError:
                # The refusal comes from a leader of a later epoch. That leader would have recognised an earlier attempt
                # that was committed, so nothing was written.
                raise
            except MilenaError as error:
                # This attempt wrote nothing, but an earlier one may have.
                if unknown is None:
                    raise
                raise unknown from error
            left = min(SUCCESSOR_WAIT_MS, int(write.deadline_ms - self._clock.now_ms()))
            is_open = not is_recognised or left <= 0
            if is_open or not await self._leader_moved(write.key, leader_epoch, left):
                raise unknown

    async def _bring_once(self, write: Write) -> BatchReceipt:
        """Append at the leader, here or on another node; retry while it is certain that nothing was appended."""
        patience = min(self._clock.now_ms() + WRITE_LEADER_WAIT_MS, write.deadline_ms)
        while True:
            seen_epoch = -1
            failed: MilenaError
            try:
                state = self._metadata.image.partition(*write.key)
                if state is None:
                    raise NoLeaderError(f"{write.name} is not known here; nothing was written")
                seen_epoch = state.leader_epoch
                if state.leader is None:
                    raise NoLeaderError(f"{write.name} has no leader; nothing was written")
                if state.leader == self._node_id:
                    return await self._append_here(write, seen_epoch)
                return await self._append_there(write, state.leader, seen_epoch)
            # After these errors it is certain that nothing was appended, and another leader may take the batch.
            except (NotLeaderError, NoLeaderError, PeerUnreachableError) as error:
                failed = error
            # A node without a lease is cut off and will not learn of another leader, so it does not wait.
            is_hopeful = self._membership.has_lease
            left = max(0, patience - self._clock.now_ms()) if is_hopeful else 0
            if not await self._leader_moved(write.key, seen_epoch, left):
                raise NoLeaderError(
                    f"{write.name}: {failed.message}; nothing was written"
                    if isinstance(failed, PeerUnreachableError)
                    else failed.message
                ) from failed

    async def _leader_moved(self, key: PartitionKey, leader_epoch: int, timeout_ms: float) -> bool:
        """Wait for a leader of another epoch than the one that was tried; return False if the timeout passes first."""

        def has_moved(image: Image) -> bool:
            state = image.partitions.get(key)
            return (
                state is not None
                and state.leader_epoch != leader_epoch
                and state.leader is not None
            )

        return await self._metadata.wait_until(has_moved, timeout_ms=timeout_ms)

    def _left_ms(self, write: Write) -> float:
        return max(1, write.deadline_ms - self._clock.now_ms())

    async def _append_here(self, write: Write, leader_epoch: int) -> BatchReceipt:
        header = write.header
        runner = self._replicas.find(*write.key)
        # The image may name this node before the replica has taken over; wait for it.
        if runner is None or runner.leader_epoch < leader_epoch:
            runner = await self._taken_over(write, leader_epoch)
        if runner is None or runner.leader_epoch != leader_epoch:
            raise NotLeaderError(
                f"node {self._node_id} does not lead this partition in epoch {leader_epoch}; "
                "nothing was written"
            )
        # Without a lease another broker may lead already, so an append could never commit (docs/guarantees.md).
        if not self._membership.has_lease:
            raise NoLeaderError(
                f"node {self._node_id} is cut off from the metadata quorum; nothing was written"
            )
        if header.is_transactional:
            await self._producers.check_transaction(header, timeout_ms=self._left_ms(write))
        else:
            self._producers.check_epoch(header)
        # Check growth last: nothing may await between this check and the append. ``TransactionLookup._know_growth``
        # waits one turn and then relies on every checked batch being in the log.
        for key in header.request_keys:
            self._check_growth(write.topic_id, key)
        try:
            return await runner.append(
                write.batch,
                header,
                acks=write.acks,
                timeout_ms=int(self._left_ms(write)),
                expected_end=write.expected_end,
            )
        except PreconditionFailedError as error:
            refusal = error
        # A former leader may be the last to hear of its successor. Its end is then one that was passed already.
        try:
            async with in_time(self._left_ms(write), nothing("written")):
                await self._ends.confirm(runner, leader_epoch)
        # The sender then asks the next leader, whose end is the one that counts.
        except MovedError as moved:
            raise NotLeaderError(f"{moved.message}; nothing was written") from moved
        raise refusal

    async def _taken_over(self, write: Write, leader_epoch: int) -> PartitionRunner | None:
        """Wait until this node's replica has taken over, but not longer than the image names it the leader."""
        patience_ms = min(self._left_ms(write), TAKEOVER_WAIT_MS)
        leading = self._replicas.leading(*write.key, leader_epoch, timeout_ms=patience_ms)
        state = self._metadata.image.partition(*write.key)
        if state is None or state.leader_epoch < leader_epoch:
            # The sender knows a newer image than this node.
            return await leading
        try:
            async with self._leaderships.held(write.key, self._node_id, leader_epoch):
                return await leading
        except LeaderReplacedError as error:
            raise NotLeaderError(f"{error.message}; nothing was written") from error

    def _check_growth(self, topic_id: str, key: IdempotencyExtension) -> None:
        """Refuse a batch under a key if its sender placed the batch before the topic grew.

        Another node that knows of the growth may have asked here already whether the key is known. A batch that is
        written after that response would be in the topic twice.

        Raises:
            NotReadyError: the sender has not heard of the growth; nothing was written.
        """
        topic = self._metadata.image.topics.get(topic_id)
        if topic is not None and key.partition_count < topic.partition_count:
            raise NotReadyError(
                f"{topic.name} has {topic.partition_count} partitions since, and the node that took the request knew "
                f"of {key.partition_count}; nothing was written, try again"
            )

    # -- over the peer port ----------------------------------------------------------------------

    async def _append_there(self, write: Write, leader_id: int, leader_epoch: int) -> BatchReceipt:
        self._counts.forwarded_requests += 1
        # Connect first: while nothing is sent, a failure is a certain "nothing was written" and the write may go
        # elsewhere.
        if not self._peer.is_connected(leader_id):
            await self._reach(leader_id, write, leader_epoch)
        request = AppendBatchRequest(
            topic_id=write.topic_id,
            partition=write.partition,
            leader_epoch=leader_epoch,
            acks=write.acks.value,
            timeout_ms=int(self._left_ms(write)),
        )
        # A leader that was replaced may never answer. But in a planned change the former leader still sees the write
        # committed, so its response may follow.
        try:
            async with self._leaderships.held(
                write.key, leader_id, leader_epoch, grace_ms=HANDOVER_MS
            ):
                answer = await self._ask(leader_id, write, request)
        except LeaderReplacedError as error:
            raise FateUnknownError(
                f"{write.name}: leader {leader_id} was replaced before it answered; "
                "the records may or may not have been written"
            ) from error
        is_known = answer.base_offset >= 0
        return BatchReceipt(
            partition=write.partition,
            base_offset=answer.base_offset if is_known else None,
            last_offset=answer.last_offset if is_known else None,
            is_duplicate=answer.is_duplicate,
            append_time_ms=None if answer.append_time_ms < 0 else answer.append_time_ms,
        )

    async def _ask(
        self, leader_id: int, write: Write, request: AppendBatchRequest
    ) -> AppendBatchAnswer:
        timeout_ms = request.timeout_ms + WRITE_ANSWER_MARGIN_MS
        if write.expected_end is None:
            answer, _ = await ask_with_body(
                self._peer, leader_id, PRODUCE, request, body=write.batch, timeout_ms=timeout_ms
            )
            return answer
        # Conditions have a call of their own: an earlier release would ignore a new field of ``produce`` and append
        # anyway.
        conditional = AppendIfRequest(**structs.asdict(request), expected_end=write.expected_end)
        try:
            judged, _ = await ask_with_body(
                self._peer,
                leader_id,
                PRODUCE_IF,
                conditional,
                body=write.batch,
                timeout_ms=timeout_ms,
            )
        except InvalidRequestError as error:
            if type(error) is not InvalidRequestError:
                raise
            # InvalidRequestError itself is the response of a node that does not know the call.
            raise FeatureLevelError(
                f"node {leader_id}, which leads {write.name}, is of a release without conditional writes; upgrade it "
                "first. Nothing was written"
            ) from error
        if judged.end_offset is not None:
            raise ends_elsewhere(write.name, judged.end_offset, write.expected_end)
        return judged

    async def _reach(self, leader_id: int, write: Write, leader_epoch: int) -> None:
        """Connect to the leader, but only while it leads; nothing was sent yet.

        Raises:
            PeerUnreachableError: the leader does not answer; nothing was sent.
            NotLeaderError: another broker leads by now; nothing was sent.
        """
        try:
            async with self._leaderships.held(write.key, leader_id, leader_epoch):
                await self._peer.connect(leader_id, timeout_ms=min(self._left_ms(write), REACH_MS))
        except LeaderReplacedError as error:
            raise NotLeaderError(
                f"node {leader_id} does not lead any more; nothing was written"
            ) from error

    async def on_produce(
        self, peer_id: int, fields: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Append a batch that another node forwards to this leader; never forward it again."""
        request = unpack(AppendBatchRequest, fields)
        receipt = await self._append_for_peer(peer_id, request, bytes(body), None)
        return pack(_answer_to(receipt))

    async def on_produce_if(
        self, peer_id: int, fields: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Append a batch that another node forwards with ``expected_end``; tell the log's end if it is refused."""
        request = unpack(AppendIfRequest, fields)
        try:
            receipt = await self._append_for_peer(
                peer_id, request, bytes(body), request.expected_end
            )
        except PreconditionFailedError as refusal:
            # The end travels in a response: a refusal on the peer port has only a code, a message and a leader hint.
            return pack(
                AppendIfAnswer(
                    base_offset=-1,
                    last_offset=-1,
                    is_duplicate=False,
                    end_offset=refusal.end_offset,
                )
            )
        return pack(AppendIfAnswer(**structs.asdict(_answer_to(receipt))))

    async def _append_for_peer(
        self, peer_id: int, request: AppendBatchRequest, batch: bytes, expected_end: int | None
    ) -> BatchReceipt:
        # Check the whole batch, checksum included: this leader is about to give it an offset.
        try:
            batch_header = check_batch(batch)
        except CorruptBatchError as error:
            raise InvalidRecordError(f"a batch from node {peer_id} is damaged: {error}") from error
        # Errors of this node name the topic by its id: the sender knows its name.
        write = Write(
            topic_name=request.topic_id,
            topic_id=request.topic_id,
            partition=request.partition,
            batch=batch,
            header=batch_header,
            acks=Acks(request.acks),
            deadline_ms=self._clock.now_ms() + max(1, request.timeout_ms),
            expected_end=expected_end,
        )
        return await self._append_here(write, request.leader_epoch)


def _answer_to(receipt: BatchReceipt) -> AppendBatchAnswer:
    return AppendBatchAnswer(
        base_offset=-1 if receipt.base_offset is None else receipt.base_offset,
        last_offset=-1 if receipt.last_offset is None else receipt.last_offset,
        is_duplicate=receipt.is_duplicate,
        append_time_ms=-1 if receipt.append_time_ms is None else receipt.append_time_ms,
    )


def _appended(receipt: BatchReceipt, header: BatchHeader, count: int) -> Appended:
    is_timed = header.timestamp_type is TimestampType.APPEND
    times = [receipt.append_time_ms] * count if is_timed else None
    if receipt.base_offset is None:
        return Appended([None] * count, times)
    return Appended(range(receipt.base_offset, receipt.base_offset + count), times)
