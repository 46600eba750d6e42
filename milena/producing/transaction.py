"""Transactions of a program: what is sent within one, and the offsets of what was read for it, count together or not.

A transaction is a producer whose writes name it: batching, sequences and retries are the producer's. What the receipts
said, how far each partition was written and how many records, is what the commit names, so that a write whose answer
was lost cannot slip in. Its end is also the beginning of the next one under the same id.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Protocol, Self, TypeVar

from milena.cluster.transport import AppendAnswer, MemberOffsets, WrittenPart
from milena.errors import (
    AnswerError,
    ClientError,
    ProducerFencedError,
    TransactionAbortedError,
    UnknownResultError,
)
from milena.model.clock import Clock
from milena.model.types import PRODUCER_EPOCH_MAX
from milena.producing.batching import Shipment
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer, ProducerMetadataPort
from milena.producing.retry import UNKNOWN, is_worth_another_try
from milena.records import Acks, ProducerIdentity, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

TRANSACTION_TIMEOUT_MS = 30_000
"""How long a transaction may be open where nothing else is said."""

RETRY_MS = 100
"""Between two tries to begin or end a transaction."""

TRANSACTION_CHANGED = 40928
"""The commit named other records than the partitions hold; the transaction is still open."""


class TransactionCallsPort(Protocol):
    """Calls that a transaction needs of ``milena.cluster.transport``."""

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks,
        timeout_ms: int,
        if_match: int | None,
        transaction: str | None = None,
    ) -> AppendAnswer:
        """One attempt."""

    async def can_make_topic(self, topic: str) -> bool:
        """Whether a topic is there now."""

    async def begin_transaction(
        self, transactional_id: str, *, timeout_ms: int
    ) -> ProducerIdentity:
        """The id's next transaction."""

    async def commit_transaction(
        self,
        identity: ProducerIdentity,
        parts: Mapping[TopicPartition, WrittenPart],
        offsets: Sequence[MemberOffsets],
        *,
        until_visible: bool,
    ) -> int:
        """Commit; the next transaction's epoch."""

    async def abort_transaction(self, identity: ProducerIdentity) -> int:
        """Abort; the next transaction's epoch."""


class ConsumerSettings(Protocol):
    """What a transaction looks at of how a consumer was made."""

    @property
    def group(self) -> str | None:
        """Its group's id."""

    @property
    def auto_commit(self) -> bool:
        """It commits by itself."""


class ConsumerPort(Protocol):
    """What a transaction needs of a consumer whose offsets it commits."""

    @property
    def options(self) -> ConsumerSettings:
        """How it was made."""

    @property
    def member_id(self) -> str | None:
        """Under which the group knows it; None: it is no member."""

    @property
    def member_epoch(self) -> int | None:
        """Under which it commits."""

    def given_out(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition of which records were given out."""

    async def rewind(self) -> None:
        """Give again what was given since the group's last commit."""


class TransactionalId:
    """One transactional id, and the transaction that is open under it or the next one; of one program at a time."""

    def __init__(
        self, name: str, *, timeout_ms: int, until_visible: bool, calls: TransactionCallsPort
    ) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.until_visible = until_visible
        self.calls = calls
        self._next: ProducerIdentity | None = None
        self.is_in_use = False

    @property
    def has_next(self) -> bool:
        """The next transaction has begun: nobody has asked for the id since, as far as its holder was told."""
        return self._next is not None

    async def take_over(self) -> None:
        """Begin the next transaction ahead of its first write. One attempt; raises as ``begin``."""
        self._next = await self.begin()

    def take(self) -> ProducerIdentity | None:
        """The next transaction, if it has begun."""
        found, self._next = self._next, None
        return found

    async def begin(self) -> ProducerIdentity:
        """Begin one; what the id has left open is aborted. One attempt.

        Raises:
            ClientError: there is none to be had now.
        """
        return await self.calls.begin_transaction(self.name, timeout_ms=self.timeout_ms)

    def ended(self, identity: ProducerIdentity, next_epoch: int) -> None:
        """The transaction was decided, and the next one is this one's successor."""
        if next_epoch < PRODUCER_EPOCH_MAX:
            self._next = ProducerIdentity(identity.producer_id, next_epoch)

    def header_of(self, identity: ProducerIdentity) -> str:
        """What a write says to be part of the transaction."""
        return f"{identity.producer_id}:{identity.producer_epoch}:{self.timeout_ms}"


class TransactionWrites:
    """The calls of a transaction's writes, and what their answers said (``ProducerCallsPort``)."""

    def __init__(self, owner: TransactionalId) -> None:
        self._owner = owner
        self.identity: ProducerIdentity | None = None
        self._is_numbered = False
        self._ends: dict[TopicPartition, dict[int, int]] = {}
        """Of each partition the batches, first offset → end: one that is sent again has the same."""

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks,
        timeout_ms: int,
        if_match: int | None,
    ) -> AppendAnswer:
        """One attempt, as part of the transaction."""
        assert self.identity is not None, "the transaction has begun"
        answer = await self._owner.calls.append(
            topic,
            partition,
            batch,
            acks=acks,
            timeout_ms=timeout_ms,
            if_match=if_match,
            transaction=self._owner.header_of(self.identity),
        )
        if answer.base_offset is not None and answer.last_offset is not None:
            ends = self._ends.setdefault(TopicPartition(topic, partition), {})
            ends[answer.base_offset] = answer.last_offset + 1
        return answer

    async def allocate_producer(self, name: str | None = None) -> ProducerIdentity:
        """The transaction's own, for all partitions; there is no other, should one be spoiled."""
        del name
        assert self.identity is not None, "the transaction has begun"
        if self._is_numbered:
            raise TransactionAbortedError(
                "a write before is of unknown fate; the transaction cannot be committed",
                status=409,
                error_code=None,
            )
        self._is_numbered = True
        return self.identity

    async def can_make_topic(self, topic: str) -> bool:
        """As the transport."""
        return await self._owner.calls.can_make_topic(topic)

    @property
    def parts(self) -> dict[TopicPartition, WrittenPart]:
        """What was acknowledged."""
        return {
            where: WrittenPart(
                end_offset=max(ends.values()),
                records=sum(end - first for first, end in ends.items()),
            )
            for where, ends in self._ends.items()
        }


