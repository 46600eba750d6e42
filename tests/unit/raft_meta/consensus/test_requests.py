"""Requests: repeated while they were certainly not applied, answered once, never failed when unknown."""

import asyncio
from collections.abc import Callable

import pytest

from milena.model.errors import FateUnknownError, NoQuorumError
from raft_meta.consensus.core import RaftCore
from raft_meta.consensus.library import Failure
from raft_meta.consensus.requests import Request, Requests


class FakeCore:
    """Takes commands and lets the test answer them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, bytes | None, Callable[..., None]]] = []
        self.queued: set[int] = set()
        self.submitted = asyncio.Event()

    def _add(self, command: bytes | None, callback: Callable[..., None]) -> int:
        ticket = len(self.waiting) + 1
        self.waiting.append((ticket, command, callback))
        self.queued.add(ticket)
        self.submitted.set()
        return ticket

    def propose(self, command: bytes, callback: Callable[..., None]) -> int:
        return self._add(command, callback)

    def barrier(self, callback: Callable[..., None]) -> int:
        return self._add(None, callback)

    def withdraw_barrier(self, ticket: int) -> bool:
        return self.withdraw(ticket)

    def withdraw(self, ticket: int) -> bool:
        if ticket not in self.queued:
            return False
        self.queued.discard(ticket)
        return True


class FakeDriver:
    def __init__(self, core: FakeCore | None) -> None:
        self.core = core
        self.ticks = 0

    def do(self, action: Callable[[RaftCore], None]) -> None:
        action(self.core)  # type: ignore[arg-type]  # a fake

    def tick(self) -> None:
        self.ticks += 1

    def kick(self) -> None:
        self.ticks += 1


class SameLoop:
    """Stands in for the thread: everything on the test's own loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_stopped = False

    def call(self, callback: Callable[[], object]) -> bool:
        if not self.is_stopped:
            self.loop.call_soon(callback)
        return not self.is_stopped


class Bench:
    def __init__(self, *, has_core: bool = True) -> None:
        self.core = FakeCore()
        self.thread = SameLoop()
        self.driver = FakeDriver(self.core if has_core else None)
        self.requests = Requests(self.thread, self.driver)  # type: ignore[arg-type]  # fakes
        self.request: Request | None = None

    def ask(self, command: bytes | None = b"x") -> "asyncio.Task[bytes | int]":
        self.request = Request(command, 60_000)
        return asyncio.create_task(self.requests.ask(self.request))

    async def submitted(self, count: int = 1) -> None:
        while len(self.core.waiting) < count:
            self.core.submitted.clear()
            await self.core.submitted.wait()

    def answer(self, result: bytes | int | None, failure: Failure | None, number: int = 0) -> None:
        ticket, _, callback = self.core.waiting[number]
        self.core.queued.discard(ticket)
        callback(result, failure)
        self.requests.deliver()

    def expire(self) -> None:
        assert self.request is not None
        self.requests._expire(self.request)


async def test_a_response_reaches_the_caller() -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.answer(b"done", None)
    assert await task == b"done"


async def test_a_barrier_gives_its_index() -> None:
    bench = Bench()
    task = bench.ask(None)
    await bench.submitted()
    bench.answer(17, None)
    assert await task == 17


@pytest.mark.parametrize(
    "failure",
    [Failure.QUEUE_FULL, Failure.MISSING_LEADER, Failure.DISCARDED, Failure.NOT_LEADER],
)
async def test_a_definite_failure_is_repeated(failure: Failure) -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.answer(None, failure)
    await bench.submitted(2)
    bench.answer(b"done", None, number=1)
    assert await task == b"done"


@pytest.mark.parametrize("failure", [Failure.LEADER_CHANGED, Failure.UNKNOWN_OUTCOME])
async def test_an_unknown_fate_is_told_as_such(failure: Failure) -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.answer(None, failure)
    with pytest.raises(FateUnknownError):
        await task
    assert len(bench.core.waiting) == 1


async def test_a_barrier_for_which_the_queue_was_full_is_repeated() -> None:
    bench = Bench()
    task = bench.ask(None)
    await bench.submitted()
    bench.answer(None, Failure.QUEUE_FULL)
    await bench.submitted(2)
    bench.answer(20, None, number=1)
    assert await task == 20


async def test_a_full_disk_is_told_at_once() -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.answer(None, Failure.REQUEST_DENIED)
    with pytest.raises(NoQuorumError, match="disk is full"):
        await task


async def test_what_never_left_the_queue_was_certainly_not_applied() -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.expire()
    with pytest.raises(NoQuorumError, match="within 60000 ms"):
        await task
    assert bench.core.queued == set()


async def test_what_left_the_queue_and_was_not_answered_is_unknown() -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.core.queued.clear()
    bench.expire()
    with pytest.raises(FateUnknownError):
        await task


async def test_a_barrier_that_was_not_answered_changed_nothing() -> None:
    bench = Bench()
    task = bench.ask(None)
    await bench.submitted()
    bench.core.queued.clear()
    bench.expire()
    with pytest.raises(NoQuorumError):
        await task


async def test_a_late_answer_after_the_deadline_is_ignored() -> None:
    bench = Bench()
    task = bench.ask()
    await bench.submitted()
    bench.core.queued.clear()
    bench.expire()
    bench.answer(b"late", None)
    bench.expire()
    with pytest.raises(FateUnknownError):
        await task


async def test_requests_that_are_handed_over_together_are_one_tick() -> None:
    bench = Bench()
    asked = [bench.ask() for _ in range(3)]
    await bench.submitted(3)
    assert bench.driver.ticks == 1
    for number, task in enumerate(asked):
        bench.answer(b"done", None, number)
        assert await task == b"done"


async def test_a_request_waits_for_the_core_to_start() -> None:
    bench = Bench(has_core=False)
    task = bench.ask()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.core.waiting == []
    bench.driver.core = bench.core
    await bench.submitted()
    bench.answer(b"done", None)
    assert await task == b"done"


async def test_closing_answers_everything() -> None:
    bench = Bench()
    sent = bench.ask()
    await bench.submitted()
    barrier = bench.ask(None)
    await bench.submitted(2)
    bench.requests.close()
    with pytest.raises(FateUnknownError):
        await sent
    with pytest.raises(NoQuorumError):
        await barrier
    with pytest.raises(NoQuorumError):
        await bench.ask()


async def test_a_stopped_thread_is_told_at_once() -> None:
    bench = Bench()
    bench.thread.is_stopped = True
    with pytest.raises(NoQuorumError, match="stopped"):
        await bench.ask()


async def test_a_caller_that_gave_up_does_not_disturb_the_others() -> None:
    bench = Bench()
    gone = bench.ask()
    await bench.submitted()
    kept = bench.ask()
    await bench.submitted(2)
    gone.cancel()
    await asyncio.sleep(0)
    bench.answer(b"1", None)
    bench.answer(b"2", None, number=1)
    assert await kept == b"2"
