"""A group's next state after members join, leave, change settings and give back partitions. Pure.

A member *holds* partitions, and has a *target*, the partitions that it should hold. It works on those in both
(``effective``). One call takes these steps:

1. Members join and leave. A member with an instance id of the group takes the place and partitions of its holder.
2. Partitions that members gave back, and that are not in their targets, become free.
3. Targets are computed again. If any differs, or a member joined, a new generation starts.
4. Free partitions go to the members whose targets have them. A member gets them only after it has given back everything
   outside its target, and if it will learn of them at once.

**Epochs.** The partitions that a member works on grow only together with its epoch. So within one epoch they only
shrink. A member that says, under its present epoch, that it does not work on a partition has given that back
permanently: delayed or repeated heartbeats carry an older epoch, or say what is still true. Most members therefore keep
their epoch during a rebalance, and continue to commit. A member cannot reach the same generation twice. So a partition
that a member waited for may raise the generation, too.

No result of this module is refused by ``raft_meta.machine.groups.groups``.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from node.groups import assignors
from node.groups.assignors import Assignment, Subscriber
from node.groups.subscriptions import Subscriptions
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Group, GroupMember, PartitionKey, PartitionSet
from raft_meta.machine.topics import partition_sets


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A member that joins, or that has new settings. The epoch and partitions of ``member`` are ignored.

    ``before``: the member when the change was made; None: there was none. Other changes of the same member may be
    written before this one.
    """

    member: GroupMember
    before: GroupMember | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member that leaves, or is removed."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Partitions that a member does not work on any more, as it said under this epoch."""

    member_id: str
    member_epoch: int
    partitions: PartitionSet


MemberChange = Join | Leave | Release

NO_EPOCH = 0
"""The epoch of a member that has just joined, until it gets one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """The state to propose."""

    generation: int
    assignor: str
    members: tuple[GroupMember, ...]
    """New or changed."""
    left: tuple[str, ...]
    is_rebalance: bool
    """Whether targets changed."""


def effective(member: GroupMember) -> PartitionSet:
    """Return the partitions that the member works on: held and in its target."""
    if member.held == member.target:
        return member.held
    return partition_sets.intersection(member.held, member.target)


def to_give_back(member: GroupMember) -> PartitionSet:
    """Return the partitions that the member holds and that are not in its target."""
    return partition_sets.difference(member.held, member.target)


def waited_for(member: GroupMember) -> PartitionSet:
    """Return the partitions of the member's target that it does not hold yet."""
    return partition_sets.difference(member.target, member.held)


def next_state(
    group: Group | None,
    changes: Iterable[MemberChange],
    subscriptions: Subscriptions,
    *,
    present: Container[str],
    must_assign: bool = True,
    remembers: bool = True,
) -> NextState | None:
    """Return the group after these changes, or None if nothing differs.

    Args:
        group: the present group; None if it does not exist yet.
        changes: the changes, in order.
        subscriptions: the topics of the image.
        present: ids of members that will learn at once of new partitions. REST members always do.
        must_assign: False if the present targets are right for these members and topics.
        remembers: whether members keep the ids of their predecessors; False below that feature level.
    """
    before = {} if group is None else {member.member_id: member for member in group.members}
    members = dict(before)
    for change in changes:
        _take(members, change, remembers=remembers)
    assignor = _chosen(members.values(), "" if group is None else group.assignor)
    targets = (
        _targets(assignor, members.values(), subscriptions)
        if must_assign
        else {member.member_id: member.target for member in members.values()}
    )
    is_rebalance = any(targets[m.member_id] != m.target for m in members.values())
    generation = 0 if group is None else group.generation
    if is_rebalance or any(_is_new(member) for member in members.values()):
        generation += 1
    after = _given([_aimed(m, targets[m.member_id]) for m in members.values()], present)
    grown = {
        member.member_id
        for member in after
        if _is_new(member) or _has_grown(before[member.member_id], member)
    }
    if any(m.member_epoch >= generation for m in after if m.member_id in grown):
        generation += 1
    changed = tuple(
        member
        for member in (_promoted(m, generation) if m.member_id in grown else m for m in after)
        if member != before.get(member.member_id)
    )
    left = tuple(sorted(before.keys() - members.keys()))
    if not changed and not left:
        return None
    return NextState(
        generation=generation,
        assignor=assignor,
        members=tuple(sorted(changed, key=lambda member: member.member_id)),
        left=left,
        is_rebalance=is_rebalance,
    )


def _take(members: dict[str, GroupMember], change: MemberChange, *, remembers: bool) -> None:
    match change:
        case Join():
            _join(members, change, remembers=remembers)
        case Leave(member_id=member_id):
            members.pop(member_id, None)
        case Release(member_id=member_id, member_epoch=epoch, partitions=partitions):
            known = members.get(member_id)
            if known is not None and known.member_epoch == epoch:
                gone = partition_sets.difference(partitions, known.target)
                members[member_id] = replace(
                    known, held=partition_sets.difference(known.held, gone)
                )


