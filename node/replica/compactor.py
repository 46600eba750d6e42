"""Closes segments by age and compacts logs in the background: one log at a time, in slices, below a rate.

Each node compacts its own replicas, as leader or follower. Replicas of a compacted topic may differ in bytes. At equal
progress they hold the same records. A slice takes some milliseconds of a worker thread; after it, the data loop adopts
the result. Replicas that are suspect or damaged are not compacted.

A tombstone may be dropped only when every replica has it. Otherwise a replica that was down for longer than
``delete.retention.ms`` would keep the deleted record for ever, and serve it as leader. The same holds for markers of
transactions. ``EveryReplicaHas`` knows an offset below which every replica certainly has everything.

If a replica goes missing, the runner stops a run that may drop tombstones or markers, before the leader sends that
replica anything. Otherwise the replica could copy a record before the run and, after the run, the rest of the log
without the record's tombstone.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from milena.model.clock import Clock
from milena.model.errors import CorruptLogError, DiskFullError, MilenaError
from milena.model.types import MonotonicMs
from node.control.standing import Standing
from node.metrics.counts import CompactionCounts
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Partition
from storage.compaction.policy import CompactionNeed
from storage.compaction.run import CompactionRun

logger = logging.getLogger(__name__)

FAILED_PAUSE_MS = 10 * 60_000
"""The pause of a log after a failed run. The cause, a full disk or a damaged batch, usually lasts for a while."""

REST_SHARE = 9
"""The pause after a slice, as a multiple of the slice's length. A slice holds the interpreter's lock, so requests wait.

With this pause, one request in ten meets a slice, and waits two or three milliseconds.
"""

DEBT_MS_MAX = 1_000
"""Bytes above the rate delay later slices. This is the longest such delay, in ms."""


class EveryReplicaHas:
    """The offset below which all replicas of a partition are known to have every record.

    Each member of the ISR has all records below the high watermark. But this node's image, which lists the members, may
    be old. So a high watermark counts only if for ``settle_ms`` after it was seen all replicas stay in sync, the
    partition does not change, and this node has a lease.
    """

    def __init__(self, settle_ms: float) -> None:
        self._settle_ms = settle_ms
        self._partition_epoch: int | None = None
        self._seen_ms = MonotonicMs(0)
        self._candidate = 0
        self._offset = 0

    def look(
        self, state: Partition | None, high_watermark: int, now_ms: MonotonicMs, *, has_lease: bool
    ) -> int:
        """Note the present state of the partition; return the offset below which every replica has everything."""
        if state is None or not has_lease or not state.is_complete:
            self._partition_epoch = None
            return 0
        if state.partition_epoch != self._partition_epoch:
            self._partition_epoch = state.partition_epoch
            self._seen_ms, self._candidate, self._offset = now_ms, high_watermark, 0
        elif now_ms - self._seen_ms >= self._settle_ms:
            self._offset = self._candidate
            self._seen_ms, self._candidate = now_ms, high_watermark
        return self._offset


class Throttle:
    """Spreads work over time: after work on some bytes, it demands a pause."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def pause_ms(self, worked_bytes: int, now_ms: float) -> float:
        """Return the pause after ``worked_bytes`` of work, in ms."""
        self._free_ms = max(self._free_ms, now_ms - DEBT_MS_MAX)
        self._free_ms += worked_bytes * 1000 / self._bytes_per_s
        return max(0.0, self._free_ms - now_ms)