class Transaction(Producer):
    """A producer whose records count together, with the offsets that are added, or not at all.

    Leaving its block commits, unless an exception is under way or a record could not be written: then it is aborted.
    Leaving raises

        TransactionAbortedError   nothing of it counts: do its work again, in another one
        ProducerFencedError       another program took over the transactional id: stop
        UnknownResultError        it may be committed or not: no node could tell in time
        MemberFencedError         another process took over the instance id of the member: stop; nothing of it counts
        MemberUnknownError, StaleMemberError   partitions went to other members meanwhile; nothing of it counts
    """

    def __init__(
        self,
        owner: TransactionalId,
        options: ProducerOptions,
        *,
        metadata: ProducerMetadataPort,
        clock: Clock,
        chance: Random,
    ) -> None:
        self._writes = TransactionWrites(owner)
        super().__init__(
            options, transport=self._writes, metadata=metadata, clock=clock, chance=chance
        )
        self._owner = owner
        self._end_clock = clock
        self._failure: ClientError | None = None
        self._offsets: list[MemberOffsets] = []
        self._consumers: list[ConsumerPort] = []

    def add_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        *,
        member_id: str | None = None,
        member_epoch: int | None = None,
    ) -> None:
        """Commit these offsets for a group along with it, each that of the next record to read."""
        self._offsets.append(
            MemberOffsets(
                group=group,
                member_id=member_id,
                member_epoch=member_epoch,
                offsets={TopicPartition(*where): offset for where, offset in offsets.items()},
            )
        )

    def add_consumer(self, consumer: ConsumerPort) -> None:
        """Commit along with it what this consumer has given out when the block ends. After an abort it is given again.

        Raises:
            ValueError: the consumer has no group, or commits by itself.
        """
        if consumer.options.group is None or consumer.options.auto_commit:
            raise ValueError(
                "a transaction commits for a consumer of a group, with auto_commit=False"
            )
        self._consumers.append(consumer)

    async def __aenter__(self) -> Self:
        if self._owner.is_in_use:
            raise ValueError(f"a transaction of {self._owner.name} is open; end it first")
        self._owner.is_in_use = True
        try:
            self._writes.identity = self._owner.take() or await persist(
                self._owner.begin,
                clock=self._end_clock,
                patience_ms=self.options.delivery_timeout_ms,
            )
        except BaseException:
            self._owner.is_in_use = False
            raise
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
            failure = self._failure
            if error is None and failure is None:
                await self._commit()
                return
            await self._abort_transaction(failure)
            if error is None and failure is not None:
                raise _aborted(
                    f"aborted, since a record was not written: {failure.message}", failure
                ) from failure
        finally:
            self._owner.is_in_use = False

    def settle(
        self, shipment: Shipment, *, base_offset: int | None, error: ClientError | None
    ) -> None:
        """As a producer; a record that could not be written ends the transaction."""
        self._failure = self._failure or error
        super().settle(shipment, base_offset=base_offset, error=error)

    # -- the end -----------------------------------------------------------------------------------

    async def _commit(self) -> None:
        identity = self._writes.identity
        assert identity is not None, "the transaction has begun"
        offsets = [*self._offsets]
        for consumer in self._consumers:
            reached = consumer.given_out()
            if reached and consumer.options.group is not None:
                offsets.append(
                    MemberOffsets(
                        group=consumer.options.group,
                        member_id=consumer.member_id,
                        member_epoch=consumer.member_epoch,
                        offsets=reached,
                    )
                )
        try:
            next_epoch = await self._decide(
                lambda: self._owner.calls.commit_transaction(
                    identity, self._writes.parts, offsets, until_visible=self._owner.until_visible
                ),
                certain=TransactionAbortedError,
            )
        except (ProducerFencedError, UnknownResultError):
            await self._rewind()
            raise
        except ClientError as error:
            await self._abort_transaction(error)
            is_changed = isinstance(error, AnswerError) and error.error_code == TRANSACTION_CHANGED
            if is_changed or is_worth_another_try(error):
                raise _aborted(f"aborted: {error.message}", error) from error
            raise
        self._owner.ended(identity, next_epoch)

    async def _abort_transaction(self, why: ClientError | None) -> None:
        """Tell the cluster, if it listens: a transaction that nobody ends is aborted when its time is over."""
        identity = self._writes.identity
        assert identity is not None, "the transaction has begun"
        try:
            next_epoch = await self._decide(
                lambda: self._owner.calls.abort_transaction(identity), certain=ProducerFencedError
            )
        except ProducerFencedError as error:
            raise error from why
        except ClientError as error:
            logger.info("transaction not aborted yet id=%s error=%s", self._owner.name, error)
        else:
            self._owner.ended(identity, next_epoch)
        await self._rewind()

    async def _rewind(self) -> None:
        for consumer in self._consumers:
            await consumer.rewind()

    async def _decide(
        self, ask: Callable[[], Awaitable[int]], *, certain: type[ClientError]
    ) -> int:
        """Ask for the end until there is an answer.

        Raises:
            UnknownResultError: a try whose answer was lost may have ended it: what was said to a later one tells
                nothing of that, unless it is ``certain``.
            ClientError: it did not end so.
        """
        may_be_ended = False

        async def attempt() -> int:
            nonlocal may_be_ended
            try:
                return await ask()
            except UNKNOWN:
                may_be_ended = True
                raise

        try:
            return await persist(
                attempt, clock=self._end_clock, patience_ms=self.options.delivery_timeout_ms
            )
        except ClientError as error:
            if isinstance(error, certain | UnknownResultError) or not may_be_ended:
                raise
            raise UnknownResultError(
                f"not known what became of a transaction of '{self._owner.name}': {error.message}",
                status=504,
                error_code=None,
            ) from error


