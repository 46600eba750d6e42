"""Heartbeats on the group's coordinator: join, stay, leave, and wait for news. Source: KIP-848, ConsumerGroupHeartbeat.

A heartbeat that changes nothing writes nothing. It is safe to repeat, however late: joining is done once per member id,
what was given back is only believed under the member's present epoch (see ``rebalance``).
"""

from collections.abc import Sequence
from dataclasses import replace

from node.clock import Clock
from node.groups.coordinator import GroupCoordinator
from node.groups.desk import GroupDesk
from node.groups.group_counts import GroupCounts
from node.groups.group_messages import GroupHeartbeatAnswer, GroupHeartbeatRequest
from node.groups.member_rules import check_subscription, newcomer
from node.groups.names import TopicNames
from node.groups.rebalance import Change, Join, Leave, Release, effective, waited_for
from raft_meta.machine import group_rules
from raft_meta.machine.image import Group, GroupMember
from storage.errors import (
    GroupLimitError,
    InvalidConsumerError,
    MemberNotFoundError,
    MilenaError,
    StaleMemberEpochError,
)

JOIN = 0
LEAVE = -1
INTERVAL_MS = 5_000
"""Between heartbeats, of members with ordinary sessions; KIP-848's default."""
INTERVALS_PER_SESSION = 3
REMINDER_MS = 1_000
"""How long a heartbeat is held back of a member that has yet to do what it was told last."""


