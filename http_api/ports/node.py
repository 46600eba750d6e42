"""Interfaces that a node implements for the handlers of the API. Tests have in-memory implementations.

A handler calls one port. Every method may raise any ``MilenaError``; docstrings list the important ones.
``http_api.protocol.errors`` turns errors into responses. Any node serves any call, and forwards it if necessary.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from typing import Protocol

from http_api.access.callers import CallersPort
from http_api.access.port import AccessPort
from http_api.access.refusals import Refusals
from http_api.ports.groups import ConsumersPort, GroupsPort
from milena.model.errors import MilenaError
from milena.model.pending import Pending
from milena.model.requests import (
    Acks,
    BatchReceipt,
    Doubt,
    FetchRequest,
    FetchResult,
    IdempotencyKey,
    OpenTransactions,
    PartitionOffsets,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    TransactionCommit,
    TransactionEnded,
    TransactionReceipt,
    TransactionRequest,
)
from raft_meta.machine.image import Image, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic that a client wants to create. None in a field: the node's default."""

    name: str
    partition_count: int | None
    replication_factor: int | None
    replicas_assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """An allocated producer id and epoch.

    ``last_sequences`` has the last sequence of the producer id in each partition with a leader, by topic and partition.
    """

    producer_id: int
    producer_epoch: int
    last_sequences: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the node should get traffic; if not, the reason as a sentence."""

    is_ready: bool
    reason: str = ""


class ProducePort(Protocol):
    """Appends of records."""

    def produce(self, request: ProduceRequest) -> Pending[Sequence[ProduceReceipt]]:
        """Append records; return one receipt for each, in order. A result of type ``Receipts`` is encoded fastest.

        A task awaits the ``Pending``. Code without a task registers a callback.

        Raises (from the call or its result):
            TopicNotFoundError, PartitionNotFoundError: nothing was written, and the topic was not created.
            NotEnoughReplicasError, NoLeaderError: every partition refused the records; nothing was written.
            PreconditionFailedError: ``expected_end`` is not the next offset of the partition; nothing was written.
            MalformedRequestError: ``expected_end`` is set, and the records are for several partitions.
            StaleProducerEpochError, TransactionAbortedError, TransactionCommittedError: the transaction of the request
                has ended; nothing was written.
            TopicNotTransactionalError, TooManyTransactionsError: nothing was written.
        """

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
        """Append one batch that a client encoded, after a check of the whole batch.

        ``idempotency`` identifies a retry of a batch without a producer id. ``may_create``: a missing topic may be
        created, if the nodes' settings allow that.

        Raises:
            PreconditionFailedError: ``expected_end`` is not the end of the partition, or the topic's id does not start
                with ``topic_tag``; nothing was written.
            IdempotencyKeyReusedError: an earlier request had the key and other bytes.
            InvalidProducerError: the batch's producer id is not the transaction's, or the batch has both a producer id
                and an idempotency key.
        """


class ReadsPort(Protocol):
    """Reads of records and offsets."""

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read committed records; wait up to ``timeout_ms`` if there are none.

        The result has the bytes as stored, unchecked. The caller checks them when it decodes them, and reports damaged
        ones with ``doubt``.

        Raises:
            ReplicaDamagedError: the requested records are damaged, and no other replica could be read.
            OffsetOutOfRangeError: the partition does not have the offset, or the name belongs to a topic whose id does
                not begin with ``topic_tag``.
        """

    def fetch_at_once(self, request: FetchRequest) -> FetchResult | None:
        """Return what ``fetch`` would return, if there are records and nothing has to be waited for; else None."""

    async def doubt(self, doubt: Doubt) -> None:
        """Report damaged records, so that the replica is checked soon. Several reports cause one check.

        Errors are not raised, and a lost report is not repeated: the next reader reports the damage again.
        """

    async def offsets(
        self,
        topic: str,
        partition: int,
        *,
        wants_records_end: bool = False,
    ) -> PartitionOffsets:
        """Return the partition's start and end, from its leader.

        Args:
            topic: the topic's name.
            partition: the partition's number.
            wants_records_end: also return the offset after the last record (``PartitionOffsets.records_end``).
        """


