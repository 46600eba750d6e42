"""Transactions of a program: its records and its consumed offsets are committed together, or not at all.

A transaction is a producer whose writes name the transaction. Batching, sequences and retries are those of a producer.
The commit names the acknowledged records: for each partition the end offset and the number of records. If a write whose
response was lost is in the log anyway, the numbers do not match, and the cluster refuses the commit. The end of a
transaction also begins the next one under the same transactional id.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from types import TracebackType
from typing import Protocol, Self, TypeVar

from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import AppendAnswer, ClusterTransport, MemberOffsets, WrittenPart
from milena.errors import (
    AnswerError,
    ClientError,
    ProducerFencedError,
    TransactionAbortedError,
    UnknownResultError,
    is_worth_another_try,
)
from milena.model.clock import Clock
from milena.model.types import PRODUCER_EPOCH_MAX
from milena.producing.batching import Shipment
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer
from milena.producing.retry import UNKNOWN
from milena.records import Acks, ProducerIdentity, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

TRANSACTION_TIMEOUT_MS = 30_000
"""Default limit of the time that a transaction may be open, in ms."""

RETRY_MS = 100
"""The wait between two attempts to begin or end a transaction, in ms."""

TRANSACTION_CHANGED = 40928
"""Error code: the commit named other records than the partitions hold; the transaction is still open."""


class ConsumerSettings(Protocol):
    """The options of a consumer that a transaction reads."""

    @property
    def group(self) -> str | None:
        """The id of the consumer's group."""

    @property
    def auto_commit(self) -> bool:
        """True if the consumer commits by itself."""


class ConsumerPort(Protocol):
    """A consumer whose offsets a transaction commits."""

    @property
    def options(self) -> ConsumerSettings:
        """The consumer's options."""

    @property
    def member_id(self) -> str | None:
        """The id under which the group knows the consumer; None if it is no member."""

    @property
    def member_epoch(self) -> int | None:
        """The epoch under which the consumer commits."""

    def given_out(self) -> Mapping[TopicPartition, int]:
        """Return, for each partition, the offset after the last record that the program was given."""

    def topic_tags(self) -> Mapping[TopicPartition, str]:
        """Return, for each partition, the first digits of the id of the topic that ``given_out`` counts in."""

    async def rewind(self) -> None:
        """Go back to the group's committed offsets."""


class TransactionalId:
    """A transactional id, and the identity of its next transaction, once known. One program uses an id at a time."""

    def __init__(
        self, name: str, *, timeout_ms: int, until_visible: bool, calls: ClusterTransport
    ) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.until_visible = until_visible
        self.calls = calls
        self._next: ProducerIdentity | None = None
        self.is_in_use = False

    @property
    def has_next(self) -> bool:
        """True if the next transaction has started, and no other program is known to use the id."""
        return self._next is not None

    async def take_over(self) -> None:
        """Begin the next transaction now, and keep its identity for ``take``. It raises the errors of ``begin``."""
        self._next = await self.begin()

    def take(self) -> ProducerIdentity | None:
        """Return the identity of the next transaction if it has started, and forget it; otherwise None."""
        found, self._next = self._next, None
        return found

    async def begin(self) -> ProducerIdentity:
        """Begin a transaction, in one attempt; the cluster aborts a transaction that is open under the id.

        Raises:
            ClientError: the cluster cannot begin a transaction now.
        """
        return await self.calls.begin_transaction(self.name, timeout_ms=self.timeout_ms)

    def ended(self, identity: ProducerIdentity, next_epoch: int) -> None:
        """Note that a transaction was committed or aborted, and that the next one has the epoch ``next_epoch``."""
        if next_epoch < PRODUCER_EPOCH_MAX:
            self._next = ProducerIdentity(identity.producer_id, next_epoch)

    def header_of(self, identity: ProducerIdentity) -> str:
        """Return the header value that makes a write part of the transaction."""
        return f"{identity.producer_id}:{identity.producer_epoch}:{self.timeout_ms}"


class TransactionWrites:
    """Send the writes of a transaction, and collect the offsets in their responses (a ``ProducerCallsPort``)."""

    def __init__(self, owner: TransactionalId) -> None:
        self._owner = owner
        self.identity: ProducerIdentity | None = None
        self._is_numbered = False
        self._ends: dict[TopicPartition, dict[int, int]] = {}
        """For each partition, the batches: first offset → end offset. A retry of a batch sets the same entry again."""

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
        """Make one attempt to append, as part of the transaction."""
        assert self.identity is not None, "the transaction has started"
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
        """Return the transaction's identity, which all partitions use.

        A second call means that a lane cannot use the identity any more, because the result of a write is unknown. The
        transaction then cannot commit.
        """
        del name
        assert self.identity is not None, "the transaction has started"
        if self._is_numbered:
            raise TransactionAbortedError(
                "a write before is of unknown fate; the transaction cannot be committed", status=409
            )
        self._is_numbered = True
        return self.identity

    async def can_make_topic(self, topic: str) -> bool:
        """Return whether a topic exists, after creating it if nodes do that; see ``ClusterTransport``."""
        return await self._owner.calls.can_make_topic(topic)

    @property
    def parts(self) -> dict[TopicPartition, WrittenPart]:
        """The acknowledged records of each partition: their end offset and number."""
        return {
            where: WrittenPart(
                end_offset=max(ends.values()),
                records=sum(end - first for first, end in ends.items()),
            )
            for where, ends in self._ends.items()
        }


