"""When a log's recovery point moves, and which checkpoint still counts after it was written.

Recovery trusts everything below the recovery point without reading it. The owner's thread creates and finishes a
checkpoint's ticket (``tickets``). In between, the ticket may run on any thread, and holds the folder's lock while it
writes. If the owner cuts the log in that time, it takes the same lock and raises the generation (``void``). A ticket of
an older generation writes nothing.
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
        - while bytes lie behind the log end (``LogState.has_remains``), the recovery point does not move;
        - the newest snapshot of the writers' state below the high watermark is kept, and all snapshots above it.
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
        """Take the log's parts; ``scanned_bytes`` is the number of bytes that recovery had to read."""
        self._replica = replica
        self._state = state
        self._flushing = flushing
        self._generations = Generations()
        # Log end when the index file and the snapshot were last written; -1 if the log was cut since then.
        self._hinted_end_offset = NO_OFFSET if scanned_bytes else state.end_offset
        self.appended_bytes = scanned_bytes
        """Bytes since the last checkpoint that moved the recovery point; each append adds its own."""

    def begin(
        self, high_watermark: int, *, is_forced: bool = False, is_clean: bool = False
    ) -> CheckpointTicket | None:
        """Return a ticket for a checkpoint; None if the checkpoint would change nothing.

        The recovery point moves once ``checkpoint_bytes`` were appended, and whenever a segment is unsealed: closed to
        appends, but without an index file and a snapshot on the disk.

        Args:
            high_watermark: the partition's high watermark, as far as this replica knows.
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
            index=state.table.active.encode_index(),
            epochs=state.epochs.encode(),
            writers=state.writers.freeze(state.end_offset),
        )

    def finish(self, ticket: CheckpointTicket) -> None:
        """Take over the result of a ticket that has run: synced end, sealed segments; remove old snapshots."""
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
        """Make all tickets so far void, so that they write nothing. Hold the folder's lock if a ticket may be running.

        Otherwise a ticket could write a recovery point above the new log end.
        """
        self._generations.current += 1

    def note_cut(self) -> None:
        """Note that the log's end was cut, so that its index file and newest snapshot no longer match the log."""
        self._hinted_end_offset = NO_OFFSET

    def note_restart(self, offset: int) -> None:
        """Note that the log restarted empty at ``offset``, and that a snapshot at this offset is on the disk."""
        self._hinted_end_offset = offset
