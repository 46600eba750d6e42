"""Decide when the next record is due, at a given rate (pure)."""

CATCH_UP_S = 1.0
"""How much delay a sender may catch up, in seconds. More is dropped, so that a stall is not followed by a burst."""


class RecordSchedule:
    """A schedule: record n is due n / rate seconds after the first. Any one clock may give the times."""

    def __init__(self, rate: float, *, catch_up_s: float = CATCH_UP_S) -> None:
        """Build a schedule. ``rate`` is in records per second, above 0."""
        self._interval_s = 1 / rate
        self._catch_up_s = catch_up_s
        self._due_s: float | None = None

    def next_due(self, now_s: float) -> float:
        """Return the time of the next record; it may have passed."""
        if self._due_s is None:
            self._due_s = now_s
        else:
            self._due_s = max(self._due_s + self._interval_s, now_s - self._catch_up_s)
        return self._due_s
