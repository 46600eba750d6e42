"""Consumer groups: their members, and the partitions that each member holds and is to hold. Source: KIP-848.

A group's coordinator computes the next state and proposes it; this module only checks it. A version is the index of
the command that made it. So a group that was deleted and created again never has a version of the earlier group, and a
state computed for the earlier group is refused.

The promises of groups depend on some rules. So this module refuses a state that breaks one, even if the coordinator
proposes it: a partition held twice, an epoch or generation that goes back, a member that gets a partition that is not
its target, a target that changes within a generation, and a new member under an epoch that an earlier member with its
id may have had.
"""

from collections.abc import Iterator

from milena.model.errors import (
    GroupChangedError,
    GroupLimitError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
)
from milena.model.types import WallMs
from raft_meta.machine.commands import AlterGroup, DeleteGroup, PutClassicGroup
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import coordinators, group_rules
from raft_meta.machine.image import NEVER_MS, Group, GroupMember, Image, RestConsumer
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import partition_sets

GroupCommand = AlterGroup | DeleteGroup


def apply(image: Image, index: int, now_ms: WallMs, command: GroupCommand) -> Outcome:
    """Apply a group command; ``index`` becomes the version of a group that changes.

    Raises:
        StaleBrokerEpochError, NotCoordinatorError, GroupChangedError, GroupNotFoundError, GroupNotEmptyError,
        InconsistentGroupProtocolError, InvalidConsumerError, InvalidRequestError, GroupLimitError: refused.
    """
    match command:
        case AlterGroup():
            return _alter(image, index, now_ms, command)
        case DeleteGroup():
            return _delete(image, command)


def group_before(image: Image, command: AlterGroup | PutClassicGroup) -> Group | None:
    """Return the group that a command of its coordinator replaces; None: the command creates it.

    Raises:
        StaleBrokerEpochError, NotCoordinatorError, GroupChangedError, InvalidConsumerError, GroupLimitError: refused.
    """
    group_rules.check_group_id(command.group_id)
    coordinators.check_coordinator(image, command.group_id, command.broker_id, command.broker_epoch)
    before = image.groups.get(command.group_id)
    present = 0 if before is None else before.version
    if present != command.version:
        raise GroupChangedError(
            f"Group {command.group_id} is at version {present}, not {command.version}."
        )
    if before is None:
        check_room(image)
    return before


def _alter(image: Image, index: int, now_ms: WallMs, command: AlterGroup) -> Outcome:
    before = group_before(image, command)
    if before is not None and before.classic is not None and before.classic.members:
        raise InconsistentGroupProtocolError(
            f"Group {command.group_id} is a classic group with {before.member_count} members: stop them first, or use"
            " another group."
        )
    members = _members(before, command)
    after = Group(
        group_id=command.group_id,
        version=index,
        generation=command.generation,
        assignor=command.assignor,
        members=members,
        emptied_ms=emptied_ms(before, len(members), now_ms),
    )
    if image.feature_level < group_rules.PREDECESSORS_LEVEL and any(
        member.predecessors for member in command.members
    ):
        raise InvalidRequestError("Nodes of an earlier release know no predecessors of members.")
    _check_bounds(before, after, command)
    check_step(before, after)
    _check_partitions(image, command)
    for problem in group_rules.group_problems(after):
        raise InvalidRequestError(f"Group {after.group_id}: {problem}.")
    return Outcome(with_group(image, after), index)


def check_room(image: Image, more: int = 0) -> None:
    """Refuse another group beside the image's groups and ``more``.

    Raises:
        GroupLimitError: the number of groups has reached its limit.
    """
    if len(image.groups) + more >= group_rules.GROUPS_MAX:
        raise GroupLimitError(
            f"There are {group_rules.GROUPS_MAX} consumer groups already; delete some that are not needed."
        )


def _members(before: Group | None, command: AlterGroup) -> tuple[GroupMember, ...]:
    members = {} if before is None else {member.member_id: member for member in before.members}
    for member_id in command.left:
        if members.pop(member_id, None) is None:
            raise InvalidRequestError(
                f"{member_id!r} is not a member of group {command.group_id}: it cannot leave."
            )
    changed = {member.member_id: member for member in command.members}
    if len(changed) != len(command.members) or not changed.keys().isdisjoint(command.left):
        raise InvalidRequestError(f"A member of group {command.group_id} is named twice.")
    members.update(changed)
    if before is None and not members:
        raise InvalidRequestError(f"Group {command.group_id} would come to be without a member.")
    return tuple(members[member_id] for member_id in sorted(members))


def emptied_ms(before: Group | None, member_count: int, now_ms: WallMs) -> WallMs:
    """Return when a group that has ``member_count`` members now lost its last member."""
    if member_count:
        return NEVER_MS
    return before.emptied_ms if before is not None and not before.member_count else now_ms


def _check_bounds(before: Group | None, after: Group, command: AlterGroup) -> None:
    for member in command.members:
        group_rules.check_member(member)
    if len(command.assignor) > group_rules.NAME_LENGTH_MAX:
        raise InvalidRequestError(f"{command.assignor[:64]!r} is not the name of an assignor.")
    if len(after.members) > group_rules.MEMBERS_MAX:
        raise GroupLimitError(
            f"Group {after.group_id} would have {len(after.members)} members, more than the"
            f" {group_rules.MEMBERS_MAX} that a group may have; use fewer, or several groups."
        )
    size = group_rules.text_bytes(after.members)
    if size > group_rules.GROUP_BYTES_MAX and (
        before is None or size > group_rules.text_bytes(before.members)
    ):
        raise GroupLimitError(
            f"The names and subscriptions of group {after.group_id} would take {size} bytes, more than"
            f" {group_rules.GROUP_BYTES_MAX}; use fewer members, or patterns in place of many topics."
        )


