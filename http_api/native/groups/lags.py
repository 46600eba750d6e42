"""Native: how far a group is behind, partition by partition."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from http_api.call import Call
from http_api.group_ports import GroupDescription, MemberDescription, PartitionCommit
from milena.model.access import ResourceType
from milena.model.errors import MilenaError, PartitionNotFoundError, TopicNotFoundError
from milena.model.requests import PartitionOffsets

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
    """How far a group is behind in a partition. ``offsets``: what can be read there, None if that is not known."""

    place: GroupPlace
    offsets: PartitionOffsets | None

    @property
    def end_offset(self) -> int | None:
        """Where the partition ends; None: its leader has not answered."""
        return None if self.offsets is None else self.offsets.high_watermark

    @property
    def lag(self) -> int | None:
        """Offsets that the group has yet to read; None: not known, or it stands behind the partition's end."""
        return None if self.offsets is None else self.offsets.lag_of(self.place.committed.offset)


def places_of(group: GroupDescription, is_seen: Callable[[str], bool]) -> list[GroupPlace]:
    """Where something is committed and the caller is shown the topic, in order."""
    readers = {where: member for member in group.members for where in member.assignment}
    return [
        GroupPlace(committed, readers.get((committed.topic, committed.partition)))
        for committed in sorted(group.offsets, key=lambda one: (one.topic, one.partition))
        if is_seen(committed.topic)
    ]


async def with_ends(call: Call, places: Sequence[GroupPlace]) -> list[Lag]:
    """What is left to read there, without what was deleted since."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def lag_of(place: GroupPlace) -> Lag | None:
        try:
            async with turns:
                offsets = await call.ports.reads.offsets(
                    place.committed.topic, place.committed.partition, wants_records_end=True
                )
        except (TopicNotFoundError, PartitionNotFoundError):
            # What was committed there goes, too.
            return None
        except MilenaError:
            return Lag(place, None)
        return Lag(place, offsets)

    waiting = [asyncio.ensure_future(lag_of(place)) for place in places]
    try:
        return [lag for lag in await asyncio.gather(*waiting) if lag is not None]
    finally:
        for task in waiting:
            task.cancel()


async def lags_of(call: Call, group: GroupDescription) -> list[Lag]:
    """Of all partitions that the caller is shown and where something is committed, in order."""
    return await with_ends(call, places_of(group, call.rights.seen(ResourceType.TOPIC)))
