"""The state machine of one classic group. Pure: time, new ids and waiting requests come in as arguments.

    state                 leaves it when
    Empty                 a member joins                                       → PreparingRebalance
    PreparingRebalance    all members have joined, or the rebalance timeout ends → CompletingRebalance, or Empty
    CompletingRebalance   the leader's assignment is stored                    → Stable
    Stable                a member joins, leaves, expires or changes           → PreparingRebalance

A generation starts when PreparingRebalance ends. It is finished once its row is written (``GenerationWrite``), with the
leader's assignments. No member gets its assignment before. Joins and syncs wait under a number that their caller
chose; their results come out of ``take_answers``.

A coordinator that takes a group over starts from the row, as Stable, with full sessions. It does not know what members
support until they join again (``protocols`` None).

Sources: Kafka's ``ClassicGroup`` and ``GroupCoordinator``; KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345
(static members), KIP-394 (member id required), KIP-814 (static leader).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from milena.model.errors import (
    GenerationError,
    GroupLimitError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberFencedError,
    MemberIdRequiredError,
    MilenaError,
    NotCoordinatorError,
    RebalanceInProgressError,
    RequestTooLargeError,
)
from milena.model.types import MonotonicMs
from node.groups.classic.calls import (
    ClassicDescription,
    ClassicState,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeaveOutcome,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from node.groups.classic.member import (
    Member,
    Waiter,
    chosen_protocol,
    common_protocols,
    metadata_bytes,
    name_bytes,
    unknown_member,
)
from node.groups.member_sessions import NEVER
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ClassicGroup, Group

SESSION_MS_MIN = 1_000
SESSION_MS_MAX = 1_800_000
"""The default of group.max.session.timeout.ms in Kafka."""

METADATA_BYTES_MAX = 16 << 20
"""Bytes of the metadata of all members, and of their assignments. They are only in memory."""

Answer: TypeAlias = JoinAnswer | SyncAnswer | MilenaError


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWrite:
    """A generation to write to the image. ``classic`` without members: the group became empty."""

    generation: int
    classic: ClassicGroup


class ClassicGroupState:
    """One classic group on its coordinator.

    Invariants:
        Only members wait for a join or a sync.
        PreparingRebalance and CompletingRebalance have members; Empty has none.
        The leader is a member in CompletingRebalance and Stable.
    """

    def __init__(self, group_id: str, *, initial_delay_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self._initial_delay_ms = initial_delay_ms
        self._members: dict[str, Member] = {}
        self._pending: dict[str, MonotonicMs] = {}
        """Ids that were given out and did not join yet, until when they are valid."""
        self._rebalance_due_ms = NEVER
        self._initial_end_ms = NEVER
        """In the first rebalance of an empty group: until when it may wait for further members."""
        self._has_newcomer = False
        self._unsynced: set[str] = set()
        self._sync_due_ms = NEVER
        self._has_assignments = True
        self._is_assigned = False
        """In CompletingRebalance: whether the leader's assignments have arrived and are being written."""
        self._successions: dict[str, tuple[JoinRequest, str]] = {}
        """Static members with other ids that wait until the image has them: their joins and former ids, by new ids."""
        self._answers: list[tuple[Waiter, Answer]] = []
        self._unwritten: GenerationWrite | None = None

    # -- what the caller carries out -------------------------------------------------------------

    def take_answers(self) -> list[tuple[Waiter, Answer]]:
        """Return the results of waiting requests, each once."""
        answers, self._answers = self._answers, []
        return answers

    def take_write(self) -> GenerationWrite | None:
        """Return what must be written to the image, once; then call ``on_written``."""
        write, self._unwritten = self._unwritten, None
        return write

    @property
    def has_write(self) -> bool:
        """Whether ``take_write`` returns a write."""
        return self._unwritten is not None

    @property
    def member_count(self) -> int:
        """The number of members, without the ids that did not join yet."""
        return len(self._members)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known here that the image does not have."""
        return not (self._members or self._pending or self._unwritten)

    # -- from the image --------------------------------------------------------------------------

    def load(self, group: Group, now_ms: MonotonicMs) -> None:
        """Take over the group of the image, as Stable, with full sessions."""
        assert not self._members, f"{self.group_id} has members already"
        self.generation = group.generation
        classic = group.classic
        if classic is None or not classic.members:
            return
        self.state = ClassicState.STABLE
        self.protocol_type, self.protocol = classic.protocol_type, classic.protocol
        self.leader, self._has_assignments = classic.leader, classic.has_assignments
        self._members = {row.member_id: Member.of_row(row, now_ms) for row in classic.members}

    def raise_generation(self, generation: int) -> None:
        """Continue after this generation of the image: the group may have been of the other kind since."""
        if self.state is ClassicState.EMPTY:
            self.generation = max(self.generation, generation)

    def on_written(
        self, write: GenerationWrite, error: MilenaError | None, now_ms: MonotonicMs
    ) -> None:
        """Go on after a write: answer the requests that waited for it. After an error the group rebalances."""
        is_present = write.generation == self.generation and bool(write.classic.members)
        if not is_present or self.state not in {
            ClassicState.COMPLETING_REBALANCE,
            ClassicState.STABLE,
        }:
            return
        if error is not None:
            self._fail_write(error, now_ms)
            return
        written = {member.member_id for member in write.classic.members}
        for member_id in [found for found in self._successions if found in written]:
            self._answer_succession(self._members[member_id], now_ms)
        if self.state is ClassicState.COMPLETING_REBALANCE:
            self.state = ClassicState.STABLE
            for member in self._members.values():
                self._answer_sync(member, now_ms)

    def _fail_write(self, error: MilenaError, now_ms: MonotonicMs) -> None:
        known = (NotCoordinatorError, InconsistentGroupProtocolError)
        refusal = (
            error
            if isinstance(error, known)
            else RebalanceInProgressError(
                f"generation {self.generation} of group {self.group_id!r} was not stored ({error.message}): join again"
            )
        )
        for member in self._members.values():
            if member.syncing is not None:
                member.heard_ms = now_ms
                self._end_sync(member, refusal)
        self._rebalance(now_ms)

    # -- joining ---------------------------------------------------------------------------------

    def join(
        self, request: JoinRequest, waiter: Waiter, now_ms: MonotonicMs, *, new_id: str
    ) -> None:
        """Let a member join; its answer follows when the next generation starts, or now.

        Args:
            request: the join.
            waiter: the number under which the answer comes out.
            now_ms: the time.
            new_id: the id of the member if it has none yet.

        Raises:
            MemberIdRequiredError: join again with this id.
            MemberNotFoundError, MemberFencedError: the id is not known, or another process has the instance id.
            InconsistentGroupProtocolError, InvalidSessionTimeoutError, GroupLimitError: refused.
        """
        self._check_join(request)
        self._check_size(request)
        if request.member_id:
            self._join_again(request, waiter, now_ms)
            return
        holder = self._holder(request.instance_id)
        if holder is not None:
            self._succeed(holder, request, waiter, now_ms, new_id)
            return
        self._check_room()
        if request.instance_id is None and request.needs_known_id:
            self._pending[new_id] = MonotonicMs(now_ms + request.session_ms)
            raise MemberIdRequiredError(
                f"group {self.group_id!r}: join again with the member id {new_id!r}",
                member_id=new_id,
            )
        self._add(new_id, request, waiter, now_ms)

    def _check_join(self, request: JoinRequest) -> None:
        if not SESSION_MS_MIN <= request.session_ms <= SESSION_MS_MAX:
            raise InvalidSessionTimeoutError(
                f"session timeout {request.session_ms} ms: use {SESSION_MS_MIN}..{SESSION_MS_MAX} ms"
            )
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocolError(
                f"a member of group {self.group_id!r} names a protocol type and at least one protocol"
            )
        others = [
            member
            for member in self._members.values()
            if member.member_id != request.member_id
            and (request.instance_id is None or member.instance_id != request.instance_id)
        ]
        if not others:
            return
        if request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id!r} has protocol type {self.protocol_type!r}, not {request.protocol_type!r}: use "
                "another group"
            )
        common = common_protocols(others)
        if common is not None and common.isdisjoint(name for name, _ in request.protocols):
            raise InconsistentGroupProtocolError(
                f"the members of group {self.group_id!r} support {', '.join(sorted(common))}: a new member must "
                "support one of these protocols"
            )

    def _check_size(self, request: JoinRequest) -> None:
        """Refuse a member whose names or metadata would make the group too large to be stored, or to be kept here."""
        others = [m for m in self._members.values() if m.member_id != request.member_id]
        names = sum(m.name_bytes for m in others) + name_bytes(request)
        metadata = sum(m.metadata_bytes for m in others) + metadata_bytes(request.protocols)
        if names > group_rules.GROUP_BYTES_MAX or metadata > METADATA_BYTES_MAX:
            raise GroupLimitError(
                f"the names of group {self.group_id!r}'s members would take {names} bytes and their metadata "
                f"{metadata}, more than {group_rules.GROUP_BYTES_MAX} and {METADATA_BYTES_MAX}: use fewer members, or "
                "patterns in place of many topics"
            )

    def _check_room(self) -> None:
        if len(self._members) + len(self._pending) >= group_rules.MEMBERS_MAX:
            raise GroupLimitError(
                f"group {self.group_id!r} has {group_rules.MEMBERS_MAX} members already; use several groups"
            )

    def _join_again(self, request: JoinRequest, waiter: Waiter, now_ms: MonotonicMs) -> None:
        if request.instance_id is None and self._pending.pop(request.member_id, None) is not None:
            self._add(request.member_id, request, waiter, now_ms)
            return
        member = self._member(request.member_id, request.instance_id)
        is_same = member.protocols == request.protocols
        if member.member_id in self._successions:
            # Its place is being written, and it asks again: the answer goes to the newer request.
            self._wait_join(member, waiter)
            return
        if self.state is ClassicState.COMPLETING_REBALANCE and is_same:
            # The response to its last join was lost.
            member.heard_ms = now_ms
            self._answers.append((waiter, self._join_answer(member)))
            return
        is_leader = member.member_id == self.leader
        if self.state is ClassicState.STABLE and is_same and not is_leader:
            member.heard_ms = now_ms
            self._answers.append((waiter, self._join_answer(member)))
            return
        self._update(member, request)
        self._wait_join(member, waiter)
        self._rebalance(now_ms)

    def _add(
        self, member_id: str, request: JoinRequest, waiter: Waiter, now_ms: MonotonicMs
    ) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        member = self._members[member_id] = Member.of_join(member_id, request, now_ms)
        self._wait_join(member, waiter)
        self._has_newcomer = True
        self._rebalance(now_ms)

    def _update(self, member: Member, request: JoinRequest) -> None:
        member.update(request)
        if len(self._members) == 1:
            self.protocol_type = request.protocol_type

    def _wait_join(self, member: Member, waiter: Waiter) -> None:
        self._end_join(member, _repeated(member))
        member.joining = waiter

    # -- static members --------------------------------------------------------------------------

    def _holder(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((m for m in self._members.values() if m.instance_id == instance_id), None)

    def _succeed(
        self,
        holder: Member,
        request: JoinRequest,
        waiter: Waiter,
        now_ms: MonotonicMs,
        new_id: str,
    ) -> None:
        """Give a static member's place to another process."""
        former_id, fenced = holder.member_id, _fenced(self.group_id, holder)
        self._end_join(holder, fenced)
        self._end_sync(holder, fenced)
        self._successions.pop(holder.member_id, None)
        del self._members[holder.member_id]
        if holder.member_id in self._unsynced:
            self._unsynced.remove(holder.member_id)
            self._unsynced.add(new_id)
        if self.leader == holder.member_id:
            self.leader = new_id
        holder.member_id, holder.heard_ms, holder.joining = new_id, now_ms, waiter
        self._members[new_id] = holder
        self._update(holder, request)
        supports = holder.names
        is_same = (
            self.state is ClassicState.STABLE
            and self._has_assignments
            and supports is not None
            and self.protocol in supports
            and request.protocol_type == self.protocol_type
            and chosen_protocol(self._members.values()) == self.protocol
        )
        if is_same:
            # The image must know the new id before the process may commit under it.
            self._successions[new_id] = (request, former_id)
            self._unwritten = GenerationWrite(generation=self.generation, classic=self._row())
        else:
            self._rebalance(now_ms)

    def _answer_succession(self, member: Member, now_ms: MonotonicMs) -> None:
        request, former_id = self._successions.pop(member.member_id)
        is_leader = member.member_id == self.leader
        can_skip = request.can_skip_assignment
        answer = JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            # A client that cannot skip the assignment must not take itself for the leader: it would compute one.
            leader=former_id if is_leader and not can_skip else self.leader,
            members=self._joined() if is_leader and can_skip else (),
            skips_assignment=is_leader and can_skip,
        )
        member.heard_ms = now_ms
        self._end_join(member, answer)

    # -- rebalances ------------------------------------------------------------------------------

    def _rebalance(self, now_ms: MonotonicMs) -> None:
        """Start a rebalance unless one is under way, and end it if it can end."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
            self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _prepare(self, now_ms: MonotonicMs) -> None:
        is_first = self.state is ClassicState.EMPTY
        for member in self._members.values():
            if member.syncing is not None:
                member.heard_ms = now_ms
            self._end_sync(member, _in_progress(self.group_id))
        self.state = ClassicState.PREPARING_REBALANCE
        self._successions.clear()
        self._unsynced.clear()
        self._sync_due_ms = NEVER
        self._is_assigned = False
        self._rebalance_due_ms = MonotonicMs(now_ms + self._longest_ms())
        if is_first and self._initial_delay_ms > 0:
            self._initial_end_ms = self._rebalance_due_ms
            self._wait_for_more(now_ms)

    def _wait_for_more(self, now_ms: MonotonicMs) -> None:
        self._has_newcomer = False
        self._rebalance_due_ms = min(
            MonotonicMs(now_ms + self._initial_delay_ms), self._initial_end_ms
        )

    def _longest_ms(self) -> int:
        return max((member.rebalance_ms for member in self._members.values()), default=0)

    def _complete_if_all_joined(self, now_ms: MonotonicMs) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE:
            return
        if not self._members:
            self._become_empty()
            return
        is_gathering = self._initial_end_ms != NEVER
        has_all = all(member.joining is not None for member in self._members.values())
        if has_all and not self._pending and not is_gathering:
            self._complete(now_ms)

    def _become_empty(self) -> None:
        self.state = ClassicState.EMPTY
        self.generation += 1
        self.protocol = self.leader = ""
        self._rebalance_due_ms = self._initial_end_ms = self._sync_due_ms = NEVER
        self._unsynced.clear()
        self._successions.clear()
        self._has_assignments = True
        self._unwritten = GenerationWrite(generation=self.generation, classic=self._row())

    def _complete(self, now_ms: MonotonicMs) -> None:
        """Start the next generation with the members that have joined, and with static members that are known."""
        for member in list(self._members.values()):
            is_kept = member.joining is not None or (
                member.instance_id is not None and member.protocols is not None
            )
            if not is_kept:
                del self._members[member.member_id]
        if not self._members:
            self._become_empty()
            return
        joined = [member for member in self._members.values() if member.joining is not None]
        if not joined:
            # Only static members, and none has joined yet: their sessions decide how long to wait.
            self._rebalance_due_ms = MonotonicMs(now_ms + self._longest_ms())
            return
        self.generation += 1
        self.state = ClassicState.COMPLETING_REBALANCE
        self._rebalance_due_ms = self._initial_end_ms = NEVER
        self.protocol = chosen_protocol(self._members.values())
        if self.leader not in self._members or self._members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self._is_assigned = False
        self._sync_due_ms = MonotonicMs(now_ms + self._longest_ms())
        self._unsynced = {member.member_id for member in joined}
        for member in self._members.values():
            member.assignment = b""
        for member in joined:
            member.heard_ms = now_ms
            self._end_join(member, self._join_answer(member))

    def _join_answer(self, member: Member) -> JoinAnswer:
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self._joined() if member.member_id == self.leader else (),
        )

    def _joined(self) -> Sequence[JoinedMember]:
        return [member.joined(self.protocol) for member in self._members.values()]

    # -- assignments -----------------------------------------------------------------------------

    def sync(self, request: SyncRequest, waiter: Waiter, now_ms: MonotonicMs) -> None:
        """Give a member its assignment, now or when the leader's is stored.

        Raises:
            MemberNotFoundError, MemberFencedError, GenerationError, InconsistentGroupProtocolError,
            RebalanceInProgressError: refused; the member must join again, except after MemberFencedError.
            RequestTooLargeError: the assignments are larger than ``METADATA_BYTES_MAX``.
        """
        if sum(map(len, request.assignments.values())) > METADATA_BYTES_MAX:
            raise RequestTooLargeError(
                f"the assignments of group {self.group_id!r} have more than {METADATA_BYTES_MAX} bytes: use fewer "
                "members"
            )
        member = self._member(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        for said, present in (
            (request.protocol_type, self.protocol_type),
            (request.protocol, self.protocol),
        ):
            if said is not None and said != present:
                raise InconsistentGroupProtocolError(
                    f"generation {self.generation} of group {self.group_id!r} has protocol {present!r}, not {said!r}: "
                    "join again"
                )
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise _in_progress(self.group_id)
        if self.state is ClassicState.STABLE and not self._has_assignments:
            self._rebalance(now_ms)
            raise _in_progress(self.group_id)
        self._unsynced.discard(member.member_id)
        self._end_sync(member, _repeated(member))
        member.syncing = waiter
        if self.state is ClassicState.STABLE:
            self._answer_sync(member, now_ms)
        elif member.member_id == self.leader and not self._is_assigned:
            self._is_assigned = True
            self._assign(request)

    def _assign(self, request: SyncRequest) -> None:
        for member in self._members.values():
            member.assignment = bytes(request.assignments.get(member.member_id, b""))
        size = sum(len(member.assignment) for member in self._members.values())
        self._has_assignments = size <= group_rules.ASSIGNMENT_BYTES_MAX
        self._unwritten = GenerationWrite(generation=self.generation, classic=self._row())

    def _row(self) -> ClassicGroup:
        return ClassicGroup(
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=tuple(
                member.row(has_assignment=self._has_assignments)
                for _, member in sorted(self._members.items())
            ),
            has_assignments=self._has_assignments,
        )

    def _answer_sync(self, member: Member, now_ms: MonotonicMs) -> None:
        if member.syncing is not None:
            member.heard_ms = now_ms
            answer = SyncAnswer(
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                assignment=member.assignment,
            )
            self._end_sync(member, answer)

    # -- staying and leaving ---------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now_ms: MonotonicMs
    ) -> None:
        """Extend a member's session.

        Raises:
            MemberNotFoundError, MemberFencedError, GenerationError: refused.
            RebalanceInProgressError: the session is extended, and the member must join again.
        """
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        member.heard_ms = now_ms
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise _in_progress(self.group_id)

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, now_ms: MonotonicMs
    ) -> None:
        """Refuse a commit of a client that is not a member of the present generation; extend the member's session.

        A member may commit until it has joined the next generation. A client that is no member (generation -1) may
        commit while the group has no members.

        Raises:
            MemberNotFoundError, MemberFencedError, GenerationError, RebalanceInProgressError: refused.
        """
        if generation < 0 and not self._members:
            return
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        member.heard_ms = now_ms
        if self.state is ClassicState.COMPLETING_REBALANCE:
            raise _in_progress(self.group_id)

    def leave(self, members: Sequence[LeavingMember], now_ms: MonotonicMs) -> list[LeaveOutcome]:
        """Remove these members, and start one rebalance for all of them; return the result of each."""
        count = len(self._members)
        outcomes = [LeaveOutcome(member=member, error=self._leave(member)) for member in members]
        self._on_gone(now_ms, has_lost=len(self._members) < count)
        return outcomes

    def _leave(self, leaving: LeavingMember) -> MilenaError | None:
        if leaving.instance_id is None and self._pending.pop(leaving.member_id, None) is not None:
            return None
        holder = self._holder(leaving.instance_id)
        try:
            if holder is not None and not leaving.member_id:
                self._remove(holder)
            else:
                self._remove(self._member(leaving.member_id, leaving.instance_id))
        except MilenaError as error:
            return error
        return None

    def _remove(self, member: Member) -> None:
        gone = unknown_member(self.group_id, member.member_id)
        self._end_join(member, gone)
        self._end_sync(member, gone)
        del self._members[member.member_id]
        self._unsynced.discard(member.member_id)
        self._successions.pop(member.member_id, None)

    def _on_gone(self, now_ms: MonotonicMs, *, has_lost: bool) -> None:
        """Go on after members are gone (``has_lost``), or ids that did not join."""
        if self.state is ClassicState.EMPTY:
            return
        if not self._members:
            self._become_empty()
        elif has_lost:
            self._rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def abandon(self, waiter: Waiter, now_ms: MonotonicMs) -> None:
        """Forget a waiting request, because its client is gone. The member's session runs from now on."""
        for member in self._members.values():
            if waiter in {member.joining, member.syncing}:
                member.heard_ms = now_ms
                member.joining = None if member.joining == waiter else member.joining
                member.syncing = None if member.syncing == waiter else member.syncing

    # -- time ------------------------------------------------------------------------------------

    def expire(self, now_ms: MonotonicMs) -> list[str]:
        """Remove what is overdue at ``now_ms``, end a rebalance that is overdue; return the members that are gone."""
        gone = [member for member in self._members.values() if member.due_ms <= now_ms]
        if self._sync_due_ms <= now_ms:
            self._sync_due_ms = NEVER
            late = self._unsynced.difference(member.member_id for member in gone)
            gone += [self._members[member_id] for member_id in sorted(late)]
        for member in gone:
            self._remove(member)
        for member_id in [found for found, due_ms in self._pending.items() if due_ms <= now_ms]:
            del self._pending[member_id]
        self._on_gone(now_ms, has_lost=bool(gone))
        if self.state is ClassicState.PREPARING_REBALANCE and self._rebalance_due_ms <= now_ms:
            if self._has_newcomer and now_ms < self._initial_end_ms < NEVER:
                self._wait_for_more(now_ms)
            else:
                self._initial_end_ms = NEVER
                self._complete(now_ms)
        return [member.member_id for member in gone]

    def next_due_ms(self) -> MonotonicMs:
        """Return the earliest time at which ``expire`` may do something."""
        due = [member.due_ms for member in self._members.values()]
        due += self._pending.values()
        if self._unsynced:
            due.append(self._sync_due_ms)
        return min((*due, self._rebalance_due_ms), default=NEVER)

    def extend(self, now_ms: MonotonicMs) -> None:
        """Give every member its full times again, because this node may not have heard them."""
        for member in self._members.values():
            member.heard_ms = now_ms
        for member_id in self._pending:
            self._pending[member_id] = max(
                self._pending[member_id], MonotonicMs(now_ms + SESSION_MS_MIN)
            )
        longest_ms = MonotonicMs(now_ms + self._longest_ms())
        if self._rebalance_due_ms != NEVER and self._initial_end_ms == NEVER:
            self._rebalance_due_ms = longest_ms
        if self._sync_due_ms != NEVER:
            self._sync_due_ms = longest_ms

    # -- descriptions ----------------------------------------------------------------------------

    def describe(self) -> ClassicDescription:
        """Return the group. Metadata and assignments are only told while it is Stable, as in Kafka."""
        is_stable = self.state is ClassicState.STABLE
        return ClassicDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=self.protocol if is_stable else "",
            members=[
                member.described(self.protocol, is_stable=is_stable)
                for _, member in sorted(self._members.items())
            ],
        )

    def protocols(self) -> list[tuple[tuple[str, bytes], ...] | None]:
        """Return the protocols of each member, with their metadata; None: not known here."""
        return [member.protocols for member in self._members.values()]

    # -- checks ----------------------------------------------------------------------------------

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member.

        Raises:
            MemberFencedError: another process has its instance id.
            MemberNotFoundError: there is no such member.
        """
        if instance_id is not None:
            holder = self._holder(instance_id)
            if holder is not None and holder.member_id != member_id:
                raise _fenced(self.group_id, holder)
            if holder is None:
                raise unknown_member(self.group_id, member_id)
        member = self._members.get(member_id)
        if member is None:
            raise unknown_member(self.group_id, member_id)
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise GenerationError(
                f"group {self.group_id!r} is at generation {self.generation}, not {generation}: join again"
            )

    def _end_join(self, member: Member, answer: Answer) -> None:
        if member.joining is not None:
            self._answers.append((member.joining, answer))
            member.joining = None

    def _end_sync(self, member: Member, answer: Answer) -> None:
        if member.syncing is not None:
            self._answers.append((member.syncing, answer))
            member.syncing = None


def _in_progress(group_id: str) -> MilenaError:
    return RebalanceInProgressError(f"group {group_id!r} is rebalancing: join again")


def _repeated(member: Member) -> MilenaError:
    return RebalanceInProgressError(
        f"member {member.member_id!r} has sent a newer request: join again"
    )


def _fenced(group_id: str, member: Member) -> MilenaError:
    return MemberFencedError(
        f"another process has taken over the instance id {member.instance_id!r} in group {group_id!r}: stop"
    )
