"""Waiting for one thing, but no longer than until another."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def first_of(
    work: Coroutine[object, object, T], limit: Coroutine[object, object, object]
) -> T | None:
    """Result or error of ``work``, or None when ``limit`` is done before; the other one is cancelled."""
    task, bound = asyncio.ensure_future(work), asyncio.ensure_future(limit)
    try:
        await asyncio.wait({task, bound}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        ended = [one for one in (task, bound) if not one.done()]
        for one in ended:
            one.cancel()
        if ended:
            await asyncio.wait(ended)
        if not task.cancelled():
            # Seen, so that asyncio does not report what nobody waits for any more.
            task.exception()
