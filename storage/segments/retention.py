"""Which segments a log may forget: by age, by size, and by an explicit log start. Pure.

Whole segments only, from the oldest on, and never beyond ``deletable_end``: the owner passes the least of its high
watermark and its synced end, so that nothing goes that a replica in sync may still need.
"""

from collections.abc import Sequence

from milena.model.types import NO_TIMESTAMP
from storage.segments.index import SegmentSummary

UNLIMITED = -1
"""For ``retention_ms`` and ``retention_bytes``: no bound."""


def retained_start(
    segments: Sequence[SegmentSummary],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    deletable_end: int,
) -> int:
    """The base offset of the first segment to keep; the end of the last when none is.

    Args:
        segments: all of them, oldest first, the active one included.
        now_ms: wall clock.
        retention_ms: how old a segment's youngest record may get; -1 for ever.
        retention_bytes: what must be left at least; -1 for no bound. The log exceeds it by less than a segment.
        deletable_end: no segment that ends above it goes.
    """
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    start = segments[0].base_offset
    for segment in segments:
        if segment.next_offset > deletable_end or segment.size_bytes == 0:
            break
        is_too_much = retention_bytes != UNLIMITED and excess >= segment.size_bytes
        if not is_too_much and not _is_too_old(segment, now_ms, retention_ms):
            break
        excess -= segment.size_bytes
        start = segment.next_offset
    return start


def _is_too_old(segment: SegmentSummary, now_ms: int, retention_ms: int) -> bool:
    return (
        retention_ms != UNLIMITED
        and segment.max_timestamp_ms != NO_TIMESTAMP
        and now_ms - segment.max_timestamp_ms > retention_ms
    )


def forgettable(segments: Sequence[SegmentSummary], log_start_offset: int) -> int:
    """How many segments, from the oldest on, lie wholly below ``log_start_offset``; never the last."""
    count = 0
    for segment in segments[:-1]:
        if segment.next_offset > log_start_offset:
            break
        count += 1
    return count