class TransactionsPort(Protocol):
    """Writes and committed offsets that take effect together, or not at all.

    Every method may raise ``NoQuorumError`` and ``FeatureLevelError``; then the transaction was neither committed nor
    aborted.
    """

    async def transact(self, request: TransactionRequest) -> TransactionReceipt:
        """Run a complete transaction; return once it is committed. No error but FateUnknownError leaves an effect.

        Raises:
            TopicNotFoundError, PartitionNotFoundError, TopicNotTransactionalError, GroupNotFoundError,
            MemberNotFoundError, MemberFencedError, StaleMemberEpochError, GroupNotEmptyError, GroupChangedError,
            NotEnoughReplicasError, NoLeaderError, RequestTooLargeError, TooManyTransactionsError: the transaction was
                aborted.
            TransactionInProgressError: an earlier transaction with this idempotency key is not decided yet.
            IdempotencyKeyReusedError: an earlier request had the idempotency key and another body.
            TransactionAbortedError: the transaction took too long, or the broker that ran it was lost.
            FateUnknownError: it may or may not be committed; a retry with the same idempotency key finds out.
        """

    async def begin(self, transactional_id: str, *, timeout_ms: int) -> ProducerTransaction:
        """Begin the next transaction of a transactional id. If its former transaction is open, it is aborted.

        A program that used the id before is fenced. ``timeout_ms`` is how long the transaction may stay open, 1 to
        900,000.

        Raises:
            TooManyProducersError: nothing was started.
        """

    async def commit(self, request: TransactionCommit) -> TransactionEnded:
        """Commit all that the request names. A retry gets the same response, until the next transaction ends.

        Raises:
            TransactionNotFoundError: there is no transaction with this producer id and epoch.
            StaleProducerEpochError: another program has taken over the transactional id.
            TransactionAbortedError: the transaction was aborted, before or because a topic, group or member is gone.
            TransactionChangedError: the partitions have other records of the transaction than named; it is still open.
            NotEnoughReplicasError, NoLeaderError: the transaction is still open.
            FateUnknownError: it may or may not be committed; a retry finds out.
        """

    async def abort(self, transaction: ProducerTransaction, *, timeout_ms: int) -> TransactionEnded:
        """Abort the transaction permanently. A retry gets the same response, until the next transaction ends.

        Raises:
            TransactionNotFoundError: there is no transaction with this producer id and epoch.
            StaleProducerEpochError: another program has taken over the transactional id.
            TransactionCommittedError: the transaction is committed already.
            FateUnknownError: it may or may not be aborted; a retry finds out.
        """

    async def open_transactions(self, *, older_than_ms: int) -> OpenTransactions:
        """Return open transactions.

        ``older_than_ms``: return only transactions that started at least this long ago.
        """


class DeletionsPort(Protocol):
    """Deletion of records."""

    async def delete_records(
        self, topic: str, partition: int, before: int | None, *, timeout_ms: int
    ) -> int:
        """Delete records below ``before`` (None: all committed records), on every in-sync replica.

        Return the new first offset of the partition. A retry is harmless.

        Raises:
            OffsetOutOfRangeError: ``before`` is above the high watermark; nothing was deleted.
            NotEnoughReplicasError, NoLeaderError, FeatureLevelError: nothing was deleted.
            FateUnknownError: the records may or may not be deleted.
        """


