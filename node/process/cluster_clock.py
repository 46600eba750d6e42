"""The cluster's time as one node knows it, so that one wrong clock does not decide which data is too old.

The controller compares the clocks of the voters (``node.control.clock_readings``). It responds to each heartbeat with
the wall time on which a majority of them agrees. A node whose own clock is within ``skew_ms_max`` of that time uses its
own clock. A node whose clock is further off uses the cluster's time. Its monotonic clock advances that time from one
response to the next, so a wall clock that jumps between two heartbeats changes nothing either.

A node that has not received the time since its start does not know whether its clock is right. It then deletes, forgets
and aborts nothing by wall time: ``expiry_ms`` is 0. It stamps records by its own clock, but never before ``floor_ms``,
the last time on which the cluster agreed, because retention would take such records for old. If no other node's clock
counts, as in a cluster with one voter, the own clock is trusted.

Two nodes compare their times by ``lag_ms``: this node's monotonic clock minus the controller's. The round trip of a
heartbeat bounds its error.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from milena.model.clock import Clock
from milena.model.types import MonotonicMs, WallMs

logger = logging.getLogger(__name__)

ROUND_TRIP_SHARE = 2
"""Divisor of ``skew_ms_max``. Times after a longer round trip are not used: their error is up to half of it."""


class NodeClock(Clock, Protocol):
    """The times that the parts of a node need."""

    def expiry_ms(self) -> WallMs:
        """Return the wall time by which data may expire; 0 while this node does not know the cluster's time."""


class ClusterClock:
    """A ``NodeClock`` on the clocks of the machine. Owned by the data loop; any thread may read it.

    Invariants:
        ``wall_ms`` is at most ``skew_ms_max`` off the cluster's time, once that is known.
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

        ``has_company``: whether other nodes' clocks count in this cluster. ``floor_ms``: a wall time that has passed.
        """
        self._machine = machine
        self._skew_ms_max = skew_ms_max
        self._has_company = has_company
        self._floor_ms = floor_ms
        self._is_judged = has_company
        """Whether the own clock counts only while the cluster agrees with it."""
        self._ahead_ms: int | None = None
        """The cluster's wall time minus this node's monotonic clock; None: not received yet."""
        self._lag_ms: int | None = None
        self.is_out_of_bounds = False
        """Whether the machine's clock was too far off when the cluster's time last arrived."""

    # -- the time --------------------------------------------------------------------------------

    def now_ms(self) -> MonotonicMs:
        """Return the machine's monotonic clock."""
        return self._machine.now_ms()

    async def sleep(self, ms: float) -> None:
        """Sleep by the machine's clock."""
        await self._machine.sleep(ms)

    def wall_ms(self) -> WallMs:
        """Return the machine's wall clock, or the cluster's time if that clock is too far off."""
        wall_ms = self._machine.wall_ms()
        if self._ahead_ms is None:
            return WallMs(max(wall_ms, self._floor_ms())) if self._is_judged else wall_ms
        cluster_ms = self._machine.now_ms() + self._ahead_ms
        return wall_ms if abs(wall_ms - cluster_ms) <= self._skew_ms_max else WallMs(cluster_ms)

    def expiry_ms(self) -> WallMs:
        """Return ``wall_ms`` if the cluster's time is known; else 0, at which nothing expires."""
        return self.wall_ms() if self.is_known else WallMs(0)

    # -- what this node knows of it --------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether this node knows the cluster's time."""
        return self._ahead_ms is not None or not self._is_judged

    @property
    def offset_ms(self) -> int | None:
        """Return how far the machine's clock is ahead of the cluster's time; None if that is not known."""
        if self._ahead_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() - self._ahead_ms

    @property
    def reading_ms(self) -> int | None:
        """Return the machine's wall clock at the moment 0 of the controller's monotonic clock; None if not known."""
        if self._lag_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() + self._lag_ms

    # -- heartbeats ------------------------------------------------------------------------------

    def part(self) -> None:
        """Forget the controller's clock: the next response may be from another controller with another clock."""
        self._lag_ms = None

    def hear(self, sent_ms: MonotonicMs, controller_ms: int | None, cluster_ms: int | None) -> None:
        """Take the times in the controller's response to a heartbeat.

        Args:
            sent_ms: when the heartbeat was sent, by this node's monotonic clock.
            controller_ms: the controller's monotonic clock; None: its release does not compare clocks yet.
            cluster_ms: the cluster's wall time at the moment 0 of that clock; None: no majority of the voters agrees.
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
        """Log once when the machine's clock goes out of bounds, and once when it is right again."""
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
            # Right again at half the bound, so that a clock near the bound does not fill the log.
            self.is_out_of_bounds = False
            logger.info("clock within bounds again offset_ms=%d", offset_ms)
