"""Time of a loop passes while it runs, and only then."""

import asyncio

import pytest

from milena.reading.patience import Patience
from spark_ext.reading.paused_loop import PausedClock, PausedLoop


@pytest.fixture
def clock(monkeypatch):
    """The machine's clock, which goes where the test puts it."""

    class Machine:
        now_s = 1_000.0

    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: Machine.now_s)
    return Machine


@pytest.fixture
def loop():
    with asyncio.Runner(loop_factory=PausedLoop) as runner:
        yield runner.get_loop()


async def passed(clock, seconds):
    clock.now_s += seconds


def test_time_passes_while_it_runs(loop, clock):
    before = loop.time()
    loop.run_until_complete(passed(clock, 5))
    assert loop.time() == before + 5


def test_time_stands_still_between_two_runs(loop, clock):
    loop.run_until_complete(passed(clock, 5))
    before = loop.time()
    clock.now_s += 3_600
    assert loop.time() == before
    loop.run_until_complete(passed(clock, 1))
    assert loop.time() == before + 1


def test_a_time_limit_does_not_count_what_the_caller_took(loop, clock):
    answered = asyncio.Event()

    async def ask():
        async with asyncio.timeout(30):
            await answered.wait()

    asking = loop.create_task(ask())
    loop.run_until_complete(passed(clock, 1))
    clock.now_s += 3_600
    loop.run_until_complete(passed(clock, 1))
    assert not asking.done()
    answered.set()
    loop.run_until_complete(asking)


def test_a_time_limit_is_over_once_the_loop_ran_so_long(loop, clock):
    async def ask():
        async with asyncio.timeout(30):
            await asyncio.Event().wait()

    asking = loop.create_task(ask())
    loop.run_until_complete(passed(clock, 1))
    loop.run_until_complete(passed(clock, 31))
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asking)


def test_patience_counts_the_same_time(loop, clock):
    async def now_ms():
        return PausedClock().now_ms()

    patience = Patience(120_000)
    assert patience.on_failure(loop.run_until_complete(now_ms())) is not None
    clock.now_s += 3_600
    assert patience.on_failure(loop.run_until_complete(now_ms())) is not None
    loop.run_until_complete(passed(clock, 121))
    assert patience.on_failure(loop.run_until_complete(now_ms())) is None
