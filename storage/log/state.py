"""A log's memory of itself: where it begins and ends, its segments, epochs and writers.

One object, because each of those who change a log changes several of these at once: an append (``partition_log``), a
roll (``rolling``), a cut (``cutting``) and a new log start (``log_start``). Which of its states are sound is what the
invariants of ``PartitionLog`` say; here are no steps and no files.
"""

from storage.log.reader import Bounds
from storage.segments.table import SegmentTable
from storage.segments.tail import NO_TAIL, Tail
from storage.segments.uncommitted import Uncommitted, UncommittedMemory
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState


class LogState:
    """See the module. The owner's thread alone assigns; readers on others look at the bounds, the table and the tail.

    Attributes:
        name: of the partition, for messages.
        table: the segments.
        epochs: where each leader epoch begins.
        writers: what is known of producers and idempotency keys at the log end.
        start_offset: first readable offset.
        end_offset: next offset to be written.
        has_remains: files of a damaged replica lie behind the log end and must go before it grows.
        tail: the last append, for those who ask for it right away.
        uncommitted: the last large ones, likewise.
    """

    __slots__ = (
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
        table: SegmentTable,
        epochs: LeaderEpochs,
        writers: WriterState,
        *,
        log_start_offset: int,
        has_remains: bool,
        memory: UncommittedMemory,
    ) -> None:
        """``log_start_offset``: of the checkpoint; the log may begin above it."""
        self.name = name
        self.table = table
        self.epochs = epochs
        self.writers = writers
        self.start_offset = max(log_start_offset, table.bases[0])
        self.end_offset = table.active.next_offset
        self.has_remains = has_remains
        self.tail: Tail = NO_TAIL
        self.uncommitted = Uncommitted(memory)

    def forget_appended(self) -> None:
        """The log was cut: what was appended last may be there no more."""
        self.tail = NO_TAIL
        self.uncommitted.forget()

    def bounds(self) -> Bounds:
        """The range of offsets that may be read now."""
        return Bounds(self.start_offset, self.end_offset, self.name)
