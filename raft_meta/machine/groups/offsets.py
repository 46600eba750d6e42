"""Committed offsets: the positions at which groups continue to read.

Many commits travel in one command. Each is accepted as a whole or refused. The member's epoch and its held partitions
fence a commit: a member that lost a partition, or counts as dead, cannot move the offset of its successor. A commit
without a member is accepted only while the group has no members. Such commits are from tools that reset offsets, and
from consumers that assign partitions manually.

Offsets are deleted with their topic and with their group. They also expire offsets.retention.minutes after the group
became empty or the offset was committed, from the later of the two. Source: KIP-211.
"""

from collections.abc import Iterable, Mapping

from immutables import Map

from milena.model.errors import (
    ConflictError,
    FencedError,
    GenerationError,
    GroupLimitError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSubscribedError,
    InvalidConsumerError,
    InvalidRequestError,
    LimitReachedError,
    MemberFencedError,
    MemberNotFoundError,
    NotFoundError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    TopicNotFoundError,
    UnavailableError,
)
from milena.model.types import WallMs
from raft_meta.machine.commands import (
    CommitOffsets,
    DeleteOffsets,
    ExpireOffsets,
    GroupCommit,
    GroupExpiry,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import coordinators, group_rules, groups
from raft_meta.machine.image import CommittedOffset, Group, Image, PartitionKey, Topic
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics.configs import LONG_MAX

OffsetCommand = CommitOffsets | ExpireOffsets | DeleteOffsets

REFUSALS = (
    ConflictError,
    FencedError,
    InvalidRequestError,
    LimitReachedError,
    NotFoundError,
    UnavailableError,
)
"""The errors by which a commit may be refused."""

_NONE: Map[PartitionKey, CommittedOffset] = Map()


def apply(image: Image, index: int, now_ms: WallMs, command: OffsetCommand) -> Outcome:
    """Apply a command about offsets; ``now_ms`` becomes the time of a commit.

    Raises:
        StaleBrokerEpochError, NotCoordinatorError, RequestTooLargeError: refused as a whole.
        GroupNotFoundError, GroupSubscribedError: refused, of ``DeleteOffsets``.
    """
    if isinstance(command, ExpireOffsets):
        return _expire(image, command)
    if isinstance(command, DeleteOffsets):
        return _delete(image, command)
    coordinators.check_broker(image, command.broker_id, command.broker_epoch)
    if len(command.commits) > group_rules.COMMITS_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.commits)} commits in one command; at most {group_rules.COMMITS_PER_COMMAND_MAX}."
        )
    gathered = Gathered(image, index, now_ms)
    coordinated = coordinators.Coordinators(image)
    answers: list[str] = []
    for commit in command.commits:
        try:
            coordinated.check(commit.group_id, command.broker_id, commit.coordinators_version)
            check_commit(image, commit)
            gathered.add((commit,))
        except REFUSALS as error:
            answers.append(error.code)
        else:
            answers.append("")
    return Outcome(gathered.image(), tuple(answers))


class Gathered:
    """The commits of one command, collected for one new image: a thousand commits do not make a thousand images."""

    def __init__(self, image: Image, index: int, now_ms: WallMs) -> None:
        self._image = image
        self._index = index
        self._now_ms = now_ms
        self._offsets: dict[str, Map[PartitionKey, CommittedOffset]] = {}
        self._count = image.offset_count
        self._made: dict[str, Group] = {}

    def add(self, commits: Iterable[GroupCommit]) -> None:
        """Add commits that were checked, all of them or none.

        Raises:
            GroupLimitError: there would be too many groups or offsets; none of the commits was added.
        """
        offsets: dict[str, Map[PartitionKey, CommittedOffset]] = {}
        made: dict[str, Group] = {}
        count = self._count
        for commit in commits:
            group_id = commit.group_id
            before = offsets.get(group_id, self._offsets_of(group_id))
            offsets[group_id] = before.update(self._committed(commit))
            count += len(offsets[group_id]) - len(before)
            if not any(group_id in known for known in (self._image.groups, self._made, made)):
                groups.check_room(self._image, len(self._made) + len(made))
                made[group_id] = self._group(group_id)
        if count > max(self._count, group_rules.OFFSETS_MAX):
            raise GroupLimitError(
                f"Groups have committed {group_rules.OFFSETS_MAX} offsets already; delete groups that are not needed."
            )
        self._offsets.update(offsets)
        self._made.update(made)
        self._count = count

    def _offsets_of(self, group_id: str) -> Map[PartitionKey, CommittedOffset]:
        taken = self._offsets.get(group_id)
        return self._image.offsets.get(group_id, _NONE) if taken is None else taken

    def _committed(self, commit: GroupCommit) -> dict[PartitionKey, CommittedOffset]:
        return {
            (item.topic_id, item.partition): CommittedOffset(
                offset=item.offset,
                leader_epoch=item.leader_epoch,
                metadata=item.metadata,
                commit_ms=self._now_ms,
            )
            for item in commit.offsets
        }

    def _group(self, group_id: str) -> Group:
        return Group(
            group_id=group_id,
            version=self._index,
            generation=0,
            assignor="",
            members=(),
            emptied_ms=self._now_ms,
        )

    def image(self) -> Image:
        """Return the image with all added commits."""
        after = self._image
        # An update without changes makes another map. Listeners of groups would then scan all groups at every command.
        if self._offsets:
            offsets = after.offsets.update(self._offsets)
            after = replace(after, offsets=offsets, offset_count=self._count)
        if self._made:
            after = replace(after, groups=after.groups.update(self._made))
        return after


