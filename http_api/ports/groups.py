"""Protocols of what handlers need from a node for consumer groups and REST consumers.

``node.groups`` and ``node.consumers`` implement them; tests have in-memory ones. Any node serves any call: what the
group's coordinator alone may decide is forwarded to it. Names of topics are resolved by the implementation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol

TopicPartition = tuple[str, int]
"""(topic's name, partition)"""


@unique
class Reset(StrEnum):
    """Places that an offset may be reset to by name."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member's word about itself. Source: KIP-848, ConsumerGroupHeartbeat.

    ``member_epoch`` 0 joins (a ``member_id`` of None is given one), -1 leaves, else the epoch last heard.
    None for what may change (topics and pattern, assignor, owned): as before. ``owned`` are the partitions that the
    member works on, from the answer on that assigned them: it tells the coordinator what has been given back, so what
    is assigned and about to be taken belongs to it too.
    """

    member_id: str | None
    member_epoch: int
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    topics: Sequence[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    owned: Sequence[TopicPartition] | None = None
    wait_ms: int = 0
    """Hold the answer back this long unless it differs from what the member knows: no rebalance waits for a beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """Partitions that a member may work on from now on: it gives back what else it owns, and says so by a heartbeat."""

    member_id: str
    member_epoch: int
    generation: int
    heartbeat_interval_ms: int
    assignment: Sequence[TopicPartition]
    pending: Sequence[TopicPartition] = ()
    """Its own as well, once the members that hold them let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """The offset of the next record to read in a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommit:
    """A committed offset."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


@unique
class GroupState(StrEnum):
    """As v3 names them."""

    EMPTY = "EMPTY"
    RECONCILING = "RECONCILING"
    STABLE = "STABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member, and what it works on (``assignment``), is to give back, and waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    is_rest: bool
    topics: Sequence[str]
    pattern: str | None
    member_epoch: int
    assignment: Sequence[TopicPartition]
    revoking: Sequence[TopicPartition]
    pending: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """A group as the quorum knows it, in brief. ``coordinator``: broker id, None while there is none."""

    group_id: str
    state: GroupState
    generation: int
    assignor: str
    coordinator: int | None
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(GroupHead):
    """A group with its members, and what it has committed."""

    members: Sequence[MemberDescription]
    offsets: Sequence[PartitionCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTarget:
    """Where to: a name, an offset, or the first record at or after a wall time in ms; one of them is set."""

    name: Reset | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


class GroupsPort(Protocol):
    """Consumer groups."""

    async def heartbeat(self, group: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Join, stay or leave.

        Raises:
            MemberNotFoundError: expired or never joined; join anew, owning nothing.
            MemberFencedError: another process has its instance id since; stop.
            StaleMemberEpochError: it has not reached this epoch.
            InvalidConsumerError, LimitReachedError: settings out of range; too many members.
            NotCoordinatorError, NoQuorumError: not now; nothing changed.
        """

    async def commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Commit all of these, or none.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: nothing was committed.
            StaleMemberEpochError, MemberNotFoundError, MemberFencedError: fenced; nothing was committed.
            GroupNotEmptyError: without a member, while the group has some.
            FateUnknownError: they may yet be committed.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        """Committed offsets, of these partitions or all; partitions without a commit are left out.

        Current: what any node acknowledged is seen.

        Raises:
            GroupNotFoundError: there is no such group.
        """

    async def describe(self, group: str) -> GroupDescription:
        """The group, its members and offsets.

        Raises:
            GroupNotFoundError: there is no such group.
        """

    async def groups(self) -> Sequence[GroupHead]:
        """All groups, in order of their ids, without members and offsets."""

    async def delete(self, group: str) -> None:
        """Forget the group and its offsets.

        Raises:
            GroupNotFoundError, GroupNotEmptyError: nothing was deleted.
        """

    async def places(
        self, topic: str, partitions: Sequence[int], target: ResetTarget
    ) -> Sequence[OffsetToCommit]:
        """Where a reset would let a group go on in these partitions, in their order; nothing is changed.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: there is no such place.
        """

    async def reset(
        self, group: str, topic: str, partitions: Sequence[int] | None, target: ResetTarget
    ) -> Sequence[PartitionCommit]:
        """Commit other offsets for a group without members (for all partitions of the topic when None).

        A numeric offset is taken into the readable range. Returns what was committed.

        Raises:
            GroupNotEmptyError, TopicNotFoundError, PartitionNotFoundError: nothing was changed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConsumer:
    """A consumer as a client asks for it. ``instance`` None: it is given a name."""

    instance: str | None
    format: str
    auto_offset_reset: str
    is_auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    principal: str = ""
    """Whose it is; empty where nobody was asked."""
    commits_next: bool = False
    """The offsets of its commits name the next record to read, not the last one that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSubscription:
    """``partitions``: what is assigned to it now."""

    topics: Sequence[str]
    pattern: str | None
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredRecords:
    """Records of one partition for a consumer: those of ``batches`` in [start_offset, end_offset).

    Whole stored batches, so that the first may begin below and the last go on beyond.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """An answer to a consumer, and the format it was made for. ``call_id`` names it; empty: it cannot be taken back."""

    format: str
    deliveries: Sequence[DeliveredRecords]
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """Where a partition's next delivery begins; one of the three is set."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    name: Reset | None = None


class ConsumersPort(Protocol):
    """REST consumers (v2).

    Every method raises ConsumerNotFoundError for a consumer that is not there, and what may happen to any call:
    NotCoordinatorError, NoQuorumError, FateUnknownError. Every call puts off the consumer's expiry.
    """

    async def create(self, group: str, consumer: NewConsumer) -> str:
        """Returns the instance's name.

        Raises:
            ConsumerExistsError: the name is taken.
            InvalidConsumerError, LimitReachedError: settings out of range; too many consumers.
        """

    async def delete(self, group: str, instance: str, *, token: str = "") -> None:
        """Leave the group (committing what was delivered when it commits by itself) and forget the consumer.

        Here and in what follows ``token`` says that the answer to this records call has arrived. If the last one had a
        token, only what has certainly arrived is committed.
        """

    async def commits_next(self, group: str, instance: str) -> bool:
        """Whether the offsets of its commits name the next record; see ``NewConsumer``."""

    async def format_of(self, group: str, instance: str) -> str:
        """The format that it was created with."""

    async def subscribe(
        self,
        group: str,
        instance: str,
        topics: Sequence[str],
        pattern: str | None,
        *,
        token: str = "",
    ) -> None:
        """Subscribe instead of what was subscribed before; it is a member of the group when this returns.

        Raises:
            SubscriptionConflictError: it has a manual assignment; topics and pattern; neither.
        """

    async def unsubscribe(self, group: str, instance: str, *, token: str = "") -> None:
        """Give up subscription or assignment; neither is no error."""

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        """The consumer's subscription."""

    async def assign(
        self, group: str, instance: str, partitions: Sequence[TopicPartition], *, token: str = ""
    ) -> None:
        """Assign these by hand, without group management.

        Raises:
            SubscriptionConflictError: it is subscribed.
            TopicNotFoundError, PartitionNotFoundError: nothing was assigned.
        """

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        """Partitions that it reads from now, by hand or as a member."""

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        """Deliver from there next; lasts until the consumer's coordinator changes, unless committed.

        Raises:
            SubscriptionConflictError: a partition is not assigned to it.
        """

    async def records(
        self,
        group: str,
        instance: str,
        *,
        timeout_ms: int | None,
        max_bytes: int | None,
        token: str = "",
    ) -> Delivered:
        """The next records, waiting up to ``timeout_ms`` (None: as it was created with) when there are none.

        At least one record whatever ``max_bytes`` (keys and values as stored). Calls of one consumer are taken one
        after the other. The first call returns records when there are some. Under the ``token`` of the answer before
        that very answer comes again, empty ones included; any other call says that it has arrived.

        Raises:
            SubscriptionConflictError: neither subscribed nor assigned.
            ReplicaDamagedError: the next records of a partition are damaged, and no others came; nothing was delivered.
        """

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        """Nobody got this answer: unless the client has called again since, it is delivered again.

        Goes on in the background; raises nothing.
        """

    async def refuse(self, group: str, instance: str, delivered: Delivered) -> None:
        """The client is refused this answer: it is delivered again, under a token, too. Raises nothing."""

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        """Commit these, or (None) up to the last record delivered in each partition."""

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[PartitionCommit]:
        """Offsets that the group has committed; partitions without a commit are left out."""
