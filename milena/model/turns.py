"""Large bodies are decoded and encoded on the event loop: one at a time, in steps, with other work in between.

The C code that reads and writes JSON holds the interpreter lock, so a worker thread would not help. A body of many
megabytes is therefore processed in steps of some ten milliseconds, and the event loop runs other work between two
steps. Only one large body is processed at a time. Otherwise the loop would run a step of every body in each turn.
Decoded records take several times the memory of their body, so the bytes of all large bodies together are limited.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

from milena.model.errors import TooManyRequestsError

T = TypeVar("T")

LARGE_BYTES = 256 << 10
"""Work on fewer bytes runs without a pause, because it takes only a few milliseconds."""

IN_WORK_BYTES_MAX = 64 << 20
"""Limit for all large bodies between their first step and their response. Further bodies wait before they are decoded.

A single body may be larger than the limit.
"""

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
    """Wait for one turn of the event loop, in which all other work that is ready runs."""
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
        """Reserve memory for a large body until its response is sent; the caller that waits longest is first.

        Raises:
            TooManyRequestsError: there was not enough memory within ``wait_ms``.
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
        """Run all steps of the work on a body of ``size_bytes``; return the result. Large bodies take turns."""
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
