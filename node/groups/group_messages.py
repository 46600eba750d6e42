"""Declarations of calls about groups between nodes. Heartbeats name topics as clients do."""

import msgspec
from msgspec import UNSET, UnsetType, field

from http_api.ports.groups import Heartbeat, HeartbeatAnswer
from node.peers.messages import CallType, Done, Message


class GroupRequest(Message, frozen=True, kw_only=True):
    """A request to a group's coordinator. ``wait_ms``: how long the coordinator may hold back its response."""

    group_id: str = field(name="group")
    wait_ms: int = 0


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


HEARTBEAT = CallType("group_heartbeat", Heartbeat, HeartbeatAnswer)
COMMIT = CallType("group_commit", GroupCommitRequest, Done)
DELETE = CallType("group_delete", GroupDeleteRequest, Done)
