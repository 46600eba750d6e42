"""How far one log is compacted, what remains to be done, and the run that does it.

Only the thread that owns the log calls this module. ``LogCompaction`` decides when a run may start, and takes over the
result of each step. ``compaction.policy`` decides which records are removed, and ``compaction.run`` rewrites segments.
"""

from milena.model.batch.header import decode_header
from milena.model.types import NO_OFFSET, ReplicaHealth
from storage.compaction.mark import NOTHING_COMPACTED, read_mark, remove_mark
from storage.compaction.policy import CompactionNeed, LogSurvey, assess
from storage.compaction.run import CompactionRun, RunPlan
from storage.log.flushing import Flushing
from storage.log.reader import read_span
from storage.log.state import LogState
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import Segment


class LogCompaction:
    """The compaction of one log.

    Invariants:
        - at most one run is in progress;
        - a run gets only closed segments whose bytes and indexes are durable and whose records are committed;
        - no batch at or above ``clean_end`` was compacted.
    """

    __slots__ = ("_dirty_since", "_flushing", "_mark", "_replica", "_run", "_state")

    def __init__(self, replica: ReplicaFiles, state: LogState, flushing: Flushing) -> None:
        """Take the log's parts, and read the compaction mark, which says how far an earlier process compacted."""
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._run: CompactionRun | None = None
        self._dirty_since: tuple[int, int | None] = (NO_OFFSET, None)
        self._mark, _ = read_mark(replica)
        if self._mark.clean_end > state.end_offset:
            self._forget()

    @property
    def clean_end(self) -> int:
        """Offset below which the log is compacted."""
        return self._mark.clean_end

    def need(self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0) -> CompactionNeed:
        """Estimate what a run would do now, and whether it is due.

        Args:
            now_ms: wall clock.
            high_watermark: records at or above it stay; with transactions, pass the last stable offset.
            tombstone_end: every replica has all records below this offset, so tombstones there may be removed.
        """
        survey = LogSurvey(
            segments=tuple(segment.summary for segment in self._compactable(high_watermark)),
            clean_end=self._mark.clean_end,
            dirty_since_ms=self._find_dirty_since(),
            horizon_ms=self._mark.horizon_ms,
            tombstone_end=tombstone_end,
        )
        return assess(survey, self._state.config, now_ms)

    def _compactable(self, high_watermark: int) -> list[Segment]:
        """Return the closed segments whose bytes and indexes are durable and whose records are committed."""
        limit = min(
            high_watermark, self._flushing.synced_end, self._replica.checkpoint.recovery_point
        )
        segments = []
        for segment in self._state.table.segments[:-1]:
            if segment.next_offset > limit or segment in self._state.table.unsealed:
                break
            segments.append(segment)
        return segments

    def _find_dirty_since(self) -> int | None:
        """Return the append time of the first batch that is not compacted; None without such a batch or a lag limit."""
        if self._state.config.max_compaction_lag_ms is None:
            return None
        bounds = self._state.bounds()
        start = max(self._mark.clean_end, bounds.start)
        if self._dirty_since[0] != start and start < bounds.end:
            span = read_span(
                self._state.table, bounds, start, max_bytes=1, end_offset=None, is_cached=False
            )
            assert span is not None, "only a read from the page cache may miss"
            self._dirty_since = (start, decode_header(span).append_time_ms)
        return self._dirty_since[1] if self._dirty_since[0] == start else None

    def begin(
        self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0
    ) -> CompactionRun | None:
        """Start a run if one is due and none is in progress.

        Call ``step`` of the run on any thread, and ``note`` on the owner's thread after each step. A replica that is
        not sound gets no run. It may lack the newest record of a key, and a run would then keep an older one.
        """
        if self._state.has_remains or self._run is not None:
            return None
        if self._replica.meta.health is not ReplicaHealth.SOUND:
            return None
        need = self.need(now_ms, high_watermark, tombstone_end=tombstone_end)
        if not need.is_due:
            return None
        plan = RunPlan(
            segments=tuple(
                segment
                for segment in self._compactable(high_watermark)
                if segment.next_offset <= need.end_offset
            ),
            config=self._state.config,
            clean_end=self._mark.clean_end,
            end_offset=need.end_offset,
            now_ms=now_ms,
            tombstone_end=tombstone_end,
            aborted=self._state.writers.transactions.aborted,
        )
        self._run = CompactionRun(self._replica, plan)
        return self._run

    def note(self, run: CompactionRun) -> None:
        """Take over the result of a step: the segment that it replaced, and how far the log is compacted now."""
        if run is not self._run:
            return
        swap, run.swap = run.swap, None
        if swap is not None:
            self._state.table.replace(swap.old, swap.segment)
        if run.mark is not None:
            self._mark = run.mark
        if run.is_done:
            self._run = None
        # The run has removed the batches of transactions that were aborted below this offset.
        self._state.writers.transactions.forget_below(self.clean_end)

    def void(self) -> None:
        """End the run in progress, because the owner is about to change or remove segments that the run may read."""
        run = self._run
        if run is not None:
            run.void()
            self.note(run)

    def void_dropping(self) -> None:
        """End a run that may remove tombstones or transaction markers, because a new replica may soon copy the log.

        If a replica copied a record before the run and the log behind it after the run, it would miss the tombstone.
        """
        if self._run is not None and self._run.tombstone_end:
            self.void()

    def void_above(self, offset: int) -> None:
        """End the run, because everything at and above ``offset`` is about to be cut."""
        self.void()
        if offset < self._mark.clean_end:
            # New batches will take the offsets of compacted ones, and they are not compacted.
            self._forget()

    def void_all(self) -> None:
        """End the run, because the log restarts; the mark's file is removed with the folder's other files."""
        self.void()
        self._mark = NOTHING_COMPACTED

    def _forget(self) -> None:
        self._mark = NOTHING_COMPACTED
        remove_mark(self._replica)
