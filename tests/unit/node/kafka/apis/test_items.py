"""Many items of one request: results in order, a bound on what runs side by side, one timeout for all."""

import asyncio

import pytest

from milena.model.errors import NoQuorumError, TopicNotFoundError
from node.kafka.apis import items
from node.kafka.apis.items import ItemError, each, repeated, wait_ms
from tests.support.time.virtual_time import current_loop, virtual


def codes(results: list[int | ItemError]) -> list[int]:
    return [result.code if isinstance(result, ItemError) else -result for result in results]


@virtual
async def test_results_are_in_the_order_of_items() -> None:
    async def work(item: int) -> int:
        await asyncio.sleep((5 - item) / 100)
        if item == 2:
            raise TopicNotFoundError("none")
        if item == 3:
            raise ItemError(42, "odd")
        return item

    assert codes(await each([1, 2, 3, 4], work, timeout_ms=5_000)) == [-1, 3, 42, -4]
    assert await each([], work, timeout_ms=5_000) == []


@virtual
async def test_a_bounded_number_runs_side_by_side() -> None:
    running: set[int] = set()
    most = 0

    async def work(item: int) -> int:
        nonlocal most
        running.add(item)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.discard(item)
        return item

    count = 3 * items.AT_ONCE_MAX + 1
    assert await each(range(count), work, timeout_ms=5_000) == list(range(count))
    assert most == items.AT_ONCE_MAX


@virtual
async def test_one_timeout_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "AT_ONCE_MAX", 2)

    async def work(item: int) -> int:
        if item > 1:
            await asyncio.sleep(100)
        return item

    began = current_loop().time()
    results = await each([1, 2, 3, 4], work, timeout_ms=1_000)
    assert round(current_loop().time() - began, 3) == 1.0
    assert codes(results) == [-1, 7, 7, 7]
    messages = [result.message for result in results if isinstance(result, ItemError)]
    assert ["may yet happen" in message for message in messages] == [True, True, False]
    assert "nothing was done" in messages[2]


@virtual
async def test_an_error_that_nobody_expects_is_not_a_result() -> None:
    async def work(item: int) -> int:
        raise TimeoutError(item)

    with pytest.raises(ExceptionGroup):
        await each([1], work, timeout_ms=1_000)


@virtual
async def test_too_many_items_are_refused_without_work() -> None:
    async def work(item: int) -> int:
        raise AssertionError(item)

    results = await each(range(items.ITEMS_MAX + 1), work, timeout_ms=1_000)
    assert codes(results) == [42] * (items.ITEMS_MAX + 1)


def test_waits_have_bounds() -> None:
    ends = (-(1 << 31), 0, 499, 501, (1 << 31) - 1)
    assert [wait_ms(timeout_ms) for timeout_ms in ends] == [500, 500, 500, 501, 300_000]


def test_repeated_keys_are_found() -> None:
    assert repeated(["a", "b", "a", "c", "a"]) == {"a"}


def test_a_message_is_cut() -> None:
    assert len(ItemError.of(NoQuorumError("x" * 100_000)).message) == items.MESSAGE_LENGTH_MAX
