"""Syncs of one replica's log, one at a time on a worker thread.

A sync covers the records written before it starts. Records written during a sync wait for the next one (group commit).
So under load many appends share one sync.

The end of a sync usually wakes the loop. A leader whose writers all wait for followers, too, needs no such wake: when
the followers' positions arrive, its own sync has ended as a rule. Such a sync is *quiet*: its end is only noted. The
replica calls ``take_end`` before each change that may depend on the end, and ``await_end`` if a writer waits for it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from milena.model.types import MonotonicMs
from node.replica.log_changes import changes_replica
from node.replica.runner_context import RunnerContext
from storage.log.partition_log import PartitionLog
from storage.log.tickets import SyncTicket

if TYPE_CHECKING:
    from concurrent.futures import Future

SHORT_SYNC_BYTES = 64 << 10
"""Largest number of bytes in a sync that counts as short. A disk takes about as long for these as for one record."""


@dataclass(slots=True, eq=False, kw_only=True)
class GroupSync:
    """Starts the syncs of one log and reports when they end.

    Invariants:
        All methods run on the data loop, except ``_call_back``. At most one sync runs. The log's synced end moves only
        after a sync succeeded. A failed sync ends the process. After ``close`` no sync runs and none starts.
        A sync that has ended is in ``_ended`` until it is taken in. Unless it is quiet, this is scheduled.
    """

    log: PartitionLog
    context: RunnerContext
    on_synced: Callable[[], None]
    _sync: "Future[None] | None" = field(default=None, init=False)
    _closers: list[asyncio.Future[None]] = field(default_factory=list, init=False)
    _began_ms: MonotonicMs = field(default=MonotonicMs(0), init=False)
    _is_closed: bool = field(default=False, init=False)
    _is_scheduled: bool = field(default=False, init=False)
    """Whether ``begin_soon`` was called, and its turn has not come."""
    _is_quiet: bool = field(default=False, init=False)
    """Whether the end of the present sync, or of the one that is scheduled, need not wake the loop."""
    _ended: "tuple[Future[None], SyncTicket, MonotonicMs] | None" = field(default=None, init=False)
    """A sync that has ended, and when. Set on the worker thread."""

    def begin_soon(self) -> None:
        """Start a sync if one is needed, behind everything that is scheduled for the loop's next turn.

        It is quiet unless a writer waits for its end until then.
        """
        if self._is_scheduled or not self.log.flushing.is_due(self.context.clock.now_ms()):
            return
        self._is_scheduled = True
        if self._sync is None:
            self._is_quiet = True
        asyncio.get_running_loop().call_soon(self._begin_scheduled)

    def _begin_scheduled(self) -> None:
        self._is_scheduled = False
        if self._sync is not None:
            # The next sync must start as soon as this one ends.
            self.await_end()
            return
        with changes_replica(self.context.on_fatal):
            self._maybe_start()

    def maybe_begin(self) -> None:
        """Start a sync if the log needs one and none runs. When a sync ends, the next one starts if needed."""
        if self._sync is None:
            self._is_quiet = False
            self._maybe_start()
        else:
            self.await_end()

    def await_end(self) -> None:
        """Take in the end of the present sync in the turn after it ended, or in the next turn if it has ended.

        The same holds for a sync that is scheduled.
        """
        # In this order. ``_call_back`` first sets ``_ended`` and then reads ``_is_quiet``. So either this method sees
        # the end, or the end wakes the loop.
        self._is_quiet = False
        if self._ended is not None:
            asyncio.get_running_loop().call_soon(self._take_end)

    def take_end(self) -> None:
        """Take in the end of the present sync now, if it has ended. Do not call it in the middle of a change."""
        self._is_quiet = False
        self._take_end()

    def _take_end(self) -> None:
        ended = self._ended
        if ended is not None:
            self._ended = None
            self._on_synced(*ended)

    def _maybe_start(self) -> None:
        if self._is_closed:
            return
        if not self.log.flushing.is_due(self.context.clock.now_ms()):
            return
        ticket = self.log.flushing.begin()
        if ticket is None:
            return
        self._began_ms = self.context.clock.now_ms()
        # ``submit`` returns a future of the pool, whose callback schedules ``_on_synced``. ``run_in_executor`` would
        # need one more turn of the event loop, so the writers would be answered later.
        loop = asyncio.get_running_loop()
        self._sync = self.context.sync_pool.submit(ticket.run)
        self._sync.add_done_callback(partial(self._call_back, loop, ticket))

    def _call_back(
        self, loop: asyncio.AbstractEventLoop, ticket: SyncTicket, done: "Future[None]"
    ) -> None:
        """Note the end of a sync, and wake the loop unless the sync was quiet. Runs on the worker thread."""
        self._ended = (done, ticket, self.context.clock.now_ms())
        if self._is_quiet and not done.cancelled() and done.exception() is None:
            return
        # If the loop was closed during the sync, no writer waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._take_end)

    def _on_synced(self, done: "Future[None]", ticket: SyncTicket, ended_ms: MonotonicMs) -> None:
        self._sync = None
        for closer in self._closers:
            if not closer.done():
                closer.set_result(None)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self.context.on_fatal(error)
            return
        with changes_replica(self.context.on_fatal):
            self.log.flushing.finish(ticket)
            self.context.counts.syncs += 1
            self.context.counts.short_syncs += ticket.data_bytes <= SHORT_SYNC_BYTES
            self.context.counts.sync_ms.observe(ended_ms - self._began_ms)
            self.on_synced()
            self.maybe_begin()

    async def close(self) -> None:
        """Start no more syncs. Wait for the sync that runs, if any."""
        self._is_closed = True
        self.take_end()
        if self._sync is not None:
            closer = asyncio.get_running_loop().create_future()
            self._closers.append(closer)
            await closer
