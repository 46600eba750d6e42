"""The wall clocks of the voters, and the time on which a majority of them agrees. Pure.

A reading is the time that a broker's wall clock showed when the controller's monotonic clock was 0. So readings that
arrive at different times can be compared. A reading stays valid until the next one: the controller's monotonic clock
is added to it.
"""

from collections.abc import Collection


class ClockReadings:
    """The last reading of each voter, under one controller.

    Invariants:
        ``cluster_ms`` lies between two readings of a majority. The readings of this majority differ by at most twice
        ``skew_ms_max``. So a minority of wrong clocks can change the cluster's time by at most that.
    """

    def __init__(self, voters: Collection[int], skew_ms_max: int) -> None:
        self._voters = frozenset(voters)
        self._skew_ms_max = skew_ms_max
        self._readings: dict[int, int] = {}

    def take(self, broker_id: int, reading_ms: int | None) -> None:
        """Store a broker's reading. None, and readings of brokers that are not voters, are ignored."""
        if reading_ms is not None and broker_id in self._voters:
            self._readings[broker_id] = reading_ms

    def cluster_ms(self) -> int | None:
        """Return the cluster's time when the controller's monotonic clock was 0; None if no majority agrees.

        The cluster's time is the median of the largest group of clocks that differ by at most ``skew_ms_max`` from one
        of them.
        """
        readings = sorted(self._readings.values())
        agreed: list[int] = []
        for middle in readings:
            group = [one for one in readings if abs(one - middle) <= self._skew_ms_max]
            if len(group) > len(agreed):
                agreed = group
        if len(agreed) <= len(self._voters) // 2:
            return None
        return (agreed[(len(agreed) - 1) // 2] + agreed[len(agreed) // 2]) // 2

    def __str__(self) -> str:
        """Return each voter's clock as a difference to the earliest clock, for the log."""
        earliest = min(self._readings.values(), default=0)
        return " ".join(
            f"{voter}=+{ms - earliest}ms" for voter, ms in sorted(self._readings.items())
        )
