"""Interfaces to consumer groups and REST consumers, which a node implements for the handlers of the API.

``node.groups`` and ``node.consumers`` implement them; tests have in-memory ones. Any node serves any call: if only the
group's coordinator may decide, the node forwards the call to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol, TypeAlias

import msgspec
from msgspec import field

from milena.model.errors import ConsumerNotFoundError

TopicPartition = tuple[str, int]
"""(name of the topic, partition)"""

PartitionsByTopic: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions grouped by topic, so that messages between nodes contain each topic's name once."""


def by_topic(partitions: Iterable[TopicPartition]) -> PartitionsByTopic:
    """Group partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(numbers)) for topic, numbers in found.items())


def each_partition(partitions: PartitionsByTopic) -> list[TopicPartition]:
    """Return the partitions one by one; the reverse of ``by_topic``."""
    return [(topic, number) for topic, numbers in partitions for number in numbers]


def no_consumer(group: str, instance: str) -> ConsumerNotFoundError:
    """Return the error for a missing REST consumer, and for a consumer that the caller may not use."""
    return ConsumerNotFoundError(
        f"group {group!r} has no consumer {instance!r}: it was never created, was deleted, or sent no request for too "
        f"long; create it again with POST /consumers/{group}"
    )


@unique
class Reset(StrEnum):
    """Positions that an offset may be reset to by name."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat of a group's member, as it is forwarded to the coordinator. Source: KIP-848.

    ``member_epoch`` is 0 to join, -1 to leave, and otherwise the last epoch that the member received. A member that
    joins with an empty ``member_id`` gets an id. ``topics``, ``pattern``, ``assignor`` and ``owned`` keep their last
    value if they are None.

    ``owned`` must list every partition that was assigned to the member and that it has not given up, even if it does
    not read the partition yet. The coordinator takes a missing partition for given up.
    """

    group_id: str = field(name="group")
    member_id: str = field(name="member")
    member_epoch: int = field(name="epoch")
    instance_id: str | None = field(name="instance", default=None)
    client_id: str = field(name="client", default="")
    host: str = ""
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = field(name="session_ms", default=None)
    rebalance_timeout_ms: int | None = field(name="rebalance_ms", default=None)
    owned: PartitionsByTopic | None = None
    wait_ms: int = 0
    """How long to delay a response that has nothing new, in ms. A change of the assignment is sent at once."""


class KafkaHeartbeat(Heartbeat, frozen=True, kw_only=True):
    """A heartbeat by Kafka's own protocol, which differs in some rules. It is never forwarded.

    - Names of topics and a pattern replace their last values independently of each other; an empty pattern is none.
    - A member may subscribe to nothing.
    - A join does not take over the instance id of another member that is still there.
    - An epoch of -2 says that a static member is away: it keeps its partitions until its session ends.
    """


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a heartbeat: the partitions that the member may read from now on.

    The member must give up all other partitions that it owns, and report that with a heartbeat. ``pending`` are
    partitions that it will get once other members have given them up.
    """

    member_id: str = field(name="member")
    member_epoch: int = field(name="epoch")
    generation: int
    heartbeat_interval_ms: int = field(name="interval_ms")
    assignment: PartitionsByTopic
    pending: PartitionsByTopic


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """An offset to commit: that of the next record to read in a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = field(name="epoch", default=-1)
    metadata: str = ""


class TopicOffset(OffsetToCommit, frozen=True, kw_only=True):
    """An offset to commit that names its topic also by the first digits of the id. No message between nodes has it.

    The offset is not committed to a later topic of the name. An empty id: the client named none.
    """

    topic_id: str


def topic_id_of(offset: OffsetToCommit) -> str:
    """Return the first digits of the topic's id; empty if the offset names none."""
    return offset.topic_id if isinstance(offset, TopicOffset) else ""


class PartitionCommit(OffsetToCommit, frozen=True, kw_only=True):
    """The committed offset of a group in a partition."""

    commit_ms: int = field(name="ms")


@unique
class GroupState(StrEnum):
    """States of a group, under v3's names."""

    EMPTY = "EMPTY"
    RECONCILING = "RECONCILING"
    STABLE = "STABLE"


