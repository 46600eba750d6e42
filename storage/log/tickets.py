"""Disk work that a log hands out, so that its owner need not wait for the disk.

The owner's thread creates a ticket and finishes it. ``run`` may run on any thread in between, while the owner continues
to append. A ticket holds pins, which keep its files open. It holds nothing else of the log's state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from milena.model.errors import DiskFullError
from storage.replica.folder import EPOCHS_NAME, ReplicaFiles
from storage.segments.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from storage.state.checkpoint import Checkpoint
from storage.state.producer_state import WriterSnapshot, encode_snapshot


class SyncTicket:
    """A sync of everything that was written before the ticket was created.

    ``end_offset`` (exclusive) is the end of what will be synced; a truncation in the meantime lowers it. ``data_bytes``
    counts the bytes of batches appended since the last ticket, as far as known.
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
    """Rolled segments, and the writers' state after each."""
    indexes: tuple[tuple[str, bytes], ...]
    epochs: bytes
    writers: WriterSnapshot


class CheckpointTicket:
    """A checkpoint that moves the recovery point and stores the high watermark.

    The recovery point passes a segment only after the segment is durable: its bytes, index, time index, the epoch table
    and a snapshot of the writers' state. This determines the order of ``run``. ``generation`` tells the ticket that a
    truncation or a newer checkpoint came first, and that its content is void.
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
        """The rolled segments that it seals; empty after ``release``."""
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
                    # The checkpoint file is replaced in place: it needs no room, and it matters more on a full disk.
                    checkpoint = replace(checkpoint, is_clean=False)
            self._replica.store_checkpoint(checkpoint)

    def _write(self, plan: CheckpointPlan) -> None:
        plan.sync.run()
        files = self._replica.files
        for segment, file in self._pinned:
            if file.size() > segment.size_bytes:
                file.truncate(segment.size_bytes)
                file.sync()
            for path, content in segment.encode_indexes():
                files.write_atomically(path, content)
        for path, content in plan.indexes:
            files.write_atomically(path, content)
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
