"""Classic groups: the generations that their clients have finished. Source: Kafka's JoinGroup and SyncGroup, KIP-345.

A member of a classic group, the leader, computes the assignment. So the coordinator runs the rebalance in its memory
and proposes one ``PutClassicGroup`` a generation, before any member gets its assignment. This module only checks it.

Members receive assignments under a generation. So no generation may be written twice with other members or other
assignments, even if two nodes coordinate the group one after the other.
"""

from milena.model.errors import (
    GroupLimitError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
)
from milena.model.types import WallMs
from raft_meta.machine.commands import PutClassicGroup
from raft_meta.machine.groups import group_rules, groups
from raft_meta.machine.image import ClassicGroup, ClassicMember, Group, Image
from raft_meta.machine.outcome import Outcome

ClassicGroupCommand = PutClassicGroup

GENERATION_MAX = (1 << 31) - 1
"""The largest generation of Kafka's protocol."""


def apply(image: Image, index: int, now_ms: WallMs, command: ClassicGroupCommand) -> Outcome:
    """Apply a command of a classic group; ``index`` becomes the group's version.

    Raises:
        StaleBrokerEpochError, NotCoordinatorError, GroupChangedError, InconsistentGroupProtocolError,
        InvalidConsumerError, InvalidRequestError, GroupLimitError: refused.
    """
    before = groups.group_before(image, command)
    if before is not None and before.members:
        raise InconsistentGroupProtocolError(
            f"Group {command.group_id} has {len(before.members)} members that join without Kafka's classic protocol:"
            " stop them first, or use another group."
        )
    after = Group(
        group_id=command.group_id,
        version=index,
        generation=command.generation,
        assignor="",
        members=(),
        emptied_ms=groups.emptied_ms(before, len(command.classic.members), now_ms),
        classic=command.classic,
    )
    _check_bounds(after, command.classic)
    check_step(before, after)
    for problem in group_rules.classic_problems(after):
        raise InvalidRequestError(f"Group {after.group_id}: {problem}.")
    return Outcome(groups.with_group(image, after), index)


def _check_bounds(group: Group, classic: ClassicGroup) -> None:
    group_rules.check_classic_group(classic)
    if len(classic.members) > group_rules.MEMBERS_MAX:
        raise GroupLimitError(
            f"Group {group.group_id} would have {len(classic.members)} members, more than the"
            f" {group_rules.MEMBERS_MAX} that a group may have; use fewer, or several groups."
        )
    size = group_rules.classic_text_bytes(classic)
    if size > group_rules.GROUP_BYTES_MAX:
        raise GroupLimitError(
            f"The names of group {group.group_id}'s members would take {size} bytes, more than"
            f" {group_rules.GROUP_BYTES_MAX}; use fewer members, or shorter names."
        )


def check_step(before: Group | None, after: Group) -> None:
    """Refuse a forbidden step between two states of a classic group, each of which is valid by itself.

    Raises:
        InvalidRequestError: the message names the rule.
    """
    generation = 0 if before is None else before.generation
    if not max(generation, 1) <= after.generation <= GENERATION_MAX:
        raise InvalidRequestError(
            f"Group {after.group_id} has reached generation {generation}; {after.generation} cannot follow it."
        )
    if after.generation > generation:
        return
    if (
        before is None
        or before.classic is None
        or not _is_succession(before.classic, after.classic)
    ):
        raise InvalidRequestError(
            f"Group {after.group_id} has finished generation {generation}: in it, only static members may get other"
            " member ids."
        )


def _is_succession(before: ClassicGroup, after: ClassicGroup | None) -> bool:
    """Return whether ``after`` differs from ``before`` only in the processes of static members."""
    if after is None:
        return False
    return (
        (before.protocol_type, before.protocol, before.has_assignments)
        == (after.protocol_type, after.protocol, after.has_assignments)
        and _shares(before.members) == _shares(after.members)
        and _leader(before) == _leader(after)
    )


def _shares(members: tuple[ClassicMember, ...]) -> dict[tuple[str, str], bytes]:
    return {_identity(member): member.assignment for member in members}


def _leader(group: ClassicGroup) -> tuple[str, str] | None:
    leaders = (_identity(m) for m in group.members if m.member_id == group.leader)
    return next(leaders, None)


def _identity(member: ClassicMember) -> tuple[str, str]:
    """Return what stays the same when a process of the member starts again."""
    if member.instance_id is not None:
        return ("instance", member.instance_id)
    return ("member", member.member_id)
