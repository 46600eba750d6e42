"""A budget of bytes that grows with time. It limits what is sent to replicas that a move adds. Pure."""

BURST_S = 0.25
"""The largest budget, in seconds of its rate. So after a pause, not everything is sent at once."""


class ByteBudget:
    """A budget of bytes that may be sent. It grows by ``bytes_per_s`` each second.

    A batch is sent as a whole or not at all, so one send may exceed the budget. Then nothing is sent until the budget
    is positive again. So in the long run the rate holds for batches of any size. Times are seconds of one clock.
    """

    __slots__ = ("_at_s", "_burst", "_left", "bytes_per_s")

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._burst = max(1.0, bytes_per_s * BURST_S)
        self._left = self._burst
        self._at_s = now_s

    def left(self, now_s: float) -> int:
        """Return the number of bytes that may be sent now; 0 if the budget is used up."""
        earned = max(0.0, now_s - self._at_s) * self.bytes_per_s
        self._left = min(self._burst, self._left + earned)
        self._at_s = max(now_s, self._at_s)
        return max(0, int(self._left))

    def take(self, sent_bytes: int) -> None:
        """Count bytes that were sent."""
        self._left -= sent_bytes

    def wait_s(self) -> float:
        """Return the seconds until half of a burst may be sent. A response with less is not worth its round trip."""
        wanted = max(1.0, self._burst / 2)
        return max(0.0, wanted - self._left) / self.bytes_per_s
