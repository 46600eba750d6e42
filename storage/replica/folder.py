"""The folder of one replica: its files, and the steps that change several of them.

    meta                    the replica's partition, its health, a change in progress (``storage.replica.meta``)
    checkpoint              recovery point, log start, high watermark (``storage.state.checkpoint``)
    leader-epochs           start offset of each epoch (``storage.state.leader_epochs``)
    <20 digits>.log         batches from this offset on (``storage.segments.segment``)
    <20 digits>.index       a hint, rebuilt from the log if it does not match (``storage.segments.index``)
    <20 digits>.producers   the writers' state after all batches below this offset (``storage.state.writer_snapshot``)
    compaction              how far the log was compacted (``storage.compaction.mark``)
    *.cleaned, *.swap       segments with which compaction is about to replace others (``segment_swap``)

A change is durable when its function returns, unless the docstring says otherwise. This module does not read batches.
"""

import threading
from dataclasses import dataclass, field

from msgspec.structs import replace

from milena.disk.files import Files
from milena.model.errors import CorruptLogError, DiskFullError
from milena.model.types import NO_OFFSET, ReplicaHealth
from storage.replica.meta import MetaFile, ReplicaMeta
from storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    Segment,
    offset_name,
    parse_offset_name,
)
from storage.state.checkpoint import Checkpoint, CheckpointFile
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState
from storage.state.writer_snapshot import decode_snapshot, encode_snapshot

EPOCHS_NAME = "leader-epochs"
COMPACTION_NAME = "compaction"


