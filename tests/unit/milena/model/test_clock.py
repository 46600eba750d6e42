"""The two clocks, and the virtual one that tests use in their place."""

import asyncio

from milena.model.clock import Clock, SystemClock
from tests.support.time.fake_clock import FakeClock


def test_monotonic_clock_never_runs_backwards():
    clock = SystemClock()
    readings = [clock.now_ms() for _ in range(1000)]
    assert readings == sorted(readings)


def test_wall_clock_counts_milliseconds_since_1970():
    # Between 2020 and 2200: a unit slip of a thousand falls outside.
    assert 1_577_836_800_000 < SystemClock().wall_ms() < 7_258_118_400_000


async def test_sleep_of_zero_or_less_only_yields():
    clock = SystemClock()
    await clock.sleep(0)
    await clock.sleep(-5)


async def test_fake_clock_wakes_sleepers_in_the_order_of_their_deadlines():
    clock: Clock = FakeClock()
    assert isinstance(clock, FakeClock)
    woken: list[tuple[str, int]] = []
    start = clock.now_ms()

    async def sleeper(name: str, ms: int) -> None:
        await clock.sleep(ms)
        woken.append((name, clock.now_ms() - start))

    tasks = [asyncio.ensure_future(sleeper(*item)) for item in (("b", 20), ("a", 10), ("c", 500))]
    await clock.advance(100)
    assert woken == [("a", 10), ("b", 20)]
    assert clock.now_ms() - start == 100
    assert clock.sleepers() == 1
    await clock.advance(400)
    assert woken[-1] == ("c", 500)
    await asyncio.gather(*tasks)


async def test_fake_wall_clock_can_be_set_back_while_the_monotonic_one_goes_on():
    clock = FakeClock()
    before = clock.now_ms()
    clock.set_wall(5)
    await clock.advance(10)
    assert (clock.wall_ms(), clock.now_ms() - before) == (15, 10)
