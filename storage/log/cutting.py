"""Cuts: how a log loses its end, or all of its batches.

    truncate_to    cuts what a follower has beyond its leader's log
    restart_at     drops everything, because the leader's log starts above this log's end
    begin_with     replaces an empty log's segment, because its first batch begins below the log start
    give_up_from   ends the log before damaged bytes; the bytes from there on are kept ("remains"), because they may be
                   the last copy of their records, and are cut when the log grows again

A cut that changes several files is first announced in the meta file. If the process ends in between, recovery finishes
the cut. Steps that need only the folder are in ``storage.replica.folder`` and ``truncation``.
"""

from msgspec.structs import replace

from milena.disk.files import Buffer
from milena.model.batch.header import BatchHeader
from milena.model.errors import (
    CorruptLogError,
    DiskFailedError,
    DiskFullError,
    ReplicaDamagedError,
)
from milena.model.types import ReplicaHealth
from storage.log.checkpointing import Checkpointing
from storage.log.flushing import Flushing
from storage.log.log_compaction import LogCompaction
from storage.log.state import LogState
from storage.log.truncation import remove_above, writers_at
from storage.replica.folder import ReplicaFiles, write_snapshot, write_truncated_epochs
from storage.replica.meta import Change, ChangeKind
from storage.segments.scrub import Damage
from storage.segments.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from storage.state.producer_state import WriterState
from storage.state.transactions import Transactions
from storage.state.writer_snapshot import decode_snapshot, encode_snapshot


