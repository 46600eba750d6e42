"""The upkeep of one replica's log: retention, rolling, compaction, checkpoints.

Driven from the background: housekeeping (``wiring.py``, ``replicas.py``) and the compactor say when. What takes long
runs on a worker thread. Knows the log and how far it is committed; who leads the partition, and what its replicas
promise each other, is the runner's affair.
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
    """Work on a log besides appending, reading and following.

    Invariants:
        All methods run on the data loop. Nothing is dropped that is not committed, or of a transaction that is not
        decided: all that is dropped lies below the last stable offset. One checkpoint runs at a time, and
        none begins after ``stop``.
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
        """``on_log_start``: it moved; ``on_checkpoint``: more may be stored; ``on_fatal`` must stop the process."""
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
        """Forget old segments, as leader; the followers hear of it even when nothing is written any more."""
        before = self._log.log_start_offset
        with changes_replica(self._on_fatal):
            after = self._log.maybe_apply_retention(self._clock.expiry_ms(), self._stable_end())
        if after > before:
            self._on_log_start()

    def maybe_roll(self) -> None:
        """Close the active segment when it is old enough."""
        with changes_replica(self._on_fatal):
            self._log.maybe_roll(self._clock.expiry_ms())

    async def close_segment(self, offset: int) -> None:
        """Let the segment that holds ``offset`` grow no more, and checkpoint it; if there is room, and time now."""
        if self._is_stopped:
            return
        with changes_replica(self._on_fatal):
            self._log.close_segment(offset)
        await self.maybe_checkpoint()

    def compaction_need(self, tombstone_end: int) -> CompactionNeed:
        """Compaction that the log needs; every replica has everything below ``tombstone_end``."""
        return self._log.compaction_need(
            self._clock.expiry_ms(), self._stable_end(), tombstone_end=tombstone_end
        )

    def begin_compaction(self, tombstone_end: int) -> CompactionRun | None:
        """A compaction of this replica, if one is due and the replica can be trusted.

        None while the cluster's time is not known: from it a run says how long tombstones stay.
        """
        if not self._clock.expiry_ms():
            return None
        return self._log.begin_compaction(
            self._clock.expiry_ms(), self._stable_end(), tombstone_end=tombstone_end
        )

    async def compact_slice(self, run: CompactionRun) -> int:
        """Run a slice on a worker thread; returns the bytes that it worked on.

        Raises:
            CorruptLogError, DiskFullError: the run is over.
        """
        loop = asyncio.get_running_loop()
        with changes_replica(self._on_fatal):
            worked = await loop.run_in_executor(self._pool, run.step)
        self._log.note_compaction(run)
        return worked

    def end_compaction(self, run: CompactionRun) -> None:
        """Take over what was done last, and end the run wherever it is."""
        run.void()
        self._log.note_compaction(run)

    async def maybe_checkpoint(self) -> None:
        """Store the high watermark, and move the recovery point when enough was appended."""
        if self._is_stopped or self._is_checkpointing:
            return
        ticket = self._log.begin_checkpoint(self._high_watermark())
        if ticket is None:
            return
        self._is_checkpointing = True
        try:
            with changes_replica(self._on_fatal):
                await asyncio.get_running_loop().run_in_executor(self._pool, ticket.run)
        finally:
            self._is_checkpointing = False
            self._log.finish_checkpoint(ticket)
        self._on_checkpoint()

    def stop(self) -> None:
        """The log is about to be closed."""
        self._is_stopped = True
