"""Protocols of what handlers need from a node. ``node`` implements them; tests have in-memory ones.

Handlers call one port each. Every method may raise any ``MilenaError``; ``http_api.protocol.errors`` turns them into
answers.
Any node serves any call: forwarding is the implementation's business.
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
    OpenTransaction,
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
    """A topic as a client asks for it. None: the node's default."""

    name: str
    partition_count: int | None
    replication_factor: int | None
    replicas_assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """An allocated producer id. ``last_sequences``: topic → partition → last sequence, of all that have a leader."""

    producer_id: int
    producer_epoch: int
    last_sequences: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the node should get traffic; when not, why (a sentence for people)."""

    is_ready: bool
    reason: str = ""


class ProducePort(Protocol):
    """Records in."""

    def produce(self, request: ProduceRequest) -> Pending[Sequence[ProduceReceipt]]:
        """Append records; one receipt each, in order. ``Receipts`` is the form that is quick to answer with.

        Whoever is in a task awaits them, whoever is not is called back.

        Raises (this does, or what it returns):
            TopicNotFoundError, PartitionNotFoundError: nothing was written (auto-creation is off).
            NotEnoughReplicasError, NoLeaderError: every partition refused; nothing was written.
            PreconditionFailedError: ``expected_end`` is not where its partition ends; nothing was written.
            MalformedRequestError: there is a condition, and the records are not for one partition.
            StaleProducerEpochError, TransactionAbortedError, TransactionCommittedError: the transaction that they are
                to be part of has ended; nothing was written.
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
        """Append one batch as a client encoded it; the node checks it whole before it trusts it.

        ``idempotency``: the key that it is recognised by when it comes again, in place of a producer's numbers.
        ``may_create``: a missing topic may be made, where nodes do that.

        Raises:
            PreconditionFailedError: ``expected_end`` is not where the partition ends, or the topic's id does not begin
                with ``topic_tag``; nothing was written.
            IdempotencyKeyReusedError: the key came with other bytes before.
            InvalidProducerError: its producer is another than the transaction's, or it has one and a key.
        """


