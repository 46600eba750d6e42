"""The upkeep of one replica's log: retention, closing of segments, compaction, checkpoints.

Background tasks call this module: housekeeping (``node/assembly.py``, ``local_replicas.py``), the compactor and the
scrubber. Long work runs on a worker thread. The module knows the log and its high watermark, but neither the leader nor
the other replicas.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from node.process.cluster_clock import NodeClock
from node.replica.log_changes import changes_replica
from storage.compaction.policy import CompactionNeed
from storage.compaction.run import CompactionRun
from storage.log.partition_log import PartitionLog


class LogUpkeep:
    """Work on a log other than appending, reading and following.

    Invariants:
        All methods run on the data loop. Only records below the last stable offset are dropped: they are committed,
        and their transactions are decided. At most one checkpoint runs, and none starts after ``stop``.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        clock: NodeClock,
        pool: Executor,
        high_watermark: Callable[[], int],
        stable_end: Callable[[], int],
        on_log_start: Callable[[], None],
        on_checkpoint: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Set the callbacks.

        ``on_log_start``: called when the log start has moved. ``on_checkpoint``: called after a checkpoint, which may
        have moved the stored end. ``on_fatal``: must stop the process.
        """
        self._log = log
        self._clock = clock
        self._pool = pool
        self._high_watermark = high_watermark
        self._stable_end = stable_end
        self._on_log_start = on_log_start
        self._on_checkpoint = on_checkpoint
        self._on_fatal = on_fatal
        self._is_checkpointing = False
        self._is_stopped = False

    def maybe_apply_retention(self) -> None:
        """Delete old segments. If the log start moves, tell the followers, even if no more records are written."""
        before = self._log.log_start_offset
        with changes_replica(self._on_fatal):
            after = self._log.start.apply_retention(self._clock.expiry_ms(), self._stable_end())
        if after > before:
            self._on_log_start()

    def maybe_roll(self) -> None:
        """Close the active segment if it is old enough."""
        with changes_replica(self._on_fatal):
            self._log.rolling.roll_by_age(self._clock.expiry_ms())

    async def close_segment(self, offset: int) -> None:
        """Close the segment that holds ``offset``, if the disk has room, and checkpoint. After ``stop``, do nothing."""
        if self._is_stopped:
            return
        with changes_replica(self._on_fatal):
            self._log.rolling.close_segment(offset)
        await self.maybe_checkpoint()

    def compaction_need(self, tombstone_end: int) -> CompactionNeed:
        """Return the compaction that the log needs. ``tombstone_end``: every replica has everything below it."""
        return self._log.compaction.need(
            self._clock.expiry_ms(), self._stable_end(), tombstone_end=tombstone_end
        )

    def begin_compaction(self, tombstone_end: int) -> CompactionRun | None:
        """Start a compaction of this replica; return None if none is due, or if the replica is suspect or damaged.

        Also return None while the cluster's time is unknown: a run computes the delete horizons of tombstones from it.
        """
        if not self._clock.expiry_ms():
            return None
        return self._log.compaction.begin(
            self._clock.expiry_ms(), self._stable_end(), tombstone_end=tombstone_end
        )

    async def compact_slice(self, run: CompactionRun) -> int:
        """Run one slice on a worker thread; return the number of bytes that it read or wrote.

        Raises:
            CorruptLogError, DiskFullError: the run has ended without a result.
        """
        loop = asyncio.get_running_loop()
        with changes_replica(self._on_fatal):
            worked = await loop.run_in_executor(self._pool, run.step)
        self._log.compaction.note(run)
        return worked

    def end_compaction(self, run: CompactionRun) -> None:
        """Stop the run, finished or not, and adopt the result of its last slice."""
        run.void()
        self._log.compaction.note(run)

    async def maybe_checkpoint(self) -> None:
        """Store the high watermark. If enough was appended, also move the recovery point."""
        if self._is_stopped or self._is_checkpointing:
            return
        ticket = self._log.checkpointing.begin(self._high_watermark())
        if ticket is None:
            return
        self._is_checkpointing = True
        try:
            with changes_replica(self._on_fatal):
                await asyncio.get_running_loop().run_in_executor(self._pool, ticket.run)
        finally:
            self._is_checkpointing = False
            self._log.checkpointing.finish(ticket)
        self._on_checkpoint()

    def stop(self) -> None:
        """Start no more work, because the log is about to be closed."""
        self._is_stopped = True
