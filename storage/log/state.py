"""A log's state in memory: where it starts and ends, its segments, epochs and writers.

Each operation changes several parts at once, so they are one object. The operations are an append (``partition_log``),
a roll (``rolling``), a cut (``cutting``) and a new log start (``start``). The invariants of ``PartitionLog`` say which
states are valid. This module has no steps and no files.
"""

from storage.log.reader import Bounds
from storage.replica.recovery import RecoveredLog
from storage.segments.log_config import LogConfig
from storage.segments.table import SegmentTable
from storage.segments.tail import NO_TAIL, Tail
from storage.segments.uncommitted import Uncommitted, UncommittedMemory


class LogState:
    """The state of one log. Only the owner's thread assigns; other threads read the bounds, the table and the tail.

    Attributes:
        name: the partition's name, for messages.
        config: settings.
        table: the segments.
        epochs: where each leader epoch begins.
        writers: known producers and idempotency keys at the log end.
        start_offset: first readable offset.
        end_offset: next offset to be written.
        has_remains: files of a damaged replica lie behind the log end and must go before it grows.
        tail: the last small append, for the followers that ask for it right after it.
        uncommitted: the last large appends, for the same reason.
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
        """Take the recovered log; it may start above ``log_start_offset``, which is the checkpoint's."""
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