class ReadsPort(Protocol):
    """Records out."""

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read committed records, waiting up to ``timeout_ms`` when there are none yet.

        The bytes are as they were stored: who decodes them checks them, and says what is not whole (``doubt``).

        Raises:
            ReplicaDamagedError: what was asked for is damaged, and nobody else could be asked.
        """

    async def doubt(self, doubt: Doubt) -> None:
        """Let the copy be checked soon, once for however many readers say so; raises nothing.

        Who meets the damage again says it again: nothing more is done about a word that got lost.
        """

    async def offsets(
        self,
        topic: str,
        partition: int,
        *,
        wants_records_end: bool = False,
    ) -> PartitionOffsets:
        """Where the partition begins and ends, from the leader.

        Args:
            topic: its name.
            partition: its number.
            wants_records_end: also say where the last record ends.
        """


class TransactionsPort(Protocol):
    """Writes and committed offsets that take effect together, or not at all.

    Every method may raise ``NoQuorumError`` and ``FeatureLevelError``, with nothing decided.
    """

    async def transact(self, request: TransactionRequest) -> TransactionReceipt:
        """A whole transaction; it returns once it is committed. Every error but one says that nothing took effect.

        Raises:
            TopicNotFoundError, PartitionNotFoundError, TopicNotTransactionalError, GroupNotFoundError,
            MemberNotFoundError, MemberFencedError, StaleMemberEpochError, GroupNotEmptyError, GroupChangedError,
            NotEnoughReplicasError, NoLeaderError, RequestTooLargeError, TooManyTransactionsError: it was aborted.
            TransactionInProgressError: another request with this key is not decided yet.
            IdempotencyKeyReusedError: the key came with another body before.
            TransactionAbortedError: it took too long, or its broker was lost.
            FateUnknownError: it may yet be committed; the same again, under the same key, tells.
        """

    async def begin(self, transactional_id: str, *, timeout_ms: int) -> ProducerTransaction:
        """A producer's next transaction; one that it has open is aborted, and who had the id before is fenced.

        ``timeout_ms``: how long the transaction may stay open, 1 to 900,000.

        Raises:
            TooManyProducersError: nothing was begun.
        """

    async def commit(self, request: TransactionCommit) -> TransactionEnded:
        """Let all that it names take effect. The same again has the same answer, until the next one ends.

        Raises:
            TransactionNotFoundError, StaleProducerEpochError: there is none of this identity, or it was taken over.
            TransactionAbortedError: it was aborted before, or is now, since a topic, group or member is gone.
            TransactionChangedError: the partitions hold other records of it; it is still open.
            NotEnoughReplicasError, NoLeaderError: it is still open.
            FateUnknownError: it may yet be committed; the same again tells.
        """

    async def abort(self, transaction: ProducerTransaction, *, timeout_ms: int) -> TransactionEnded:
        """Let nothing of it take effect, ever. The same again has the same answer, until the next one ends.

        Raises:
            TransactionNotFoundError, StaleProducerEpochError: there is none of this identity, or it was taken over.
            TransactionCommittedError: it was committed, and stays so.
            FateUnknownError: it may yet be aborted; the same again tells.
        """

    async def open_transactions(self, *, older_than_ms: int) -> Sequence[OpenTransaction]:
        """What leaders hold of transactions without an end, the oldest first; without those whose leader is silent.

        ``older_than_ms``: only what began so long ago.
        """


class DeletionsPort(Protocol):
    """Records away."""

    async def delete_records(
        self, topic: str, partition: int, before: int | None, *, timeout_ms: int
    ) -> int:
        """Delete what lies below ``before`` (None: all that is committed), on every in-sync replica.

        Returns the first offset that is left. To do it again is harmless.

        Raises:
            OffsetOutOfRangeError: above the high watermark; nothing was deleted.
            NotEnoughReplicasError, NoLeaderError, FeatureLevelError: nothing was deleted.
            FateUnknownError: it may yet be deleted.
        """


class MetadataPort(Protocol):
    """The replicated state: reads from the local image, changes through the quorum."""

    @property
    def node_id(self) -> int:
        """This node's broker id."""

    @property
    def image(self) -> Image:
        """The local image, now."""

    async def current_image(self) -> Image:
        """An image as of now, which is the local one from then on; questions that come together share the cost.

        Raises:
            NoQuorumError: no majority answered in time.
        """

    async def topic(self, name: str, partition: int = 0) -> Topic:
        """The topic; asks the quorum before it says that there is none, and where ``partition`` is not known here.

        Raises:
            TopicNotFoundError: a majority knows no such topic.
        """

    async def create_topic(self, topic: NewTopic) -> Topic:
        """Create (or only validate) a topic; returns once this node's image has it."""

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Let a topic have ``partition_count`` partitions, if it has fewer; returns once this node's image has them."""

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; returns once this node's image has lost it."""

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, is_validate_only: bool
    ) -> None:
        """Set or reset (None) topic configs."""

    async def remove_broker(self, broker_id: int) -> None:
        """Forget a broker that is gone for good; returns once this node's image has lost it.

        Raises:
            BrokerNotFoundError, BrokerInUseError: it is not registered, or still part of the cluster.
        """

    async def note(self, action: str, change: Mapping[str, object]) -> None:
        """Tell the audit log of something before it is done; a cluster below feature level 11 is told nothing.

        Raises:
            NoQuorumError: it cannot be told, and so is not to be done.
        """

    async def allocate_producer(self, name: str | None) -> ProducerState:
        """A producer id and epoch; a known name gets its id with the next epoch."""

    @property
    def version(self) -> int:
        """Grows with every change of the cluster (brokers, topics, partitions), and with nothing else.

        Of two versions, also of different nodes, the greater one is never behind.
        """

    async def image_since(self, version: int, *, timeout_ms: int) -> Image:
        """The image once ``version`` is above this, or the current one after the timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTarget:
    """Where a partition shall be, preferred leader first; ``replicas`` None: where it was before it was moved."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentRequest:
    """Partitions to move: these, all that a broker holds (``drain``), or as few as make the cluster even.

    ``throttle_bytes_per_s`` bounds what each leader's node sends to new replicas, 0: as the node is configured.
    ``max_concurrent``: partitions that move at a time, 0: all of them.
    """

    partitions: tuple[ReplicaTarget, ...] = ()
    drain: int | None = None
    throttle_bytes_per_s: int = 0
    max_concurrent: int = 0
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReassignment:
    """One partition's part of a request. ``before`` is where it is, or is going to already."""

    topic: str
    topic_id: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    is_cancelled: bool = False
    error: MilenaError | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Topic id and partition."""
        return self.topic_id, self.partition

    def refused(self, error: MilenaError | None) -> "PlannedReassignment":
        """This plan, with the error that refused it."""
        return self if error is None else replace(self, error=error)


@unique
class MoveState(StrEnum):
    """How far a move is."""

    WAITING = "waiting"
    CATCHING_UP = "catching_up"
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedReplica:
    """A replica that a move adds. None: its leader did not say."""

    broker_id: int
    is_in_sync: bool
    offsets_left: int | None
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReassignment:
    """A partition on the move."""

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
    """Moving replicas between brokers."""

    async def reassign(self, request: ReassignmentRequest) -> Sequence[PlannedReassignment]:
        """Begin to move, or only plan (``is_dry_run``); moves go on in the background.

        Raises:
            TopicNotFoundError, PartitionNotFoundError, BrokerNotFoundError, InvalidReplicationError,
            InvalidRequestError, TooManyReplicasError, FeatureLevelError: nothing is moved.
        """

    async def running(self) -> Sequence[RunningReassignment]:
        """Partitions that are being moved now, and how far they are."""

    async def cancel(
        self, topic: str | None, partition: int | None
    ) -> Sequence[PlannedReassignment]:
        """Take partitions back to where they were: all that move, a topic's, or one."""


