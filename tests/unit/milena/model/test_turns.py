"""Large work in steps: one at a time, with the loop's other work in between."""

import asyncio
from itertools import pairwise

import pytest

from milena.model.errors import TooManyRequestsError
from milena.model.turns import IN_WORK_BYTES_MAX, LARGE_BYTES, Turns, at_once


def counting(log, name, count):
    for number in range(count):
        log.append((name, number))
        yield
    return name


def test_at_once_runs_to_the_result():
    log = []
    assert at_once(counting(log, "a", 3)) == "a"
    assert len(log) == 3


async def test_small_work_does_not_pause():
    log = []
    done = asyncio.ensure_future(Turns().run(counting(log, "a", 3), LARGE_BYTES - 1))
    await asyncio.sleep(0)
    assert done.done()


async def test_others_run_between_two_steps_of_large_work():
    log = []

    async def other():
        for number in range(4):
            log.append(("other", number))
            await asyncio.sleep(0)

    await asyncio.gather(Turns().run(counting(log, "a", 3), LARGE_BYTES), other())
    places = [place for place, (name, _) in enumerate(log) if name == "a"]
    assert all(later > earlier + 1 for earlier, later in pairwise(places))


async def test_large_works_wait_for_each_other():
    log = []
    turns = Turns()
    works = [turns.run(counting(log, name, 3), LARGE_BYTES) for name in "ab"]
    assert await asyncio.gather(*works) == ["a", "b"]
    assert [name for name, _ in log] == ["a"] * 3 + ["b"] * 3


async def test_a_failure_lets_the_next_one_in():
    def failing():
        yield
        raise ValueError("no")

    turns = Turns()
    with pytest.raises(ValueError, match="no"):
        await turns.run(failing(), LARGE_BYTES)
    assert await turns.run(counting([], "a", 1), LARGE_BYTES) == "a"


async def test_only_so_many_bytes_are_in_work():
    turns = Turns()
    order = []

    async def work(name, size, finish):
        async with turns.room(size, wait_ms=60_000):
            order.append(name)
            await finish.wait()

    finishes = [asyncio.Event() for _ in range(3)]
    half = IN_WORK_BYTES_MAX // 2 + 1
    works = [
        asyncio.ensure_future(work(name, half, finish))
        for name, finish in zip("abc", finishes, strict=True)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["a"]
    for finish in finishes:
        finish.set()
    await asyncio.gather(*works)
    assert order == ["a", "b", "c"]


async def test_a_body_larger_than_all_room_is_taken_alone():
    async with Turns().room(2 * IN_WORK_BYTES_MAX, wait_ms=1):
        pass


async def test_who_finds_no_room_in_time_is_told():
    turns = Turns()
    async with turns.room(IN_WORK_BYTES_MAX, wait_ms=1):
        with pytest.raises(TooManyRequestsError):
            async with turns.room(LARGE_BYTES, wait_ms=1):
                pass
    async with turns.room(IN_WORK_BYTES_MAX, wait_ms=1):
        pass
