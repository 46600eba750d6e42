"""The commands of the metadata log. They are plain frozen values; ``machine.codec`` encodes them.

The proposer decides everything that could differ between nodes or versions: clock, ids, placement, leaders. ``apply``
only checks those decisions against the image, and refuses stale ones.
"""

from dataclasses import dataclass, field

from milena.model.types import WallMs
from raft_meta.machine.image import (
    Acl,
    ClassicGroup,
    Grant,
    GroupMember,
    PartitionKey,
    RestConsumer,
    ScramCredential,
    TransactionExtent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitCluster:
    """The first command of a cluster. Response: the cluster id (the earlier one if it lost the race)."""

    cluster_id: str
    voters: tuple[int, ...]
    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimController:
    """A new Raft leader makes itself controller. Response: the new controller epoch."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """A replica that is not sound after a start: the end of its log if it is suspect, or that it is damaged."""

    topic_id: str
    partition: int
    is_damaged: bool
    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker starts. It is fenced at first, leads nothing, and gets a new epoch (= this command's index).

    ``last_broker_epoch`` is the epoch that its directory has stored (-1: none). If directory_id or
    last_broker_epoch does not match the image, the broker has lost its directory. It then leaves every ISR that has
    another member, and is marked damaged where it is the last member. A crash between a registration and the
    directory's note of it is a match (see ``Broker.stored_epoch``). Replicas reported damaged are treated in the
    same way; suspect ones are marked. ``was_clean_stop`` is informative. Response: the new broker epoch.
    Refused (BrokerIdInUseError) if the id belongs to a live, unfenced broker with another directory_id.
    """

    broker_id: int
    directory_id: str
    last_broker_epoch: int
    incarnation: int
    api_url: str
    peer_host: str
    peer_port: int
    rack: str | None
    feature_min: int
    feature_max: int
    was_clean_stop: bool
    reports: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """The new leadership of one partition, decided by the controller from ``partition_epoch``.

    Skipped if the partition has another partition_epoch. ``leader`` None: no eligible replica is left; isr must be
    the old one, because a member leaves isr only in favour of a leader. A leader that is neither in the old isr nor
    eligible is refused, unless ``is_unclean`` is set and the topic allows it.
    """

    topic_id: str
    partition: int
    partition_epoch: int
    leader: int | None
    isr: tuple[int, ...]
    is_unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """The controller saw that the broker has caught up with the image. Both epochs must be current.

    The broker's request to be unfenced proves that its directory has stored the broker epoch.
    """

    controller_epoch: int
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """The broker's session ended. ``changes`` move its leaderships, and remove it from every ISR with other members.

    A partition that it leads after the changes loses its leader all the same.
    Response: per change, whether it was applied (tuple of bool).
    """

    controller_epoch: int
    broker_id: int
    broker_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker:
    """The broker is about to stop: it gets no new leadership. It stays unfenced. ``changes`` as in ``FenceBroker``.

    Response: per change, whether it was applied (tuple of bool).
    """

    controller_epoch: int
    broker_id: int
    broker_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """Forget a fenced broker that holds no replica."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKafkaAddresses:
    """A broker tells where Kafka clients reach it, in its present broker epoch; a registration forgets it.

    ``addresses``: (listener, host, port), ordered by listener, at most ``brokers.LISTENERS_MAX``. Empty: nowhere.
    """

    broker_id: int
    broker_epoch: int
    addresses: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Elections for any other reason. Response: per change, whether it was applied (tuple of bool)."""

    controller_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic. ``placement[p]`` = replicas of partition p, preferred leader first. Response: topic id."""

    topic_id: str
    name: str
    configs: tuple[tuple[str, str], ...]
    placement: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete a topic by id."""

    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Add partitions at the end; refused unless the topic has ``partition_count`` now."""

    topic_id: str
    partition_count: int
    placement: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Set (value) or reset (None) configs of a topic."""

    topic_id: str
    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A member of a proposed ISR and the broker epoch under which it caught up."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A leader proposes a new ISR: compare and set on leader_epoch, partition_epoch and every member's broker epoch.

    The proposal is refused if a member is fenced or draining. The leader itself may be draining. If the change is
    applied, the partition loses its marks "suspect" and "damaged", and its partition_epoch rises, even if the ISR
    stays the same.
    """

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr:
    """ISR changes of partitions that one broker leads. Response: per change, "" or the error's code."""

    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReplicas:
    """The new replicas of one partition. A move of the partition that is in progress continues to this target.

    Numbers as in ``image.Reassignment``.
    """

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    max_concurrent: int
    throttle_bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions:
    """Move partitions to other brokers. Response: per target, "" or the error's code.

    The controller starts and finishes each move (``StepReassignments``). A target that only reorders the replicas is
    applied at once.
    """

    targets: tuple[TargetReplicas, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentStep:
    """One step of a reassignment: compare and set on partition_epoch.

    ``kind`` is one of

    - ``start``: the new replicas are added, out of sync;
    - ``finish``: every target is in sync; replicas that are no target are removed;
    - ``cancel``: the former replicas are restored. Refused if too few in-sync replicas would be left.

    ``leader``: the leader after a finish or cancel; None only if there was no leader before.
    """

    topic_id: str
    partition: int
    partition_epoch: int
    kind: str
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReassignments:
    """Steps of reassignments in progress. Response: per step, "" or the error's code."""

    steps: tuple[ReassignmentStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducer:
    """Allocate a producer id. A known name keeps its id and gets the next epoch.

    A name that begins transactions is forgotten after long disuse (``ForgetProducers``). From now on the id belongs to
    ``principal``; empty: to no particular caller. Response: (producer_id, producer_epoch).
    """

    name: str | None
    is_transactional: bool = field(default=False, metadata={"since": 8})
    principal: str = field(default="", metadata={"since": 11})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetProducers:
    """Forget names that begin transactions and were not used after ``unused_since_ms``. Response: how many."""

    producer_ids: tuple[int, ...]
    unused_since_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckImage:
    """A mark in the log, with the hash of the controller's image at the previous mark, which is at ``index``.

    It changes nothing. A node that kept the previous mark and has a different image there stops (``marks``). Index 0:
    there is no previous mark.
    """

    index: int
    image_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectTime:
    """Set the applied time, and each stored time that is later, back to ``now_ms``.

    The command undoes the effect of a proposer's clock that was ahead. A ``now_ms`` that is not earlier than the
    applied time changes nothing.
    """

    controller_epoch: int
    now_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Raise the level; refused unless every registered broker supports it."""

    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroup:
    """A group's next state, computed by its coordinator: compare and set on ``version`` (0: no group yet).

    ``members`` has the new or changed members, complete; ``left`` the ids of the members that are gone. All other
    members stay unchanged. Refused if

    - the outcome breaks an invariant of ``image.Group`` (for example, a partition held twice);
    - the generation or a member's epoch goes back;
    - a target changes within a generation: new targets need a new generation;
    - a member gets a partition that is not its target;
    - a member joins under an epoch that is not above the previous generation. No earlier member with its id had such
      an epoch, so a commit of an earlier member is refused. A successor by ``instance_id`` is a new member, too.

    GroupChangedError is also raised for a partition that does not exist: its topic was deleted in the meantime.
    Response: the new version.
    """

    broker_id: int
    broker_epoch: int
    group_id: str
    version: int
    generation: int
    assignor: str
    members: tuple[GroupMember, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutClassicGroup:
    """A generation of a classic group that its leader has finished: compare and set on ``version`` (0: no group yet).

    Refused if

    - the outcome breaks an invariant of ``image.ClassicGroup``;
    - the group is a server group with members;
    - the generation is not above the present one. It may stay the same if static members, and nothing else, have
      other member ids: their processes started again.

    Response: the new version.
    """

    broker_id: int
    broker_epoch: int
    group_id: str
    version: int
    generation: int
    classic: ClassicGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Forget a group's offsets in these partitions, (topic_id, partition). Source: KIP-496.

    Refused if the group does not exist, or a member of a server group subscribes to one of the topics. For a classic
    group only its coordinator knows the subscriptions: it must check them before. Response: how many were forgotten.
    ``coordinators_version``: that of the image when the coordinator took the request; see ``groups.coordinators``.
    """

    broker_id: int
    broker_epoch: int
    group_id: str
    partitions: tuple[PartitionKey, ...]
    coordinators_version: int = field(default=-1, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """One partition's committed offset, the next to be read; see ``image.CommittedOffset``."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Offsets that one member commits, all of them or none.

    Accepted from a member under its present epoch, for partitions that it holds. The epoch of a member of a classic
    group is the group's generation; only clients know the partitions that it holds. Without a member (None, epoch -1):
    accepted while the group has no members. A group that does not exist is then created.

    ``coordinators_version``: that of the image when the coordinator took the commit; see ``groups.coordinators``. A
    commit that waits for the end of a transaction has none (-1); the transaction fences it.
    """

    group_id: str
    member_id: str | None
    member_epoch: int
    offsets: tuple[OffsetCommit, ...]
    coordinators_version: int = field(default=-1, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commits of groups that one broker coordinates. Response: per commit, "" or the error's code.

    Refused as a whole if the broker has registered again since. For a group that it does not coordinate, only that
    commit is refused.
    """

    broker_id: int
    broker_epoch: int
    commits: tuple[GroupCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExpiry:
    """The offsets of an empty group to forget: those last committed before ``before_ms``.

    A group without members and offsets is forgotten as well.
    """

    group_id: str
    before_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """Forget offsets whose retention is over. Response: per group, how many were forgotten.

    A group that has members again, or was emptied at or after its ``before_ms``, is not changed. Refused as a whole
    if the broker does not coordinate all of the groups.
    """

    broker_id: int
    broker_epoch: int
    groups: tuple[GroupExpiry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Forget a group and its offsets; refused while it has members.

    ``coordinators_version``: as in ``DeleteOffsets``.
    """

    broker_id: int
    broker_epoch: int
    group_id: str
    coordinators_version: int = field(default=-1, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConsumer:
    """Create a REST consumer (``is_new``), or change its subscription or assignment.

    ``apply`` sets the ``created_index`` of a new consumer, and refuses a name that exists. For a change it compares
    the index. ``coordinators_version``: as in ``DeleteOffsets``. Response: the created_index.
    """

    broker_id: int
    broker_epoch: int
    is_new: bool
    consumer: RestConsumer
    coordinators_version: int = field(default=-1, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerName:
    """One REST consumer. ``created_index`` distinguishes it from others of its name."""

    group_id: str
    instance: str
    created_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConsumers:
    """Forget REST consumers, each with its membership, in one step.

    A consumer that is gone, or has another created_index, is skipped. Refused as a whole if the broker does not
    coordinate all of the groups. Response: per consumer, 1 if it existed.
    """

    broker_id: int
    broker_epoch: int
    consumers: tuple[ConsumerName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpReplicas:
    """A running broker found damage in its own copies: each copy leaves isr before it is restored.

    Each change names the next leader, and an isr without the broker. Its earlier acknowledgements count no more: the
    leader epoch rises even if the leader stays the same. So only records that the broker fetches from now on can bring
    it back into isr. Response: per change, the code of the refusal, "" if it was applied.
    """

    broker_id: int
    broker_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTransactionalId:
    """A Kafka client begins under a transactional id: abort the open transaction, and give the client its next epoch.

    ``producer_id`` and ``producer_epoch``: those that the client has now (KIP-360); -1: it has none, and any former
    client is fenced. A repeated request with the former epoch gets the first answer.
    Response: the client's (producer_id, producer_epoch).
    """

    name: str
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlistment:
    """Partitions and groups that join a Kafka client's transaction, and offsets for it. The first one opens it.

    ``partitions``: (topic_id, partition) of records. ``groups``: groups of offsets. ``offsets`` are staged: they take
    effect with the commit. Their group must be enlisted, before or in the same enlistment.
    """

    name: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionKey, ...] = ()
    groups: tuple[str, ...] = ()
    offsets: tuple[GroupCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnlistInTransactions:
    """Enlistments of Kafka clients, each by itself and in this order. Response: per enlistment, "" or the error's code.

    Repeating an enlistment changes nothing.
    """

    enlistments: tuple[Enlistment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """The end of one transaction, which is named by its producer id and epoch.

    ``extents``: the offsets that the transaction wrote, at most one extent per partition. A commit aborts writes that
    it does not name. ``is_keyed``: the transaction was written under idempotency keys, whose homes are the partitions
    of the first ``home_count`` extents. ``offsets`` are committed with it. An abort has neither extents nor offsets.

    ``leader_epochs``: for each extent, the epoch of the leader that reported it. The end is valid only while that
    leader leads. Empty: the quorum confirmed the leaders when they reported.

    ``version``: of the transactional id of Kafka clients whose transaction this is. The end is valid only for that
    version, so it cannot miss what was enlisted. The staged offsets are committed with it. -1: it is no transaction of
    a Kafka client; or the end is an abort that its client did not ask for, and fences the client.
    ``raises_client``: the client gets its next epoch, too (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    is_keyed: bool
    extents: tuple[TransactionExtent, ...]
    offsets: tuple[GroupCommit, ...]
    leader_epochs: tuple[int, ...] = field(default=(), metadata={"since": 9})
    home_count: int = field(default=1, metadata={"since": 10})
    version: int = field(default=-1, metadata={"since": 12})
    raises_client: bool = field(default=False, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions:
    """Decide transactions, each by itself and in this order. Response: per end, "" or the error's code.

    Repeating an end gives "" again. The opposite end gives ``transaction_committed`` or ``transaction_aborted``. An
    end that is invalid or above a bound (``invalid_request``, ``request_too_large``, ``too_many_transactions``) leaves
    the transaction open. So does an end whose leaders have changed (``stale_leader_epoch``). A commit that topics or
    groups refuse aborts the transaction.
    """

    ends: tuple[TransactionEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedMarker:
    """A partition whose committed log has the marker of this transaction."""

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishMarkers:
    """Forget endings whose markers are in the logs. Endings that are gone are skipped. Response: how many existed."""

    markers: tuple[FinishedMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitAccess:
    """Create the first user, a superuser, and set the cluster's mode. Does nothing if a user exists.

    Response: 1 if it was done.
    """

    name: str
    verifier: str
    access_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAccessMode:
    """Set which callers need credentials. Every mode except ``off`` needs an existing superuser."""

    access_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutUser:
    """Create a user (``version`` 0), or change one: compare and set on its version. Response: the new version.

    The last superuser stays a superuser unless the mode is ``off``. ``revokes_tokens``: its tokens are deleted.
    ``decoy_key``: 32 random bytes for ``Image.scram_decoy_key``, used if ``scram`` has the first credentials.
    """

    name: str
    version: int
    verifiers: tuple[str, ...]
    is_superuser: bool
    revokes_tokens: bool = field(default=False, metadata={"since": 11})
    scram: tuple[ScramCredential, ...] = field(default=(), metadata={"since": 12})
    decoy_key: bytes = field(default=b"", repr=False, metadata={"since": 12})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser:
    """Delete a user, with its tokens and the entries that name it, so that a later user of its name gets neither."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Create a token of a user. Only the client that requested the token has the secret itself.

    ``parent``: the token that requested it. The new token expires no later than its parent, and is deleted with it.
    """

    token_id: str
    user: str
    user_index: int
    secret_hash: bytes
    note: str
    grants: tuple[Grant, ...]
    expires_ms: WallMs
    parent: str = field(default="", metadata={"since": 11})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTokens:
    """Delete tokens, and the tokens that they created. Deleted ones are skipped. Response: how many were deleted."""

    token_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls:
    """Add and delete entries in one step. Entries that exist, or are gone, already are skipped.

    Response: how many were added, and how many were deleted.
    """

    added: tuple[Acl, ...]
    removed: tuple[Acl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuota:
    """Set (value) or remove (None) limits of an entity. Limits that are not named stay. See ``image.Quota``.

    Response: how many limits the entity has.
    """

    user: str
    client_id: str
    changes: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAudited:
    """The audit topic has the entries up to this number, inclusive. Response: how many entries were forgotten."""

    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAction:
    """Add an audit entry for an action that changes no image: deleted records, refused callers.

    ``change`` is a JSON object. The command has no other effect.
    """

    action: str
    change: str


Command = (
    InitCluster
    | ClaimController
    | RegisterBroker
    | UnfenceBroker
    | FenceBroker
    | DrainBroker
    | UnregisterBroker
    | SetKafkaAddresses
    | ElectLeaders
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | AlterConfigs
    | AlterIsr
    | AllocateProducer
    | ForgetProducers
    | CheckImage
    | CorrectTime
    | SetFeatureLevel
    | ReassignPartitions
    | StepReassignments
    | AlterGroup
    | PutClassicGroup
    | DeleteOffsets
    | CommitOffsets
    | ExpireOffsets
    | DeleteGroup
    | PutConsumer
    | DeleteConsumers
    | GiveUpReplicas
    | EndTransactions
    | FinishMarkers
    | InitTransactionalId
    | EnlistInTransactions
    | InitAccess
    | SetAccessMode
    | PutUser
    | DeleteUser
    | CreateToken
    | DeleteTokens
    | AlterAcls
    | AlterQuota
    | ForgetAudited
    | NoteAction
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A command in the log, with the proposer's identity for deduplication.

    (proposer, incarnation, sequence) name the command. It is applied once; a retry gets the first response.
    Incarnations grow from start to start; one below the latest is refused. Sequences start at 1 in every
    incarnation, and fewer than ``proposers.WINDOW`` may be in flight. ``now_ms`` is the proposer's wall clock.
    ``principal``: the authenticated principal that requested the command; only from feature level 8 on.
    """

    proposer: int
    incarnation: int
    sequence: int
    now_ms: WallMs
    command: Command
    principal: str = ""
