"""How fast replicas that are only being added may copy: a budget of bytes that fills with time. Pure."""

BURST_S = 0.25
"""What may be saved up: a quarter of a second's worth, so that a pause is not followed by a flood."""


class ByteBudget:
    """Bytes that may be sent, ``bytes_per_s`` more in every second.

    A batch goes out whole or not at all, so a send may overdraw the budget; then nothing is sent until that is made
    up for, and the rate holds in the long run whatever the size of batches. Times are seconds of one clock.
    """

    __slots__ = ("_at_s", "_burst", "_left", "bytes_per_s")

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._burst = max(1.0, bytes_per_s * BURST_S)
        self._left = self._burst
        self._at_s = now_s

    def left(self, now_s: float) -> int:
        """Bytes that may be sent now; none when it is overdrawn."""
        earned = max(0.0, now_s - self._at_s) * self.bytes_per_s
        self._left = min(self._burst, self._left + earned)
        self._at_s = max(now_s, self._at_s)
        return max(0, int(self._left))

    def take(self, sent_bytes: int) -> None:
        """Count bytes that were sent."""
        self._left -= sent_bytes

    def wait_s(self) -> float:
        """How long until half of a burst may be sent: not every byte is worth a fetch."""
        wanted = max(1.0, self._burst / 2)
        return max(0.0, wanted - self._left) / self.bytes_per_s
