"""Members of groups: new members, limits of their settings, look-ups in the image, and REST consumers. Pure.

A REST consumer with a subscription is a member of its group (``is_rest``, member_id = instance). Its membership follows
from the consumer's entry in the image.
"""

from bisect import bisect_left
from dataclasses import replace

from milena.model.errors import InvalidConsumerError
from node.groups import assignors
from node.groups.rebalance import NO_EPOCH, Join, Leave, MemberChange, effective
from node.groups.subscriptions import TopicPattern
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import GroupMember, Image, PartitionSet
from raft_meta.machine.topics import partition_sets
from raft_meta.machine.topics.topics import check_name

SESSION_MS = 45_000
SESSION_MS_MIN = 1_000
SESSION_MS_MAX = 300_000
REBALANCE_MS = 60_000
REBALANCE_MS_MIN = 1_000


def newcomer(member_id: str, *, is_rest: bool = False) -> GroupMember:
    """Return a new member that has only its id, with default settings."""
    return GroupMember(
        member_id=member_id,
        instance_id=None,
        is_rest=is_rest,
        client_id=member_id if is_rest else "",
        host="",
        topics=(),
        pattern=None,
        assignor=assignors.DEFAULT,
        session_ms=SESSION_MS,
        rebalance_ms=REBALANCE_MS,
        member_epoch=NO_EPOCH,
        held=partition_sets.EMPTY,
        target=partition_sets.EMPTY,
    )


def check_subscription(member: GroupMember, *, may_be_empty: bool = False) -> None:
    """Refuse invalid names and settings of a member. ``may_be_empty``: whether it may subscribe to nothing.

    Raises:
        InvalidConsumerError, InvalidTopicNameError: the message says what to change.
    """
    group_rules.check_member(member)
    if not member.topics and member.pattern is None and not may_be_empty:
        raise InvalidConsumerError("a member subscribes to something: give topics or a pattern")
    for topic in member.topics:
        check_name(topic)
    if member.pattern is not None:
        TopicPattern(member.pattern)
    if member.assignor not in assignors.ASSIGNORS:
        known = ", ".join(sorted(assignors.ASSIGNORS))
        raise InvalidConsumerError(f"assignor {member.assignor!r} is none of {known}")
    if not SESSION_MS_MIN <= member.session_ms <= SESSION_MS_MAX:
        raise InvalidConsumerError(
            f"session_timeout_ms must be {SESSION_MS_MIN}..{SESSION_MS_MAX}, not {member.session_ms}"
        )
    if member.rebalance_ms < REBALANCE_MS_MIN:
        raise InvalidConsumerError(
            f"rebalance_timeout_ms must be at least {REBALANCE_MS_MIN}, not {member.rebalance_ms}"
        )


def member_of(image: Image, group_id: str, member_id: str) -> GroupMember | None:
    """Return the member in the image, or None."""
    group = image.groups.get(group_id)
    if group is None:
        return None
    members = group.members
    place = bisect_left(members, member_id, key=lambda member: member.member_id)
    if place == len(members) or members[place].member_id != member_id:
        return None
    return members[place]


def assignment_of(image: Image, group_id: str, instance: str) -> PartitionSet:
    """Return the partitions that a REST consumer may read: those that it holds and that its target has."""
    member = member_of(image, group_id, instance)
    return partition_sets.EMPTY if member is None or not member.is_rest else effective(member)


def membership_change(image: Image, group_id: str, instance: str) -> MemberChange | None:
    """Return the change that makes a consumer's membership match its subscription; None if it does.

    Raises:
        InvalidConsumerError, InvalidTopicNameError: the consumer cannot be a member with this subscription.
    """
    consumer = image.consumers.get((group_id, instance))
    known = member_of(image, group_id, instance)
    if consumer is None or not (consumer.topics or consumer.pattern is not None):
        is_left_over = known is not None and known.is_rest
        return Leave(member_id=instance) if is_left_over else None
    if known is not None and not known.is_rest:
        raise InvalidConsumerError(
            f"group {group_id!r} has a member {instance!r} that is not a REST consumer; take another instance name"
        )
    wanted = replace(
        known or newcomer(instance, is_rest=True), topics=consumer.topics, pattern=consumer.pattern
    )
    if wanted == known:
        return None
    check_subscription(wanted)
    return Join(member=wanted, is_known=known is not None)
