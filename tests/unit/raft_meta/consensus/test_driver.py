"""The driver: many kicks are one tick, a timer when something is due, and an end at the first exception."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from raft_meta.consensus.driver import Driver, LoopThread


class FakeCore:
    """Counts ticks; ``due_in`` seconds from now it wants the next one."""

    def __init__(self) -> None:
        self.ticks = 0
        self.due_in = 3600.0
        self.error: Exception | None = None
        self.ticked = asyncio.Event()
        self.is_abandoned = False
        self.steps: list[str] = []
        self.sync_error: Exception | None = None

    @property
    def wal(self) -> "FakeCore":
        return self

    def abandon(self) -> None:
        self.is_abandoned = True

    def advance(self) -> None:
        self.ticks += 1
        self.steps.append("advance")
        self.ticked.set()
        if self.error is not None:
            raise self.error

    def sync(self) -> None:
        self.steps.append("sync")
        if self.sync_error is not None:
            raise self.sync_error

    def next_due(self) -> float:
        return asyncio.get_running_loop().time() + self.due_in


class Bench:
    def __init__(self) -> None:
        self.core = FakeCore()
        self.after: list[int] = []
        self.fatal: list[BaseException] = []
        self.driver = Driver(
            asyncio.get_running_loop(),
            on_tick=self._on_tick,
            on_fatal=self.fatal.append,
        )
        self.driver.start(self.core)  # type: ignore[arg-type]  # a fake

    def _on_tick(self) -> None:
        self.after.append(self.core.ticks)
        self.core.steps.append("answer")

    async def ticked(self) -> None:
        self.core.ticked.clear()
        await self.core.ticked.wait()


async def test_starting_ticks_once() -> None:
    bench = Bench()
    await bench.ticked()
    assert bench.after == [1]


async def test_messages_and_answers_leave_before_the_sync_of_what_is_next() -> None:
    bench = Bench()
    await bench.ticked()
    assert bench.core.steps == ["advance", "answer", "sync"]


async def test_a_failed_sync_is_fatal() -> None:
    bench = Bench()
    bench.core.sync_error = OSError("bad disk")
    await bench.ticked()
    assert bench.fatal == [bench.core.sync_error]
    assert bench.core.is_abandoned
    assert bench.driver.core is None


async def test_many_kicks_are_one_tick() -> None:
    bench = Bench()
    await bench.ticked()
    for _ in range(10):
        bench.driver.kick()
    await bench.ticked()
    assert bench.core.ticks == 2


async def test_a_core_that_is_due_is_ticked_without_a_kick() -> None:
    bench = Bench()
    bench.core.due_in = 0.0
    await bench.ticked()
    await bench.ticked()
    assert bench.core.ticks == 2
    bench.driver.stop()


def test_a_timer_of_uvloop_that_is_due_at_once_is_looked_at_again() -> None:
    async def run() -> list[BaseException]:
        bench = Bench()
        bench.core.due_in = -1.0
        for _ in range(20):
            bench.driver.kick()
            await bench.ticked()
        bench.driver.stop()
        return bench.fatal

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == []


async def test_an_earlier_due_moves_the_timer() -> None:
    bench = Bench()
    await bench.ticked()
    bench.core.due_in = 0.0
    bench.driver.kick()
    await bench.ticked()
    await bench.ticked()
    assert bench.core.ticks == 3
    bench.driver.stop()


async def test_an_action_is_followed_by_a_tick() -> None:
    bench = Bench()
    await bench.ticked()
    seen: list[object] = []
    bench.driver.guarded(seen.append)
    await bench.ticked()
    assert seen == [bench.core]


async def test_what_comes_together_is_followed_by_one_tick_at_once() -> None:
    bench = Bench()
    await bench.ticked()
    seen: list[object] = []
    bench.driver.do(seen.append)
    bench.driver.do(seen.append)
    assert bench.core.ticks == 1
    bench.driver.tick()
    assert (seen, bench.core.ticks) == ([bench.core, bench.core], 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.core.ticks == 2


async def test_a_core_that_failed_at_one_action_is_not_ticked() -> None:
    bench = Bench()
    await bench.ticked()

    def broken(_core: object) -> None:
        raise ValueError("broken")

    bench.driver.do(broken)
    bench.driver.tick()
    assert (len(bench.fatal), bench.core.ticks) == (1, 1)


async def test_what_a_tick_raises_is_fatal_once() -> None:
    bench = Bench()
    bench.core.error = ValueError("broken")
    await bench.ticked()
    assert [str(error) for error in bench.fatal] == ["broken"]
    assert bench.core.is_abandoned
    assert bench.driver.core is None
    bench.driver.kick()
    bench.driver.guarded(lambda _core: pytest.fail("a dead core was used"))
    await asyncio.sleep(0)
    assert bench.core.ticks == 1


async def test_what_an_action_raises_is_fatal() -> None:
    bench = Bench()
    await bench.ticked()

    def broken(_core: object) -> None:
        raise ValueError("broken")

    bench.driver.guarded(broken)
    assert len(bench.fatal) == 1


async def test_a_stopped_driver_gives_its_core_back_and_ticks_no_more() -> None:
    bench = Bench()
    await bench.ticked()
    bench.driver.kick()
    assert bench.driver.stop() is bench.core
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.core.ticks == 1
    bench.driver.close()


async def run_in_background(
    bench: Bench, job: Callable[[], None]
) -> "asyncio.Future[BaseException | None]":
    finished: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    bench.driver.in_background(job, finished.set_result)
    await finished
    return finished


async def test_a_job_in_the_background_reports_how_it_ended() -> None:
    bench = Bench()
    await bench.ticked()
    assert (await run_in_background(bench, lambda: None)).result() is None

    def broken() -> None:
        raise ValueError("broken")

    assert isinstance((await run_in_background(bench, broken)).result(), ValueError)
    bench.driver.close()


async def test_a_thread_runs_coroutines_and_ends() -> None:
    thread = LoopThread("test")
    thread.start()

    async def answer() -> int:
        return 42

    assert await thread.run(answer()) == 42
    await thread.stop()
    assert not thread.call(lambda: None)
    await thread.stop()
