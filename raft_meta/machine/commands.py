"""Commands: what may be written to the metadata log. Plain frozen values; ``machine.codec`` makes them bytes.

The proposer decides everything that could differ between nodes or versions: clock, ids, placement, who leads.
``apply`` only checks those decisions against the image and refuses what is stale.
"""

from dataclasses import dataclass

from storage.types import WallMs


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
class AllocateProducer:
    """A producer id; a name that is known already keeps its id and gets the next epoch.

    Response: (producer_id, producer_epoch).
    """

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckImage:
    """The hash of the controller's image at ``index``; a node that has another one at that index stops.

    Judged only when no other command came in between; otherwise it does nothing.
    """

    index: int
    image_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Raise the level; refused unless every registered broker supports it."""

    feature_level: int


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
    | CheckImage
    | SetFeatureLevel
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A command on its way through the log, with the proposer's identity for deduplication.

    (proposer, incarnation, sequence) name the command: applied once, its response repeated to a retry.
    Incarnations grow from start to start; a lower one than the latest is refused. Sequences start at 1 in every
    incarnation, and fewer than ``proposers.WINDOW`` may be under way. ``now_ms`` is the proposer's wall clock.
    """

    proposer: int
    incarnation: int
    sequence: int
    now_ms: WallMs
    command: Command
