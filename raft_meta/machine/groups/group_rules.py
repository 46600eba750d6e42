"""Rules and size limits of consumer groups and REST consumers.

``groups`` and ``consumers`` check commands by these rules, and ``invariants`` checks snapshots. Proposers check
requests before they propose.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from milena.model.errors import InvalidConsumerError
from raft_meta.machine.image import (
    ClassicGroup,
    ClassicMember,
    Group,
    GroupMember,
    Image,
    PartitionSet,
    RestConsumer,
)
from raft_meta.machine.topics import partition_sets

LEVEL = 3
"""The feature level from which on groups and consumers exist."""

PREDECESSORS_LEVEL = 11
"""The feature level from which on members store their predecessors."""
COMMITS_NEXT_LEVEL = 11
"""The feature level from which on a consumer may have ``commits_next``."""
CLASSIC_LEVEL = 12
"""The feature level from which on classic groups exist."""
PREDECESSORS_MAX = 8
PREDECESSORS_BYTES_MAX = 512
"""Bytes of all ids of one member's predecessors except the latest: a group's members must fit into one command."""

NAME_LENGTH_MAX = 255
"""Characters of a group id, member id, instance id, client id, host, and of the name of an assignor or format."""
TOPICS_PER_MEMBER_MAX = 1_000
TOPIC_LENGTH_MAX = 249
PATTERN_LENGTH_MAX = 1_024
DURATION_MS_MAX = 24 * 3_600_000
METADATA_BYTES_MAX = 4_096
"""The default of offset.metadata.max.bytes in Kafka."""
OFFSETS_PER_COMMIT_MAX = 10_000
"""Offsets of one commit: one member may hold all partitions of a topic of the largest size."""
COMMITS_PER_COMMAND_MAX = 1_000

MEMBERS_MAX = 1_000
"""Members of one group: a rebalance may rewrite all of them in one command, which must stay below 1 MiB."""
GROUP_BYTES_MAX = 384 << 10
"""Bytes of all texts of a group's members: names and subscriptions. Half of a command is left for partitions."""
ASSIGNMENT_BYTES_MAX = 384 << 10
"""Bytes of the assignments of a classic group. With the names of its members they fit into one command."""
PROTOCOLS_MAX = 64
"""Assignment protocols that one member of a classic group supports."""
GROUPS_MAX = 50_000
CONSUMERS_MAX = 50_000
OFFSETS_MAX = 1_000_000
"""Committed offsets of all groups. A million take about 66 MB in a snapshot and 240 MB in memory."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNENCODABLE = re.compile(r"[\ud800-\udfff]")


def check_group_id(group_id: str) -> None:
    """Refuse an invalid group id.

    Raises:
        InvalidConsumerError: the message says why.
    """
    _check_name("group id", group_id)


def check_instance(instance: str) -> None:
    """Refuse an invalid name of a REST consumer.

    Raises:
        InvalidConsumerError: the message says why.
    """
    _check_name("consumer instance name", instance)


def check_member(member: GroupMember) -> None:
    """Refuse a member whose names, subscription or durations are out of bounds.

    Raises:
        InvalidConsumerError: the message names the field.
    """
    _check_identity(member)
    _check_name("assignor", member.assignor)
    for predecessor in member.predecessors:
        _check_name("member id", predecessor)
    if member.predecessors != predecessors(member.predecessors):
        raise InvalidConsumerError(
            f"Member {member.member_id!r} remembers {len(member.predecessors)} predecessors, more than it may."
        )
    check_subscription(member.topics, member.pattern)
    _check_durations(member)


def _check_identity(member: GroupMember | ClassicMember) -> None:
    _check_name("member id", member.member_id)
    if member.instance_id is not None:
        _check_name("group instance id", member.instance_id)
    _check_text("client id", member.client_id)
    _check_text("host", member.host)


def _check_durations(member: GroupMember | ClassicMember) -> None:
    for what, value in (("session", member.session_ms), ("rebalance", member.rebalance_ms)):
        if not 1 <= value <= DURATION_MS_MAX:
            raise InvalidConsumerError(
                f"A {what} timeout must be 1..{DURATION_MS_MAX} ms, not {value}."
            )


def check_classic_group(group: ClassicGroup) -> None:
    """Refuse a generation of a classic group whose names or durations are out of bounds.

    Raises:
        InvalidConsumerError: the message names the field.
    """
    _check_text("protocol type", group.protocol_type)
    _check_text("protocol", group.protocol)
    for member in group.members:
        check_classic_member(member)


def check_protocols(protocol_type: str, protocols: Iterable[str]) -> None:
    """Refuse names of a member's protocol type and protocols that are out of bounds.

    Raises:
        InvalidConsumerError: the message names the field.
    """
    _check_text("protocol type", protocol_type)
    for protocol in protocols:
        _check_name("protocol", protocol)


def check_classic_member(member: ClassicMember) -> None:
    """Refuse a member of a classic group whose names or durations are out of bounds.

    Raises:
        InvalidConsumerError: the message names the field.
    """
    _check_identity(member)
    _check_durations(member)


def check_consumer(consumer: RestConsumer) -> None:
    """Refuse a REST consumer whose names or settings are out of bounds, or contradict each other.

    Raises:
        InvalidConsumerError: the message names the fault.
    """
    check_group_id(consumer.group_id)
    check_instance(consumer.instance)
    _check_name("format", consumer.format)
    _check_name("auto.offset.reset", consumer.auto_offset_reset)
    check_subscription(consumer.topics, consumer.pattern)
    for problem in consumer_problems(consumer):
        raise InvalidConsumerError(f"Consumer {consumer.instance}: {problem}.")


def check_subscription(topics: Sequence[str], pattern: str | None) -> None:
    """Refuse a subscription that is too large, or not in order.

    Raises:
        InvalidConsumerError: the message names the bound.
    """
    if len(topics) > TOPICS_PER_MEMBER_MAX:
        raise InvalidConsumerError(
            f"A subscription names at most {TOPICS_PER_MEMBER_MAX} topics, not {len(topics)}; use a pattern, or"
            " more consumers."
        )
    if any(not 1 <= len(topic) <= TOPIC_LENGTH_MAX for topic in topics):
        raise InvalidConsumerError(f"A topic name has 1..{TOPIC_LENGTH_MAX} characters.")
    if pattern is not None and not 1 <= len(pattern) <= PATTERN_LENGTH_MAX:
        raise InvalidConsumerError(f"A topic pattern has 1..{PATTERN_LENGTH_MAX} characters.")
    for text in (*topics, pattern or ""):
        if _UNENCODABLE.search(text):
            raise InvalidConsumerError(f"{text!r} has half of a surrogate pair.")


def check_metadata(metadata: str) -> None:
    """Refuse metadata that may not be committed with an offset.

    Raises:
        InvalidConsumerError: the metadata is too long, or cannot be encoded as UTF-8.
    """
    if _UNENCODABLE.search(metadata):
        raise InvalidConsumerError(
            "The metadata of a committed offset has half of a surrogate pair."
        )
    if len(metadata.encode()) > METADATA_BYTES_MAX:
        raise InvalidConsumerError(
            f"The metadata of a committed offset has at most {METADATA_BYTES_MAX} bytes."
        )


def _check_name(what: str, name: str) -> None:
    if not name:
        raise InvalidConsumerError(f"A {what} must not be empty.")
    _check_text(what, name)


def _check_text(what: str, text: str) -> None:
    if len(text) > NAME_LENGTH_MAX:
        raise InvalidConsumerError(
            f"A {what} has at most {NAME_LENGTH_MAX} characters, this one has {len(text)}."
        )
    if _UNPRINTABLE.search(text):
        raise InvalidConsumerError(
            f"A {what} must not have control characters or halves of surrogate pairs: {text!r}."
        )


def text_bytes(members: Iterable[GroupMember]) -> int:
    """Return the bytes of these members' names and subscriptions, which ``GROUP_BYTES_MAX`` limits."""
    return sum(
        len(member.member_id.encode())
        + len((member.instance_id or "").encode())
        + len(member.client_id.encode())
        + len(member.host.encode())
        + len(member.assignor)
        + len((member.pattern or "").encode())
        + sum(len(topic) + 1 for topic in member.topics)
        + sum(len(predecessor.encode()) for predecessor in member.predecessors)
        for member in members
    )