async def persist(ask: Callable[[], Awaitable[T]], *, clock: Clock, patience_ms: float) -> T:
    """Ask until there is an answer, or the patience is over; to ask again must be harmless."""
    deadline_ms = clock.now_ms() + patience_ms
    while True:
        try:
            return await ask()
        except ClientError as error:
            if not is_worth_another_try(error) or clock.now_ms() >= deadline_ms:
                raise
        await clock.sleep(RETRY_MS)


def _aborted(message: str, why: ClientError) -> ClientError:
    """What leaving says of a transaction that is not committed, nor ever will be; ``why`` if that says so itself."""
    if isinstance(why, TransactionAbortedError):
        return why
    answer = why if isinstance(why, AnswerError) else None
    return TransactionAbortedError(
        message,
        status=409 if answer is None else answer.status,
        error_code=None if answer is None else answer.error_code,
    )


class TransactionalProducer:
    """Makes transactions under one transactional id, one at a time: ``async with producer.transaction() as tx``."""

    def __init__(
        self,
        owner: TransactionalId,
        options: ProducerOptions,
        *,
        metadata: ProducerMetadataPort,
        clock: Clock,
        chance: Random,
    ) -> None:
        if options.acks != "all" or not options.idempotent:
            raise ValueError("a transaction needs acks='all' and idempotent=True")
        self.options = options
        self._owner = owner
        self._metadata = metadata
        self._clock = clock
        self._chance = chance

    def transaction(self) -> Transaction:
        """The next transaction, an asynchronous context manager."""
        return Transaction(
            self._owner,
            self.options,
            metadata=self._metadata,
            clock=self._clock,
            chance=self._chance,
        )

    @property
    def has_begun(self) -> bool:
        """The next transaction has begun: the id is ours, as far as we were told."""
        return self._owner.has_next

    async def begin(self) -> None:
        """Begin the next transaction now: what is open under the id is aborted, and who had it commits nothing more.

        Raises:
            ClientError: no node could do it within ``delivery_timeout_ms``, or the cluster refuses.
        """
        await self.persist(self._owner.take_over)

    async def persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to what may be asked again, within ``delivery_timeout_ms``."""
        return await persist(ask, clock=self._clock, patience_ms=self.options.delivery_timeout_ms)
