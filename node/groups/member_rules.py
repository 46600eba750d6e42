"""What one member may ask for, judged before it meets what others ask for. Pure."""

from milena.model.errors import InvalidConsumerError
from node.groups import assignors
from node.groups.rebalance import NO_EPOCH
from node.groups.topic_patterns import TopicPattern
from raft_meta.machine import group_rules, partition_sets
from raft_meta.machine.image import GroupMember
from raft_meta.machine.topics import check_name

SESSION_MS = 45_000
SESSION_MS_MIN = 1_000
SESSION_MS_MAX = 300_000
REBALANCE_MS = 60_000
REBALANCE_MS_MIN = 1_000


def newcomer(member_id: str, *, is_rest: bool = False) -> GroupMember:
    """A member that has said nothing but its id."""
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


def check_subscription(member: GroupMember) -> None:
    """Refuse names and settings that no member may have.

    Raises:
        InvalidConsumerError, InvalidTopicNameError: the message says what to change.
    """
    group_rules.check_member(member)
    if not member.topics and member.pattern is None:
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