class HealthPort(Protocol):
    """Probes and metrics."""

    def is_started(self) -> bool:
        """Logs are recovered and ports bound."""

    def readiness(self) -> Readiness:
        """Rejoined and caught up, and not draining."""

    async def drain(self, *, timeout_ms: int) -> bool:
        """Let others lead, from now until the process ends; True once nothing is led here and no replica counts."""

    def metrics(self, *, has_partitions: bool) -> bytes:
        """Prometheus text format; ``has_partitions``: with what is told of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries:
    """One number over the last hour, the newest value last; NaN where nobody knows it.

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
    """The present leader; None: there is none."""
    records_in_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float
    records_out_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """The last hour as the nodes that answered tell it."""

    end_ms: int
    """Wall clock of the last values."""
    step_ms: int
    series: Sequence[HistorySeries]
    busiest: Sequence[BusyPartition]
    """Those that take or give most."""
    versions: Mapping[int, str | None]
    """Releases that the nodes run which answered; None: one that does not say."""
    silent_nodes: Sequence[int]
    """What they led is missing in the sums."""
    left_out: int
    """Topics and groups that had traffic, and for which nodes had no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHere:
    """Of a node's replicas of a topic, when it last looked."""

    stored_bytes: int
    records_in_per_second: float
    records_out_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Bytes of the replicas of all nodes, by topic id or by partition; those of ``silent_nodes`` are missing."""

    sizes: Mapping[str, int]
    silent_nodes: Sequence[int]


class HistoryPort(Protocol):
    """The last hour, in the memory of nodes."""

    def topics_here(self) -> Mapping[str, TopicHere]:
        """What this node has of each topic, by topic id; nothing before it has looked."""

    def stored_bytes_here(self, topic_id: str, partition: int) -> int | None:
        """Of this node's replica, now; None: it has none."""

    async def stored_bytes(
        self, topic_ids: Collection[str], *, by_partition: bool = False
    ) -> StoredBytes:
        """Sums over all nodes, as of their last looks; ``by_partition``: of the partitions of one topic, now."""

    async def of_nodes(self) -> HistoryView:
        """What each node did."""

    async def of_topic(self, topic: str) -> HistoryView:
        """What the nodes did for a topic.

        Raises:
            TopicNotFoundError: there is none.
        """

    async def of_group(self, group: str) -> HistoryView:
        """How far a group was behind what could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Bounds on what comes from outside."""

    connections_max: int = 10_000
    """Open at once; when there are more the one that rested longest is closed."""
    request_bytes_max: int = 32 << 20
    requests_in_flight_max: int = 4096
    streams_max: int = 4096
    """Answers under way that follow a log; they are no requests in flight."""
    bytes_in_flight_max: int = 512 << 20
    fetch_bytes_max: int = 64 << 20
    fetch_wait_ms_max: int = 300_000
    produce_timeout_ms_default: int = 30_000
    produce_timeout_ms_max: int = 300_000
    body_wait_ms_max: int = 60_000
    """From the request's headers to the last byte of its body; then 408."""
    unsent_wait_ms_max: int = 60_000
    """How long a client may take nothing of its answer; then its connection is closed."""
    unsent_bytes_max: int = 512 << 20
    """Of answers that their clients have not taken; above it who took nothing for longest is closed."""
    bad_credentials_delay_ms: int = 500
    """Before bad credentials are refused on a connection that brought some before."""
    records_per_request_max: int = 100_000
    rest_commit_offsets: str = "last"
    """What offsets in commits of REST consumers name, where a consumer does not say: ``last`` or ``next``."""
    request_rate: int = 0
    """Requests/s of each caller on this node; 0: as many as it likes."""
    producer_byte_rate: int = 0
    """Bytes/s of bodies that each caller sends to this node; 0: no bound."""
    consumer_byte_rate: int = 0
    """Bytes/s of answers that this node sends each caller; 0: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything that the application is built from."""

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
