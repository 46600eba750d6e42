"""A producer with a name: writes the records of one source once, and knows after a crash where its former life stopped.

Records count from 0 in the order of their source. Each write is a transaction under the name, and commits with its
records how many of the source are written, as the offset of a group on partition 0 of the topic. Both count or neither,
and nobody but the name's present holder can commit: so what the group has when the name was taken over is what is
written, for good. Where records go and how they are batched makes no difference.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from milena.cluster.group_views import GroupView
from milena.errors import BadRecordError, ProducerFencedError, TargetNotFoundError
from milena.producing.deliveries import Deliveries
from milena.producing.transaction import TransactionalProducer
from milena.records import TopicPartition

GROUP_PREFIX = "producer-"
"""And the name: the group whose offset is how many records are written."""
NAME_LENGTH_MAX = 255 - len(GROUP_PREFIX)
"""Groups have names of 255 characters at most."""


class CommittedPort(Protocol):
    """What a named producer needs of ``milena.cluster.admin``."""

    async def group(self, group_id: str) -> GroupView:
        """One group, as the quorum knows it now."""


def check_name(name: str) -> None:
    """Refuse what no producer can be called.

    Raises:
        ValueError: it says what can be.
    """
    if not (1 <= len(name) <= NAME_LENGTH_MAX and name.isprintable()):
        raise ValueError(
            f"name={name!r}: a producer has a name of 1 to {NAME_LENGTH_MAX} printable characters"
        )


def _check_list(values: object) -> None:
    if not isinstance(values, Sequence):
        raise BadRecordError(f"write takes a list of values, not {type(values).__name__}")


class _PositionLostError(Exception):
    """The position is gone: the transaction under way must not count."""


class NamedProducer:
    """Writes the records of one source to one topic. An asynchronous context manager: entering it takes the name over.

    After any error of ``write`` but ``ProducerFencedError`` the same records may be written again.

    Invariants:
        - ``position`` is what the cluster has, unless the id has no next transaction: then the cluster is asked
          before the next write, and answers ``position``, or ``_perhaps``, or somebody else wrote.
    """

    def __init__(
        self, transactions: TransactionalProducer, *, name: str, topic: str, groups: CommittedPort
    ) -> None:
        check_name(name)
        self.name = name
        self.topic = topic
        self.position = 0
        """How many records of the source are written, and so the number of the next one."""
        self._transactions = transactions
        self._groups = groups
        self._perhaps: int | None = None
        """The position after the last write, unless it failed."""
        self._fenced: ProducerFencedError | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        self.position = await self._take_over()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Each write has ended when it returns.
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
        """Write records of the source, all that are not written yet or none; returns those, with their receipts.

        Args:
            first: the number of the first of them in the source, at most ``position``.
            values: the records in their order; this and the rest as ``Producer.send_many``.
            keys: as many as values.
            partition: this one for all, whatever the keys.
            headers: of every record.
            timestamp_ms: of every record.

        Raises:
            ValueError: records before ``first`` are missing, or it is no number.
            ProducerFencedError: another program took the name over: stop.
            UnknownResultError: they may be written or not; the same call finds out.
            TransactionAbortedError: none of them is written.
            ClientError: nor are they; as ``Producer.send_many``.
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
                    # The topic that the records are in now is that of the records before them, or nothing counts.
                    if not await self._is_still_there():
                        raise _PositionLostError
                    tx.add_offsets(GROUP_PREFIX + self.name, {self._home: self._perhaps})
            except _PositionLostError:
                continue
            except ProducerFencedError as error:
                self._fenced = ProducerFencedError(
                    f"another program took the name {self.name} over: {error.message}",
                    status=error.status,
                    error_code=error.error_code,
                    request_id=error.request_id,
                )
                raise self._fenced from error
            self.position = self._perhaps
            return deliveries

    async def _is_still_there(self) -> bool:
        """Whether the cluster has our position; it loses it with the topic, and ``position`` goes back then."""
        found = await self._committed()
        if found >= self.position:
            return True
        self.position = found
        return False

    @property
    def _home(self) -> TopicPartition:
        """Every topic has this partition."""
        return TopicPartition(self.topic, 0)

    async def _make_sure(self) -> None:
        """See to it that ``position`` is what the cluster has, and the name ours."""
        if not self._is_open:
            raise ValueError("open the producer first: async with client.named_producer(...)")
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
                error_code=None,
            )
            raise self._fenced
        self.position = found

    async def _take_over(self) -> int:
        """Hold the name from now on; how many records are written under it."""
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
