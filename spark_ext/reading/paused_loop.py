"""An event loop that runs only while its caller waits for a result. Its time passes only then.

A Spark task takes a chunk, and takes the next one when Spark has room for it: at once, or minutes later. Responses
that arrive meanwhile wait in the kernel's buffers. With a clock that continues, a request would time out although its
response has arrived, and one failure would use up the time for retries.
"""

import asyncio

from milena.model.clock import SystemClock
from milena.model.types import MonotonicMs, WallMs


class PausedLoop(asyncio.SelectorEventLoop):
    """An event loop for ``asyncio.Runner`` whose ``time`` does not count the pauses between two runs."""

    def __init__(self) -> None:
        self._paused_s = 0.0
        self._stopped_s: float | None = None
        super().__init__()
        self._stopped_s = super().time()

    def time(self) -> float:
        """Return the seconds that the loop has run, from an arbitrary start."""
        now_s = super().time() if self._stopped_s is None else self._stopped_s
        return now_s - self._paused_s

    def run_forever(self) -> None:
        """Run until ``stop``. ``run_until_complete`` calls this method, too."""
        assert self._stopped_s is not None, "it is not running"
        self._paused_s += super().time() - self._stopped_s
        self._stopped_s = None
        try:
            super().run_forever()
        finally:
            self._stopped_s = super().time()


class PausedClock:
    """A ``Clock`` that tells the running loop's time."""

    __slots__ = ()

    def now_ms(self) -> MonotonicMs:
        """Return the loop's time in ms; it stops while the loop is paused."""
        return MonotonicMs(int(asyncio.get_running_loop().time() * 1000))

    def wall_ms(self) -> WallMs:
        """Return the machine's wall time in ms."""
        return SystemClock().wall_ms()

    async def sleep(self, ms: float) -> None:
        """Sleep ``ms`` of the running loop's time."""
        await SystemClock().sleep(ms)