@dataclass(slots=True, kw_only=True)
class ReplicaFiles:
    """The folder of one replica and the small files in it."""

    files: Files
    directory: str
    meta_file: MetaFile
    checkpoint_file: CheckpointFile
    meta: ReplicaMeta
    checkpoint: Checkpoint
    index_interval_bytes: int
    reason: str = ""
    """Why the replica is not sound, if this was found before recovery started."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Hold it to change files here: checkpoints and compaction may run on other threads than the owner's."""

    def path(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.directory}/{name}"

    def store_meta(self, meta: ReplicaMeta) -> None:
        """Replace the meta file, durably, if the content differs."""
        if meta != self.meta:
            self.meta_file.store(meta)
            self.meta = meta

    def store_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, durably, if the content differs."""
        if checkpoint != self.checkpoint:
            self.checkpoint_file.store(checkpoint)
            self.checkpoint = checkpoint

    def offsets_of(self, suffix: str) -> list[int]:
        """Return the offsets in the names of the files with this suffix, ascending."""
        names = self.files.list_directory(self.directory)
        offsets = (parse_offset_name(name, suffix) for name in names)
        return [offset for offset in offsets if offset is not None]

    def new_segment(self, base_offset: int) -> Segment:
        """Create an empty segment; its name is not durable yet."""
        segment = self.segment(base_offset)
        segment.create_file()
        return segment

    def segment(self, base_offset: int) -> Segment:
        """Return a segment with an empty index, whatever is in its file."""
        return Segment(
            self.files,
            self.directory,
            base_offset,
            index_interval_bytes=self.index_interval_bytes,
        )

    def remove_segment(self, base_offset: int) -> None:
        """Remove the files of a segment."""
        self.remove_index(base_offset)
        self.files.remove(self.path(offset_name(base_offset, LOG_SUFFIX)))

    def remove_index(self, base_offset: int) -> None:
        """Remove the index file of a segment; recovery then reads all of its batches."""
        self.files.remove(self.path(offset_name(base_offset, INDEX_SUFFIX)))

    @property
    def log_start_offset(self) -> int:
        """The first readable offset, as far as the checkpoint knows."""
        return self.checkpoint.log_start_offset

    def lower_checkpoint(self, offset: int) -> None:
        """Lower the recovery point and the high watermark to at most ``offset``, durably."""
        checkpoint = self.checkpoint
        if max(checkpoint.recovery_point, checkpoint.high_watermark) > offset:
            lowered = Checkpoint(
                recovery_point=min(checkpoint.recovery_point, offset),
                log_start_offset=checkpoint.log_start_offset,
                high_watermark=min(checkpoint.high_watermark, offset),
            )
            self.store_checkpoint(lowered)

    def restart_at(self, offset: int) -> Segment:
        """Remove all segments and restart at ``offset``; return the new, empty segment.

        The caller first announces the change in the meta file. If a crash interrupts this method, recovery calls it
        again, and every step may be repeated. The last step removes the announcement. A snapshot of the writers' state
        at ``offset`` is kept.
        """
        for base_offset in reversed(self.offsets_of(LOG_SUFFIX)):
            self.remove_segment(base_offset)
        for snapshot_offset in self.offsets_of(SNAPSHOT_SUFFIX):
            if snapshot_offset != offset:
                self.files.remove(self.path(offset_name(snapshot_offset, SNAPSHOT_SUFFIX)))
        self.files.remove(self.path(EPOCHS_NAME))
        self.files.remove(self.path(COMPACTION_NAME))
        self.store_checkpoint(
            Checkpoint(recovery_point=offset, log_start_offset=offset, high_watermark=offset)
        )
        segment = self.new_segment(offset)
        self.files.sync_directory(self.directory)
        self.store_meta(replace(self.meta, change=None))
        return segment


def read_epochs(replica: ReplicaFiles) -> LeaderEpochs:
    """Return the table in the epoch file; empty if there is no valid file."""
    try:
        return LeaderEpochs.decode(replica.files.read_bytes(replica.path(EPOCHS_NAME)))
    except (FileNotFoundError, CorruptLogError):
        return LeaderEpochs()


def write_truncated_epochs(replica: ReplicaFiles, epochs: LeaderEpochs) -> None:
    """Write a table of epochs from which cut ones were removed, durably.

    If the disk is full, remove the file instead; recovery rebuilds it from the log.
    """
    path = replica.path(EPOCHS_NAME)
    try:
        replica.files.write_atomically(path, epochs.encode())
    except DiskFullError:
        replica.files.remove(path)
        replica.files.sync_directory(replica.directory)


def load_writers(replica: ReplicaFiles, end_offset: int) -> tuple[WriterState, int]:
    """Return the state in the newest valid snapshot at or below ``end_offset``, and the snapshot's offset.

    Without a snapshot, the state is empty and the offset is 0.
    """
    writers = WriterState()
    for offset in reversed(replica.offsets_of(SNAPSHOT_SUFFIX)):
        if offset > end_offset:
            continue
        try:
            content = replica.files.read_bytes(replica.path(offset_name(offset, SNAPSHOT_SUFFIX)))
            snapshot = decode_snapshot(content)
        except CorruptLogError:
            continue
        if snapshot.offset == offset:
            writers.install(snapshot)
            return writers, offset
    return writers, 0


def write_snapshot(replica: ReplicaFiles, writers: WriterState, offset: int) -> None:
    """Write the writers' state as the snapshot at ``offset``, durably.

    Raises:
        DiskFullError: no space; the previous file is unchanged.
    """
    path = replica.path(offset_name(offset, SNAPSHOT_SUFFIX))
    replica.files.write_atomically(path, encode_snapshot(writers.freeze(offset)))


def open_replica(
    files: Files,
    directory: str,
    wanted: ReplicaMeta,
    *,
    index_interval_bytes: int,
    is_listed: bool,
) -> ReplicaFiles:
    """Open the folder of a replica; create it if it is missing.

    Args:
        files: the file system.
        directory: the folder.
        wanted: the partition that the folder must belong to.
        index_interval_bytes: bytes between two entries of the sparse index.
        is_listed: whether the manifest lists the replica.

    Raises:
        CorruptLogError: the folder belongs to another partition.
        DiskFullError: no room for a new replica.
    """
    replica = ReplicaFiles(
        files=files,
        directory=directory,
        meta_file=MetaFile(files, directory),
        checkpoint_file=CheckpointFile(files, directory),
        meta=wanted,
        checkpoint=Checkpoint(),
        index_interval_bytes=index_interval_bytes,
    )
    try:
        meta = replica.meta_file.load()
    except CorruptLogError:
        meta = None
    if meta is None:
        _make_meta(replica, is_listed=is_listed)
    elif (meta.topic_id, meta.partition) != (wanted.topic_id, wanted.partition):
        raise CorruptLogError(
            f"{directory} belongs to partition {meta.partition} of topic {meta.topic_id}, "
            f"not to partition {wanted.partition} of {wanted.topic_id}"
        )
    else:
        replica.meta = meta
    try:
        checkpoint = replica.checkpoint_file.load()
    except CorruptLogError:
        checkpoint = None
    replica.checkpoint = checkpoint or Checkpoint(recovery_point=NO_OFFSET, is_whole=False)
    return replica


def _make_meta(replica: ReplicaFiles, *, is_listed: bool) -> None:
    """Create the replica. If the manifest lists it, files are lost: record this as its health in the new meta file."""
    files, directory = replica.files, replica.directory
    is_there = files.exists(directory)
    if is_there and is_listed and replica.offsets_of(LOG_SUFFIX):
        replica.reason = "the meta file is lost"
        replica.meta = replace(replica.meta, health=ReplicaHealth.SUSPECT)
        replica.meta_file.store(replica.meta)
        return
    if is_there:
        files.remove_tree(directory)
    files.make_directory(directory)
    if is_listed:
        replica.reason = "the files of the replica are gone"
        replica.meta = replace(replica.meta, health=ReplicaHealth.DAMAGED)
    segment = replica.new_segment(0)
    segment.let_go()
    replica.checkpoint_file.store(Checkpoint())
    files.sync_directory(directory)
    # The meta file is written last, because a folder with a meta file counts as complete.
    replica.meta_file.store(replica.meta)
