"""Rules of a result whose taker is called back at once."""

import asyncio

import pytest

from milena.model.pending import Pending, in_a_task, mapped
from tests.support.time.virtual_time import settle, virtual


def test_the_taker_is_called_back_in_the_same_turn() -> None:
    pending = Pending[int]()
    seen: list[int] = []
    pending.add_done_callback(lambda done: seen.append(done.result()))
    pending.set_result(7)
    assert seen == [7]
    pending.add_done_callback(lambda done: seen.append(done.result() + 1))
    assert seen == [7, 8], "at once where it is done"


def test_a_cancelled_one_takes_no_result() -> None:
    pending = Pending[int]()
    assert pending.cancel()
    assert pending.done()
    assert pending.cancelled()
    assert not pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        pending.result()


@virtual
async def test_a_task_can_wait_for_it() -> None:
    pending = Pending[int]()
    waiting = asyncio.ensure_future(pending)
    await settle()
    pending.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await waiting


@virtual
async def test_a_task_that_gives_up_cancels_it() -> None:
    pending = Pending[int]()
    waiting = asyncio.ensure_future(pending)
    await settle()
    waiting.cancel()
    await settle()
    assert pending.cancelled()


@virtual
async def test_a_callback_that_fails_is_not_the_affair_of_who_brought_the_result() -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    pending = Pending[int]()
    seen: list[int] = []

    def fail(_: Pending[int]) -> None:
        raise ValueError("a bug")

    pending.add_done_callback(fail)
    pending.add_done_callback(lambda done: seen.append(done.result()))
    pending.set_result(1)
    loop.set_exception_handler(None)
    assert [str(error) for error in reported] == ["a bug"]
    assert seen == [1]


@virtual
async def test_a_task_works_for_one_and_ends_with_it() -> None:
    tasks: set[asyncio.Task[object]] = set()
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        if number < 0:
            raise ValueError("no")
        await asyncio.sleep(number)
        return number

    first, second, wrong = (in_a_task(work(number), tasks) for number in (1, 2, -1))
    await settle()
    with pytest.raises(ValueError, match="no"):
        wrong.result()
    second.cancel()
    assert await first == 1
    await settle()
    assert started == [1, 2, -1]
    assert not tasks, "nobody works for one that was given up"


@virtual
async def test_a_bug_of_a_task_that_nobody_waits_for_reaches_the_loop() -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    bug = AssertionError("a bug")

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            raise bug

    pending = in_a_task(work(), set())
    await settle()
    pending.cancel()
    await settle()
    assert reported == [bug]


def test_what_is_made_of_a_result_comes_in_the_same_turn() -> None:
    source = Pending[int]()
    text = mapped(source, lambda done: str(done.result()))
    source.set_result(7)
    assert text.result() == "7"
    failing = Pending[int]()
    error = mapped(failing, lambda done: str(done.result()))
    failing.set_exception(ValueError("no"))
    assert isinstance(error.exception(), ValueError)


def test_who_gives_up_what_is_made_of_a_result_gives_up_the_result() -> None:
    source = Pending[int]()
    mapped(source, lambda done: done.result()).cancel()
    assert source.cancelled()
    other = Pending[int]()
    made = mapped(other, lambda done: done.result())
    other.cancel()
    assert made.cancelled()