@unique
class GroupKind(StrEnum):
    """Kinds of groups."""

    SERVER = "server"
    """The coordinator computes the assignment."""
    CLASSIC = "classic"
    """A member computes the assignment, by Kafka's classic protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member and its partitions: those it reads, must give up (``revoking``), and will get later (``pending``)."""

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
    """A summary of a group, as the quorum knows it. ``coordinator``: broker id, None without one.

    ``assignor`` of a classic group: the protocol that its members chose.
    """

    group_id: str
    state: GroupState
    generation: int
    assignor: str
    coordinator: int | None
    member_count: int
    kind: GroupKind = GroupKind.SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(GroupHead):
    """A group with its members and committed offsets."""

    members: Sequence[MemberDescription]
    offsets: Sequence[PartitionCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTarget:
    """The target of a reset: a name, an offset, or the first record at or after a wall time (ms). One is set."""

    name: Reset | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


class GroupsPort(Protocol):
    """Consumer groups."""

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Join a group, stay in it or leave it.

        Raises:
            MemberNotFoundError: the member has expired or never joined; it must join again, without partitions.
            MemberFencedError: another process has taken over the member's instance id; the member must stop.
            StaleMemberEpochError: the heartbeat has another epoch than the member.
            InvalidConsumerError: settings are out of range.
            LimitReachedError: the group has too many members.
            NotCoordinatorError, NoQuorumError: not possible now; nothing changed.
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
            StaleMemberEpochError, MemberNotFoundError, MemberFencedError: the member may not commit; nothing was
                committed.
            GroupNotEmptyError: the commit names no member, and the group has some.
            FateUnknownError: the offsets may or may not be committed.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        """Return committed offsets, of these partitions or all. Partitions without a commit are omitted.

        The result is current: it has every commit that any node has acknowledged.

        Raises:
            GroupNotFoundError: there is no such group.
        """

    async def describe(self, group: str) -> GroupDescription:
        """Return the group, its members and offsets.

        Raises:
            GroupNotFoundError: there is no such group.
        """

    async def groups(self) -> Sequence[GroupHead]:
        """Return all groups, in order of their ids, without members and offsets."""

    async def delete(self, group: str) -> None:
        """Delete the group and its offsets.

        Raises:
            GroupNotFoundError, GroupNotEmptyError: nothing was deleted.
        """

    async def places(
        self, topic: str, partitions: Sequence[int], target: ResetTarget
    ) -> Sequence[OffsetToCommit]:
        """Return the offsets that a reset would set in these partitions, in their order. Nothing is changed.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: there is no such topic or partition.
        """

    async def reset(
        self, group: str, topic: str, partitions: Sequence[int] | None, target: ResetTarget
    ) -> Sequence[PartitionCommit]:
        """Commit other offsets for a group without members. ``partitions`` None: all partitions of the topic.

        A numeric offset outside the readable range becomes the nearest one in it. Return the committed offsets.

        Raises:
            GroupNotEmptyError, TopicNotFoundError, PartitionNotFoundError: nothing was changed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConsumer:
    """A REST consumer that a client wants to create. ``instance`` None: the node chooses a name."""

    instance: str | None
    format: str
    auto_offset_reset: str
    is_auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    principal: str = ""
    """The owner; empty if the cluster asked for no credentials."""
    commits_next: bool = False
    """Whether offsets in the consumer's commits are those of the next record to read, not of the last one read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSubscription:
    """A REST consumer's subscription, and the partitions that are assigned to the consumer now."""

    topics: Sequence[str]
    pattern: str | None
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredRecords:
    """Records of one partition for a consumer: those of ``batches`` in [start_offset, end_offset).

    The batches are whole stored ones. So the first may start below the range, and the last may end above it.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Records delivered to a REST consumer, and their format.

    ``call_id`` identifies the delivery for ``take_back`` and ``refuse``; empty: it cannot be undone.
    """

    format: str
    deliveries: Sequence[DeliveredRecords]
    call_id: str = ""


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """The position at which a partition's next delivery starts; one of offset, timestamp and name is set."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = field(name="timestamp", default=None)
    name: Reset | None = None


class ConsumersPort(Protocol):
    """REST consumers (v2).

    Every method may raise ConsumerNotFoundError, NotCoordinatorError, NoQuorumError and FateUnknownError. Every call
    postpones the expiry of the consumer.
    """

    async def create(self, group: str, consumer: NewConsumer) -> str:
        """Create a consumer; return the instance's name.

        Raises:
            ConsumerExistsError: the name is taken.
            InvalidConsumerError: settings are out of range.
            LimitReachedError: there are too many consumers.
        """

    async def delete(self, group: str, instance: str, *, token: str = "") -> None:
        """Leave the group and delete the consumer. With automatic commits, first commit the delivered records.

        In this and the following methods, a client passes the ``token`` of its last records call to confirm that the
        response has arrived. If the last records call had a token, only confirmed records are committed.
        """

    async def commits_next(self, group: str, instance: str) -> bool:
        """Return whether offsets in the consumer's commits are those of the next record; see ``NewConsumer``."""

    async def format_of(self, group: str, instance: str) -> str:
        """Return the record format with which the consumer was created."""

    async def subscribe(
        self,
        group: str,
        instance: str,
        topics: Sequence[str],
        pattern: str | None,
        *,
        token: str = "",
    ) -> None:
        """Replace the subscription. When this returns, the consumer is a member of the group.

        Raises:
            SubscriptionConflictError: the consumer has a manual assignment, or the call has both topics and a pattern,
                or neither.
        """

    async def unsubscribe(self, group: str, instance: str, *, token: str = "") -> None:
        """Drop the subscription or the assignment; do nothing if the consumer has neither."""

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        """Return the consumer's subscription."""

    async def assign(
        self, group: str, instance: str, partitions: Sequence[TopicPartition], *, token: str = ""
    ) -> None:
        """Assign these partitions by hand, without group management.

        Raises:
            SubscriptionConflictError: the consumer has a subscription.
            TopicNotFoundError, PartitionNotFoundError: nothing was assigned.
        """

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        """Return the partitions that the consumer reads now, assigned by hand or by the group."""

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        """Deliver from these positions next. If the coordinator changes before a commit, the positions are lost.

        Raises:
            SubscriptionConflictError: a partition is not assigned to the consumer.
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
        """Return the next records. Without any, wait up to ``timeout_ms`` (None: the consumer's own setting).

        If there are records, at least one is returned, even if it is larger than ``max_bytes`` (of keys and values as
        stored). Calls of one consumer run one after the other. A call with the ``token`` of the previous call gets the
        same response again, even an empty one. Any other call confirms that the previous response has arrived.

        Raises:
            SubscriptionConflictError: the consumer has neither a subscription nor an assignment.
            ReplicaDamagedError: the next records of a partition are damaged, and no other partition has records.
                Nothing was delivered.
        """

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        """Note that the response was not sent. Its records are delivered again, unless the client has called since.

        The work continues in the background. Errors are not raised.
        """

    async def refuse(self, group: str, instance: str, delivered: Delivered) -> None:
        """Note that the client got an error instead of this response. Errors are not raised.

        The records are delivered again, unless the client has called since. This also holds for a call with a token.
        """

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        """Commit these offsets; None: commit all delivered records."""

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[PartitionCommit]:
        """Return offsets that the group has committed. Partitions without a commit are omitted."""
