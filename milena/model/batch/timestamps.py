"""Limits of a topic for producers' timestamps. Source: KIP-937.

A timestamp in the wrong unit is the usual mistake. One in seconds is a day in January 1970, and retention by time would
delete the record at once. One in microseconds is thousands of years ahead, and would keep its segment for ever.
"""

from typing import NamedTuple

from milena.model.errors import InvalidRecordError

AFTER_MS = 3_600_000
"""Default limit of how far a timestamp may be ahead of the node's clock, as in Kafka."""

BEFORE = "message.timestamp.before.max.ms"
AFTER = "message.timestamp.after.max.ms"

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, which is the last time that other systems can represent."""
_UNITS = ((1_000, 1, "seconds"), (1, 1_000, "microseconds"), (1, 1_000_000, "nanoseconds"))
"""Factor and divisor that turn another unit into milliseconds."""


class TimestampBounds(NamedTuple):
    """How far before and after the node's clock a timestamp may be; None: no limit."""

    before_ms: int | None = None
    after_ms: int | None = AFTER_MS

    def range_at(self, now_ms: int) -> tuple[int, int]:
        """Return the earliest and the latest timestamp that are accepted now."""
        earliest = 0 if self.before_ms is None else max(0, now_ms - self.before_ms)
        latest = TIMESTAMP_MS_MAX if self.after_ms is None else now_ms + self.after_ms
        return earliest, min(latest, TIMESTAMP_MS_MAX)

    def refusal(self, timestamp_ms: int, now_ms: int) -> InvalidRecordError:
        """Return the error for a record whose timestamp is out of range."""
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
            if divisor > 1 and timestamp_ms <= TIMESTAMP_MS_MAX:
                # A time before the year 10000. In a smaller unit, it would be one before 1978.
                continue
            if abs(timestamp_ms * factor // divisor - now_ms) < abs(timestamp_ms - now_ms) and (
                earliest <= timestamp_ms * factor // divisor <= latest
            ):
                return InvalidRecordError(
                    f"{text}; it looks like {unit}: send milliseconds", is_time=True
                )
        return InvalidRecordError(text, is_time=True)


USUAL_TIMESTAMPS = TimestampBounds()
"""Limits of a topic with default settings."""
ANY_TIMESTAMP = TimestampBounds(None, None)
"""Limits of a topic whose records get the leader's time: readers never see the producer's timestamps."""
