"""The cluster's time as one node knows it, so that one wrong clock does not decide which data is too old.

The controller compares the clocks of the voters (``node.control.clock_readings``). Its response to each heartbeat has
the cluster's time, on which a majority of these clocks agrees. If a node's own clock is within ``skew_ms_max`` of that
time, the node uses its own clock. Otherwise it uses the cluster's time. From one response to the next, its monotonic
clock advances that time, so a jump of its wall clock changes nothing.

After its start, a node does not know the cluster's time until the first response. Until then, it deletes, forgets and
aborts nothing by wall time: ``expiry_ms`` is 0. It stamps records by its own clock, but never with a time before
``floor_ms``, the last time on which the cluster agreed. Otherwise retention would take new records for old ones. If no
other node's clock counts, as in a cluster with one voter, a node trusts its own clock.

To compare times, two nodes use ``lag_ms``: this node's monotonic clock minus the controller's. The round trip of a
heartbeat limits its error.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from milena.model.clock import Clock
from milena.model.types import MonotonicMs, WallMs

logger = logging.getLogger(__name__)

ROUND_TRIP_SHARE = 2
"""Divisor of ``skew_ms_max``: the quotient is the longest usable round trip. The error is up to half a round trip."""


class NodeClock(Clock, Protocol):
    """The clock that the parts of a node use."""

    def expiry_ms(self) -> WallMs:
        """Return the wall time by which data expires; 0 while this node does not know the cluster's time."""


class ClusterClock:
    """A ``NodeClock`` that uses the machine's clocks. Owned by the data loop; any thread may read it.

    Invariants:
        Once the cluster's time is known, ``wall_ms`` differs from it by at most ``skew_ms_max``.
    """

    __slots__ = (
        "_ahead_ms",
        "_floor_ms",
        "_has_company",
        "_is_judged",
        "_lag_ms",
        "_machine",
        "_skew_ms_max",
        "is_out_of_bounds",
    )

    def __init__(
        self,
        machine: Clock,
        *,
        skew_ms_max: int,
        has_company: bool,
        floor_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start the clock.

        ``has_company``: whether the clocks of other nodes count in this cluster. ``floor_ms``: a time in the past.
        """
        self._machine = machine
        self._skew_ms_max = skew_ms_max
        self._has_company = has_company
        self._floor_ms = floor_ms
        self._is_judged = has_company
        """Whether this node's clock is used only if the cluster's time confirms it."""
        self._ahead_ms: int | None = None
        """The cluster's time minus this node's monotonic clock, in ms; None if it was not received yet."""
        self._lag_ms: int | None = None
        self.is_out_of_bounds = False
        """Whether the machine's clock was too far off when the cluster's time was last received."""

    # -- the time --------------------------------------------------------------------------------

    def now_ms(self) -> MonotonicMs:
        """Return the machine's monotonic clock."""
        return self._machine.now_ms()

    async def sleep(self, ms: float) -> None:
        """Sleep by the machine's clock."""
        await self._machine.sleep(ms)

    def wall_ms(self) -> WallMs:
        """Return the machine's wall clock; or the cluster's time, if that clock is too far off."""
        wall_ms = self._machine.wall_ms()
        if self._ahead_ms is None:
            return WallMs(max(wall_ms, self._floor_ms())) if self._is_judged else wall_ms
        cluster_ms = self._machine.now_ms() + self._ahead_ms
        return wall_ms if abs(wall_ms - cluster_ms) <= self._skew_ms_max else WallMs(cluster_ms)

    def expiry_ms(self) -> WallMs:
        """Return ``wall_ms`` if the cluster's time is known; else 0, so that nothing expires."""
        return self.wall_ms() if self.is_known else WallMs(0)

    # -- what this node knows of the cluster's time ----------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether this node knows the cluster's time."""
        return self._ahead_ms is not None or not self._is_judged

    @property
    def offset_ms(self) -> int | None:
        """How far the machine's clock is ahead of the cluster's time, in ms; None if unknown."""
        if self._ahead_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() - self._ahead_ms

    @property
    def reading_ms(self) -> int | None:
        """The machine's wall clock at the time when the controller's monotonic clock was 0; None if unknown."""
        if self._lag_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() + self._lag_ms

    # -- heartbeats ------------------------------------------------------------------------------

    def part(self) -> None:
        """Forget the controller's clock: the next response may come from another controller."""
        self._lag_ms = None

    def hear(self, sent_ms: MonotonicMs, controller_ms: int | None, cluster_ms: int | None) -> None:
        """Use the times in the controller's response to a heartbeat.

        Args:
            sent_ms: when the heartbeat was sent, by this node's monotonic clock.
            controller_ms: the controller's monotonic clock; None if its release does not compare clocks yet.
            cluster_ms: the cluster's time when that clock was 0; None if no majority of the voters agrees.
        """
        if controller_ms is None:
            self._is_judged = False
            return
        self._is_judged = self._has_company
        now_ms = self._machine.now_ms()
        if (now_ms - sent_ms) * ROUND_TRIP_SHARE > self._skew_ms_max:
            self._lag_ms = None
            return
        self._lag_ms = (sent_ms + now_ms) // 2 - controller_ms
        if cluster_ms is not None:
            self._ahead_ms = cluster_ms - self._lag_ms
            self._judge()

    def _judge(self) -> None:
        """Log once when the machine's clock becomes too far off, and once when it is right again."""
        offset_ms = self.offset_ms
        assert offset_ms is not None, "the cluster's time was told just now"
        if not self.is_out_of_bounds and abs(offset_ms) > self._skew_ms_max:
            self.is_out_of_bounds = True
            logger.warning(
                "clock out of bounds offset_ms=%d bound_ms=%d: this node goes by the time of the other voters; set the "
                "clock of this machine",
                offset_ms,
                self._skew_ms_max,
            )
        elif self.is_out_of_bounds and abs(offset_ms) * 2 <= self._skew_ms_max:
            # It counts as right again at half the limit, so that a clock near the limit does not fill the log.
            self.is_out_of_bounds = False
            logger.info("clock within bounds again offset_ms=%d", offset_ms)
