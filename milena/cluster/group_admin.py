"""Administration of consumer groups: one or two HTTP calls each; ``milena.cluster.admin`` has them as methods."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from milena.cluster.group_views import (
    GroupSummary,
    GroupView,
    group_offsets,
    group_summary,
    group_view,
)
from milena.cluster.http import HttpSession
from milena.errors import TargetNotFoundError
from milena.fields import AnswerFields, Json
from milena.records import LastN, Position, StartAt, TimestampMs, TopicPartition, check_position

QUESTIONS_MAX = 64
"""Ends of partitions that are asked for at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is in one partition; None for what is not known: nothing committed, no leader, no owner."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member_id: str | None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to be read."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


async def groups(http: HttpSession) -> list[GroupSummary]:
    """All groups, in order of their ids."""
    answer = AnswerFields(await http.get("/groups"), "groups")
    found = [
        group_summary(entry, entry.integer("member_count")) for entry in answer.objects("groups")
    ]
    return sorted(found, key=lambda group: group.group_id)


async def group(http: HttpSession, group_id: str) -> GroupView:
    """One group."""
    return group_view(AnswerFields(await http.get(_path(group_id)), "group"))


async def lags(http: HttpSession, found: GroupView) -> list[PartitionLag]:
    """Of every partition that the group has committed in, or that a member has; the ends are asked for now."""
    owners = {
        where: member.member_id
        for member in found.members
        for where in member.assignment | member.revoking
    }
    turn = asyncio.Semaphore(QUESTIONS_MAX)

    async def one(where: TopicPartition) -> PartitionLag:
        async with turn:
            end = await _end(http, where)
        committed = found.offsets.get(where)
        return PartitionLag(
            topic=where.topic,
            partition=where.partition,
            committed=None if committed is None else committed.offset,
            end=end,
            member_id=owners.get(where),
        )

    return list(await asyncio.gather(*map(one, sorted({*owners, *found.offsets}))))


async def reset(
    http: HttpSession,
    group_id: str,
    topic: str,
    position: Position,
    *,
    partitions: Sequence[int] | None,
) -> dict[TopicPartition, int]:
    """Commit other offsets for a group without members; what was committed."""
    body: dict[str, Json] = {"topic": topic, "to": _reset_target(position)}
    if partitions is not None:
        body["partitions"] = list(partitions)
    answer = AnswerFields(await http.post(f"{_path(group_id)}/offsets:reset", body), "reset")
    return {where: offset.offset for where, offset in group_offsets(answer).items()}


async def delete(http: HttpSession, group_id: str) -> None:
    """Forget a group."""
    await http.delete(_path(group_id))


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
    path = f"/topics/{quote(where.topic, safe='')}/partitions/{where.partition}/offsets"
    try:
        return AnswerFields(await http.get(path), "offsets").integer("end_offset")
    except TargetNotFoundError:
        # Deleted since the group was described.
        return None


def _path(group_id: str) -> str:
    return f"/groups/{quote(group_id, safe='')}"
