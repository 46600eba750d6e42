"""Large pieces of work on the event loop: one at a time, in steps, with everybody else's work in between.

The C code that reads and writes JSON keeps the interpreter to itself, so that a worker thread would not help. A body
of many megabytes is therefore taken apart in steps of some ten milliseconds; between two of them the loop turns once.
Several such bodies wait for each other: else each turn would make a step of every one of them. And only a few are
taken apart before the first of them are written: records take several times the memory of the body that they came in.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

from milena.model.errors import TooManyRequestsError

T = TypeVar("T")

LARGE_BYTES = 256 << 10
"""Work on less is done at once: it takes a few milliseconds."""

IN_WORK_BYTES_MAX = 64 << 20
"""Of large bodies from their first step to the answer; a single one may be larger. The others wait as they came."""

Steps = Generator[None, None, T]
"""Work that can be left off at each ``yield``, and returns its result."""


def at_once(steps: Steps[T]) -> T:
    """The result, without a pause."""
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
    """Turns of those who work on something large. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._entrance = asyncio.Lock()
        self._left = asyncio.Event()
        self._in_work_bytes = 0

    @asynccontextmanager
    async def room(self, size_bytes: int, *, wait_ms: int) -> AsyncIterator[None]:
        """Room for a large body until it is answered for; first come, first served.

        Raises:
            TooManyRequestsError: there was none in time.
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
        """The result of work on so many bytes; in steps and alone when they are many."""
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
