"""What a REST consumer commits, as the member that it is at that moment, and before it lets partitions go."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from milena.model.errors import MilenaError, StaleMemberEpochError
from node.consumers.cursor import Cursor, Mark
from node.consumers.session_tools import SessionTools
from node.consumers.view import ConsumerView
from raft_meta.machine import partition_sets
from raft_meta.machine.commands import GroupCommit, OffsetCommit
from raft_meta.machine.image import PartitionKey, PartitionSet

logger = logging.getLogger(__name__)

QUIET_COMMIT_MS = 2_000
"""How long a commit that no client asked for may hold up a call."""
EPOCH_TRIES = 3
"""A member's epoch may change while its commit is on its way."""


class SessionCommits:
    """Owned by the consumer's session."""

    __slots__ = ("_cursor", "_given_up", "_releasing", "_tools", "_view")

    def __init__(self, view: ConsumerView, cursor: Cursor, tools: SessionTools) -> None:
        self._view = view
        self._cursor = cursor
        self._tools = tools
        self._releasing: set[PartitionKey] = set()
        """Asked for, and being committed first."""
        self._given_up: set[PartitionKey] = set()
        """Asked for, and the commit failed."""

    async def commit(self, marks: Mapping[PartitionKey, Mark]) -> None:
        """Commit these offsets.

        Raises:
            MilenaError: as ``GroupsPort.commit``.
        """
        await self.commit_offsets(
            [
                OffsetCommit(
                    topic_id=topic_id,
                    partition=number,
                    offset=mark.offset,
                    leader_epoch=mark.leader_epoch,
                    metadata="",
                )
                for (topic_id, number), mark in sorted(marks.items())
            ]
        )

    async def commit_offsets(self, offsets: Sequence[OffsetCommit]) -> None:
        """The same, with whatever goes with them."""
        for row in offsets:
            self._cursor.on_committing((row.topic_id, row.partition), row.offset)
        for tries_left in range(EPOCH_TRIES - 1, -1, -1):
            member = self._view.member()
            commit = GroupCommit(
                group_id=self._view.key[0],
                member_id=None if member is None else member.member_id,
                member_epoch=-1 if member is None else member.member_epoch,
                offsets=tuple(offsets),
            )
            try:
                await self._tools.commits.commit(commit)
                break
            except StaleMemberEpochError:
                if member is None or not tries_left or member is self._view.member():
                    raise
        for row in offsets:
            self._cursor.on_committed((row.topic_id, row.partition), row.offset)

    async def commit_quietly(self, marks: Mapping[PartitionKey, Mark]) -> None:
        """Commit what no client waits for: if that fails, records may be delivered again, as after any failure."""
        try:
            async with asyncio.timeout(QUIET_COMMIT_MS / 1000):
                await self._commit_what_is_held(marks)
        except (MilenaError, TimeoutError) as error:
            logger.warning("consumer=%s/%s could not commit: %s", *self._view.key, error)

    async def _commit_what_is_held(self, marks: Mapping[PartitionKey, Mark]) -> None:
        """A rebalance may have taken some of these away, which is no reason to lose the others."""
        for tries_left in range(EPOCH_TRIES - 1, -1, -1):
            held = self._view.held()
            mine = marks if held is None else {k: m for k, m in marks.items() if k in held}
            try:
                if mine:
                    await self.commit(mine)
            except StaleMemberEpochError:
                if not tries_left:
                    raise
            else:
                return

    def may_release(self, partitions: PartitionSet) -> bool:
        """Whether what has arrived of these is committed, or could not be; else it is being committed."""
        keys = set(partition_sets.keys_of(partitions))
        if keys & self._releasing:
            return False
        marks = self._cursor.arrived() if self._cursor.is_auto_commit else {}
        mine = {k: mark for k, mark in marks.items() if k in keys and k not in self._given_up}
        if not mine:
            self._given_up -= keys
            return True
        self._releasing |= keys
        self._tools.spawn(self._commit_and_look(mine, keys))
        return False

    async def _commit_and_look(
        self, marks: Mapping[PartitionKey, Mark], keys: set[PartitionKey]
    ) -> None:
        """Once is enough: a rebalance does not wait for a quorum that is not there."""
        try:
            await self.commit_quietly(marks)
        finally:
            self._releasing -= keys
            self._given_up |= marks.keys() & self._cursor.arrived().keys()
        self._tools.memberships.look(self._view.key[0])
