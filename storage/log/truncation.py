"""Parts of a truncation that need the replica's folder alone: which files go, and what is known of writers then."""

from storage.replica.folder import ReplicaFiles, load_writers
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name
from storage.segments.table import SegmentTable
from storage.state.producer_state import WriterState


def remove_above(replica: ReplicaFiles, *, end_offset: int, last_base_offset: int) -> None:
    """Remove the files of segments and snapshots that the log no longer reaches; the highest first.

    Args:
        replica: the folder.
        end_offset: the new log end; a snapshot above it tells of what is cut.
        last_base_offset: of the last segment that is left.
    """
    for base_offset in reversed(replica.offsets_of(LOG_SUFFIX)):
        if base_offset > last_base_offset:
            replica.remove_segment(base_offset)
    for snapshot_offset in replica.offsets_of(SNAPSHOT_SUFFIX):
        if snapshot_offset > end_offset:
            replica.files.remove(replica.path(offset_name(snapshot_offset, SNAPSHOT_SUFFIX)))


def writers_at(replica: ReplicaFiles, table: SegmentTable, end_offset: int) -> WriterState:
    """The writers' state below ``end_offset``, from the newest snapshot on.

    Forgetting the batches above is not the same: they may have pushed out what was there before.
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
