"""The state machine of a classic group: each request in each state, rebalances, static members, times."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from milena.model.errors import (
    GenerationError,
    GroupLimitError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberFencedError,
    MemberIdRequiredError,
    MemberNotFoundError,
    MilenaError,
    NoQuorumError,
    NotCoordinatorError,
    RebalanceInProgressError,
    RequestTooLargeError,
)
from milena.model.types import MonotonicMs, WallMs
from node.groups.classic.calls import (
    ClassicState,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from node.groups.classic.state import (
    METADATA_BYTES_MAX,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    Answer,
    ClassicGroupState,
)
from node.groups.member_sessions import NEVER
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ClassicGroup, Group

EMPTY = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE

SESSION_MS = 10_000
REBALANCE_MS = 30_000


@dataclass
class Bench:
    """A group, a clock, and the answers so far."""

    initial_delay_ms: int = 0
    now_ms: int = 0
    waiters: int = 0
    ids: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)
    group: ClassicGroupState = field(init=False)

    def __post_init__(self) -> None:
        self.group = ClassicGroupState("g", initial_delay_ms=self.initial_delay_ms)

    @property
    def now(self) -> MonotonicMs:
        return MonotonicMs(self.now_ms)

    def gather(self) -> None:
        for waiter, answer in self.group.take_answers():
            assert waiter not in self.answers, "answered twice"
            self.answers[waiter] = answer

    def join(self, member_id: str = "", **changes: object) -> int:
        """Join; return the waiter. A member without an id gets m1, m2, … at once."""
        request = JoinRequest(
            group_id="g",
            member_id=member_id,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", b"m"),),
            needs_known_id=False,
        )
        self.waiters += 1
        if not member_id:
            self.ids += 1
        request = replace(request, **changes)  # type: ignore[arg-type]
        self.group.join(request, self.waiters, self.now, new_id=f"m{self.ids}")
        self.gather()
        return self.waiters

    def joined(self, waiter: int) -> JoinAnswer:
        answer = self.answers[waiter]
        assert isinstance(answer, JoinAnswer), answer
        return answer

    def sync(self, member_id: str, generation: int | None = None, **changes: object) -> int:
        self.waiters += 1
        request = SyncRequest(
            group_id="g",
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
        )
        self.group.sync(replace(request, **changes), self.waiters, self.now)  # type: ignore[arg-type]
        self.gather()
        return self.waiters

    def assignment(self, waiter: int) -> bytes:
        answer = self.answers[waiter]
        assert isinstance(answer, SyncAnswer), answer
        return answer.assignment

    def written(self, error: MilenaError | None = None) -> ClassicGroup:
        """Carry out the write."""
        write = self.group.take_write()
        assert write is not None, "nothing to write"
        self.group.on_written(write, error, self.now)
        self.gather()
        return write.classic

    def beat(self, member_id: str, generation: int | None = None) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, generation, None, self.now)

    def leave(self, *member_ids: str) -> list[MilenaError | None]:
        members = [LeavingMember(member_id=member_id) for member_id in member_ids]
        outcomes = self.group.leave(members, self.now)
        self.gather()
        return [outcome.error for outcome in outcomes]

    def wait(self, ms: int) -> list[str]:
        """Let time pass, and look when the group asks for it."""
        end, gone = self.now_ms + ms, []
        while (due_ms := self.group.next_due_ms()) <= end:
            self.now_ms = max(self.now_ms, due_ms)
            gone += self.group.expire(self.now)
            self.gather()
            assert self.group.next_due_ms() > self.now_ms, "looks again without end"
        self.now_ms = end
        return gone

    def stable(self, count: int = 2) -> None:
        """Make a stable group of m1 … in generation ``count``; m1 leads."""
        for number in range(1, count + 1):
            self.join()
            for earlier in range(1, number):
                self.join(f"m{earlier}")
        self.complete()

    def complete(self) -> None:
        """Every member syncs, the leader's assignments are each member's id."""
        described = [member.member_id for member in self.group.describe().members]
        for member_id in described:
            is_leader = member_id == self.group.leader
            shares = {found: found.encode() for found in described} if is_leader else {}
            self.sync(member_id, assignments=shares)
        self.written()
        assert self.group.state is STABLE


def in_state(state: ClassicState) -> Bench:
    """A group of m1 (leader) and m2 in this state; PreparingRebalance waits for m2. Empty: they have left."""
    bench = Bench()
    bench.stable()
    if state is EMPTY:
        bench.leave("m1", "m2")
        bench.written()
    if state in {PREPARING, COMPLETING}:
        bench.join("m1")
    if state is COMPLETING:
        bench.join("m2")
    assert bench.group.state is state
    return bench


# -- every request in every state ------------------------------------------------------------------

REFUSED: dict[str, dict[ClassicState, type[MilenaError] | None]] = {
    "a member's heartbeat": {
        EMPTY: MemberNotFoundError,
        PREPARING: RebalanceInProgressError,
        COMPLETING: None,
        STABLE: None,
    },
    "a heartbeat of another generation": {
        EMPTY: MemberNotFoundError,
        PREPARING: GenerationError,
        COMPLETING: GenerationError,
        STABLE: GenerationError,
    },
    "a stranger's heartbeat": dict.fromkeys(ClassicState, MemberNotFoundError),
    "a member's sync": {
        EMPTY: MemberNotFoundError,
        PREPARING: RebalanceInProgressError,
        COMPLETING: None,
        STABLE: None,
    },
    "a sync of another generation": {
        EMPTY: MemberNotFoundError,
        PREPARING: GenerationError,
        COMPLETING: GenerationError,
        STABLE: GenerationError,
    },
    "a stranger's sync": dict.fromkeys(ClassicState, MemberNotFoundError),
    "a sync of another protocol": {
        EMPTY: MemberNotFoundError,
        PREPARING: InconsistentGroupProtocolError,
        COMPLETING: InconsistentGroupProtocolError,
        STABLE: InconsistentGroupProtocolError,
    },
    "a member's commit": {
        EMPTY: MemberNotFoundError,
        PREPARING: None,
        COMPLETING: RebalanceInProgressError,
        STABLE: None,
    },
    "a commit of another generation": {
        EMPTY: MemberNotFoundError,
        PREPARING: GenerationError,
        COMPLETING: GenerationError,
        STABLE: GenerationError,
    },
    "a commit without a member": {
        EMPTY: None,
        PREPARING: MemberNotFoundError,
        COMPLETING: MemberNotFoundError,
        STABLE: MemberNotFoundError,
    },
    "a member's join": dict.fromkeys((PREPARING, COMPLETING, STABLE))
    | {EMPTY: MemberNotFoundError},
    "a newcomer's join": dict.fromkeys(ClassicState),
    "a stranger's join": dict.fromkeys(ClassicState, MemberNotFoundError),
    "a join of another type": {
        EMPTY: None,
        PREPARING: InconsistentGroupProtocolError,
        COMPLETING: InconsistentGroupProtocolError,
        STABLE: InconsistentGroupProtocolError,
    },
    "a member's leave": dict.fromkeys((PREPARING, COMPLETING, STABLE))
    | {EMPTY: MemberNotFoundError},
    "a stranger's leave": dict.fromkeys(ClassicState, MemberNotFoundError),
}

REQUESTS: dict[str, Callable[[Bench], object]] = {
    "a member's heartbeat": lambda b: b.beat("m2"),
    "a heartbeat of another generation": lambda b: b.beat("m2", b.group.generation - 1),
    "a stranger's heartbeat": lambda b: b.beat("z"),
    "a member's sync": lambda b: b.sync("m2"),
    "a sync of another generation": lambda b: b.sync("m2", b.group.generation + 1),
    "a stranger's sync": lambda b: b.sync("z"),
    "a sync of another protocol": lambda b: b.sync("m2", protocol="sticky"),
    "a member's commit": lambda b: b.group.check_commit("m2", b.group.generation, None, b.now),
    "a commit of another generation": lambda b: b.group.check_commit("m2", 99, None, b.now),
    "a commit without a member": lambda b: b.group.check_commit("", -1, None, b.now),
    "a member's join": lambda b: b.join("m2"),
    "a newcomer's join": lambda b: b.join(),
    "a stranger's join": lambda b: b.join("z"),
    "a join of another type": lambda b: b.join(protocol_type="connect"),
    "a member's leave": lambda b: raised(b.leave("m2")),
    "a stranger's leave": lambda b: raised(b.leave("z")),
}


def raised(errors: list[MilenaError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


@pytest.mark.parametrize("state", [EMPTY, PREPARING, COMPLETING, STABLE])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_each_request_in_each_state(request_name: str, state: ClassicState) -> None:
    bench = in_state(state)
    refusal = REFUSED[request_name][state]
    if refusal is None:
        REQUESTS[request_name](bench)
        return
    before = bench.group.describe()
    with pytest.raises(refusal):
        REQUESTS[request_name](bench)
    assert bench.group.describe() == before
    assert not bench.group.has_write


# -- joining ---------------------------------------------------------------------------------------


def test_a_new_dynamic_member_must_come_with_its_id() -> None:
    bench = Bench()
    with pytest.raises(MemberIdRequiredError) as caught:
        bench.join(needs_known_id=True)
    assert caught.value.member_id == "m1"
    assert (bench.group.state, bench.group.member_count) == (EMPTY, 0)
    assert bench.joined(bench.join("m1")).leader == "m1"
    with pytest.raises(MemberNotFoundError):
        bench.join("m9", needs_known_id=True)


def test_an_id_that_was_given_out_delays_the_rebalance_until_it_joins_or_expires() -> None:
    bench = Bench()
    with pytest.raises(MemberIdRequiredError):
        bench.join(needs_known_id=True)
    first = bench.join()
    assert first not in bench.answers
    bench.wait(SESSION_MS)
    assert bench.joined(first).generation == 1


def test_the_leader_alone_sees_the_members_and_their_metadata() -> None:
    bench = Bench()
    bench.join(protocols=(("range", b"1"),))
    two = bench.join(protocols=(("range", b"2"),))
    one = bench.join("m1", protocols=(("range", b"1"),))
    leads, follows = bench.joined(one), bench.joined(two)
    assert leads.leader == follows.leader == "m1"
    assert {m.member_id: m.metadata for m in leads.members} == {"m1": b"1", "m2": b"2"}
    assert follows.members == ()


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    bench = Bench()
    kinds = [("a", "b", "c"), ("b", "a"), ("b", "a")]
    protocols = [tuple((name, name.encode()) for name in names) for names in kinds]
    bench.join(protocols=protocols[0])
    bench.join(protocols=protocols[1])
    bench.join(protocols=protocols[2])
    bench.join("m1", protocols=protocols[0])
    last = bench.join("m2", protocols=protocols[1])
    assert bench.joined(last).protocol == "b"
    for refused in ((("c", b""),), ()):
        with pytest.raises(InconsistentGroupProtocolError):
            bench.join(protocols=refused)


def test_a_member_alone_may_change_type_and_protocols() -> None:
    bench = Bench()
    bench.stable(1)
    waiter = bench.join("m1", protocol_type="connect", protocols=(("x", b""),))
    answer = bench.joined(waiter)
    assert (answer.protocol_type, answer.protocol) == ("connect", "x")


@pytest.mark.parametrize("session_ms", [SESSION_MS_MIN - 1, SESSION_MS_MAX + 1, -1])
def test_sessions_have_bounds(session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError):
        Bench().join(session_ms=session_ms)


def test_the_largest_rebalance_timeout_of_clients_is_taken_as_a_day() -> None:
    bench = Bench()
    bench.join(rebalance_ms=(1 << 31) - 1)
    bench.sync("m1", assignments={})
    assert bench.written().members[0].rebalance_ms == group_rules.DURATION_MS_MAX


def test_a_repeated_join_gets_the_same_generation() -> None:
    bench = in_state(COMPLETING)
    answer = bench.joined(bench.join("m1"))
    assert answer.generation == bench.group.generation == 3
    assert len(answer.members) == 2
    bench.complete()
    assert bench.joined(bench.join("m2")).generation == 3
    assert bench.group.state is STABLE


def test_the_newest_of_two_joins_gets_the_answer() -> None:
    bench = in_state(PREPARING)
    older = bench.waiters
    newer = bench.join("m1")
    assert isinstance(bench.answers[older], RebalanceInProgressError)
    bench.join("m2")
    assert bench.joined(newer).generation == 3


@pytest.mark.parametrize(
    ("member_id", "changes"),
    [("m1", {}), ("m2", {"protocols": (("range", b"other topics"),)})],
    ids=["the leader", "a changed member"],
)
def test_a_rebalance_starts_when_the_leader_or_a_changed_member_joins(
    member_id: str, changes: dict[str, object]
) -> None:
    bench = in_state(STABLE)
    waiter = bench.join(member_id, **changes)
    assert bench.group.state is PREPARING
    assert waiter not in bench.answers


def test_a_group_has_bounds() -> None:
    bench = Bench()
    with pytest.raises(GroupLimitError):
        bench.join(protocols=(("range", bytes(METADATA_BYTES_MAX)),))
    for _ in range(group_rules.MEMBERS_MAX):
        with pytest.raises(MemberIdRequiredError):
            bench.join(needs_known_id=True)
    with pytest.raises(GroupLimitError):
        bench.join(needs_known_id=True)
    bench.wait(SESSION_MS)
    bench.join()


def test_names_have_a_bound() -> None:
    bench = Bench()
    each = 2 * 255 + group_rules.NAME_LENGTH_MAX
    for _ in range(group_rules.GROUP_BYTES_MAX // each):
        bench.join(client_id="c" * 255, host="h" * 255)
    assert bench.group.member_count < group_rules.MEMBERS_MAX
    # Ids are counted at their longest only while their members join.
    left = group_rules.GROUP_BYTES_MAX - bench.group.member_count * each
    assert left < each
    with pytest.raises(GroupLimitError, match="names"):
        fill(bench)


def fill(bench: Bench) -> None:
    while bench.group.member_count < group_rules.MEMBERS_MAX:
        bench.join(client_id="c" * 255, host="h" * 255)


# -- assignments -----------------------------------------------------------------------------------


def test_members_get_their_assignments_once_they_are_written() -> None:
    bench = in_state(COMPLETING)
    two = bench.sync("m2")
    one = bench.sync("m1", assignments={"m1": b"1", "m2": b"2", "stranger": b"3"})
    assert not {one, two} & bench.answers.keys()
    row = bench.written()
    assert {m.member_id: m.assignment for m in row.members} == {"m1": b"1", "m2": b"2"}
    assert (row.leader, row.protocol, row.has_assignments) == ("m1", "range", True)
    assert (bench.assignment(one), bench.assignment(two)) == (b"1", b"2")
    assert bench.assignment(bench.sync("m2")) == b"2"


def test_only_the_first_assignment_of_a_generation_counts() -> None:
    bench = in_state(COMPLETING)
    first = bench.sync("m1", assignments={"m1": b"1"})
    second = bench.sync("m1", assignments={"m1": b"other"})
    assert isinstance(bench.answers[first], RebalanceInProgressError)
    assert bench.written().members[0].assignment == b"1"
    assert bench.assignment(second) == b"1"
    assert not bench.group.has_write


def test_a_follower_assigns_nothing() -> None:
    bench = in_state(COMPLETING)
    bench.sync("m2", assignments={"m1": b"1", "m2": b"2"})
    assert not bench.group.has_write


def test_a_member_that_joins_ends_the_waiting_syncs() -> None:
    bench = in_state(COMPLETING)
    waiting = bench.sync("m2")
    bench.join()
    assert isinstance(bench.answers[waiting], RebalanceInProgressError)
    assert bench.group.state is PREPARING


def test_a_write_that_comes_too_late_answers_no_member() -> None:
    bench = in_state(COMPLETING)
    waiting = bench.sync("m1", assignments={})
    write = bench.group.take_write()
    assert write is not None
    bench.join()
    bench.group.on_written(write, None, bench.now)
    bench.gather()
    assert isinstance(bench.answers[waiting], RebalanceInProgressError)
    assert bench.group.state is PREPARING


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoQuorumError("x"), RebalanceInProgressError),
        (NotCoordinatorError("x"), NotCoordinatorError),
        (InconsistentGroupProtocolError("x"), InconsistentGroupProtocolError),
    ],
)
def test_after_a_failed_write_members_join_again(
    error: MilenaError, told: type[MilenaError]
) -> None:
    bench = in_state(COMPLETING)
    waiting = bench.sync("m1", assignments={})
    bench.written(error)
    assert type(bench.answers[waiting]) is told
    assert bench.group.state is PREPARING
    bench.join("m1")
    assert bench.joined(bench.join("m2")).generation == 4


def test_assignments_have_a_bound_and_large_ones_are_not_stored() -> None:
    bench = in_state(COMPLETING)
    with pytest.raises(RequestTooLargeError):
        bench.sync("m1", assignments={"m1": bytes(METADATA_BYTES_MAX + 1)})
    large = bytes(group_rules.ASSIGNMENT_BYTES_MAX + 1)
    waiting = bench.sync("m1", assignments={"m1": large})
    row = bench.written()
    assert not row.has_assignments
    assert [m.assignment for m in row.members] == [b"", b""]
    assert bench.assignment(waiting) == large


# -- leaving and silence ---------------------------------------------------------------------------


def test_several_members_leave_in_one_rebalance() -> None:
    bench = Bench()
    bench.stable(3)
    generation = bench.group.generation
    errors = bench.leave("m2", "z", "m3")
    assert [error and type(error) for error in errors] == [None, MemberNotFoundError, None]
    assert bench.joined(bench.join("m1")).generation == generation + 1


def test_the_last_member_leaves_an_empty_group_of_a_new_generation() -> None:
    bench = in_state(STABLE)
    assert bench.leave("m1", "m2") == [None, None]
    row = bench.written()
    assert (row.members, row.leader, row.protocol, row.protocol_type) == ((), "", "", "consumer")
    assert (bench.group.state, bench.group.generation) == (EMPTY, 3)
    assert bench.group.is_idle


def test_another_member_leads_when_the_leader_is_gone() -> None:
    bench = in_state(STABLE)
    bench.leave("m1")
    assert bench.joined(bench.join("m2")).leader == "m2"


def test_a_leaving_member_hears_it_in_its_waiting_request() -> None:
    bench = in_state(PREPARING)
    waiting = bench.waiters
    bench.leave("m1")
    assert isinstance(bench.answers[waiting], MemberNotFoundError)


def test_a_leaver_may_be_the_one_that_the_others_wait_for() -> None:
    bench = in_state(PREPARING)
    waiting = bench.waiters
    bench.leave("m2")
    assert bench.joined(waiting).generation == 3


def test_silence_ends_a_session() -> None:
    bench = in_state(STABLE)
    for _ in range(3):
        bench.now_ms += SESSION_MS - 1
        bench.beat("m1")
        bench.beat("m2")
        assert bench.group.expire(bench.now) == []
    assert bench.wait(SESSION_MS - 1) == []
    assert bench.wait(1) == ["m1", "m2"]
    assert bench.group.state is EMPTY


def test_a_member_that_waits_for_a_rebalance_does_not_expire() -> None:
    bench = in_state(PREPARING)
    waiting = bench.waiters
    assert bench.wait(SESSION_MS) == ["m2"]
    assert bench.joined(waiting).generation == 3


def test_the_rebalance_timeout_removes_members_that_only_send_heartbeats() -> None:
    bench = in_state(PREPARING)
    waiting = bench.waiters
    for _ in range(REBALANCE_MS // 5_000):
        assert waiting not in bench.answers
        with pytest.raises(RebalanceInProgressError):
            bench.beat("m2")
        bench.wait(5_000)
    assert [m.member_id for m in bench.joined(waiting).members] == ["m1"]
    with pytest.raises(MemberNotFoundError):
        bench.beat("m2")


def test_a_member_that_never_syncs_is_removed() -> None:
    bench = in_state(COMPLETING)
    waiting = bench.sync("m1", assignments={})
    bench.written()
    assert bench.assignment(waiting) == b""
    gone = []
    for _ in range(REBALANCE_MS // 5_000):
        bench.beat("m2")
        gone += bench.wait(5_000)
        if not gone:
            bench.beat("m1")
    assert gone == ["m2"]
    assert bench.group.state is PREPARING


def test_a_leader_that_never_syncs_does_not_hold_the_others() -> None:
    bench = in_state(COMPLETING)
    waiting = bench.sync("m2")
    for _ in range(REBALANCE_MS // 5_000):
        bench.beat("m1")
        bench.wait(5_000)
    assert isinstance(bench.answers[waiting], RebalanceInProgressError)
    assert bench.joined(bench.join("m2")).leader == "m2"


def test_an_abandoned_request_lets_its_member_expire() -> None:
    bench = in_state(PREPARING)
    waiting = bench.waiters
    bench.now_ms += 5_000
    with pytest.raises(RebalanceInProgressError):
        bench.beat("m2")
    bench.group.abandon(waiting, bench.now)
    bench.now_ms += 5_000
    with pytest.raises(RebalanceInProgressError):
        bench.beat("m2")
    assert bench.wait(5_000) == ["m1"]
    assert waiting not in bench.answers


def test_extend_gives_full_times() -> None:
    bench = in_state(STABLE)
    bench.now_ms += 5 * SESSION_MS
    bench.group.extend(bench.now)
    assert bench.wait(SESSION_MS - 1) == []
    assert bench.wait(1) == ["m1", "m2"]


def test_an_empty_group_waits_for_more_members_as_long_as_they_come() -> None:
    bench = Bench(initial_delay_ms=3_000)
    waiters = [bench.join(rebalance_ms=10_000)]
    for _ in range(4):
        bench.wait(2_900)
        assert bench.group.state is PREPARING or bench.now_ms >= 10_000
        waiters.append(bench.join(rebalance_ms=10_000))
    answer = bench.joined(waiters[0])
    # The rebalance timeout ends the wait even if members still come.
    assert len(answer.members) == 4
    assert waiters[-1] not in bench.answers


def test_an_idle_empty_group_has_nothing_to_wait_for() -> None:
    bench = Bench()
    assert bench.group.next_due_ms() == NEVER
    assert bench.group.expire(bench.now) == []
    assert bench.group.is_idle


# -- static members --------------------------------------------------------------------------------


def static(bench: Bench, instance_id: str, **changes: object) -> int:
    return bench.join(instance_id=instance_id, needs_known_id=True, **changes)


def stable_static() -> Bench:
    """m1 (instance i, leader) and m2 (instance j)."""
    bench = Bench()
    static(bench, "i")
    static(bench, "j")
    bench.join("m1", instance_id="i")
    bench.complete()
    return bench


def test_a_static_member_needs_no_second_join_for_its_id() -> None:
    bench = Bench()
    assert bench.joined(static(bench, "i")).member_id == "m1"


def test_another_process_of_a_static_member_takes_over_without_a_rebalance() -> None:
    bench = stable_static()
    waiter = static(bench, "j")
    assert waiter not in bench.answers, "the image does not know the new id"
    row = bench.written()
    assert [(m.member_id, m.instance_id, m.assignment) for m in row.members] == [
        ("m1", "i", b"m1"),
        ("m3", "j", b"m2"),
    ]
    answer = bench.joined(waiter)
    assert (answer.generation, answer.member_id, answer.leader) == (2, "m3", "m1")
    assert bench.assignment(bench.sync("m3", instance_id="j")) == b"m2"
    with pytest.raises(MemberFencedError):
        bench.group.heartbeat("m2", 2, "j", bench.now)
    with pytest.raises(MemberNotFoundError):
        bench.beat("m2")


def test_a_static_leader_that_cannot_skip_does_not_take_itself_for_the_leader() -> None:
    bench = stable_static()
    plain = static(bench, "i")
    bench.written()
    assert bench.joined(plain).leader == "m1"
    assert bench.group.leader == "m3"
    able = static(bench, "i", can_skip_assignment=True)
    bench.written()
    answer = bench.joined(able)
    assert (answer.leader, answer.skips_assignment, len(answer.members)) == ("m4", True, 2)


def test_a_static_member_with_other_protocols_rebalances() -> None:
    bench = Bench()
    both = (("range", b""), ("sticky", b""))
    static(bench, "i", protocols=both)
    bench.complete()
    waiter = static(bench, "i", protocols=(("sticky", b""),))
    assert bench.joined(waiter).generation == 2
    assert bench.joined(waiter).protocol == "sticky"


def test_the_waiting_requests_of_the_former_process_are_fenced() -> None:
    bench = stable_static()
    bench.join("m1", instance_id="i")
    former = bench.waiters
    later = static(bench, "i")
    assert isinstance(bench.answers[former], MemberFencedError)
    bench.join("m2", instance_id="j")
    assert bench.joined(later).leader == "m3"
    waiting = bench.sync("m2", instance_id="j")
    static(bench, "j")
    assert isinstance(bench.answers[waiting], MemberFencedError)


@pytest.mark.parametrize(
    ("member_id", "instance_id", "refusal"),
    [("m2", "i", MemberFencedError), ("m1", "x", MemberNotFoundError)],
)
def test_member_id_and_instance_id_belong_together(
    member_id: str, instance_id: str, refusal: type[MilenaError]
) -> None:
    bench = stable_static()
    with pytest.raises(refusal):
        bench.join(member_id, instance_id=instance_id)
    with pytest.raises(refusal):
        bench.sync(member_id, instance_id=instance_id)
    with pytest.raises(refusal):
        bench.group.heartbeat(member_id, 2, instance_id, bench.now)
    with pytest.raises(refusal):
        bench.group.check_commit(member_id, 2, instance_id, bench.now)
    leaving = LeavingMember(member_id=member_id, instance_id=instance_id)
    assert isinstance(bench.group.leave([leaving], bench.now)[0].error, refusal)


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    bench = stable_static()
    leaving = LeavingMember(member_id="", instance_id="j")
    assert bench.group.leave([leaving], bench.now)[0].error is None
    assert bench.group.member_count == 1


def test_static_members_keep_their_place_when_they_do_not_rejoin_in_time() -> None:
    bench = stable_static()
    waiting = bench.join("m1", instance_id="i", session_ms=SESSION_MS_MAX)
    for _ in range(REBALANCE_MS // 5_000):
        with pytest.raises(RebalanceInProgressError):
            bench.group.heartbeat("m2", 2, "j", bench.now)
        bench.wait(5_000)
    assert {m.member_id for m in bench.joined(waiting).members} == {"m1", "m2"}


def test_a_failed_takeover_ends_in_a_rebalance() -> None:
    bench = Bench()
    static(bench, "i")
    bench.complete()
    waiter = static(bench, "i")
    bench.written(NoQuorumError("x"))
    assert bench.joined(waiter).generation == 2


# -- a move of the coordinator ---------------------------------------------------------------------


def moved(bench: Bench) -> Bench:
    """The next coordinator, which knows only the row."""
    group = bench.group
    row = group._row()
    after = Bench(now_ms=bench.now_ms + 1_000)
    after.ids = bench.ids
    after.group.load(
        Group(
            group_id="g",
            version=1,
            generation=group.generation,
            assignor="",
            members=(),
            emptied_ms=WallMs(0),
            classic=row,
        ),
        after.now,
    )
    return after


def test_the_next_coordinator_goes_on_as_stable_with_full_sessions() -> None:
    bench = moved(in_state(STABLE))
    assert (bench.group.state, bench.group.leader, bench.group.generation) == (STABLE, "m1", 2)
    bench.beat("m1")
    assert bench.assignment(bench.sync("m2")) == b"m2"
    assert bench.wait(SESSION_MS - 1) == []
    assert bench.wait(1) == ["m1", "m2"]


def test_a_member_that_joins_the_next_coordinator_starts_a_rebalance() -> None:
    bench = moved(in_state(STABLE))
    new = bench.join(protocols=(("sticky", b""), ("range", b"")))
    bench.join("m1")
    bench.join("m2")
    answer = bench.joined(new)
    assert (answer.generation, answer.protocol, answer.leader) == (3, "range", "m1")


def test_members_that_the_next_coordinator_does_not_know_are_dropped_at_the_timeout() -> None:
    bench = moved(stable_static())
    waiting = bench.join("m1", instance_id="i")
    bench.wait(REBALANCE_MS)
    assert [m.member_id for m in bench.joined(waiting).members] == ["m1"]


def test_a_static_member_takes_over_at_the_next_coordinator() -> None:
    bench = moved(stable_static())
    waiter = static(bench, "j")
    bench.written()
    assert bench.joined(waiter).generation == 2


def test_the_generation_continues_after_the_other_kind() -> None:
    bench = in_state(EMPTY)
    bench.group.raise_generation(40)
    assert bench.joined(bench.join()).generation == 41
    bench.group.raise_generation(99)
    assert bench.group.generation == 41
