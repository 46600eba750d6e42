"""Clocks. Code that does I/O holds a ``Clock``; pure code gets the time as ``now_ms``.

There are two times that must not mix: monotonic milliseconds for deadlines and durations, wall milliseconds for record
timestamps and retention. No other code of a node or a client reads the time or sleeps.
"""

import asyncio
import time
from typing import Protocol

from milena.model.types import MonotonicMs, WallMs


class Clock(Protocol):
    """A source of time and sleep; tests pass one with virtual time."""

    def now_ms(self) -> MonotonicMs:
        """Return milliseconds that never run backwards; only differences have a meaning."""

    def wall_ms(self) -> WallMs:
        """Return milliseconds since the Unix epoch; the value jumps if the system clock is set."""

    async def sleep(self, ms: float) -> None:
        """Wait; 0 or less yields to the loop once."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> MonotonicMs:
        """Read CLOCK_MONOTONIC, which does not count the time that the machine was suspended."""
        return MonotonicMs(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> WallMs:
        """Read CLOCK_REALTIME."""
        return WallMs(time.time_ns() // 1_000_000)

    async def sleep(self, ms: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, ms / 1000))
