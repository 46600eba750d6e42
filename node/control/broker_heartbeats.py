"""A broker's heartbeats to the controller, and the lease that it gets by the responses.

A heartbeat carries a report of the broker's state. The broker sends one at every interval, even if the previous one has
no response yet. So if the round trip takes longer than an interval, the lease is still renewed once per interval.

The lease runs from the moment when an answered report was *sent*. Without a lease, this node must assume that it is
fenced and that others lead its partitions. So it refuses writes at once: they could only wait for a commit that does
not happen.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from milena.model.errors import FateUnknownError, MilenaError
from milena.model.types import MonotonicMs
from node.control.messages import HEARTBEAT, BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.metadata.store import MetadataStore
from node.peers.codec import PeerChannel
from node.peers.messages import ask
from node.peers.port import Peers
from node.process.cluster_clock import ClusterClock

logger = logging.getLogger(__name__)

CHANNEL = PeerChannel.CONTROL
IN_FLIGHT_MAX = 8
"""Largest number of reports without a response. More reports would not make the session longer."""
PAUSE_MS = 10
"""The pause before a report that ``soon`` requested, so that many changes of the image do not cause as many reports."""
CONNECT_MS_MAX = 5_000
"""The timeout of a connection in ms. It is longer than the timeouts of its dial and handshake together."""
TIME_PATIENCE_MS = 2_000
"""How long this node waits for the cluster's time. After that it takes writes by its own clock."""

LocalHeartbeat = Callable[[int, BrokerHeartbeatRequest], BrokerHeartbeatAnswer]


@dataclass(eq=False, kw_only=True)
class BrokerHeartbeats:
    """Sends reports to the Raft leader, and keeps the lease. ``run`` drives it. Owned by the data loop.

    ``report(echo)``: returns the report to send now; None if there is none.

    Invariants:
        The lease ends at most ``session_ms`` after the sending of a report that the controller answered.
        There is no lease before the clock knows the cluster's time, or ``TIME_PATIENCE_MS`` have passed.
        All reports in flight were sent to ``_controller_id``.
    """

    broker_id: int
    metadata: MetadataStore
    peer: Peers
    clock: ClusterClock
    session_ms: int
    interval_ms: int
    report: Callable[[int], BrokerHeartbeatRequest | None]
    local_heartbeat: LocalHeartbeat
    on_answer: Callable[[BrokerHeartbeatAnswer, MonotonicMs], None]

    def __post_init__(self) -> None:
        self._lease_ms = MonotonicMs(-self.session_ms)
        self._first_ms: MonotonicMs | None = None
        """When this process got its first response, in monotonic ms."""
        self._controller_id: int | None = None
        self._echo = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._dial: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs if no more response arrives, in ms."""
        return max(0, self._lease_ms + self.session_ms - self.clock.now_ms())

    def soon(self) -> None:
        """Send the next report after ``PAUSE_MS``, not only at the next interval."""
        self._soon.set()

    async def run(self) -> None:
        """Send reports until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._send(group)
                try:
                    async with asyncio.timeout(self.interval_ms / 1000):
                        await self._soon.wait()
                    await self.clock.sleep(PAUSE_MS)
                except TimeoutError:
                    pass
                self._soon.clear()

    def _send(self, group: asyncio.TaskGroup) -> None:
        controller_id = self.metadata.quorum.status().leader_id
        if controller_id != self._controller_id:
            self._turn_to(controller_id)
        if controller_id is None:
            return
        if controller_id == self.broker_id:
            self._report_here()
        elif self.peer.is_connected(controller_id, CHANNEL):
            if len(self._in_flight) < IN_FLIGHT_MAX:
                self._start(group, self._report_there(controller_id))
        elif self._dial is None or self._dial.done():
            # Send no report before the connection is open. While it waited, its time of sending would get old, and
            # the lease runs from that time.
            self._dial = self._start(group, self._connect(controller_id))

    def _start(
        self, group: asyncio.TaskGroup, work: Coroutine[object, object, None]
    ) -> asyncio.Task[None]:
        task = group.create_task(work, name="heartbeat")
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task

    def _turn_to(self, controller_id: int | None) -> None:
        """Report to another controller from now on, and ignore responses of the former one."""
        self._controller_id, self._echo, self._dial = controller_id, 0, None
        self.clock.part()
        for task in self._in_flight:
            task.cancel()

    async def _connect(self, controller_id: int) -> None:
        # The controller's process may have restarted, with another monotonic clock.
        self.clock.part()
        try:
            await self.peer.connect(controller_id, timeout_ms=CONNECT_MS_MAX, channel=CHANNEL)
        except MilenaError as error:
            logger.debug("controller cannot be reached: %s", error)
        else:
            self.soon()

    def _report_here(self) -> None:
        report = self.report(self._echo)
        if report is None:
            return
        try:
            answer = self.local_heartbeat(self.broker_id, report)
        except MilenaError as error:
            logger.debug("heartbeat failed: %s", error)
        else:
            self._take_answer(answer, self.clock.now_ms())

    async def _report_there(self, controller_id: int) -> None:
        report = self.report(self._echo)
        if report is None:
            return
        sent_ms = self.clock.now_ms()
        try:
            # A response that takes longer than a session could not give a lease.
            answer = await ask(
                self.peer,
                controller_id,
                HEARTBEAT,
                report,
                timeout_ms=self.session_ms,
                channel=CHANNEL,
            )
        except FateUnknownError as error:
            logger.debug("heartbeat lost: %s", error)
            if self.peer.is_silent(controller_id, CHANNEL):
                # TCP waits longer and longer before it sends lost bytes again. A new connection is faster.
                self.peer.disconnect(controller_id, CHANNEL)
        except MilenaError as error:
            logger.debug("heartbeat failed: %s", error)
        else:
            self._take_answer(answer, sent_ms)

    def _take_answer(self, answer: BrokerHeartbeatAnswer, sent_ms: MonotonicMs) -> None:
        self._echo = answer.number
        self.clock.hear(sent_ms, answer.controller_ms, answer.cluster_ms)
        # The lease is shorter by the time since the controller last heard from a majority.
        as_of_ms = MonotonicMs(sent_ms - answer.age_ms)
        if self._is_waiting_for_time():
            self.soon()
        else:
            self._lease_ms = max(self._lease_ms, as_of_ms)
        self.on_answer(answer, as_of_ms)

    def _is_waiting_for_time(self) -> bool:
        """Return whether this node still waits for the cluster's time.

        Without a lease it takes no records. Their append times would come from a clock that was not compared yet.
        """
        now_ms = self.clock.now_ms()
        if self._first_ms is None:
            self._first_ms = now_ms
        return not self.clock.is_known and now_ms - self._first_ms < TIME_PATIENCE_MS
