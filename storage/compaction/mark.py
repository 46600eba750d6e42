"""How far a log was compacted, and the writers' state at that offset; a small file in the replica's folder.

The file only saves work. If it is missing or does not match the log, the whole log counts as new for the next run. The
writers' state covers the batches below ``clean_end``. A run continues from it to learn which batches retries may refer
to.
"""

from typing import NamedTuple

from milena.model.errors import CorruptLogError, DiskFullError
from storage.replica.folder import COMPACTION_NAME, ReplicaFiles
from storage.state.producer_state import WriterState
from storage.state.sealed import seal, unseal
from storage.state.writer_snapshot import decode_snapshot, encode_snapshot

_MAGIC = b"MCM1"
_NO_HORIZON = -1


class CompactionMark(NamedTuple):
    """Everything below ``clean_end`` is compacted; its tombstones may all be removed from ``horizon_ms`` on."""

    clean_end: int = 0
    horizon_ms: int | None = None


NOTHING_COMPACTED = CompactionMark()


def read_mark(replica: ReplicaFiles) -> tuple[CompactionMark, WriterState]:
    """Return the mark and the writers' state at it; both are empty if there is no valid file."""
    writers = WriterState()
    try:
        content = replica.files.read_bytes(replica.path(COMPACTION_NAME))
        clean_end, horizon_ms, snapshot = unseal(_MAGIC, content, tuple[int, int, bytes])
        writers.install(decode_snapshot(snapshot))
    except (FileNotFoundError, CorruptLogError):
        return NOTHING_COMPACTED, WriterState()
    return CompactionMark(clean_end, None if horizon_ms == _NO_HORIZON else horizon_ms), writers


def write_mark(replica: ReplicaFiles, mark: CompactionMark, writers: WriterState) -> None:
    """Replace the file, durably. On a full disk, remove it; the next run then starts from the beginning.

    Raises:
        DiskFailedError: stop the process.
    """
    horizon_ms = _NO_HORIZON if mark.horizon_ms is None else mark.horizon_ms
    snapshot = encode_snapshot(writers.freeze(mark.clean_end))
    try:
        replica.files.write_atomically(
            replica.path(COMPACTION_NAME), seal(_MAGIC, (mark.clean_end, horizon_ms, snapshot))
        )
    except DiskFullError:
        remove_mark(replica)


def remove_mark(replica: ReplicaFiles) -> None:
    """Forget, durably, how far the log was compacted."""
    replica.files.remove(replica.path(COMPACTION_NAME))
    replica.files.sync_directory(replica.directory)
