"""Report on standard error that no records arrive because no majority of the metadata quorum responds.

Without the quorum, a leader reports no end and serves nothing new. A reader would then wait without any message.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import click

from milena.errors import ClientError
from milena.model.clock import Clock, SystemClock

QUIET_MS = 5_000
"""Without records for this long (ms), the cluster is asked, and then again: longer than an election takes."""

LOST = "no majority of the metadata quorum answers: new records may not come before one does; still trying"
BACK = "a majority of the metadata quorum answers again"


class QuorumWatch:
    """Report a loss of the quorum once, and its end once. Belongs to one event loop."""

    def __init__(
        self,
        has_majority: Callable[[], Awaitable[bool]],
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Build a watch. ``has_majority`` raises ``ClientError`` if it cannot find out; then nothing is reported."""
        self._has_majority = has_majority
        self._say = say
        self._clock = clock
        self._quiet_since_ms = float(clock.now_ms())
        self._is_lost = False

    def on_records(self) -> None:
        """Note that records arrived: the quorum then needs no check."""
        self._quiet_since_ms = self._clock.now_ms()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._clock.sleep(QUIET_MS)
            is_quiet = self._clock.now_ms() - self._quiet_since_ms >= QUIET_MS
            if is_quiet or self._is_lost:
                await self._look()

    async def _look(self) -> None:
        try:
            is_lost = not await self._has_majority()
        except ClientError:
            # The reader meets the same error, and reports it when its patience is over.
            return
        if is_lost is not self._is_lost:
            self._is_lost = is_lost
            self._say(LOST if is_lost else BACK)


@asynccontextmanager
async def quorum_watched(
    has_majority: Callable[[], Awaitable[bool]],
) -> AsyncIterator[QuorumWatch]:
    """Run a watch during the block; it reports on standard error."""
    watch = QuorumWatch(has_majority, lambda text: click.echo(text, err=True), SystemClock())
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait((task,))
