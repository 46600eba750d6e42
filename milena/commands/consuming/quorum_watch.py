"""Says on standard error why no records come, where the reason is that no majority of the metadata quorum answers.

A leader that the quorum does not vouch for names no end and serves nothing new, so that who reads waits without a word.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import click

from milena.errors import ClientError
from milena.model.clock import Clock, SystemClock

QUIET_MS = 5_000
"""Without records for so long, the cluster is asked, and again after as long: longer than an election takes."""

LOST = "no majority of the metadata quorum answers: new records may not come before one does; still trying"
BACK = "a majority of the metadata quorum answers again"


class QuorumWatch:
    """Tells a loss of the quorum once, and its end once. Belongs to one event loop."""

    def __init__(
        self,
        has_majority: Callable[[], Awaitable[bool]],
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """``has_majority`` raises ``ClientError`` where nobody knows; then nothing is said."""
        self._has_majority = has_majority
        self._say = say
        self._clock = clock
        self._quiet_since_ms = float(clock.now_ms())
        self._is_lost = False

    def on_records(self) -> None:
        """Some came: where there are records, nobody wonders."""
        self._quiet_since_ms = self._clock.now_ms()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(QUIET_MS)
            is_quiet = self._clock.now_ms() - self._quiet_since_ms >= QUIET_MS
            if is_quiet or self._is_lost:
                await self._look()

    async def _look(self) -> None:
        try:
            is_lost = not await self._has_majority()
        except ClientError:
            # The reader meets the same, and says it when its patience is at its end.
            return
        if is_lost is not self._is_lost:
            self._is_lost = is_lost
            self._say(LOST if is_lost else BACK)


@asynccontextmanager
async def quorum_watched(
    has_majority: Callable[[], Awaitable[bool]],
) -> AsyncIterator[QuorumWatch]:
    """A watch that looks while the block is being run, and speaks on standard error."""
    watch = QuorumWatch(has_majority, lambda text: click.echo(text, err=True), SystemClock())
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait((task,))
