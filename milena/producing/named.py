"""A producer with a name writes the records of one source exactly once, also across crashes of the program.

The records of the source are numbered from 0. Each write is a transaction, with the name as transactional id. It
commits the records, and the number of the source's records that are written so far. This number is stored as the
committed offset of a consumer group, on partition 0 of the topic. Both are committed, or neither.

A program that opens the producer takes the name over, and no other program can commit under the name from then on. So
the number that it reads then is final. It does not depend on the partitions and batches of the records.
"""

from collections.abc import Sequence
from typing import Self

from milena.cluster.admin import AdminClient
from milena.errors import (
    BadRecordError,
    ClientClosedError,
    ProducerFencedError,
    TargetNotFoundError,
)
from milena.producing.deliveries import Deliveries
from milena.producing.transaction import TransactionalProducer
from milena.records import TopicPartition

GROUP_PREFIX = "producer-"
"""The prefix of a producer's group. The group's offset is the number of records that are written."""
NAME_LENGTH_MAX = 255 - len(GROUP_PREFIX)
"""The longest name of a producer: names of groups have at most 255 characters."""


def check_name(name: str) -> None:
    """Refuse a text that cannot be the name of a producer.

    Raises:
        ValueError: the message says which names are valid.
    """
    if not (1 <= len(name) <= NAME_LENGTH_MAX and name.isprintable()):
        raise ValueError(
            f"name={name!r}: a producer has a name of 1 to {NAME_LENGTH_MAX} printable characters"
        )


def _check_list(values: object) -> None:
    if not isinstance(values, Sequence):
        raise BadRecordError(f"write takes a list of values, not {type(values).__name__}")


class _PositionLostError(Exception):
    """The position is gone: the transaction in progress must not commit."""


class NamedProducer:
    """Write the records of one source to one topic. An asynchronous context manager: entering it takes over the name.

        async with client.named_producer("sensor-7", "measured") as producer:
            await producer.write(0, [b"21.5", b"21.7"])

    After any error of ``write`` except ``ProducerFencedError``, you may write the same records again.

    Invariants:
        - while the next transaction has started (``has_begun``), ``position`` is the number stored in the cluster;
        - otherwise the result of the last write is unknown, and the producer asks the cluster before the next write.
          The stored number is then ``position`` or ``_perhaps``, unless another program has written under the name.
    """

    def __init__(
        self, transactions: TransactionalProducer, *, name: str, topic: str, groups: AdminClient
    ) -> None:
        check_name(name)
        self.name = name
        self.topic = topic
        self.position = 0
        """The number of the source's records that are written, which is also the number of the next record."""
        self._transactions = transactions
        self._groups = groups
        self._perhaps: int | None = None
        """The position after the last write; the write may have failed."""
        self._fenced: ProducerFencedError | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        self.position = await self._take_over()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        # Nothing is left to do: each write has ended when ``write`` returns.
        self._is_open = False

    async def write(
        self,
        first: int,
        values: Sequence[object],
        *,
        keys: Sequence[object] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Write those of the given records that are not written yet, all or none; return their deliveries.

        Args:
            first: the number of the first value in the source; at most ``position``.
            values: consecutive records of the source; this and the other parameters are as in ``Producer.send_many``.
            keys: as many as values.
            partition: the partition of all records; it overrides the keys.
            headers: the headers of every record.
            timestamp_ms: the timestamp of every record.

        Raises:
            ValueError: records before ``first`` are missing, or ``first`` is negative.
            ProducerFencedError: another program took the name over. Stop.
            UnknownResultError: the records may or may not be written. Call again with the same records.
            TransactionAbortedError: no record was written.
            ClientError: no record was written. The errors are those of ``Producer.send_many``.
        """
        _check_list(values)
        await self._make_sure()
        while True:
            if not 0 <= first <= self.position:
                raise ValueError(self._gap(first))
            written = self.position - first
            if written >= len(values):
                if await self._is_still_there():
                    return Deliveries(())
                continue
            self._perhaps = first + len(values)
            try:
                async with self._transactions.transaction() as tx:
                    deliveries = await tx.send_many(
                        self.topic,
                        values[written:],
                        keys=None if keys is None else keys[written:],
                        partition=partition,
                        headers=headers,
                        timestamp_ms=timestamp_ms,
                    )
                    # If the topic was deleted and created again, the earlier records and the position are lost. Do not
                    # commit these records behind the gap.
                    if not await self._is_still_there():
                        raise _PositionLostError
                    tx.add_offsets(GROUP_PREFIX + self.name, {self._home: self._perhaps})
            except _PositionLostError:
                continue
            except ProducerFencedError as error:
                self._fenced = error.reworded(
                    f"another program took the name {self.name} over: {error.message}"
                )
                raise self._fenced from error
            self.position = self._perhaps
            return deliveries

    async def _is_still_there(self) -> bool:
        """Return whether the cluster still has ``position``; if it was lost with the topic, set ``position`` back."""
        found = await self._committed()
        if found >= self.position:
            return True
        self.position = found
        return False

    @property
    def _home(self) -> TopicPartition:
        """The partition that holds the position. Every topic has a partition 0."""
        return TopicPartition(self.topic, 0)

    async def _make_sure(self) -> None:
        """Make sure that no other program has the name, and that ``position`` is the number stored in the cluster."""
        if not self._is_open:
            raise ClientClosedError(
                "the producer is not open: use it in a block, async with client.named_producer(...)"
            )
        if self._fenced is not None:
            raise self._fenced
        if self._transactions.has_begun:
            return
        found = await self._take_over()
        if found not in (self.position, self._perhaps):
            self._fenced = ProducerFencedError(
                f"{found} records of {self.name} are written, and by this program {self.position}: another one writes "
                "under the name",
                status=409,
            )
            raise self._fenced
        self.position = found

    async def _take_over(self) -> int:
        """Take over the name, which fences other programs; return the number of records written under it."""
        await self._transactions.begin()
        return await self._transactions.persist(self._committed)

    async def _committed(self) -> int:
        try:
            group = await self._groups.group(GROUP_PREFIX + self.name)
        except TargetNotFoundError:
            return 0
        found = group.offsets.get(self._home)
        return 0 if found is None else found.offset

    def _gap(self, first: int) -> str:
        if first < 0:
            return f"first={first}: records of a source count from 0"
        return (
            f"records {self.position} to {first - 1} of {self.name} were not written: write them before {first}, or "
            "give another source another name"
        )
