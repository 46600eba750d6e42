"""One run: machines, network, clients and faults, all drawn from one seed."""

import asyncio
import gc
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import log
from random import Random
from typing import Any

from http_api.ports.node import NewTopic
from milena.model.errors import MilenaError
from node.control.controller import CLOCKS_LEVEL
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.topics.topics import ELIGIBLE_LEVEL
from tests.sim.cluster.clients import Clients
from tests.sim.cluster.faults import LATER_KINDS, Faults
from tests.sim.cluster.history import History
from tests.sim.cluster.invariants import Checker, ViolationError
from tests.sim.cluster.machine import Machine, NodeProcess
from tests.sim.cluster.parts import LATER_PARTS, PART_CHANCE, PARTS
from tests.sim.cluster.platform import simulated
from tests.sim.cluster.threads import Process, Scheduler, SimLoop
from tests.sim.cluster.wires import Wires

TOPIC = "t"
FIRST_LEADERS_S = 30.0
LATER_CHANCE = 0.5
"""The chance that a seed has any of the later parts; ``LATER_PART_CHANCE`` is then that of each part."""
LATER_PART_CHANCE = 0.7
WHOLE_S = 120.0
"""The virtual seconds after the last fault until all partitions must be led, writable and in sync.

In some runs a node gets moved replicas at 20 kB/s, and several moves of each topic may be in progress.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parameters of a run besides its seed. ``seconds`` is the virtual time with faults."""

    nodes: int = 3
    """The number of voters."""
    observers: int | None = None
    """The number of nodes without a vote; None means that the seed decides."""
    seconds: float = 15.0
    partitions: int = 2
    kinds: tuple[str, ...] = ()
    """The kinds of faults; if empty, the seed decides."""
    parts: tuple[str, ...] | None = None
    """Names of ``tests.sim.cluster.parts.PARTS``; None means that the seed decides."""

    def command(self, seed: int) -> str:
        """Return the command that replays a run."""
        words = [f"python -m tests.sim.cluster --seed {seed}"]
        default = Options()
        words += [
            f"--{name} {getattr(self, name):g}"
            for name in ("nodes", "seconds", "partitions")
            if getattr(self, name) != getattr(default, name)
        ]
        if self.observers is not None:
            words.append(f"--observers {self.observers}")
        if self.kinds:
            words.append(f"--faults {','.join(self.kinds)}")
        if self.parts is not None:
            words.append(f"--parts {','.join(self.parts) or 'none'}")
        return " ".join(words)


