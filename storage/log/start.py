"""How a log loses its beginning: its start moves up, durably, and the segments below it are removed.

``segments.retention`` computes how far retention moves it (pure). A caller may also name the new start.
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
        - the log start in the checkpoint moves before a segment is removed, and never passes the synced end;
        - a segment is removed only after it is sealed: a snapshot then has the writers' state that came from it.
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
        *,
        compaction: LogCompaction,
        checkpointing: Checkpointing,
        rolling: Rolling,
        lock: threading.Lock,
    ) -> None:
        """Take the log's parts; ``lock`` keeps a checkpoint in progress apart from a change of the same file."""
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
            # Otherwise a power cut could leave a log that ends below its start.
            self._flushing.sync_all(state.end_offset)
        if offset == state.end_offset:
            # On a full disk the last segment stays for now. Its records can no longer be read in any case.
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
        """Remove segments below the log start that are sealed.

        Sealing writes a snapshot, which keeps the writers' state that came from the segment.
        """
        if self._count_forgettable():
            # A run may have replaced some of the segments.
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
        """Return where the log should start by age and size; records that an in-sync replica may need stay."""
        return retained_start(
            [segment.summary for segment in self._state.table.segments],
            now_ms=now_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            deletable_end=min(high_watermark, self._flushing.synced_end),
        )
