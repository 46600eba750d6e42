"""Syncs of one replica's log, one at a time on a worker thread.

A sync covers the records written before it starts. Records written during a sync wait for the next one (group commit).
So under load many appends share one sync.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial

from milena.model.clock import Clock
from milena.model.types import MonotonicMs
from node.metrics.counts import NodeCounts
from node.replica.log_changes import changes_replica
from storage.log.partition_log import PartitionLog
from storage.log.tickets import SyncTicket

SHORT_SYNC_BYTES = 64 << 10
"""Largest number of bytes in a sync that counts as short. A disk takes about as long for these as for one record."""


class GroupSync:
    """Starts the syncs of one log and reports when they end.

    Invariants:
        All methods run on the data loop. At most one sync runs. The log's synced end moves only after a sync
        succeeded. A failed sync ends the process. After ``close`` no sync runs and none starts.
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
        self._sync: Future[None] | None = None
        self._closers: list[asyncio.Future[None]] = []
        self._began_ms = MonotonicMs(0)
        self._is_closed = False
        self._is_begin_soon = False
        """Whether ``begin_soon`` was called, and its turn has not come."""

    def begin_soon(self) -> None:
        """Start a sync as ``maybe_begin`` does, but behind everything that is scheduled for the loop's next turn."""
        if self._is_begin_soon or not self._log.flushing.is_due(self._clock.now_ms()):
            return
        self._is_begin_soon = True
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_begin_soon = False
        with changes_replica(self._on_fatal):
            self.maybe_begin()

    def maybe_begin(self) -> None:
        """Start a sync if the log needs one and none runs. When a sync ends, the next one starts if needed."""
        if self._sync is not None or self._is_closed:
            return
        if not self._log.flushing.is_due(self._clock.now_ms()):
            return
        ticket = self._log.flushing.begin()
        if ticket is None:
            return
        self._began_ms = self._clock.now_ms()
        # ``submit`` returns a future of the pool, whose callback schedules ``_on_synced``. ``run_in_executor`` would
        # need one more turn of the event loop, so the writers would be answered later.
        loop = asyncio.get_running_loop()
        self._sync = self._pool.submit(ticket.run)
        self._sync.add_done_callback(partial(self._call_back, loop, ticket))

    def _call_back(
        self, loop: asyncio.AbstractEventLoop, ticket: SyncTicket, done: "Future[None]"
    ) -> None:
        """Schedule ``_on_synced`` on the loop. Runs on the worker thread."""
        # If the loop was closed during the sync, no writer waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._on_synced, done, ticket)

    def _on_synced(self, done: "Future[None]", ticket: SyncTicket) -> None:
        self._sync = None
        for closer in self._closers:
            if not closer.done():
                closer.set_result(None)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._on_fatal(error)
            return
        with changes_replica(self._on_fatal):
            self._log.flushing.finish(ticket)
            self._counts.syncs += 1
            self._counts.short_syncs += ticket.data_bytes <= SHORT_SYNC_BYTES
            self._counts.sync_ms.observe(self._clock.now_ms() - self._began_ms)
            self._tell_synced()
            self.maybe_begin()

    async def close(self) -> None:
        """Start no more syncs. Wait for the sync that runs, if any."""
        self._is_closed = True
        if self._sync is not None:
            closer = asyncio.get_running_loop().create_future()
            self._closers.append(closer)
            await closer
