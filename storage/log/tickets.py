"""Disk work that a log hands out, so that its owner need not wait for the disk.

The owner's thread begins a ticket and finishes it; ``run`` may happen on any thread in between, while the owner goes
on appending. A ticket holds pins, so that no file is closed under it, and nothing else of the log's state.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from milena.model.errors import DiskFullError
from storage.replica.folder import EPOCHS_NAME, ReplicaFiles
from storage.segments.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from storage.state.checkpoint import Checkpoint
from storage.state.producer_state import WriterSnapshot, encode_snapshot


class SyncTicket:
    """Makes durable what was written until it was begun.

    ``end_offset`` (exclusive) is what will be synced; a truncation in the meantime lowers it. ``data_bytes``: of the
    batches that were appended since the last one, as far as it is known.
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
        """Sync the files, older ones first, and then the names of new ones.

        Raises:
            DiskFailedError: stop the process.
        """
        for _, file in self._pinned:
            file.sync()
        if self._directory is not None:
            self._files.sync_directory(self._directory)

    def release(self) -> None:
        """Give up the pins; fine when it was done before."""
        for segment, _ in self._pinned:
            segment.unpin()
        self._pinned = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Content of a checkpoint that moves the recovery point, frozen when it was begun."""

    sync: SyncTicket
    sealed: tuple[tuple[Segment, WriterSnapshot], ...]
    """Rolled segments, and the writers' state after each."""
    indexes: tuple[tuple[str, bytes], ...]
    epochs: bytes
    writers: WriterSnapshot


class CheckpointTicket:
    """Moves the recovery point, and stores the high watermark.

    The recovery point passes a segment only after its bytes, index, time index, the epoch table and a snapshot of the
    writers' state are durable; hence the order of ``run``. ``lock`` keeps it apart from the owner's own changes of the
    same files; ``generation`` tells it that a truncation or a newer
    checkpoint came first, and that what it was about to write is void.
    """

    __slots__ = (
        "_generations",
        "_lock",
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
        lock: threading.Lock,
        generations: "Generations",
    ) -> None:
        self._replica = replica
        self._plan = plan
        self._lock = lock
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
        """The rolled segments that it seals; empty once it was released."""
        return tuple(segment for segment, _ in self._pinned)

    def run(self) -> None:
        """Write it all.

        Raises:
            DiskFailedError: stop the process.
        """
        with self._lock:
            if self.generation != self._generations.current:
                return
            stored = self._replica.checkpoint
            # The log start may have advanced since the ticket was begun, the recovery point may have moved.
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
                    # The rest is replaced in place: it needs no room, and matters more on a full disk.
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
        """Give up the pins; fine when it was done before."""
        if self._plan is not None:
            self._plan.sync.release()
        for segment, _ in self._pinned:
            segment.unpin()
        self._pinned = []


class Generations:
    """A counter that a truncation and a newer checkpoint raise: checkpoints of an older generation are void."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 0
