"""Native: how far a group is behind, partition by partition."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from http_api.call import Call
from http_api.group_ports import GroupDescription, MemberDescription, PartitionCommit
from milena.model.access import ResourceType
from milena.model.errors import MilenaError, PartitionNotFoundError, TopicNotFoundError

_AT_ONCE = 32
"""Partitions whose leaders are asked at a time."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a group goes on in a partition. ``reader``: the member that reads it now."""

    committed: PartitionCommit
    reader: MemberDescription | None

    @property
    def member_id(self) -> str | None:
        """The reader's."""
        return None if self.reader is None else self.reader.member_id


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind in a partition. ``end``: what can be read, or why that is not known."""

    place: GroupPlace
    end: int | MilenaError

    @property
    def is_known(self) -> bool:
        """The partition's leader has answered."""
        return isinstance(self.end, int)

    @property
    def end_offset(self) -> int:
        """Where the partition ends.

        Raises:
            MilenaError: it is not known.
        """
        if isinstance(self.end, MilenaError):
            raise self.end
        return self.end

    @property
    def lag(self) -> int:
        """Offsets that the group has yet to read.

        Raises:
            MilenaError: it is not known.
        """
        return max(0, self.end_offset - self.place.committed.offset)


def places_of(group: GroupDescription, is_seen: Callable[[str], bool]) -> list[GroupPlace]:
    """Where something is committed and the caller is shown the topic, in order."""
    readers = {where: member for member in group.members for where in member.assignment}
    return [
        GroupPlace(committed, readers.get((committed.topic, committed.partition)))
        for committed in sorted(group.offsets, key=lambda one: (one.topic, one.partition))
        if is_seen(committed.topic)
    ]


async def with_ends(
    call: Call, places: Sequence[GroupPlace], *, is_whole: bool = False
) -> list[Lag]:
    """What is left to read there, without what was deleted since.

    Raises:
        MilenaError: one of the ends is not known, and ``is_whole``.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def lag_of(place: GroupPlace) -> Lag | None:
        try:
            async with turns:
                offsets = await call.ports.reads.offsets(
                    place.committed.topic, place.committed.partition
                )
        except (TopicNotFoundError, PartitionNotFoundError):
            # What was committed there goes, too.
            return None
        except MilenaError as error:
            if is_whole:
                raise
            return Lag(place, error)
        return Lag(place, offsets.high_watermark)

    waiting = [asyncio.ensure_future(lag_of(place)) for place in places]
    try:
        return [lag for lag in await asyncio.gather(*waiting) if lag is not None]
    finally:
        for task in waiting:
            task.cancel()


async def lags_of(call: Call, group: GroupDescription) -> list[Lag]:
    """Of all partitions that the caller is shown and where something is committed, in order.

    Raises:
        MilenaError: one of their ends is not known.
    """
    places = places_of(group, call.rights.seen(ResourceType.TOPIC))
    return await with_ends(call, places, is_whole=True)
