"""Command lines of consumer groups, offsets and REST consumers, for ``machine_scripts``.

group g 2 a@2:t-0,t-1>t-0 [..] [left=b,c] [by=other] [version=7]
                            a group's next state at generation 2: member a, at epoch 2, holds t-0 and t-1, and its
                            target is t-0; ``*a`` is a REST consumer, ``a/i`` has instance id i
commit g [a@2] t-0=5 [..] [by=other] | also g2 [a@2] t-0=5     ``also``: one more commit for the next ``commit``
expire g 1010 [by=..]        remove the offsets that were committed before that time | delete-group g [by=..]
consumer g i [topics=a,b] [pattern=p] [assigned=t-0,t-1] [created=9] [by=..]       create; with created= change
drop g i [j=9 ..] [by=..]    drop REST consumers; i=9: the one created at 9
offsets g                   show the committed offsets, without a command
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import (
    CommittedOffset,
    Group,
    GroupMember,
    Image,
    PartitionKey,
    PartitionSet,
    RestConsumer,
)
from raft_meta.machine.topics import partition_sets

if TYPE_CHECKING:
    from collections.abc import Mapping

VERBS = ("group", "commit", "also", "expire", "delete-group", "consumer", "drop")


def member(
    member_id: str,
    epoch: int,
    held: PartitionSet = (),
    target: PartitionSet = (),
    *,
    instance_id: str | None = None,
    is_rest: bool = False,
    topics: tuple[str, ...] = ("t",),
) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        instance_id=instance_id,
        is_rest=is_rest,
        client_id="client",
        host="10.0.0.1",
        topics=topics,
        pattern=None,
        assignor="sticky",
        session_ms=45_000,
        rebalance_ms=60_000,
        member_epoch=epoch,
        held=held,
        target=target,
    )


def key_of(image: Image, text: str) -> PartitionKey:
    name, partition = text.rsplit("-", 1)
    return image.topic_ids.get(name, "f" * 32), int(partition)


def partitions_of(image: Image, text: str) -> PartitionSet:
    return partition_sets.of(key_of(image, word) for word in text.split(",") if word)


def _sender(image: Image, group_id: str, by: str | None) -> int:
    coordinator = coordinator_of(image, group_id)
    if by == "other":
        return min(broker_id for broker_id in image.brokers if broker_id != coordinator)
    return int(by or coordinator or 1)


@dataclass
class GroupLines:
    """Makes commands from lines; ``words`` and ``named`` are those of ``machine_scripts.Line``."""

    waiting: list[c.GroupCommit] = field(default_factory=list)

    def command(
        self, image: Image, verb: str, words: tuple[str, ...], named: dict[str, str]
    ) -> c.Command | None:
        named = dict(named)
        sender = _sender(image, words[0], named.pop("by", None))
        by = {"broker_id": sender, "broker_epoch": image.brokers[sender].broker_epoch}
        match verb:
            case "group":
                return self._group(image, words, named, by)
            case "also":
                self.waiting.append(self._commit(image, words, named))
                return None
            case "commit":
                commits = (*self.waiting, self._commit(image, words, named))
                self.waiting.clear()
                return c.CommitOffsets(commits=commits, **by)
            case "expire":
                expiry = c.GroupExpiry(group_id=words[0], before_ms=WallMs(int(words[1])))
                return c.ExpireOffsets(groups=(expiry,), **by)
            case "delete-group":
                return c.DeleteGroup(
                    group_id=words[0], coordinators_version=image.coordinators_version, **by
                )
            case "consumer":
                return self._consumer(image, words, named, by)
            case _:
                return self._drop(image, words, named, by)

    def _group(
        self, image: Image, words: tuple[str, ...], named: dict[str, str], by: dict[str, int]
    ) -> c.Command:
        group = image.groups.get(words[0])
        present = group.version if group else 0
        return c.AlterGroup(
            group_id=words[0],
            version=int(named.get("version", present)),
            generation=int(words[1]),
            assignor=named.get("assignor", "sticky"),
            members=tuple(self._member(image, word) for word in words[2:]),
            left=tuple(filter(None, named.get("left", "").split(","))),
            **by,
        )

    def _member(self, image: Image, text: str) -> GroupMember:
        name, rest = text.split("@", 1)
        epoch, _, sets = rest.partition(":")
        held, _, target = sets.partition(">")
        member_id, _, instance_id = name.lstrip("*").partition("/")
        return member(
            member_id,
            int(epoch),
            partitions_of(image, held),
            partitions_of(image, target),
            instance_id=instance_id or None,
            is_rest=name.startswith("*"),
        )

    def _commit(self, image: Image, words: tuple[str, ...], named: dict[str, str]) -> c.GroupCommit:
        member_id, _, epoch = words[1].partition("@") if len(words) > 1 else ("", "", "-1")
        offsets = []
        for name, value in named.items():
            topic_id, partition = key_of(image, name)
            offset, _, metadata = value.partition(":")
            offsets.append(
                c.OffsetCommit(
                    topic_id=topic_id,
                    partition=partition,
                    offset=int(offset),
                    leader_epoch=-1,
                    metadata=metadata,
                )
            )
        return c.GroupCommit(
            group_id=words[0],
            member_id=member_id or None,
            member_epoch=int(epoch),
            offsets=tuple(offsets),
            coordinators_version=image.coordinators_version,
        )

    def _consumer(
        self, image: Image, words: tuple[str, ...], named: dict[str, str], by: dict[str, int]
    ) -> c.Command:
        consumer = RestConsumer(
            group_id=words[0],
            instance=words[1],
            created_index=int(named.get("created", 0)),
            format="binary",
            auto_offset_reset="latest",
            is_auto_commit=True,
            fetch_min_bytes=-1,
            request_timeout_ms=1000,
            topics=tuple(filter(None, named.get("topics", "").split(","))),
            pattern=named.get("pattern"),
            assigned=partitions_of(image, named.get("assigned", "")),
        )
        return c.PutConsumer(
            is_new="created" not in named,
            consumer=consumer,
            coordinators_version=image.coordinators_version,
            **by,
        )

    def _drop(
        self, image: Image, words: tuple[str, ...], named: dict[str, str], by: dict[str, int]
    ) -> c.Command:
        names = []
        for instance in (*words[1:], *named):
            present = image.consumers.get((words[0], instance))
            created = named.get(instance, present.created_index if present else 0)
            names.append(
                c.ConsumerName(group_id=words[0], instance=instance, created_index=int(created))
            )
        return c.DeleteConsumers(consumers=tuple(names), **by)


# --- what is there ---


def describe_group(before: Image, now: Image, group_id: str) -> list[str]:
    """Return the group's numbers, and a line for each changed member in the format of a command line."""
    old, new = before.groups.get(group_id), now.groups.get(group_id)
    name = f"group {group_id}"
    if new is None:
        return [f"{name}: gone"]
    numbers = [
        f"{what} {value}" if previous is None else f"{what} {previous} -> {value}"
        for what, previous, value in (
            ("version", old and old.version, new.version),
            ("generation", old and old.generation, new.generation),
            ("emptied", old and old.emptied_ms, new.emptied_ms),
        )
        if previous != value
    ]
    lines = [f"{name}: {', '.join(numbers)}"]
    former, present = _members(old), _members(new)
    lines += [f"  {m} left" for m in former if m not in present]
    lines += [f"  {render_member(now, m)}" for key, m in present.items() if former.get(key) != m]
    return lines


