"""The image: the state that the cluster agrees on, at one index of the metadata log.

An image never changes. Every command makes a new image that shares almost all data with the old one (persistent maps).
So a snapshot is a reference, and no reader ever sees half a change. Maps are ``immutables.Map``; sequences are tuples.
"""

from dataclasses import dataclass, field

from immutables import Map

from milena.model.types import WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One registered broker.

    ``broker_epoch`` is the index of the registration that made it. It grows with every restart, and fences requests of
    an earlier process of the broker that are still in flight. ``directory_id`` names the data directory; a different
    one means that every replica that the broker held is gone.
    """

    broker_id: int
    broker_epoch: int
    directory_id: str
    incarnation: int
    api_url: str
    peer_host: str
    peer_port: int
    rack: str | None
    is_fenced: bool
    is_draining: bool
    feature_min: int
    feature_max: int
    stored_epoch: int = -1
    """The latest broker epoch that its directory is known to have stored (-1: none).

    The broker stores a new epoch before it asks to be unfenced. Until then, a crash may leave the directory at any
    epoch in [stored_epoch, broker_epoch]. Each of these epochs proves that it is the same directory.
    """
    kafka_addresses: tuple[tuple[str, str, int], ...] = field(default=(), metadata={"since": 12})
    """Where Kafka clients reach the broker: (listener, host, port), ordered by listener. Empty: they cannot."""

    def kafka_address(self, listener: str) -> tuple[str, int] | None:
        """Return host and port under which Kafka clients of a listener reach the broker; None: they cannot."""
        for name, host, port in self.kafka_addresses:
            if name == listener:
                return host, port
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A replica whose recovery cut records, and the end of its log: (last_epoch, log_end_offset)."""

    broker_id: int
    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A move of a partition to other brokers. Source: KIP-455."""

    target: tuple[int, ...]
    """The replicas after the move, preferred leader first."""
    former: tuple[int, ...]
    """The replicas before the move. Cancelling the move restores them."""
    is_started: bool
    """Whether the move has started. Before, it waits for other moves, and the new replicas do not exist."""
    max_concurrent: int
    """The move starts when fewer partitions than this are moving; 0: at once."""
    throttle_bytes_per_s: int
    """Bytes/s that each leader's node may send its new replicas; 0: as that node is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Leadership and replica state of one partition.

    Invariants:
        isr is a subset of replicas and never empty. leader is None or a member of isr that is not fenced.
        leader_epoch rises with every change of leader (to None included) and when replicas leave. Acknowledgements
        of a removed replica must not count for an empty replica that may replace it. partition_epoch rises with
        every change.
        The last member of isr is never removed without an operator.
        A suspect or damaged broker is not in isr unless it was the only choice left: suspects and damaged are
        in isr, and both are empty while there is a leader; a damaged broker is alone in isr.
        eligible is a subset of replicas, disjoint from isr. It is empty unless there is a leader and isr has fewer
        brokers than min.insync.replicas.
        isr, eligible and damaged have the order of replicas, suspects the order of broker ids.
    """

    replicas: tuple[int, ...]
    """Broker ids in order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    suspects: tuple[Suspect, ...] = ()
    damaged: tuple[int, ...] = ()
    """Broker ids whose copy is lost or fails checksums below its recovery point: not electable."""
    eligible: tuple[int, ...] = ()
    """Brokers outside isr that hold every committed record.

    Each left isr while isr was smaller than min.insync.replicas, or became so by that. Or it was not alive when the
    partition was created with an isr of that size. While isr is that small nothing is committed, so these brokers may
    be elected like members of isr. They return to isr when the leader is lost. Source: KIP-966, eligible leader
    replicas.
    """
    unclean_epoch: int = -1
    """The last leader_epoch that started with an unclean election. A follower that enters an epoch <= this one from
    an older epoch may truncate below its checkpointed high watermark."""
    moving: Reassignment | None = field(default=None, metadata={"since": 2})
    """The move in progress, if any. Meanwhile replicas are ``former``, then the new ones of ``target``. Each new one
    joins isr by catching up, like any replica."""

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas without those that a move is adding."""
        return self.replicas if self.moving is None else self.moving.former

    @property
    def is_complete(self) -> bool:
        """Whether every replica is in sync under a leader, none is suspect or damaged, and no move is in progress."""
        return (
            self.leader is not None
            and set(self.isr) == set(self.replicas)
            and self.moving is None
            and not self.suspects
            and not self.damaged
        )

    def names(self, broker_id: int) -> bool:
        """Return whether the broker holds a replica, or is the target of a move."""
        target = () if self.moving is None else self.moving.target
        return broker_id in self.replicas or broker_id in target


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. ``configs`` holds only the values that were set; defaults are in ``machine.topics.configs``."""

    topic_id: str
    """32 hex digits, chosen by the proposer; a re-created topic has another id."""
    name: str
    partition_count: int
    replication_factor: int
    configs: Map[str, str]
    created_ms: WallMs
    growths: tuple[tuple[int, int], ...] = field(default=(), metadata={"since": 6})
    """The latest additions of partitions, the oldest first: (how many partitions it had before, wall ms)."""
    has_own_keys: bool = field(default=False, metadata={"since": 11})
    """Whether an idempotency key belongs to the principal that sends it: equal keys of two principals then differ. The
    value is fixed from the topic's first record on, so that a key means the same to every node during an upgrade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedProducer:
    """An allocated producer id."""

    producer_id: int
    producer_epoch: int
    name: str | None
    last: str = field(default="", metadata={"since": 6})
    """How the transaction of the previous epoch ended: ``committed`` or ``aborted``. Empty: no command ended it,
    because this epoch is the first, or another client took over the name."""
    used_ms: WallMs = field(default=WallMs(0), metadata={"since": 8})
    """When a name that writes transactions last began or ended one; 0: for other names, which are kept for ever."""
    principal: str = field(default="", metadata={"since": 11})
    """The principal that reserved the present epoch. Empty: it was reserved without credentials, by a node for itself,
    or below the feature level that stores principals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBlock:
    """Producer ids without a name that one principal may use: ``IDS_PER_BLOCK`` from ``number * IDS_PER_BLOCK`` on."""

    number: int
    principal: str
    used: int
    """How many of the ids were allocated. They are allocated in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer:
    """The latest proposals of one broker's latest incarnation, so that a retried command is applied only once.

    ``incarnation`` grows with every start of the broker's process. ``window`` maps the last sequences to their
    encoded responses. Sequences at or below ``floor`` are refused: whether they were applied is no longer known.
    """

    incarnation: int
    floor: int
    window: Map[int, bytes]


NEVER_MS = WallMs(0)
"""The applied clock before the first command."""

PartitionKey = tuple[str, int]
"""(topic_id, partition)"""

PartitionSet = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by topic: (topic_id, partitions), both ascending, no topic without partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a consumer group. Source: KIP-848, where a member reconciles towards its target.

    ``held`` are the partitions that the member may be reading: it received them, and has neither released them nor
    ended. It reads the partitions that are in both ``held`` and ``target``. It is asked to release the rest of
    ``held``. The rest of ``target`` waits until the present holders release it.
    """

    member_id: str
    instance_id: str | None
    """A name that lasts across restarts of the member's process (KIP-345). Its successor takes over ``held``."""
    is_rest: bool
    """Whether the member is a REST consumer. The coordinator acts for it, and it exists as long as the
    ``RestConsumer`` of this name."""
    client_id: str
    host: str
    topics: tuple[str, ...]
    """Names of the subscribed topics, ascending; the topics need not exist yet."""
    pattern: str | None
    """A regular expression that whole names of topics match; None: only ``topics``."""
    assignor: str
    """The assignor that the member prefers; the group uses the one that most members prefer."""
    session_ms: int
    rebalance_ms: int
    """How long the member may take to release partitions that it is asked to release."""
    member_epoch: int
    """The generation that the member has reached: it holds only partitions that are its target there."""
    held: PartitionSet
    target: PartitionSet
    predecessors: tuple[str, ...] = field(default=(), metadata={"since": 11})
    """Ids of the members that it replaced under its instance id, the latest one last. Their processes may still run;
    each of their requests gets the response that they must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """One member of a classic group: a client that takes part in computing the assignment."""

    member_id: str
    instance_id: str | None
    """A name that lasts across restarts of the member's process (KIP-345)."""
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    """How long the member may take to join a rebalance again."""
    assignment: bytes
    """The part of the assignment that the leader computed for this member; only clients read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroup:
    """The last finished generation of a classic group. Source: KIP-134, KIP-345 and Kafka's JoinGroup and SyncGroup.

    A generation is finished when its leader has sent the assignment. Rebalances are in the coordinator's memory.

    Invariants:
        Members are in ascending order of their ids; instance ids are distinct.
        The leader is a member. A group without members has no leader, no protocol and no assignments.
    """

    protocol_type: str
    """The kind of assignment, such as ``consumer`` or ``connect``."""
    protocol: str
    """The name of the protocol that every member supports, such as ``range``."""
    leader: str
    """The id of the member that computed the assignment."""
    members: tuple[ClassicMember, ...]
    has_assignments: bool
    """False: the assignments are larger than a group may store, so every member has an empty one here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group: its members, and the partitions that each of them reads.

    A group is either a server group, for which its coordinator computes the assignment, or a classic group.

    Invariants:
        A classic group has no ``members``: its members are those of ``classic``.
        No partition is held by two members, nor the target of two.
        A member's epoch is at most the generation; where it is equal, held is a subset of target.
        Members are in ascending order of their ids; instance ids are distinct.
        Every partition of ``held`` and ``target`` exists.
    """

    group_id: str
    version: int
    """The index of the last command that changed the group. The coordinator compares and sets it."""
    generation: int
    """Rises each time the target assignments are computed again."""
    assignor: str
    """The assignor that computed the present targets; empty before the first."""
    members: tuple[GroupMember, ...]
    emptied_ms: WallMs
    """When the last member left (0 while there are members). The group's offsets are kept for
    offsets.retention.minutes from then on."""
    classic: ClassicGroup | None = None
    """The members of a classic group; None: it is a server group, or never had a member."""

    @property
    def member_count(self) -> int:
        """The number of members, of a group of any kind."""
        return len(self.members) if self.classic is None else len(self.classic.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The position at which a group continues in a partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int
    """Leader epoch of the record before ``offset``; -1: not given."""
    metadata: str
    """Text that the consumer stores with the offset."""
    commit_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class RestConsumer:
    """A consumer of the HTTP API. It is in the image so that it outlives the node that created it.

    At most one of subscription (``topics`` or ``pattern``) and manual assignment (``assigned``) is set.
    """

    group_id: str
    instance: str
    created_index: int
    """Distinguishes it from an earlier consumer of the same name."""
    format: str
    auto_offset_reset: str
    is_auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: PartitionSet = ()
    principal: str = field(default="", metadata={"since": 8})
    """The principal that owns it. Empty: it was created without credentials."""
    commits_next: bool = field(default=False, metadata={"since": 11})
    """Whether offsets that its client commits are those of the next record to read, not of the last record read."""


ConsumerKey = tuple[str, str]
"""(group_id, instance)"""


TransactionKey = tuple[int, int]
"""(producer_id, producer_epoch). No two transactions share a key, because the end of each raises the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionExtent:
    """The offsets that a transaction wrote in one partition: [base_offset, end_offset).

    Records of other producers may lie between them.
    """

    topic_id: str
    partition: int
    base_offset: int
    """Offset of the transaction's first record; -1: not given."""
    end_offset: int
    """Offset after the transaction's last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A committed transaction in a partition whose log may not have its marker yet.

    Its records below ``end_offset`` are committed, those from there on are aborted.
    """

    end_offset: int
    extents: tuple[TransactionExtent, ...] = ()
    """All extents of the transaction if this partition is a home of its idempotency keys; otherwise empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOffset:
    """An offset of a group that a transaction of a Kafka client will commit; values as in ``CommittedOffset``."""

    group_id: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    member_id: str | None
    """The member for which it was staged, at ``member_epoch``; None: none was named."""
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTransactionalId:
    """A transactional id of Kafka clients, and its open transaction. Source: KIP-98, KIP-360, KIP-447.

    A client writes many transactions under one producer id and epoch. Each of these transactions has an identity of its
    own in logs: the producer of this name in ``Image.producers``, at its present epoch.

    Invariants:
        ``producer_id`` is never an id in ``Image.producers``. There is a producer of this name.
        Without an open transaction, there are no partitions, groups and offsets.
        Every partition of ``partitions`` and ``offsets`` exists; the group of each offset is in ``groups``.
        ``partitions``, ``groups`` and ``offsets`` are in ascending order of their keys.
    """

    name: str
    version: int
    """The index of the last command that changed it. The end of a transaction compares it."""
    producer_id: int
    """The id under which the client numbers its records."""
    producer_epoch: int
    former_epoch: int
    """The client's epoch before it asked for the present one; -1: another client took over, or the epoch is the first.
    A repeated request of that epoch gets the same answer."""
    timeout_ms: int
    began_ms: WallMs
    """When the open transaction began; 0: none is open."""
    partitions: tuple[PartitionKey, ...] = ()
    """Partitions in which the open transaction may have records."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets the open transaction may commit."""
    offsets: tuple[StagedOffset, ...] = ()
    last: str = ""
    """How the last transaction ended: ``committed`` or ``aborted``; empty: there was none since the client began."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self.began_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """A verifier of a password for one mechanism of SCRAM. Source: RFC 5802, section 3."""

    mechanism: str
    """A word of ``milena.model.access.ScramMechanism``."""
    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    """Hash of the client's key: checks the proof of a client. It does not authenticate a client."""
    server_key: bytes = field(repr=False)
    """Signs the server's last message. Who has it can pretend to be the server to this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user with a password. The principal is ``User:`` and the name."""

    name: str
    created_index: int
    """Distinguishes the user from an earlier one of the same name, whose tokens are not valid for it."""
    version: int
    """The index of the last command that changed the user."""
    verifiers: tuple[str, ...]
    """Hashes of the valid passwords, in PHC's string form: one, or two while a new password replaces an old one."""
    is_superuser: bool
    """Whether the user may do everything, regardless of entries."""
    scram: tuple[ScramCredential, ...] = field(default=(), metadata={"since": 12})
    """At most one for each mechanism, in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One permission that limits a token. Words as in ``milena.model.access``."""

    resource_type: str
    pattern_type: str
    name: str
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret that authenticates as its user. It allows what both the user and its grants allow."""

    token_id: str
    user: str
    user_index: int
    """``created_index`` of the user."""
    secret_hash: bytes
    """SHA-256 of the secret, which is random: no slow hash is needed."""
    note: str
    """Text for operators."""
    grants: tuple[Grant, ...]
    """The limits of the token; empty: it may do all that the user may."""
    created_ms: WallMs
    expires_ms: WallMs
    """Wall ms; 0: never."""
    parent: str = field(default="", metadata={"since": 11})
    """The token that created it and with which it is deleted. Empty: another credential created it."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """An access control entry. Words as in ``milena.model.access``; source: KIP-11, KIP-290."""

    principal: str
    resource_type: str
    pattern_type: str
    name: str
    operation: str
    permission: str
    host: str


QuotaEntity = tuple[str, str]
"""(user, client_id) that a quota limits. ``quotas.EVERY``: each one without its own quota; empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of one entity. Words as in ``milena.model.quotas``; source: KIP-546."""

    user: str
    client_id: str
    limits: tuple[tuple[str, int], ...]
    """(name of the limit, value), in ascending order; never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change that an operator or a program requested, as it was applied."""

    number: int
    """1, 2, 3, …: a gap in a reader's numbers shows how many entries are missing. 0: older than the numbering."""
    index: int
    """Index of the command in the metadata log."""
    time_ms: WallMs
    principal: str
    """The principal that requested the change. Empty: no credentials were asked for, or the node acted by itself."""
    node_id: int
    """The node that proposed the change."""
    action: str
    change: str
    """The fields of the change: a JSON object, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The whole state. ``index``: of the last applied command. Only ``CorrectTime`` sets ``now_ms`` back."""

    index: int = 0
    now_ms: WallMs = NEVER_MS
    cluster_id: str = ""
    """Empty until the first command of a new cluster."""
    voters: tuple[int, ...] = ()
    feature_level: int = 1
    controller_id: int | None = None
    controller_epoch: int = 0
    brokers: Map[int, Broker] = field(default_factory=Map)
    coordinators_version: int = 0
    """How often the set of brokers that may coordinate groups has changed; see ``groups.coordinators``."""
    topics: Map[str, Topic] = field(default_factory=Map)
    """By topic_id."""
    topic_ids: Map[str, str] = field(default_factory=Map)
    """name → topic_id."""
    partitions: Map[PartitionKey, Partition] = field(default_factory=Map)
    producers: Map[int, AllocatedProducer] = field(default_factory=Map)
    producer_names: Map[str, int] = field(default_factory=Map)
    next_producer_id: int = 1
    producer_blocks: Map[int, ProducerBlock] = field(default_factory=Map)
    """By number."""
    blocks_of: Map[str, tuple[int, ...]] = field(default_factory=Map)
    """principal → the numbers of its blocks, ascending."""
    named_counts: Map[str, int] = field(default_factory=Map)
    """principal → how many named producers belong to it."""
    proposers: Map[int, Proposer] = field(default_factory=Map)
    groups: Map[str, Group] = field(default_factory=Map)
    offsets: Map[str, Map[PartitionKey, CommittedOffset]] = field(default_factory=Map)
    """By group id; only groups that are in ``groups``, and only partitions that exist."""
    offset_count: int = 0
    """Number of entries in ``offsets``, of all groups."""
    consumers: Map[ConsumerKey, RestConsumer] = field(default_factory=Map)
    consumer_counts: Map[str, int] = field(default_factory=Map)
    """principal → how many REST consumers it has; empty: those without a principal."""
    ending: Map[PartitionKey, Map[TransactionKey, Ending]] = field(default_factory=Map)
    """Committed transactions whose markers are not known to be written, by partition; no partition without any."""
    ending_count: int = 0
    """Number of entries in ``ending``, of all partitions."""
    transactional_ids: Map[str, KafkaTransactionalId] = field(default_factory=Map)
    """Transactional ids of Kafka clients, by name."""
    transactional_names: Map[int, str] = field(default_factory=Map)
    """A client's producer id → its transactional id."""
    staging: Map[str, tuple[str, ...]] = field(default_factory=Map)
    """group id → the transactional ids whose open transactions have offsets of the group, ascending."""
    access_mode: str = "off"
    access_version: int = 0
    """The index of the last command that changed permissions; 0: none did."""
    users: Map[str, User] = field(default_factory=Map)
    scram_decoy_key: bytes = field(default=b"", repr=False)
    """Secret from which nodes derive the salt that an unknown user is told. Set with the first SCRAM credential."""
    tokens: Map[str, Token] = field(default_factory=Map)
    """By token_id."""
    tokens_of: Map[str, tuple[str, ...]] = field(default_factory=Map)
    """user → the ids of its tokens, ascending."""
    token_children: Map[str, tuple[str, ...]] = field(default_factory=Map)
    """token_id → the ids of the tokens that it created, ascending."""
    acls: Map[str, tuple[Acl, ...]] = field(default_factory=Map)
    """By principal, in ascending order; no principal without entries."""
    acl_count: int = 0
    """Number of entries in ``acls``, of all principals."""
    quotas: Map[QuotaEntity, Quota] = field(default_factory=Map)
    audited: Map[int, AuditEntry] = field(default_factory=Map)
    """By number: the entries that the audit topic does not have yet. Consecutive, up to ``audit_count``."""
    audit_count: int = 0
    """The last number that an entry got."""
    audited_bytes: int = 0
    """Size of ``audited``, by ``audit.size_of``."""

    def topic(self, name: str) -> Topic | None:
        """Return the topic of this name; None if there is none."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: str, partition: int) -> Partition | None:
        """Return the partition's state; None if it does not exist."""
        return self.partitions.get((topic_id, partition))

    def producer_epoch(self, producer_id: int) -> int | None:
        """Return the current epoch of a producer id; None if the id was never allocated.

        Ids without a name are forgotten once many more were allocated. Their epoch is always 0.
        """
        producer = self.producers.get(producer_id)
        if producer is not None:
            return producer.producer_epoch
        return 0 if 0 < producer_id < self.next_producer_id else None

    def live_brokers(self) -> tuple[int, ...]:
        """Return the ids of brokers that are not fenced, ascending."""
        return tuple(sorted(b.broker_id for b in self.brokers.values() if not b.is_fenced))