@dataclass(eq=False, kw_only=True)
class Compactor:
    """The background compaction of one node; runs on the data loop."""

    runners: Iterable[PartitionRunner]
    clock: Clock
    check_ms: int
    """The pause between checks of all logs."""
    bytes_per_s: int
    settle_ms: int
    """See ``EveryReplicaHas``."""
    counts: CompactionCounts
    standing: Standing

    def __post_init__(self) -> None:
        self._throttle = Throttle(self.bytes_per_s)
        self._replicated: dict[PartitionRunner, EveryReplicaHas] = {}
        self._resting: dict[PartitionRunner, MonotonicMs] = {}

    async def run(self) -> None:
        """Check all logs every ``check_ms`` and compact those that are due; run until cancelled."""
        while True:
            await self.clock.sleep(self.check_ms)
            await self.look()

    async def look(self) -> None:
        """Close old segments, then compact the logs that are due. The log with the most to gain comes first."""
        runners = list(self.runners)
        self._forget(runners)
        for runner in runners:
            if not runner.is_closed:
                runner.upkeep.maybe_roll()
        due = [(need, runner) for runner in runners if (need := self._need(runner)) is not None]
        self.counts.dirty_bytes = sum(need.dirty_bytes for need, _ in due)
        due = [(need, runner) for need, runner in due if need.is_due]
        for _, runner in sorted(due, key=lambda pair: pair[0].dirty_ratio, reverse=True):
            await self._compact(runner)

    def _forget(self, runners: Iterable[PartitionRunner]) -> None:
        now_ms = self.clock.now_ms()
        kept = set(runners)
        self._replicated = {r: known for r, known in self._replicated.items() if r in kept}
        self._resting = {
            r: until_ms for r, until_ms in self._resting.items() if r in kept and until_ms > now_ms
        }

    def _need(self, runner: PartitionRunner) -> CompactionNeed | None:
        """Return the compaction that a log needs; None if its topic is not compacted, it is closed, or it pauses."""
        if not runner.settings.is_compacted or runner.is_closed or runner in self._resting:
            return None
        try:
            return runner.upkeep.compaction_need(self._tombstone_end(runner))
        except MilenaError as error:
            self._rest(runner, error)
            return None

    def _tombstone_end(self, runner: PartitionRunner) -> int:
        known = self._replicated.get(runner)
        if known is None:
            known = self._replicated[runner] = EveryReplicaHas(self.settle_ms)
        return known.look(
            runner.state,
            runner.high_watermark,
            self.clock.now_ms(),
            has_lease=self.standing.has_lease,
        )

    async def _compact(self, runner: PartitionRunner) -> None:
        if runner.is_closed:
            return
        run = runner.upkeep.begin_compaction(self._tombstone_end(runner))
        if run is None:
            return
        began_ms = self.clock.now_ms()
        try:
            while not run.is_done:
                slice_began_ms = self.clock.now_ms()
                worked = await runner.upkeep.compact_slice(run)
                self.counts.worked_bytes += worked
                now_ms = self.clock.now_ms()
                rest_ms = REST_SHARE * (now_ms - slice_began_ms)
                await self.clock.sleep(max(rest_ms, self._throttle.pause_ms(worked, now_ms)))
            if run.is_void:
                return
        except MilenaError as error:
            self._rest(runner, error)
            if isinstance(error, CorruptLogError):
                runner.on_doubt(None)
            return
        finally:
            runner.upkeep.end_compaction(run)
        self._count(run)
        logger.info(
            "compacted partition=%s log_end=%d clean_end=%d bytes_before=%d bytes_after=%d records_removed=%d ms=%d",
            runner.name,
            runner.log.log_end_offset,
            runner.log.compaction.clean_end,
            run.bytes_before,
            run.bytes_after,
            run.counts.records,
            self.clock.now_ms() - began_ms,
        )

    def _count(self, run: CompactionRun) -> None:
        counts = self.counts
        counts.runs += 1
        counts.saved_bytes += run.bytes_before - run.bytes_after
        counts.removed_records += run.counts.records
        counts.last_run_ms = self.clock.wall_ms()

    def _rest(self, runner: PartitionRunner, error: MilenaError) -> None:
        self.counts.failures += 1
        self._resting[runner] = MonotonicMs(self.clock.now_ms() + FAILED_PAUSE_MS)
        log = logger.info if isinstance(error, DiskFullError) else logger.warning
        log("compaction failed partition=%s: %s", runner.name, error)