class Transaction(Producer):
    """A producer whose records and added offsets are committed together, or not at all.

    Leaving its block commits. If an exception leaves the block, or a record could not be written, it aborts. Leaving
    the block may raise:

        TransactionAbortedError   the transaction was aborted: do its work again, in another transaction
        ProducerFencedError       another program took over the transactional id: stop
        UnknownResultError        the transaction may or may not be committed: no node could tell in time
        MemberFencedError         aborted, because another process took over the member's instance id: stop
        MemberUnknownError, StaleMemberError   aborted, because other members have the partitions now
    """

    def __init__(
        self,
        owner: TransactionalId,
        options: ProducerOptions,
        *,
        metadata: MetadataCache,
        clock: Clock,
        chance: Random,
    ) -> None:
        self._writes = TransactionWrites(owner)
        super().__init__(
            options, transport=self._writes, metadata=metadata, clock=clock, chance=chance
        )
        self._owner = owner
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
        """Commit these offsets for a group as part of the transaction.

        Args:
            group: the group's id.
            offsets: the offset of the next record to read, by partition.
            member_id: the member that has the partitions; None for a group without members.
            member_epoch: the member's epoch.
        """
        self._offsets.append(
            MemberOffsets(
                group=group,
                member_id=member_id,
                member_epoch=member_epoch,
                offsets={TopicPartition.of(where): offset for where, offset in offsets.items()},
            )
        )

    def add_consumer(self, consumer: ConsumerPort) -> None:
        """Commit this consumer's offsets as part of the transaction; after an abort, it gives its records again.

        Committed are the offsets of the records that the consumer has given out when the block ends.

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
                clock=self._clock,
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
        """Settle as a producer does; a record that could not be written makes the transaction abort."""
        self._failure = self._failure or error
        super().settle(shipment, base_offset=base_offset, error=error)

    # -- commit and abort --------------------------------------------------------------------------

    async def _commit(self) -> None:
        identity = self._writes.identity
        assert identity is not None, "the transaction has started"
        for consumer in self._consumers:
            reached = consumer.given_out()
            if reached and consumer.options.group is not None:
                self._offsets.append(
                    MemberOffsets(
                        group=consumer.options.group,
                        member_id=consumer.member_id,
                        member_epoch=consumer.member_epoch,
                        offsets=reached,
                        topic_tags=consumer.topic_tags(),
                    )
                )
        try:
            next_epoch = await self._decide(
                lambda: self._owner.calls.commit_transaction(
                    identity,
                    self._writes.parts,
                    self._offsets,
                    until_visible=self._owner.until_visible,
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
        """Abort the transaction in the cluster. If no node responds, its timeout aborts it later."""
        identity = self._writes.identity
        assert identity is not None, "the transaction has started"
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
        """Request the end of the transaction until there is a response; return the next transaction's epoch.

        Raises:
            UnknownResultError: the response to an attempt was lost, and a later attempt was refused. The first one may
                have ended the transaction. Only a refusal of type ``certain`` shows that it has not.
            ClientError: the transaction was not ended by this call.
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
                attempt, clock=self._clock, patience_ms=self.options.delivery_timeout_ms
            )
        except ClientError as error:
            if isinstance(error, certain | UnknownResultError) or not may_be_ended:
                raise
            raise UnknownResultError(
                f"not known what became of a transaction of '{self._owner.name}': {error.message}",
                status=504,
            ) from error


async def persist(ask: Callable[[], Awaitable[T]], *, clock: Clock, patience_ms: float) -> T:
    """Call ``ask`` until it succeeds or ``patience_ms`` have passed; ``ask`` must be harmless to repeat."""
    deadline_ms = clock.now_ms() + patience_ms
    while True:
        try:
            return await ask()
        except ClientError as error:
            if not is_worth_another_try(error) or clock.now_ms() >= deadline_ms:
                raise
        await clock.sleep(RETRY_MS)


def _aborted(message: str, why: ClientError) -> ClientError:
    """Return the error for leaving the block of an aborted transaction; ``why`` itself if it is of that type."""
    if isinstance(why, TransactionAbortedError):
        return why
    answer = why if isinstance(why, AnswerError) else None
    return TransactionAbortedError(
        message,
        status=409 if answer is None else answer.status,
        error_code=None if answer is None else answer.error_code,
    )


class TransactionalProducer:
    """Make transactions under one transactional id, one at a time.

        producer = client.transactional_producer("invoicing-1")
        async with producer.transaction() as tx:
            await tx.send("invoices", b"42")
            tx.add_consumer(consumer)

    Call ``transaction`` again for the next one.
    """

    def __init__(
        self,
        owner: TransactionalId,
        options: ProducerOptions,
        *,
        metadata: MetadataCache,
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
        """Return the next transaction, an asynchronous context manager."""
        return Transaction(
            self._owner,
            self.options,
            metadata=self._metadata,
            clock=self._clock,
            chance=self._chance,
        )

    @property
    def has_begun(self) -> bool:
        """True if the next transaction has started, and no other program is known to use the transactional id."""
        return self._owner.has_next

    async def begin(self) -> None:
        """Begin the next transaction now. If another program has a transaction open under the id, it is aborted.

        Raises:
            ClientError: no node could begin it within ``delivery_timeout_ms``, or the cluster refuses.
            NeverReachedError: no node has ever responded, for the client's ``connect_timeout_ms``.
        """
        await self.persist(self._owner.take_over)

    async def persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the response of a repeatable call, which is retried within ``delivery_timeout_ms``."""
        return await persist(ask, clock=self._clock, patience_ms=self.options.delivery_timeout_ms)
