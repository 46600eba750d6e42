"""When a segment is old enough to be closed, however small it is."""

from storage.errors import CorruptLogError
from storage.segment import Segment


class SegmentAge:
    """The age of a log's active segment: counted from its first batch, which is read once for each segment."""

    __slots__ = ("_segment", "_since_ms")

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._since_ms = 0

    def has_reached(self, roll_ms: int, segment: Segment, now_ms: int) -> bool:
        """Whether the first batch of ``segment``, which has one, was appended ``roll_ms`` ago."""
        if self._segment is not segment:
            self._segment, self._since_ms = segment, _first_append_ms(segment, now_ms)
        return now_ms - self._since_ms >= roll_ms


def _first_append_ms(segment: Segment, now_ms: int) -> int:
    """When the first batch was appended; counted from now where that cannot be read.

    A damaged batch is for those who read it to report, and no reason to stop.
    """
    try:
        return next(segment.headers_from(0))[1].append_time_ms
    except CorruptLogError:
        return now_ms
