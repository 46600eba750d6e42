"""How far one log is compacted, what remains to be done, and the run that does it.

Only the thread of ``partition_log`` calls this module. It decides when a run may start, and it takes over the result of
each slice. ``compaction.policy`` decides what is removed, and ``compaction.run`` does the work.
"""

import threading
from collections.abc import Mapping

from milena.model.batch.header import decode_header
from milena.model.types import NO_OFFSET, ReplicaHealth
from storage.compaction.mark import NOTHING_COMPACTED, read_mark, remove_mark
from storage.compaction.policy import CompactionNeed, LogSurvey, assess
from storage.compaction.run import CompactionRun, RunPlan
from storage.log.flushing import Flushing
from storage.log.reader import Bounds, read_span
from storage.replica.folder import ReplicaFiles
from storage.segments.log_config import LogConfig
from storage.segments.segment import Segment
from storage.segments.table import SegmentTable
from storage.state.transactions import AbortedRange, Identity


class LogCompaction:
    """The compaction of one log.

    Invariants:
        - at most one run is in progress;
        - a run gets only closed segments whose bytes and indexes are durable and whose records are committed;
        - nothing at or above ``clean_end`` of the current log was compacted.
    """

    __slots__ = ("_dirty_since", "_flushing", "_lock", "_mark", "_replica", "_run", "_table")

    def __init__(
        self,
        replica: ReplicaFiles,
        table: SegmentTable,
        flushing: Flushing,
        *,
        lock: threading.Lock,
        log_end_offset: int,
    ) -> None:
        """Read the mark from the folder; ``lock`` keeps a run apart from the owner's changes of the same files."""
        self._replica = replica
        self._table = table
        self._flushing = flushing
        self._lock = lock
        self._run: CompactionRun | None = None
        self._dirty_since: tuple[int, int | None] = (NO_OFFSET, None)
        self._mark, _ = read_mark(replica)
        if self._mark.clean_end > log_end_offset:
            self._forget()

    @property
    def clean_end(self) -> int:
        """Offset below which the log is compacted."""
        return self._mark.clean_end

    def need(
        self,
        bounds: Bounds,
        config: LogConfig,
        *,
        now_ms: int,
        high_watermark: int,
        tombstone_end: int,
    ) -> CompactionNeed:
        """Estimate what a run would do now; see ``PartitionLog.compaction_need``."""
        survey = LogSurvey(
            segments=tuple(segment.summary for segment in self._compactable(high_watermark)),
            clean_end=self._mark.clean_end,
            dirty_since_ms=self._find_dirty_since(bounds, config),
            horizon_ms=self._mark.horizon_ms,
            tombstone_end=tombstone_end,
        )
        return assess(survey, config, now_ms)

    def _compactable(self, high_watermark: int) -> list[Segment]:
        """Return the closed segments whose bytes and indexes are durable and whose records are committed."""
        limit = min(
            high_watermark, self._flushing.synced_end, self._replica.checkpoint.recovery_point
        )
        segments = []
        for segment in self._table.segments[:-1]:
            if segment.next_offset > limit or segment in self._table.unsealed:
                break
            segments.append(segment)
        return segments

    def _find_dirty_since(self, bounds: Bounds, config: LogConfig) -> int | None:
        """Return the append time of the first batch that is not compacted; None if no lag limit needs it."""
        if config.max_compaction_lag_ms is None:
            return None
        start = max(self._mark.clean_end, bounds.start)
        if self._dirty_since[0] != start and start < bounds.end:
            span = read_span(
                self._table, bounds, start, max_bytes=1, end_offset=None, is_cached=False
            )
            assert span is not None, "only a read from the page cache may miss"
            self._dirty_since = (start, decode_header(span).append_time_ms)
        return self._dirty_since[1] if self._dirty_since[0] == start else None

    def begin(
        self,
        bounds: Bounds,
        config: LogConfig,
        *,
        now_ms: int,
        high_watermark: int,
        tombstone_end: int,
        aborted: Mapping[Identity, AbortedRange],
    ) -> CompactionRun | None:
        """Start a run if one is due and none is in progress; a replica that is not sound gets none."""
        if self._run is not None or self._replica.meta.health is not ReplicaHealth.SOUND:
            return None
        need = self.need(
            bounds,
            config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            tombstone_end=tombstone_end,
        )
        if not need.is_due:
            return None
        plan = RunPlan(
            segments=tuple(
                segment
                for segment in self._compactable(high_watermark)
                if segment.next_offset <= need.end_offset
            ),
            config=config,
            clean_end=self._mark.clean_end,
            end_offset=need.end_offset,
            now_ms=now_ms,
            tombstone_end=tombstone_end,
            aborted=aborted,
        )
        self._run = CompactionRun(self._replica, plan, log_lock=self._lock)
        return self._run

    def note(self, run: CompactionRun) -> None:
        """Take over the result of a step."""
        if run is not self._run:
            return
        swap, run.swap = run.swap, None
        if swap is not None:
            self._table.replace(swap.old, swap.segment)
        if run.mark is not None:
            self._mark = run.mark
        if run.is_done:
            self._run = None

    def void(self) -> None:
        """End the run, because the segments that it works on are about to change."""
        run = self._run
        if run is not None:
            run.void()
            self.note(run)

    def void_dropping(self) -> None:
        """End a run that may drop tombstones or markers, because a replica may soon copy the log."""
        if self._run is not None and self._run.tombstone_end:
            self.void()

    def void_above(self, offset: int) -> None:
        """End the run, because everything at and above ``offset`` is about to be cut."""
        self.void()
        if offset < self._mark.clean_end:
            # New batches, which are not compacted, will replace compacted ones.
            self._forget()

    def void_all(self) -> None:
        """End the run, because the log restarts; the mark's file is removed with the folder's other files."""
        self.void()
        self._mark = NOTHING_COMPACTED

    def _forget(self) -> None:
        self._mark = NOTHING_COMPACTED
        remove_mark(self._replica)
