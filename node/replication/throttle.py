"""The throttle of replicas that a move adds: a budget of bytes that fills with time. Pure."""

BURST_S = 0.25
"""The most that the budget saves up, in seconds of its rate, so that no flood follows a pause."""


class ByteBudget:
    """A budget of bytes that may be sent; it grows by ``bytes_per_s`` each second.

    A batch is sent as a whole or not at all, so a send may overdraw the budget. Then nothing is sent until the budget
    is positive again. In the long run the rate holds for batches of any size. Times are seconds of one clock.
    """

    __slots__ = ("_at_s", "_burst", "_left", "bytes_per_s")

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._burst = max(1.0, bytes_per_s * BURST_S)
        self._left = self._burst
        self._at_s = now_s

    def left(self, now_s: float) -> int:
        """Return the bytes that may be sent now; 0 if the budget is overdrawn."""
        earned = max(0.0, now_s - self._at_s) * self.bytes_per_s
        self._left = min(self._burst, self._left + earned)
        self._at_s = max(now_s, self._at_s)
        return max(0, int(self._left))

    def take(self, sent_bytes: int) -> None:
        """Count bytes that were sent."""
        self._left -= sent_bytes

    def wait_s(self) -> float:
        """Return the seconds until half of a burst may be sent; a fetch for less is not worth it."""
        wanted = max(1.0, self._burst / 2)
        return max(0.0, wanted - self._left) / self.bytes_per_s
