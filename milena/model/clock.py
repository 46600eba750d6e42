"""Time as a port: shells hold a ``Clock``, cores are given ``now_ms``.

Two clocks that never mix: monotonic milliseconds for deadlines and durations, wall milliseconds for record timestamps
and retention. Nothing else in a node or a client reads the time or sleeps.
"""

import asyncio
import time
from typing import Protocol

from milena.model.types import MonotonicMs, WallMs


class Clock(Protocol):
    """Time as shells need it; virtual in tests."""

    def now_ms(self) -> MonotonicMs:
        """Milliseconds that never run backwards; only differences mean anything."""

    def wall_ms(self) -> WallMs:
        """Milliseconds since the Unix epoch; may jump when somebody sets the clock."""

    async def sleep(self, ms: float) -> None:
        """Wait; 0 or less yields to the loop once."""


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now_ms(self) -> MonotonicMs:
        """CLOCK_MONOTONIC: does not count the time that the machine was suspended."""
        return MonotonicMs(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> WallMs:
        """CLOCK_REALTIME."""
        return WallMs(time.time_ns() // 1_000_000)

    async def sleep(self, ms: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, ms / 1000))
