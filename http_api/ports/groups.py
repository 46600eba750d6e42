"""Protocols that a node implements for handlers of consumer groups and REST consumers.

``node.groups`` and ``node.consumers`` implement them; tests have in-memory ones. Any node serves any call: it forwards
decisions that only the group's coordinator may make. The implementation resolves names of topics.
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
"""Partitions by the names of their topics; a name travels once."""


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
    """Return the error for a missing REST consumer. Callers who may not use a consumer get the same one."""
    return ConsumerNotFoundError(
        f"group {group!r} has no consumer {instance!r}: it was never made, was deleted, or not heard of for too long"
    )


@unique
class Reset(StrEnum):
    """Positions that an offset may be reset to by name."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's state, as the member reports it. It travels to the coordinator as it is. Source: KIP-848.

    ``member_epoch``: 0 joins (with an empty ``member_id`` the member gets an id), -1 leaves, otherwise it is the last
    epoch that the member got. A field that may change (topics and pattern, assignor, owned) keeps its value if it is
    None.

    ``owned`` are the partitions that the member works on. A partition counts from the response that assigns it, even
    before the member starts on it: from ``owned`` the coordinator learns which partitions the member has released.
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
    """How long (ms) to hold the response back if the member knows all of it: no rebalance waits for a heartbeat."""


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions that a member may work on from now on.

    The member releases all others that it owns, and reports that by a heartbeat. ``pending``: partitions that will be
    its own once the members that hold them release them.
    """

    member_id: str = field(name="member")
    member_epoch: int = field(name="epoch")
    generation: int
    heartbeat_interval_ms: int = field(name="interval_ms")
    assignment: PartitionsByTopic
    pending: PartitionsByTopic


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of the next record to read in a partition. It travels to the coordinator as it is."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = field(name="epoch", default=-1)
    metadata: str = ""


class PartitionCommit(OffsetToCommit, frozen=True, kw_only=True):
    """A committed offset."""

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
    """One member and its partitions: those it works on, must release (``revoking``) and waits for (``pending``)."""

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
            MemberNotFoundError: expired or never joined; the member must join again, owning nothing.
            MemberFencedError: another process has taken its instance id; the member must stop.
            StaleMemberEpochError: it has not reached this epoch.
            InvalidConsumerError, LimitReachedError: settings out of range; too many members.
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
            StaleMemberEpochError, MemberNotFoundError, MemberFencedError: fenced; nothing was committed.
            GroupNotEmptyError: the commit names no member, and the group has some.
            FateUnknownError: they may or may not be committed.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        """Return committed offsets, of these partitions or all. Partitions without a commit are omitted.

        The result is current: it has everything that any node has acknowledged.

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
    """A consumer that a client asks for. ``instance`` None: the node chooses a name."""

    instance: str | None
    format: str
    auto_offset_reset: str
    is_auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    principal: str = ""
    """The owner; empty if the cluster asked for no credentials."""
    commits_next: bool = False
    """Offsets in its commits name the next record to read, not the last one that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSubscription:
    """A consumer's subscription. ``partitions``: those assigned to it now."""

    topics: Sequence[str]
    pattern: str | None
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredRecords:
    """Records of one partition for a consumer: those of ``batches`` in [start_offset, end_offset).

    The batches are complete as stored. So the first may start below the range, and the last may end above it.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A response to a consumer, and its format. ``call_id`` names it; empty: it cannot be taken back."""

    format: str
    deliveries: Sequence[DeliveredRecords]
    call_id: str = ""


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a partition's next delivery; one of offset, timestamp and name is set. It travels as it is."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = field(name="timestamp", default=None)
    name: Reset | None = None


class ConsumersPort(Protocol):
    """REST consumers (v2).

    Every method raises ConsumerNotFoundError for a missing consumer, and the errors that any call may have:
    NotCoordinatorError, NoQuorumError, FateUnknownError. Every call extends the consumer's expiry.
    """

    async def create(self, group: str, consumer: NewConsumer) -> str:
        """Create a consumer; return the instance's name.

        Raises:
            ConsumerExistsError: the name is taken.
            InvalidConsumerError, LimitReachedError: settings out of range; too many consumers.
        """

    async def delete(self, group: str, instance: str, *, token: str = "") -> None:
        """Leave the group and delete the consumer. With automatic commits, first commit the delivered records.

        In this and the following methods ``token`` says that the response to the records call with this token has
        arrived. If the last response had a token, only records that have certainly arrived are committed.
        """

    async def commits_next(self, group: str, instance: str) -> bool:
        """Return whether the offsets in its commits name the next record; see ``NewConsumer``."""

    async def format_of(self, group: str, instance: str) -> str:
        """Return the format that it was created with."""

    async def subscribe(
        self,
        group: str,
        instance: str,
        topics: Sequence[str],
        pattern: str | None,
        *,
        token: str = "",
    ) -> None:
        """Subscribe in place of the previous subscription. The consumer is a member of the group when this returns.

        Raises:
            SubscriptionConflictError: it has a manual assignment, or the call has both topics and a pattern, or
                neither.
        """

    async def unsubscribe(self, group: str, instance: str, *, token: str = "") -> None:
        """Drop subscription or assignment. Having neither is not an error."""

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        """Return the consumer's subscription."""

    async def assign(
        self, group: str, instance: str, partitions: Sequence[TopicPartition], *, token: str = ""
    ) -> None:
        """Assign these partitions by hand, without group management.

        Raises:
            SubscriptionConflictError: it is subscribed.
            TopicNotFoundError, PartitionNotFoundError: nothing was assigned.
        """

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        """Return the partitions that it reads now, assigned by hand or as a member."""

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        """Deliver from these positions next. They are lost when the consumer's coordinator changes, unless committed.

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
        """Return the next records. Without any, wait up to ``timeout_ms`` (None: the consumer's own setting).

        The response has at least one record, even above ``max_bytes`` (keys and values as stored). Calls of one
        consumer run one after the other. The first call returns records if there are any. A call with the ``token`` of
        the previous response gets that response again, even an empty one. Any other call says that it has arrived.

        Raises:
            SubscriptionConflictError: neither subscribed nor assigned.
            ReplicaDamagedError: the next records of a partition are damaged, and no others arrived; nothing was
                delivered.
        """

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        """Note that no client got this response. It is delivered again unless the client has called since.

        The work continues in the background. Raises nothing.
        """

    async def refuse(self, group: str, instance: str, delivered: Delivered) -> None:
        """Note that the client got an error instead of this response. Raises nothing.

        The records are delivered again unless the client has called since, also if the response was one under a token.
        """

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        """Commit these, or (None) up to the last record delivered in each partition."""

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[PartitionCommit]:
        """Return offsets that the group has committed. Partitions without a commit are omitted."""
