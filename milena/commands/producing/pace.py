"""When the next record is due, for so many a second (pure)."""

CATCH_UP_S = 1.0
"""What a sender that was held up may catch up with; what is more is let go, so that no flood follows a stall."""


class RecordSchedule:
    """A schedule: record n is due n / rate seconds after the first. Times are of any one clock."""

    def __init__(self, rate: float, *, catch_up_s: float = CATCH_UP_S) -> None:
        """``rate``: records a second, above 0."""
        self._interval_s = 1 / rate
        self._catch_up_s = catch_up_s
        self._due_s: float | None = None

    def next_due(self, now_s: float) -> float:
        """The moment of the next record; it may have passed."""
        if self._due_s is None:
            self._due_s = now_s
        else:
            self._due_s = max(self._due_s + self._interval_s, now_s - self._catch_up_s)
        return self._due_s
