"""Produce on any node: split a request by partition, and make the receipts of its response.

Small writes share a batch (``gather``). A large write, or one with an idempotency key, is encoded by itself. Both are
then brought to the leader of their partition (``to_leader``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.encode import with_codec, with_extensions, with_timestamp_type
from milena.model.batch.header import (
    BatchHeader,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.errors import (
    InvalidProducerError,
    InvalidRecordError,
    MilenaError,
    NoLeaderError,
    NoQuorumError,
    PreconditionFailedError,
    RequestTooLargeError,
    TooManyRequestsError,
    TopicNotTransactionalError,
)
from milena.model.pending import Pending, in_a_task
from milena.model.requests import (
    Acks,
    BatchReceipt,
    IdempotencyKey,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Receipts,
)
from milena.model.turns import Steps, Turns
from milena.model.types import TimestampType, WallMs
from node.config.budgets import PRODUCER_BARRIER_MS
from node.context import NodeContext
from node.metadata.lookup import TopicToWrite, check_partition
from node.metadata.topic_settings import stored_codec, topic_settings
from node.services.encoding import (
    EncodedPiece,
    TransactionStamp,
    encode,
    encode_each,
    request_keys,
)
from node.services.gather import WriteGatherer
from node.services.in_time import in_time, nothing
from node.services.own_keys import own_key, under_key
from node.services.own_topics import check_written_by_clients
from node.services.producers import ProducerService
from node.services.record_batches import (
    Appended,
    PartitionBatch,
    check_placed,
    highest_partition,
    receipts_of,
    receipts_of_one,
    size_of,
    size_of_columns,
    split_request,
)
from node.services.to_leader import ToLeader
from node.services.transactions.lookup import TransactionLookup
from raft_meta.machine.image import Image, Topic
from raft_meta.machine.topics.configs import TopicSettings
from storage.state.producer_state import NO_SEQUENCE

logger = logging.getLogger(__name__)

UNACKED_MAX = 10_000
"""Requests with acks=0 that may be in flight. No client waits for them, so nothing else bounds them."""
UNACKED_BYTES_MAX = 128 << 20
"""Bytes that requests with acks=0 in flight may hold. A remote leader may take them more slowly than clients send."""


REFUSED_BY_SETTINGS = (InvalidRecordError, RequestTooLargeError, TopicNotTransactionalError)
"""Errors for which a topic's settings may be the reason."""


class RequestPart(NamedTuple):
    """A request's records for one partition, before they are encoded. ``size``: their bytes."""

    topic: Topic
    settings: TopicSettings
    part: PartitionBatch
    size: int
    request: ProduceRequest