def check_commit(image: Image, commit: GroupCommit) -> None:
    """Refuse a commit that breaks a rule, by this image. Proposers also call it before the command.

    Raises:
        InvalidConsumerError, RequestTooLargeError: ids or values out of bounds.
        TopicNotFoundError, PartitionNotFoundError: it names a partition that does not exist.
        MemberNotFoundError, StaleMemberEpochError, MemberFencedError: fenced.
        GenerationError: the group is classic and at another generation.
        GroupNotEmptyError: without a member, while the group has some.
    """
    group_rules.check_group_id(commit.group_id)
    check_values(image, commit)
    group = image.groups.get(commit.group_id)
    if commit.member_id is None:
        if group is not None and group.member_count:
            raise GroupNotEmptyError(
                f"Group {commit.group_id} has {group.member_count} members: only they commit. Stop them first, or"
                " name the member and its epoch."
            )
        return
    if group is not None and group.classic is not None:
        _check_classic_member(group, commit.member_id, commit.member_epoch)
        return
    member = group_rules.member_of(group, commit.member_id)
    if member is None and group_rules.successor_of(group, commit.member_id) is not None:
        raise MemberFencedError(
            f"Another process has taken over the instance id of member {commit.member_id} in group {commit.group_id}:"
            " stop."
        )
    if member is None:
        raise MemberNotFoundError(
            f"Group {commit.group_id} has no member {commit.member_id}, or no longer: join again."
        )
    if member.member_epoch != commit.member_epoch:
        raise StaleMemberEpochError(
            f"Member {commit.member_id} is at epoch {member.member_epoch}, not {commit.member_epoch}: heartbeat first."
        )
    held = {topic_id: frozenset(numbers) for topic_id, numbers in member.held}
    for item in commit.offsets:
        if item.partition not in held.get(item.topic_id, ()):
            raise StaleMemberEpochError(
                f"{image.topics[item.topic_id].name}-{item.partition} is not held by member {commit.member_id}."
            )


def _check_classic_member(group: Group, member_id: str, generation: int) -> None:
    if group_rules.classic_member_of(group, member_id) is None:
        raise MemberNotFoundError(
            f"Group {group.group_id} has no member {member_id}, or no longer: join again."
        )
    if generation != group.generation:
        raise GenerationError(
            f"Group {group.group_id} is at generation {group.generation}, not {generation}: join again."
        )


def check_values(image: Image, commit: GroupCommit) -> None:
    """Refuse a commit that names no existing partition, or values out of bounds.

    Raises:
        InvalidConsumerError, RequestTooLargeError, TopicNotFoundError, PartitionNotFoundError: the reason.
    """
    if not commit.offsets:
        raise InvalidConsumerError("A commit needs at least one offset.")
    if len(commit.offsets) > group_rules.OFFSETS_PER_COMMIT_MAX:
        raise RequestTooLargeError(
            f"One commit has at most {group_rules.OFFSETS_PER_COMMIT_MAX} offsets, not {len(commit.offsets)}."
        )
    for item in commit.offsets:
        topic = image.topics.get(item.topic_id)
        if topic is None:
            raise TopicNotFoundError(f"There is no topic with id {item.topic_id}.")
        if not 0 <= item.partition < topic.partition_count:
            raise PartitionNotFoundError(f"Topic '{topic.name}' has no partition {item.partition}.")
        if not (0 <= item.offset <= LONG_MAX and -1 <= item.leader_epoch <= LONG_MAX):
            raise InvalidConsumerError(
                f"Offset {item.offset} of {topic.name}-{item.partition} cannot be committed."
            )
        group_rules.check_metadata(item.metadata)


