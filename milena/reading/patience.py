"""How long a reader puts up with failures, and how long it waits between two attempts (pure)."""

FIRST_WAIT_MS = 20.0
"""An election takes a few hundred ms: the first attempts should not be what makes it longer."""
WAIT_MS_MAX = 1_000.0
BAD_ANSWERS_MAX = 5
"""Answers in a row that are damaged or no node's: a bad cable or a proxy passes, another kind of server does not."""


class Patience:
    """Failures in a row: counted, timed, and forgotten with the first success."""

    def __init__(self, limit_ms: float) -> None:
        self._limit_ms = limit_ms
        self._since_ms: float | None = None
        self._wait_ms = FIRST_WAIT_MS
        self._bad_answers = 0

    def on_success(self) -> None:
        """Something of use came."""
        self._since_ms = None
        self._wait_ms = FIRST_WAIT_MS
        self._bad_answers = 0

    def on_failure(self, now_ms: float, *, is_bad_answer: bool = False) -> float | None:
        """How long to wait before the next attempt; None when it is enough."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._bad_answers = self._bad_answers + 1 if is_bad_answer else 0
        left_ms = self._since_ms + self._limit_ms - now_ms
        if left_ms <= 0 or self._bad_answers >= BAD_ANSWERS_MAX:
            return None
        wait_ms = min(self._wait_ms, left_ms)
        self._wait_ms = min(2 * self._wait_ms, WAIT_MS_MAX)
        return wait_ms