class ProduceService:
    """Implements ``http_api.ports.node.ProducePort``."""

    def __init__(
        self,
        node: NodeContext,
        *,
        producers: ProducerService,
        lookup: TransactionLookup,
        topic_to_write: TopicToWrite,
    ) -> None:
        self._metadata = node.metadata
        self._lookup = lookup
        self._clock = node.clock
        self._topic_to_write = topic_to_write
        self.to_leader = self._to_leader = ToLeader(node, producers=producers)
        self.on_produce = self._to_leader.on_produce
        """Handles the batches that other nodes bring."""
        self.on_produce_if = self._to_leader.on_produce_if
        self._gatherer = WriteGatherer(self._to_leader)
        self._turns = Turns()
        self._sticky = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unacked: set[asyncio.Task[None]] = set()
        self._unacked_bytes = 0

    async def close(self) -> None:
        """Wait for the writes that no client waits for, for at most 1 s."""
        if self._unacked:
            await asyncio.wait(self._unacked, timeout=1)

    def produce(self, request: ProduceRequest) -> Pending[Sequence[ProduceReceipt]]:
        """Append the request's records; return one receipt each, in order.

        Raises:
            MilenaError: nothing was done. All other errors are raised by the returned ``Pending``. A missing topic or
                partition is one of them, because the quorum is asked first.
        """
        check_written_by_clients(request.topic)
        topic = self._metadata.image.topic(request.topic)
        if topic is None or highest_partition(request) >= topic.partition_count:
            # This image may be behind that of another node, so only the quorum may say that the topic or partition is
            # missing.
            return in_a_task(self._produce_to_new(request), self._tasks)
        # A topic that was created again under its name has another id. What the client kept of the former one does not
        # hold.
        if not topic.topic_id.startswith(request.topic_tag):
            return in_a_task(self._produce_to_new(request), self._tasks)
        if request.idempotency is not None:
            request = replace(request, idempotency=own_key(request.idempotency, topic))
            # Before the topic grew, a record under this key may have gone to another partition. Only its leader can
            # tell.
            if topic.growths:
                return in_a_task(self._produce_under_key(topic, request), self._tasks)
        return self._produce(topic, request)

    def write_own(self, topic: Topic, request: ProduceRequest) -> Pending[Sequence[ProduceReceipt]]:
        """Append records of the cluster itself to an existing topic of its own, which clients may not write."""
        return self._produce(topic, request)

    async def _produce_to_new(self, request: ProduceRequest) -> Sequence[ProduceReceipt]:
        began_ms = self._clock.now_ms()
        with under_key(request.idempotency):
            topic = await self._find_topic(
                request.topic,
                highest_partition(request),
                request.topic_tag,
                may_create=request.may_create,
                timeout_ms=request.timeout_ms,
            )
        request = replace(request, timeout_ms=self._left_ms(began_ms, request.timeout_ms))
        if request.idempotency is not None:
            request = replace(request, idempotency=own_key(request.idempotency, topic))
            if topic.growths:
                return await self._produce_under_key(topic, request)
        return await self._produce(topic, request)

    def _left_ms(self, began_ms: float, timeout_ms: int) -> int:
        return max(1, timeout_ms - int(self._clock.now_ms() - began_ms))

    async def _find_topic(
        self, name: str, partition: int, tag: str, *, may_create: bool, timeout_ms: int
    ) -> Topic:
        """Return the topic to write, whose id begins with ``tag``. Raises as ``_tagged`` and ``TopicToWrite`` do."""
        found = self._metadata.image.topic(name)
        if found is not None and partition < found.partition_count:
            check_written_by_clients(name)
            if found.topic_id.startswith(tag):
                return found
        # A tag names a topic that was there. If it is gone, a new topic cannot be the one that is meant.
        may_create = may_create and not tag
        async with in_time(timeout_ms, nothing("written")):
            found = await self._topic_to_write(name, partition, may_create=may_create)
            return await self._tagged(found, tag)

    async def _tagged(self, topic: Topic, tag: str) -> Topic:
        """Return the topic of this name whose id begins with the tag; this node may not have heard of it yet.

        Raises:
            PreconditionFailedError: the name belongs to another topic by now; nothing was written.
            NoQuorumError: no majority could be asked; nothing was written.
        """
        if topic.topic_id.startswith(tag):
            return topic
        found = (await self._metadata.current_image()).topic(topic.name)
        if found is None or not found.topic_id.startswith(tag):
            raise PreconditionFailedError(
                f"topic '{topic.name}' was deleted and made again since it was read under the tag '{tag}'; "
                "nothing was written"
            )
        return found

    async def _produce_under_key(
        self, topic: Topic, request: ProduceRequest
    ) -> Sequence[ProduceReceipt]:
        began_ms = self._clock.now_ms()
        with under_key(request.idempotency):
            async with in_time(request.timeout_ms, nothing("written")):
                await self._lookup.check_key(topic, request)
        left_ms = self._left_ms(began_ms, request.timeout_ms)
        return await self._produce(topic, replace(request, timeout_ms=left_ms))

    def _produce(
        self, topic: Topic, request: ProduceRequest, *, is_current: bool = False
    ) -> Pending[Sequence[ProduceReceipt]]:
        """Produce to a topic. ``is_current``: the quorum has confirmed its settings.

        Before the settings refuse something, the quorum is asked: another node may have changed them a moment ago.
        """
        try:
            pending = self._produce_by(topic, request, is_current=is_current)
        except REFUSED_BY_SETTINGS:
            if is_current:
                raise
            pending = None
        if pending is None:
            return in_a_task(self._produce_currently(topic, request), self._tasks)
        return pending

    async def _produce_currently(
        self, topic: Topic, request: ProduceRequest
    ) -> Sequence[ProduceReceipt]:
        began_ms = self._clock.now_ms()
        with under_key(request.idempotency):
            present = await self.current_topic(topic, request.timeout_ms)
            if request.idempotency is not None and present.growths != topic.growths:
                # The topic has grown, too. As in ``produce``, the key may be known where records went before.
                left_ms = self._left_ms(began_ms, request.timeout_ms)
                async with in_time(left_ms, nothing("written")):
                    await self._lookup.check_key(present, request)
        request = replace(request, timeout_ms=self._left_ms(began_ms, request.timeout_ms))
        return await self._produce(present, request, is_current=True)

    async def current_topic(self, topic: Topic, timeout_ms: float) -> Topic:
        """Return the topic with its present settings.

        Raises:
            NoLeaderError: it was deleted; nothing was written.
            NoQuorumError: no majority could be asked; nothing was written.
        """
        async with in_time(timeout_ms, nothing("written")):
            present = (await self._metadata.current_image()).topics.get(topic.topic_id)
        if present is None:
            raise NoLeaderError(f"topic {topic.name} was deleted meanwhile; nothing was written")
        return present

    def _produce_by(
        self, topic: Topic, request: ProduceRequest, *, is_current: bool
    ) -> Pending[Sequence[ProduceReceipt]] | None:
        """Produce by the settings of this topic. None: nothing was done, because they refuse records.

        Raises:
            MilenaError: nothing was done.
        """
        if request.expected_end is not None:
            assert request.acks is not Acks.NONE, "no response would say whether it was"
            # A condition names the end of one partition, so the request must determine that partition.
            check_placed(topic, request)
        settings = topic_settings(topic)
        if request.transaction is not None:
            check_takes_transactions(topic, settings)
        # Records that name no partition share one per request, so that they make one batch.
        self._sticky = (self._sticky + 1) % topic.partition_count
        parts, errors = split_request(
            topic,
            request,
            sticky=self._sticky,
            now_ms=self._clock.wall_ms(),
            timestamps=settings.timestamps,
            needs_keys=settings.is_compacted,
        )
        if (
            errors
            and not is_current
            and any(isinstance(error, InvalidRecordError) for error in errors.values())
        ):
            return None
        if len(parts) != 1 or errors:
            appending = self._append_parts(topic, settings, parts, errors, request)
            return in_a_task(appending, self._tasks)
        (part,) = parts
        # Compute the size once: that looks at every record, and large requests come here, too.
        alone = RequestPart(topic, settings, part, size_of_columns(part.columns), request)
        gathered = self._gather(alone)
        if gathered is not None:
            return gathered
        return in_a_task(self._append_alone(alone), self._tasks)

    def _gather(self, share: RequestPart) -> Pending[Sequence[ProduceReceipt]] | None:
        """Append records together with those of other requests. None: nothing was done, they must go on their own."""
        request = share.request
        # A refusal of these would refuse the neighbours in the batch: for a known key, a moved end, a stale epoch.
        if request.idempotency is not None or request.expected_end is not None:
            return None
        if request.transaction is not None:
            return None
        if not self._gatherer.takes(share.part, share.size, share.settings, request.acks):
            return None
        return self._gatherer.submit(
            share.topic,
            share.settings,
            share.part,
            size=share.size,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
        )

    async def _append_alone(self, alone: RequestPart) -> Sequence[ProduceReceipt]:
        """Append a request's records for one partition without sharing a batch."""
        if alone.request.acks is Acks.NONE:
            # The receipts do not wait for the append: acks=0 promises nothing about it.
            append = partial(self._append_encoded, alone)
            self._append_unacked([append], size_of(alone.request.records))
            return receipts_of_one(alone.part, _unacked(alone.part, alone.settings))
        return receipts_of_one(alone.part, await _outcome(self._append_encoded(alone)))

    async def _append_parts(
        self,
        topic: Topic,
        settings: TopicSettings,
        parts: Sequence[PartitionBatch],
        errors: dict[int, MilenaError],
        request: ProduceRequest,
    ) -> Sequence[ProduceReceipt]:
        shares = [
            RequestPart(topic, settings, part, size_of_columns(part.columns), request)
            for part in parts
        ]
        if request.is_whole:
            # A refusal must come before the first partition is written, so all of them are encoded first.
            appends = [
                partial(self._bring, share, await self._encode_whole(share)) for share in shares
            ]
        else:
            appends = [partial(self._append_part, share) for share in shares]
        if request.acks is Acks.NONE:
            self._append_unacked(appends, size_of(request.records))
            outcomes: list[MilenaError | Appended] = [_unacked(part, settings) for part in parts]
        else:
            # Each partition succeeds or fails by itself, and each record gets the result of its partition.
            outcomes = list(await asyncio.gather(*(_outcome(append()) for append in appends)))
        return receipts_of(len(request.records.values), parts, outcomes, errors)

    def _append_unacked(
        self, appends: Sequence[Callable[[], Awaitable[Appended]]], size: int
    ) -> None:
        is_full = len(self._unacked) + len(appends) > UNACKED_MAX
        if is_full or self._unacked_bytes + size > UNACKED_BYTES_MAX:
            raise TooManyRequestsError("too many writes with acks=0 are under way; try again")

        async def ignore(append: Callable[[], Awaitable[Appended]]) -> None:
            outcome = await _outcome(append())
            # The client has its response already, so the error can only be logged.
            if isinstance(outcome, MilenaError):
                logger.info("write with acks=0 failed: %s", outcome)

        def on_done(task: asyncio.Task[None], share: int) -> None:
            self._unacked.discard(task)
            self._unacked_bytes -= share

        for append in appends:
            # Parts of a request end one by one, so each releases its share of the bound.
            share = size // len(appends)
            task = asyncio.create_task(ignore(append))
            # The loop keeps only weak references to tasks, so this set keeps the write alive.
            self._unacked.add(task)
            self._unacked_bytes += share
            task.add_done_callback(partial(on_done, share=share))

    async def _append_part(self, share: RequestPart) -> Appended:
        """Append a request's records for one partition: together with those of others, or on their own."""
        gathered = self._gather(share)
        if gathered is not None:
            return _appended_in(await gathered)
        return await self._append_encoded(share)

    async def _append_encoded(self, share: RequestPart) -> Appended:
        """Append a request's records for one partition on their own."""
        # Records under a key, a condition or a transaction stand or fall together. Others are refused one by one.
        if not share.request.is_whole and share.request.transaction is None:
            return await self._append_each(share)
        return await self._bring(share, await self._encode_whole(share))

    async def _encode_whole(self, share: RequestPart) -> Sequence[EncodedPiece]:
        """Encode records that stand or fall together.

        Raises:
            RequestTooLargeError: they are too large; nothing was written.
        """
        request = share.request

        def encoding(settings: TopicSettings) -> Steps[list[EncodedPiece]]:
            return encode(
                share.topic,
                settings,
                share.part,
                share.size,
                request_keys(request.idempotency, share.topic),
                is_conditional=request.expected_end is not None,
                transaction=_stamp_of(request.transaction),
            )

        try:
            return await self._turns.run(encoding(share.settings), share.size)
        except RequestTooLargeError as error:
            refusal = error
        with under_key(request.idempotency):
            settings = topic_settings(await self.current_topic(share.topic, request.timeout_ms))
        if settings.max_message_bytes <= share.settings.max_message_bytes:
            raise refusal
        return await self._turns.run(encoding(settings), share.size)

    async def _bring(self, share: RequestPart, pieces: Sequence[EncodedPiece]) -> Appended:
        """Bring encoded records to the leader of their partition."""
        request = share.request
        with under_key(request.idempotency):
            return await self._to_leader.bring_all(
                share.topic,
                share.part.partition,
                pieces,
                acks=request.acks,
                timeout_ms=request.timeout_ms,
                expected_end=request.expected_end,
            )

    async def _append_each(self, share: RequestPart) -> Appended:
        """Append records for one partition; refuse each record that is too large by itself."""
        errors: dict[int, MilenaError] = {}
        part, began_ms, timeout_ms = share.part, self._clock.now_ms(), share.request.timeout_ms
        pieces = await self._turns.run(
            encode_each(share.topic, share.settings, part, share.size, errors), share.size
        )
        if errors:
            try:
                topic = await self.current_topic(share.topic, timeout_ms / 2)
            except NoQuorumError as error:
                # The records that are not too large are written nevertheless, in the other half of the time.
                topic, errors = share.topic, dict.fromkeys(errors, error)
            settings = topic_settings(topic)
            if settings.max_message_bytes > share.settings.max_message_bytes:
                errors.clear()
                pieces = await self._turns.run(
                    encode_each(topic, settings, part, share.size, errors), share.size
                )
        if not pieces:
            raise errors[0]
        appended = await self._to_leader.bring_all(
            share.topic,
            part.partition,
            pieces,
            acks=share.request.acks,
            timeout_ms=self._left_ms(began_ms, timeout_ms),
        )
        return appended.with_refused(errors, len(part.places)) if errors else appended

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
        """Append one batch that a client encoded; with ``expected_end``, only if that is the batch's offset.

        A batch of a ``transaction`` names its producer and numbers its records. With an idempotency key it does
        neither.
        """
        assert expected_end is None or acks is not Acks.NONE, "no response would say whether it was"
        began_ms = self._clock.now_ms()
        with under_key(idempotency):
            found = await self._find_topic(
                topic, partition, topic_tag, may_create=may_create, timeout_ms=timeout_ms
            )
        check_partition(found, partition)
        is_in_transaction = transaction is not None
        fitted = None
        with suppress(*REFUSED_BY_SETTINGS):
            fitted = _fitted(batch, found, self._clock.wall_ms(), is_in_transaction)
        if fitted is None:
            # Another node may have changed the settings a moment ago.
            with under_key(idempotency):
                found = await self.current_topic(found, self._left_ms(began_ms, timeout_ms))
            fitted = _fitted(batch, found, self._clock.wall_ms(), is_in_transaction)
        batch, header = fitted
        idempotency = own_key(idempotency, found)
        if transaction is not None or idempotency is not None:
            batch = _marked(batch, header, found, transaction, idempotency)
            header = decode_header(batch)
        if header.producer_id >= 0:
            await self.check_producer(header, self._left_ms(began_ms, timeout_ms))
        left_ms = self._left_ms(began_ms, timeout_ms)

        async def append() -> BatchReceipt:
            with under_key(idempotency):
                receipt = await self._to_leader.bring(
                    found,
                    partition,
                    batch,
                    header,
                    acks=acks,
                    timeout_ms=left_ms,
                    expected_end=expected_end,
                )
            return replace(receipt, leader_epoch=self._leader_epoch(found.topic_id, partition))

        if acks is Acks.NONE:

            async def nobody_waits() -> Appended:
                await append()
                return Appended([])

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

    async def check_producer(
        self, header: BatchHeader, timeout_ms: int, *, may_raise_epoch: bool = False
    ) -> None:
        """Refuse a producer id or epoch that the cluster has not given out.

        ``may_raise_epoch``: a producer without a name raises its epoch by itself, as Kafka's clients do (KIP-360).

        Raises:
            InvalidProducerError: it was never given out.
            NoQuorumError: this node does not know it, and no majority could be asked.
        """
        if not _is_allocated(header, self._metadata.image, may_raise_epoch):
            # Another node may have allocated the id a moment ago, so only the quorum may say that it never was.
            image = await self._metadata.barrier(timeout_ms=min(timeout_ms, PRODUCER_BARRIER_MS))
            if not _is_allocated(header, image, may_raise_epoch):
                raise InvalidProducerError(
                    f"producer id {header.producer_id} epoch {header.producer_epoch} was never allocated; "
                    "POST /producers gives one",
                    is_unknown=True,
                )


