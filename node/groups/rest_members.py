"""What the coordinator of groups and the keeper of REST consumers (``node.consumers``) agree on. Same node, same loop.

A REST consumer with a subscription is a member of its group (``is_rest``, member_id = instance). Its membership follows
from the image: ``RestConsumer.topics`` and ``pattern`` say that it is to be a member, and under which subscription.

The keeper, on the group's coordinator:

- puts the consumer (PutConsumer) or deletes it (DeleteConsumers), and then awaits
  ``GroupCoordinator.settle(group_id, instance)``: it returns once the group's membership says what the consumer's
  subscription says (joined under it, or left), with partitions shared out anew. A coordinator that takes over settles
  all consumers of its groups by itself, so that nothing stays half done;
- reads what the consumer has in the image: ``assignment_of(image, group_id, instance)``, empty while it is no member.
  It may deliver those partitions; what is not in there it must not deliver, nor commit;
- commits through ``GroupCommits.commit(GroupCommit(...))`` under the member's present epoch
  (``member_of(image, group_id, instance).member_epoch``), as everybody does;
- implements ``RestMembers`` below, told to the coordinator by ``GroupCoordinator.use_rest_members(keeper)``, and calls
  ``GroupCoordinator.look(group_id)`` when what kept it from letting go is over;
- keeps idle consumers' time itself: REST members have no session here.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import Protocol

from milena.model.errors import InvalidConsumerError
from node.groups.member_rules import check_subscription, newcomer
from node.groups.rebalance import Change, Join, Leave, effective
from raft_meta.machine import partition_sets
from raft_meta.machine.image import GroupMember, Image, PartitionSet


class RestMembers(Protocol):
    """The keeper of REST consumers, as the coordinator sees it."""

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Whether the consumer has let go of these, of which it delivers nothing from now on.

        False: a call is under way, or what was delivered is being committed; ``GroupCoordinator.look`` says when to
        ask again. The coordinator asks for a rebalance timeout's time, and then takes them away.
        """


def member_of(image: Image, group_id: str, member_id: str) -> GroupMember | None:
    """The member in the image."""
    group = image.groups.get(group_id)
    if group is None:
        return None
    members = group.members
    place = bisect_left(members, member_id, key=lambda member: member.member_id)
    if place == len(members) or members[place].member_id != member_id:
        return None
    return members[place]


def assignment_of(image: Image, group_id: str, instance: str) -> PartitionSet:
    """What the consumer may read: its own by the latest plan, and in nobody else's hands."""
    member = member_of(image, group_id, instance)
    return partition_sets.EMPTY if member is None or not member.is_rest else effective(member)


def membership_change(image: Image, group_id: str, instance: str) -> Change | None:
    """What makes the group's membership follow the consumer's subscription; None: it does.

    Raises:
        InvalidConsumerError, InvalidTopicNameError: it cannot be such a member.
    """
    consumer = image.consumers.get((group_id, instance))
    known = member_of(image, group_id, instance)
    if consumer is None or not (consumer.topics or consumer.pattern is not None):
        is_left_over = known is not None and known.is_rest
        return Leave(member_id=instance) if is_left_over else None
    if known is not None and not known.is_rest:
        raise InvalidConsumerError(
            f"group {group_id!r} has a member {instance!r} that is no REST consumer; take another instance name"
        )
    wanted = replace(
        known or newcomer(instance, is_rest=True), topics=consumer.topics, pattern=consumer.pattern
    )
    if wanted == known:
        return None
    check_subscription(wanted)
    return Join(member=wanted)
