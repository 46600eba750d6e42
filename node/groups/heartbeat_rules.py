"""The rules of heartbeats: the changes that one asks for, and the response to its member. Pure. Source: KIP-848.

A heartbeat names what its member wants (topics, settings) and what it works on. Fields that it omits stay unchanged. A
heartbeat that changes nothing writes nothing.

A heartbeat may be repeated at any time. A member id joins only once, and a member gives partitions back only under its
present epoch (see ``rebalance``).
"""

from dataclasses import replace

from http_api.ports.groups import Heartbeat, HeartbeatAnswer, KafkaHeartbeat
from milena.model.errors import (
    GroupLimitError,
    InstanceHeldError,
    InvalidConsumerError,
    MemberFencedError,
    MemberNotFoundError,
    MilenaError,
    StaleMemberEpochError,
)
from node.groups.descriptions import TopicNames
from node.groups.members import check_subscription, newcomer
from node.groups.rebalance import Join, effective, waited_for
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Group, GroupMember, PartitionSet

JOIN = 0
LEAVE = -1
AWAY = -2
"""The epoch by which a static member of Kafka says that it stops, and that its successor may come soon."""
INTERVAL_MS = 5_000
"""The pause between heartbeats of members with ordinary sessions; KIP-848's default."""
INTERVALS_PER_SESSION = 3
REMINDER_MS = 1_000
"""The longest time for which a heartbeat is held back if its member has not yet adopted its last assignment."""


# -- requests ------------------------------------------------------------------------------------


def check_epoch(heartbeat: Heartbeat) -> None:
    """Refuse an invalid member epoch.

    Raises:
        InvalidConsumerError: the epoch is below -1, or -2 for a member that is not static.
    """
    may_be_away = isinstance(heartbeat, KafkaHeartbeat) and heartbeat.instance_id is not None
    if heartbeat.member_epoch < (AWAY if may_be_away else LEAVE):
        raise InvalidConsumerError(
            f"member_epoch {heartbeat.member_epoch}: give 0 to join, -1 to leave, else the epoch of the last answer"
        )


def check_kind(group_id: str, member: GroupMember) -> None:
    """Refuse a heartbeat for a REST consumer.

    Raises:
        InvalidConsumerError: the member is a REST consumer.
    """
    if member.is_rest:
        raise InvalidConsumerError(
            f"member {member.member_id!r} of group {group_id!r} is a REST consumer and has no heartbeats; "
            "take another member_id"
        )


def check_instance(heartbeat: Heartbeat, member: GroupMember) -> None:
    """Refuse an instance id other than the member's; only a process that joins may take one over.

    Raises:
        InvalidConsumerError: the instance ids differ.
    """
    if heartbeat.instance_id not in (None, member.instance_id):
        named = "none" if member.instance_id is None else repr(member.instance_id)
        raise InvalidConsumerError(
            f"member {member.member_id!r} of group {heartbeat.group_id!r} joined with instance_id {named}, not "
            f"{heartbeat.instance_id!r}: join under another member_id"
        )


def check_not_ahead(heartbeat: Heartbeat, member: GroupMember) -> None:
    """Refuse an epoch that the member cannot have received.

    Raises:
        StaleMemberEpochError: the epoch is above the member's.
    """
    if heartbeat.member_epoch > member.member_epoch:
        raise StaleMemberEpochError(
            f"member {member.member_id!r} is at epoch {member.member_epoch}, and not yet at {heartbeat.member_epoch}: "
            "join again"
        )


def wanted_by(heartbeat: Heartbeat, known: GroupMember | None) -> Join | None:
    """Return the join that the heartbeat asks for, of a new member or with new settings; None if nothing is new.

    Raises:
        InvalidConsumerError, InvalidTopicNameError: the subscription or a setting is invalid; see the message.
    """
    wanted = _with_settings(known or newcomer(heartbeat.member_id), heartbeat)
    if wanted == known:
        return None
    group_rules.check_group_id(heartbeat.group_id)
    check_subscription(wanted, may_be_empty=isinstance(heartbeat, KafkaHeartbeat))
    return Join(member=wanted, is_known=known is not None)