def _fitted(
    batch: bytes, topic: Topic, now_ms: WallMs, is_in_transaction: bool
) -> tuple[bytes, BatchHeader]:
    """Return a client's batch as the topic's settings want it.

    Raises:
        MilenaError: the settings refuse it.
    """
    settings = topic_settings(topic)
    header = validate_client_batch(
        batch,
        bytes_max=settings.max_message_bytes,
        now_ms=now_ms,
        timestamps=settings.timestamps,
        needs_keys=settings.is_compacted,
    )
    # Change the batch on this node: once the leader has stamped it, its bytes and CRC-32C never change.
    if settings.timestamp_type is not header.timestamp_type:
        batch = with_timestamp_type(batch, settings.timestamp_type)
        header = decode_header(batch)
    codec = stored_codec(settings)
    if codec is not None and codec is not header.codec:
        batch = with_codec(batch, codec)
        header = decode_header(batch)
    if is_in_transaction:
        check_takes_transactions(topic, settings)
    return batch, header


def check_takes_transactions(topic: Topic, settings: TopicSettings) -> None:
    """Refuse a topic in which part of a transaction could be lost.

    Raises:
        TopicNotTransactionalError: the message says which settings to change.
    """
    if not settings.takes_transactions:
        raise TopicNotTransactionalError(
            f"topic {topic.name} takes no transactions: with flush.messages above 1 or unclean.leader.election.enable, "
            "acknowledged records may be lost; set both back to their defaults"
        )


