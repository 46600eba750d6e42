"""The commits of a REST consumer, as the group member that it is at that time, and before it releases partitions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from milena.model.clock import Clock
from milena.model.errors import MilenaError, StaleMemberEpochError
from milena.model.requests import FetchRequest, FetchResult
from node.consumers.consumer_views import ConsumerView
from node.consumers.cursor import Cursor, OffsetAndEpoch
from node.groups.coordinator import GroupCoordinator
from node.groups.group_offsets import CommitQueue
from raft_meta.machine.commands import GroupCommit, OffsetCommit
from raft_meta.machine.image import Image, PartitionKey, PartitionSet
from raft_meta.machine.topics import partition_sets

logger = logging.getLogger(__name__)

QUIET_COMMIT_MS = 2_000
"""How long an automatic commit may delay a call, in ms."""
EPOCH_TRIES = 3
"""Attempts of one commit. While a commit is in flight, the member's epoch may change, and the commit is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """Objects that all consumers on a coordinator share. Owned by ``ConsumerCoordinator``."""

    image: Callable[[], Image]
    fetch: Callable[[FetchRequest], Awaitable[FetchResult]]
    commits: CommitQueue
    coordinates: Callable[[str], bool]
    """Returns whether this node is now the coordinator of the group."""
    memberships: GroupCoordinator
    spawn: Callable[[Coroutine[object, object, None]], None]
    """Runs a coroutine in the background. The coroutine must not raise."""
    clock: Clock


class SessionCommits:
    """The commits of one consumer. Owned by the consumer's session."""

    __slots__ = ("_context", "_cursor", "_given_up", "_releasing", "_view", "coordinators_version")

    def __init__(self, view: ConsumerView, cursor: Cursor, context: SessionContext) -> None:
        self._view = view
        self._cursor = cursor
        self._context = context
        self._releasing: set[PartitionKey] = set()
        """Partitions that are to be released, and whose commit is in flight."""
        self._given_up: set[PartitionKey] = set()
        """Partitions that are to be released, and whose commit has failed."""
        self.coordinators_version = context.image().coordinators_version
        """That of the last image up to which this node has coordinated the group since the session began, without a
        break. A commit of a session that has ended carries an old one, and is refused."""

    async def commit(self, offsets: Mapping[PartitionKey, OffsetAndEpoch]) -> None:
        """Commit these offsets.

        Raises:
            MilenaError: as ``GroupsPort.commit``.
        """
        await self.commit_offsets(
            [
                OffsetCommit(
                    topic_id=topic_id,
                    partition=number,
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata="",
                )
                for (topic_id, number), offset in sorted(offsets.items())
            ]
        )

    async def commit_offsets(self, offsets: Sequence[OffsetCommit]) -> None:
        """Commit offsets and their metadata as given by a client."""
        for row in offsets:
            self._cursor.on_committing((row.topic_id, row.partition), row.offset)
        for tries_left in range(EPOCH_TRIES - 1, -1, -1):
            member = self._view.member()
            commit = GroupCommit(
                group_id=self._view.key[0],
                member_id=None if member is None else member.member_id,
                member_epoch=-1 if member is None else member.member_epoch,
                offsets=tuple(offsets),
                coordinators_version=self.coordinators_version,
            )
            try:
                await self._context.commits.commit(commit)
                break
            except StaleMemberEpochError:
                if member is None or not tries_left or member is self._view.member():
                    raise
        for row in offsets:
            self._cursor.on_committed((row.topic_id, row.partition), row.offset)

    async def commit_quietly(self, offsets: Mapping[PartitionKey, OffsetAndEpoch]) -> None:
        """Make an automatic commit. If it fails, records may be delivered again, as after any failure."""
        try:
            async with asyncio.timeout(QUIET_COMMIT_MS / 1000):
                await self._commit_what_is_held(offsets)
        except (MilenaError, TimeoutError) as error:
            logger.warning("consumer=%s/%s could not commit: %s", *self._view.key, error)

    async def _commit_what_is_held(self, offsets: Mapping[PartitionKey, OffsetAndEpoch]) -> None:
        """Commit the offsets of partitions that the consumer still holds. A rebalance may have removed others."""
        for tries_left in range(EPOCH_TRIES - 1, -1, -1):
            held = self._view.held()
            mine = offsets if held is None else {k: o for k, o in offsets.items() if k in held}
            try:
                if mine:
                    await self.commit(mine)
            except StaleMemberEpochError:
                if not tries_left:
                    raise
            else:
                return

    def may_release(self, partitions: PartitionSet) -> bool:
        """Return whether the partitions may be released. False: a commit of what has arrived of them is in flight.

        Also return True if this commit has failed.
        """
        keys = set(partition_sets.keys_of(partitions))
        if keys & self._releasing:
            return False
        offsets = self._cursor.arrived() if self._cursor.is_auto_commit else {}
        mine = {k: offset for k, offset in offsets.items() if k in keys and k not in self._given_up}
        if not mine:
            self._given_up -= keys
            return True
        self._releasing |= keys
        self._context.spawn(self._commit_and_look(mine, keys))
        return False

    async def _commit_and_look(
        self, offsets: Mapping[PartitionKey, OffsetAndEpoch], keys: set[PartitionKey]
    ) -> None:
        """Commit once, whether it succeeds or not, then check the group again: a rebalance must not wait longer."""
        try:
            await self.commit_quietly(offsets)
        finally:
            self._releasing -= keys
            self._given_up |= offsets.keys() & self._cursor.arrived().keys()
        self._context.memberships.look(self._view.key[0])
