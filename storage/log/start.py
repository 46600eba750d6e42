"""How a log loses its beginning: the log start moves up, durably, and segments below it are removed.

``segments.retention`` computes the new start from age and size. A caller may also pass one (``advance``).
"""

from dataclasses import replace

from storage.log.checkpointing import Checkpointing
from storage.log.cutting import Cutting
from storage.log.flushing import Flushing
from storage.log.log_compaction import LogCompaction
from storage.log.rolling import Rolling
from storage.log.state import LogState
from storage.replica.folder import ReplicaFiles
from storage.segments.retention import forgettable, retained_start


class LogStart:
    """The beginning of one log.

    Invariants:
        - the log start in the checkpoint moves before a segment is removed, and never passes the synced end;
        - a segment is removed only after it is sealed: a snapshot then holds the writers' state of its batches.
    """

    __slots__ = (
        "_checkpointing",
        "_compaction",
        "_cutting",
        "_flushing",
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
        cutting: Cutting,
        rolling: Rolling,
    ) -> None:
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._compaction = compaction
        self._checkpointing = checkpointing
        self._cutting = cutting
        self._rolling = rolling

    def advance(self, offset: int) -> None:
        """Make ``offset`` the first readable one, durably, and remove segments wholly below it.

        Raises:
            OffsetOutOfRangeError: above the log end; use ``Cutting.restart_at`` for that.
            ReplicaDamagedError: as ``Cutting.make_room``.
            DiskFailedError: stop the process.
        """
        state, replica = self._state, self._replica
        if offset <= state.start_offset:
            return
        if offset > state.end_offset:
            raise state.bounds().out_of_range(offset)
        # A new segment may start at the log end, where the remains lie.
        self._cutting.make_room()
        if offset > self._flushing.synced_end:
            # A power cut after the checkpoint below could otherwise leave a log that ends below its start.
            self._flushing.sync_all()
        if offset == state.end_offset:
            # If the disk is full, the last segment stays for now. Its records lie below the log start: they are not
            # read.
            self._rolling.try_roll()
        with replica.lock:
            replica.store_checkpoint(
                replace(replica.checkpoint, log_start_offset=offset, is_clean=False)
            )
        state.start_offset = offset
        state.epochs.advance_start(offset)
        state.writers.transactions.forget_below(offset)
        if any(segment.next_offset <= offset for segment in state.table.unsealed):
            self._checkpointing.run(replica.checkpoint.high_watermark)
        self._drop_forgettable()

    def _drop_forgettable(self) -> None:
        """Remove the sealed segments below the log start.

        Sealing has written a snapshot that holds the writers' state of their batches.
        """
        if self._count_forgettable():
            # ``void`` may put a compacted segment in the place of several, so the segments are counted again after it.
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

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Remove segments below the high watermark that are too old or exceed the size limit; return the log start.

        Raises:
            DiskFailedError: stop the process.
        """
        # Producers expire by time, and not when their segments are removed (KIP-360). So they also expire in topics
        # without retention.
        self._state.writers.expire(now_ms)
        if self._state.config.is_deleting:
            self.advance(self._retained(now_ms, high_watermark))
        # Segments that an earlier call could not remove, because they were not sealed, may be sealed now.
        self._drop_forgettable()
        return self._state.start_offset

    def _retained(self, now_ms: int, high_watermark: int) -> int:
        """Return where the log should start by age and size, at most at the high watermark or the synced end."""
        config = self._state.config
        return retained_start(
            [segment.summary for segment in self._state.table.segments],
            now_ms=now_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            deletable_end=min(high_watermark, self._flushing.synced_end),
        )
