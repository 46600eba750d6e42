"""The single writer of a group: take changes, and propose the group's next states to the quorum.

A group has one proposal in flight at a time. Changes that arrive meanwhile go together into the next one. ``rebalance``
computes the next state, and computes it again if another command about the group was faster.

Targets are computed only if something may change them: a join, a leave, or topics and a version other than those of the
last computation. Large groups are computed on a worker thread. Work that fails is retried with the next tick.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from milena.model.contained import EntryPoint
from milena.model.errors import (
    FencedError,
    GroupChangedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LimitReachedError,
    MilenaError,
    NotCoordinatorError,
)
from milena.model.types import MonotonicMs
from node.config.budgets import PROPOSE_MS
from node.context import NodeContext
from node.groups.descriptions import TopicNames
from node.groups.rebalance import Join, Leave, MemberChange, NextState, Release, next_state
from node.groups.rest_members import RestMembers, RestMemberships
from node.groups.subscriptions import Subscriptions
from raft_meta.machine.commands import AlterGroup
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Group, Image

logger = logging.getLogger(__name__)

TRIES_MAX = 20
"""The most proposals of one state. Each failed one was overtaken by a command about the same group, and those are
rare."""
SUCCESSIONS_KEPT_MAX = 1_000
LARGE_GROUP = 64
"""The number of members from which on a worker thread computes the assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """The parts that all groups of a node share. Owned by ``GroupCoordinator``."""

    node: NodeContext
    check: Callable[[str], None]
    """Raises NotCoordinatorError unless this node coordinates the group."""
    names: TopicNames
    subscriptions: Subscriptions
    rest_members: Callable[[], RestMembers | None]
    spawn: Callable[[Coroutine[None, None, None]], None]
    on_due: Callable[[str, MonotonicMs], None]
    """Schedules the group's next check for expired members, at this time."""


_Name = tuple[str, str]
"""``("member", its id)`` or ``("instance", an instance id)``."""


@dataclass(slots=True)
class _Pending:
    """The changes of one caller, which go into the same state."""

    changes: Sequence[MemberChange]
    done: asyncio.Future[None]


