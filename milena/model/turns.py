"""Large pieces of work on the event loop: one at a time, in steps, with other work in between.

The C code that reads and writes JSON holds the interpreter lock, so a worker thread would not help. A body of many
megabytes is therefore processed in steps of some ten milliseconds, and the loop turns once between two steps. Several
large bodies wait for each other; otherwise each turn would run a step of every one. Only a few are decoded before the
first of them are written, because records take several times the memory of their body.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

from milena.model.errors import TooManyRequestsError

T = TypeVar("T")

LARGE_BYTES = 256 << 10
"""Work on fewer bytes is done at once: it takes a few milliseconds."""

IN_WORK_BYTES_MAX = 64 << 20
"""Limit for all large bodies from their first step to the response; one alone may be larger. Others wait undecoded."""

Steps = Generator[None, None, T]
"""Work that can pause at each ``yield``, and that returns its result."""


def at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


@types.coroutine
def one_turn() -> Generator[None, None, None]:
    """Let the loop run everything else that is ready."""
    yield


class Turns:
    """Turns of large pieces of work. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._entrance = asyncio.Lock()
        self._left = asyncio.Event()
        self._in_work_bytes = 0

    @asynccontextmanager
    async def room(self, size_bytes: int, *, wait_ms: int) -> AsyncIterator[None]:
        """Reserve room for a large body until its response; first come, first served.

        Raises:
            TooManyRequestsError: there was no room in time.
        """
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._enter(size_bytes)
        except TimeoutError:
            raise TooManyRequestsError(
                "other large bodies are being written; try again later"
            ) from None
        try:
            yield
        finally:
            self._in_work_bytes -= size_bytes
            self._left.set()

    async def _enter(self, size_bytes: int) -> None:
        async with self._entrance:
            while self._in_work_bytes and self._in_work_bytes + size_bytes > IN_WORK_BYTES_MAX:
                self._left.clear()
                await self._left.wait()
            self._in_work_bytes += size_bytes

    async def run(self, steps: Steps[T], size_bytes: int) -> T:
        """Run work on ``size_bytes`` bytes; return its result. Large work runs in steps, one piece at a time."""
        if size_bytes < LARGE_BYTES:
            return at_once(steps)
        async with self._lock:
            while True:
                await one_turn()
                try:
                    next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result
