"""A group's next state: what becomes of it when members come, go, change their minds and give back. Pure.

A member works on what it holds *and* is to have (``effective``). The steps, taken in one go:

1. Members come and go. Who brings an instance id that the group knows takes its holder's place and partitions.
2. What members gave back, and no longer are to have, is free.
3. Targets are worked out anew; if any differs, or somebody came, that is a new generation.
4. Free partitions go to those who are to have them, once they have given back what they are not to have, and if they
   are there to hear of it.

**Epochs.** What a member works on grows only together with its epoch. So within one epoch it can only shrink, and a
member that says, under its present epoch, that it does not work on something has given it back for good: heartbeats
that were delayed or repeated on their way carry an older epoch, or say nothing that is not true. It also means that
most members live through a rebalance without a change of epoch, and go on committing meanwhile. A generation that a
member has reached cannot be reached again, hence a partition that was waited for may raise the generation too.

What ``raft_meta.machine.groups.groups`` refuses never comes out of here.
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
    """A member joins, or one that is there has other settings: all of ``member`` but its epoch and partitions."""

    member: GroupMember


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member is gone."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A member does not work on these any more, as it said under this epoch."""

    member_id: str
    member_epoch: int
    partitions: PartitionSet


MemberChange = Join | Leave | Release

NO_EPOCH = 0
"""Of a member that has just come, until it is given one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """The state that is to be proposed."""

    generation: int
    assignor: str
    members: tuple[GroupMember, ...]
    """New or changed."""
    left: tuple[str, ...]
    is_rebalance: bool
    """Targets changed."""


def effective(member: GroupMember) -> PartitionSet:
    """Partitions that the member works on."""
    if member.held == member.target:
        return member.held
    return partition_sets.intersection(member.held, member.target)


def to_give_back(member: GroupMember) -> PartitionSet:
    """Partitions that it holds and is not to have."""
    return partition_sets.difference(member.held, member.target)


def waited_for(member: GroupMember) -> PartitionSet:
    """Partitions that it is to have and others still hold."""
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
    """The group after these changes; None when nothing is different.

    Args:
        group: as it is; None: it is not there yet.
        changes: what happened, in order.
        subscriptions: what topics there are.
        present: ids of members that will hear at once what they are given. REST members always do.
        must_assign: False: the targets are those of these members and topics already.
        remembers: members remember whose place they took; False below that feature level.
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
        case Join(member=member):
            _join(members, member, remembers=remembers)
        case Leave(member_id=member_id):
            members.pop(member_id, None)
        case Release(member_id=member_id, member_epoch=epoch, partitions=partitions):
            known = members.get(member_id)
            if known is not None and known.member_epoch == epoch:
                gone = partition_sets.difference(partitions, known.target)
                members[member_id] = replace(
                    known, held=partition_sets.difference(known.held, gone)
                )


def _join(members: dict[str, GroupMember], member: GroupMember, *, remembers: bool) -> None:
    known = members.get(member.member_id)
    former = _of_instance(members.values(), member)
    if former is not None:
        del members[former.member_id]
        if remembers:
            ids = (*former.predecessors, former.member_id)
            member = replace(member, predecessors=group_rules.predecessors(ids))
    if known is not None:
        members[member.member_id] = replace(
            member, member_epoch=known.member_epoch, held=known.held, target=known.target
        )
        return
    # The former process is fenced from now on, so that nobody is left who could give anything back.
    held = () if former is None else effective(former)
    target = () if former is None else former.target
    members[member.member_id] = replace(member, member_epoch=NO_EPOCH, held=held, target=target)


def _of_instance(members: Iterable[GroupMember], newer: GroupMember) -> GroupMember | None:
    """The other member of the same instance id."""
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
    """With this target; a newcomer has nothing in its hands yet that it could give back."""
    held = partition_sets.intersection(member.held, target) if _is_new(member) else member.held
    return replace(member, held=held, target=target)


def _chosen(members: Iterable[GroupMember], present: str) -> str:
    """The assignor that most members want; among equals the present one, else the first by name."""
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
    """Free partitions are given out."""
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
    """Under an epoch that it never had: the generation, unless it has not reached that as long as it has to give back.

    It can have something to give back, and more to work on, only when targets changed; and then the generation before
    this one is new to it as well, for it had not reached that.
    """
    is_there = partition_sets.is_subset(member.held, member.target)
    epoch = generation if is_there else generation - 1
    assert epoch > member.member_epoch, f"{member.member_id}: epoch {epoch} is not new"
    return replace(member, member_epoch=epoch)
