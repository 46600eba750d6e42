"""Wait for one coroutine, but only until another ends."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def first_of(
    work: Coroutine[object, object, T], limit: Coroutine[object, object, object]
) -> T | None:
    """Return or raise the result of ``work``; return None if ``limit`` ends first. Cancel the slower of the two."""
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
            # Read the exception, so that asyncio does not report it as never retrieved.
            task.exception()
