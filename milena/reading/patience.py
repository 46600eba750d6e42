"""How long a client tolerates failures, and how long it waits between two attempts (pure)."""

FIRST_WAIT_MS = 20.0
"""The first wait, in ms. It is short compared to an election, so that a client continues soon after one."""
WAIT_MS_MAX = 1_000.0
BAD_ANSWERS_MAX = 5
"""Give up after this many damaged or unexpected responses in a row: the server is probably no Milena node."""


class Patience:
    """Counts failures in a row, and the time since the first one. A success resets both."""

    def __init__(self, limit_ms: float) -> None:
        self._limit_ms = limit_ms
        self._since_ms: float | None = None
        self._wait_ms = FIRST_WAIT_MS
        self._bad_answers = 0

    def on_success(self) -> None:
        """Note a useful response."""
        self._since_ms = None
        self._wait_ms = FIRST_WAIT_MS
        self._bad_answers = 0

    def on_failure(self, now_ms: float, *, is_bad_answer: bool = False) -> float | None:
        """Return how long to wait before the next attempt, in ms; None if there should be no other attempt."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._bad_answers = self._bad_answers + 1 if is_bad_answer else 0
        left_ms = self._since_ms + self._limit_ms - now_ms
        if left_ms <= 0 or self._bad_answers >= BAD_ANSWERS_MAX:
            return None
        wait_ms = min(self._wait_ms, left_ms)
        self._wait_ms = min(2 * self._wait_ms, WAIT_MS_MAX)
        return wait_ms
