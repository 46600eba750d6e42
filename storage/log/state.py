"""A log's state in memory: where it starts and ends, its segments, epochs and writers.

The state is one object, because each operation changes several of its parts: an append (``partition_log``), a roll
(``rolling``), a cut (``cutting``) and a new log start (``start``). The invariants of ``PartitionLog`` say which states
are valid. This module holds the state; it does not change files.
"""

from storage.log.reader import Bounds
from storage.replica.recovery import RecoveredLog
from storage.segments.log_config import LogConfig
from storage.segments.table import SegmentTable
from storage.segments.tail import NO_TAIL, Tail
from storage.segments.uncommitted import Uncommitted, UncommittedMemory


class LogState:
    """The state of one log. Only the owner's thread changes it; other threads read the bounds, the table and the tail.

    Attributes:
        name: the partition's name, for messages.
        config: settings.
        table: the segments.
        epochs: where each leader epoch begins.
        writers: known producers, idempotency keys and transactions at the log end.
        start_offset: first readable offset.
        end_offset: next offset to be written.
        has_remains: a damaged log ends before its last bytes; they must be cut before the log grows.
        tail: the batches of the last append, if small. Followers fetch them at once, and then need no read of the file.
        uncommitted: the last large batches, kept for the same reason until they are committed.
    """

    __slots__ = (
        "config",
        "end_offset",
        "epochs",
        "has_remains",
        "name",
        "start_offset",
        "table",
        "tail",
        "uncommitted",
        "writers",
    )

    def __init__(
        self,
        name: str,
        config: LogConfig,
        recovered: RecoveredLog,
        *,
        log_start_offset: int,
        memory: UncommittedMemory,
    ) -> None:
        """Take the recovered log. It starts at ``log_start_offset`` (from the checkpoint) or its first segment's base.

        The higher of the two counts.
        """
        self.name = name
        self.config = config
        self.table = SegmentTable(recovered.segments, recovered.unsealed)
        self.epochs = recovered.epochs
        self.writers = recovered.writers
        self.start_offset = max(log_start_offset, self.table.bases[0])
        self.end_offset = self.table.active.next_offset
        self.has_remains = recovered.has_remains
        self.tail: Tail = NO_TAIL
        self.uncommitted = Uncommitted(memory)

    def forget_appended(self) -> None:
        """Forget the last appends, because the log was cut and may no longer have them."""
        self.tail = NO_TAIL
        self.uncommitted.forget()

    def bounds(self) -> Bounds:
        """Return the range of offsets that may be read now."""
        return Bounds(self.start_offset, self.end_offset, self.name)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch <= ``epoch`` and its end (exclusive); (-1, -1) without one."""
        return self.epochs.end_of(epoch, self.end_offset)