# --- offsets that are deleted ---


def _expire(image: Image, command: ExpireOffsets) -> Outcome:
    coordinators.check_broker(image, command.broker_id, command.broker_epoch)
    coordinated = coordinators.Coordinators(image)
    forgotten: list[int] = []
    for expiry in command.groups:
        coordinated.check(expiry.group_id, command.broker_id)
    for expiry in command.groups:
        group = image.groups.get(expiry.group_id)
        if group is None or group.member_count or group.emptied_ms >= expiry.before_ms:
            forgotten.append(0)
            continue
        kept = _kept(image, expiry)
        forgotten.append(len(image.offsets.get(expiry.group_id, _NONE)) - len(kept))
        image = (
            _with_offsets(image, expiry.group_id, kept)
            if kept
            else groups.without_group(image, expiry.group_id)
        )
    return Outcome(image, tuple(forgotten))


def _delete(image: Image, command: DeleteOffsets) -> Outcome:
    coordinators.check_coordinator(
        image,
        command.group_id,
        command.broker_id,
        command.broker_epoch,
        command.coordinators_version,
    )
    if len(command.partitions) > group_rules.OFFSETS_PER_COMMIT_MAX:
        raise RequestTooLargeError(
            f"One request deletes at most {group_rules.OFFSETS_PER_COMMIT_MAX} offsets, not {len(command.partitions)}."
        )
    group = image.groups.get(command.group_id)
    if group is None:
        raise GroupNotFoundError(f"There is no group {command.group_id}.")
    names = {image.topics[key[0]].name for key in command.partitions if key[0] in image.topics}
    for member in group.members:
        # Only nodes that know the syntax of patterns could say which topics a pattern matches.
        if member.pattern is not None or not names.isdisjoint(member.topics):
            raise GroupSubscribedError(
                f"Member {member.member_id} of group {command.group_id} subscribes to one of the topics: stop it first."
            )
    before = image.offsets.get(command.group_id, _NONE)
    kept = _without(before, command.partitions)
    if len(kept) == len(before):
        return Outcome(image, 0)
    return Outcome(_with_offsets(image, command.group_id, kept), len(before) - len(kept))


def _kept(image: Image, expiry: GroupExpiry) -> Map[PartitionKey, CommittedOffset]:
    before = image.offsets.get(expiry.group_id, _NONE)
    return _without(
        before, [key for key, found in before.items() if found.commit_ms < expiry.before_ms]
    )


def _without(
    offsets: Map[PartitionKey, CommittedOffset], keys: Iterable[PartitionKey]
) -> Map[PartitionKey, CommittedOffset]:
    remaining = offsets.mutate()
    for key in keys:
        remaining.pop(key, None)
    return remaining.finish()


def without_topic(image: Image, topic: Topic) -> Image:
    """Return the image in which no group has an offset in the topic."""
    remaining = image.offsets.mutate()
    count = image.offset_count
    for group_id, offsets in image.offsets.items():
        kept = _without(offsets, keys_in(offsets, topic))
        count += len(kept) - len(offsets)
        if not kept:
            del remaining[group_id]
        elif len(kept) != len(offsets):
            remaining[group_id] = kept
    return replace(image, offsets=remaining.finish(), offset_count=count)


def keys_in(found: Mapping[PartitionKey, object], topic: Topic) -> list[PartitionKey]:
    """Return the topic's keys in ``found``. Scan the smaller of ``found`` and the topic's partitions."""
    if len(found) < topic.partition_count:
        return [key for key in found if key[0] == topic.topic_id]
    keys = ((topic.topic_id, partition) for partition in range(topic.partition_count))
    return [key for key in keys if key in found]


def _with_offsets(
    image: Image, group_id: str, offsets: Map[PartitionKey, CommittedOffset]
) -> Image:
    count = image.offset_count + len(offsets) - len(image.offsets.get(group_id, _NONE))
    by_group = image.offsets.set(group_id, offsets) if offsets else image.offsets.delete(group_id)
    return replace(image, offsets=by_group, offset_count=count)