def _join(members: dict[str, GroupMember], change: Join, *, remembers: bool) -> None:
    member, known = change.member, members.get(change.member.member_id)
    if known is None and change.before is not None:
        # It has left meanwhile, or another process has taken over its instance id.
        return
    former = _of_instance(members.values(), member)
    if former is not None:
        del members[former.member_id]
        if remembers:
            ids = (*former.predecessors, former.member_id)
            member = replace(member, predecessors=group_rules.predecessors(ids))
    if known is not None:
        settings = {name: getattr(member, name) for name in _SETTINGS}
        if change.before is not None:
            settings = {
                name: value
                for name, value in settings.items()
                if value != getattr(change.before, name)
            }
        # A repeated join may leave the instance id out.
        settings["instance_id"] = member.instance_id or known.instance_id
        predecessors = known.predecessors if former is None else member.predecessors
        members[member.member_id] = replace(known, **settings, predecessors=predecessors)
        return
    # The former process is fenced from now on and cannot give anything back. So the new one takes over only what the
    # former one worked on.
    held = () if former is None else effective(former)
    target = () if former is None else former.target
    members[member.member_id] = replace(member, member_epoch=NO_EPOCH, held=held, target=target)


_SETTINGS = (
    "assignor",
    "client_id",
    "host",
    "pattern",
    "rebalance_ms",
    "session_ms",
    "topics",
)
"""The settings that a heartbeat may change in a member that exists."""


def _of_instance(members: Iterable[GroupMember], newer: GroupMember) -> GroupMember | None:
    """Return the other member with the same instance id, or None."""
    if newer.instance_id is None:
        return None
    return next(
        (
            member
            for member in members
            if member.instance_id == newer.instance_id and member.member_id != newer.member_id
        ),
        None,
    )


def _is_new(member: GroupMember) -> bool:
    return member.member_epoch == NO_EPOCH


def _aimed(member: GroupMember, target: PartitionSet) -> GroupMember:
    """Return the member with this target; a new member holds nothing outside it, because it works on nothing yet."""
    held = partition_sets.intersection(member.held, target) if _is_new(member) else member.held
    return replace(member, held=held, target=target)


def _chosen(members: Iterable[GroupMember], present: str) -> str:
    """Return the assignor that most members want; among equals the present one, else the first by name."""
    wanted = Counter(member.assignor for member in members)
    if not wanted:
        return present
    return min(wanted, key=lambda name: (-wanted[name], name != present, name))


def _targets(
    assignor: str, members: Iterable[GroupMember], subscriptions: Subscriptions
) -> Assignment:
    subscribers = [
        Subscriber(
            member_id=member.member_id,
            order=member.instance_id or member.member_id,
            topic_ids=subscriptions.topic_ids(member),
            target=member.target,
        )
        for member in members
    ]
    if not subscribers:
        return {}
    wanted = frozenset[str]().union(*(subscriber.topic_ids for subscriber in subscribers))
    return assignors.assign(assignor, subscribers, subscriptions.topics(wanted))


def _given(members: Sequence[GroupMember], present: Container[str]) -> list[GroupMember]:
    """Return the members after free partitions were given out."""
    holders: dict[PartitionKey, str] = {
        key: member.member_id for member in members for key in partition_sets.keys_of(member.held)
    }
    return [
        replace(member, held=partition_sets.union(member.held, _free(member, holders)))
        if member.held != member.target
        and (member.is_rest or member.member_id in present)
        and partition_sets.is_subset(member.held, member.target)
        else member
        for member in members
    ]


def _free(member: GroupMember, holders: Mapping[PartitionKey, str]) -> PartitionSet:
    return partition_sets.of(
        key for key in partition_sets.keys_of(member.target) if key not in holders
    )


def _has_grown(before: GroupMember, after: GroupMember) -> bool:
    if before.held == after.held and before.target == after.target:
        return False
    return not partition_sets.is_subset(effective(after), effective(before))


def _promoted(member: GroupMember, generation: int) -> GroupMember:
    """Return the member under an epoch that it never had.

    The epoch is the generation, or the one before if the member has partitions to give back and so has not reached the
    generation. A member can have partitions to give back, and more to work on, only if targets changed. Then the
    generation before this one is also new to it, because it had not reached that.
    """
    is_there = partition_sets.is_subset(member.held, member.target)
    epoch = generation if is_there else generation - 1
    assert epoch > member.member_epoch, f"{member.member_id}: epoch {epoch} is not new"
    return replace(member, member_epoch=epoch)
