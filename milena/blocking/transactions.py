"""The blocking counterparts of ``milena.producing.transaction`` and ``milena.producing.named``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milena.blocking.clients import Deliveries, OnExit, Producer, Resource
from milena.blocking.consumer import Consumer
from milena.blocking.forwarding import Mirrored, described_as
from milena.blocking.loop_thread import ClientLoopThread
from milena.producing.named import NamedProducer as AsyncNamedProducer
from milena.producing.transaction import Transaction as AsyncTransaction
from milena.producing.transaction import TransactionalProducer as AsyncTransactionalProducer
from milena.records import TopicPartition


class Transaction(Producer):
    """The blocking ``milena.Transaction``: leaving its block commits, or aborts and raises the reason."""

    _inner: AsyncTransaction

    @described_as(AsyncTransaction.add_offsets)
    def add_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        *,
        member_id: str | None = None,
        member_epoch: int | None = None,
    ) -> None:
        """Commit these offsets for a group as part of the transaction.

        Each is the offset of the next record to read.
        """
        self._inner.add_offsets(group, offsets, member_id=member_id, member_epoch=member_epoch)

    def add_consumer(self, consumer: Consumer) -> None:
        """Commit this consumer's progress, as it is when the block ends, as part of the transaction."""
        self._inner.add_consumer(consumer._inner)


class TransactionalProducer:
    """Make transactions, one at a time: ``with producer.transaction() as tx``."""

    def __init__(
        self,
        producer: AsyncTransactionalProducer,
        thread: ClientLoopThread,
        *,
        on_open: Callable[[Resource[Any]], None],
        on_exit: OnExit,
    ) -> None:
        self._inner = producer
        self._thread = thread
        self._on_open = on_open
        self._on_exit = on_exit

    has_begun = Mirrored[bool](AsyncTransactionalProducer.has_begun)

    def begin(self) -> None:
        """Begin the next transaction now. If another program has a transaction open under the id, it is aborted.

        Raises:
            ClientError: no node could begin it within ``delivery_timeout_ms``, or the cluster refuses.
        """
        self._thread.run(self._inner.begin())

    def transaction(self) -> Transaction:
        """Return the next transaction, a context manager."""
        found = Transaction(self._inner.transaction(), self._thread, on_exit=self._on_exit)
        self._on_open(found)
        return found


class NamedProducer(Resource[AsyncNamedProducer]):
    """The blocking ``milena.NamedProducer``. Entering its block fences other programs that use the name."""

    @property
    def position(self) -> int:
        """The number of the source's records that are written, which is also the number of the next record."""
        return self._inner.position

    @described_as(AsyncNamedProducer.write)
    def write(
        self,
        first: int,
        values: Sequence[object],
        *,
        keys: Sequence[object] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Write the records of the source that are not written yet, all or none, as the asynchronous producer does."""
        written = self._inner.write(
            first,
            values,
            keys=keys,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        return Deliveries(self._thread.run(written))