def check_room(group_id: str, member_count: int) -> None:
    """Refuse one more member in a full group; ``member_count`` includes those that are joining.

    Raises:
        GroupLimitError: the group has ``MEMBERS_MAX`` members.
    """
    if member_count >= group_rules.MEMBERS_MAX:
        raise GroupLimitError(
            f"group {group_id!r} has {group_rules.MEMBERS_MAX} members already; use several groups"
        )


def _with_settings(known: GroupMember, heartbeat: Heartbeat) -> GroupMember:
    topics, pattern = known.topics, known.pattern
    if isinstance(heartbeat, KafkaHeartbeat):
        topics = topics if heartbeat.topics is None else tuple(sorted(set(heartbeat.topics)))
        pattern = pattern if heartbeat.pattern is None else heartbeat.pattern or None
    elif heartbeat.topics is not None or heartbeat.pattern is not None:
        topics, pattern = tuple(sorted(set(heartbeat.topics or ()))), heartbeat.pattern
    return replace(
        known,
        instance_id=known.instance_id if heartbeat.instance_id is None else heartbeat.instance_id,
        client_id=heartbeat.client_id or known.client_id,
        # The host of the first heartbeat counts; later ones may arrive by other paths.
        host=known.host or heartbeat.host,
        topics=topics,
        pattern=pattern,
        assignor=heartbeat.assignor or known.assignor,
        session_ms=_or(heartbeat.session_timeout_ms, known.session_ms),
        rebalance_ms=_or(heartbeat.rebalance_timeout_ms, known.rebalance_ms),
    )


def _or(said: int | None, known: int) -> int:
    return known if said is None else said


# -- responses -----------------------------------------------------------------------------------


def hold_back_ms(
    heartbeat: Heartbeat,
    member: GroupMember,
    owned: PartitionSet | None,
    *,
    is_told: bool,
) -> int:
    """Return for how long the response is held back without news, in ms from the heartbeat's arrival.

    Args:
        heartbeat: the heartbeat.
        member: the member in the image.
        owned: the partitions that the member says it works on; None if it does not say.
        is_told: whether the member's last response had its present assignment.
    """
    if heartbeat.member_epoch != member.member_epoch or not is_told:
        return 0
    wait_ms = min(heartbeat.wait_ms, member.session_ms // 2)
    is_done = owned is None or owned == effective(member)
    return wait_ms if is_done else min(wait_ms, REMINDER_MS)


def present_answer(group: Group | None, member: GroupMember, names: TopicNames) -> HeartbeatAnswer:
    """Return the response to a member, with its present assignment."""
    return HeartbeatAnswer(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        generation=_generation(group),
        heartbeat_interval_ms=min(INTERVAL_MS, member.session_ms // INTERVALS_PER_SESSION),
        assignment=names.to_names(effective(member)),
        pending=names.to_names(waited_for(member)),
    )


def farewell(group: Group | None, member_id: str, member_epoch: int = LEAVE) -> HeartbeatAnswer:
    """Return the response to a member that has left, or that is away."""
    return HeartbeatAnswer(
        member_id=member_id,
        member_epoch=member_epoch,
        generation=_generation(group),
        heartbeat_interval_ms=INTERVAL_MS,
        assignment=(),
        pending=(),
    )


def _generation(group: Group | None) -> int:
    return 0 if group is None else group.generation


def absent(heartbeat: Heartbeat, group: Group | None, *, was_succeeded: bool) -> MilenaError:
    """Return the error for a member that is not in the group any more."""
    is_taken = heartbeat.instance_id is not None and any(
        member.instance_id == heartbeat.instance_id
        for member in (() if group is None else group.members)
    )
    if is_taken or was_succeeded:
        return succeeded(heartbeat)
    return MemberNotFoundError(
        f"group {heartbeat.group_id!r} has no member {heartbeat.member_id!r}, or no longer: join again, owning nothing"
    )


def held(heartbeat: Heartbeat) -> MilenaError:
    """Return the error for a member of Kafka that joins under an instance id which another member has."""
    return InstanceHeldError(
        f"another member of group {heartbeat.group_id!r} has the instance id {heartbeat.instance_id!r}: stop that "
        "member, or use another instance id"
    )


def succeeded(heartbeat: Heartbeat) -> MilenaError:
    """Return the error for a member that must stop, because another process has taken over its instance id."""
    return MemberFencedError(
        f"another process has taken over the instance id of member {heartbeat.member_id!r} in group "
        f"{heartbeat.group_id!r}: stop"
    )
