"""Rules of comparing images: under load, on a worker thread, within bounds, and never to a sound node's harm."""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

import pytest

from milena.model.errors import CorruptLogError
from node.metadata import image_checks
from node.metadata.store import MetadataMachine, MetadataStore
from raft_meta.machine import codec
from raft_meta.machine.commands import AllocateProducer, CheckImage, InitCluster
from raft_meta.machine.image import Image
from tests.support.fakes.quorum import FakeQuorum, SharedLog
from tests.support.time.virtual_time import LoopClock, current_loop, run_job, settle, virtual

P = ParamSpec("P")
T = TypeVar("T")

FIRST = CheckImage(index=0, image_hash=b"")


class HeldThreads(ThreadPoolExecutor):
    """The loop's worker threads: each job runs when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        self.held.append(lambda: run_job(future, functools.partial(fn, *args, **kwargs)))
        return future

    async def run(self) -> int:
        """What was submitted and what comes of it; how many jobs that were."""
        count = 0
        while self.held:
            self.held.pop(0)()
            count += 1
            await settle()
        return count


class Node:
    """One node's machine and store on a shared log."""

    def __init__(self, log: SharedLog, node_id: int) -> None:
        self.failures: list[BaseException] = []
        self.machine = MetadataMachine()
        self.quorum = FakeQuorum(log, node_id, self.machine)
        self.metadata = MetadataStore(
            node_id=node_id,
            incarnation=node_id,
            machine=self.machine,
            quorum=self.quorum,
            clock=LoopClock(),
            on_failure=self.failures.append,
        )

    def diverge(self) -> None:
        """Its memory is not what the log says any more."""
        image = self.machine.image
        self.machine.image = replace(image, next_producer_id=image.next_producer_id + 1)

    async def load(self) -> None:
        """Other commands."""
        for _ in range(5):
            await self.metadata.propose(AllocateProducer(name=None), timeout_ms=1_000)
        await settle()

    async def check(self, threads: HeldThreads) -> CheckImage:
        """As a controller does."""
        while (check := self.metadata.checks.next_check()) is None:
            assert await threads.run() == 1
        await self.metadata.propose(check, timeout_ms=1_000)
        await settle()
        return check


class Nodes:
    """Three of them; the first one is the controller. ``hashes``: indexes of images that were hashed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = SharedLog(leader_id=1)
        self.all = [Node(self.log, node_id) for node_id in (1, 2, 3)]
        self.first, self.second, self.third = self.all
        self.threads = HeldThreads()
        self.hashes: list[int] = []
        current_loop().set_default_executor(self.threads)
        monkeypatch.setattr(image_checks, "image_hash", self._hash)

    def _hash(self, image: Image) -> bytes:
        self.hashes.append(image.index)
        return codec.image_hash(image)

    async def start(self) -> "Nodes":
        for node in self.all:
            node.metadata.checks.begin()
        init = InitCluster(cluster_id="c", voters=(1, 2, 3), feature_level=1)
        await self.first.metadata.propose(init, timeout_ms=1_000)
        assert await self.first.check(self.threads) == FIRST
        return self

    @property
    def failures(self) -> list[int]:
        """How many each node has."""
        return [len(node.failures) for node in self.all]


@virtual
async def test_a_node_that_diverged_is_found_under_load_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = await Nodes(monkeypatch).start()
    nodes.second.diverge()
    for _ in range(2):
        await nodes.first.load()
        check = await nodes.first.check(nodes.threads)
        await nodes.first.load()
        await nodes.threads.run()
    assert nodes.failures == [0, 1, 0]
    [error] = nodes.second.failures
    assert isinstance(error, CorruptLogError)
    assert f"index {check.index} " in str(error)
    assert check.image_hash.hex() in str(error)


@virtual
async def test_nothing_is_hashed_but_on_worker_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = await Nodes(monkeypatch).start()
    await nodes.first.load()
    assert nodes.first.metadata.checks.next_check() is None
    await settle()
    assert nodes.hashes == []
    await nodes.threads.run()
    check = await nodes.first.check(nodes.threads)
    assert nodes.hashes == [check.index], "others were told, and have not begun"
    assert await nodes.threads.run() == 2
    assert nodes.hashes == [check.index] * 3, "each node once"
    assert nodes.failures == [0, 0, 0]


@virtual
async def test_a_node_that_came_by_a_snapshot_between_two_marks_is_not_harmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = await Nodes(monkeypatch).start()
    await nodes.first.load()
    nodes.second.diverge()
    nodes.second.machine.restore(nodes.first.machine.snapshot()())
    await nodes.first.load()
    check = await nodes.first.check(nodes.threads)
    await nodes.threads.run()
    assert nodes.hashes == [check.index] * 2, "the first and the third"
    assert nodes.second.machine.marks.last is nodes.second.machine.image
    await nodes.first.load()
    await nodes.first.check(nodes.threads)
    assert await nodes.threads.run() == 2
    assert nodes.failures == [0, 0, 0]


@virtual
async def test_marks_are_no_part_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = await Nodes(monkeypatch).start()
    nodes.second.machine.marks.forget()
    first, second = (b"".join(node.machine.snapshot()()) for node in nodes.all[:2])
    assert first == second


@virtual
async def test_a_day_of_checks_at_once_costs_two_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = await Nodes(monkeypatch).start()
    for _ in range(50):
        await nodes.first.check(nodes.threads)
        await nodes.threads.run()
    late = Node(SharedLog(commands=nodes.log.commands, leader_id=1), 3)
    nodes.hashes.clear()
    late.metadata.checks.begin()
    late.quorum.catch_up()
    await settle()
    assert await nodes.threads.run() == 2
    assert len(nodes.hashes) == 2
    assert late.failures == []


@virtual
async def test_a_controller_that_is_wrong_does_not_stop_sound_nodes_at_every_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = await Nodes(monkeypatch).start()
    nodes.first.diverge()
    for _ in range(2):
        await nodes.first.check(nodes.threads)
        await nodes.threads.run()
    assert nodes.failures == [0, 1, 1]
    again = Node(nodes.log, 4)
    again.quorum.catch_up()
    await settle()
    again.metadata.checks.begin()
    assert await nodes.threads.run() == 0
    assert again.failures == []
    # It judges what comes from now on.
    await nodes.first.check(nodes.threads)
    await nodes.threads.run()
    assert len(again.failures) == 1


@virtual
async def test_a_check_of_another_controller_is_compared_with_what_is_being_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = await Nodes(monkeypatch).start()
    assert nodes.first.metadata.checks.next_check() is None
    mark = nodes.first.machine.marks.last
    assert mark is not None
    other = CheckImage(index=mark.index, image_hash=b"another")
    await nodes.first.metadata.propose(other, timeout_ms=1_000)
    await settle()
    await nodes.threads.run()
    assert nodes.failures == [1, 1, 1]
    assert nodes.hashes == [mark.index] * 3


@virtual
async def test_two_checks_of_one_mark_compare_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = await Nodes(monkeypatch).start()
    check = await nodes.first.check(nodes.threads)
    await nodes.second.metadata.propose(replace(check, image_hash=b"late"), timeout_ms=1_000)
    await nodes.threads.run()
    assert nodes.failures == [0, 0, 0]


@virtual
async def test_an_image_that_cannot_be_hashed_stops_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = await Nodes(monkeypatch).start()

    def broken(image: Image) -> bytes:
        raise AssertionError(f"an image without bytes: {image.index}")

    monkeypatch.setattr(image_checks, "image_hash", broken)
    assert nodes.first.metadata.checks.next_check() is None
    await nodes.threads.run()
    assert nodes.failures == [1, 0, 0]
