"""Administration of consumer groups over HTTP, as a part of ``milena.cluster.admin.AdminClient``."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from milena.cluster.group_views import GroupSummary, GroupView, group_offsets, group_view
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
    committed: int | None = None
    end: int | None = None
    lag: int | None = None
    member_id: str | None


def total_lag(rows: Collection[PartitionLag]) -> int | None:
    """Return the lag of a group over all partitions; None if it is unknown in one of them, or if there are none."""
    known = [row.lag for row in rows if row.lag is not None]
    return sum(known) if known and len(known) == len(rows) else None


class GroupAdmin:
    """The methods of ``AdminClient`` for consumer groups."""

    def __init__(self, http: HttpSession) -> None:
        self._http = http

    async def groups(self) -> list[GroupSummary]:
        """Return all consumer groups, in order of their ids."""
        answer = AnswerFields(await self._http.get("/groups"), "groups")
        found = [entry.read(GroupSummary) for entry in answer.objects("groups")]
        return sorted(found, key=lambda group: group.group_id)

    async def group(self, group_id: str) -> GroupView:
        """Return one consumer group: its members, their partitions, and its committed offsets.

        Raises:
            TargetNotFoundError: there is no group of this id.
        """
        return group_view(await self._http.get(_path(group_id)))

    async def group_lags(self, group: GroupView) -> list[PartitionLag]:
        """Return a group's progress in each partition that it reads, or has committed in.

        The ends of partitions are requested in parallel.
        """
        owners = {
            where: member.member_id
            for member in group.members
            for where in member.assignment | member.revoking
        }
        rows = await self._committed(group, owners)
        turn = asyncio.Semaphore(QUESTIONS_MAX)

        async def uncommitted(where: TopicPartition) -> None:
            async with turn:
                end = await self._end(where)
            rows[where] = PartitionLag(**where._asdict(), end=end, member_id=owners[where])

        for where in group.offsets.keys() - rows.keys():
            # The response leaves out topics that were deleted, or that this client may not see.
            committed = group.offsets[where].offset
            rows[where] = PartitionLag(
                **where._asdict(), committed=committed, member_id=owners.get(where)
            )
        await asyncio.gather(*map(uncommitted, owners.keys() - rows.keys()))
        return [rows[where] for where in sorted(rows)]

    async def _committed(
        self, group: GroupView, owners: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, PartitionLag]:
        """Return the lags of partitions that the group has committed in."""
        rows: dict[TopicPartition, PartitionLag] = {}
        if not group.offsets:
            return rows
        skip, total = 0, 1
        while skip < total:
            path = f"{_path(group.summary.group_id)}/lags?skip={skip}&limit={PAGE_ROWS}"
            answer = AnswerFields(await self._http.get(path), "lags")
            total = answer.integer("total")
            skip += PAGE_ROWS
            for row in answer.objects("lags"):
                where = TopicPartition(row.text("topic"), row.integer("partition"))
                rows[where] = PartitionLag(
                    **where._asdict(),
                    committed=row.integer("offset"),
                    end=row.optional_integer("end_offset"),
                    member_id=owners.get(where) or row.optional_text("member_id"),
                    lag=row.optional_integer("lag"),
                )
        return rows

    async def _end(self, where: TopicPartition) -> int | None:
        path = f"/topics/{segment(where.topic)}/partitions/{where.partition}/offsets"
        try:
            return AnswerFields(await self._http.get(path), "offsets").integer("end_offset")
        except TargetNotFoundError:
            # The topic was deleted since the group was described.
            return None

    async def reset_group(
        self,
        group_id: str,
        topic: str,
        position: Position,
        *,
        partitions: Sequence[int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Reset the offsets of a group without members, in all partitions of a topic or in some.

        Returns the offsets that were committed.

        Args:
            group_id: the group.
            topic: the topic's name.
            position: an offset (clamped to the readable range), an end, or a time.
            partitions: the numbers of the partitions; None: all.

        Raises:
            GroupNotEmptyError: the group has members, which would overwrite the offsets; nothing was changed.
            TargetNotFoundError: no such topic or partition.
        """
        body: dict[str, Json] = {"topic": topic, "to": _reset_target(position)}
        if partitions is not None:
            body["partitions"] = list(partitions)
        answer = await self._http.post(f"{_path(group_id)}/offsets:reset", body)
        committed = group_offsets(AnswerFields(answer, "reset"))
        return {where: offset.offset for where, offset in committed.items()}

    async def reset_plan(
        self, group_id: str, topic: str, position: Position
    ) -> dict[int, tuple[int | None, int]]:
        """Return the committed offset (None without one), and the offset after a reset, of each partition of a topic.

        This changes nothing.

        Args:
            group_id: the group.
            topic: the topic's name.
            position: an offset, an end, or a time.

        Raises:
            TargetNotFoundError: there is no topic of this name.
        """
        path, to = f"{_path(group_id)}/offsets:reset", str(_reset_target(position))
        found, total = dict[int, tuple[int | None, int]](), 1
        while len(found) < total:
            query = {"topic": topic, "to": to, "skip": str(len(found)), "limit": str(PAGE_ROWS)}
            answer = AnswerFields(await self._http.get(path, query), "reset")
            total = answer.integer("total")
            rows = list(answer.objects("partitions"))
            if not rows:
                break
            for row in rows:
                found[row.integer("partition")] = (row.optional_integer("now"), row.integer("then"))
        return found

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises:
            TargetNotFoundError: there is no group of this id.
            GroupNotEmptyError: the group has members; nothing was changed.
        """
        await self._http.delete(_path(group_id))


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


def _path(group_id: str) -> str:
    return f"/groups/{segment(group_id)}"