def check_step(before: Group | None, after: Group) -> None:
    """Refuse a forbidden step between two states of a group, each of which is valid by itself.

    Raises:
        InvalidRequestError: the message names the member and the rule.
    """
    former = {} if before is None else {member.member_id: member for member in before.members}
    generation = 0 if before is None else before.generation
    if after.generation < generation:
        raise InvalidRequestError(
            f"Group {after.group_id} has reached generation {generation}; {after.generation} is behind it."
        )
    for member in after.members:
        for problem in _step_problems(former.get(member.member_id), member, generation, after):
            raise InvalidRequestError(
                f"Group {after.group_id}, member {member.member_id}: {problem}."
            )


def _step_problems(
    before: GroupMember | None, after: GroupMember, generation: int, group: Group
) -> Iterator[str]:
    if before is None:
        if after.member_epoch <= generation:
            yield f"a newcomer needs a generation above {generation}, not epoch {after.member_epoch}"
        if not partition_sets.is_subset(after.held, after.target):
            yield "a newcomer would hold what is not its target"
        return
    if after.member_epoch < before.member_epoch:
        yield f"its epoch would go back from {before.member_epoch} to {after.member_epoch}"
    if after.target != before.target and group.generation == generation:
        yield f"its target would change within generation {generation}"
    if after.held != before.held and not partition_sets.is_subset(
        partition_sets.difference(after.held, before.held), after.target
    ):
        yield "it would come to hold what is not its target"
    if after.is_rest != before.is_rest:
        yield "it would become another kind of member"


def _check_partitions(image: Image, command: AlterGroup) -> None:
    for member in command.members:
        for partitions in (member.held, member.target):
            if not partition_sets.is_canonical(partitions):
                raise InvalidRequestError(
                    f"Partitions of member {member.member_id} are not in canonical order."
                )
            absent = group_rules.absent_partition(image, partitions)
            if absent is not None:
                # Only a topic that was deleted in the meantime leads here. As for any other change, the coordinator
                # computes the state again.
                raise GroupChangedError(f"{absent} does not exist, or no longer.")


def _delete(image: Image, command: DeleteGroup) -> Outcome:
    coordinators.check_coordinator(
        image,
        command.group_id,
        command.broker_id,
        command.broker_epoch,
        command.coordinators_version,
    )
    group = image.groups.get(command.group_id)
    if group is None:
        raise GroupNotFoundError(f"There is no group {command.group_id}.")
    if group.member_count:
        raise GroupNotEmptyError(
            f"Group {command.group_id} has {group.member_count} members; stop them first."
        )
    return Outcome(without_group(image, group.group_id))


def with_group(image: Image, group: Group) -> Image:
    """Return the image with this state of the group."""
    return replace(image, groups=image.groups.set(group.group_id, group))


def without_group(image: Image, group_id: str) -> Image:
    """Return the image without the group and its offsets."""
    after = replace(image, groups=image.groups.delete(group_id))
    offsets = image.offsets.get(group_id)
    if offsets is None:
        return after
    return replace(
        after,
        offsets=image.offsets.delete(group_id),
        offset_count=image.offset_count - len(offsets),
    )


def without_member(image: Image, index: int, now_ms: WallMs, group: Group, member_id: str) -> Image:
    """Return the image without one member of the group; its partitions are free."""
    members = tuple(member for member in group.members if member.member_id != member_id)
    after = replace(
        group, version=index, members=members, emptied_ms=emptied_ms(group, len(members), now_ms)
    )
    return with_group(image, after)


# --- topics that are deleted ---


def without_topic(image: Image, index: int, topic_id: str) -> Image:
    """Return the image in which no group and no consumer names the topic's partitions.

    Held and target partitions of other topics stay. The groups' versions rise, so that a state that a coordinator
    computed with the topic is refused.
    """
    groups = {
        group_id: replace(group, version=index, members=members)
        for group_id, group in image.groups.items()
        if (members := _members_without(group.members, topic_id)) is not group.members
    }
    consumers = {
        key: replace(consumer, assigned=partition_sets.without_topic(consumer.assigned, topic_id))
        for key, consumer in image.consumers.items()
        if _names_topic(consumer, topic_id)
    }
    return replace(
        image, groups=image.groups.update(groups), consumers=image.consumers.update(consumers)
    )


def _members_without(members: tuple[GroupMember, ...], topic_id: str) -> tuple[GroupMember, ...]:
    """Return the members without the topic's partitions; the same object if no member names the topic."""
    changed = tuple(_member_without(member, topic_id) for member in members)
    is_same = all(new is old for new, old in zip(changed, members, strict=True))
    return members if is_same else changed


def _member_without(member: GroupMember, topic_id: str) -> GroupMember:
    held = partition_sets.without_topic(member.held, topic_id)
    target = partition_sets.without_topic(member.target, topic_id)
    if held is member.held and target is member.target:
        return member
    return replace(member, held=held, target=target)


def _names_topic(consumer: RestConsumer, topic_id: str) -> bool:
    return any(other == topic_id for other, _ in consumer.assigned)