def classic_text_bytes(group: ClassicGroup) -> int:
    """Return the bytes of the names of a classic group's members, which ``GROUP_BYTES_MAX`` limits."""
    return sum(
        len(name.encode())
        for member in group.members
        for name in (member.member_id, member.instance_id or "", member.client_id, member.host)
    )


def classic_member_of(group: Group | None, member_id: str) -> ClassicMember | None:
    """Return the classic group's member with this id; None if there is none."""
    if group is None or group.classic is None:
        return None
    members = group.classic.members
    at = bisect_left(members, member_id, key=_id_of)
    return members[at] if at < len(members) and members[at].member_id == member_id else None


def member_of(group: Group | None, member_id: str) -> GroupMember | None:
    """Return the group's member with this id; None if there is none."""
    if group is None:
        return None
    at = bisect_left(group.members, member_id, key=_id_of)
    if at == len(group.members) or group.members[at].member_id != member_id:
        return None
    return group.members[at]


def predecessors(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the latest of these ids, as many as a member stores."""
    kept: list[str] = []
    left = PREDECESSORS_BYTES_MAX
    for member_id in reversed(ids[-PREDECESSORS_MAX:]):
        left -= len(member_id.encode())
        if kept and left < 0:
            break
        kept.append(member_id)
    return tuple(reversed(kept))


def successor_of(group: Group | None, member_id: str) -> GroupMember | None:
    """Return the member that has replaced this one under its instance id; None if there is none."""
    for member in () if group is None else group.members:
        if member_id in member.predecessors:
            return member
    return None


def _id_of(member: GroupMember | ClassicMember) -> str:
    return member.member_id


def group_problems(group: Group) -> Iterator[str]:
    """Yield violations of the invariants of ``image.Group``, except those about the existence of partitions."""
    ids = [member.member_id for member in group.members]
    if any(left >= right for left, right in pairwise(ids)):
        yield "members are not in ascending order of distinct ids"
    instances = [m.instance_id for m in group.members if m.instance_id is not None]
    if len(set(instances)) != len(instances):
        yield "two members have one instance id"
    yield from _shared("held by", (member.held for member in group.members))
    yield from _shared("the target of", (member.target for member in group.members))
    for member in group.members:
        for problem in _member_problems(group, member):
            yield f"member {member.member_id}: {problem}"


def classic_problems(group: Group) -> Iterator[str]:
    """Yield violations of the invariants of ``image.ClassicGroup``."""
    classic = group.classic
    if classic is None:
        return
    ids = [member.member_id for member in classic.members]
    if group.members:
        yield "it is a classic group with members of a server group"
    if any(left >= right for left, right in pairwise(ids)):
        yield "members are not in ascending order of distinct ids"
    instances = [m.instance_id for m in classic.members if m.instance_id is not None]
    if len(set(instances)) != len(instances):
        yield "two members have one instance id"
    if (classic.leader not in ids) if ids else classic.leader:
        yield f"its leader {classic.leader!r} is not a member"
    if bool(ids) != bool(classic.protocol) or (ids and not classic.protocol_type):
        yield "it has members and no protocol, or a protocol and no members"
    assigned = sum(len(member.assignment) for member in classic.members)
    if assigned > (ASSIGNMENT_BYTES_MAX if classic.has_assignments else 0):
        yield f"its assignments have {assigned} bytes"


def _member_problems(group: Group, member: GroupMember) -> Iterator[str]:
    if not partition_sets.is_canonical(member.held):
        yield "what it holds is not in canonical order"
    if not partition_sets.is_canonical(member.target):
        yield "its target is not in canonical order"
    if not _is_ascending(member.topics):
        yield "its topics are not in ascending order"
    if not 1 <= member.member_epoch <= group.generation:
        yield f"epoch {member.member_epoch} is outside 1..{group.generation}"
    if member.member_epoch == group.generation and not partition_sets.is_subset(
        member.held, member.target
    ):
        yield f"it has reached generation {group.generation} and holds what is not its target there"


def _shared(what: str, sets: Iterable[PartitionSet]) -> Iterator[str]:
    seen: dict[str, set[int]] = {}
    for partitions in sets:
        for topic_id, numbers in partitions:
            taken = seen.setdefault(topic_id, set())
            if not taken.isdisjoint(numbers):
                yield f"a partition of topic {topic_id} is {what} two members"
            taken.update(numbers)


def _is_ascending(names: Sequence[str]) -> bool:
    return all(left < right for left, right in pairwise(names))


def consumer_problems(consumer: RestConsumer) -> Iterator[str]:
    """Yield violations of the invariants of ``image.RestConsumer``, except those about the existence of partitions."""
    if sum((bool(consumer.topics), consumer.pattern is not None, bool(consumer.assigned))) > 1:
        yield "it has more than one of topics, a pattern and assigned partitions"
    if not partition_sets.is_canonical(consumer.assigned):
        yield "its assigned partitions are not in canonical order"
    if not _is_ascending(consumer.topics):
        yield "its topics are not in ascending order"
    if consumer.fetch_min_bytes < -1 or consumer.request_timeout_ms < -1:
        yield "its numbers are negative"


def absent_partition(image: Image, partitions: PartitionSet) -> str | None:
    """Return a partition of the (canonical) set that does not exist, as text; None if all exist."""
    for topic_id, numbers in partitions:
        topic = image.topics.get(topic_id)
        if topic is None:
            return f"topic id {topic_id}"
        if numbers[-1] >= topic.partition_count:
            return f"{topic.name}-{numbers[-1]}"
    return None