class Heartbeats:
    """Answers heartbeats for the groups that this node coordinates."""

    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        names: TopicNames,
        clock: Clock,
        counts: GroupCounts,
    ) -> None:
        self._coordinator = coordinator
        self._names = names
        self._clock = clock
        self._counts = counts

    async def take(self, heartbeat: GroupHeartbeatRequest) -> GroupHeartbeatAnswer:
        """See ``http_api.group_ports.GroupsPort.heartbeat``."""
        self._counts.heartbeats += 1
        desk = self._coordinator.desk(heartbeat.group_id)
        if heartbeat.member_epoch == LEAVE:
            return await self._leave(desk, heartbeat.member_id)
        if heartbeat.member_epoch < LEAVE:
            raise InvalidConsumerError(
                f"member_epoch {heartbeat.member_epoch}: give 0 to join, -1 to leave, else the epoch of the last answer"
            )
        await desk.removed(heartbeat.member_id)
        changes = self._changes(desk, heartbeat, heartbeat.member_id)
        desk.sessions.heard(heartbeat.member_id, self._clock.now_ms())
        with desk.waiting.presence(heartbeat.member_id) as number:
            await self._take_in(desk, heartbeat.member_id, changes)
            return await self._answer(desk, heartbeat, heartbeat.member_id, number)

    # -- what it says ----------------------------------------------------------------------------

    async def _leave(self, desk: GroupDesk, member_id: str) -> GroupHeartbeatAnswer:
        """A member that is gone already has left."""
        known = desk.member(member_id)
        if known is not None:
            _check_kind(desk, known)
            await desk.change(Leave(member_id=member_id))
        return GroupHeartbeatAnswer(
            member_id=member_id,
            member_epoch=LEAVE,
            generation=_generation(desk.group),
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=(),
            pending=(),
        )

    def _changes(
        self, desk: GroupDesk, heartbeat: GroupHeartbeatRequest, member_id: str
    ) -> list[Change]:
        known = desk.member(member_id)
        if known is not None:
            _check_kind(desk, known)
        if heartbeat.member_epoch != JOIN:
            known = _fenced_unless_present(desk, heartbeat, known)
        elif known is None and desk.was_succeeded(member_id):
            raise _succeeded(desk, member_id)
        wanted = _as_wanted(heartbeat, known or newcomer(member_id))
        changes: list[Change] = []
        if wanted != known:
            _check(desk, wanted, known)
            changes.append(Join(member=wanted))
        if known is not None and heartbeat.owned is not None:
            owned = self._names.to_ids(heartbeat.owned)
            gone = desk.sessions.given_back(known, heartbeat.member_epoch, owned)
            if gone:
                changes.append(
                    Release(
                        member_id=member_id, member_epoch=heartbeat.member_epoch, partitions=gone
                    )
                )
        return changes

    async def _take_in(self, desk: GroupDesk, member_id: str, changes: Sequence[Change]) -> None:
        known = desk.member(member_id)
        if changes or (known is not None and desk.has_free(known)):
            await desk.change(*changes)
            desk.look()
            desk.sessions.heard(member_id, self._clock.now_ms())

    # -- what it hears ---------------------------------------------------------------------------

    async def _answer(
        self, desk: GroupDesk, heartbeat: GroupHeartbeatRequest, member_id: str, number: int
    ) -> GroupHeartbeatAnswer:
        started = self._clock.now_ms()
        waiting = desk.waiting
        while True:
            await desk.removed(member_id)
            member = self._coordinator.desk(desk.group_id).member(member_id)
            if member is None:
                raise _absent(desk, heartbeat, member_id)
            if desk.is_closed:
                # The group has moved away and back.
                desk = self._coordinator.desk(desk.group_id)
            if not waiting.is_newest(member_id, number):
                # Nobody may hear this answer: it does not count as having told anything.
                return self._made(desk.group, member)
            wait_ms = self._wait_ms(desk, heartbeat, member)
            left_ms = wait_ms - (self._clock.now_ms() - started)
            if left_ms <= 0:
                desk.sessions.told(member)
                return self._made(desk.group, member)
            await desk.waiting.news(member_id, left_ms)
            if not desk.is_closed and desk.has_free(member):
                await desk.change()

    def _wait_ms(
        self, desk: GroupDesk, heartbeat: GroupHeartbeatRequest, member: GroupMember
    ) -> int:
        """How long the answer is held back, from the heartbeat's arrival on."""
        knows = heartbeat.member_epoch == member.member_epoch and desk.sessions.is_told(member)
        if not knows:
            return 0
        wait_ms = min(heartbeat.wait_ms, member.session_ms // 2)
        if heartbeat.owned is None:
            return wait_ms
        is_done = self._names.to_ids(heartbeat.owned) == effective(member)
        return wait_ms if is_done else min(wait_ms, REMINDER_MS)

    def _made(self, group: Group | None, member: GroupMember) -> GroupHeartbeatAnswer:
        return GroupHeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            generation=_generation(group),
            heartbeat_interval_ms=min(INTERVAL_MS, member.session_ms // INTERVALS_PER_SESSION),
            assignment=self._names.to_names(effective(member)),
            pending=self._names.to_names(waited_for(member)),
        )


def _generation(group: Group | None) -> int:
    return 0 if group is None else group.generation


def _as_wanted(heartbeat: GroupHeartbeatRequest, known: GroupMember) -> GroupMember:
    """The member with what the heartbeat says; what it does not say stays."""
    topics, pattern = known.topics, known.pattern
    if heartbeat.topics is not None or heartbeat.pattern is not None:
        topics, pattern = tuple(sorted(set(heartbeat.topics or ()))), heartbeat.pattern
    return replace(
        known,
        instance_id=known.instance_id if heartbeat.instance_id is None else heartbeat.instance_id,
        client_id=heartbeat.client_id or known.client_id,
        # Who joins says where from; later heartbeats may come over other ways.
        host=known.host or heartbeat.host,
        topics=topics,
        pattern=pattern,
        assignor=heartbeat.assignor or known.assignor,
        session_ms=_or(heartbeat.session_timeout_ms, known.session_ms),
        rebalance_ms=_or(heartbeat.rebalance_timeout_ms, known.rebalance_ms),
    )


def _or(said: int | None, known: int) -> int:
    return known if said is None else said


def _check(desk: GroupDesk, wanted: GroupMember, known: GroupMember | None) -> None:
    """Refuse what one member must not ask for.

    Raises:
        InvalidConsumerError, InvalidTopicNameError, GroupLimitError: the message says what to change.
    """
    group_rules.check_group_id(desk.group_id)
    check_subscription(wanted)
    members = () if desk.group is None else desk.group.members
    if known is None and len(members) + desk.joining() >= group_rules.MEMBERS_MAX:
        raise GroupLimitError(
            f"group {desk.group_id!r} has {group_rules.MEMBERS_MAX} members already; use several groups"
        )


def _check_kind(desk: GroupDesk, member: GroupMember) -> None:
    if member.is_rest:
        raise InvalidConsumerError(
            f"member {member.member_id!r} of group {desk.group_id!r} is a REST consumer and has no heartbeats; "
            "take another member_id"
        )


def _fenced_unless_present(
    desk: GroupDesk, heartbeat: GroupHeartbeatRequest, known: GroupMember | None
) -> GroupMember:
    """The member that speaks, under an epoch that it may have.

    Raises:
        MemberNotFoundError, StaleMemberEpochError: it is not that member any more.
    """
    if known is None:
        raise _absent(desk, heartbeat, heartbeat.member_id)
    if heartbeat.member_epoch > known.member_epoch:
        raise StaleMemberEpochError(
            f"member {known.member_id!r} is at epoch {known.member_epoch}, and not yet at {heartbeat.member_epoch}: "
            "join anew"
        )
    return known


def _absent(desk: GroupDesk, heartbeat: GroupHeartbeatRequest, member_id: str) -> MilenaError:
    """Why a member is none any more."""
    group = desk.group
    is_taken = heartbeat.instance_id is not None and any(
        member.instance_id == heartbeat.instance_id
        for member in (() if group is None else group.members)
    )
    if is_taken or desk.was_succeeded(member_id):
        return _succeeded(desk, member_id)
    return MemberNotFoundError(
        f"group {desk.group_id!r} has no member {member_id!r}, or no longer: join anew, owning nothing"
    )


def _succeeded(desk: GroupDesk, member_id: str) -> MilenaError:
    return StaleMemberEpochError(
        f"another process has taken over the instance id of member {member_id!r} in group {desk.group_id!r}: stop"
    )
