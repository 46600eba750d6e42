"""Classic groups under random histories, judged by a model that knows only what clients sent and saw.

The history has dynamic and static members that join, sync, stay, leave, fall silent and start again, a leader that
assigns random shares, writes that fail or whose fate is unknown, and coordinators that move.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.errors import FateUnknownError, MemberIdRequiredError, MilenaError, NoQuorumError
from milena.model.types import MonotonicMs, WallMs
from node.groups.classic.calls import (
    ClassicState,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from node.groups.classic.state import ClassicGroupState, GenerationWrite
from node.groups.member_sessions import NEVER
from raft_meta.machine.groups import classic_groups, group_rules
from raft_meta.machine.image import Group

SEEDS = st.integers(min_value=0, max_value=1 << 32)
SESSION_MS = 6_000
REBALANCE_MS = 9_000


@dataclass
class Client:
    """A process. Its id and generation are those of its last answers."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False
    seen: tuple[str, ...] = ()
    """The members that it was told as leader."""
    waiting: int | None = None


@dataclass
class Model:
    """The coordinator under test, its clients, and the image."""

    rng: Random
    now_ms: int = 0
    row: Group | None = None
    clients: list[Client] = field(default_factory=list)
    waiters: dict[int, tuple[Client, SyncRequest | None]] = field(default_factory=dict)
    count: int = 0
    writes: list[GenerationWrite] = field(default_factory=list)
    leaders: dict[tuple[int, int], str] = field(default_factory=dict)
    """The leader that a coordinator named in a generation."""
    told: dict[tuple[int, int], dict[str, bytes]] = field(default_factory=dict)
    """The assignments of members in a generation of the image. Key: (version of its first row, generation)."""
    origin: dict[int, int] = field(default_factory=dict)
    """Generation → the version of the row that finished it."""
    coordinator: int = 0
    synced: int = 0
    unsaved: GenerationWrite | None = None
    """The note that the group is empty, if it failed."""
    moves: int = 0

    def __post_init__(self) -> None:
        self.clients = [
            Client(name=f"c{n}", instance_id=f"i{n % 2}" if n < 3 else None) for n in range(5)
        ]
        self.group = self.new_group()

    def new_group(self) -> ClassicGroupState:
        group = ClassicGroupState("g", initial_delay_ms=self.rng.choice((0, 0, 1_000)))
        if self.row is not None:
            group.load(self.row, self.now)
        return group

    @property
    def now(self) -> MonotonicMs:
        return MonotonicMs(self.now_ms)

    def step(self) -> None:
        actions = [self.act] * 30 + [self.join, self.sync, self.beat] + [self.write] * 8
        actions += [self.wait] * 2 + [self.leave, self.restart, self.give_up, self.fail, self.move]
        self.rng.choice(actions)()
        self.settle()
        self.check()

    # -- what clients do ---------------------------------------------------------------------------

    def client(self) -> Client:
        return self.rng.choice(self.clients)

    def act(self) -> None:
        """A client does what the protocol says."""
        client = self.client()
        if client.waiting in self.waiters:
            return
        is_present = client.generation == self.group.generation
        if is_present and self.group.state is ClassicState.COMPLETING_REBALANCE:
            self.sync(client)
        elif is_present and self.group.state is ClassicState.STABLE:
            self.rng.choice((self.sync, self.beat))(client)
        else:
            self.join(client)

    def join(self, client: Client | None = None) -> None:
        client = client or self.client()
        names = self.rng.choice((("range",), ("range", "sticky"), ("sticky", "range")))
        request = JoinRequest(
            group_id="g",
            member_id=client.member_id,
            instance_id=client.instance_id,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=tuple((name, self.rng.choice((b"1", b"1", b"1", b"2"))) for name in names),
            needs_known_id=self.rng.random() < 0.5,
        )
        self.count += 1
        waiter = self.count
        self.waiters[waiter] = (client, None)
        try:
            self.group.join(request, waiter, self.now, new_id=f"{client.name}-{self.count}")
            client.waiting = waiter
        except MemberIdRequiredError as error:
            client.member_id = error.member_id
            del self.waiters[waiter]
        except MilenaError:
            client.member_id = ""
            del self.waiters[waiter]

    def sync(self, client: Client | None = None) -> None:
        client = client or self.client()
        if not client.member_id or client.generation < 0:
            return
        shares: dict[str, bytes] = {}
        if client.is_leader:
            shares = {member_id: self.rng.randbytes(3) for member_id in client.seen}
        request = SyncRequest(
            group_id="g",
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id,
            assignments=shares,
        )
        self.count += 1
        self.waiters[self.count] = (client, request)
        try:
            self.group.sync(request, self.count, self.now)
            client.waiting = self.count
        except MilenaError:
            del self.waiters[self.count]

    def beat(self, client: Client | None = None) -> None:
        client = client or self.client()
        try:
            self.group.heartbeat(client.member_id, client.generation, client.instance_id, self.now)
        except MilenaError:
            return
        assert self.group.state is not ClassicState.PREPARING_REBALANCE
        assert client.generation == self.group.generation

    def leave(self) -> None:
        client = self.client()
        leaving = LeavingMember(member_id=client.member_id, instance_id=client.instance_id)
        self.group.leave([leaving], self.now)
        client.member_id, client.generation, client.is_leader = "", -1, False

    def restart(self) -> None:
        client = self.client()
        client.member_id, client.generation, client.is_leader = "", -1, False

    def give_up(self) -> None:
        client = self.client()
        if client.waiting in self.waiters:
            assert client.waiting is not None
            self.group.abandon(client.waiting, self.now)
            del self.waiters[client.waiting]

    # -- the quorum, time, other coordinators ------------------------------------------------------

    def write(self) -> None:
        write, self.unsaved = self.group.take_write() or self.unsaved, None
        if write is not None:
            self.apply(write)
            self.group.on_written(write, None, self.now)

    def fail(self) -> None:
        write = self.group.take_write()
        if write is None:
            return
        is_applied = self.rng.random() < 0.5
        if is_applied:
            self.apply(write)
        # As the shell does.
        self.unsaved = None if write.classic.members else write
        error = (
            FateUnknownError("?") if is_applied or self.rng.random() < 0.5 else NoQuorumError("?")
        )
        self.group.on_written(write, error, self.now)

    def apply(self, write: GenerationWrite) -> None:
        """The state machine takes it, or the coordinator has broken a promise."""
        if self.row == self.as_row(write, 0 if self.row is None else self.row.version):
            return
        if not write.classic.members and (self.row is None or not self.row.member_count):
            return
        version = 1 if self.row is None else self.row.version + 1
        after = self.as_row(write, version)
        group_rules.check_classic_group(write.classic)
        classic_groups.check_step(self.row, after)
        assert not list(group_rules.classic_problems(after))
        if self.row is None or self.row.generation != after.generation:
            self.origin[after.generation] = version
        self.row = after

    def as_row(self, write: GenerationWrite, version: int) -> Group:
        return Group(
            group_id="g",
            version=version,
            generation=write.generation,
            assignor="",
            members=(),
            emptied_ms=WallMs(0),
            classic=write.classic,
        )

    def wait(self) -> None:
        self.now_ms += self.rng.choice((100, 1_000, 4_000, 10_000))
        self.group.expire(self.now)

    def move(self) -> None:
        if self.rng.random() < 0.7:
            return
        # A proposal in flight may be applied before the move, and never after it.
        if (write := self.group.take_write()) is not None and self.rng.random() < 0.5:
            self.apply(write)
        self.waiters.clear()
        self.unsaved = None
        self.coordinator += 1
        self.moves += 1
        self.group = self.new_group()

    # -- the judge ---------------------------------------------------------------------------------

    def settle(self) -> None:
        for waiter, answer in self.group.take_answers():
            if waiter not in self.waiters:
                continue
            client, sync = self.waiters.pop(waiter)
            if isinstance(answer, JoinAnswer):
                self.on_joined(client, answer)
            elif isinstance(answer, SyncAnswer):
                assert sync is not None, "a join got the answer of a sync"
                self.on_synced(sync, answer)

    def on_joined(self, client: Client, answer: JoinAnswer) -> None:
        client.member_id, client.generation = answer.member_id, answer.generation
        client.is_leader = answer.leader == answer.member_id
        client.seen = tuple(member.member_id for member in answer.members)
        if client.is_leader:
            assert answer.member_id in client.seen
            known = self.leaders.setdefault((self.coordinator, answer.generation), answer.member_id)
            assert known == answer.member_id, "two members lead one generation"
        else:
            assert not client.seen

    def on_synced(self, sync: SyncRequest, answer: SyncAnswer) -> None:
        row = self.row
        assert row is not None, "an assignment that is not stored"
        assert row.classic is not None
        assert row.generation == sync.generation, (
            "an assignment of another generation than the image's"
        )
        stored = {m.member_id: m.assignment for m in row.classic.members}
        assert stored.get(sync.member_id) == answer.assignment
        key = (self.origin[sync.generation], sync.generation)
        identity = sync.instance_id or sync.member_id
        before = self.told.setdefault(key, {}).setdefault(identity, answer.assignment)
        assert before == answer.assignment, "two assignments in one generation"
        self.synced += 1

    def check(self) -> None:
        group = self.group
        has_members = group.member_count > 0
        assert has_members == (group.state is not ClassicState.EMPTY)
        ids = {member.member_id for member in group.describe().members}
        if group.state in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}:
            assert group.leader in ids
        assert group.generation >= (0 if self.row is None else self.row.generation)
        if group.state is ClassicState.STABLE:
            assert self.row is not None
            assert self.row.generation == group.generation

    def drain(self) -> None:
        """No client asks any more: every request gets an answer, and the group becomes empty."""
        for _ in range(1_000):
            self.write()
            self.settle()
            self.check()
            due_ms = self.group.next_due_ms()
            if due_ms == NEVER and not self.group.has_write and self.unsaved is None:
                break
            if due_ms != NEVER:
                self.now_ms = max(self.now_ms, due_ms)
                self.group.expire(self.now)
        assert not self.waiters, "requests wait for ever"
        assert self.group.state is ClassicState.EMPTY
        assert self.row is None or not self.row.member_count


@settings(max_examples=150)
@given(SEEDS)
def test_generations_are_whole_and_every_request_is_answered(seed: int) -> None:
    model = Model(Random(seed))
    for _ in range(200):
        model.step()
    model.drain()


def test_the_histories_reach_what_they_judge() -> None:
    models = [Model(Random(seed)) for seed in range(20)]
    for model in models:
        for _ in range(200):
            model.step()
    assert sum(model.synced for model in models) > 200
    assert sum(model.moves for model in models) > 10
    assert max(model.row.generation for model in models if model.row is not None) > 5
