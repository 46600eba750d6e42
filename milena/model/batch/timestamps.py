"""Bounds of a topic for the timestamps of producers. Source: KIP-937.

A timestamp in the wrong unit is the usual mistake: one in seconds is a day of January 1970, and retention by time would
delete the record at once. One in microseconds is thousands of years ahead, and would keep its segment for ever.
"""

from typing import NamedTuple

from milena.model.errors import InvalidRecordError

AFTER_MS = 3_600_000
"""How far ahead of the node's clock a producer's timestamp may be by default, as in Kafka."""

BEFORE = "message.timestamp.before.max.ms"
AFTER = "message.timestamp.after.max.ms"

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: the last that other systems can write down."""
_UNITS = ((1_000, 1, "seconds"), (1, 1_000, "microseconds"), (1, 1_000_000, "nanoseconds"))
"""Factor and divisor that make milliseconds of what is in another unit."""


class TimestampBounds(NamedTuple):
    """How far before and after the node's clock a timestamp may be; None: however far."""

    before_ms: int | None = None
    after_ms: int | None = AFTER_MS

    def range_at(self, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest timestamp that are taken now."""
        earliest = 0 if self.before_ms is None else max(0, now_ms - self.before_ms)
        latest = TIMESTAMP_MS_MAX if self.after_ms is None else now_ms + self.after_ms
        return earliest, min(latest, TIMESTAMP_MS_MAX)

    def refusal(self, timestamp_ms: int, now_ms: int) -> InvalidRecordError:
        """Why a record is not stored whose timestamp is out of range."""
        earliest, latest = self.range_at(now_ms)
        if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            text = (
                f"timestamp {timestamp_ms} is not between 0 and {TIMESTAMP_MS_MAX} (ms since 1970)"
            )
        elif timestamp_ms > latest:
            text = (
                f"timestamp {timestamp_ms} is too far ahead of the node's clock "
                f"(the latest allowed is {latest}, by the topic's {AFTER}={self.after_ms})"
            )
        else:
            text = (
                f"timestamp {timestamp_ms} is too far before the node's clock "
                f"(the earliest allowed is {earliest}, by the topic's {BEFORE}={self.before_ms})"
            )
        for factor, divisor, unit in _UNITS:
            if abs(timestamp_ms * factor // divisor - now_ms) < abs(timestamp_ms - now_ms) and (
                earliest <= timestamp_ms * factor // divisor <= latest
            ):
                return InvalidRecordError(f"{text}; it looks like {unit}: send milliseconds")
        return InvalidRecordError(text)


USUAL_TIMESTAMPS = TimestampBounds()
"""Of a topic that sets nothing."""
ANY_TIMESTAMP = TimestampBounds(None, None)
"""Of a topic whose records have the leader's time: nobody sees what their producers said."""
