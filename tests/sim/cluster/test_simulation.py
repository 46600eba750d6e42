"""Run a few seeds of the simulation of a whole cluster; ``python -m tests.sim.cluster`` runs any number."""

import asyncio
import gc
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from immutables import Map

from http_api.ports.node import Ports, ReassignmentRequest, ReplicaTarget
from milena.model.types import WallMs
from node import wiring
from node.process import memory
from node.wiring import Node
from raft_meta.machine.commands import CheckImage
from raft_meta.machine.image import Image, Partition, Topic
from raft_meta.machine.marks import Comparison, ImageMarks
from tests.sim.cluster import platform
from tests.sim.cluster import world as worlds
from tests.sim.cluster.__main__ import run
from tests.sim.cluster.faults import LATER_KINDS
from tests.sim.cluster.invariants import Ledger, ViolationError
from tests.sim.cluster.machine import NodeProcess
from tests.sim.cluster.parts import LATER_PARTS
from tests.sim.cluster.parts.compacted import CompactedTopic
from tests.sim.cluster.parts.conditional import ConditionalTopic
from tests.sim.cluster.parts.growing import GrowingTopic
from tests.sim.cluster.parts.moving import MovingTopic
from tests.sim.cluster.parts.rotting import RottingTopic
from tests.sim.cluster.parts.transactional import TransactionalTopics
from tests.sim.cluster.threads import Process, Scheduler, SimLoop
from tests.sim.cluster.world import TOPIC, Options, World, run_world
from tests.sim.seeds import found, seeds
from tests.support.disk.memory_files import MemoryFiles

DIVERGES_AT = 80
LOAD = 5
"""The least number of commands between two checks."""
FOUND = Path(__file__).parents[1] / "seeds.txt"


@pytest.mark.parametrize("seed", seeds(5, quick=2))
def test_promises_hold_under_faults(seed: int) -> None:
    world = run_world(seed)
    assert world.problems == [], [*world.lines, Options().command(seed)]
    assert world.history.acknowledged > 5


@pytest.mark.parametrize(("seed", "why"), found(FOUND))
def test_what_was_found_once_stays_fixed(seed: int, why: str) -> None:
    assert run_world(seed).problems == [], why


def test_a_seed_repeats_itself() -> None:
    one, two = (run_world(3, Options(seconds=5)) for _ in range(2))
    assert one.scheduler.digest == two.scheduler.digest
    assert one.scheduler.events == two.scheduler.events
    assert one.lines == two.lines
    assert one.history == two.history


@pytest.mark.deep
def test_another_seed_is_another_run() -> None:
    one, two = (run_world(seed, Options(seconds=2)) for seed in (1, 2))
    assert one.scheduler.digest != two.scheduler.digest


def test_a_failure_names_the_command_that_replays_it() -> None:
    options = Options(nodes=5, seconds=8, observers=1, kinds=("kill", "pause"), parts=())
    assert options.command(17) == (
        "python -m tests.sim.cluster --seed 17 --nodes 5 --seconds 8 --observers 1"
        " --faults kill,pause --parts none"
    )


def _diverge(world: World) -> list[int]:
    """Change the image of a node that does not lead, at some command; return a list that gets the node's id.

    The run's own check of images ignores this node.
    """
    checker = world.checker
    on_start, on_image = checker.on_start, checker._on_image
    odd: list[int] = []

    def watched(process: NodeProcess) -> None:
        on_start(process)
        node = process.node
        assert node is not None
        machine, apply = node._machine, node._machine.apply

        def apply_and_diverge(index: int, command: bytes) -> bytes:
            response = apply(index, command)
            if index >= DIVERGES_AT and not odd and not node.controller.is_active:
                odd.append(process.machine.node_id)
                image = machine.image
                machine.image = replace(image, next_producer_id=image.next_producer_id + 1)
            return response

        machine.apply = apply_and_diverge  # type: ignore[method-assign]

    def look_at_others(process: NodeProcess, image: Image) -> None:
        if process.machine.node_id not in odd:
            on_image(process, image)

    checker.on_start = watched  # type: ignore[method-assign]
    checker._on_image = look_at_others  # type: ignore[method-assign]
    return odd


