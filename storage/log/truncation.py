"""Two steps of a truncation: remove files above the new log end, and rebuild the writers' state as of the new end."""

from storage.replica.folder import ReplicaFiles, load_writers
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name
from storage.segments.table import SegmentTable
from storage.state.producer_state import WriterState


def remove_above(replica: ReplicaFiles, *, end_offset: int, last_base_offset: int) -> None:
    """Remove the files of segments and snapshots above the log's new end, the highest first.

    Args:
        replica: the folder.
        end_offset: the new log end; a snapshot above it describes batches that are cut.
        last_base_offset: base offset of the last segment that stays.
    """
    for base_offset in reversed(replica.offsets_of(LOG_SUFFIX)):
        if base_offset > last_base_offset:
            replica.remove_segment(base_offset)
    for snapshot_offset in replica.offsets_of(SNAPSHOT_SUFFIX):
        if snapshot_offset > end_offset:
            replica.files.remove(replica.path(offset_name(snapshot_offset, SNAPSHOT_SUFFIX)))


def writers_at(replica: ReplicaFiles, table: SegmentTable, end_offset: int) -> WriterState:
    """Return the writers' state below ``end_offset``, rebuilt from the newest snapshot and the batches after it.

    Removing the entries of cut batches from the current state would not be enough. A cut batch may have replaced an
    older entry of its producer, and this older entry must be restored.
    """
    writers, offset = load_writers(replica, end_offset)
    start = max(offset, table.bases[0])
    for segment in table.above(start):
        position, _ = segment.locate(max(start, segment.base_offset))
        for _, header in segment.headers_from(position):
            if header.next_offset > end_offset:
                break
            writers.record(header, header.base_offset, header.append_time_ms)
    if writers.covers_offset > end_offset:
        writers.forget_from(end_offset)
    return writers
