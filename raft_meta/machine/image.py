"""The image: everything the cluster agrees on, at one index of the metadata log.

An image never changes: every command makes a new one that shares almost all of the old (persistent maps), so a
snapshot is a reference and no reader ever sees half a change. Maps are ``immutables.Map``; sequences are tuples.
"""

from dataclasses import dataclass, field

from immutables import Map

from milena.model.types import WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One registered broker.

    ``broker_epoch`` is the index of the registration that made it: it grows with every restart and fences what
    an earlier life of the broker still has under way. ``directory_id`` names the data directory; another one
    means that every replica it held is gone.
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

    The broker stores a new epoch before it asks to be unfenced; until then a crash may leave the directory at
    any epoch in [stored_epoch, broker_epoch], and each of them proves that it is the same directory.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A replica whose recovery cut something, and where its log ends: (last_epoch, log_end_offset)."""

    broker_id: int
    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition on its way to other brokers. Source: KIP-455."""

    target: tuple[int, ...]
    """The replicas that it shall have, preferred leader first."""
    former: tuple[int, ...]
    """The replicas that it had, and has again when this is cancelled."""
    is_started: bool
    """Until then it waits for others, and the new replicas do not exist."""
    max_concurrent: int
    """It starts when fewer partitions than this are moving; 0: at once."""
    throttle_bytes_per_s: int
    """Bytes/s that each leader's node may send its new replicas; 0: as that node is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Leadership and replica state of one partition.

    Invariants:
        isr is a subset of replicas and never empty. leader is None or a member of isr that is not fenced.
        leader_epoch rises with every change of leader (to None included) and when replicas leave: what a removed
        replica once acknowledged must not count for the empty one that may come in its place. partition_epoch
        rises with every change.
        The last member of isr is never removed without an operator.
        A suspect or damaged broker is not in isr unless it was the only choice left: suspects and damaged are
        in isr, and both are empty while there is a leader; a damaged broker is alone in isr.
        eligible is a subset of replicas apart from isr, and empty unless there is a leader and fewer brokers
        in isr than min.insync.replicas.
        isr, eligible and damaged stand in the order of replicas, suspects in that of broker ids.
    """

    replicas: tuple[int, ...]
    """In order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    suspects: tuple[Suspect, ...] = ()
    damaged: tuple[int, ...] = ()
    """Broker ids whose copy is lost or fails checksums below its recovery point: not electable."""
    eligible: tuple[int, ...] = ()
    """Brokers that left isr while it was, or thereby became, smaller than min.insync.replicas, or that were not alive
    when the partition was made with so small an isr.

    Nothing is committed while isr is that small, so they hold every committed record and may be elected as
    members of isr may. They return to isr when the leader is lost. Source: KIP-966, eligible leader replicas.
    """
    unclean_epoch: int = -1
    """The last leader_epoch that began with an unclean election: followers may truncate below their
    checkpointed high watermark when they enter an epoch <= this one from an older epoch."""
    moving: Reassignment | None = field(default=None, metadata={"since": 2})
    """While it runs, replicas are ``former`` and then those of ``target`` that are new, each of which joins isr by
    catching up, as any replica does."""

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas without those that are only being added."""
        return self.replicas if self.moving is None else self.moving.former

    @property
    def is_complete(self) -> bool:
        """Whether every replica is in sync under a leader, none of them doubtful, and none about to come."""
        return (
            self.leader is not None
            and set(self.isr) == set(self.replicas)
            and self.moving is None
            and not self.suspects
            and not self.damaged
        )

    def names(self, broker_id: int) -> bool:
        """Whether the broker holds a replica, or is about to."""
        target = () if self.moving is None else self.moving.target
        return broker_id in self.replicas or broker_id in target


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. ``configs`` holds only what was set; defaults are in ``machine.configs``."""

    topic_id: str
    """32 hex digits, chosen by the proposer; a re-created topic has another one."""
    name: str
    partition_count: int
    replication_factor: int
    configs: Map[str, str]
    created_ms: WallMs
    growths: tuple[tuple[int, int], ...] = field(default=(), metadata={"since": 6})
    """When it was given partitions of late, the oldest first: how many it had before, and the wall ms."""
    has_own_keys: bool = field(default=False, metadata={"since": 11})
    """An idempotency key in it belongs to the principal that sends it: another principal's is another key. It holds
    from the topic's first record on, so that a key means the same to every node, before and after an upgrade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedProducer:
    """An allocated producer id."""

    producer_id: int
    producer_epoch: int
    name: str | None
    last: str = field(default="", metadata={"since": 6})
    """How the transaction of the epoch before ended: ``committed`` or ``aborted``. Empty: nobody ended it, since this
    epoch is the first, or came when the name was taken over."""
    used_ms: WallMs = field(default=WallMs(0), metadata={"since": 8})
    """When the name of one that writes transactions last began or ended one; 0: of others, which are kept for ever."""
    principal: str = field(default="", metadata={"since": 11})
    """The principal that reserved the present epoch. Empty: it was reserved where no caller was asked for credentials,
    by a node for itself, or below the feature level that stores principals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBlock:
    """Producer ids without a name that one principal may use: ``IDS_PER_BLOCK`` from ``number * IDS_PER_BLOCK`` on."""

    number: int
    principal: str
    used: int
    """How many of them were given out; the next one is given out next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer:
    """Late proposals of one broker's latest incarnation, to apply a retried command only once.

    ``incarnation`` grows with every start of the broker's process. ``window`` maps the last sequences to their
    encoded responses; sequences at or below ``floor`` are too old to tell and are refused.
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

    ``held`` is what the member may be working on: what it was given, and has not said (or proved by its end) that it
    let go. It works on what is in ``held`` and in ``target``; the rest of ``held`` it is asked to give back, the rest
    of ``target`` waits for its present holders.
    """

    member_id: str
    instance_id: str | None
    """Names the member across restarts of its process (KIP-345): its successor takes over what it holds."""
    is_rest: bool
    """A REST consumer: the coordinator speaks for it, and it lives as long as ``RestConsumer`` of this name."""
    client_id: str
    host: str
    topics: tuple[str, ...]
    """Names subscribed to, ascending; they need not exist yet."""
    pattern: str | None
    """A regular expression that whole names of topics match; None: only ``topics``."""
    assignor: str
    """What the member wants partitions to be shared out by; the group takes the most wanted."""
    session_ms: int
    rebalance_ms: int
    """How long it may take to give back what it is asked for."""
    member_epoch: int
    """The generation that it has reached: it holds nothing any more that is not its target there."""
    held: PartitionSet
    target: PartitionSet
    predecessors: tuple[str, ...] = field(default=(), metadata={"since": 11})
    """Ids of the members whose place it took under its instance id, the latest one last. Their processes may still be
    there, and are told to stop whatever they ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group: who is in it, and who shall read what.

    Invariants:
        No partition is held by two members, nor the target of two.
        A member's epoch is at most the generation; where it is equal, held is a subset of target.
        Members stand in ascending order of their ids; instance ids are distinct.
        Every partition named exists.
    """

    group_id: str
    version: int
    """The index of the last command that changed the group: its coordinator compares and sets."""
    generation: int
    """Rises whenever target assignments are made anew."""
    assignor: str
    """By which the present targets were made; empty before the first."""
    members: tuple[GroupMember, ...]
    emptied_ms: WallMs
    """When its last member left (0 while it has some); its offsets are kept for offsets.retention.minutes from then
    on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Where a group goes on in a partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int
    """Of the record before it, -1: not told."""
    metadata: str
    """Whatever the consumer wants to remember with it."""
    commit_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class RestConsumer:
    """A consumer that lives behind the HTTP API, in the state so that it outlives the node that made it.

    At most one of subscription (``topics`` or ``pattern``) and manual assignment (``assigned``) is set.
    """

    group_id: str
    instance: str
    created_index: int
    """Tells it from an earlier one of the same name."""
    format: str
    auto_offset_reset: str
    is_auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: PartitionSet = ()
    principal: str = field(default="", metadata={"since": 8})
    """Whose it is. Empty: nobody was asked who makes it."""
    commits_next: bool = field(default=False, metadata={"since": 11})
    """Offsets that its client commits name the next record to read, not the last one that was read."""


ConsumerKey = tuple[str, str]
"""(group_id, instance)"""


TransactionKey = tuple[int, int]
"""(producer_id, producer_epoch): no two transactions share one, since the end of each raises the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionExtent:
    """What a transaction wrote in one partition: offsets in [base_offset, end_offset), with others' records between."""

    topic_id: str
    partition: int
    base_offset: int
    """Of its first record, inclusive; -1: not told."""
    end_offset: int
    """After its last record, exclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A committed transaction, at a partition whose log is not known yet to say so.

    It is committed there below ``end_offset``, and aborted from there on.
    """

    end_offset: int
    extents: tuple[TransactionExtent, ...] = ()
    """Everything that it wrote, if an idempotency key of its is at home in this partition; otherwise empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody with a password. The principal is ``User:`` and the name."""

    name: str
    created_index: int
    """Tells it from an earlier one of the same name, whose tokens do not serve it."""
    version: int
    """The index of the last command that changed it."""
    verifiers: tuple[str, ...]
    """Hashes of the passwords that are taken, in PHC's string form: one, or two while one follows the other."""
    is_superuser: bool
    """May do everything, whatever entries say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A part of what a token is good for. Words as in ``milena.model.access``."""

    resource_type: str
    pattern_type: str
    name: str
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret that speaks for its user, as far as both may."""

    token_id: str
    user: str
    user_index: int
    """``created_index`` of the user."""
    secret_hash: bytes
    """SHA-256 of the secret, which is random: no slow hash is needed."""
    note: str
    """For people."""
    grants: tuple[Grant, ...]
    """Empty: all that the user may."""
    created_ms: WallMs
    expires_ms: WallMs
    """0: never."""
    parent: str = field(default="", metadata={"since": 11})
    """The token that made it, with which it goes. Empty: another credential made it."""


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
"""(user, client_id): whom a quota binds. ``quotas.EVERY``: each without one of its own; empty: whichever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one entity may take. Words as in ``milena.model.quotas``; source: KIP-546."""

    user: str
    client_id: str
    limits: tuple[tuple[str, int], ...]
    """What is bounded, in ascending order, and by how much; never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change that an operator or a program asked for, as it was applied."""

    number: int
    """1, 2, 3, …: a gap among those that somebody holds says how many are missing. 0: from before they were counted."""
    index: int
    """Of the command in the metadata log."""
    time_ms: WallMs
    principal: str
    """On whose behalf. Empty: nobody was asked, or the node did it by itself."""
    node_id: int
    """Which node proposed it."""
    action: str
    change: str
    """What of it: a JSON object, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The whole state. ``index`` is that of the last command applied; only ``CorrectTime`` sets ``now_ms`` back."""

    index: int = 0
    now_ms: WallMs = NEVER_MS
    cluster_id: str = ""
    """Empty until the first command of a new cluster."""
    voters: tuple[int, ...] = ()
    feature_level: int = 1
    controller_id: int | None = None
    controller_epoch: int = 0
    brokers: Map[int, Broker] = field(default_factory=Map)
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
    """principal → how many named producers are its own."""
    proposers: Map[int, Proposer] = field(default_factory=Map)
    groups: Map[str, Group] = field(default_factory=Map)
    offsets: Map[str, Map[PartitionKey, CommittedOffset]] = field(default_factory=Map)
    """By group id; only groups that are in ``groups``, and only partitions that exist."""
    offset_count: int = 0
    """How many there are in ``offsets``."""
    consumers: Map[ConsumerKey, RestConsumer] = field(default_factory=Map)
    ending: Map[PartitionKey, Map[TransactionKey, Ending]] = field(default_factory=Map)
    """Committed transactions whose markers are to be written, by partition; only partitions that have some."""
    ending_count: int = 0
    """How many there are in ``ending``."""
    access_mode: str = "off"
    access_version: int = 0
    """The index of the last command that changed who may do what; 0: none did."""
    users: Map[str, User] = field(default_factory=Map)
    tokens: Map[str, Token] = field(default_factory=Map)
    """By token_id."""
    tokens_of: Map[str, tuple[str, ...]] = field(default_factory=Map)
    """user → the ids of its tokens, ascending."""
    token_children: Map[str, tuple[str, ...]] = field(default_factory=Map)
    """token_id → the ids of the tokens that it made, ascending."""
    acls: Map[str, tuple[Acl, ...]] = field(default_factory=Map)
    """By principal, in ascending order; only principals that have some."""
    acl_count: int = 0
    """How many there are in ``acls``."""
    quotas: Map[QuotaEntity, Quota] = field(default_factory=Map)
    audited: Map[int, AuditEntry] = field(default_factory=Map)
    """By number: those that the audit topic does not have yet. Consecutive, up to ``audit_count``."""
    audit_count: int = 0
    """How many changes were numbered ever."""
    audited_bytes: int = 0
    """What ``audited`` takes up, by ``audit.size_of``."""

    def topic(self, name: str) -> Topic | None:
        """The topic of this name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: str, partition: int) -> Partition | None:
        """The partition's state."""
        return self.partitions.get((topic_id, partition))

    def producer_epoch(self, producer_id: int) -> int | None:
        """The current epoch of an allocated producer id; None: it was never allocated.

        Ids without a name are forgotten once many more were allocated; their epoch is always 0.
        """
        producer = self.producers.get(producer_id)
        if producer is not None:
            return producer.producer_epoch
        return 0 if 0 < producer_id < self.next_producer_id else None

    def live_brokers(self) -> tuple[int, ...]:
        """Ids of brokers that are not fenced, ascending."""
        return tuple(sorted(b.broker_id for b in self.brokers.values() if not b.is_fenced))
