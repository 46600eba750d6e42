"""An event loop that runs only while its caller waits for something of it, and whose time passes only then.

A task of Spark takes a chunk, and comes back for the next one when Spark has room for more: at once, or after minutes.
What comes meanwhile waits in the kernel. With a clock that goes on, requests would be out of time although all of the
answer is there, and patience be at its end after one failure.
"""

import asyncio

from milena.model.clock import SystemClock
from milena.model.types import MonotonicMs, WallMs


class PausedLoop(asyncio.SelectorEventLoop):
    """For ``asyncio.Runner``. ``time`` does not count what passes between two runs."""

    def __init__(self) -> None:
        self._paused_s = 0.0
        self._stopped_s: float | None = None
        super().__init__()
        self._stopped_s = super().time()

    def time(self) -> float:
        """Seconds in which it ran, of an arbitrary beginning."""
        now_s = super().time() if self._stopped_s is None else self._stopped_s
        return now_s - self._paused_s

    def run_forever(self) -> None:
        """Go on until ``stop``; what runs until something is complete goes this way, too."""
        assert self._stopped_s is not None, "it is not running"
        self._paused_s += super().time() - self._stopped_s
        self._stopped_s = None
        try:
            super().run_forever()
        finally:
            self._stopped_s = super().time()


class PausedClock:
    """A ``Clock`` of the running loop's time."""

    __slots__ = ()

    def now_ms(self) -> MonotonicMs:
        """In ms; stands still with the loop."""
        return MonotonicMs(int(asyncio.get_running_loop().time() * 1000))

    def wall_ms(self) -> WallMs:
        """The machine's."""
        return SystemClock().wall_ms()

    async def sleep(self, ms: float) -> None:
        """On the running loop."""
        await SystemClock().sleep(ms)