class World:
    """One run; ``problems`` has what went wrong, the first problem first."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.wires = Wires(self.scheduler)
        drawn = self.rng.choice((0, 0, 1, 2))
        observers = drawn if options.observers is None else options.observers
        self.voter_ids = tuple(range(1, options.nodes + 1))
        self.node_ids = tuple(range(1, options.nodes + observers + 1))
        self.lag_ms_max = self.rng.choice((2_000, 10_000))
        self.housekeeping_ms = self.rng.choice((500, 2_000))
        """The time in ms between two checks for segments to close, to compact and to delete."""
        self.log_bytes_max = self.rng.choice((3_000, 8_000, 64 << 20))
        self.topic_id = ""
        self.disk_ms = self.rng.choice((0.2, 2.0, 8.0))
        self.slow_disk_chance = self.rng.choice((0.0, 0.0, 0.02))
        self.lines: list[str] = []
        self.problems: list[str] = []
        self.buried: list[NodeProcess] = []
        self._incarnations = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.has_healed = False
        self.checker = Checker(self)
        self.scheduler.after_event = self._after_event
        self.machines = {node_id: Machine(self, node_id) for node_id in self.node_ids}
        self.director = Process(self.scheduler, "director").loop()
        self.client_process = Process(self.scheduler, "clients")
        self.client_loop = self.client_process.loop()
        self.clients = Clients(self)
        self.later = self._draw_later()
        """The later parts and faults, from a separate random generator: old seeds must give the same runs."""
        chosen = self._draw_parts() if options.parts is None else options.parts
        self.parts = [PARTS[name](self) for name in chosen]
        self.faults = Faults(self)
        if self.faults.strikes_any({"upgrade"}):
            # Releases that do not compare clocks keep no promise under wrong clocks.
            clocks = CLOCKS_LEVEL if self.faults.strikes_any({"wrong_clock"}) else 0
            least = max([ELIGIBLE_LEVEL, clocks, *(part.level for part in self.parts)])
            if least < FEATURE_LEVEL_MAX:
                outdated = Random(f"{seed} level").randrange(least, FEATURE_LEVEL_MAX)
                self.faults.begin_outdated(outdated)

    def _draw_parts(self) -> list[str]:
        first = [name for name in PARTS if name not in LATER_PARTS]
        drawn = [name for name in first if self.rng.random() < PART_CHANCE]
        return drawn + [name for name in LATER_PARTS if name in self.later]

    def _draw_later(self) -> frozenset[str]:
        rng = Random(f"{self.seed} later")
        if rng.random() >= LATER_CHANCE:
            return frozenset()
        # Draw in the order of addition, so that a new part does not change the draws of earlier ones.
        names = (
            *(*LATER_PARTS[:1], *LATER_KINDS[:2], *LATER_PARTS[1:6], *LATER_KINDS[2:3]),
            *(*LATER_PARTS[6:], *LATER_KINDS[3:]),
        )
        return frozenset(name for name in names if rng.random() < LATER_PART_CHANCE)

    @property
    def digest(self) -> str:
        """Return a hash over the sequence of all events so far."""
        return f"{self.scheduler.digest & (1 << 64) - 1:016x}"

    @property
    def history(self) -> History:
        """Return the history of the first topic's clients."""
        return self.clients.history

    # Methods for machines and faults.

    def next_incarnation(self) -> int:
        """Return an incarnation larger than all before."""
        self._incarnations += 1
        return self._incarnations

    def take_incarnation(self, number: int) -> None:
        """Note that a node ended with this incarnation; later ones must be larger, whatever the wall clock is."""
        self._incarnations = max(self._incarnations, number)

    def work_ms(self) -> float:
        """Return the time of a job on a worker thread, which waits for the disk, in ms."""
        random = self.rng.random
        work_ms = -self.disk_ms * log(1.0 - random())
        if self.slow_disk_chance and random() < self.slow_disk_chance:
            work_ms += random() * 800
        return work_ms

    def note(self, what: str) -> None:
        """Add a line to the report of the run."""
        self.lines.append(f"{self.scheduler.now:9.4f} {what}")

    def fail(self, what: str) -> None:
        """Note a broken invariant, and end the run."""
        self.problems.append(f"{self.scheduler.now:.4f} {what}")
        self.scheduler.stop()

    def _after_event(self, process: Process, loop: SimLoop) -> None:
        if process.errors:
            self.fail(f"{process.name}: {process.errors[0]!r}")
        if type(process) is NodeProcess and not process.is_dead:
            try:
                if loop is process.data:
                    process.is_touched = False
                    self.checker.check_replicas(process)
                else:
                    self.checker.check_core(process)
            except ViolationError as violation:
                self.fail(str(violation))

    # The run.

    def run(self, *, is_frozen: bool = False) -> list[str]:
        """Run to the end or to the first problem. ``is_frozen`` means that ``gc.freeze`` was called."""
        report, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        # Earlier objects are no garbage of this run.
        if not is_frozen:
            gc.freeze()
        try:
            with simulated(self.scheduler, self.wires, log_bytes_max=self.log_bytes_max):
                self._spawn(self.director, self._direct)
                self.scheduler.run()
        except AssertionError as error:
            self.problems.append(repr(error))
        finally:
            self._bury()
            if not is_frozen:
                gc.unfreeze()
            sys.unraisablehook = report
        return self.problems

    def _spawn(self, loop: SimLoop, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await make()
            except ViolationError as violation:
                self.fail(str(violation))
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                self.fail(f"{error!r} {traceback.format_exc(limit=-4)}")

        loop.call_soon(lambda: self._tasks.append(loop.create_task(guarded())))

    async def _direct(self) -> None:
        for machine in self.machines.values():
            machine.start()
        await self.until(self._is_up, FIRST_LEADERS_S, "the cluster did not come up")
        topic = NewTopic(
            name=TOPIC,
            partition_count=self.options.partitions,
            replication_factor=min(3, len(self.node_ids)),
            # Some clients send batches with timestamps of 1970; retention must not delete them.
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )
        self.topic_id = await self.create(topic)
        for part in self.parts:
            await part.prepare()
        await self.until(self.is_whole, FIRST_LEADERS_S, "the topic is not led everywhere")
        for client in self.clients.all():
            self._spawn(self.client_loop, client)
        for part in self.parts:
            for client in part.clients.all():
                self._spawn(self.client_loop, client)
        await self.faults.strike(self.options.seconds)
        self.note("healed")
        self.has_healed = True
        self.faults.heal()
        await self.until(self.is_whole, WHOLE_S, "liveness: not whole again")
        await self.clients.finish()
        for part in self.parts:
            await part.clients.finish()
        await self.until(self._is_settled, WHOLE_S, "liveness: not settled")
        await self.until(self._is_even, WHOLE_S, "liveness: replicas do not become equal")
        self.checker.check_end()
        for clients in (self.clients, *(part.clients for part in self.parts)):
            clients.history.judge(clients.final_values())
            self.problems += clients.history.problems
        self.scheduler.stop()

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition is true."""
        deadline = self.scheduler.now + seconds
        while not condition():
            if self.scheduler.now > deadline:
                raise ViolationError(f"{what}: {self.checker.summary()}")
            await asyncio.sleep(0.02)

    async def create(self, topic: NewTopic) -> str:
        """Create a topic before any fault; return its id."""
        while True:
            process = self.machines[1].process
            assert process is not None
            try:
                created = await process.ask(lambda ports: ports.metadata.create_topic(topic))
            except MilenaError as error:
                self.note(f"create: {error}")
                await asyncio.sleep(0.1)
            else:
                return created.topic_id

    def _is_up(self) -> bool:
        return all(
            m.process is not None and m.process.node is not None and m.process.ports is not None
            and m.process.node.membership.is_unfenced
            for m in self.machines.values()
        )  # fmt: skip

    def is_whole(self) -> bool:
        """Return whether every partition has a running leader and all replicas in its isr, and is not being moved."""
        if not self._is_up():
            return False
        image = self.checker.newest_image()
        if image.topic(TOPIC) is None:
            return False
        for key, state in image.partitions.items():
            if set(state.isr) != set(state.replicas) or state.leader is None or state.moving:
                return False
            runner = self.checker.runner(state.leader, key)
            if runner is None or runner.leader is None or not runner.leader.is_established:
                return False
        return True

    def _is_settled(self) -> bool:
        is_upgraded = self.checker.newest_image().feature_level == FEATURE_LEVEL_MAX
        return is_upgraded and all(part.is_settled() for part in self.parts) and self.is_whole()

    def _is_even(self) -> bool:
        """Return whether all replicas have the same end, and no node has files of a partition that it does not hold.

        A follower may start above its leader: an earlier leader deleted records, and ended before all replicas knew.
        """
        image = self.checker.newest_image()
        for key, state in image.partitions.items():
            runners = [self.checker.runner(replica, key) for replica in state.replicas]
            logs = [runner.log for runner in runners if runner is not None]
            if len(logs) != len(runners) or state.leader is None:
                return False
            ends = {
                *(log.log_end_offset for log in logs),
                *(log.stored_end_offset for log in logs),
                *(runner.high_watermark for runner in runners if runner is not None),
            }
            start = logs[state.replicas.index(state.leader)].log_start_offset
            if len(ends) != 1 or any(log.log_start_offset < start for log in logs):
                return False
            if any(
                machine.files_of(key)
                for node_id, machine in self.machines.items()
                if node_id not in state.replicas
            ):
                return False
        return True

    def _bury(self) -> None:
        """Collect the garbage of the run; its ``finally`` blocks run now, and can reach no loop."""
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.is_dead = True
                self.buried.append(machine.process)
                machine.process = None
            machine.callers.clear()
        for process in self.buried:
            process.node = None
            process.postponed.clear()
        for other in (self.client_process, self.director.process, self.wires.ground.process):
            other.is_dead = True
        self.scheduler.after_event = lambda process, loop: None
        self.wires.clear()
        self.buried.clear()
        for _ in range(3):
            # The first collection may have freed more tasks.
            self.scheduler.clear()
            if not gc.collect():
                break


def run_world(seed: int, options: Options | None = None) -> World:
    """Run a seed to its end; see ``problems``."""
    world = World(seed, options or Options())
    world.run()
    return world
