"""Several production cores in one process on virtual time: the scheduler, the nodes, their disks and their clients.

One seed decides everything. A node is a real ``RaftCore`` with a real ``Wal`` and ``SnapshotStore``, on a memory file
system that loses unsynced bytes. It is ticked as the driver ticks it: after every input, and when it is due.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING

from milena.model.errors import DiskFailedError, DiskFullError
from raft_meta.consensus.bootstrap import VoterRecord, load_record, store_record
from raft_meta.consensus.core import RaftCore
from raft_meta.consensus.frames import BootstrapState
from raft_meta.consensus.library import COMMAND, NO_OP, Failure, use_clock
from raft_meta.consensus.parts import CoreConfig
from raft_meta.consensus.snapshot import SnapshotStore
from raft_meta.consensus.wal import Wal
from tests.sim.raft.checker import START, Checker, Operation, ViolationError, chained, fail
from tests.sim.raft.faults import Faults
from tests.sim.raft.network import Connection, Network
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raft_meta.consensus.messages import Entry, Message

DIRECTORY = "/raft"
RECOVERY_SECONDS = 12.0
"""The virtual seconds within which a healed cluster must work again."""

_CRASH_KINDS = frozenset({"write", "sync", "rename", "sync_directory", "create", "truncate"})


class DigestMachine:
    """A state machine whose state is a chained hash of its commands, padded to several pieces of a snapshot."""

    def __init__(self, padding: int) -> None:
        self.digest = START
        self._padding = bytes(padding)
        self.on_restore: Callable[[bytes], None] = lambda _digest: None

    def apply(self, index: int, command: bytes) -> bytes:
        """Chain the command."""
        self.digest = chained(self.digest, COMMAND + command)
        return b"%d" % index

    def publish(self) -> None:
        """Do nothing: there are no readers."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Return a function that returns the digest and the padding."""
        digest = self.digest
        return lambda: [digest, self._padding]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state."""
        self.digest = next(iter(chunks))
        self.on_restore(self.digest)


class _WatchedCore(RaftCore):
    """A core that reports every applied entry to the checker, including no-ops."""

    watch: Callable[[Entry], None]

    def on_apply(self, entry: Entry) -> bytes | None:
        self.watch(entry)
        return super().on_apply(entry)


class Peer:
    """One node: its files, which survive a crash, the running core, and its connections."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.files = MemoryFiles()
        self.core: RaftCore | None = None
        self.machine = DigestMachine(0)
        self.incarnation = 0
        self.connections: dict[int, Connection] = {}
        self.paused_until = 0.0
        self.wiped_at = -100.0
        self.full_until = 0.0
        self.applied_seen = self.committed_seen = 0
        self.led_before = False
        self._has_tick = False
        self._timer_at = float("inf")
        self.found(BootstrapState.MEMBER)

    @property
    def is_voter(self) -> bool:
        """Return whether the node votes."""
        return self.id in self.world.voters

    @property
    def is_member(self) -> bool:
        """Return whether its directory says that it may vote."""
        record = load_record(self.files, DIRECTORY)
        return record is not None and record.state is BootstrapState.MEMBER

    def found(self, state: BootstrapState) -> None:
        """Create a directory as after the first boot."""
        self.files.make_directory(DIRECTORY)
        self._record(state)

    def _record(self, state: BootstrapState) -> None:
        record = VoterRecord(node_id=self.id, voters=self.world.voters, state=state)
        store_record(self.files, DIRECTORY, record)

    def boot(self) -> None:
        """Start from the state on disk."""
        world = self.world
        self.incarnation += 1
        self.applied_seen = self.committed_seen = 0
        self.led_before = False
        self._has_tick, self._timer_at = False, float("inf")
        self.machine = DigestMachine(world.padding)
        self.files.on_operation = self._maybe_crash
        world.trace("boot", self.id, "incarnation", self.incarnation)
        self._guarded(self._build)
        if self.core is None:
            return
        self.machine.on_restore = lambda _digest: None
        if self.core.library.applied_index > 1:
            world.checker.on_restore(self.id, self.core.library.applied_index, self.machine.digest)
        world.checker.check_peer(self, self.core)
        self.kick()
        for other in world.voters:
            if other < self.id or (other != self.id and not self.is_voter):
                world.network.redial(self, other, 0.02 + 0.2 * world.rng.random())

    def _build(self) -> None:
        world = self.world
        wal = Wal(self.files, f"{DIRECTORY}/wal", room_step_bytes=4096, reserve_bytes=1024)
        core = _WatchedCore(
            CoreConfig(
                node_id=self.id,
                voters=world.voters,
                incarnation=self.incarnation,
                batch_bytes=world.batch_bytes,
                window_pieces=world.window_pieces,
                log_bytes_max=world.log_bytes_max,
            ),
            wal=wal,
            snapshots=SnapshotStore(self.files, DIRECTORY, piece_bytes=world.piece_bytes),
            machine=self.machine,
            sender=self,
            background=self._in_background,
            clock=lambda: world.now,
            rng=world.rng,
            is_learner=self.is_voter and not self.is_member,
            on_member=lambda: self._record(BootstrapState.MEMBER),
        )
        core.watch = lambda entry: world.checker.on_apply(self.id, core.library.term, entry)
        self.core = core

    # -- running

    def run(self, action: Callable[[RaftCore], None]) -> None:
        """Do something with the core; tick it soon, like the driver."""
        core = self.core
        if core is None:
            return
        self._guarded(lambda: action(core))
        if self.core is core:
            self.world.checker.check_peer(self, core)
            self.kick()

    def kick(self) -> None:
        """Tick the core soon."""
        if not self._has_tick and self.core is not None:
            self._has_tick = True
            self.world.at(0.002 * self.world.rng.random(), self._tick, self.incarnation)

    def _tick(self, incarnation: int) -> None:
        world = self.world
        if self.incarnation != incarnation or self.core is None:
            return
        if self.paused_until > world.now:
            world.at(self.paused_until - world.now, self._tick, incarnation)
            return
        self._has_tick = False
        core = self.core
        self._guarded(core.advance)
        if self.core is core:
            # Sync at once, or with other events in between, possibly another tick.
            world.at(world.rng.choice((0.0, 0.004)) * world.rng.random(), self._sync, incarnation)
            world.checker.check_peer(self, core)
            self._arm(core)

    def _sync(self, incarnation: int) -> None:
        core = self.core
        if core is not None and self.incarnation == incarnation:
            self._guarded(core.sync)

    def _arm(self, core: RaftCore) -> None:
        world = self.world
        due = max(core.next_due(), world.now + 0.001)
        if due < self._timer_at or self._timer_at <= world.now:
            self._timer_at = due
            world.at(due - world.now, self._on_timer, self.incarnation)

    def _on_timer(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self._timer_at = float("inf")
            self.kick()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action; a simulated power cut, or an error of the core about a failed disk, ends the process."""
        try:
            action()
        except SimulatedCrashError:
            self.crash()
        except DiskFailedError:
            self.world.checker.stats["disk failures"] += 1
            self.crash()
        except DiskFullError:
            self.world.checker.stats["stopped by a full disk"] += 1
            self.kill()

    def _in_background(
        self, job: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        world = self.world
        world.at(world.dump_s * world.rng.random(), self._work, self.incarnation, job, done)

    def _work(
        self,
        incarnation: int,
        job: Callable[[], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        if self.incarnation != incarnation or self.core is None:
            return

        def work(_core: RaftCore) -> None:
            error: BaseException | None = None
            try:
                job()
            except DiskFullError as full:
                error = full
            done(error)

        self.run(work)

    # -- dying

    def _maybe_crash(self, kind: str, path: str) -> None:
        world = self.world
        if kind in _CRASH_KINDS and world.rng.random() < world.crash_chance:
            raise SimulatedCrashError(f"before {kind} of {path}")

    def crash(self) -> None:
        """Cut the power: unsynced bytes are lost, torn or kept."""
        rng = self.world.rng
        self.files.on_operation = None
        self.files.crash(rng, rng.choice(("none", "some", "some", "all")))
        self._die("crash")

    def kill(self) -> None:
        """Kill the process (kill -9): all written bytes stay visible."""
        self.files.on_operation = None
        self.files.kill()
        self._die("kill")

    def wipe(self) -> None:
        """Delete the directory; the voter comes back as a learner."""
        if self.core is not None:
            self.crash()
        self.files = MemoryFiles()
        self.found(BootstrapState.LEARNER)
        self.wiped_at = self.world.now
        self.world.checker.stats["wipes"] += 1

    def _die(self, kind: str) -> None:
        world = self.world
        world.trace(kind, self.id)
        world.checker.stats["crashes"] += 1
        for operation in world.checker.operations.values():
            if operation.outcome == "open" and (operation.peer_id, operation.incarnation) == (
                self.id,
                self.incarnation,
            ):
                operation.outcome = Failure.UNKNOWN_OUTCOME
        self.core, self.connections = None, {}
        self.incarnation += 1
        for connection in world.network.live():
            if self.id in connection.ends:
                world.network.sever(connection)
        world.at(world.rng.choice((0.01, 0.3, 1.5)) * world.rng.random(), self._restart)

    def _restart(self) -> None:
        if self.core is None:
            self.boot()

    # -- the core's link

    def send(self, node_id: int, message: Message) -> None:
        """Send a message; part of ``MessageSender``."""
        connection = self.connections.get(node_id)
        if connection is not None:
            self.world.network.transmit(connection, self.id, node_id, message)

    def is_congested(self, _node_id: int) -> bool:
        """Return whether a link is congested; part of ``MessageSender``."""
        return self.world.rng.random() < self.world.congestion

    def link(self, other: int, connection: Connection) -> None:
        """Add an established connection."""
        older = self.connections.get(other)
        if older is not None:
            self.world.network.sever(older)
            self.unlink(other)
        self.connections[other] = connection
        self.run(lambda core: core.connected(other))

    def unlink(self, other: int) -> None:
        """Remove a broken connection."""
        del self.connections[other]
        self.run(lambda core: core.disconnected(other))

    # -- its clients

    def submit(self, kind: bytes, body: bytes) -> None:
        """Submit a client's command or barrier."""
        world, checker = self.world, self.world.checker
        core = self.core
        if core is None:
            return
        operation = Operation(
            kind + body, self.id, self.incarnation, checker.acknowledged_index, world.now
        )
        world.trace("submit", self.id, operation.entry)

        def on_result(index: int, failure: Failure | None) -> None:
            if operation.outcome != "open":
                fail("answered-twice", operation, failure)
            operation.outcome = failure
            world.trace("result", self.id, operation.entry, failure)
            if failure is None:
                checker.on_success(operation, index)

        def start(core: RaftCore) -> None:
            checker.operations[operation.entry] = operation
            if kind == COMMAND:
                ticket = core.propose(
                    body, lambda response, failure: on_result(int(response or 0), failure)
                )
            else:
                ticket = core.barrier(on_result)
            if ticket is not None and world.rng.random() < 0.3:
                world.at(world.rng.random(), self._give_up, self.incarnation, ticket, operation)

        self.run(start)

    def _give_up(self, incarnation: int, ticket: int, operation: Operation) -> None:
        is_here = self.incarnation == incarnation and operation.outcome == "open"
        if not is_here or self.core is None:
            return
        is_command = operation.entry[:1] == COMMAND
        if self.core.withdraw(ticket) if is_command else self.core.withdraw_barrier(ticket):
            operation.outcome = "withdrawn"


class World:
    """One run. ``voters`` and ``observers`` are the numbers of nodes with and without a vote."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        observers: int = 0,
        has_wipes: bool = False,
        is_hard: bool = False,
        chaos_s: float = 8.0,
        is_traced: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.chaos_s = chaos_s
        self.healed_at: float | None = None
        self.lines: list[str] = []
        self._is_traced = is_traced
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._serial = 0
        self._is_done = False
        self.crash_chance = rng.choice((0.0, 0.0005, 0.003))
        self.command_gap_s = rng.choice((0.01, 0.03, 0.06))
        self.congestion = rng.choice((0.0, 0.0, 0.1))
        self.batch_bytes = rng.choice((30, 80, 4096))
        self.piece_bytes = rng.choice((40, 100, 4096))
        self.window_pieces = rng.choice((2, 4, 16))
        self.padding = rng.choice((0, 200, 500))
        self.log_bytes_max = rng.randint(800, 3000)
        self.dump_s = 0.4
        self.voters = tuple(range(voters))
        self.checker = Checker()
        self.network = Network(self)
        self.peers = [Peer(self, node_id) for node_id in range(voters + observers)]
        self.faults = Faults(self, has_wipes=has_wipes)
        if is_hard:
            self._harden()

    def _harden(self) -> None:
        """Make everything slow, so that snapshots, transfers and elections often overlap."""
        rng = self.rng
        self.network.latency_s, self.network.tail_s = 0.06, 0.1
        self.network.drop = rng.choice((0.0, 0.05))
        self.crash_chance, self.command_gap_s, self.dump_s = 0.002, 0.02, 1.5
        self.piece_bytes, self.padding, self.window_pieces = 40, 500, rng.choice((2, 4))
        self.log_bytes_max = rng.randint(800, 1200)
        self.faults.harden()

    # -- time

    def at(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        """Run an action later."""
        self._serial += 1
        heapq.heappush(self._heap, (self.now + delay, self._serial, action, arguments))

    def serial(self) -> int:
        """Return a new serial number."""
        self._serial += 1
        return self._serial

    def trace(self, *words: object) -> None:
        """Add a line to the report of a failure."""
        if self._is_traced:
            self.lines.append(f"{self.now:9.4f} " + " ".join(map(str, words)))

    def run(self) -> ViolationError | None:
        """Run to the end; return the broken invariant, or None."""
        with use_clock(lambda: self.now):
            try:
                for peer in self.peers:
                    peer.boot()
                self.at(0.05, self._client)
                self.at(1.0, self.faults.strike)
                self.at(self.chaos_s, self._heal)
                while not self._is_done:
                    moment, _, action, arguments = heapq.heappop(self._heap)
                    self.now = max(self.now, moment)
                    self.checker.stats["events"] += 1
                    action(*arguments)
            except ViolationError as violation:
                return violation
            return None

    # -- clients

    def _client(self) -> None:
        if self.healed_at is not None:
            return
        running = [peer for peer in self.peers if peer.core is not None]
        if running:
            peer = self.rng.choice(running)
            for _ in range(self.rng.randint(5, 15) if self.rng.random() < 0.1 else 1):
                kind = NO_OP if self.rng.random() < 0.1 else COMMAND
                peer.submit(kind, b"%d" % self.serial())
        self.at(self.command_gap_s * (0.3 + self.rng.random()), self._client)

    # -- the end

    def _heal(self) -> None:
        self.trace("heal")
        self.healed_at = self.now
        self.crash_chance = self.congestion = 0.0
        self.network.heal()
        self.faults.heal()
        self.at(0.1, self._probe)

    def _probe(self) -> None:
        assert self.healed_at is not None, "probes follow the healing"
        for peer in self.peers:
            peer.submit(COMMAND, b"%d" % self.serial())
        if self._is_whole():
            self.checker.check_end()
            self.checker.stats["virtual seconds"] += round(self.now)
            self._is_done = True
        elif self.now > self.healed_at + RECOVERY_SECONDS:
            self._report_stall()
        else:
            self.at(0.3, self._probe)

    def _is_whole(self) -> bool:
        cores = [peer.core for peer in self.peers if peer.core is not None]
        last = self.checker.last_index
        if len(cores) < len(self.peers) or sum(core.library.is_leader for core in cores) != 1:
            return False
        if any(core.library.applied_index != last or core.is_learner for core in cores):
            return False
        operations = self.checker.operations.values()
        late = any(op.outcome == "open" and op.started_at < self.now - 1.5 for op in operations)
        healed_at = self.healed_at
        assert healed_at is not None, "this is asked after the healing"
        served = {
            op.peer_id for op in operations if op.outcome is None and op.started_at > healed_at
        }
        return len(served) == len(self.peers) and not late

    def _report_stall(self) -> None:
        states = [
            (peer.id, peer.core and (peer.core.status(), peer.core.wal.entries[-1][1:]))
            for peer in self.peers
        ]
        waiting = [op for op in self.checker.operations.values() if op.outcome == "open"]
        fail("liveness", "last", self.checker.last_index, states, waiting[:3])