class MetadataPort(Protocol):
    """The replicated state: reads from the local image, changes through the quorum."""

    @property
    def node_id(self) -> int:
        """This node's broker id."""

    @property
    def image(self) -> Image:
        """The replicated state as this node knows it now."""

    async def current_image(self) -> Image:
        """Ask the quorum for the newest state; return the local image once it has that. Concurrent calls share this.

        Raises:
            NoQuorumError: no majority responded in time.
        """

    async def topic(self, name: str, partition: int = 0, tag: str = "") -> Topic:
        """Return the topic whose id begins with ``tag``.

        If this node does not know this topic or the ``partition``, ask the quorum first.

        Raises:
            TopicNotFoundError: the topic does not exist, as a majority confirms.
            OffsetOutOfRangeError: the name belongs to a topic with another id, as a majority confirms.
        """

    async def create_topic(self, topic: NewTopic) -> Topic:
        """Create a topic, or only validate the request; return once this node's image has the topic."""

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Raise a topic's number of partitions to ``partition_count``; return once this node's image has them."""

    async def delete_topic(self, name: str) -> Topic:
        """Delete a topic, and return it; this node's image no longer has it."""

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, is_validate_only: bool
    ) -> None:
        """Set or reset (None) topic configs."""

    async def remove_broker(self, broker_id: int) -> None:
        """Remove a broker that will not come back; return once this node's image no longer has it.

        Raises:
            BrokerNotFoundError: the broker is not registered.
            BrokerInUseError: the broker is alive, a voter, or holds replicas.
        """

    async def note(
        self, action: str, change: Mapping[str, object], *, timeout_ms: int = 10_000
    ) -> None:
        """Write an action to the audit log before it happens. In a cluster below feature level 11, do nothing.

        ``timeout_ms`` limits the wait, to at most 10 s.

        Raises:
            NoQuorumError: the log cannot be written, so the action must not happen.
        """

    async def allocate_producer(self, name: str | None) -> ProducerState:
        """Allocate a producer id. For a name that was used before, return its id with the next epoch."""

    @property
    def version(self) -> int:
        """A number that grows with every change of brokers, topics and partitions, and with no other change.

        Versions of different nodes can be compared: the greater one belongs to the newer state.
        """

    async def image_since(self, version: int, *, timeout_ms: int) -> Image:
        """Wait until the image's version is above ``version``, at most ``timeout_ms``; return the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTarget:
    """A partition's new replicas, the preferred leader first. ``replicas`` None: cancel a move in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentRequest:
    """A request to move partitions: listed ones, all on one broker (``drain``), or the fewest that balance the cluster.

    ``throttle_bytes_per_s`` bounds the bytes that each leader's node sends to new replicas; 0: the node's option.
    ``max_concurrent``: partitions that move at a time; 0: all of them.
    ``is_each_alone``: a named partition that cannot move has an error in its row, and the others move. Otherwise it
    refuses the request.
    """

    partitions: tuple[ReplicaTarget, ...] = ()
    drain: int | None = None
    throttle_bytes_per_s: int = 0
    max_concurrent: int = 0
    is_dry_run: bool = False
    is_each_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReassignment:
    """One partition's part of a request. ``before``: its replicas, or those that it is moving to already.

    ``topic_id`` is empty if there is no such topic.
    """

    topic: str
    topic_id: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    is_cancelled: bool = False
    error: MilenaError | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The topic's id and the partition."""
        return self.topic_id, self.partition

    def refused(self, error: MilenaError | None) -> "PlannedReassignment":
        """Return this plan with an error; with None, return it unchanged."""
        return self if error is None else replace(self, error=error)


@unique
class MoveState(StrEnum):
    """The progress of a move."""

    WAITING = "waiting"
    CATCHING_UP = "catching_up"
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedReplica:
    """A replica that a move adds, and its progress. None: its leader did not report the number."""

    broker_id: int
    is_in_sync: bool
    offsets_left: int | None
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReassignment:
    """A partition that is moving."""

    topic: str
    partition: int
    state: MoveState
    former: tuple[int, ...]
    target: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    added: tuple[AddedReplica, ...]
    throttle_bytes_per_s: int
    max_concurrent: int


class ReassignmentsPort(Protocol):
    """Moves of replicas between brokers."""

    async def reassign(self, request: ReassignmentRequest) -> Sequence[PlannedReassignment]:
        """Start moves, or only plan them (``is_dry_run``). Moves continue in the background.

        Raises:
            TopicNotFoundError, PartitionNotFoundError, BrokerNotFoundError, InvalidReplicationError,
            InvalidRequestError, TooManyReplicasError, FeatureLevelError: nothing is moved.
        """

    async def running(self) -> Sequence[RunningReassignment]:
        """Return the partitions that are moving now, and their progress."""

    async def cancel(
        self, topic: str | None, partition: int | None
    ) -> Sequence[PlannedReassignment]:
        """Cancel moves: of all partitions, of a topic, or of one partition. They return to their previous replicas."""


