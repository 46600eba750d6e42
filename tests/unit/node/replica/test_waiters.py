"""Rules of waiting for offsets."""

import asyncio

import pytest

from milena.model.errors import FateUnknownError
from node.replica.waiters import OffsetWaiters


async def test_completes_at_the_watermark_and_not_before() -> None:
    waiters = OffsetWaiters()
    at_ten, at_twelve = waiters.wait_for(10), waiters.wait_for(12)
    waiters.advance(9)
    assert not at_ten.done()
    waiters.advance(10)
    assert at_ten.done()
    assert not at_twelve.done()


async def test_fails_only_what_was_cut_off() -> None:
    waiters = OffsetWaiters()
    kept, lost = waiters.wait_for(10), waiters.wait_for(11)
    waiters.fail_above(10, FateUnknownError("cut"))
    with pytest.raises(FateUnknownError):
        await lost
    assert not kept.done()
    waiters.advance(10)
    await kept


async def test_abandoned_waiters_are_forgotten() -> None:
    waiters = OffsetWaiters()
    futures = [waiters.wait_for(i) for i in range(10)]
    for future in futures[:8]:
        future.cancel()
    waiters.prune()
    assert len(waiters) == 2
    waiters.advance(100)
    assert futures[9].done()


async def test_cancelled_waiter_does_not_disturb_the_others() -> None:
    waiters = OffsetWaiters()
    first, second = waiters.wait_for(5), waiters.wait_for(5)
    first.cancel()
    await asyncio.sleep(0)
    waiters.advance(5)
    assert second.done()
