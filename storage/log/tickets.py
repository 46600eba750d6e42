"""Tickets: disk work that a log hands out, so that the thread that owns the log does not wait for the disk.

The owner's thread creates a ticket. Any thread then calls ``run``, while the owner continues to append. At the end, the
owner's thread finishes the ticket. A ticket pins segments, which keeps their files open even if the segments are
removed. It shares no other state with the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from milena.model.errors import DiskFullError
from storage.replica.folder import EPOCHS_NAME, ReplicaFiles
from storage.segments.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from storage.state.checkpoint import Checkpoint
from storage.state.writer_snapshot import WriterSnapshot, encode_snapshot


class SyncTicket:
    """A sync of everything that was written before the ticket was created.

    Attributes:
        end_offset: end (exclusive) of the offsets to sync; a truncation before the ticket is finished lowers it.
        data_bytes: bytes of the batches that were appended since the last ticket; 0 if not counted.
    """

    __slots__ = ("_directory", "_files", "_pinned", "data_bytes", "end_offset")

    def __init__(
        self,
        replica: ReplicaFiles,
        segments: Sequence[Segment],
        end_offset: int,
        *,
        data_bytes: int = 0,
        has_names: bool,
    ) -> None:
        self._files = replica.files
        self._directory = replica.directory if has_names else None
        self._pinned = [(segment, segment.pin()) for segment in segments]
        self.end_offset = end_offset
        self.data_bytes = data_bytes

    def run(self) -> None:
        """Sync the files, older ones first, and then the names of new files.

        Raises:
            DiskFailedError: stop the process.
        """
        for _, file in self._pinned:
            file.sync()
        if self._directory is not None:
            self._files.sync_directory(self._directory)

    def release(self) -> None:
        """Release the pins; a second call does nothing."""
        for segment, _ in self._pinned:
            segment.unpin()
        self._pinned = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Content of a checkpoint that moves the recovery point, frozen when the ticket was created."""

    sync: SyncTicket
    sealed: tuple[tuple[Segment, WriterSnapshot], ...]
    """Segments that were closed since the last checkpoint, and the writers' state after each."""
    index: tuple[str, bytes]
    """Path and content of the active segment's index file."""
    epochs: bytes
    writers: WriterSnapshot


class CheckpointTicket:
    """A checkpoint that moves the recovery point and stores the high watermark.

    Recovery does not read batches below the recovery point. So ``run`` first makes everything durable that recovery
    needs instead: the batches, index, epoch table and a snapshot of the writers' state. If a truncation or
    a newer checkpoint raised the generation since the ticket was created, ``run`` writes nothing.
    """

    __slots__ = (
        "_generations",
        "_pinned",
        "_plan",
        "_replica",
        "checkpoint",
        "generation",
        "is_done",
    )

    def __init__(
        self,
        replica: ReplicaFiles,
        checkpoint: Checkpoint,
        plan: CheckpointPlan | None,
        *,
        generations: "Generations",
    ) -> None:
        self._replica = replica
        self._plan = plan
        self._generations = generations
        self._pinned = (
            [] if plan is None else [(segment, segment.pin()) for segment, _ in plan.sealed]
        )
        self.generation = generations.current
        self.checkpoint = checkpoint
        self.is_done = False
        """Whether the recovery point moved."""

    @property
    def sealed(self) -> tuple[Segment, ...]:
        """The closed segments that this checkpoint seals; empty after ``release``."""
        return tuple(segment for segment, _ in self._pinned)

    def run(self) -> None:
        """Write the checkpoint, unless it is void.

        Raises:
            DiskFailedError: stop the process.
        """
        with self._replica.lock:
            if self.generation != self._generations.current:
                return
            stored = self._replica.checkpoint
            # Since the ticket was created, the log start may have advanced and the recovery point may have moved.
            checkpoint = replace(
                self.checkpoint,
                recovery_point=stored.recovery_point,
                log_start_offset=max(self.checkpoint.log_start_offset, stored.log_start_offset),
                high_watermark=max(self.checkpoint.high_watermark, stored.high_watermark),
            )
            if self._plan is not None:
                try:
                    self._write(self._plan)
                    self.is_done = True
                    checkpoint = replace(checkpoint, recovery_point=self.checkpoint.recovery_point)
                except DiskFullError:
                    # The recovery point stays. The checkpoint file is still written: it is replaced in place and needs
                    # no room.
                    checkpoint = replace(checkpoint, is_clean=False)
            self._replica.store_checkpoint(checkpoint)

    def _write(self, plan: CheckpointPlan) -> None:
        plan.sync.run()
        files = self._replica.files
        for segment, file in self._pinned:
            if file.size() > segment.size_bytes:
                file.truncate(segment.size_bytes)
                file.sync()
            files.write_atomically(*segment.encode_index())
        files.write_atomically(*plan.index)
        files.write_atomically(self._replica.path(EPOCHS_NAME), plan.epochs)
        for snapshot in (*(snapshot for _, snapshot in plan.sealed), plan.writers):
            name = offset_name(snapshot.offset, SNAPSHOT_SUFFIX)
            files.write_atomically(self._replica.path(name), encode_snapshot(snapshot))

    def release(self) -> None:
        """Release the pins; a second call does nothing."""
        if self._plan is not None:
            self._plan.sync.release()
        for segment, _ in self._pinned:
            segment.unpin()
        self._pinned = []


class Generations:
    """A counter that truncations and newer checkpoints raise; checkpoints of an older generation are void."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 0
