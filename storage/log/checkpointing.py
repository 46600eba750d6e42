"""When a log's recovery point moves, and which checkpoint still counts after it was written.

The owner's thread creates and finishes a checkpoint's ticket. In between, the ticket may run on any thread. A cut of
the log in the meantime takes the folder's lock, which the ticket holds while it writes. The cut makes older tickets
void (``void``).
"""

from milena.model.types import NO_OFFSET
from storage.log.flushing import Flushing
from storage.log.state import LogState
from storage.log.tickets import CheckpointPlan, CheckpointTicket, Generations
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import SNAPSHOT_SUFFIX, offset_name
from storage.state.checkpoint import Checkpoint


class Checkpointing:
    """The checkpoints of one log.

    Invariants:
        - a ticket of an older generation writes nothing and does not count;
        - the recovery point of a log with remains does not move;
        - the newest writers' snapshot below the high watermark is kept, and so are all snapshots above it.
    """

    __slots__ = (
        "_flushing",
        "_generations",
        "_hinted_end_offset",
        "_replica",
        "_state",
        "appended_bytes",
    )

    def __init__(
        self,
        replica: ReplicaFiles,
        state: LogState,
        flushing: Flushing,
        *,
        scanned_bytes: int,
    ) -> None:
        """Take the log's parts; ``scanned_bytes`` were read by recovery."""
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._generations = Generations()
        # Log end when the index files and the snapshot were last written; -1 if they do not match the log any more.
        self._hinted_end_offset = NO_OFFSET if scanned_bytes else state.end_offset
        self.appended_bytes = scanned_bytes
        """Bytes since the last checkpoint that moved the recovery point; each append adds its own."""

    def begin(
        self, high_watermark: int, *, is_forced: bool = False, is_clean: bool = False
    ) -> CheckpointTicket | None:
        """Return a ticket for a checkpoint; None if the checkpoint would change nothing.

        The recovery point moves once ``checkpoint_bytes`` were appended, and whenever a segment waits to be sealed.

        Args:
            high_watermark: the partition's, as far as this replica knows.
            is_forced: move the recovery point to the log end, even if little was appended.
            is_clean: the log is being closed.
        """
        state = self._state
        stored = self._replica.checkpoint
        unsealed = state.table.unsealed
        due_bytes = 0 if is_forced else state.config.checkpoint_bytes
        is_due = bool(unsealed) or self.appended_bytes >= due_bytes
        has_moved = state.end_offset != self._hinted_end_offset or bool(unsealed)
        plan = None
        if is_due and has_moved and not state.has_remains:
            # The new plan covers everything that an older ticket has not written yet.
            self.void()
            plan = self._plan()
        checkpoint = Checkpoint(
            recovery_point=stored.recovery_point if plan is None else state.end_offset,
            log_start_offset=state.start_offset,
            # Only a truncation lowers the high watermark, and it does so in the file.
            high_watermark=max(stored.high_watermark, min(high_watermark, state.end_offset)),
            is_clean=is_clean,
        )
        if plan is None and checkpoint == stored:
            return None
        return CheckpointTicket(self._replica, checkpoint, plan, generations=self._generations)

    def _plan(self) -> CheckpointPlan:
        state = self._state
        self.appended_bytes = 0
        return CheckpointPlan(
            sync=self._flushing.ticket_for_all(),
            sealed=tuple(state.table.unsealed.items()),
            indexes=state.table.active.encode_indexes(),
            epochs=state.epochs.encode(),
            writers=state.writers.freeze(state.end_offset),
        )

    def finish(self, ticket: CheckpointTicket) -> None:
        """Count a checkpoint that has run."""
        sealed = ticket.sealed
        ticket.release()
        if not ticket.is_done or ticket.generation != self._generations.current:
            return
        self._hinted_end_offset = ticket.checkpoint.recovery_point
        self._flushing.note_synced(ticket.checkpoint.recovery_point)
        self._state.table.mark_sealed(sealed)
        with self._replica.lock:
            self._remove_old_snapshots()

    def _remove_old_snapshots(self) -> None:
        """Keep all snapshots above the high watermark, and the newest one below it, which a truncation may need."""
        replica = self._replica
        limit = min(replica.checkpoint.high_watermark, replica.checkpoint.recovery_point)
        below = [offset for offset in replica.offsets_of(SNAPSHOT_SUFFIX) if offset <= limit]
        for offset in below[:-1]:
            replica.files.remove(replica.path(offset_name(offset, SNAPSHOT_SUFFIX)))

    def run(self, high_watermark: int, *, is_forced: bool = False, is_clean: bool = False) -> None:
        """Run a whole checkpoint on this thread; see ``begin``.

        Raises:
            DiskFailedError: stop the process.
        """
        ticket = self.begin(high_watermark, is_forced=is_forced, is_clean=is_clean)
        if ticket is not None:
            ticket.run()
            self.finish(ticket)

    def void(self) -> None:
        """Make all older tickets void. Hold the lock, unless no ticket can be writing."""
        self._generations.current += 1

    def note_cut(self) -> None:
        """Note that the log's end was cut: its index files and snapshot do not match any more."""
        self._hinted_end_offset = NO_OFFSET

    def note_restart(self, offset: int) -> None:
        """Note that the log is empty, at ``offset``, with a snapshot that matches."""
        self._hinted_end_offset = offset
