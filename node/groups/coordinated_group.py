"""One group on its coordinator: answer heartbeats with assignments, and remove silent members.

A heartbeat takes these steps:

1. Its requests (``heartbeat_rules``) go to the group's writer (``group_writer``), and through the quorum.
2. It is answered at once if there is news for its member. If not, it waits for news until its time is up.

``member_sessions`` decides which members have expired. Owned by the data loop, created by ``GroupCoordinator``.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from http_api.ports.groups import Heartbeat, HeartbeatAnswer, KafkaHeartbeat
from milena.model.errors import (
    FateUnknownError,
    MemberFencedError,
    MilenaError,
    NotCoordinatorError,
    NotReadyError,
)
from milena.model.types import MonotonicMs
from node.groups import heartbeat_rules
from node.groups.group_writer import GroupContext, GroupWriter, moved
from node.groups.member_sessions import GroupSessions
from node.groups.rebalance import Leave, MemberChange, Release, to_give_back
from node.groups.rest_members import release
from raft_meta.machine.image import Group, GroupMember, PartitionKey, PartitionSet
from raft_meta.machine.topics import partition_sets

logger = logging.getLogger(__name__)

LOOK_AGAIN_MS = 500
"""The pause before expired members are checked again, while they are being removed."""


class PendingHeartbeats:
    """The unanswered heartbeats of one group: their members, and which of them wait for news."""

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._newest: dict[str, int] = {}
        self._sequence = itertools.count(1)

    @property
    def present(self) -> frozenset[str]:
        """Members with an unanswered heartbeat: they learn at once of new partitions."""
        return frozenset(self._present)

    @property
    def held_back(self) -> list[str]:
        """Members whose heartbeats wait for news."""
        return list(self._waiters)

    @contextmanager
    def presence(self, member_id: str) -> Iterator[int]:
        """Count a heartbeat of the member as present during the block; yield its number, for ``is_newest``.

        Wake the member's earlier heartbeats: a member that sends another one has given those up, and they must not
        take its news.
        """
        number = self._newest[member_id] = next(self._sequence)
        self._present[member_id] += 1
        self.wake(member_id)
        try:
            yield number
        finally:
            self._present[member_id] -= 1
            if not self._present[member_id]:
                del self._present[member_id], self._newest[member_id]

    def is_newest(self, member_id: str, number: int) -> bool:
        """Return whether the member has sent no other heartbeat since."""
        return self._newest.get(member_id) == number

    async def news(self, member_id: str, timeout_ms: float) -> None:
        """Wait until the member is woken, or the time is up."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(member_id, []).append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            return
        finally:
            self._forget(member_id, waiter)

    def _forget(self, member_id: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(member_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[member_id]

    def wake(self, member_id: str) -> None:
        """Wake the heartbeats of a member, because there is news for it."""
        for waiter in self._waiters.pop(member_id, ()):
            if not waiter.done():
                waiter.set_result(None)


class CoordinatedGroup:
    """One group on its coordinator.

    Invariants:
        No member is told to continue while it is being removed for its silence, or may have been removed.
    """

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.group_id = group_id
        self.sessions = GroupSessions()
        self._context = context
        self._node = context.node
        self._heartbeats = PendingHeartbeats()
        self._writer = GroupWriter(
            group_id, context, present=lambda: self._heartbeats.present, on_written=self.look
        )
        self._looked: Group | None = None
        self._held: frozenset[PartitionKey] | None = None
        self._leaving: dict[str, asyncio.Future[None]] = {}
        """Members that expired, until it is certain whether they are removed."""
        self.look()

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> Group | None:
        """The group in the image."""
        return self._node.metadata.image.groups.get(self.group_id)

    def _member(self, member_id: str) -> GroupMember | None:
        """Return the member in the image."""
        self.look()
        return self.sessions.member(member_id)

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members and no calls, so that this object need not be kept."""
        group = self.state
        is_empty = group is None or not group.members
        return is_empty and not (self._writer.is_busy or self._heartbeats.present)

    def _has_free(self, member: GroupMember) -> bool:
        """Return whether a partition that the member waits for is free now."""
        if member.held == member.target or not partition_sets.is_subset(member.held, member.target):
            return False
        self.look()
        if self._held is None:
            group = self.state
            members = () if group is None else group.members
            self._held = frozenset(key for m in members for key in partition_sets.keys_of(m.held))
        return any(key not in self._held for key in partition_sets.keys_of(member.target))

    def look(self) -> None:
        """Adopt the group of the newest image."""
        group = self.state
        if group is self._looked:
            return
        self._looked, self._held = group, None
        self.sessions.look(group, self._node.clock.now_ms())
        self._wake()
        self._context.on_due(self.group_id, self.sessions.next_due_ms())

    def _wake(self) -> None:
        for member_id in self._heartbeats.held_back:
            member = self.sessions.member(member_id)
            if member is None or not self.sessions.is_told(member) or self._has_free(member):
                self._heartbeats.wake(member_id)

    # -- heartbeats ------------------------------------------------------------------------------

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Let a member join, stay or leave; see ``http_api.ports.groups.GroupsPort.heartbeat``."""
        heartbeat_rules.check_epoch(heartbeat)
        if heartbeat.member_epoch == heartbeat_rules.LEAVE:
            return await self._leave(heartbeat)
        if heartbeat.member_epoch == heartbeat_rules.AWAY:
            return await self._leave_for_now(heartbeat)
        await self._removed(heartbeat.member_id)
        with self._heartbeats.presence(heartbeat.member_id) as number:
            async with self._writer.turn(heartbeat.member_id, heartbeat.instance_id):
                changes = self._changes(heartbeat)
            self.sessions.heard(heartbeat.member_id, self._node.clock.now_ms())
            await self._take_in(heartbeat.member_id, changes)
            return await self._answer(heartbeat, number)

    async def _leave(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Remove a member on its request; one that is gone already gets the same answer, unless it was succeeded.

        Raises:
            InvalidConsumerError: the member is a REST consumer.
            MemberFencedError: another process has taken over its instance id.
        """
        async with self._writer.turn(heartbeat.member_id):
            known = self._member(heartbeat.member_id)
        if known is not None:
            heartbeat_rules.check_kind(self.group_id, known)
            await self._writer.change(Leave(member_id=heartbeat.member_id))
        elif isinstance(reason := self._absent(heartbeat), MemberFencedError):
            raise reason
        return heartbeat_rules.farewell(self.state, heartbeat.member_id)

    async def _leave_for_now(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Note that a static member is away. Its partitions stay with it, and the next process takes them over.

        This is only in the memory of this coordinator. The next one lets any process take the instance id over from a
        member that it has not heard.

        Raises:
            InvalidConsumerError, MemberFencedError, MemberNotFoundError, NotCoordinatorError: as for any heartbeat.
        """
        await self._removed(heartbeat.member_id)
        async with self._writer.turn(heartbeat.member_id):
            known = self._member(heartbeat.member_id)
        if known is None:
            raise self._absent(heartbeat)
        heartbeat_rules.check_kind(self.group_id, known)
        heartbeat_rules.check_instance(heartbeat, known)
        self.sessions.leave_for_now(known.member_id)
        self._context.on_due(self.group_id, self.sessions.next_due_ms())
        return heartbeat_rules.farewell(self.state, known.member_id, heartbeat_rules.AWAY)

    def _changes(self, heartbeat: Heartbeat) -> list[MemberChange]:
        """Return the changes that the heartbeat asks for, if the member may ask for them."""
        known = self._member(heartbeat.member_id)
        if known is not None:
            heartbeat_rules.check_kind(self.group_id, known)
            heartbeat_rules.check_instance(heartbeat, known)
        if heartbeat.member_epoch != heartbeat_rules.JOIN:
            if known is None:
                raise self._absent(heartbeat)
            heartbeat_rules.check_not_ahead(heartbeat, known)
        elif known is None and self._writer.was_succeeded(heartbeat.member_id):
            raise heartbeat_rules.succeeded(heartbeat)
        elif self._is_instance_held(heartbeat):
            raise heartbeat_rules.held(heartbeat)
        wanted = heartbeat_rules.wanted_by(heartbeat, known)
        if wanted is not None and known is None:
            heartbeat_rules.check_room(self.group_id, self._member_count())
        released = None if known is None else self._released(heartbeat, known)
        return [change for change in (wanted, released) if change is not None]

    def _is_instance_held(self, heartbeat: Heartbeat) -> bool:
        """Return whether a join of a Kafka member must wait until another one gives its instance id up."""
        instance_id = heartbeat.instance_id
        if not isinstance(heartbeat, KafkaHeartbeat) or instance_id is None:
            return False
        return self.sessions.holder_of(instance_id, besides=heartbeat.member_id) is not None

    def _member_count(self) -> int:
        """Return the number of members, including those that are joining."""
        group = self.state
        joining = sum(self.sessions.member(m) is None for m in self._writer.joining())
        return joining + (0 if group is None else len(group.members))

    def _released(self, heartbeat: Heartbeat, known: GroupMember) -> Release | None:
        """Return the release of the partitions that the member has given back by this heartbeat, if any."""
        owned = self._owned(heartbeat)
        if owned is None:
            self._check_named(heartbeat, known)
            return None
        gone = self.sessions.given_back(known, heartbeat.member_epoch, owned)
        if not gone:
            return None
        return Release(
            member_id=known.member_id, member_epoch=heartbeat.member_epoch, partitions=gone
        )

    def _check_named(self, heartbeat: Heartbeat, known: GroupMember) -> None:
        """Refuse a member of Kafka that may have given partitions back, and told a former coordinator only.

        A client that finds this coordinator without an error does not name its partitions again. An error makes it name
        them. Otherwise it would be removed for keeping partitions that it has given back. A client that is still about
        to give them back gets one such error.

        Raises:
            NotReadyError: the member has its assignment, has something to give back, and has not said what it works on.
        """
        is_present = heartbeat.member_epoch == known.member_epoch and self.sessions.is_told(known)
        if isinstance(heartbeat, KafkaHeartbeat) and is_present and to_give_back(known):
            self.sessions.heard(known.member_id, self._node.clock.now_ms())
            raise NotReadyError(
                f"the coordinator does not know yet what member {known.member_id!r} works on: name its partitions"
            )

    def _owned(self, heartbeat: Heartbeat) -> PartitionSet | None:
        """Return the partitions that the member works on; None: it has not said so.

        A member of Kafka names them only if they have changed, or after an error. So a new coordinator hears of them
        once, before its first response, and must remember them until the next heartbeat.
        """
        member_id, epoch = heartbeat.member_id, heartbeat.member_epoch
        if heartbeat.owned is not None:
            owned = self._context.names.to_ids(heartbeat.owned)
            self.sessions.named(member_id, epoch, owned)
            return owned
        is_kafka = isinstance(heartbeat, KafkaHeartbeat)
        return self.sessions.last_named(member_id, epoch) if is_kafka else None

    async def _take_in(self, member_id: str, changes: Sequence[MemberChange]) -> None:
        known = self._member(member_id)
        if changes or (known is not None and self._has_free(known)):
            await self._writer.change(*changes)
            self.look()
            if not self.sessions.is_away(member_id, self._node.clock.now_ms()):
                self.sessions.heard(member_id, self._node.clock.now_ms())

    async def _answer(self, heartbeat: Heartbeat, number: int) -> HeartbeatAnswer:
        """Wait for news as long as the member may wait, then return its assignment at that time."""
        clock, names = self._node.clock, self._context.names
        started = clock.now_ms()
        while True:
            await self._removed(heartbeat.member_id)
            self._check_coordinated()
            member = self._member(heartbeat.member_id)
            if member is None:
                raise self._absent(heartbeat)
            if not self._heartbeats.is_newest(member.member_id, number):
                # The member may not receive this answer, so it does not count as told.
                return heartbeat_rules.present_answer(self.state, member, names)
            owned = None if heartbeat.owned is None else names.to_ids(heartbeat.owned)
            is_told = self.sessions.is_told(member)
            wait_ms = heartbeat_rules.hold_back_ms(heartbeat, member, owned, is_told=is_told)
            left_ms = wait_ms - (clock.now_ms() - started)
            if left_ms <= 0:
                if self.sessions.told(member, clock.now_ms()):
                    self._context.on_due(self.group_id, self.sessions.next_due_ms())
                return heartbeat_rules.present_answer(self.state, member, names)
            await self._heartbeats.news(member.member_id, left_ms)
            if not self._writer.is_closed and self._has_free(member):
                await self._writer.change()

    def _check_coordinated(self) -> None:
        """Refuse to answer if another node may coordinate the group now; the caller then looks for the coordinator.

        Raises:
            NotCoordinatorError: this node does not coordinate the group any more.
        """
        self._context.check(self.group_id)
        if self._writer.is_closed:
            raise moved(self.group_id)

    def _absent(self, heartbeat: Heartbeat) -> MilenaError:
        was_succeeded = self._writer.was_succeeded(heartbeat.member_id)
        return heartbeat_rules.absent(heartbeat, self.state, was_succeeded=was_succeeded)

    # -- silence ---------------------------------------------------------------------------------

    def expire(self, now_ms: MonotonicMs) -> None:
        """Remove members that were silent for too long, or did not give back partitions in time."""
        self.look()
        changes: list[MemberChange] = []
        # A member whose removal has an unknown fate is removed again, even if it was heard since: it may be gone.
        due = {**dict.fromkeys(self._leaving), **dict.fromkeys(self.sessions.expired(now_ms))}
        for member_id in due:
            member = self.sessions.member(member_id)
            if member is None:
                self._leaving.pop(member_id, None)
                continue
            if member.is_rest or self.sessions.is_away(member_id, now_ms):
                # A REST member lives as long as its consumer, which has been asked to finish with these partitions.
                # A static member that is away works on no partitions.
                changes.append(release(member))
                continue
            if member_id not in self._leaving:
                logger.info("member expired group=%s member=%s", self.group_id, member_id)
                self._node.counts.groups.expired_members += 1
            changes.append(Leave(member_id=member_id))
        if changes and not self._writer.is_working:
            self._remove(changes)
        again_ms = MonotonicMs(now_ms + LOOK_AGAIN_MS)
        next_ms = again_ms if self._leaving else max(self.sessions.next_due_ms(), again_ms)
        self._context.on_due(self.group_id, next_ms)

    def _remove(self, changes: Sequence[MemberChange]) -> None:
        done = self._writer.submit(changes)
        gone = [change.member_id for change in changes if isinstance(change, Leave)]
        self._leaving.update(dict.fromkeys(gone, done))
        done.add_done_callback(lambda _: self._on_removed(gone, done))

    def _on_removed(self, member_ids: Sequence[str], done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, FateUnknownError):
            return  # ``expire`` tries again
        for member_id in member_ids:
            self._leaving.pop(member_id, None)

    async def _removed(self, member_id: str) -> None:
        """Return once it is certain whether an expired member is removed; return at once for other members.

        After the removal its partitions belong to others. An answer to continue would let it work on them for another
        session.

        Raises:
            NotCoordinatorError: it is unknown yet whether the member is removed.
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

    # -- calls of its coordinator ----------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether the group must be worked out again, even without a request."""
        return self._writer.is_dirty

    def mark_dirty(self) -> None:
        """Have the next tick work out the group again."""
        self._writer.is_dirty = True

    @property
    def is_overtaken(self) -> bool:
        """Whether the group has changed since this node worked out its targets."""
        group = self.state
        return group is not None and self._writer.is_overtaken(group)

    def kick(self) -> None:
        """Start to work out the group again."""
        self._writer.kick()

    async def settle(self, instance: str) -> None:
        """Make the consumer's membership match its subscription; see ``rest_members``."""
        async with self._writer.turn(instance):
            change = self._writer.rest.missing(instance)
        if change is not None:
            await self._writer.change(change)

    def settle_soon(self, instance: str) -> None:
        """Do as ``settle`` with the next tick; for a coordinator that has just taken over."""
        self._writer.rest.settle_soon(instance)
        self._writer.is_dirty = True

    def close(self) -> None:
        """Answer all waiting calls: another node coordinates the group, or this one cannot know whether it does."""
        self._writer.close()
        for member_id in self._heartbeats.held_back:
            self._heartbeats.wake(member_id)
