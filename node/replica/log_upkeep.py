"""The upkeep of one replica's log: retention, closing of segments, compaction, checkpoints.

Background tasks call this module: housekeeping (``node/assembly.py``, ``local_replicas.py``), the compactor and the
scrubber. Long work runs on a worker thread. The module knows the log and its high watermark, but neither the leader nor
the other replicas.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from node.replica.log_changes import changes_replica
from node.replica.runner_context import RunnerContext
from storage.compaction.policy import CompactionNeed
from storage.compaction.run import CompactionRun
from storage.log.partition_log import PartitionLog


@dataclass(eq=False, kw_only=True)
class LogUpkeep:
    """Work on a log other than appending, reading and following.

    Invariants:
        All methods run on the data loop. Only records below the last stable offset are dropped: they are committed,
        and their transactions are decided. At most one checkpoint runs, and none starts after ``stop``.
    """

    log: PartitionLog
    context: RunnerContext
    high_watermark: Callable[[], int]
    stable_end: Callable[[], int]
    on_log_start: Callable[[], None]
    """Called when the log start has moved."""
    on_checkpoint: Callable[[], None]
    """Called after a checkpoint, which may have moved the stored end."""
    _is_checkpointing: bool = field(default=False, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def maybe_apply_retention(self) -> None:
        """Delete old segments. If the log start moves, tell the followers, even if no more records are written."""
        before = self.log.log_start_offset
        with changes_replica(self.context.on_fatal):
            after = self.log.start.apply_retention(
                self.context.clock.expiry_ms(), self.stable_end()
            )
        if after > before:
            self.on_log_start()

    def maybe_roll(self) -> None:
        """Close the active segment if it is old enough."""
        with changes_replica(self.context.on_fatal):
            self.log.rolling.roll_by_age(self.context.clock.expiry_ms())

    async def close_segment(self, offset: int) -> None:
        """Close the segment that holds ``offset``, if the disk has room, and checkpoint. After ``stop``, do nothing."""
        if self._is_stopped:
            return
        with changes_replica(self.context.on_fatal):
            self.log.rolling.close_segment(offset)
        await self.maybe_checkpoint()

    def compaction_need(self, tombstone_end: int) -> CompactionNeed:
        """Return the compaction that the log needs. ``tombstone_end``: every replica has everything below it."""
        return self.log.compaction.need(
            self.context.clock.expiry_ms(), self.stable_end(), tombstone_end=tombstone_end
        )

    def begin_compaction(self, tombstone_end: int) -> CompactionRun | None:
        """Start a compaction of this replica; return None if none is due, or if the replica is suspect or damaged.

        Also return None while the cluster's time is unknown: a run computes the delete horizons of tombstones from it.
        """
        if not self.context.clock.expiry_ms():
            return None
        return self.log.compaction.begin(
            self.context.clock.expiry_ms(), self.stable_end(), tombstone_end=tombstone_end
        )

    async def compact_slice(self, run: CompactionRun) -> int:
        """Run one slice on a worker thread; return the number of bytes that it read or wrote.

        Raises:
            CorruptLogError, DiskFullError: the run has ended without a result.
        """
        loop = asyncio.get_running_loop()
        with changes_replica(self.context.on_fatal):
            worked = await loop.run_in_executor(self.context.pool, run.step)
        self.log.compaction.note(run)
        return worked

    def end_compaction(self, run: CompactionRun) -> None:
        """Stop the run, finished or not, and adopt the result of its last slice."""
        run.void()
        self.log.compaction.note(run)

    async def maybe_checkpoint(self) -> None:
        """Store the high watermark. If enough was appended, also move the recovery point."""
        if self._is_stopped or self._is_checkpointing:
            return
        ticket = self.log.checkpointing.begin(self.high_watermark())
        if ticket is None:
            return
        self._is_checkpointing = True
        try:
            with changes_replica(self.context.on_fatal):
                await asyncio.get_running_loop().run_in_executor(self.context.pool, ticket.run)
        finally:
            self._is_checkpointing = False
            self.log.checkpointing.finish(ticket)
        self.on_checkpoint()

    def stop(self) -> None:
        """Start no more work, because the log is about to be closed."""
        self._is_stopped = True
