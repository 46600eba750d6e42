"""A machine of the simulated cluster: its disk, its clock, and one production node after another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.ports.node import Ports
from milena.model.contained import EntryPoint
from milena.model.errors import FateUnknownError, InternalError
from node.assembly import Ids
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.metadata.discovery import find_voters
from node.wiring import Node
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.image import PartitionKey
from tests.sim.cluster.platform import CAN_WATCH, SimClock, net_loop
from tests.sim.cluster.threads import Process, ProcessExitError, Scheduler, SimLoop
from tests.sim.cluster.wires import MACHINE_PORT, Wires
from tests.support.disk.memory_files import Keep, MemoryFiles, SimulatedCrashError

if TYPE_CHECKING:
    from tests.sim.cluster.answers import LostAnswers
    from tests.sim.cluster.world import World

T = TypeVar("T")

log = logging.getLogger("milena.sim")


class NodeProcess(Process):
    """One process of a node."""

    def __init__(self, machine: "Machine") -> None:
        scheduler = machine.world.scheduler
        rate = 1.0 + scheduler.rng.choice((-5e-4, 0.0, 5e-4))
        super().__init__(scheduler, f"node {machine.node_id}", rate=rate)
        self.machine = machine
        self.workers.is_watched = True
        self.host = machine.host
        self.files = machine.files
        self.make_loop = net_loop
        self.work_ms = machine.world.work_ms
        self.clock = SimClock(self, machine.wall_skew_ms)
        self.ports: Ports | None = None
        self.node: Node | None = None
        self.stopping: asyncio.Event | None = None
        self.has_stopped = False
        self.lost_answers: LostAnswers | None = None
        self.failure: BaseException | None = None
        self.data = self.loop()
        # Changes of its objects are reported; see ``platform.WATCHED``.
        self.data.is_watched = not CAN_WATCH
        self.incarnation = machine.world.next_incarnation()

    def loop(self) -> SimLoop:
        loop = super().loop()
        loop.is_watched = True
        return loop

    def start(self) -> None:
        """Start the node, like the command line does."""
        self.data.call_soon(lambda: self.data.create_task(self._main()))

    async def _main(self) -> None:
        try:
            await self._serve()
        except ProcessExitError:
            raise
        except BaseException as error:
            self.exit(error)

    async def _serve(self) -> None:
        machine, rng = self.machine, self.scheduler.rng
        ids = Ids(
            incarnation=self.incarnation,
            directory_id=f"{rng.getrandbits(128):032x}",
            session_ids=Random(rng.getrandbits(64)),
            placement=Random(rng.getrandbits(64)),
            random_bytes=Random(f"{machine.world.seed} {self.incarnation}").randbytes,
        )
        self.stopping = asyncio.Event()
        config = machine.config
        voters = config.voters
        if config.join:
            assert config.cluster_secret is not None, "a node joins with a secret"
            secret = config.cluster_secret.encode()
            voters = await find_voters(config, secret=secret, tls=None, clock=self.clock)
        self.node = Node(
            config, clock=self.clock, ids=ids, voters=voters, feature_max=machine.feature_max
        )
        # A client of a real node gets an error for a contained exception. Here, such an exception is a bug that was
        # found.
        self.node.counts.contained.report = self._on_contained  # type: ignore[method-assign]
        machine.world.checker.on_start(self)
        await self.node.start()
        await self.node.serve(self.stopping)
        self.has_stopped = True
        self.is_dead = True
        machine.on_end(self)
        machine.world.faults.on_clean_stop(machine)

    def _on_contained(
        self, entry: EntryPoint, error: BaseException, field: str, value: str
    ) -> InternalError:
        if not self.is_dead:
            self.errors.append(error)
        return InternalError(f"contained at {entry}: {field}={value}")

    def ask(
        self,
        make: Callable[[Ports], Awaitable[T]],
        *,
        patience_s: float | None = None,
    ) -> "asyncio.Future[T]":
        """Call a port from the client's thread; the call's connection ends with the process.

        A client whose timeout ends gets a ``TimeoutError``, and the call is cancelled, like the HTTP server cancels it.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        tasks: list[asyncio.Task[T]] = []
        self.machine.callers[answer] = self

        async def call(ports: Ports) -> T:
            return await make(ports)

        def begin() -> None:
            if self.ports is None:
                hang_up("connection refused")
                return
            task = self.data.create_task(call(self.ports))
            task.add_done_callback(finish)
            tasks.append(task)

        def finish(task: "asyncio.Task[T]") -> None:
            if task.cancelled():
                loop.call_soon_threadsafe(hang_up, "cancelled inside")
                return
            error = task.exception()
            loop.call_soon_threadsafe(settle, error, None if error else task.result())

        def settle(error: BaseException | None, result: T | None) -> None:
            self.machine.callers.pop(answer, None)
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def hang_up(why: str) -> None:
            settle(FateUnknownError(why), None)

        def lose_patience() -> None:
            if not answer.done():
                answer.set_exception(TimeoutError())
                self.data.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        if self.is_dead:
            # The process ended after the client had chosen it.
            loop.call_soon(hang_up, "connection refused")
            return answer
        self.data.call_soon_threadsafe(begin)
        if patience_s is not None:
            loop.call_later(patience_s, lose_patience)
        return answer