def _members(group: Group | None) -> dict[str, GroupMember]:
    return {} if group is None else {member.member_id: member for member in group.members}


def render_member(image: Image, shown: GroupMember) -> str:
    instance = f"/{shown.instance_id}" if shown.instance_id else ""
    sets = f"{render_partitions(image, shown.held)}>{render_partitions(image, shown.target)}"
    return f"{'*' if shown.is_rest else ''}{shown.member_id}{instance}@{shown.member_epoch}:{sets}"


def render_partitions(image: Image, partitions: PartitionSet) -> str:
    keys = partition_sets.keys_of(partitions)
    return ",".join(name_of(image, key) for key in keys)


def name_of(image: Image, key: PartitionKey) -> str:
    return f"{image.topics[key[0]].name}-{key[1]}"


def describe_commits(before: Image, now: Image, group_id: str) -> str:
    """Return changed offsets: ``offsets g: t-0 none -> 5, ..``."""
    none: Mapping[PartitionKey, CommittedOffset] = {}
    old, new = before.offsets.get(group_id, none), now.offsets.get(group_id, none)
    told = [
        f"{name_of(now if key in new else before, key)} {_offset(old.get(key))} -> {_offset(new.get(key))}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    return f"offsets {group_id}: {', '.join(told)}"


def _offset(committed: CommittedOffset | None) -> str:
    if committed is None:
        return "none"
    return f"{committed.offset}{committed.metadata and ':'}{committed.metadata}"


def describe_consumer(now: Image, group_id: str, instance: str) -> str:
    consumer = now.consumers.get((group_id, instance))
    name = f"consumer {group_id}/{instance}"
    if consumer is None:
        return f"{name}: gone"
    reads = render_partitions(now, consumer.assigned) or consumer.pattern
    return f"{name}: created {consumer.created_index}, reads {reads or ','.join(consumer.topics) or 'none'}"


def describe_offsets(image: Image, group_id: str) -> list[str]:
    found = sorted(image.offsets.get(group_id, {}).items())
    return [
        f"{image.topics[topic_id].name}-{partition}={committed.offset} at {committed.commit_ms}"
        for (topic_id, partition), committed in found
    ] or ["none"]
