"""Where one group is coordinated: changes come in, next states go to the quorum, waiting members are told.

One proposal is under way at a time; what comes in meanwhile goes out together as the next one. What the group becomes
is worked out in ``next_states``, and ``sessions`` says who has expired; this is the shell around them. Owned by the
data loop, made by ``GroupCoordinator``.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from milena.model.errors import (
    FateUnknownError,
    InvalidRequestError,
    LimitReachedError,
    MilenaError,
    NotCoordinatorError,
)
from milena.model.types import MonotonicMs
from node.groups.desk_context import DeskContext
from node.groups.next_states import NextStates
from node.groups.rebalance import Change, Join, Leave
from node.groups.rest_memberships import RestMemberships, release
from node.groups.sessions import GroupSessions
from node.groups.waiting import WaitingMembers
from raft_meta.machine import partition_sets
from raft_meta.machine.image import Group, GroupMember, PartitionKey

logger = logging.getLogger(__name__)

LOOK_AGAIN_MS = 500
"""Until who has expired is looked at again, while they are being removed."""


@dataclass(slots=True)
class _Pending:
    """Changes of one caller, all taken in one state."""

    changes: Sequence[Change]
    done: asyncio.Future[None]


class GroupDesk:
    """One group on its coordinator.

    Invariants:
        At most one proposal of this desk is under way. Nobody is told to go on working while it is being removed for
        its silence, or may have been.
    """

    def __init__(self, group_id: str, context: DeskContext) -> None:
        self.group_id = group_id
        self.sessions = GroupSessions()
        self._context = context
        self._pending: list[_Pending] = []
        self.waiting = WaitingMembers()
        self._states = NextStates(group_id, context, self.waiting)
        self._rest = RestMemberships(group_id, context, self._submit)
        self._looked: Group | None = None
        self._held: frozenset[PartitionKey] | None = None
        self._is_working = False
        self._leaving: dict[str, asyncio.Future[None]] = {}
        """Members that expired, until it is certain whether they are gone."""
        self.is_closed = False
        self.is_dirty = False
        """The group is to be looked at, whether anybody asked or not."""
        self.look()

    # -- what it knows ---------------------------------------------------------------------------

    @property
    def group(self) -> Group | None:
        """The group in the image."""
        return self._context.metadata.image.groups.get(self.group_id)

    def member(self, member_id: str) -> GroupMember | None:
        """The member in the image."""
        self.look()
        return self.sessions.member(member_id)

    @property
    def is_idle(self) -> bool:
        """Nobody is in the group, and nobody asks: nothing here is worth keeping."""
        group = self.group
        is_empty = group is None or not group.members
        return is_empty and not (self._pending or self._is_working or self.waiting.present)

    def joining(self) -> int:
        """How many newcomers wait to be taken in."""
        return sum(
            isinstance(change, Join) and self.sessions.member(change.member.member_id) is None
            for pending in self._pending
            for change in pending.changes
        )

    def was_succeeded(self, member_id: str) -> bool:
        """Whether another process has taken over the member's instance id."""
        return self._states.was_succeeded(member_id)

    def has_free(self, member: GroupMember) -> bool:
        """Whether something that the member waits for is free by now."""
        if member.held == member.target or not partition_sets.is_subset(member.held, member.target):
            return False
        self.look()
        if self._held is None:
            group = self.group
            members = () if group is None else group.members
            self._held = frozenset(key for m in members for key in partition_sets.keys_of(m.held))
        return any(key not in self._held for key in partition_sets.keys_of(member.target))

    @property
    def is_overtaken(self) -> bool:
        """Whether the group is another one than that for which targets were worked out here."""
        group = self.group
        return group is not None and self._states.is_overtaken(group)

    def look(self) -> None:
        """Follow the image."""
        group = self.group
        if group is self._looked:
            return
        self._looked, self._held = group, None
        self.sessions.look(group, self._context.clock.now_ms())
        self._wake()
        self._context.on_due(self.group_id, self.sessions.next_due_ms())

    # -- changes ---------------------------------------------------------------------------------

    async def change(self, *changes: Change) -> None:
        """Have these taken in, and free partitions given out; the image includes it on return.

        Raises:
            NotCoordinatorError, NoQuorumError: nothing was changed.
            InvalidRequestError, LimitReachedError: refused; nothing was changed.
            FateUnknownError: it may be changed.
        """
        if self.is_closed:
            raise self._moved()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(changes, done))
        self.kick()
        await done

    def kick(self) -> None:
        """Look at the group soon."""
        if not self.is_closed:
            self.is_dirty = True
            if not self._is_working:
                self._is_working = True
                self._context.spawn(self._work())

    def expire(self, now_ms: MonotonicMs) -> None:
        """Remove members that were silent, or kept what they were asked for, for too long."""
        self.look()
        changes: list[Change] = []
        # Who may be gone already is not spared for having been heard since then.
        due = {**dict.fromkeys(self._leaving), **dict.fromkeys(self.sessions.expired(now_ms))}
        for member_id in due:
            member = self.sessions.member(member_id)
            if member is None:
                self._leaving.pop(member_id, None)
                continue
            if member.is_rest:
                # It lives as long as its consumer, which was asked to finish with these.
                changes.append(release(member))
                continue
            if member_id not in self._leaving:
                logger.info("member expired group=%s member=%s", self.group_id, member_id)
                self._context.counts.expired_members += 1
            changes.append(Leave(member_id=member_id))
        if changes and not self._is_working:
            self._remove(changes)
        again_ms = MonotonicMs(now_ms + LOOK_AGAIN_MS)
        next_ms = again_ms if self._leaving else max(self.sessions.next_due_ms(), again_ms)
        self._context.on_due(self.group_id, next_ms)

    def _remove(self, changes: Sequence[Change]) -> None:
        done = self._submit(changes)
        gone = [change.member_id for change in changes if isinstance(change, Leave)]
        self._leaving.update(dict.fromkeys(gone, done))
        done.add_done_callback(lambda _: self._on_removed(gone, done))

    def _on_removed(self, member_ids: Sequence[str], done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, FateUnknownError):
            return  # once more, in ``expire``
        for member_id in member_ids:
            self._leaving.pop(member_id, None)

    async def removed(self, member_id: str) -> None:
        """Return once it is certain whether a member that expired is removed; at once for all others.

        Its partitions are others' from then on. Told to go on, it would work on them for another session.

        Raises:
            NotCoordinatorError: nobody knows yet.
        """
        done = self._leaving.get(member_id)
        if done is None:
            return
        await asyncio.wait([done])
        if member_id in self._leaving:
            raise NotCoordinatorError(
                f"member {member_id!r} of group {self.group_id!r} was silent and may have been removed; "
                "nothing was done, ask again"
            )

    def _submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Changes that nobody waits for: when they fail, the reason for them is still there."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._pending.append(_Pending(changes, done))
        self.kick()
        return done

    async def _work(self) -> None:
        try:
            while (self._pending or self.is_dirty) and not self.is_closed:
                self.is_dirty = False
                self._rest.settle()
                taken, self._pending = self._pending, []
                if not await self._take_in(taken):
                    # Whatever it is, it is tried again, but not at once.
                    self.is_dirty = True
                    return
                self._rest.ask(self.group)
        finally:
            self._is_working = False

    async def _take_in(self, taken: Sequence[_Pending]) -> bool:
        """Whether the quorum went along."""
        try:
            await self._states.reach([change for pending in taken for change in pending.changes])
            self.look()
        except (InvalidRequestError, LimitReachedError) as error:
            if len(taken) > 1:
                # One of them is at fault, and the others are not to suffer from it.
                return all([await self._take_in([pending]) for pending in taken])
            _fail(taken, error)
            return True
        except MilenaError as error:
            _fail(taken, error)
            return False
        for pending in taken:
            if not pending.done.done():
                pending.done.set_result(None)
        return True

    # -- REST members ----------------------------------------------------------------------------

    async def settle(self, instance: str) -> None:
        """Let the consumer be the member that its subscription says; see ``rest_members``."""
        change = self._rest.missing(instance)
        if change is not None:
            await self.change(change)

    def settle_soon(self, instance: str) -> None:
        """The same, for a coordinator that has just taken over."""
        self._rest.settle_soon(instance)
        self.is_dirty = True

    # -- who waits -------------------------------------------------------------------------------

    def _wake(self) -> None:
        for member_id in self.waiting.held_back:
            member = self.sessions.member(member_id)
            if member is None or not self.sessions.is_told(member) or self.has_free(member):
                self.waiting.wake(member_id)

    def close(self) -> None:
        """Another node coordinates the group, or this one cannot know."""
        self.is_closed = True
        taken, self._pending = self._pending, []
        _fail(taken, self._moved())
        for member_id in self.waiting.held_back:
            self.waiting.wake(member_id)

    def _moved(self) -> MilenaError:
        return NotCoordinatorError(
            f"group {self.group_id!r} is not coordinated here any more; nothing was done"
        )


def _fail(taken: Sequence[_Pending], error: MilenaError) -> None:
    for pending in taken:
        if not pending.done.done():
            pending.done.set_exception(error)
