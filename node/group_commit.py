"""Syncs of one replica's log, one at a time on a worker thread.

What is written while one runs is covered by the next one (group commit): under load many appends share a sync.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from node.clock import Clock
from node.metrics import NodeCounts
from storage.partition_log import PartitionLog
from storage.tickets import SyncTicket
from storage.types import MonotonicMs


class GroupCommit:
    """When and how one log is synced.

    Invariants:
        All methods run on the data loop. At most one sync runs, and the log moves its synced end only once it
        succeeded; one that fails ends the process. After ``close`` none runs and none begins.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        clock: Clock,
        pool: Executor,
        counts: NodeCounts,
        on_synced: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._pool = pool
        self._counts = counts
        self._tell_synced = on_synced
        self._on_fatal = on_fatal
        self._sync: asyncio.Future[None] | None = None
        self._began_ms = MonotonicMs(0)
        self._is_closed = False

    def maybe_begin(self) -> None:
        """Start a sync if the log needs one, unless one runs; that starts the next one itself."""
        if self._sync is not None or self._is_closed:
            return
        if not self._log.needs_sync(self._clock.wall_ms()):
            return
        ticket = self._log.begin_sync()
        if ticket is None:
            return
        self._began_ms = self._clock.now_ms()
        loop = asyncio.get_running_loop()
        self._sync = loop.run_in_executor(self._pool, ticket.run)
        self._sync.add_done_callback(lambda done: self._on_synced(done, ticket))

    def _on_synced(self, done: "asyncio.Future[None]", ticket: SyncTicket) -> None:
        self._sync = None
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._on_fatal(error)
            return
        self._log.finish_sync(ticket)
        self._counts.syncs += 1
        self._counts.sync_ms.observe(self._clock.now_ms() - self._began_ms)
        self._tell_synced()
        self.maybe_begin()

    async def close(self) -> None:
        """Begin no more, and wait for the one under way."""
        self._is_closed = True
        while self._sync is not None:
            await asyncio.wait([self._sync])
