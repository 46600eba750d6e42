"""Sessions of members, which only their coordinator knows: the last heartbeat, and the last response. Pure.

Sessions are only in memory. A new coordinator gives every member a full session, and a full rebalance timeout to each
member that has partitions to give back. That time begins with the response that tells the member so (KIP-848): until
then, its session alone counts. REST members have no session here and are told otherwise, so theirs begins at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from milena.model.types import MonotonicMs
from node.groups.rebalance import effective, to_give_back
from raft_meta.machine.image import Group, GroupMember, PartitionSet
from raft_meta.machine.topics import partition_sets

NEVER = MonotonicMs(1 << 62)


@dataclass(slots=True)
class MemberSession:
    """One member. ``told``: the epoch and assignment of its last response; None if this coordinator gave none.

    ``is_here``: whether this coordinator has heard the member, and it has not said since that it is away.
    """

    heard_ms: MonotonicMs
    revoking_ms: MonotonicMs | None = None
    """Since when the member knows of partitions to give back."""
    told: tuple[int, PartitionSet] | None = None
    is_here: bool = False
    owned: tuple[int, PartitionSet] | None = None
    """The epoch and partitions that a member of Kafka has named last; it names them again only if they have changed."""
    is_away: bool = False
    """Whether a static member has said that it stops, and may come back under another id."""


class GroupSessions:
    """The sessions of one group's members.

    Invariants:
        Exactly the members of the group that ``look`` adopted last have sessions.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, MemberSession] = {}
        self._members: Mapping[str, GroupMember] = {}

    def look(self, group: Group | None, now_ms: MonotonicMs) -> None:
        """Adopt the group: new members get a full session; who has nothing more to give back is in no hurry."""
        self._members = (
            {} if group is None else {member.member_id: member for member in group.members}
        )
        for member_id in self._sessions.keys() - self._members.keys():
            del self._sessions[member_id]
        for member_id, member in self._members.items():
            session = self._sessions.get(member_id)
            if session is None:
                session = self._sessions[member_id] = MemberSession(now_ms)
            if partition_sets.is_subset(member.held, member.target):
                session.revoking_ms = None
            elif member.is_rest and session.revoking_ms is None:
                session.revoking_ms = now_ms

    def member(self, member_id: str) -> GroupMember | None:
        """Return the member of the group that ``look`` adopted last."""
        return self._members.get(member_id)

    def heard(self, member_id: str, now_ms: MonotonicMs) -> None:
        """Extend the member's session, because it was heard."""
        session = self._sessions.get(member_id)
        if session is not None:
            session.heard_ms = max(session.heard_ms, now_ms)
            session.is_here, session.is_away = True, False

    def leave_for_now(self, member_id: str) -> None:
        """Note that a static member is away. Its session goes on, and it works on nothing."""
        session = self._sessions.get(member_id)
        if session is not None:
            session.is_here, session.is_away = False, True

    def holder_of(self, instance_id: str, *, besides: str) -> GroupMember | None:
        """Return the other member that has the instance id and is still here; ``besides``: the id of the one who asks.

        Members that this coordinator has not heard yet do not count: the last one may have let them go.
        """
        for member in self._members.values():
            if member.instance_id == instance_id and member.member_id != besides:
                return member if self._sessions[member.member_id].is_here else None
        return None

    def is_away(self, member_id: str, now_ms: MonotonicMs) -> bool:
        """Return whether a static member is away, and its session has not ended yet."""
        session, member = self._sessions.get(member_id), self._members.get(member_id)
        if session is None or member is None or not session.is_away:
            return False
        return now_ms < session.heard_ms + member.session_ms

    def named(self, member_id: str, epoch: int, owned: PartitionSet) -> None:
        """Note the partitions that a member of Kafka says it works on."""
        session = self._sessions.get(member_id)
        if session is not None:
            session.owned = (epoch, owned)

    def last_named(self, member_id: str, epoch: int) -> PartitionSet | None:
        """Return the partitions that a member has named last, if that was under this epoch; else None.

        Within an epoch, the partitions that a member works on only shrink. So what it named stays true.
        """
        session = self._sessions.get(member_id)
        if session is None or session.owned is None or session.owned[0] != epoch:
            return None
        return session.owned[1]

    def told(self, member: GroupMember, now_ms: MonotonicMs) -> bool:
        """Note that the member gets a response with its present epoch and assignment.

        Return whether its time to give partitions back begins with that.
        """
        session = self._sessions.get(member.member_id)
        if session is None:
            return False
        session.told = (member.member_epoch, effective(member))
        if session.revoking_ms is not None or not to_give_back(member):
            return False
        session.revoking_ms = now_ms
        return True

    def is_told(self, member: GroupMember) -> bool:
        """Return whether the member's last response had its present epoch and assignment."""
        session = self._sessions.get(member.member_id)
        return session is not None and session.told == (member.member_epoch, effective(member))

    def given_back(self, member: GroupMember, epoch: int, owned: PartitionSet) -> PartitionSet:
        """Return the partitions that a member has given back, if it reports ``owned`` under ``epoch``.

        Only partitions that are not in its last response count: the member may be about to take a partition that the
        last response gave to it.
        """
        session = self._sessions.get(member.member_id)
        if epoch != member.member_epoch or session is None or session.told is None:
            return partition_sets.EMPTY
        told_epoch, told = session.told
        if told_epoch != epoch:
            return partition_sets.EMPTY
        known = partition_sets.difference(to_give_back(member), told)
        return partition_sets.difference(known, owned)

    def extend(self, now_ms: MonotonicMs) -> None:
        """Give every member its full times again, because this node may not have heard them."""
        for session in self._sessions.values():
            session.heard_ms = now_ms
            if session.revoking_ms is not None:
                session.revoking_ms = now_ms

    def expired(self, now_ms: MonotonicMs) -> list[str]:
        """Return the members whose session or time to give back has ended, in order of their ids."""
        return sorted(
            member_id for member_id, due_ms in self._due(self._sessions) if due_ms <= now_ms
        )

    def next_due_ms(self) -> MonotonicMs:
        """Return the earliest time at which ``expired`` may return a member."""
        return min((due_ms for _, due_ms in self._due(self._sessions)), default=NEVER)

    def _due(self, member_ids: Iterable[str]) -> Iterator[tuple[str, MonotonicMs]]:
        for member_id in member_ids:
            member, session = self._members[member_id], self._sessions[member_id]
            due_ms = NEVER
            if not member.is_rest:
                due_ms = MonotonicMs(session.heard_ms + member.session_ms)
            if session.is_away and to_give_back(member):
                # A member that is away works on nothing, so it has nothing to finish.
                due_ms = session.heard_ms
            elif session.revoking_ms is not None:
                due_ms = min(due_ms, MonotonicMs(session.revoking_ms + member.rebalance_ms))
            yield member_id, due_ms
