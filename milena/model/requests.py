"""Requests to a log and their results: produce and fetch requests, receipts, results.

The API makes them, the node's services and replicas work on them; columns rather than records, so that a thousand
records cost no thousand objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import overload

from milena.model.errors import MilenaError, ReplicaDamagedError

TRANSACTION_TIMEOUT_MS_DEFAULT = 30_000
TRANSACTION_TIMEOUT_MS_MAX = 900_000
"""How long a transaction may stay open."""


@unique
class Acks(IntEnum):
    """How many replicas must have the record before the answer."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """An ``Idempotency-Key`` header, as hashes. Both hashes are of the request, made by the API."""

    key_hash: bytes
    """16 bytes: BLAKE2b of topic and key."""
    body_hash: bytes
    """8 bytes: BLAKE2b of the body."""


@dataclass(slots=True, kw_only=True)
class Records:
    """Records of one request, as columns of equal length. ``None`` for a whole column: nobody set it."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    timestamps: list[int | None] | None = None
    """Wall ms."""
    partitions: list[int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTransaction:
    """A transaction's identity: its end raises the epoch, so that no two share one. A write names it."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT
    """How long it may stay open, from its first record on; no node keeps it, each write brings it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records for one topic. ``partition``: all of them go there (path); else per record, key hash or round robin.

    ``expected_end``: they are written if this is the next offset of their partition, which must be one, and not at all
    otherwise; somebody waits for the answer (acks). ``transaction``: they are part of it; then acks is ``ALL``, and
    there is no ``expected_end``.
    """

    topic: str
    records: Records
    acks: Acks
    timeout_ms: int
    partition: int | None = None
    idempotency: IdempotencyKey | None = None
    expected_end: int | None = None
    topic_tag: str = ""
    """With ``expected_end``: they are written only if the topic's id begins with it."""
    wants_times: bool = False
    """Receipts are to have the records' times."""
    transaction: ProducerTransaction | None = None
    may_create: bool = True
    """A missing topic may be made for whoever sends it, where nodes do that."""

    @property
    def is_whole(self) -> bool:
        """Whether its records are refused together; else each one is judged by itself."""
        return self.idempotency is not None or self.expected_end is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceReceipt:
    """Result of one record, in request order. ``offset`` None with ``error`` None: acks=0.

    ``partition`` -1: the record was refused before it went to one.
    """

    partition: int
    offset: int | None
    error: MilenaError | None = None
    timestamp_ms: int | None = None
    """Wall ms, as readers see it; None: nobody asked, or it is not known."""


_NO_ERRORS: Mapping[int, MilenaError] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts(Sequence[ProduceReceipt]):
    """Receipts as columns of equal length: a thousand records cost no thousand objects.

    When ``offsets`` is a ``range``, all records went to one partition in one piece, and the answer is written
    without looking at each (see ``Receipts.run``).
    """

    partitions: Sequence[int]
    offsets: Sequence[int | None]
    errors: Mapping[int, MilenaError] = field(default_factory=lambda: _NO_ERRORS)
    """By partition: a partition takes or refuses all of its records of one request."""
    times: Sequence[int | None] | None = None
    """As ``ProduceReceipt.timestamp_ms``; None for the whole column, too."""

    @classmethod
    def run(cls, partition: int, base_offset: int, count: int) -> "Receipts":
        """Receipts of records that one partition took in one piece."""
        return cls(partitions=[partition] * count, offsets=range(base_offset, base_offset + count))

    @classmethod
    def failed(cls, partition: int, error: MilenaError, count: int) -> "Receipts":
        """Receipts of records that one partition refused."""
        return cls(
            partitions=[partition] * count, offsets=[None] * count, errors={partition: error}
        )

    def __len__(self) -> int:
        return len(self.partitions)

    @overload
    def __getitem__(self, index: int) -> ProduceReceipt: ...

    @overload
    def __getitem__(self, index: slice) -> "Receipts": ...

    def __getitem__(self, index: int | slice) -> "ProduceReceipt | Receipts":
        if isinstance(index, slice):
            return Receipts(
                partitions=self.partitions[index],
                offsets=self.offsets[index],
                errors=self.errors,
                times=None if self.times is None else self.times[index],
            )
        partition = self.partitions[index]
        error = self.errors.get(partition)
        if error is not None:
            return ProduceReceipt(partition=partition, offset=None, error=error)
        return ProduceReceipt(
            partition=partition,
            offset=self.offsets[index],
            timestamp_ms=None if self.times is None else self.times[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceipt:
    """Result of one encoded batch. Offsets None: acks=0."""

    partition: int
    base_offset: int | None
    last_offset: int | None
    is_duplicate: bool = False
    append_time_ms: int | None = None
    """The leader's, wall ms; None: not known, as of a duplicate."""
    leader_epoch: int = 0
    """The partition's, as the node that answers knows it now; grows with each change of leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A stateless fetch. ``offset``: >= 0, or "earliest" / "latest"; ``timestamp_ms`` (wall) wins over it.

    A negative offset -N means the last N records. ``is_local``: this node's own replica, never forwarded.
    ``max_bytes`` bounds stored bytes; at least one batch comes back when there is one. ``is_uncommitted``: records of
    transactions that are open or aborted, too (read_uncommitted). ``is_unconfirmed``: an empty answer promises nothing,
    so the quorum is not asked whether the leader still leads. ``wants_records_end``: with "latest", the answer also
    says where the last record ends.
    """

    topic: str
    partition: int
    offset: int | str
    timestamp_ms: int | None
    max_bytes: int
    timeout_ms: int
    is_local: bool
    is_uncommitted: bool = False
    is_unconfirmed: bool = False
    wants_records_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Whole stored batches; readers skip what is outside [start_offset, readable_end).

    The first may begin below ``start_offset`` and the last may go on beyond ``readable_end``.
    """

    start_offset: int
    """The resolved first offset that was asked for."""
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    batches: bytes
    broker_id: int | None = None
    """Whose copy this is; None: not known."""
    records_end: int | None = None
    """As ``PartitionOffsets.records_end``; None: the request did not want it, or an earlier release answered."""
    topic_id: str = ""
    """The topic's; another topic of this name has another one."""
    last_stable_offset: int | None = None
    """As ``PartitionOffsets.last_stable_offset``."""
    is_uncommitted: bool = False
    """Records of transactions that are open or aborted were read, too."""

    @property
    def readable_end(self) -> int:
        """Where this reader's reading ends."""
        if self.is_uncommitted or self.last_stable_offset is None:
            return self.high_watermark
        return self.last_stable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Stored records that came to their reader damaged. ``broker_id``: from whose copy; None: the leader's."""

    topic: str
    partition: int
    offset: int
    """The first that is not whole."""
    broker_id: int | None = None

    @property
    def error(self) -> ReplicaDamagedError:
        """Error for a reader for whom there is nothing before the damage."""
        whose = "its leader" if self.broker_id is None else f"broker {self.broker_id}"
        return ReplicaDamagedError(
            f"{self.topic}-{self.partition}: the records at offset {self.offset} are damaged in the copy of {whose}, "
            "which is checked now, and restored if another one is in sync; try again in a few seconds"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """Where a partition begins and ends. A reader of committed records reads [log_start_offset, readable_end)."""

    log_start_offset: int
    high_watermark: int
    """The first offset that is not committed: every acknowledged record lies below it."""
    last_stable_offset: int | None = None
    """The first offset of a transaction that is not decided there, else the high watermark; None: that, too."""
    records_end: int | None = None
    """One above the last record that a committed reader sees, or the log's start without one; None: not known."""
    topic_id: str = ""
    """The topic's; another topic of this name has another one."""

    @property
    def readable_end(self) -> int:
        """Where a reader of committed records stops."""
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset

    def lag_of(self, position: int) -> int | None:
        """How far a reader is behind that goes on at ``position``; None: the partition has no such position.

        It counts offsets from the first that is still there up to the last record. So it is 0 if and only if there is
        nothing more to read: markers, aborted records and gaps behind the last record do not count.
        """
        if position > self.high_watermark:
            return None
        end = self.readable_end if self.records_end is None else self.records_end
        return max(0, end - max(position, self.log_start_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedNext:
    """The next offset that a group is to read of a partition. ``metadata``: what its committer keeps with it."""

    topic: str
    partition: int
    next_offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets that a transaction moves, of one group, under one member's epoch.

    ``member_id`` None: of a group that has no members; then ``member_epoch`` is -1.
    """

    group: str
    member_id: str | None
    member_epoch: int
    offsets: tuple[CommittedNext, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWrite:
    """Records for one topic, as part of a transaction. ``partition``: of those that name none."""

    topic: str
    partition: int | None
    records: Records
    may_create: bool = True
    """As of a produce request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRequest:
    """A whole transaction in one request: at least one of the two is not empty. ``idempotency``: only with writes."""

    writes: tuple[TransactionWrite, ...]
    offsets: tuple[GroupOffsets, ...]
    timeout_ms: int
    """How long its client waits."""
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionReceipt:
    """What became of a transaction in one request that was committed."""

    receipts: Sequence[Sequence[ProduceReceipt]]
    """One a write, in order; none of them has an error."""
    is_visible: bool
    """Readers see it already; otherwise soon, and certainly."""
    is_duplicate: bool = False
    """It had been committed before under the same idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenExtent:
    """What a transaction has acknowledged of one partition: ``records``, all of them below ``end_offset``."""

    topic: str
    partition: int
    end_offset: int
    """Exclusive."""
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommit:
    """The end of a transaction: all that took effect of it. What it does not name is aborted."""

    transaction: ProducerTransaction
    writes: tuple[WrittenExtent, ...]
    offsets: tuple[GroupOffsets, ...]
    timeout_ms: int
    """How long its client waits."""
    until_visible: bool = True
    """It waits for readers to see it; else for the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A transaction that is committed or aborted. ``next_epoch``: of its producer's next one, begun by this."""

    next_epoch: int
    is_visible: bool
    """Readers see it already, or pass it by; otherwise soon, and certainly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A partition's part of a transaction that its log holds without an end."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    records: int
    began_ms: int
    """Wall ms, of its first record there."""
    timeout_ms: int
    leader: int
    """The partition's, who told."""
    state: str
    """``open``, or ``ending``: decided, but the partition does not say so yet."""
    producer_name: str | None
    """Its transactional id; None: a transaction in one request, or not known."""