@pytest.mark.parametrize("seed", [1, 3])
def test_a_node_whose_image_diverged_is_found_under_load(seed: int) -> None:
    """Other commands come between each mark and its check, so a check never follows its mark directly."""
    world = World(seed, Options(seconds=5, kinds=("grow",), observers=0, parts=()))
    odd = _diverge(world)
    checks: list[tuple[int, int]] = []
    take = ImageMarks.take

    def watch(self: ImageMarks, check: CheckImage, after: Image) -> Comparison | None:
        checks.append((check.index, after.index))
        return take(self, check, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageMarks, "take", watch)
        problems = world.run()
    assert problems, "nobody noticed"
    assert f"node {odd[0]} stopped itself: CorruptLogError(" in problems[0]
    # The check of the first mark after the change must find it, although commands come between mark and check.
    index, after = next(pair for pair in checks if pair[0] >= DIVERGES_AT)
    assert f"at index {index} has the hash" in problems[0]
    assert after - index > LOAD


def test_replicas_move_between_voters_and_observers() -> None:
    world = World(1, Options(observers=2, seconds=6, kinds=("move", "drain", "kill"), parts=()))
    in_sync: set[int] = set()

    def note(process: Process, loop: SimLoop) -> None:
        world._after_event(process, loop)
        for state in world.checker._newest.partitions.values():
            in_sync.update(state.isr)

    world.scheduler.after_event = note
    assert world.run() == [], world.lines
    assert {4, 5} & in_sync, "which of them a run ends with is chance"
    assert any("move" in line for line in world.lines)


def test_what_is_given_back_while_files_of_others_go_is_whole() -> None:
    """File removal is slow. A replica that waits for it comes back, and is complete and in sync before its turn."""
    world = World(1, Options(observers=0, parts=()))

    def states() -> list[Partition]:
        return list(world.checker._newest.partitions.values())

    async def move(*replicas: tuple[int, ...]) -> None:
        targets = (
            ReplicaTarget(topic=TOPIC, partition=partition, replicas=to)
            for partition, to in enumerate(replicas)
        )
        world.faults._reassign(ReassignmentRequest(partitions=tuple(targets)))
        await world.until(
            lambda: all(
                set(state.isr) == set(to) for state, to in zip(states(), replicas, strict=True)
            ),
            10,
            f"the replicas are not {replicas}",
        )

    async def strike(seconds: float) -> None:
        del seconds
        before = [state.replicas for state in states()]
        [idle] = {1, 2, 3} - {state.leader for state in states()}
        process = world.machines[idle].process
        assert process is not None
        process.work_ms = lambda: (
            1.0 if all(idle in state.replicas for state in states()) else 300.0
        )
        await move(*(tuple(n for n in replicas if n != idle) for replicas in before))
        await move(*before)
        await asyncio.sleep(2)

    world.faults.strike = strike  # type: ignore[method-assign]
    assert world.run() == [], world.lines


def test_partitions_are_added_and_records_deleted() -> None:
    world = run_world(2, Options(seconds=10, kinds=("kill", "isolate"), parts=("growing",)))
    assert world.problems == [], world.lines
    [part] = world.parts
    assert isinstance(part, GrowingTopic)
    assert part.clients.history.acknowledged > 5
    assert len([key for key in world.checker.ledgers if key[0] == part.clients.topic_id]) > 1
    assert any(part.clients.deleted.values())