def _stamp_of(transaction: ProducerTransaction | None) -> TransactionStamp | None:
    """Return a stamp for records without sequence numbers: only an idempotency key lets a log recognise a retry."""
    if transaction is None:
        return None
    # No broker owns a client's transaction (-1, -1), so only its timeout ends it if the client is gone.
    return TransactionStamp(
        ProducerStamp(transaction.producer_id, transaction.producer_epoch, NO_SEQUENCE),
        TransactionExtension(-1, -1, transaction.timeout_ms),
    )


def _marked(
    batch: bytes,
    header: BatchHeader,
    topic: Topic,
    transaction: ProducerTransaction | None,
    idempotency: IdempotencyKey | None,
) -> bytes:
    """Return a client's batch marked as part of its transaction and with its key."""
    # Sequence numbers already say whether the batch is a retry, so a key has no place in it.
    if idempotency is not None:
        _check_unnumbered(header)
        stamp = _stamp_of(transaction)
        return with_extensions(
            batch,
            request_keys=request_keys(idempotency, topic),
            transaction=None if stamp is None else stamp.extension,
            producer=None if stamp is None else stamp.producer,
        )
    assert transaction is not None, "it has no other mark"
    named = (transaction.producer_id, transaction.producer_epoch)
    if (header.producer_id, header.producer_epoch) != named:
        raise InvalidProducerError(
            f"the batch is of producer {header.producer_id}:{header.producer_epoch}, and Milena-Transaction names "
            f"{named[0]}:{named[1]}; they must be the same"
        )
    return with_extensions(batch, transaction=TransactionExtension(-1, -1, transaction.timeout_ms))


