"""Native endpoints: the lag of a group in each partition."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from http_api.ports.groups import (
    GroupDescription,
    MemberDescription,
    PartitionCommit,
    TopicPartition,
)
from http_api.serving.call import Call
from milena.model.access import ResourceType
from milena.model.errors import (
    GroupNotFoundError,
    MilenaError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from milena.model.requests import PartitionOffsets

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 32
"""Most requests to leaders of partitions that are in flight at a time."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The committed offset of a group in a partition. ``reader`` is the member that has the partition, if any."""

    committed: PartitionCommit
    reader: MemberDescription | None

    @property
    def member_id(self) -> str | None:
        """The id of the member that has the partition; None if none has it."""
        return None if self.reader is None else self.reader.member_id


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in a partition. ``offsets`` are the partition's start and end; None if they are unknown."""

    place: GroupPlace
    offsets: PartitionOffsets | None

    @property
    def end_offset(self) -> int | None:
        """The high watermark of the partition; None if its leader has not responded."""
        return None if self.offsets is None else self.offsets.high_watermark

    @property
    def lag(self) -> int | None:
        """The number of offsets still to be read; None if unknown, or if the committed offset is above the end."""
        return None if self.offsets is None else self.offsets.lag_of(self.place.committed.offset)


def places_of(group: GroupDescription, is_seen: Callable[[str], bool]) -> list[GroupPlace]:
    """Return the group's committed offsets in topics that the caller may see, sorted by topic and partition."""
    readers = {where: member for member in group.members for where in member.assignment}
    return [
        GroupPlace(committed, readers.get((committed.topic, committed.partition)))
        for committed in sorted(group.offsets, key=lambda one: (one.topic, one.partition))
        if is_seen(committed.topic)
    ]


async def with_ends(call: Call, places: Sequence[GroupPlace]) -> list[Lag]:
    """Return the lag of each committed offset, without partitions that were deleted since."""
    ends = await _ends(call, {_at(place.committed) for place in places})
    return [
        Lag(place, ends[_at(place.committed)]) for place in places if _at(place.committed) in ends
    ]


async def lags_of(call: Call, group: GroupDescription) -> list[Lag]:
    """Return the lags of all partitions with a committed offset, in topics that the caller may see, sorted."""
    return await with_ends(call, places_of(group, call.rights.seen(ResourceType.TOPIC)))


async def total_lags(call: Call, group_ids: Sequence[str]) -> list[int | None]:
    """Return each group's total lag in the topics that the caller may see; None if it is unknown.

    Each partition's leader is asked once, even if several groups read the partition.
    """
    is_seen = call.rights.seen(ResourceType.TOPIC)

    async def committed(group_id: str) -> list[PartitionCommit]:
        try:
            offsets = await call.ports.groups.committed(group_id)
        except GroupNotFoundError:
            return []
        return [one for one in offsets if is_seen(one.topic)]

    found = await _some_at_once(committed, group_ids)
    ends = await _ends(call, {_at(one) for commits in found for one in commits})
    return [
        sum_of_known(
            [Lag(GroupPlace(one, None), ends[_at(one)]).lag for one in commits if _at(one) in ends]
        )
        for commits in found
    ]


def sum_of_known(lags: Sequence[int | None]) -> int | None:
    """Return the sum; None if there is no lag, or if one is unknown, because a partial sum would be misleading."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known and len(known) == len(lags) else None


async def _ends(
    call: Call, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, PartitionOffsets | None]:
    """Return start and end of each partition, without deleted ones; None: the leader has not responded."""

    async def end_of(at: TopicPartition) -> tuple[TopicPartition, PartitionOffsets | None] | None:
        try:
            return at, await call.ports.reads.offsets(*at, wants_records_end=True)
        except (TopicNotFoundError, PartitionNotFoundError):
            # The committed offset of a deleted partition is deleted too.
            return None
        except MilenaError:
            return at, None

    return dict(filter(None, await _some_at_once(end_of, partitions)))


async def _some_at_once(ask: Callable[[T], Awaitable[R]], of: Collection[T]) -> list[R]:
    """Call ``ask`` for each item, ``_AT_ONCE`` at a time; return the results in order."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(one: T) -> R:
        async with turns:
            return await ask(one)

    waiting = [asyncio.ensure_future(in_turn(one)) for one in of]
    try:
        return await asyncio.gather(*waiting)
    finally:
        for task in waiting:
            task.cancel()


def _at(committed: PartitionCommit) -> TopicPartition:
    return committed.topic, committed.partition
