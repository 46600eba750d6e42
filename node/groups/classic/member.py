"""A member of a classic group on its coordinator, and the protocols that members have in common."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TypeAlias

from milena.model.errors import MemberNotFoundError, MilenaError
from milena.model.types import MonotonicMs
from node.groups.classic.calls import DescribedMember, JoinedMember, JoinRequest
from node.groups.member_sessions import NEVER
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ClassicMember

Waiter: TypeAlias = int
"""The number of a waiting request."""


@dataclass(slots=True)
class Member:
    """A member: its row in the image, and what only the coordinator knows."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...] | None
    """(name, metadata) of each, the preferred one first; None: not known until the member joins again."""
    heard_ms: MonotonicMs
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None

    @classmethod
    def of_row(cls, row: ClassicMember, now_ms: MonotonicMs) -> "Member":
        """Return the member of the image, with its full session."""
        return cls(**asdict(row), protocols=None, heard_ms=now_ms)

    @classmethod
    def of_join(cls, member_id: str, request: JoinRequest, now_ms: MonotonicMs) -> "Member":
        """Return a new member."""
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            host=request.host,
            session_ms=request.session_ms,
            rebalance_ms=_rebalance_ms(request),
            protocols=request.protocols,
            heard_ms=now_ms,
        )

    def update(self, request: JoinRequest) -> None:
        """Adopt the settings of a member that joins again."""
        self.client_id, self.host = request.client_id, request.host
        self.session_ms, self.rebalance_ms = request.session_ms, _rebalance_ms(request)
        self.protocols = request.protocols

    @property
    def names(self) -> frozenset[str] | None:
        """The names of its protocols; None: not known."""
        return None if self.protocols is None else frozenset(name for name, _ in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata of a protocol; empty if it has none."""
        return next((data for name, data in self.protocols or () if name == protocol), b"")

    @property
    def name_bytes(self) -> int:
        """The bytes that its names take in the image."""
        names = (self.member_id, self.instance_id or "", self.client_id, self.host)
        return sum(len(name.encode()) for name in names)

    @property
    def metadata_bytes(self) -> int:
        """The bytes that its protocols take here."""
        return metadata_bytes(self.protocols or ())

    @property
    def due_ms(self) -> MonotonicMs:
        """When the member counts as dead. One that waits for a response cannot send a heartbeat."""
        is_waiting = self.joining is not None or self.syncing is not None
        return NEVER if is_waiting else MonotonicMs(self.heard_ms + self.session_ms)

    def row(self, *, has_assignment: bool) -> ClassicMember:
        """Return the member as the image has it."""
        return ClassicMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
            assignment=self.assignment if has_assignment else b"",
        )

    def joined(self, protocol: str) -> JoinedMember:
        """Return the member as the leader sees it."""
        return JoinedMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            metadata=self.metadata(protocol),
        )

    def described(self, protocol: str, *, is_stable: bool) -> DescribedMember:
        """Return the member as descriptions show it."""
        return DescribedMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            metadata=self.metadata(protocol) if is_stable else b"",
            assignment=self.assignment if is_stable else b"",
        )


def common_protocols(members: Iterable[Member]) -> frozenset[str] | None:
    """Return the protocols that all of these members support; None if nothing is known of any."""
    common: frozenset[str] | None = None
    for member in members:
        names = member.names
        if names is not None:
            common = names if common is None else common & names
    return common


def chosen_protocol(members: Iterable[Member]) -> str:
    """Return the protocol that every member supports and most members prefer; "" if there is none."""
    known = [member for member in members if member.protocols is not None]
    common = common_protocols(known)
    if not common:
        return ""
    votes: dict[str, int] = {}
    for member in known:
        favourite = next(name for name, _ in member.protocols or () if name in common)
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


def name_bytes(request: JoinRequest) -> int:
    """Return the most bytes that the names of a member that joins take in the image."""
    names = (request.instance_id or "", request.client_id, request.host)
    return group_rules.NAME_LENGTH_MAX + sum(len(name.encode()) for name in names)


def metadata_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Return the bytes of protocols and their metadata."""
    return sum(len(name) + len(data) for name, data in protocols)


def unknown_member(group_id: str, member_id: str) -> MilenaError:
    """Return the refusal of a request by a member that is not in the group."""
    return MemberNotFoundError(
        f"group {group_id!r} has no member {member_id!r}, or no longer: join again without a member id"
    )


def _rebalance_ms(request: JoinRequest) -> int:
    """Return the rebalance timeout within bounds: some clients ask for the largest number there is."""
    return min(max(request.rebalance_ms, 1), group_rules.DURATION_MS_MAX)
