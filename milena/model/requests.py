"""Requests to a log and their results: produce and fetch requests, receipts, results.

The API creates them; the node's services and replicas process them. Records are columns, so a thousand records do not
take a thousand objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import overload

from milena.model.errors import MilenaError, ReplicaDamagedError

TRANSACTION_TIMEOUT_MS_DEFAULT = 30_000
TRANSACTION_TIMEOUT_MS_MAX = 900_000
"""Largest timeout that a transaction may have, in ms."""


@unique
class Acks(IntEnum):
    """The replicas that must have the record before the response."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """An ``Idempotency-Key`` header as hashes; the API computes both from the request."""

    key_hash: bytes
    """16 bytes: BLAKE2b of topic and key."""
    body_hash: bytes
    """8 bytes: BLAKE2b of the body."""


@dataclass(slots=True, kw_only=True)
class Records:
    """Records of one request, as columns of equal length. A column that no record sets is ``None``."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    timestamps: list[int | None] | None = None
    """Wall ms."""
    partitions: list[int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTransaction:
    """The identity of a transaction, which every write in it names: a producer id and a producer epoch.

    The end of a transaction raises the epoch, so no two transactions have the same identity.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT
    """Time that the transaction may stay open after its first record, in ms. Every write carries it."""
    is_former_visible: bool = field(default=True, compare=False)
    """Whether the producer's former transactions have all their markers, so that readers see that they have ended."""


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    """Records for one topic. Nothing changes one; it is not frozen, because that makes it three times as slow to make.

    Attributes:
        partition: the partition of all records; None: each record names its own, or gets one by key or round robin.
        expected_end: the records are written only if this is the next offset of their partition. They must all go to
            one partition, and acks must not be 0. None: no condition.
        transaction: the transaction that the records belong to. Then acks must be ``ALL``, and ``expected_end`` None.
    """

    topic: str
    records: Records
    acks: Acks
    timeout_ms: int
    partition: int | None = None
    idempotency: IdempotencyKey | None = None
    expected_end: int | None = None
    topic_tag: str = ""
    """With ``expected_end``: the records are written only if the topic's id starts with it."""
    wants_times: bool = False
    """Whether receipts must have the records' times."""
    transaction: ProducerTransaction | None = None
    may_create: bool = True
    """Whether a missing topic may be created for the sender, if the nodes' settings allow that."""

    @property
    def is_whole(self) -> bool:
        """Whether one invalid record refuses all records; otherwise the valid ones are written."""
        return self.idempotency is not None or self.expected_end is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceReceipt:
    """The result of one record of a request. With acks=0, ``offset`` and ``error`` are both None.

    ``partition`` is -1 if the record was refused before it was assigned to one.
    """

    partition: int
    offset: int | None
    error: MilenaError | None = None
    timestamp_ms: int | None = None
    """Wall ms, as readers see it; None: not requested, or not known."""


_NO_ERRORS: Mapping[int, MilenaError] = {}


@dataclass(slots=True, kw_only=True)
class Receipts(Sequence[ProduceReceipt]):
    """The receipts of a request in order of its records, as columns of equal length. Not frozen, as ``ProduceRequest``.

    If ``offsets`` is a ``range``, one partition took all records with consecutive offsets (``Receipts.run``). The
    response is then encoded without a loop over the records.
    """

    partitions: Sequence[int]
    offsets: Sequence[int | None]
    errors: Mapping[int, MilenaError] = field(default_factory=lambda: _NO_ERRORS)
    """Error by partition number. A partition accepts all of a request's records for it, or none."""
    times: Sequence[int | None] | None = None
    """The values of ``ProduceReceipt.timestamp_ms``; None instead of the column if no record has a value."""

    @classmethod
    def run(cls, partition: int, base_offset: int, count: int) -> "Receipts":
        """Return the receipts of ``count`` records that one partition accepted with consecutive offsets."""
        return cls(partitions=[partition] * count, offsets=range(base_offset, base_offset + count))

    @classmethod
    def failed(cls, partition: int, error: MilenaError, count: int) -> "Receipts":
        """Return receipts of records that one partition refused."""
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
    """Result of one encoded batch. The offsets are None with acks=0."""

    partition: int
    base_offset: int | None
    last_offset: int | None
    is_duplicate: bool = False
    append_time_ms: int | None = None
    """The leader's append time, wall ms; None: not known, for example for a duplicate."""
    leader_epoch: int = 0
    """The partition's current leader epoch, as the responding node knows it; grows with each change of leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch from one partition.

    Attributes:
        offset: where to start: >= 0, "earliest" or "latest". -N means the last N records.
        timestamp_ms: start at the first record with this timestamp (wall ms) or a later one; overrides ``offset``.
        max_bytes: limit of the stored bytes; if there is a batch, at least one is returned.
        is_local: read this node's own replica instead of forwarding the request to the leader.
        is_uncommitted: also return records of open and aborted transactions (read_uncommitted).
        is_unconfirmed: the quorum need not confirm that the leader still leads. An empty response may then come from a
            leader that was replaced, and does not mean that there are no records.
        wants_records_end: with "latest", the response also has the offset after the last record.
        topic_tag: the topic's id must begin with it. A topic that was made again under its name has another id.
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
    topic_tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Whole stored batches; readers skip records outside of [start_offset, readable_end).

    The first batch may start below ``start_offset``, and the last may end above ``readable_end``.
    """

    start_offset: int
    """The first wanted offset, after "earliest", "latest", -N or a timestamp was resolved."""
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    batches: bytes
    broker_id: int | None = None
    """Id of the broker whose copy was read; None: not known."""
    records_end: int | None = None
    """As ``PartitionOffsets.records_end``; None: not requested, or the response is from an earlier release."""
    topic_id: str = ""
    """The topic's id; a later topic with this name has another id."""
    last_stable_offset: int | None = None
    """As ``PartitionOffsets.last_stable_offset``."""
    is_uncommitted: bool = False
    """Whether records of open and aborted transactions were read, too."""

    @property
    def readable_end(self) -> int:
        """End (exclusive) of what this reader may read."""
        if self.is_uncommitted or self.last_stable_offset is None:
            return self.high_watermark
        return self.last_stable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A report of records that a reader got damaged. ``broker_id`` is the broker of the replica; None: the leader."""

    topic: str
    partition: int
    offset: int
    """The first damaged offset."""
    broker_id: int | None = None

    @property
    def error(self) -> ReplicaDamagedError:
        """The error for a reader that has no records before the damage."""
        whose = "its leader" if self.broker_id is None else f"node {self.broker_id}"
        return ReplicaDamagedError(
            f"{self.topic}-{self.partition}: the records at offset {self.offset} are damaged in the copy of {whose}, "
            "which is checked now, and restored if another one is in sync; try again in a few seconds"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """Start and end of a partition. A reader of committed records reads [log_start_offset, readable_end)."""

    log_start_offset: int
    high_watermark: int
    """The first uncommitted offset: every acknowledged record lies below it."""
    last_stable_offset: int | None = None
    """The first offset of the oldest open transaction; the high watermark if none is open. None: same as that."""
    records_end: int | None = None
    """The offset after the last record that a reader of committed records sees. Without a record, the log start.

    None: not known.
    """
    topic_id: str = ""
    """The topic's id; a later topic with this name has another id."""

    @property
    def readable_end(self) -> int:
        """End (exclusive) of what a reader of committed records may read."""
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset

    def lag_of(self, position: int) -> int | None:
        """Return the lag of a reader whose next offset is ``position``; None if it is above the high watermark.

        The lag is the number of offsets from ``position``, or the log start if that is higher, to the last record. It
        is 0 exactly if there is no further record: markers, aborted records and gaps behind the last record do not
        count.
        """
        if position > self.high_watermark:
            return None
        end = self.readable_end if self.records_end is None else self.records_end
        return max(0, end - max(position, self.log_start_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedNext:
    """A committed offset: the next offset that a group will read. ``metadata`` is any text that the client attached.

    ``topic_id`` has the first digits of the id of the topic that was read. With it, the offset is not committed to a
    later topic of the name. Empty: the client named no id.
    """

    topic: str
    partition: int
    next_offset: int
    metadata: str = ""
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets of one group that a transaction commits, under one member's epoch.

    ``member_id`` is None for a group without members; ``member_epoch`` is then -1.
    """

    group: str
    member_id: str | None
    member_epoch: int
    offsets: tuple[CommittedNext, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWrite:
    """Records for one topic, as part of a transaction. ``partition`` is for records that name no partition."""

    topic: str
    partition: int | None
    records: Records
    may_create: bool = True
    """As ``ProduceRequest.may_create``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRequest:
    """A whole transaction in one request. Writes or offsets are not empty; ``idempotency`` requires writes."""

    writes: tuple[TransactionWrite, ...]
    offsets: tuple[GroupOffsets, ...]
    timeout_ms: int
    """How long the client waits."""
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionReceipt:
    """Result of a transaction in one request that was committed."""

    receipts: Sequence[Sequence[ProduceReceipt]]
    """The receipts of each write, in order; none has an error."""
    is_visible: bool
    """Whether readers see the records already; otherwise they will see them soon."""
    is_duplicate: bool = False
    """Whether an earlier request with the same idempotency key had already committed the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenExtent:
    """The acknowledged records of a transaction in one partition: their number, and the offset after the last one."""

    topic: str
    partition: int
    end_offset: int
    """Exclusive."""
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommit:
    """The commit of a transaction: names the writes that take effect. Other writes of the transaction are aborted."""

    transaction: ProducerTransaction
    writes: tuple[WrittenExtent, ...]
    offsets: tuple[GroupOffsets, ...]
    timeout_ms: int
    """How long the client waits."""
    until_visible: bool = True
    """Whether to respond only when readers see the records; otherwise respond when the commit is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A committed or aborted transaction. ``next_epoch``: epoch of the producer's next transaction."""

    next_epoch: int
    is_visible: bool
    """Whether all markers are written: readers see a committed transaction, and skip an aborted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction without a marker in the log of one partition, as this partition's leader reports it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    records: int
    began_ms: int
    """Wall ms of the transaction's first record in the partition."""
    timeout_ms: int
    leader: int
    """Broker id of the partition's leader."""
    state: str
    """``open``, or ``ending``: decided, but its marker is not in the partition yet."""
    producer_name: str | None
    """The transactional id; None for a transaction in one request, or if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactions:
    """The open transactions, as leaders report them, the oldest first."""

    found: Sequence[OpenTransaction]
    silent_nodes: Sequence[int]
    """Brokers that may know more, and did not answer."""
