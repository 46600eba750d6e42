"""Commands: what may be written to the metadata log. Plain frozen values; ``machine.codec`` makes them bytes.

The proposer decides everything that could differ between nodes or versions: clock, ids, placement, who leads.
``apply`` only checks those decisions against the image and refuses what is stale.
"""

from dataclasses import dataclass, field

from milena.model.types import WallMs
from raft_meta.machine.image import Acl, Grant, GroupMember, RestConsumer, TransactionExtent


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
    """A replica that did not come back sound: where its log ends (suspect), or that it is damaged."""

    topic_id: str
    partition: int
    is_damaged: bool
    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker starts. It comes in fenced, leads nothing, and gets a new epoch (= this command's index).

    ``last_broker_epoch`` is what its directory remembers (-1: nothing). Unless directory_id and
    last_broker_epoch match what the image has for the broker, the directory is not the one that it had: the
    broker leaves every ISR that has another member, and is marked damaged where it is the last one. A crash
    between a registration and the directory's note of it is a match (see ``Broker.stored_epoch``).
    Replicas reported damaged are treated likewise; suspect ones are marked.
    ``was_clean_stop`` is informative. Response: the new broker epoch.
    Refused (BrokerIdInUseError) when the id belongs to a live, unfenced broker with another directory_id.
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

    Skipped when the partition has moved on. ``leader`` None: no eligible replica is left; isr must be the old one,
    since a member leaves only in favour of a leader. A leader that is not in the old isr (or among the eligible)
    is refused unless ``is_unclean`` and the topic allows it.
    """

    topic_id: str
    partition: int
    partition_epoch: int
    leader: int | None
    isr: tuple[int, ...]
    is_unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """The controller saw the broker caught up with the image. Both epochs must be current.

    The broker's wish to be unfenced proves that its directory has stored the broker epoch.
    """

    controller_epoch: int
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """The broker's session ended. ``changes`` move what it led and take it out of every ISR with others in it.

    What the changes leave behind led by the broker loses its leader all the same.
    Response: per change, whether it was taken (tuple of bool).
    """

    controller_epoch: int
    broker_id: int
    broker_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker:
    """The broker is about to stop: no new leadership for it; ``changes`` as for a fence. It stays unfenced.

    Response: per change, whether it was taken (tuple of bool).
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
class ElectLeaders:
    """Elections of any other cause. Response: per change, whether it was taken (tuple of bool)."""

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
    """A leader's wish: compare and set on leader_epoch, partition_epoch and every member's broker epoch.

    A member that is fenced or draining is refused (the leader itself may be draining). A member that joins stops
    being suspect or damaged. Every change that is taken raises partition_epoch, also one that names the same isr.
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
    """Where one partition shall be. What is under way for it already goes on to this target instead.

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

    The controller starts, hands over and finishes each (``StepReassignments``). Replicas in another order, and no
    new ones, are taken at once.
    """

    targets: tuple[TargetReplicas, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentStep:
    """One step of a reassignment: compare and set on partition_epoch.

    ``kind`` is one of

    - ``start``: the new replicas come to be, out of sync;
    - ``finish``: every target is in sync; what is no target leaves;
    - ``cancel``: the partition is where it was. Refused when too few of those in sync would be left.

    ``leader``: who leads after a finish or cancel, None only where nobody led before.
    """

    topic_id: str
    partition: int
    partition_epoch: int
    kind: str
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReassignments:
    """Steps of reassignments under way. Response: per step, "" or the error's code."""

    steps: tuple[ReassignmentStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducer:
    """A producer id; a name that is known already keeps its id and gets the next epoch.

    A name that begins transactions is forgotten when it is not used for long (``ForgetProducers``). The id belongs to
    ``principal`` from then on; empty: to no caller in particular. Response: (producer_id, producer_epoch).
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
    """A mark in the log, with the hash of the controller's image at the mark before, which is at ``index``.

    It changes nothing. A node that kept that mark and has another image there stops (``marks``). Index 0: no mark.
    """

    index: int
    image_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectTime:
    """Set the applied time back to ``now_ms``, and with it each time that lies after it.

    It undoes that a proposer's clock was ahead. A time that is not earlier than the applied one changes nothing.
    """

    controller_epoch: int
    now_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Raise the level; refused unless every registered broker supports it."""

    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroup:
    """A group's next state, as its coordinator worked it out: compare and set on ``version`` (0: no group yet).

    ``members`` are the members that are new or differ, whole; ``left`` the ids of those that are gone; all others
    stay as they are. Refused when

    - the outcome breaks an invariant of ``image.Group`` (a partition held twice, say);
    - the generation or a member's epoch goes back;
    - a target changes within a generation: what makes targets anew raises it;
    - a member comes to hold what is not its target;
    - a member that joins is not under an epoch above the generation before: no earlier member of its id had that
      epoch, so that a commit of that one is refused. A successor by ``instance_id`` is a new member as well.

    GroupChangedError stands also for a partition that does not exist: its topic was deleted on the way.
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

    Accepted from a member under its present epoch for partitions that it holds. Without a member (None, epoch -1):
    accepted while the group has no members, or is not there yet, which makes it.
    """

    group_id: str
    member_id: str | None
    member_epoch: int
    offsets: tuple[OffsetCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commits of groups that one broker coordinates. Response: per commit, "" or the error's code.

    Refused as a whole when the broker has registered anew; a group that it does not coordinate is one commit's error.
    """

    broker_id: int
    broker_epoch: int
    commits: tuple[GroupCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExpiry:
    """Offsets of one group to forget: those last committed before ``before_ms`` while the group is empty.

    A group without members and offsets is forgotten as well.
    """

    group_id: str
    before_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """Forget offsets that nobody came back for. Response: per group, how many were forgotten.

    A group that has members again, or was emptied at or after its ``before_ms``, is left as it is. Refused as a whole
    when the broker does not coordinate all of the groups.
    """

    broker_id: int
    broker_epoch: int
    groups: tuple[GroupExpiry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Forget a group and its offsets; refused while it has members."""

    broker_id: int
    broker_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConsumer:
    """Make a REST consumer (``is_new``) or change its subscription or assignment.

    A new one's ``created_index`` is set by ``apply``, which refuses a name that is taken; a change compares it.
    Response: the created_index.
    """

    broker_id: int
    broker_epoch: int
    is_new: bool
    consumer: RestConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerName:
    """One REST consumer, and which of its name."""

    group_id: str
    instance: str
    created_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConsumers:
    """Forget REST consumers, each with its membership, in one step; those that are gone or others are passed over.

    Refused as a whole when the broker does not coordinate all of the groups.
    Response: per consumer, 1 if it was there.
    """

    broker_id: int
    broker_epoch: int
    consumers: tuple[ConsumerName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpReplicas:
    """A broker found copies of its own damaged while it runs: each leaves isr before it is restored.

    Each change names who leads then, and an isr without the broker. What it acknowledged until now counts no more: the
    leader epoch rises even where another one leads all the while, so that only what the broker fetches from then on can
    bring it back into isr. Response: per change, the code of the refusal, "" if it was taken.
    """

    broker_id: int
    broker_epoch: int
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """The end of one transaction, which is named by its producer id and epoch.

    ``extents``: what it wrote, at most one for each partition. What a commit does not name is aborted. ``is_keyed``: it
    was written under idempotency keys, whose homes are the partitions of the first ``home_count`` extents. ``offsets``
    are committed along with it. An abort has neither.

    ``leader_epochs``: of each extent, under which its leader said what it holds; the end counts only while that one
    leads. Empty: the quorum confirmed the leaders when they said so.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    is_keyed: bool
    extents: tuple[TransactionExtent, ...]
    offsets: tuple[GroupCommit, ...]
    leader_epochs: tuple[int, ...] = field(default=(), metadata={"since": 9})
    home_count: int = field(default=1, metadata={"since": 10})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions:
    """Decide transactions, each by itself and in this order. Response: per end, "" or the error's code.

    An end that was carried out already is answered "" again; the other one after it, ``transaction_committed`` or
    ``transaction_aborted``. An end that makes no sense or is above a bound (``invalid_request``, ``request_too_large``,
    ``too_many_transactions``) leaves the transaction open, and so does one whose leaders have changed
    (``stale_leader_epoch``); a commit that topics or groups refuse aborts it.
    """

    ends: tuple[TransactionEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedMarker:
    """A partition whose committed log says how this transaction ended."""

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishMarkers:
    """Forget endings that logs have; those that are gone already are passed over. Response: how many were there."""

    markers: tuple[FinishedMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitAccess:
    """The first user, who is a superuser, and the cluster's mode; nothing where there is a user already.

    Response: 1 if it was done.
    """

    name: str
    verifier: str
    access_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAccessMode:
    """How much the cluster asks of those who call it; anything but ``off`` needs a superuser to be there."""

    access_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutUser:
    """Make a user (``version`` 0), or change one: compare and set on its version. Response: the new version.

    The last superuser stays one while access is asked for. ``revokes_tokens``: its tokens go.
    """

    name: str
    version: int
    verifiers: tuple[str, ...]
    is_superuser: bool
    revokes_tokens: bool = field(default=False, metadata={"since": 11})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser:
    """Forget a user, with its tokens and the entries that name it, so that a later one of its name gets neither."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """A token of a user; the secret itself stays with the client that asked for it.

    ``parent``: the token that asks for it. It lives no longer than that, and is deleted with it.
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
    """Forget tokens, and those that they made; those that are gone already are passed over. Response: how many went."""

    token_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls:
    """Entries that come and go, at once; those that are there, or gone, already are passed over.

    Response: how many came, and how many went.
    """

    added: tuple[Acl, ...]
    removed: tuple[Acl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuota:
    """Bound what an entity may take, or no longer (None); what is not named stays. See ``image.Quota``.

    Response: how many bounds it has.
    """

    user: str
    client_id: str
    changes: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAudited:
    """The audit topic has the entries up to this number, inclusive. Response: how many there were."""

    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAction:
    """Tell the audit log of something that changes no image: records that are deleted, callers that were turned away.

    ``change`` is a JSON object. Nothing else comes of it.
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
    | CommitOffsets
    | ExpireOffsets
    | DeleteGroup
    | PutConsumer
    | DeleteConsumers
    | GiveUpReplicas
    | EndTransactions
    | FinishMarkers
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
    """A command on its way through the log, with the proposer's identity for deduplication.

    (proposer, incarnation, sequence) name the command: applied once, its response repeated to a retry.
    Incarnations grow from start to start; a lower one than the latest is refused. Sequences start at 1 in every
    incarnation, and fewer than ``proposers.WINDOW`` may be under way. ``now_ms`` is the proposer's wall clock.
    ``principal``: on whose behalf, where somebody was asked; only from feature level 8 on.
    """

    proposer: int
    incarnation: int
    sequence: int
    now_ms: WallMs
    command: Command
    principal: str = ""
