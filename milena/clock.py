"""Time as a port: shells of the client hold a ``Clock``, cores are given ``now_ms``.

Monotonic milliseconds for deadlines and durations, wall milliseconds for record timestamps; the two never mix. Nothing
else in the client reads the time or sleeps.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time, as shells need it; scripted in tests."""

    def now_ms(self) -> float:
        """Milliseconds that never run backwards; only differences mean anything."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump when somebody sets the clock."""

    async def sleep(self, ms: float) -> None:
        """Wait; 0 or less yields to the loop once."""


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now_ms(self) -> float:
        """CLOCK_MONOTONIC."""
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000

    async def sleep(self, ms: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, ms / 1000))
