"""Decide how long a client tries while no node has ever responded to it (pure).

A cluster that has responded before is likely to respond again, after an election or a restart. So the client retries
for a minute or two. Before the first response, a wrong address is the likelier reason, so the client gives up sooner.
"""

CONNECT_TIMEOUT_MS = 10_000
"""How long a client tries to get the first response of any node, in ms."""

CONNECT_TIMEOUT_MS_MAX = 86_400_000
"""Largest value of ``connect_timeout_ms``: a day. It suits clients for which another limit ends the attempts."""

PAUSE_MS_MAX = 1_200
"""The longest pause between two attempts, with the default settings of retries, in ms: a second plus jitter."""

LATE_CALL_MS = 3_000
"""Timeout of a call that starts after the deadline, in ms. Such a call still finds a cluster that has come up."""


class FirstContact:
    """Whether any node has responded, and since when the client has tried. Owned by one event loop."""

    def __init__(self, timeout_ms: float) -> None:
        self.is_made = False
        """True once a node has responded, even with a refusal."""
        self.timeout_ms = timeout_ms
        self._since_ms: float | None = None
        self._failed_ms = 0.0
        self._reasons = ""
        self._is_told = False

    def deadline_ms(self, now_ms: float) -> float:
        """Return when a call that starts now must end; infinite after the first response."""
        if self.is_made:
            return float("inf")
        # If the last failed call is long ago, the program did something else in between: start the time again.
        if self._since_ms is None or now_ms - self._failed_ms > self.timeout_ms:
            self._since_ms = self._failed_ms = now_ms
        end_ms = self._since_ms + self.timeout_ms
        return end_ms if now_ms < end_ms else now_ms + LATE_CALL_MS

    def on_failure(self, now_ms: float, reasons: str) -> bool:
        """Note a call without a response; return True if the client must give up.

        It gives up if the deadline has passed, or would pass during the longest pause before the next attempt.
        """
        self._failed_ms, self._reasons = now_ms, reasons
        return self._since_ms is None or now_ms + PAUSE_MS_MAX > self._since_ms + self.timeout_ms

    def news(self) -> str | None:
        """Return why the calls so far have failed, for a log line; None if it was returned before or none failed."""
        if self.is_made or self._is_told or not self._reasons:
            return None
        self._is_told = True
        return self._reasons