class Cutting:
    """The cuts of one log.

    Invariants:
        - before the first step, older checkpoint tickets and a compaction in progress become void and write no more;
        - the recovery point on disk is lowered before anything is cut;
        - a cut that fails halfway stops the process; recovery then finishes the cut.
    """

    __slots__ = ("_checkpointing", "_compaction", "_flushing", "_replica", "_state")

    def __init__(
        self,
        replica: ReplicaFiles,
        state: LogState,
        flushing: Flushing,
        compaction: LogCompaction,
        checkpointing: Checkpointing,
    ) -> None:
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._compaction = compaction
        self._checkpointing = checkpointing

    # Truncation.

    def truncate_to(self, offset: int) -> None:
        """Cut everything at and above ``offset``, durably; a batch that holds ``offset`` is cut as a whole.

        Raises:
            DiskFailedError: stop the process. Also raised if the kept part is damaged; the next start finds the damage.
        """
        try:
            self._cut(offset)
        except CorruptLogError as error:
            # Half a cut leaves producer state of records that are gone, and a retry would be answered with their
            # offsets. So the process stops, and recovery judges the replica. Recovery does not read batches that an
            # index describes. The index is removed, so that recovery reads this segment and finds the damage.
            kept, _ = self._state.table.split_at(offset)
            with self._replica.lock:
                self._checkpointing.void()
                self._replica.lower_checkpoint(offset)
                self._replica.remove_index(kept[-1].base_offset)
                self._replica.files.sync_directory(self._replica.directory)
            raise DiskFailedError(
                f"cannot cut {self._state.name} at offset {offset}: {error}"
            ) from error

    def _cut(self, offset: int) -> None:
        state = self._state
        if offset >= state.end_offset and not state.has_remains:
            return
        self._compaction.void_above(offset)
        if offset < state.start_offset:
            # The segments that hold the writers' state at that offset are gone. Only newer state can be dropped.
            state.writers.forget_from(offset)
            self._empty_at(offset, state.writers)
            return
        offset = min(offset, state.end_offset)
        end_offset = self._end_after_cut(offset)
        if end_offset < state.start_offset:
            # The log start lies in the middle of the first batch, and this batch is cut. Nothing readable is left.
            writers = writers_at(self._replica, state.table, end_offset)
            self._empty_at(state.start_offset, writers)
            return
        with self._replica.lock:
            self._checkpointing.void()
            self._truncate(offset)

    def _end_after_cut(self, offset: int) -> int:
        """Return the base offset of the batch that holds ``offset``, or the log end."""
        kept, _ = self._state.table.split_at(offset)
        return kept[-1].locate(offset)[1]

    def _empty_at(self, offset: int, writers: WriterState) -> None:
        """Drop all batches and restart at ``offset``; keep ``writers`` as the state of the writers there."""
        self.restart_at(offset, encode_snapshot(writers.freeze(offset)))

    def _truncate(self, offset: int) -> None:
        """Run the steps of a truncation; if it crosses segments, the meta file announces it to recovery."""
        state, replica = self._state, self._replica
        kept, dropped = state.table.split_at(offset)
        end_offset = kept[-1].locate(offset)[1]
        has_steps = bool(dropped) or state.has_remains
        if has_steps:
            change = Change(ChangeKind.TRUNCATE, end_offset)
            replica.store_meta(replace(replica.meta, change=change))
        replica.lower_checkpoint(end_offset)
        if state.epochs.truncate_to(end_offset):
            write_truncated_epochs(replica, state.epochs)
        self._checkpointing.note_cut()
        state.forget_appended()
        state.table.drop_last(kept)
        state.end_offset = end_offset
        remove_above(replica, end_offset=end_offset, last_base_offset=kept[-1].base_offset)
        kept[-1].truncate_to(offset)
        self._flushing.note_truncation(end_offset)
        state.writers = writers_at(replica, state.table, end_offset)
        if has_steps:
            replica.files.sync_directory(replica.directory)
            state.has_remains = False
            replica.store_meta(replace(replica.meta, change=None))

    # A restart at another offset.

    def restart_at(self, offset: int, producer_snapshot: bytes | None = None) -> None:
        """Drop all batches and restart the empty log at ``offset``, where the leader's log starts.

        Args:
            offset: the new log start and log end.
            producer_snapshot: result of the leader's ``PartitionLog.producer_snapshot``.

        Raises:
            CorruptLogError: the snapshot is damaged; nothing has changed.
            DiskFullError: nothing has changed, or the next start finishes the restart.
            DiskFailedError: stop the process.
        """
        writers = WriterState()
        if producer_snapshot is not None:
            writers.install(decode_snapshot(producer_snapshot))
        # An empty log has no batch of any transaction.
        writers.transactions = Transactions()
        self._compaction.void_all()
        state, replica = self._state, self._replica
        with self._replica.lock:
            self._checkpointing.void()
            # If a snapshot with this name exists, it describes the log before the restart. Replace it.
            write_snapshot(replica, writers, offset)
            change = Change(ChangeKind.RESTART, offset)
            replica.store_meta(replace(replica.meta, change=change))
            state.table.replace_all(replica.restart_at(offset))
        state.forget_appended()
        state.epochs.clear()
        state.writers = writers
        state.has_remains = False
        state.start_offset = state.end_offset = offset
        self._checkpointing.note_restart(offset)
        self._flushing.note_restart(offset)

    def begin_with(self, header: BatchHeader, batch: Buffer) -> Segment:
        """Start an empty log with a batch that begins below the log start; return its new segment.

        The batch is written into the segment, but the caller must still add it to the segment's index. If the process
        ends before the checkpoint is lowered, recovery removes the new segment as one below the log start.

        Raises:
            DiskFullError: nothing has changed.
            DiskFailedError: stop the process.
        """
        self._compaction.void()
        state, replica = self._state, self._replica
        segment = replica.new_segment(header.base_offset)
        try:
            segment.write([batch], header.batch_bytes, allocation_end=0)
            write_snapshot(replica, state.writers, header.base_offset)
        except DiskFullError:
            segment.remove()
            raise
        with self._replica.lock:
            self._checkpointing.void()
            replica.lower_checkpoint(header.base_offset)
        empty = state.table.active
        state.epochs.clear()
        self._checkpointing.note_cut()
        state.table.replace_all(segment)
        # Pass the log end and not the batch's base offset: offsets below the log start need no sync.
        self._flushing.note_truncation(state.end_offset)
        self._flushing.note_name()
        empty.remove()
        replica.files.remove(replica.path(offset_name(empty.base_offset, SNAPSHOT_SUFFIX)))
        return segment

    # Damage.

    def give_up_from(self, damage: Damage) -> None:
        """End the log before the damage and mark the replica damaged; no bytes are cut until the log grows again.

        Raises:
            DiskFailedError: stop the process.
        """
        offset = damage.offset
        self._compaction.void_above(offset)
        state, replica = self._state, self._replica
        with self._replica.lock:
            self._checkpointing.void()
            replica.store_meta(replace(replica.meta, health=ReplicaHealth.DAMAGED))
            kept, _ = state.table.split_at(offset)
            last = kept[-1]
            position = damage.position if last is damage.segment else last.size_bytes
            try:
                last.end_before(position, offset)
            except CorruptLogError as error:
                # Bytes before ``damage`` are damaged too. Recovery checks every byte of a damaged replica and finds
                # them.
                raise DiskFailedError(f"cannot give up a part of {state.name}: {error}") from error
            state.table.drop_last(kept)
            state.epochs.truncate_to(offset)
            state.writers.forget_from(offset)
            self._flushing.note_truncation(offset)
            state.has_remains = True
        state.forget_appended()
        state.end_offset = offset
        self._checkpointing.note_cut()

    def make_room(self) -> None:
        """Cut the remains, which are the bytes behind the log end, because a copy changes as its leader tells it.

        If a batch below the log end is damaged, too, the log is emptied instead. The leader has all batches.

        Raises:
            ReplicaDamagedError: the log is empty now, and begins at 0.
            DiskFailedError: stop the process.
        """
        if not self._state.has_remains:
            return
        try:
            with self._replica.lock:
                self._checkpointing.void()
                self._truncate(self._state.end_offset)
        except CorruptLogError as error:
            # Whatever the cut has done by now, a restart drops it, too.
            self.restart_at(0)
            raise ReplicaDamagedError(
                f"{self._state.name} was damaged below its end, too: it is emptied, and copied again from its leader"
            ) from error

    def _drop_remains(self) -> None:
        self._checkpointing.void()
        try:
            self._truncate(self._state.end_offset)
        except CorruptLogError as error:
            # A batch below the log end is damaged too. Only recovery reads these batches again and ends the log there.
            raise DiskFailedError(f"cannot restore {self._state.name}: {error}") from error

    def mark_sound(self) -> None:
        """Mark the replica sound: it was restored from its leader, or it was elected because no other replica was left.

        Raises:
            DiskFailedError: stop the process.
        """
        replica = self._replica
        with self._replica.lock:
            if self._state.has_remains:
                self._drop_remains()
            # Recovery marks a log suspect that ends below its high watermark. Lost records must not cause this again.
            replica.lower_checkpoint(self._state.end_offset)
            replica.store_meta(replace(replica.meta, health=ReplicaHealth.SOUND))
