"""Which segments a log may remove: by age, by size, and by an explicit log start. Pure functions.

Only whole segments are removed, the oldest first, and never above ``deletable_end``. The owner passes the lower of its
high watermark and its synced end, so that records that an in-sync replica may still need are kept.
"""

from collections.abc import Sequence

from milena.model.types import NO_TIMESTAMP
from storage.segments.index import SegmentSummary


def retained_start(
    segments: Sequence[SegmentSummary],
    *,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
    deletable_end: int,
) -> int:
    """Return the base offset of the first segment to keep; the end of the last segment if none is kept.

    Args:
        segments: all segments, oldest first, including the active one.
        now_ms: wall clock.
        retention_ms: the highest age of a segment's youngest record; None = no limit.
        retention_bytes: at least this many bytes are kept, and less than a segment more; None = no limit.
        deletable_end: segments that end above this offset are kept.
    """
    excess = sum(segment.size_bytes for segment in segments) - (retention_bytes or 0)
    start = segments[0].base_offset
    for segment in segments:
        if segment.next_offset > deletable_end or segment.size_bytes == 0:
            break
        is_too_much = retention_bytes is not None and excess >= segment.size_bytes
        if not is_too_much and not _is_too_old(segment, now_ms, retention_ms):
            break
        excess -= segment.size_bytes
        start = segment.next_offset
    return start


def _is_too_old(segment: SegmentSummary, now_ms: int, retention_ms: int | None) -> bool:
    return (
        retention_ms is not None
        and segment.max_timestamp_ms != NO_TIMESTAMP
        and now_ms - segment.max_timestamp_ms > retention_ms
    )


def forgettable(segments: Sequence[SegmentSummary], log_start_offset: int) -> int:
    """Return how many segments, from the oldest on, lie wholly below ``log_start_offset``; never the last one."""
    count = 0
    for segment in segments[:-1]:
        if segment.next_offset > log_start_offset:
            break
        count += 1
    return count
