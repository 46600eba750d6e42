"""Value classes for consumer groups, and functions that parse them from the responses of nodes (pure)."""

from dataclasses import dataclass

from milena.errors import UnexpectedAnswerError
from milena.fields import AnswerFields, Json
from milena.records import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The offset that a group has committed in a partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group.

    Attributes of partitions: ``assignment`` has those that the member reads, ``revoking`` those that it must give up,
    ``pending`` those that it gets once another member has given them up.
    """

    member_id: str
    instance_id: str | None
    client_id: str = ""
    host: str = ""
    is_rest: bool = False
    member_epoch: int
    topics: tuple[str, ...]
    pattern: str | None
    assignment: frozenset[TopicPartition]
    revoking: frozenset[TopicPartition]
    pending: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group in a list.

    ``state`` is EMPTY, RECONCILING or STABLE. ``coordinator`` is a broker's id, None while there is none. ``kind`` is
    server, or classic: then a member computes the assignment, by Kafka's classic protocol.
    """

    group_id: str
    state: str
    generation: int
    assignor: str = ""
    coordinator: int | None
    member_count: int
    kind: str = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group with its members and committed offsets."""

    summary: GroupSummary
    members: tuple[GroupMember, ...]
    offsets: dict[TopicPartition, GroupOffset]


def group_view(answer: Json) -> GroupView:
    """Return the description of a group."""
    fields = AnswerFields(answer, "group")
    members = sorted(map(_member, fields.objects("members")), key=lambda m: m.member_id)
    return GroupView(
        summary=fields.read(GroupSummary, member_count=len(members)),
        members=tuple(members),
        offsets=group_offsets(fields),
    )


def _member(fields: AnswerFields) -> GroupMember:
    return fields.read(
        GroupMember,
        assignment=partitions_of(fields, "assignment"),
        revoking=partitions_of(fields, "revoking"),
        pending=partitions_of(fields, "pending"),
    )


def partitions_of(fields: AnswerFields, name: str) -> frozenset[TopicPartition]:
    """Return ``[{"topic", "partitions": [..]}]`` as a set; an absent field is empty."""
    if not fields.has(name):
        return frozenset()
    return frozenset(
        TopicPartition(entry.text("topic"), partition)
        for entry in fields.objects(name)
        for partition in entry.integers("partitions")
    )


def group_offsets(fields: AnswerFields) -> dict[TopicPartition, GroupOffset]:
    """Return the committed offsets of ``"offsets": {topic: {partition: {"offset", ..}}}``."""
    found = {}
    for topic, partitions in fields.members("offsets"):
        for number, entry in partitions.members():
            if not (number.isascii() and number.isdigit()):
                raise UnexpectedAnswerError(f"offsets.{topic}: {number[:20]!r} is not a partition")
            found[TopicPartition(topic, int(number))] = entry.read(GroupOffset)
    return found
