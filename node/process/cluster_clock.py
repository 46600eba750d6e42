"""The cluster's time, as one node knows it: one wrong clock must not decide what is too old.

The controller compares the clocks of the voters (``node.control.clock_readings``). It answers each heartbeat with the
wall time on which a majority of them agrees. A node whose own clock is within ``skew_ms_max`` of that time goes by its
own clock. A node whose clock is further off goes by the cluster's time. Its monotonic clock carries that time on from
one answer to the next, so a clock that jumps between two heartbeats changes nothing either.

A node that was never told the time in this life does not know which clock is right. It then deletes, forgets and
aborts nothing by wall time: ``expiry_ms`` is 0. It stamps records by its own clock, but never before ``floor_ms``, the
last time that the cluster agreed on, since retention would take them for old. A clock of which nobody else can judge is
trusted, as in a cluster with one voter.

Two nodes compare their times by ``lag_ms``: our monotonic clock less the controller's. The round trip of a heartbeat
bounds its error.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from milena.model.clock import Clock
from milena.model.types import MonotonicMs, WallMs

logger = logging.getLogger(__name__)

ROUND_TRIP_SHARE = 2
"""A round trip of more than this part of the bound tells too little: its error is up to half of the round trip."""


class NodeClock(Clock, Protocol):
    """Time as the parts of a node need it."""

    def expiry_ms(self) -> WallMs:
        """The wall time by which something may count as over; 0 while this node does not know the cluster's time."""


class ClusterClock:
    """A ``NodeClock`` on the clocks of the machine. Belongs to the data loop; any thread may read it.

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
        """``has_company``: whether other nodes' clocks count in this cluster; ``floor_ms``: it is later than that."""
        self._machine = machine
        self._skew_ms_max = skew_ms_max
        self._has_company = has_company
        self._floor_ms = floor_ms
        self._is_judged = has_company
        """Whether own time counts only as far as the cluster agrees."""
        self._ahead_ms: int | None = None
        """The cluster's wall clock less our monotonic one; None: not told yet."""
        self._lag_ms: int | None = None
        self.is_out_of_bounds = False
        """Whether the machine's clock was too far off when the cluster's time was told last."""

    # -- telling the time ------------------------------------------------------------------------

    def now_ms(self) -> MonotonicMs:
        """The machine's monotonic clock."""
        return self._machine.now_ms()

    async def sleep(self, ms: float) -> None:
        """Sleep by the machine's clock."""
        await self._machine.sleep(ms)

    def wall_ms(self) -> WallMs:
        """The machine's wall clock, or the cluster's time where that clock is too far off."""
        wall_ms = self._machine.wall_ms()
        if self._ahead_ms is None:
            return WallMs(max(wall_ms, self._floor_ms())) if self._is_judged else wall_ms
        cluster_ms = self._machine.now_ms() + self._ahead_ms
        return wall_ms if abs(wall_ms - cluster_ms) <= self._skew_ms_max else WallMs(cluster_ms)

    def expiry_ms(self) -> WallMs:
        """``wall_ms`` where the cluster's time is known; else 0, at which nothing is over."""
        return self.wall_ms() if self.is_known else WallMs(0)

    # -- what is known of it ---------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether this node knows the cluster's time."""
        return self._ahead_ms is not None or not self._is_judged

    @property
    def offset_ms(self) -> int | None:
        """How far the machine's clock is ahead of the cluster's time; None: not known."""
        if self._ahead_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() - self._ahead_ms

    @property
    def reading_ms(self) -> int | None:
        """The machine's wall clock when the controller's monotonic one stood at 0; None: not to be told."""
        if self._lag_ms is None:
            return None
        return self._machine.wall_ms() - self._machine.now_ms() + self._lag_ms

    # -- hearing of it ---------------------------------------------------------------------------

    def part(self) -> None:
        """The next answer may come from another controller, whose monotonic clock is another one."""
        self._lag_ms = None

    def hear(self, sent_ms: MonotonicMs, controller_ms: int | None, cluster_ms: int | None) -> None:
        """Take what the controller answered to a heartbeat that was sent at ``sent_ms``.

        Args:
            sent_ms: by our monotonic clock.
            controller_ms: its monotonic clock; None: the cluster's release does not compare clocks yet.
            cluster_ms: the cluster's time when that clock stood at 0; None: no majority of the voters agrees.
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
        """Say once when the machine's clock goes out of bounds, and once when it is right again."""
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
            # At half the bound, so that a clock at its edge does not fill the log.
            self.is_out_of_bounds = False
            logger.info("clock within bounds again offset_ms=%d", offset_ms)
