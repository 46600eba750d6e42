"""Declarations of calls about groups between nodes. Heartbeats name topics as clients do."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType, field

from http_api.ports.groups import TopicPartition
from node.peers.messages import CallType, Done, Message

PartitionsByTopic: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by the names of their topics; a name travels once."""


class GroupRequest(Message, frozen=True, kw_only=True):
    """A request to a group's coordinator. ``wait_ms``: how long the coordinator may hold back its response."""

    group_id: str = field(name="group")
    wait_ms: int = 0


class GroupHeartbeatRequest(GroupRequest, frozen=True, kw_only=True):
    """A member's heartbeat; see ``http_api.ports.groups.Heartbeat``. Here the member always has an id."""

    member_id: str = field(name="member")
    member_epoch: int = field(name="epoch")
    instance_id: str | None = field(name="instance", default=None)
    client_id: str = field(name="client")
    host: str
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = field(name="session_ms", default=None)
    rebalance_timeout_ms: int | None = field(name="rebalance_ms", default=None)
    owned: PartitionsByTopic | None = None


class GroupHeartbeatAnswer(Message, frozen=True, kw_only=True):
    """The response to a heartbeat: the member's assignment; see ``http_api.ports.groups.HeartbeatAnswer``."""

    member_id: str = field(name="member")
    member_epoch: int = field(name="epoch")
    generation: int
    heartbeat_interval_ms: int = field(name="interval_ms")
    assignment: PartitionsByTopic
    pending: PartitionsByTopic


class OffsetRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One partition's offset to commit; see ``raft_meta.machine.commands.OffsetCommit``."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class GroupCommitRequest(GroupRequest, frozen=True, kw_only=True):
    """Offsets to commit, by a member or by a client that is no member (``member_id`` None, epoch -1)."""

    member_id: str | None = field(name="member", default=None)
    member_epoch: int = field(name="epoch")
    offsets: tuple[OffsetRow, ...]


class GroupDeleteRequest(GroupRequest, frozen=True, kw_only=True):
    """A request to delete the group and its offsets."""

    principal: str | UnsetType = UNSET
    """The principal that asked for it; not sent if the caller was not authenticated."""


HEARTBEAT = CallType("group_heartbeat", GroupHeartbeatRequest, GroupHeartbeatAnswer)
COMMIT = CallType("group_commit", GroupCommitRequest, Done)
DELETE = CallType("group_delete", GroupDeleteRequest, Done)


def by_topic(partitions: Iterable[TopicPartition]) -> PartitionsByTopic:
    """Group partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(numbers)) for topic, numbers in found.items())


def each_partition(partitions: PartitionsByTopic) -> list[TopicPartition]:
    """Return the partitions one by one; the reverse of ``by_topic``."""
    return [(topic, number) for topic, numbers in partitions for number in numbers]
