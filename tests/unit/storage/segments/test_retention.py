"""Which segments may go."""

import pytest

from storage.segments.index import SegmentSummary
from storage.segments.retention import forgettable, retained_start

SEGMENTS = (
    SegmentSummary(0, 10, 1000, 100),
    SegmentSummary(10, 20, 1000, 200),
    SegmentSummary(20, 30, 1000, 150),
    SegmentSummary(30, 35, 500, 300),
)


def start(
    *,
    now_ms=1000,
    retention_ms=None,
    retention_bytes=None,
    deletable_end=35,
    segments=SEGMENTS,
):
    return retained_start(
        segments,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        deletable_end=deletable_end,
    )


def test_without_limits_everything_stays():
    assert start() == 0


@pytest.mark.parametrize(
    ("retention_ms", "kept"),
    [(899, 10), (900, 0), (800, 10), (799, 30), (700, 30), (699, 35)],
)
def test_segments_go_when_their_youngest_record_is_too_old(retention_ms, kept):
    """The third is older than the second but must wait for it: the log has no holes."""
    assert start(retention_ms=retention_ms) == kept


@pytest.mark.parametrize(
    ("retention_bytes", "kept"),
    [(3500, 0), (2501, 0), (2500, 10), (1500, 20), (1499, 20), (500, 30), (1, 30), (0, 35)],
)
def test_segments_go_while_enough_is_left(retention_bytes, kept):
    assert start(retention_bytes=retention_bytes) == kept


@pytest.mark.parametrize(
    ("deletable_end", "kept"), [(35, 35), (34, 30), (20, 20), (19, 10), (0, 0)]
)
def test_nothing_goes_above_what_every_replica_has(deletable_end, kept):
    assert start(retention_bytes=0, deletable_end=deletable_end) == kept


def test_a_segment_without_timestamps_stays():
    assert start(retention_ms=1, segments=(SegmentSummary(0, 10, 1000, -1),)) == 0


def test_an_empty_segment_is_no_reason_to_roll():
    assert start(retention_bytes=0, segments=(SegmentSummary(7, 7, 0, -1),)) == 7


@pytest.mark.parametrize(
    ("log_start", "count"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (35, 3), (99, 3)]
)
def test_only_whole_segments_below_the_log_start_go_and_never_the_last(log_start, count):
    assert forgettable(SEGMENTS, log_start) == count