class Machine:
    """A disk and an address, which outlive processes. ``process`` is the node that runs here, if any."""

    def __init__(self, world: "World", node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.host = f"host{node_id}"
        self.files = MemoryFiles()
        self._shortages_before = 0
        self.process: NodeProcess | None = None
        self.skew_ms = 0
        self.drift = 0.0
        """The seconds that its wall clock gains per second."""
        self._drifts_since = 0.0
        self.callers: dict[asyncio.Future[Any], NodeProcess] = {}
        self.crash_chance = 0.0
        self.refusals = 0
        self.feature_max = FEATURE_LEVEL_MAX
        """The feature level of the installed release."""
        voters = {number: Address(f"host{number}", MACHINE_PORT) for number in world.voter_ids}
        is_voter = node_id in voters
        self.config = NodeConfig(
            node_id=node_id,
            data_dir=Path("/data"),
            listen=Address(self.host, 8082),
            peer_listen=Address(self.host, MACHINE_PORT),
            peers=voters if is_voter else {},
            join=() if is_voter else tuple(voters.values()),
            cluster_secret="simulated secret",
            leader_balance_interval_ms=3_000,
            retention_check_ms=world.housekeeping_ms,
            replica_lag_time_max_ms=world.lag_ms_max,
            auto_create_topics=False,
        )

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler of all events."""
        return self.world.scheduler

    @property
    def wires(self) -> Wires:
        """Return the network."""
        return self.world.wires

    @property
    def is_running(self) -> bool:
        """Return whether a node runs here."""
        return self.process is not None

    @property
    def has_lacked_room(self) -> bool:
        """Return whether the disk was full for the present or the last process."""
        return self.files.shortages > self._shortages_before

    def wall_skew_ms(self) -> int:
        """Return how far the wall clock is ahead of the true time."""
        return self.skew_ms + int(self.drift * (self.scheduler.now - self._drifts_since) * 1000)

    def set_clock(self, skew_ms: int, *, drift: float = 0.0) -> None:
        """Set the wall clock this far ahead; ``drift`` is its gain in s per s (below -1 the clock runs backwards)."""
        self.skew_ms, self.drift, self._drifts_since = skew_ms, drift, self.scheduler.now

    def start(self) -> None:
        """Turn the power on, and start the node."""
        assert self.process is None
        self.wires.down.discard(self.host)
        self.files.on_operation = self._before_operation
        self._shortages_before = self.files.shortages
        process = self.process = NodeProcess(self)
        process.on_exit = lambda error: self._on_exit(process, error)
        process.start()

    def _before_operation(self, kind: str, path: str) -> None:
        """Let a planned power cut happen before this disk operation."""
        process = self.process
        if process is None or self.scheduler.current is not process:
            # An ended process is still unwinding; its operations have no effect.
            raise SimulatedCrashError(f"{kind} of {path} by a dead process")
        if self.crash_chance and self.scheduler.rng.random() < self.crash_chance:
            self.world.note(f"power cut of {self.node_id} before {kind} of {path}")
            process.is_dead = True
            self.cut_power(self.scheduler.rng.choice(("none", "some", "some", "all")))
            self.world.faults.on_crash(self)
            raise SimulatedCrashError(f"before {kind} of {path}")

    def _on_exit(self, process: NodeProcess, error: BaseException) -> None:
        """Handle a node that stopped itself."""
        process.failure = error
        self.files.kill()
        self.on_end(process)
        self.world.faults.on_self_stop(self, error)

    def on_end(self, process: NodeProcess) -> None:
        """Fail the calls that wait for this process."""
        self.process = None
        self.files.on_operation = None
        if process.node is not None:
            self.world.take_incarnation(process.node.metadata.incarnation)
        self.world.buried.append(process)
        self.world.checker.on_end(process)
        self.wires.kill(process)
        for caller in [c for c, asked in self.callers.items() if asked is process]:
            del self.callers[caller]
            loop = caller.get_loop()
            loop.call_soon_threadsafe(_break, caller)

    def kill(self) -> None:
        """Kill the process (kill -9)."""
        process = self.process
        if process is not None:
            process.is_dead = True
            self.files.kill()
            self.on_end(process)

    def cut_power(self, keep: Keep) -> None:
        """Cut the power: unsynced bytes are lost, torn or kept, and no connection is closed."""
        process = self.process
        self.wires.down.add(self.host)
        if process is not None:
            process.is_dead = True
            self.on_end(process)
        self.files.crash(self.scheduler.rng, keep)

    @property
    def is_outdated(self) -> bool:
        """Return whether an earlier release is installed."""
        return self.feature_max < FEATURE_LEVEL_MAX

    def stop(self) -> None:
        """Stop the process gracefully (SIGTERM)."""
        process = self.process
        if process is not None and process.stopping is not None:
            process.data.call_soon_threadsafe(process.stopping.set)

    def files_of(self, key: PartitionKey) -> bool:
        """Return whether the disk has any file of a replica."""
        folder = f"/data/topics/{key[0]}/{key[1]}/"
        return any(path.startswith(folder) for path in self.files.paths())

    def wipe(self) -> None:
        """Empty the disk."""
        assert self.process is None
        self.files = MemoryFiles()
        self.world.checker.on_wipe(self.node_id)


def _break(caller: "asyncio.Future[Any]") -> None:
    if not caller.done():
        caller.set_exception(FateUnknownError("the connection to the node broke"))
