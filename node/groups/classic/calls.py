"""Requests and responses of classic groups, free of their form on the wire. Source: Kafka's JoinGroup to DeleteGroups.

Lists of protocols and assignments are opaque bytes: only clients read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique

from milena.model.errors import MilenaError

NO_GENERATION = -1
"""The generation in a commit of a client that is no member."""


@unique
class ClassicState(StrEnum):
    """The state of a classic group; the words are Kafka's."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """There is no such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member joins the group's next generation. Durations in ms."""

    group_id: str
    member_id: str
    """Empty: the member has no id yet."""
    instance_id: str | None = None
    """The name of a static member (KIP-345)."""
    client_id: str = ""
    host: str = ""
    session_ms: int
    rebalance_ms: int
    """How long the member may take to join again once a rebalance starts."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) of each protocol that the member supports, the preferred one first."""
    needs_known_id: bool = True
    """Whether a new dynamic member must join again with its id (KIP-394; JoinGroup from version 4 on)."""
    can_skip_assignment: bool = False
    """Whether the member understands ``skips_assignment`` (KIP-814; JoinGroup from version 9 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it, with its metadata of the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The generation that a member has joined."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[JoinedMember] = ()
    """All members, for the leader; empty for the others."""
    skips_assignment: bool = False
    """The leader must not compute an assignment: the present one stays valid (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader's request carries the assignments of all members."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """None: the request's version does not name it."""
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    """By member id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """A member's assignment in the present generation."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member that leaves. ``member_id`` may be empty for a static member."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    """The result for one leaving member; ``error`` None: it has left."""

    member: LeavingMember
    error: MilenaError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicOverview:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    """A word of ``ClassicState``, or of a server group."""
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member of a described group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    """Its metadata of the chosen protocol; empty while the group rebalances, or if it has not joined here."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicDescription:
    """A group with its members, as its coordinator sees it."""

    group_id: str
    state: ClassicState
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[DescribedMember] = ()
