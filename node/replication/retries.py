"""The pauses between attempts to reach a failing leader, and how often failures are logged. Pure."""

from node.config.budgets import RETRY_MS, UNREACHABLE_RETRY_MS_MAX

LOGGED_EVERY_S = 10.0
"""The shortest time between two log lines about failures of one leader."""


class LeaderRetries:
    """The failed attempts to reach one leader's node since its last response."""

    __slots__ = ("_log_due_s", "_pause_ms", "_tried_s", "_unlogged", "has_failed")

    def __init__(self) -> None:
        self._tried_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Start over after a response: the next failure counts as the first."""
        self.has_failed = False
        """Whether an attempt has failed since the last response. This field is all that a response has to check."""
        self._unlogged = 0
        self._log_due_s = float("-inf")
        self.hurry()

    def hurry(self) -> None:
        """Reset the pause to the shortest one: there is news that the leader may be back."""
        self._pause_ms = RETRY_MS

    def begin(self, now_s: float) -> None:
        """Note that a connection attempt starts."""
        self._tried_s = now_s

    def count(self, now_s: float) -> int:
        """Count a failed attempt; return the failures since the last log line, or 0 if no line is due."""
        self._unlogged += 1
        if now_s < self._log_due_s:
            return 0
        self._log_due_s = now_s + LOGGED_EVERY_S
        count, self._unlogged = self._unlogged, 0
        return count

    def pause_ms(self, now_s: float, *, is_unreachable: bool) -> float:
        """Return the wait before the next attempt. The time that the failed connection took counts as waited."""
        self.has_failed = True
        if not is_unreachable:
            return RETRY_MS
        took_ms = (now_s - self._tried_s) * 1000
        pause_ms = max(RETRY_MS, self._pause_ms - took_ms)
        self._pause_ms = min(2 * self._pause_ms, UNREACHABLE_RETRY_MS_MAX)
        return pause_ms
