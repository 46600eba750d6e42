"""How often a leader that fails is tried again, and how often that is logged. Pure: times come from the caller."""

RETRY_MS = 50
"""Between tries of a partition or leader that could not answer; short: a new leader is often a moment behind."""

UNREACHABLE_RETRY_MS_MAX = 200
"""Between tries of a node that refuses connections; the pauses double until then. What waits for a node that is back is
its place in the in-sync sets, and with it a rolling restart: with a second here, one of three nodes took 1 to 2 s
longer."""

LOGGED_EVERY_S = 10.0
"""At most one line about the failures of a leader in that time, but for the first."""


class LeaderRetries:
    """Of one leader's node, since it last answered."""

    __slots__ = ("_log_due_s", "_pause_ms", "_tried_s", "_unlogged", "has_failed")

    def __init__(self) -> None:
        self._tried_s = 0.0
        self.restart()

    def restart(self) -> None:
        """It answered: the next failure is a first one."""
        self.has_failed = False
        """Since then. Every answer looks at this, and at no more."""
        self._unlogged = 0
        self._log_due_s = float("-inf")
        self.hurry()

    def hurry(self) -> None:
        """There is news of it: try as often as at first."""
        self._pause_ms = RETRY_MS

    def begin(self, now_s: float) -> None:
        """A connection is tried."""
        self._tried_s = now_s

    def count(self, now_s: float) -> int:
        """A try failed. How many did since the last line about it, this one included; 0: write none."""
        self._unlogged += 1
        if now_s < self._log_due_s:
            return 0
        self._log_due_s = now_s + LOGGED_EVERY_S
        count, self._unlogged = self._unlogged, 0
        return count

    def pause_ms(self, now_s: float, *, is_unreachable: bool) -> float:
        """The wait until the next try. A connection that took its time to fail has waited already."""
        self.has_failed = True
        if not is_unreachable:
            return RETRY_MS
        took_ms = (now_s - self._tried_s) * 1000
        pause_ms = max(RETRY_MS, self._pause_ms - took_ms)
        self._pause_ms = min(2 * self._pause_ms, UNREACHABLE_RETRY_MS_MAX)
        return pause_ms
