"""How a log loses its beginning: its start moves up, durably, and the segments below it go.

``retention`` says how far, pure; what is forgotten here was asked for, by a caller or by age and size.
"""

import threading
from dataclasses import replace

from storage.log.checkpointing import Checkpointing
from storage.log.flushing import Flushing
from storage.log.log_compaction import LogCompaction
from storage.log.rolling import Rolling
from storage.log.state import LogState
from storage.replica.folder import ReplicaFiles
from storage.segments.log_config import LogConfig
from storage.segments.retention import forgettable, retained_start


class LogStart:
    """The beginning of one log.

    Invariants:
        - the log start in the checkpoint moves before a segment goes, and never passes the synced end;
        - a segment goes only once it is sealed: what the writers' state took from it is in a snapshot then.
    """

    __slots__ = (
        "_checkpointing",
        "_compaction",
        "_flushing",
        "_lock",
        "_replica",
        "_rolling",
        "_state",
    )

    def __init__(
        self,
        replica: ReplicaFiles,
        state: LogState,
        flushing: Flushing,
        compaction: LogCompaction,
        checkpointing: Checkpointing,
        rolling: Rolling,
        *,
        lock: threading.Lock,
    ) -> None:
        """``lock`` keeps a checkpoint under way apart from a change of the same file."""
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._compaction = compaction
        self._checkpointing = checkpointing
        self._rolling = rolling
        self._lock = lock

    def advance(self, offset: int) -> None:
        """Make ``offset``, above the log start and in a log without remains, the first readable one.

        Raises:
            DiskFailedError: stop the process.
        """
        state, replica = self._state, self._replica
        if offset > self._flushing.synced_end:
            # Else a power cut could leave a log that ends below its start.
            self._flushing.sync_all(state.end_offset)
        if offset == state.end_offset:
            # On a full disk the last segment stays for now; its records are out of reach all the same.
            self._rolling.try_roll()
        with self._lock:
            replica.store_checkpoint(
                replace(replica.checkpoint, log_start_offset=offset, is_clean=False)
            )
        state.start_offset = offset
        state.epochs.advance_start(offset)
        state.writers.transactions.forget_below(offset)
        if any(segment.next_offset <= offset for segment in state.table.unsealed):
            self._checkpointing.run(replica.checkpoint.high_watermark)
        self.drop_forgettable()

    def drop_forgettable(self) -> None:
        """Drop segments below the log start, but none that is not sealed.

        What the writers' state took from a segment outlives it in the snapshot that is made when it is sealed.
        """
        if self._count_forgettable():
            # A run may have put other segments in their place.
            self._compaction.void()
            self._state.table.drop_first(self._count_forgettable())

    def _count_forgettable(self) -> int:
        table = self._state.table
        summaries = []
        for segment in table.segments:
            summaries.append(segment.summary)
            if segment in table.unsealed:
                break
        return forgettable(summaries, self._state.start_offset)

    def retained(self, config: LogConfig, *, now_ms: int, high_watermark: int) -> int:
        """Where the log should start by age and size; nothing goes that a replica in sync may still need."""
        return retained_start(
            [segment.summary for segment in self._state.table.segments],
            now_ms=now_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            deletable_end=min(high_watermark, self._flushing.synced_end),
        )