def _check_unnumbered(header: BatchHeader) -> None:
    if header.producer_id >= 0:
        raise InvalidProducerError(
            f"the batch is of producer {header.producer_id}:{header.producer_epoch}, whose numbers say whether it came "
            "before; send it without Idempotency-Key, or without a producer"
        )


def _is_allocated(header: BatchHeader, image: Image, may_raise_epoch: bool) -> bool:
    epoch = image.producer_epoch(header.producer_id)
    if epoch is None or header.producer_epoch <= epoch:
        return epoch is not None
    known = image.producers.get(header.producer_id)
    return may_raise_epoch and (known is None or known.name is None)


def _unacked(part: PartitionBatch, settings: TopicSettings) -> Appended:
    """Return offsets of records that no client waits for; their append times, if readers see those, are unknown."""
    nothing = [None] * len(part.places)
    return Appended(nothing, nothing if settings.timestamp_type is TimestampType.APPEND else None)


def _appended_in(receipts: Sequence[ProduceReceipt]) -> Appended:
    """Return what was appended to one partition; raise the error if there is one."""
    assert isinstance(receipts, Receipts), "they were gathered"
    for error in receipts.errors.values():
        raise error
    return Appended(receipts.offsets, receipts.times)


async def _outcome(append: Awaitable[Appended]) -> MilenaError | Appended:
    try:
        return await append
    except MilenaError as error:
        return error