class GroupWriter:
    """Proposes one group's states. Owned by its ``CoordinatedGroup``, on the data loop.

    ``present`` returns the members that would learn at once of new partitions. ``on_written`` is called when the image
    has a new state, before its callers are answered.

    Invariants:
        At most one proposal of this writer is in flight.
    """

    def __init__(
        self,
        group_id: str,
        context: GroupContext,
        *,
        present: Callable[[], frozenset[str]],
        on_written: Callable[[], None],
    ) -> None:
        self._group_id = group_id
        self._context = context
        self._node = context.node
        self._present = present
        self._on_written = on_written
        self._pending: list[_Pending] = []
        self._taken: Sequence[_Pending] = ()
        """The changes that are being written."""
        self._pending_names: set[_Name] = set()
        self._taken_names: set[_Name] = set()
        """The members and instance ids in the joins and leaves of these two. A thousand members may join at once, so a
        request must not look at every change."""
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """Member → held by the request whose change is made next. Requests keep these locks alive."""
        self._succeeded: dict[str, None] = {}
        """Members whose instance id another process has taken over; used below the feature level at which the image has
        them."""
        self._assigned: tuple[int, object] | None = None
        """The version and the topics for which the targets were last computed, or found unchanged."""
        self.rest = RestMemberships(
            group_id, self._node.metadata, context.rest_members, self.submit
        )
        self.is_working = False
        self.is_closed = False
        self.is_dirty = False
        """Whether the group must be worked out again, even without a request."""

    # -- state -----------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether changes wait, or are being written."""
        return bool(self._pending) or self.is_working

    def joining(self) -> Iterator[str]:
        """Yield the ids of members whose joins are not written yet: of new members, and of known ones that change."""
        for pending in (*self._taken, *self._pending):
            for change in pending.changes:
                if isinstance(change, Join):
                    yield change.member.member_id

    def was_succeeded(self, member_id: str) -> bool:
        """Return whether another process has taken over the member's instance id."""
        group = self._node.metadata.image.groups.get(self._group_id)
        return (
            member_id in self._succeeded or group_rules.successor_of(group, member_id) is not None
        )

    def is_overtaken(self, group: Group) -> bool:
        """Return whether the group has changed since this node computed its targets."""
        return self._assigned is None or self._assigned[0] != group.version

    # -- changes ---------------------------------------------------------------------------------

    async def change(self, *changes: MemberChange) -> None:
        """Write these changes, and give out free partitions; on return the image includes both.

        Raises:
            NotCoordinatorError, NoQuorumError: nothing was changed.
            InvalidRequestError, LimitReachedError: the changes are refused; nothing was changed.
            FateUnknownError: the group may be changed.
        """
        if self.is_closed:
            raise moved(self._group_id)
        await self._enqueue(changes)

    @asynccontextmanager
    async def turn(self, member_id: str, instance_id: str | None = None) -> AsyncIterator[None]:
        """Wait until no join or leave of this member, and no join under this instance id, waits or is being written.

        In the block, a change of the member is made from the image, and it is queued without another wait. If it were
        made before an earlier one is in the image, it would not fit. A member's requests have their turns in order.

        Raises:
            MilenaError: as ``change``.
        """
        names: set[_Name] = {("member", member_id)}
        if instance_id is not None:
            names.add(("instance", instance_id))
        async with self._turns.setdefault(member_id, asyncio.Lock()):
            while not (
                names.isdisjoint(self._taken_names) and names.isdisjoint(self._pending_names)
            ):
                await self.change()
            yield

    def submit(self, changes: Sequence[MemberChange]) -> asyncio.Future[None]:
        """Queue changes without a waiting caller; if they fail, their reason remains, and they are submitted again."""
        done = self._enqueue(changes)
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return done

    def _enqueue(self, changes: Sequence[MemberChange]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(changes, done))
        self._pending_names.update(name for change in changes for name in _names(change))
        self.kick()
        return done

    def kick(self) -> None:
        """Start to work out the group again."""
        if not self.is_closed:
            self.is_dirty = True
            if not self.is_working:
                self.is_working = True
                self._context.spawn(self._work())

    def close(self) -> None:
        """Refuse all waiting changes: another node coordinates the group, or this one cannot know."""
        self.is_closed = True
        taken, self._pending = self._pending, []
        _fail(taken, moved(self._group_id))

    async def _work(self) -> None:
        try:
            while (self._pending or self.is_dirty) and not self.is_closed:
                self.is_dirty = False
                self.rest.settle()
                self._taken, self._pending = self._pending, []
                self._taken_names, self._pending_names = self._pending_names, set()
                if not await self._take_in(self._taken):
                    # Retry after any error, but only with the next tick.
                    self.is_dirty = True
                    return
                self.rest.ask(self._node.metadata.image.groups.get(self._group_id))
        finally:
            self.is_working, self._taken, self._taken_names = False, (), set()

    async def _take_in(self, taken: Sequence[_Pending]) -> bool:
        """Write the changes and answer their callers; return False if the work must be retried."""
        try:
            await self._reach([change for pending in taken for change in pending.changes])
            self._on_written()
        except (InvalidRequestError, LimitReachedError, InconsistentGroupProtocolError) as error:
            if len(taken) > 1:
                # One caller's changes are at fault: write each caller's alone, so that the others succeed.
                return all([await self._take_in([pending]) for pending in taken])
            _fail(taken, error)
            return True
        except MilenaError as error:
            _fail(taken, error)
            return False
        except Exception as error:  # noqa: BLE001 - the group's other callers go on
            if len(taken) > 1:
                return all([await self._take_in([pending]) for pending in taken])
            contained = self._node.counts.contained
            _fail(taken, contained.report(EntryPoint.TASK, error, "group", self._group_id))
            return False
        for pending in taken:
            if not pending.done.done():
                pending.done.set_result(None)
        return True

    # -- the next state --------------------------------------------------------------------------

    async def _reach(self, changes: Sequence[MemberChange]) -> None:
        """Propose the state after these changes, with free partitions given out."""
        for _ in range(TRIES_MAX):
            self._context.check(self._group_id)
            image = self._node.metadata.image
            group = image.groups.get(self._group_id)
            after = await self._next_state(group, image, changes)
            if after is None:
                self._assigned = (0 if group is None else group.version, image.topics)
                return
            try:
                version = await self._propose(group, after)
            except GroupChangedError:
                continue
            except FencedError as error:
                raise NotCoordinatorError(f"{error.message} Nothing was changed.") from error
            self._assigned = (version, image.topics)
            self._note(changes, after)
            return
        raise NotCoordinatorError(
            f"group {self._group_id!r} changes all the time; nothing was done"
        )

    async def _next_state(
        self, group: Group | None, image: Image, changes: Sequence[MemberChange]
    ) -> NextState | None:
        is_same = (
            group is not None
            and self._assigned is not None
            and (self._assigned[0] == group.version and self._assigned[1] is image.topics)
        )
        must_assign = not is_same or any(not isinstance(change, Release) for change in changes)
        present = self._present()
        members = 0 if group is None else len(group.members)
        if not must_assign or members + len(changes) < LARGE_GROUP:
            subscriptions = self._context.subscriptions
            subscriptions.look(image)
            return next_state(
                group,
                changes,
                subscriptions,
                present=present,
                must_assign=must_assign,
                remembers=_remembers(image),
            )
        # Assigning ten thousand partitions takes a second, which must not block the loop. The subscriptions of the
        # context belong to the loop, so the worker gets its own.
        subscriptions = Subscriptions()
        subscriptions.look(image)
        return await asyncio.get_running_loop().run_in_executor(
            self._node.pool,
            functools.partial(
                next_state,
                group,
                changes,
                subscriptions,
                present=present,
                remembers=_remembers(image),
            ),
        )

    async def _propose(self, group: Group | None, after: NextState) -> int:
        """Propose a state; return the group's new version."""
        version = await self._node.metadata.propose(
            AlterGroup(
                broker_id=self._node.metadata.node_id,
                broker_epoch=self._node.membership.broker_epoch,
                group_id=self._group_id,
                version=0 if group is None else group.version,
                generation=after.generation,
                assignor=after.assignor,
                members=after.members,
                left=after.left,
            ),
            timeout_ms=PROPOSE_MS,
        )
        assert isinstance(version, int), version
        return version

    def _note(self, changes: Sequence[MemberChange], after: NextState) -> None:
        counts = self._node.counts.groups
        if after.is_rebalance:
            counts.rebalances += 1
            logger.info(
                "group rebalanced group=%s generation=%d assignor=%s",
                self._group_id,
                after.generation,
                after.assignor,
            )
        if _remembers(self._node.metadata.image):
            return
        gone = {change.member_id for change in changes if isinstance(change, Leave)}
        for member_id in after.left:
            if member_id not in gone:
                self._succeeded[member_id] = None
        while len(self._succeeded) > SUCCESSIONS_KEPT_MAX:
            del self._succeeded[next(iter(self._succeeded))]


def _names(change: MemberChange) -> Iterator[_Name]:
    """Yield the member that joins or leaves, and the instance id that it joins under."""
    match change:
        case Join(member=member):
            yield "member", member.member_id
            if member.instance_id is not None:
                yield "instance", member.instance_id
        case Leave(member_id=member_id):
            yield "member", member_id
        case Release():
            return


def _remembers(image: Image) -> bool:
    """Return whether members in the image have their predecessors."""
    return image.feature_level >= group_rules.PREDECESSORS_LEVEL


def moved(group_id: str) -> MilenaError:
    """Return the refusal of a call for a group that this node does not coordinate any more."""
    return NotCoordinatorError(
        f"group {group_id!r} is not coordinated here any more; nothing was done"
    )


def _fail(taken: Sequence[_Pending], error: MilenaError) -> None:
    for pending in taken:
        if not pending.done.done():
            pending.done.set_exception(error)