def test_the_run_waits_for_who_adds_partitions_and_deletes_records_last() -> None:
    world = World(2, Options(seconds=4, kinds=("kill",), parts=("growing",)))
    [part] = world.parts
    assert isinstance(part, GrowingTopic)
    done = []

    def late(what: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def act() -> None:
            await world.until(lambda: world.has_healed, 60, "faults do not end")
            # All other clients have ended by then.
            await asyncio.sleep(10)
            done.append(what)

        return act

    part.clients._add_partitions = late("added")  # type: ignore[method-assign]
    part.clients._delete = late("deleted")  # type: ignore[method-assign]
    assert world.run() == [], world.lines
    assert done == ["added", "deleted"]


def test_the_run_waits_for_what_was_asked_last() -> None:
    """The run must also wait for a call whose response is ignored, so that its change is complete."""
    world = World(2, Options(seconds=4, kinds=("kill",), parts=()))
    done = []

    async def add(_: Ports) -> None:
        await asyncio.sleep(10)
        done.append("added")

    heal = world.faults.heal

    def heal_and_ask() -> None:
        heal()
        world.clients.call(add)

    world.faults.heal = heal_and_ask  # type: ignore[method-assign]
    assert world.run() == [], world.lines
    assert done == ["added"]


def test_a_call_that_ends_in_no_error_of_milena_is_a_problem() -> None:
    world = World(2, Options(seconds=4, kinds=("stall",), parts=()))

    async def fail(_: Ports) -> None:
        raise KeyError("of a node")

    world.faults._stall = lambda _: world.clients.call(fail)  # type: ignore[method-assign, assignment]
    assert "a call ended with KeyError('of a node')" in world.run()[0]


def test_partitions_that_are_gone_are_noticed_and_nodes_that_know_less_are_not() -> None:
    [part] = World(1, Options(parts=("growing",))).parts
    assert isinstance(part, GrowingTopic)
    one = Topic(
        topic_id="g",
        name="growing",
        partition_count=1,
        replication_factor=3,
        configs=Map(),
        created_ms=WallMs(1),
    )
    two = replace(one, partition_count=2)
    ids, later = Map({"growing": "g"}), Map({"g": two})
    part.check_count(Image(index=5, topic_ids=ids, topics=later))
    part.check_count(Image(index=4, topic_ids=ids, topics=Map({"g": one})))
    with pytest.raises(ViolationError, match="had 2 partitions, and has 1"):
        part.check_count(Image(index=6, topic_ids=ids, topics=Map({"g": one})))
    with pytest.raises(ViolationError, match="had 2 partitions, and has 0"):
        part.check_count(Image(index=7))


def test_logs_are_compacted() -> None:
    world = run_world(2, Options(seconds=8, kinds=("kill", "cut_power"), parts=("compacted",)))
    assert world.problems == [], world.lines
    [part] = world.parts
    assert isinstance(part, CompactedTopic)
    assert part.clients.history.acknowledged > 5
    assert part.runs > 0


def test_what_rots_is_found_and_restored() -> None:
    world = run_world(4, Options(seconds=12, kinds=("kill", "stall"), parts=("rotting",)))
    assert world.problems == [], world.lines
    [part] = world.parts
    assert isinstance(part, RottingTopic)
    assert part.clients.history.acknowledged > 5
    assert part.found > 0
    assert part.restored == part.rotted


def test_what_rots_last_is_found_and_restored_before_the_run_is_judged() -> None:
    world = World(4, Options(seconds=4, kinds=("kill",), parts=("rotting",)))
    [part] = world.parts
    assert isinstance(part, RottingTopic)

    async def rot_late() -> None:
        await world.until(lambda: world.has_healed, 60, "faults do not end")
        # All other clients have ended by then.
        await asyncio.sleep(10)
        part.rot()

    part.clients._rot = rot_late  # type: ignore[method-assign]
    assert world.run() == [], world.lines
    assert (part.rotted, part.found, part.restored) == (1, 1, 1)


def test_writers_that_name_their_offset_get_it_or_nothing() -> None:
    kinds = ("kill", "isolate", "cut_power", "stall")
    world = run_world(5, Options(seconds=8, kinds=kinds, parts=("conditional",)))
    assert world.problems == [], world.lines
    [part] = world.parts
    assert isinstance(part, ConditionalTopic)
    assert len(part.clients.holders) > 5
    assert part.clients.refused > 5


def test_transactions_take_effect_whole_or_not_at_all() -> None:
    kinds = ("kill", "isolate", "cut_power", "stall")
    world = run_world(5, Options(seconds=8, kinds=kinds, parts=("transactional",)))
    assert world.problems == [], world.lines
    [part] = world.parts
    assert isinstance(part, TransactionalTopics)
    assert part.committed > 5
    assert part.aborted > 5
    assert part.clients.most_open > 0


@pytest.mark.deep
def test_replicas_move_about_while_answers_of_the_quorum_get_lost() -> None:
    kinds = ("kill", "isolate", "lose_answers", "replace")
    options = Options(observers=2, seconds=12, kinds=kinds, parts=("moving",))
    arrivals = replaced = 0
    fates: Counter[str] = Counter()
    for seed in (3, 5, 7):
        world = run_world(seed, options)
        assert world.problems == [], [*world.lines, options.command(seed)]
        [part] = world.parts
        assert isinstance(part, MovingTopic)
        assert part.clients.history.acknowledged > 5
        arrivals += part.arrivals
        replaced += world.faults.replaced
        fates += world.faults.fates
    assert arrivals > 3
    assert replaced > 0
    assert set(fates) == {"refused", "lost", "late", "vanished"}


def test_only_a_machine_that_nobody_counts_on_is_emptied() -> None:
    world = World(1, Options(observers=2, parts=()))
    counts: list[dict[int, bool]] = []

    async def strike(seconds: float) -> None:
        del seconds
        machine = world.machines[4]
        target = ReplicaTarget(topic=TOPIC, partition=0, replicas=(4, 1, 2))
        world.faults._reassign(ReassignmentRequest(partitions=(target,)))
        states = world.checker._newest.partitions

        async def look(condition: Callable[[], bool]) -> None:
            await world.until(condition, 20, "it does not come to that")
            counts.append({node_id: world.faults._counts(node_id) for node_id in (4, 5)})

        await look(lambda: 4 in world.checker._newest.partitions[next(iter(states))].isr)
        machine.cut_power("all")
        await look(lambda: world.checker._newest.brokers[4].is_fenced)

    world.faults.strike = strike  # type: ignore[method-assign]
    assert world.run() == [], world.lines
    # A running node without data may still become in sync at any time.
    assert counts == [{4: True, 5: True}, {4: False, 5: True}]


def test_a_partition_that_takes_no_write_in_the_end_is_a_problem() -> None:
    world = World(1, Options(seconds=2, kinds=("stall",), parts=()))

    async def refuse(partition: int) -> bool:
        return partition != 1

    world.clients._takes_a_write = refuse  # type: ignore[method-assign]
    assert "liveness: t/1 takes no write" in world.run()[0]


def test_the_call_of_a_client_that_hangs_up_is_cancelled() -> None:
    world = World(1, Options(parts=()))
    ended: list[str] = []

    async def wait(_: Ports) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("in the node")
            raise

    async def strike(seconds: float) -> None:
        del seconds
        process = world.machines[1].process
        assert process is not None
        with pytest.raises(TimeoutError):
            await process.ask(wait, patience_s=1.0)
        await asyncio.sleep(0.1)
        ended.append("at the client")

    world.faults.strike = strike  # type: ignore[method-assign]
    assert world.run() == [], world.lines
    assert ended == ["in the node", "at the client"]


def test_what_came_later_leaves_seeds_alone_that_have_not_drawn_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(seconds=2)
    seed = next(seed for seed in range(20) if not World(seed, options).later)
    digest = run_world(seed, options).digest
    monkeypatch.setattr(worlds, "LATER_CHANCE", 0.0)
    assert run_world(seed, options).digest == digest
    monkeypatch.setattr(worlds, "LATER_CHANCE", 1.0)
    monkeypatch.setattr(worlds, "LATER_PART_CHANCE", 1.0)
    world = World(seed, options)
    assert {*LATER_KINDS} <= {*world.faults._kinds}
    assert world.later == {*LATER_KINDS, *LATER_PARTS}
    assert any(isinstance(part, MovingTopic) for part in world.parts)


@pytest.mark.parametrize("name", platform.PRODUCTION)
def test_what_is_simulated_is_the_very_production_object(name: str) -> None:
    """Each class is the object in its production module, and no class of the tests replaces it."""
    made = platform.PRODUCTION[name]
    module = importlib.import_module(made.__module__)
    assert getattr(module, made.__qualname__) is made
    assert module.__name__.split(".")[0] in {"node", "raft_meta", "storage"}


def test_the_running_node_is_made_of_production_objects() -> None:
    """Check the classes of the objects within a running node."""
    world = World(1, Options(seconds=0.5))
    kinds: set[type] = set()
    judge = world.scheduler.after_event

    def look(process: Process, loop: SimLoop) -> None:
        judge(process, loop)
        node = getattr(process, "node", None)
        if node is not None and node.quorum._driver.core is not None and node.replicas.runners:
            core = node.quorum._driver.core
            runner = next(iter(node.replicas.runners.values()))
            kinds.update(map(type, (
                node, node.quorum, node.quorum._driver, node.quorum._transport, core, core.wal,
                core.library, node._machine, node.directory, node.replicas, runner, runner.log,
                node.controller, node.membership, node.produce, node.reads, node.fetch_server,
                node.peer, node.peer_server,
            )))  # fmt: skip

    world.scheduler.after_event = look
    assert world.run() == []
    made = {kind for kind in platform.PRODUCTION.values() if isinstance(kind, type)}
    assert len(kinds) == 19
    assert kinds <= made, kinds - made


def test_after_an_event_that_nothing_was_looked_at_nothing_has_moved() -> None:
    """Check this after every event of every thread, in a run with a part that works on logs."""
    world = World(5, Options(seconds=5, kinds=("kill", "isolate", "move"), parts=("compacted",)))
    judge, watches = world.scheduler.after_event, world.checker._watches
    looked, passed = [0], [0]

    def look(process: Process, loop: SimLoop) -> None:
        node = getattr(process, "node", None)
        if process.is_touched or process.is_dead or node is None:
            looked[0] += 1
        elif isinstance(process, NodeProcess) and loop is process.data:
            passed[0] += 1
            known = watches[process.incarnation]
            assert [watch.runner for watch in known] == [*node.replicas.runners.values()]
            assert not any(watch.has_moved() for watch in known)
            return
        judge(process, loop)

    world.scheduler.after_event = look
    with pytest.MonkeyPatch.context() as patch:
        # Watch the loop of the data thread as well.
        always = property(lambda self: True, lambda self, flag: None)
        patch.setattr(SimLoop, "is_watched", always, raising=False)
        problems = world.run()
    assert problems == []
    assert passed[0] > looked[0] > 1_000


def test_nothing_is_left_of_a_run() -> None:
    """Thousands of runs share a process."""
    # The log capture keeps references until the test ends.
    platform.quiet()
    for seed in range(2):
        run(Options(seconds=1), seed)
    logging.disable(logging.NOTSET)
    gc.unfreeze()
    kinds = World, Scheduler, Process, MemoryFiles, Ledger, Node
    assert [thing for thing in gc.get_objects() if isinstance(thing, kinds)] == []


def test_the_patched_platform_is_put_back() -> None:
    before = {name: getattr(wiring, name) for name in ("OsFiles", "die", "uuid", "socket")}
    run_world(1, Options(seconds=0.2))
    assert all("__setattr__" not in vars(kind) for kind in platform.WATCHED)
    assert before == {name: getattr(wiring, name) for name in before}


def test_a_killed_process_runs_no_more() -> None:
    scheduler = Scheduler(1)
    process = Process(scheduler, "one")
    other = Process(scheduler, "other").loop()
    loop = process.loop()
    ran: list[str] = []
    loop.call_later(1, ran.append, "killed")
    process.is_dead = True
    other.call_later(2, ran.append, "other")
    other.call_later(3, scheduler.stop)
    scheduler.run()
    assert ran == ["other"]


def test_a_paused_process_does_later_what_was_due() -> None:
    scheduler = Scheduler(1)
    process, other = Process(scheduler, "one"), Process(scheduler, "other").loop()
    loop = process.loop()
    ran: list[tuple[str, float]] = []
    loop.call_later(1, lambda: ran.append(("late", scheduler.now)))
    process.pause()
    other.call_later(5, process.resume)
    other.call_later(6, scheduler.stop)
    scheduler.run()
    assert [name for name, _ in ran] == ["late"]
    assert ran[0][1] >= 5


@pytest.mark.deep
def test_a_run_does_not_depend_on_those_before_it() -> None:
    """The command that a failure prints must also fail alone, as the seed failed among others."""
    options = Options(seconds=3)
    first = run_world(11, options).digest
    run_world(12, options)
    assert run_world(11, options).digest == first


@pytest.mark.deep
def test_a_run_does_not_depend_on_what_the_process_keeps_in_its_heap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(seconds=3)
    first = run_world(11, options).digest
    monkeypatch.setattr(memory, "kept_bytes", lambda: 1 << 40)
    assert run_world(11, options).digest == first
