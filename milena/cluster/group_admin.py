"""Administration of consumer groups over HTTP; ``milena.cluster.admin.AdminClient`` has these functions as methods."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from milena.cluster.group_views import GroupSummary, GroupView, group_offsets
from milena.cluster.http import HttpSession, segment
from milena.errors import TargetNotFoundError
from milena.fields import AnswerFields, Json
from milena.records import LastN, Position, StartAt, TimestampMs, TopicPartition, check_position

QUESTIONS_MAX = 64
"""Most requests for the end of a partition that are in flight at a time."""
PAGE_ROWS = 1_000
"""Number of partitions in one response with lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A group's progress in one partition.

    ``committed`` is None if the group has committed no offset, ``end`` if the partition has no leader, ``owner`` if no
    member has the partition. ``lag`` is the number of offsets still to be read, as nodes count them. It is None if it
    is unknown, or if the committed offset is above the end.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None = None
    member_id: str | None


def total_lag(rows: Collection[PartitionLag]) -> int | None:
    """Return the lag of a group over all partitions; None if it is unknown in one of them, or if there are none."""
    known = [row.lag for row in rows if row.lag is not None]
    return sum(known) if known and len(known) == len(rows) else None


async def groups(http: HttpSession) -> list[GroupSummary]:
    """Return all groups, in order of their ids."""
    answer = AnswerFields(await http.get("/groups"), "groups")
    found = [entry.read(GroupSummary) for entry in answer.objects("groups")]
    return sorted(found, key=lambda group: group.group_id)


async def lags(http: HttpSession, found: GroupView) -> list[PartitionLag]:
    """Return the lag of every partition that the group has committed in, or that a member has.

    The values are those that nodes know now.
    """
    owners = {
        where: member.member_id
        for member in found.members
        for where in member.assignment | member.revoking
    }
    rows = await _committed(http, found, owners)
    turn = asyncio.Semaphore(QUESTIONS_MAX)

    async def uncommitted(where: TopicPartition) -> None:
        async with turn:
            end = await _end(http, where)
        rows[where] = PartitionLag(
            topic=where.topic,
            partition=where.partition,
            committed=None,
            end=end,
            member_id=owners[where],
        )

    for where in found.offsets.keys() - rows.keys():
        # The response leaves out topics that were deleted, or that this client may not see.
        rows[where] = PartitionLag(
            topic=where.topic,
            partition=where.partition,
            committed=found.offsets[where].offset,
            end=None,
            member_id=owners.get(where),
        )
    await asyncio.gather(*map(uncommitted, owners.keys() - rows.keys()))
    return [rows[where] for where in sorted(rows)]


async def _committed(
    http: HttpSession, found: GroupView, owners: Mapping[TopicPartition, str]
) -> dict[TopicPartition, PartitionLag]:
    """Return the lags of partitions that the group has committed in."""
    rows: dict[TopicPartition, PartitionLag] = {}
    if not found.offsets:
        return rows
    skip, total = 0, 1
    while skip < total:
        path = f"{group_path(found.summary.group_id)}/lags?skip={skip}&limit={PAGE_ROWS}"
        answer = AnswerFields(await http.get(path), "lags")
        total = answer.integer("total")
        skip += PAGE_ROWS
        for row in answer.objects("lags"):
            where = TopicPartition(row.text("topic"), row.integer("partition"))
            rows[where] = PartitionLag(
                topic=where.topic,
                partition=where.partition,
                committed=row.integer("offset"),
                end=row.optional_integer("end_offset"),
                member_id=owners.get(where) or row.optional_text("member_id"),
                lag=row.optional_integer("lag"),
            )
    return rows


async def reset(
    http: HttpSession,
    group_id: str,
    topic: str,
    position: Position,
    *,
    partitions: Sequence[int] | None,
) -> dict[TopicPartition, int]:
    """Commit other offsets for a group without members; return what was committed."""
    body: dict[str, Json] = {"topic": topic, "to": _reset_target(position)}
    if partitions is not None:
        body["partitions"] = list(partitions)
    answer = AnswerFields(await http.post(f"{group_path(group_id)}/offsets:reset", body), "reset")
    return {where: offset.offset for where, offset in group_offsets(answer).items()}


async def reset_plan(
    http: HttpSession, group_id: str, topic: str, position: Position
) -> dict[int, tuple[int | None, int]]:
    """Return the offset now, and the offset after a reset, of each partition."""
    found, total = dict[int, tuple[int | None, int]](), 1
    while len(found) < total:
        query = {
            "topic": topic,
            "to": str(_reset_target(position)),
            "skip": str(len(found)),
            "limit": str(PAGE_ROWS),
        }
        answer = AnswerFields(
            await http.get(f"{group_path(group_id)}/offsets:reset", query), "reset"
        )
        total = answer.integer("total")
        rows = list(answer.objects("partitions"))
        if not rows:
            break
        for row in rows:
            found[row.integer("partition")] = (row.optional_integer("now"), row.integer("then"))
    return found


def _reset_target(position: Position) -> str | int:
    check_position(position, "position")
    match position:
        case StartAt():
            return position.value
        case TimestampMs(value):
            return datetime.fromtimestamp(value / 1000, UTC).isoformat()
        case LastN():
            raise ValueError(
                "a group is reset to an offset, an end or a time, not to a number of records"
            )
        case int():
            return position


async def _end(http: HttpSession, where: TopicPartition) -> int | None:
    path = f"/topics/{segment(where.topic)}/partitions/{where.partition}/offsets"
    try:
        return AnswerFields(await http.get(path), "offsets").integer("end_offset")
    except TargetNotFoundError:
        # The topic was deleted since the group was described.
        return None


def group_path(group_id: str) -> str:
    """Return the path of a group."""
    return f"/groups/{segment(group_id)}"
