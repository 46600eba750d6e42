"""Inject faults, drawn from a seed, up to the limits under which the promises must hold.

Each run draws some kinds of faults, so that rare combinations occur (swarm testing). One machine per run, the victim,
may lose data that its disk had acknowledged: bits flip, or its directory is emptied. Any number of machines may lose
power, be killed, paused, disconnected, have a full disk, or fail a sync, also at the same time. An observer that no
partition needs may come back with an empty directory at any time.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING

from http_api.ports.node import ReassignmentRequest, ReplicaTarget
from milena.model.errors import DiskFailedError, DiskFullError
from raft_meta.consensus.core import RaftCore
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from tests.sim.cluster.answers import FATES, LostAnswers
from tests.sim.cluster.threads import Process
from tests.support.disk.memory_files import Keep

if TYPE_CHECKING:
    from tests.sim.cluster.machine import Machine
    from tests.sim.cluster.world import World

KINDS = (
    "kill", "kill", "cut_power", "cut_power", "stop", "cut_all_power", "kill_all", "pause", "stall",
    "isolate", "split", "cut_one_way", "heal_network", "slow_network", "tamper", "break_connections",
    "fill_disk", "fail_sync", "crash_at_disk", "set_clock", "slow_disk", "transfer", "compact",
    "flip_bit", "wipe", "lose_raft_log", "grow", "move", "move", "drain", "cancel_moves",
)  # fmt: skip
LATER_KINDS = ("lose_answers", "replace", "upgrade", "wrong_clock")
"""Kinds that are drawn independently of everything else; see ``World.later``."""
LATER_SHARE = 0.2
"""The least share of the faults of a run for each of these kinds; among thirty others they would rarely occur."""
PROPOSALS = 4
"""The most proposals of a node whose responses are lost at a time."""
REPLACE_TRIES = 40
REPLACE_S = 0.1
"""The time in s between two checks whether a partition needs the machine to be replaced."""
KEEPS: tuple[Keep, ...] = ("none", "some", "some", "all")
DOWN_S = (0.05, 0.5, 2.0, 5.0)
LASTING_S = (0.1, 0.5, 2.0, 4.0)
WHOLE_BEFORE_LOSS_S = 10.0
DAY_MS = 24 * 3_600_000
WRONG_MS = (
    8 * DAY_MS, -8 * DAY_MS, 30 * DAY_MS, -30 * DAY_MS, 365 * DAY_MS, -19_000 * DAY_MS,
    60_000, -60_000, 3_000, -3_000, 0,
)  # fmt: skip
DRIFTS = (-2.0, -1.0, -0.5, 0.5, 9.0, 100_000.0, -100_000.0)
"""The rates of a wrong clock: seconds that it gains per second."""
RIGHT_MS_MAX = 900
"""The largest error of a correct clock, in ms."""


class Faults:
    """Injects faults until ``heal``."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = rng = world.rng
        self._kinds = rng.sample(KINDS, rng.randint(4, len(KINDS)))
        if world.options.kinds:
            self._kinds = [kind for kind in KINDS + LATER_KINDS if kind in world.options.kinds]
        else:
            later = [kind for kind in LATER_KINDS if kind in world.later]
            self._kinds += later * (1 + int(LATER_SHARE * len(self._kinds)))
        self._gap_s = rng.choice((0.2, 0.5, 1.0, 2.0))
        self._victim = rng.choice(world.node_ids)
        self._has_lost = False
        self.has_right_majority = "wrong_clock" in self._kinds or any(
            part.needs_right_majority for part in world.parts
        )
        """Whether clocks are wrong, on at most a minority of the voters and on observers."""
        self.wrong_clocks = self._draw_wrong_clocks()
        """The machines whose clocks may be wrong."""
        self.struck = 0
        self.fates: Counter[str] = Counter()
        """The number of proposals whose responses were lost, by their fates."""
        self.replaced = 0
        """The number of observers that came back with an empty directory."""

    def _draw_wrong_clocks(self) -> frozenset[int]:
        world = self._world
        voters = Random(f"{world.seed} clocks").sample(
            world.voter_ids, max(1, (len(world.voter_ids) - 1) // 2)
        )
        return frozenset(voters) | (set(world.node_ids) - set(world.voter_ids))

    @property
    def has_lost_any(self) -> bool:
        """Return whether the victim has lost data."""
        return self._has_lost

    def has_lost(self, node_id: int) -> bool:
        """Return whether acknowledged records of this machine were lost from its disk."""
        return self._has_lost and node_id == self._victim

    def strikes_any(self, kinds: Collection[str]) -> bool:
        """Return whether this run has one of these kinds of faults."""
        return any(kind in kinds for kind in self._kinds)

    def on_self_stop(self, machine: "Machine", error: BaseException) -> None:
        """Check that a node stopped itself only because its disk failed."""
        self._world.note(f"node {machine.node_id} stops itself: {error!r}")
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, DiskFailedError):
            # Data that the kernel could not write are lost; the machine starts again.
            machine.cut_power(self._rng.choice(KEEPS))
        elif not isinstance(error, DiskFullError) or not machine.has_lacked_room:
            self._world.fail(f"node {machine.node_id} stopped itself: {error!r}")
        self._restart_later(machine)

    def on_crash(self, machine: "Machine") -> None:
        """Restart a machine whose power was cut in the middle of a disk operation."""
        self._restart_later(machine)

    async def strike(self, seconds: float) -> None:
        """Inject faults for this long."""
        world, rng = self._world, self._rng
        end = world.scheduler.now + seconds
        while world.scheduler.now < end:
            await asyncio.sleep(self._gap_s * rng.expovariate(1))
            kind = rng.choice(self._kinds)
            machine = world.machines[rng.choice(world.node_ids)]
            self.struck += 1
            getattr(self, "_" + kind)(machine)

    def begin_outdated(self, level: int) -> None:
        """Install an earlier release on all machines, which supports features up to this level."""
        self._note(f"all nodes go up to feature level {level}")
        for machine in self._world.machines.values():
            machine.feature_max = level

    def heal(self) -> None:
        """Undo all lasting faults, install the present release everywhere, and start all machines that are down."""
        world = self._world
        world.wires.heal()
        world.wires.tamper_chance = world.wires.tail_chance = 0.0
        world.wires.latency_ms = 1.0
        world.disk_ms, world.slow_disk_chance = 0.5, 0.0
        for machine in world.machines.values():
            machine.files.capacity = None
            machine.files.forget_failures()
            machine.crash_chance = 0.0
            if machine.process is not None and machine.process.lost_answers is not None:
                machine.process.lost_answers.fates.clear()
            if machine.process is not None and machine.process.is_paused:
                machine.process.resume()
            self._upgrade(machine)
            if machine.process is None:
                machine.start()
        world.wires.flush()

    # Helpers.

    def _note(self, what: str) -> None:
        self._world.note(what)

    def _later(self, seconds: float, action: object, *args: object) -> None:
        self._world.director.call_later(seconds, self._if_not_healed, action, args)

    def _if_not_healed(self, action: object, args: tuple[object, ...]) -> None:
        if not self._world.has_healed:
            action(*args)  # type: ignore[operator]

    def _lasting(self) -> float:
        return self._rng.choice(LASTING_S) * self._rng.random()

    def _restart_later(self, machine: "Machine") -> None:
        if self._world.has_healed:
            self._world.director.call_later(0.01, self._restart, machine)
        else:
            self._later(self._rng.choice(DOWN_S) * self._rng.random(), self._restart, machine)

    def _restart(self, machine: "Machine") -> None:
        if machine.process is None:
            self._note(f"start {machine.node_id}")
            machine.start()

    # Processes and power.

    def _upgrade(self, machine: "Machine") -> None:
        """Install the present release; if the node runs, stop or kill it, and start it again."""
        if not machine.is_outdated:
            return
        self._note(f"upgrade {machine.node_id}")
        machine.feature_max = FEATURE_LEVEL_MAX
        process = machine.process
        if process is None:
            return
        if process.is_paused or process.stopping is None or self._rng.random() < 0.5:
            self._kill(machine)
        else:
            self._stop(machine)

    def _kill(self, machine: "Machine") -> None:
        if machine.process is not None:
            self._note(f"kill {machine.node_id}")
            machine.kill()
            self._restart_later(machine)

    def _cut_power(self, machine: "Machine") -> None:
        if machine.process is not None:
            keep = self._rng.choice(KEEPS)
            self._note(f"power cut of {machine.node_id}, keeps {keep}")
            machine.cut_power(keep)
            self._restart_later(machine)

    def _cut_all_power(self, machine: "Machine") -> None:
        del machine
        if self._rng.random() < 0.4:
            for each in self._world.machines.values():
                self._cut_power(each)

    def _kill_all(self, machine: "Machine") -> None:
        del machine
        if self._rng.random() < 0.4:
            for each in self._world.machines.values():
                self._kill(each)

    def _stop(self, machine: "Machine") -> None:
        if machine.process is not None and not machine.process.is_paused:
            self._note(f"stop {machine.node_id}")
            machine.stop()

    def on_clean_stop(self, machine: "Machine") -> None:
        """Handle a graceful stop of a node."""
        self._note(f"stopped {machine.node_id}")
        self._restart_later(machine)

    def _pause(self, machine: "Machine") -> None:
        self._pause_for(machine, self._lasting())

    def _stall(self, machine: "Machine") -> None:
        self._pause_for(machine, self._rng.uniform(0.01, 0.4))

    def _pause_for(self, machine: "Machine", seconds: float) -> None:
        process = machine.process
        if process is not None and not process.is_paused:
            self._note(f"pause {machine.node_id} for {seconds:.3f} s")
            process.pause()
            self._later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        if not process.is_dead and process.is_paused:
            process.resume()

    def _crash_at_disk(self, machine: "Machine") -> None:
        machine.crash_chance = self._rng.choice((0.01, 0.1))
        self._later(self._lasting(), self._calm, machine)

    def _calm(self, machine: "Machine") -> None:
        machine.crash_chance = 0.0

    # The network.

    def _isolate(self, machine: "Machine") -> None:
        self._divide({machine.node_id})

    def _split(self, machine: "Machine") -> None:
        del machine
        ids = self._world.node_ids
        self._divide(set(self._rng.sample(ids, self._rng.randint(1, len(ids) - 1))))

    def _divide(self, side: set[int]) -> None:
        self._note(f"split {sorted(side)} from the others")
        ways = set()
        for inside in sorted(side):
            for outside in self._world.node_ids:
                if outside not in side:
                    ways |= {(inside, outside), (outside, inside)}
        self._cut(ways)

    def _cut_one_way(self, machine: "Machine") -> None:
        others = [other for other in self._world.node_ids if other != machine.node_id]
        chosen = self._rng.sample(others, self._rng.randint(1, len(others)))
        self._note(f"nothing from {machine.node_id} reaches {chosen}")
        self._cut({(machine.node_id, other) for other in chosen})

    def _cut(self, ways: set[tuple[int, int]]) -> None:
        machines = self._world.machines
        named = {(machines[a].host, machines[b].host) for a, b in ways}
        self._world.wires.cuts |= named
        if self._rng.random() < 0.8:
            self._later(self._lasting(), self._restore, named)

    def _restore(self, named: set[tuple[str, str]]) -> None:
        self._world.wires.cuts -= named
        self._world.wires.flush()

    def _heal_network(self, machine: "Machine") -> None:
        del machine
        self._note("network healed")
        self._world.wires.heal()
        self._world.wires.tamper_chance = 0.0

    def _slow_network(self, machine: "Machine") -> None:
        del machine
        wires = self._world.wires
        wires.latency_ms = self._rng.choice((0.2, 1.0, 5.0, 40.0))
        wires.tail_chance = self._rng.choice((0.0, 0.01, 0.2))
        self._note(f"latency {wires.latency_ms} ms")

    def _tamper(self, machine: "Machine") -> None:
        del machine
        self._world.wires.tamper_chance = self._rng.choice((0.0, 0.002, 0.05))
        self._note(f"tampering {self._world.wires.tamper_chance}")

    def _break_connections(self, machine: "Machine") -> None:
        ends = [end for end in self._world.wires.ends if end.host == machine.host]
        self._note(f"connections of {machine.node_id} break")
        for end in ends:
            if self._rng.random() < 0.5:
                end.break_off()
                end.other.break_soon()

    # Disks and clocks.

    def _fill_disk(self, machine: "Machine") -> None:
        self._note(f"disk of {machine.node_id} full")
        machine.files.capacity = machine.files.used_bytes() + self._rng.randrange(1, 20_000)
        self._later(self._lasting(), self._empty_disk, machine)

    def _empty_disk(self, machine: "Machine") -> None:
        machine.files.capacity = None

    def _fail_sync(self, machine: "Machine") -> None:
        part = self._rng.choice(("/raft/", "/topics/", ""))
        self._note(f"next sync of {part!r} on {machine.node_id} fails")
        machine.files.fail_next_sync(part)

    def _slow_disk(self, machine: "Machine") -> None:
        del machine
        self._world.disk_ms = self._rng.choice((0.2, 2.0, 8.0, 50.0))
        self._world.slow_disk_chance = self._rng.choice((0.0, 0.02))

    def _set_clock(self, machine: "Machine") -> None:
        skew_ms = machine.skew_ms + self._rng.choice((-60_000, -5_000, -50, 50, 5_000, 60_000))
        if self.has_right_majority and machine.node_id not in self.wrong_clocks:
            skew_ms = max(-RIGHT_MS_MAX, min(skew_ms, RIGHT_MS_MAX))
        machine.set_clock(skew_ms)
        self._note(f"clock of {machine.node_id} off by {machine.skew_ms} ms")

    def _wrong_clock(self, machine: "Machine") -> None:
        """Let a clock jump, or run fast, slow, backwards or not at all, on a minority of the voters or an observer."""
        machine = self._world.machines[self._rng.choice(sorted(self.wrong_clocks))]
        if self._rng.random() < 0.5:
            machine.set_clock(self._rng.choice(WRONG_MS))
        else:
            machine.set_clock(machine.wall_skew_ms(), drift=self._rng.choice(DRIFTS))
        self._note(
            f"clock of {machine.node_id} wrong by {machine.wall_skew_ms()} ms, gains {machine.drift}"
        )

    # What only the victim suffers.

    def _flip_bit(self, machine: "Machine") -> None:
        """Flip a bit of a log while the machine is down."""
        machine = self._world.machines[self._victim]
        if not self._may_lose():
            return
        files = machine.files
        logs = [path for path in files.paths() if "/topics/" in path and path.endswith(".log")]
        written = [(path, len(files.read_bytes(path).rstrip(b"\0"))) for path in logs]
        written = [(path, size) for path, size in written if size]
        if not written:
            return
        if machine.process is not None:
            machine.cut_power(self._rng.choice(KEEPS))
            self._restart_later(machine)
        path, size = self._rng.choice(written)
        position = self._rng.randrange(size)
        if self._rng.random() < 0.5:
            position = max(0, size - 1 - self._rng.randrange(200))
        if position < len(files.read_bytes(path)):
            files.flip_bit(path, position, self._rng.randrange(8))
            self._note(f"bit flipped at {position} of {size} in {path} on {machine.node_id}")

    def _may_lose(self) -> bool:
        """Return whether the victim may lose its copies: all other machines must have theirs."""
        if self._has_lost or not self._world.is_whole():
            return False
        if any(part.is_at_risk for part in self._world.parts):
            return False
        self._has_lost = True
        self._world.checker.on_loss()
        return True

    def _wipe(self, machine: "Machine") -> None:
        """Start the victim with an empty directory."""
        machine = self._world.machines[self._victim]
        if self._may_lose():
            self._note(f"directory of {machine.node_id} emptied")
            machine.cut_power("none")
            machine.wipe()
            self._restart_later(machine)

    def _lose_raft_log(self, machine: "Machine") -> None:
        """Start the victim without its Raft state, as if an operator had removed a damaged Raft log."""
        machine = self._world.machines[self._victim]
        if self._may_lose():
            self._note(f"raft folder of {machine.node_id} lost")
            machine.cut_power("none")
            machine.files.remove_tree("/data/raft")
            machine.files.crash(self._rng, "all")
            self._world.checker.on_raft_loss(machine.node_id)
            self._restart_later(machine)

    # Machines that no partition needs.

    def _replace(self, machine: "Machine") -> None:
        """Stop an observer, and start it with an empty directory once no partition needs it.

        No partition may start to need it later either. A fenced observer may still be unfenced after it stopped: as
        late as its last heartbeat and the proposer of the change allow.
        """
        observers = self._world.node_ids[len(self._world.voter_ids) :]
        if not observers:
            return
        machine = self._world.machines[self._rng.choice(observers)]
        if machine.process is not None and not self._is_fenced(machine.node_id):
            self._note(f"power cut of {machine.node_id}, which is to be replaced")
            machine.cut_power(self._rng.choice(KEEPS))
            self._later(REPLACE_S, self._maybe_empty, machine, REPLACE_TRIES)

    def _maybe_empty(self, machine: "Machine", tries: int) -> None:
        if machine.process is not None:
            # Another fault has already started the machine.
            return
        if not self._counts(machine.node_id) and not self._may_restore(machine):
            self._note(f"directory of {machine.node_id} emptied, which nobody counts on")
            self.replaced += 1
            machine.wipe()
        elif tries:
            self._later(REPLACE_S, self._maybe_empty, machine, tries - 1)
            return
        self._restart_later(machine)

    def _counts(self, node_id: int) -> bool:
        """Return whether a partition may elect the node, or whether it may become in sync: a fenced node cannot."""
        partitions = self._world.checker.newest_applied.partitions.values()
        return not self._is_fenced(node_id) or any(
            node_id in (*state.isr, *state.eligible) for state in partitions
        )

    def _may_restore(self, machine: "Machine") -> bool:
        """Return whether the machine has a sound copy, not in sync, of a partition with a damaged copy elsewhere."""
        partitions = self._world.checker.newest_applied.partitions
        return any(
            part.is_rotten(other, key)
            for key, state in partitions.items()
            if machine.files_of(key)
            for other in state.replicas
            if other != machine.node_id
            for part in self._world.parts
        )

    def _is_fenced(self, node_id: int) -> bool:
        broker = self._world.checker.newest_applied.brokers.get(node_id)
        return broker is not None and broker.is_fenced

    # The quorum's responses.

    def _lose_answers(self, machine: "Machine") -> None:
        process = machine.process
        if process is None or process.node is None:
            return
        if process.lost_answers is None:
            process.lost_answers = LostAnswers(process.node.quorum, self._rng, self.fates)
        fates = self._rng.choices(FATES, k=PROPOSALS)
        self._note(f"answers of the quorum to {machine.node_id}: {fates}")
        process.lost_answers.fates += fates

    # Operations of administrators.

    def _transfer(self, machine: "Machine") -> None:
        process = machine.process
        if process is not None and process.node is not None and process.ports is not None:
            self._note(f"raft leadership leaves {machine.node_id}")
            quorum = process.node.quorum
            thread, driver = quorum._thread, quorum._driver
            thread.call(lambda: driver.guarded(_transfer_leadership))

    def _compact(self, machine: "Machine") -> None:
        process = machine.process
        if process is not None and process.node is not None:
            quorum = process.node.quorum
            thread, driver = quorum._thread, quorum._driver
            thread.call(lambda: driver.guarded(lambda core: core.force_compaction()))

    def _grow(self, machine: "Machine") -> None:
        """Add commands to the metadata log, so that it is compacted."""
        self._world.clients.make_noise()

    def _move(self, machine: "Machine") -> None:
        """Move a partition to other nodes, or to another leader among its replicas."""
        del machine
        image = self._world.checker.newest_image()
        if not image.partitions:
            return
        key, state = self._rng.choice(list(image.partitions.items()))
        topic = image.topics[key[0]].name
        count = min(len(state.settled), len(self._world.node_ids))
        replicas = tuple(self._rng.sample(self._world.node_ids, count))
        target = ReplicaTarget(topic=topic, partition=key[1], replicas=replicas)
        limit = self._rng.choice((0, 1))
        self._reassign(ReassignmentRequest(partitions=(target,), max_concurrent=limit))

    def _drain(self, machine: "Machine") -> None:
        if len(self._world.node_ids) > len(self._world.voter_ids):
            self._reassign(ReassignmentRequest(drain=machine.node_id))

    def _reassign(self, request: ReassignmentRequest) -> None:
        self._note(f"move {request.partitions or request.drain}")
        self._world.clients.call(lambda ports: ports.reassignments.reassign(request))

    def _cancel_moves(self, machine: "Machine") -> None:
        del machine
        self._note("moves cancelled")
        self._world.clients.call(lambda ports: ports.reassignments.cancel(None, None))


def _transfer_leadership(core: RaftCore) -> None:
    core.transfer_leadership()