class HealthPort(Protocol):
    """Probes and metrics."""

    def is_started(self) -> bool:
        """Return whether logs are recovered and ports bound."""

    def readiness(self) -> Readiness:
        """Return whether the node has joined the cluster, has caught up, and is not draining."""

    async def drain(self, *, timeout_ms: int) -> bool:
        """Move leadership to other nodes, until the process ends.

        Return True once this node leads nothing and none of its replicas is in an ISR. Return False if the timeout
        passes first, or if no other node can lead what is left.
        """

    def metrics(self, *, has_partitions: bool) -> bytes:
        """Return metrics in Prometheus' text format; with ``has_partitions``, also those of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries:
    """One number over the last hour, the newest value last; NaN if no node knows it.

    ``node_id`` None: the sum over all nodes.
    """

    name: str
    node_id: int | None
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyPartition:
    """A partition with traffic, and its rates over the last minute, summed over all nodes."""

    topic: str
    partition: int
    leader: int | None
    """The current leader; None without one."""
    records_in_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float
    records_out_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """Measurements of the last hour, from the nodes that responded."""

    end_ms: int
    """Wall clock of the last values (ms)."""
    step_ms: int
    series: Sequence[HistorySeries]
    busiest: Sequence[BusyPartition]
    """The partitions with the most traffic."""
    versions: Mapping[int, str | None]
    """The release of each node that responded; None: it does not report one."""
    silent_nodes: Sequence[int]
    """Nodes without a response. The sums miss the partitions that they lead."""
    left_out: int
    """The number of topics and groups with traffic that nodes did not record, because their memory is limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHere:
    """A node's replicas of a topic, as of its last measurement."""

    stored_bytes: int
    records_in_per_second: float
    records_out_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Bytes of the replicas of all nodes, by topic id or by partition, without those of ``silent_nodes``."""

    sizes: Mapping[str, int]
    silent_nodes: Sequence[int]


class HistoryPort(Protocol):
    """The last hour, in the memory of nodes."""

    def topics_here(self) -> Mapping[str, TopicHere]:
        """Return this node's measurements of each topic, by topic id; empty before the first measurement."""

    def stored_bytes_here(self, topic_id: str, partition: int) -> int | None:
        """Return the current size of this node's replica in bytes; None: this node has no replica."""

    async def stored_bytes(
        self, topic_ids: Collection[str], *, by_partition: bool = False
    ) -> StoredBytes:
        """Return the stored bytes on all nodes, by topic, as of their last measurement.

        ``by_partition``: return the current bytes of each partition of one topic instead.
        """

    async def of_nodes(self) -> HistoryView:
        """Return the history of each node."""

    async def of_topic(self, topic: str) -> HistoryView:
        """Return a topic's history, over all nodes.

        Raises:
            TopicNotFoundError: there is no such topic.
        """

    async def of_group(self, group: str) -> HistoryView:
        """Return the history of a group's lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Bounds on requests, responses and connections."""

    connections_max: int = 10_000
    """Open connections. Above this number, the connection that has been idle longest is closed."""
    request_bytes_max: int = 32 << 20
    requests_in_flight_max: int = 4096
    streams_max: int = 4096
    """Open streams: responses that follow a partition without an end. They do not count as requests in flight."""
    bytes_in_flight_max: int = 512 << 20
    fetch_bytes_max: int = 64 << 20
    fetch_wait_ms_max: int = 300_000
    produce_timeout_ms_default: int = 30_000
    produce_timeout_ms_max: int = 300_000
    body_wait_ms_max: int = 60_000
    """The time from the request's headers to the last byte of its body; then 408."""
    unsent_wait_ms_max: int = 60_000
    """The time in which a client may read nothing of its response; then its connection is closed."""
    unsent_bytes_max: int = 512 << 20
    """Bytes in all send buffers. Above this, the connection that has waited longest for its client is closed."""
    bad_credentials_delay_ms: int = 500
    """The delay of the response to bad credentials, if an earlier request of the connection had bad ones too."""
    records_per_request_max: int = 100_000
    rest_commit_offsets: str = "last"
    """The meaning of offsets in commits of REST consumers that do not choose one: ``last`` or ``next``."""
    request_rate: int = 0
    """Requests/s of each caller on this node; 0: no bound."""
    producer_byte_rate: int = 0
    """Bytes/s of bodies that each caller sends to this node; 0: no bound."""
    consumer_byte_rate: int = 0
    """Bytes/s of responses that this node sends each caller; 0: no bound."""

    def produce_wait_ms(self, wanted_ms: int | None) -> int:
        """Return the time that a write may take, in ms: the wanted one or the default, up to the limit."""
        return min(wanted_ms or self.produce_timeout_ms_default, self.produce_timeout_ms_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All ports that the application uses."""

    produce: ProducePort
    reads: ReadsPort
    deletions: DeletionsPort
    transactions: TransactionsPort
    metadata: MetadataPort
    health: HealthPort
    history: HistoryPort
    reassignments: ReassignmentsPort
    groups: GroupsPort
    consumers: ConsumersPort
    callers: CallersPort
    access: AccessPort
    refusals: Refusals
    limits: ApiLimits
