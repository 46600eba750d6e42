"""One classic group on its coordinator: give requests to ``state``, and write the generations that it finishes.

Requests that must wait are futures. One proposal is in flight at a time. Owned by the data loop, created by
``ClassicCoordinator``.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milena.model.contained import EntryPoint
from milena.model.errors import (
    FencedError,
    GroupChangedError,
    InconsistentGroupProtocolError,
    MilenaError,
    NotCoordinatorError,
)
from milena.model.types import MonotonicMs
from node.config.budgets import PROPOSE_MS
from node.groups.classic.calls import (
    ClassicDescription,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from node.groups.classic.member import Waiter
from node.groups.classic.state import Answer, ClassicGroupState, GenerationWrite
from node.groups.group_writer import TRIES_MAX, GroupContext, moved
from raft_meta.machine.commands import PutClassicGroup
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ClassicMember, Group

logger = logging.getLogger(__name__)

CLIENT_ID_IN_MEMBER_ID_MAX = 200
"""Characters of a client id that go into a member id, which has at most 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """``initial_delay_ms``: how long an empty group waits for further members. ``new_id``: returns an unused id."""

    initial_delay_ms: int
    new_id: Callable[[], str]


class CoordinatedClassicGroup:
    """One classic group on its coordinator."""

    def __init__(self, group_id: str, context: GroupContext, settings: ClassicSettings) -> None:
        self.group_id = group_id
        self._context = context
        self._node = context.node
        self._settings = settings
        self._state = ClassicGroupState(group_id, initial_delay_ms=settings.initial_delay_ms)
        self._waiting: dict[Waiter, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._writing: asyncio.Future[None] | None = None
        self._unsaved: GenerationWrite | None = None
        """The note that the group became empty, if it could not be written: the next tick tries again."""
        self._is_closed = False
        group = self._row
        if group is not None:
            self._state.load(group, self._node.clock.now_ms())
        self._go_on()

    @property
    def _row(self) -> Group | None:
        return self._node.metadata.image.groups.get(self.group_id)

    # -- requests --------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Let a member join; see ``ClassicGroups.join``."""
        self._check_open()
        _check_names(request)
        row = self._row
        if row is not None:
            self._state.raise_generation(row.generation)
        waiter = next(self._numbers)
        now_ms = self._node.clock.now_ms()
        self._state.join(request, waiter, now_ms, new_id=self._new_id(request))
        answer = await self._answer(waiter)
        assert isinstance(answer, JoinAnswer), answer
        return answer

    def _new_id(self, request: JoinRequest) -> str:
        name = request.client_id if request.instance_id is None else request.instance_id
        return f"{name[:CLIENT_ID_IN_MEMBER_ID_MAX]}-{self._settings.new_id()}"

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Give a member its assignment; see ``ClassicGroups.sync``."""
        self._check_open()
        waiter = next(self._numbers)
        try:
            self._state.sync(request, waiter, self._node.clock.now_ms())
        except MilenaError:
            # A refused sync may have started a rebalance.
            self._go_on()
            raise
        answer = await self._answer(waiter)
        assert isinstance(answer, SyncAnswer), answer
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None) -> None:
        """Extend a member's session; see ``ClassicGroups.heartbeat``."""
        self._check_open()
        self._state.heartbeat(member_id, generation, instance_id, self._node.clock.now_ms())

    def leave(self, members: Sequence[LeavingMember]) -> list[LeaveOutcome]:
        """Remove members; see ``ClassicGroups.leave``."""
        self._check_open()
        outcomes = self._state.leave(members, self._node.clock.now_ms())
        self._go_on()
        return outcomes

    def check_commit(self, member_id: str, generation: int, instance_id: str | None) -> None:
        """Refuse a commit of a client that is not a member; see ``ClassicGroups.commit``."""
        self._check_open()
        self._state.check_commit(member_id, generation, instance_id, self._node.clock.now_ms())

    def describe(self) -> ClassicDescription:
        """Return the group and its members."""
        return self._state.describe()

    def protocols(self) -> list[tuple[tuple[str, bytes], ...] | None]:
        """Return the protocols of each member, with their metadata; None: not known here."""
        return self._state.protocols()

    @property
    def member_count(self) -> int:
        """The number of members, including those that wait for the first generation."""
        return self._state.member_count

    def _check_open(self) -> None:
        if self._is_closed:
            raise moved(self.group_id)

    # -- answers and time ------------------------------------------------------------------------

    async def _answer(self, waiter: Waiter) -> JoinAnswer | SyncAnswer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = future
        self._go_on()
        try:
            answer = await future
        finally:
            del self._waiting[waiter]
            if future.cancelled():
                # Its client is gone. The future is cancelled with the task that waits for it.
                self._state.abandon(waiter, self._node.clock.now_ms())
                self._go_on()
        if isinstance(answer, MilenaError):
            raise answer
        return answer

    def _go_on(self) -> None:
        """Carry out what the state asks for: answers, writes, and the next look."""
        if self._is_closed:
            return
        for waiter, answer in self._state.take_answers():
            future = self._waiting.get(waiter)
            if future is not None and not future.done():
                future.set_result(answer)
        if (self._state.has_write or self._unsaved is not None) and self._writing is None:
            self._writing = asyncio.get_running_loop().create_future()
            self._context.spawn(self._write())
        self._context.on_due(self.group_id, self._state.next_due_ms())

    def expire(self, now_ms: MonotonicMs) -> None:
        """Remove members that were silent for too long, and end overdue rebalances."""
        for member_id in self._state.expire(now_ms):
            logger.info("member expired group=%s member=%s", self.group_id, member_id)
            self._node.counts.groups.expired_members += 1
        self._go_on()

    def extend(self, now_ms: MonotonicMs) -> None:
        """Give every member its full times again."""
        self._state.extend(now_ms)
        self._context.on_due(self.group_id, self._state.next_due_ms())

    @property
    def is_idle(self) -> bool:
        """Whether this object need not be kept."""
        is_busy = self._writing is not None or self._unsaved is not None
        return self._state.is_idle and not is_busy

    @property
    def must_retry(self) -> bool:
        """Whether a write failed that no request will repeat."""
        return self._unsaved is not None and self._writing is None

    def retry(self) -> None:
        """Write again what could not be written."""
        self._go_on()

    def close(self) -> None:
        """Answer all waiting requests: another node coordinates the group, or this one cannot know."""
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_result(moved(self.group_id))

    # -- writes ----------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Return when the image has what this group has to write, or the write has failed."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        writing = self._writing
        assert writing is not None, self.group_id
        try:
            while not self._is_closed:
                write = self._state.take_write() or self._unsaved
                self._unsaved = None
                if write is None:
                    break
                error = await self._propose(write)
                if error is not None and not write.classic.members:
                    self._unsaved = write
                    break
                self._state.on_written(write, error, self._node.clock.now_ms())
                # Not before the next write is known: ``_go_on`` would start a second one.
                self._go_on()
        finally:
            self._writing = None
            writing.set_result(None)
        if self._state.has_write:
            self._go_on()

    async def _propose(self, write: GenerationWrite) -> MilenaError | None:
        """Write a generation; return the error if it is not written, or its fate is unknown."""
        error: MilenaError | None = None
        try:
            await self._reach(write)
        except FencedError as refusal:
            error = NotCoordinatorError(f"{refusal.message} Nothing was changed.")
        except MilenaError as refusal:
            error = refusal
        except Exception as fault:  # noqa: BLE001 - the members of this group hear of it
            contained = self._node.counts.contained
            error = contained.report(EntryPoint.TASK, fault, "group", self.group_id)
        return error

    async def _reach(self, write: GenerationWrite) -> None:
        for _ in range(TRIES_MAX):
            self._context.check(self.group_id)
            row = self._row
            is_empty = row is None or not row.member_count
            if (is_empty and not write.classic.members) or _has(row, write):
                return
            try:
                await self._put(row, write)
            except GroupChangedError:
                continue
            self._note(write)
            return
        raise NotCoordinatorError(f"group {self.group_id!r} changes all the time")

    async def _put(self, row: Group | None, write: GenerationWrite) -> None:
        await self._node.metadata.propose(
            PutClassicGroup(
                broker_id=self._node.metadata.node_id,
                broker_epoch=self._node.membership.broker_epoch,
                group_id=self.group_id,
                version=0 if row is None else row.version,
                generation=write.generation,
                classic=write.classic,
            ),
            timeout_ms=PROPOSE_MS,
        )

    def _note(self, write: GenerationWrite) -> None:
        self._node.counts.groups.rebalances += 1
        logger.info(
            "group rebalanced group=%s generation=%d protocol=%s members=%d",
            self.group_id,
            write.generation,
            write.classic.protocol,
            len(write.classic.members),
        )


def _check_names(request: JoinRequest) -> None:
    """Refuse names that could not be stored.

    Raises:
        InvalidConsumerError: the message names the field.
        InconsistentGroupProtocolError: too many protocols.
    """
    group_rules.check_group_id(request.group_id)
    group_rules.check_classic_member(
        ClassicMember(
            member_id=request.member_id or "new",
            instance_id=request.instance_id,
            client_id=request.client_id,
            host=request.host,
            session_ms=1,
            rebalance_ms=1,
            assignment=b"",
        )
    )
    if len(request.protocols) > group_rules.PROTOCOLS_MAX:
        raise InconsistentGroupProtocolError(
            f"a member supports at most {group_rules.PROTOCOLS_MAX} protocols, not {len(request.protocols)}"
        )
    group_rules.check_protocols(request.protocol_type, [name for name, _ in request.protocols])


def _has(row: Group | None, write: GenerationWrite) -> bool:
    """Return whether the image has the generation: an earlier try of unknown fate has succeeded."""
    return row is not None and (row.generation, row.classic) == (write.generation, write.classic)
