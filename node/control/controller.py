"""The controller: the Raft leader's node watches the brokers and elects leaders of partitions.

It decides from the local image and its own table of sessions. Each decision is a command that names the state on which
it is based, so commands of a late or deposed controller do nothing. Heartbeats are not written to the log.

A turn, in this order: fence brokers whose session ended (with the elections that follow from it) → unfence brokers that
caught up → drain brokers that ask for it → relieve brokers with a full disk → elect leaders for partitions without one
→ continue moves of replicas → from time to time, restore preferred leaders and forget unused producers. A turn also
raises the cluster's feature level once every broker supports the next one, corrects the applied time, and has nodes
compare their images.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from immutables import Map

from milena.disk.files import Buffer
from milena.model.contained import ContainedErrors
from milena.model.errors import (
    MilenaError,
    NotReadyError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
)
from milena.model.types import MonotonicMs, WallMs
from node.config.budgets import CONTROLLER_PROPOSE_MS
from node.control.broker_sessions import BrokerSessions
from node.control.clock_readings import ClockReadings
from node.control.messages import BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.control.reassigner import Reassigner
from node.metadata.image_parts import ImageParts
from node.metadata.store import MetadataStore
from node.peers.codec import Fields
from node.peers.messages import pack, unpack
from node.peers.port import ProbeResult
from node.process.cluster_clock import NodeClock
from node.process.keep_going import keep_going
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.machine import cluster, producers
from raft_meta.machine.commands import (
    CheckImage,
    ClaimController,
    CorrectTime,
    DrainBroker,
    ElectLeaders,
    FenceBroker,
    ForgetProducers,
    InitCluster,
    LeaderChange,
    SetFeatureLevel,
    StepReassignments,
    UnfenceBroker,
)
from raft_meta.machine.image import Broker, Image, Partition, PartitionKey, Topic
from raft_meta.machine.producers import FORGOTTEN_PER_COMMAND_MAX
from raft_meta.machine.topics import elections

logger = logging.getLogger(__name__)

TICK_MS = 100
PROBE_PAUSE_MS = 100
PROBES_MAX = 4
REFUSALS_TO_FENCE = 2
"""Refused connections in a row after which a broker's process counts as gone."""
PROBE_TIMEOUT_MS = 500
UNCLEAN_PATIENCE_MS = 10_000
"""The time before a replica outside the ISR may be elected, if the topic allows it.

It counts from the last take-over of a controller, or the last fence of a broker. After a power cut of all machines, the
replicas that have the records need a moment to come back.
"""
CHECK_IMAGE_MS = 60_000
"""The shortest time between two comparisons of all nodes' images with the controller's."""
CHECK_IMAGE_SHARE = 100
"""The shortest time between two comparisons, as a multiple of the time of a hash: each node spends at most a hundredth
of its time on them."""
FORGET_LOOKS = 100
"""How often unused transactional ids are searched in the time for which they are kept."""
CLOCKS_LEVEL = 11
"""The feature level from which on every broker reports its clock, and clocks are compared."""
CLOCKS_SETTLE_MS = 5_000
"""The time after a take-over before the controller reports that the voters' clocks do not agree."""
CHANGES_MAX = 2_000
"""The most partition changes in a command."""


class Dial(Protocol):
    """Dials a broker's peer port once, to find out whether its process runs."""

    def __call__(self, broker_id: int, /, *, timeout_ms: float) -> Awaitable[ProbeResult]:
        """Connect, and close at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Timeouts and intervals of the controller, and the start of a new cluster."""

    session_ms: int
    preferred_interval_ms: int
    """The pause between checks whether leaders are the preferred ones; 0: never check."""
    transactional_id_ms: int
    """How long a name that begins transactions is kept after its last one; longer than any transaction takes."""
    voters: tuple[int, ...]
    clock_skew_ms_max: int
    """The largest difference of two correct clocks."""
    feature_level: int
    """The feature level of a new cluster."""
    new_cluster_id: Callable[[], str]


class _Peace(NamedTuple):
    """The parts of an image in which no election was due."""

    brokers: Map[int, Broker]
    partitions: Map[PartitionKey, Partition]
    topics: Map[str, Topic]
    with_unclean: bool
    """Whether unclean elections were considered."""
    is_led: bool
    """Whether every partition has a leader: then no election is due, with any settings of topics."""

    @classmethod
    def of(cls, image: Image, *, with_unclean: bool) -> "_Peace":
        """Return the parts of the image on which elections depend."""
        is_led = all(partition.leader is not None for partition in image.partitions.values())
        return cls(image.brokers, image.partitions, image.topics, with_unclean, is_led)

    def holds(self, image: Image, *, with_unclean: bool) -> bool:
        """Return whether a new search would have the same result. Unchanged persistent maps keep their identity."""
        return (
            self.brokers is image.brokers
            and self.partitions is image.partitions
            and (self.is_led or (self.topics is image.topics and self.with_unclean == with_unclean))
        )


class Controller:
    """The controller of a node; it exists on every node and works only on the Raft leader's. Owned by the data loop."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataStore,
        probe: Dial,
        clock: NodeClock,
        settings: ControllerSettings,
        contained: ContainedErrors | None = None,
    ) -> None:
        self._contained = ContainedErrors() if contained is None else contained
        self._node_id = node_id
        self._metadata = metadata
        self._dial = probe
        self._clock = clock
        self._settings = settings
        self._epoch = -1
        self._sessions: BrokerSessions | None = None
        self._readings = ClockReadings((), 0)
        self._do_clocks_agree = True
        self._since_ms = clock.now_ms()
        """The time of the last take-over."""
        self._term = -1
        self._previous_leader: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._fencing: set[int] = set()
        """Brokers whose fence is in flight."""
        self._fenced_at: dict[int, tuple[int, int]] = {}
        """Broker → its epoch, and an index of this node's image at which the broker was fenced already."""
        self._work = asyncio.Event()
        self._parts = ImageParts(
            "brokers", "partitions", "controller_epoch", "feature_level", "voters"
        )
        self._topics: Map[str, Topic] | None = None
        self._preferred_ms = MonotonicMs(0)
        self._forget_due_ms = MonotonicMs(0)
        self._check_due_ms = clock.now_ms() + CHECK_IMAGE_MS
        self._reassigner = Reassigner(
            clock=clock, propose=self._propose, propose_changes=self._propose_changes
        )
        self._lost_ms = clock.now_ms()
        """When this controller took over, or last fenced a broker."""
        self._peace: _Peace | None = None
        """The parts of the last image without a due election. With many partitions, searching them is most of the cost
        of an idle controller."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller."""
        return self._sessions is not None

    # -- role ------------------------------------------------------------------------------------

    def on_status(self, status: QuorumStatus) -> None:
        """Start or stop to control, because the quorum's role changed."""
        is_leader = status.role is Role.LEADER
        if is_leader and (self._task is None or status.term != self._term):
            self._stop()
            self._term = status.term
            # If this task ended by an error, the node would answer heartbeats forever and fence no broker. So it is
            # restarted, and claims the controller again.
            lead = partial(self._lead, status.term)
            self._task = asyncio.create_task(
                keep_going("controller", lead, clock=self._clock, contained=self._contained),
                name="controller",
            )
        elif not is_leader:
            self._stop()
            if status.leader_id is not None:
                self._previous_leader = status.leader_id

    def _stop(self) -> None:
        if self._task is not None:
            logger.info("controller steps down epoch=%d", self._epoch)
            self._task.cancel()
            self._task = None
        self._sessions = None
        for probe in self._probes.values():
            probe.cancel()
        self._probes.clear()

    def on_image(self, image: Image) -> None:
        """Start a turn at once, if the image changed in a way that may need a decision."""
        before, self._topics = self._topics, image.topics
        peace = self._peace
        # Only one setting of topics matters, unclean elections, and only if a partition has no leader.
        is_about_topics = before is not image.topics and not (
            peace is not None and peace.is_led and peace.partitions is image.partitions
        )
        if self._parts.have_changed(image) or is_about_topics:
            self._work.set()

    def close(self) -> None:
        """Stop controlling."""
        self._stop()

    async def _lead(self, term: int) -> None:
        while True:
            self._epoch = -1
            while self._epoch < 0:
                try:
                    self._epoch = await self._claim()
                except MilenaError as error:
                    logger.info("controller claim failed term=%d: %s", term, error)
                    await self._clock.sleep(TICK_MS)
            self._take_over()
            logger.info("controller epoch=%d term=%d", self._epoch, term)
            await self._run()
            # A former leader's claim was still in flight. It was committed after this one and deposed this controller,
            # though only the Raft leader can control. This node still leads, so it claims again.
            logger.warning("controller epoch=%d is over, term=%d goes on", self._epoch, term)

    async def _claim(self) -> int:
        """Raise the controller epoch and return it; on return, the image has everything that was committed before."""
        if not (await self._metadata.barrier(timeout_ms=CONTROLLER_PROPOSE_MS)).cluster_id:
            await self._metadata.propose(
                InitCluster(
                    cluster_id=self._settings.new_cluster_id(),
                    voters=self._settings.voters,
                    feature_level=self._settings.feature_level,
                ),
                timeout_ms=CONTROLLER_PROPOSE_MS,
            )
        epoch = await self._metadata.propose(
            ClaimController(broker_id=self._node_id), timeout_ms=CONTROLLER_PROPOSE_MS
        )
        assert isinstance(epoch, int)
        return epoch

    def _take_over(self) -> None:
        now_ms = self._lost_ms = self._since_ms = self._clock.now_ms()
        sessions = self._sessions = BrokerSessions(self._settings.session_ms)
        sessions.arm(_epochs(self._metadata.image), now_ms)
        self._readings = ClockReadings(self._settings.voters, self._settings.clock_skew_ms_max)
        previous = self._previous_leader
        if previous is not None and previous != self._node_id:
            heard_ms = self._metadata.quorum.last_contact_ms(previous)
            if heard_ms is not None:
                sessions.backdate(previous, MonotonicMs(heard_ms))
        for broker_id in self._metadata.image.brokers:
            if broker_id != self._node_id:
                self.suspect(broker_id)

    # -- heartbeats ------------------------------------------------------------------------------

    async def on_heartbeat(
        self, peer_id: int, fields: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Answer a broker's heartbeat that arrived over the peer port; see ``take_heartbeat``."""
        del body
        return pack(self.take_heartbeat(peer_id, unpack(BrokerHeartbeatRequest, fields)))

    def take_heartbeat(
        self, broker_id: int, report: BrokerHeartbeatRequest
    ) -> BrokerHeartbeatAnswer:
        """Count a heartbeat, and return the response to it.

        Raises:
            NotReadyError: this node is not the controller, or not yet.
            StaleBrokerEpochError: the broker has registered again since, or is not registered.
        """
        sessions = self._sessions
        if sessions is None:
            raise NotReadyError(f"broker {self._node_id} is not the controller")
        now_ms = self._clock.now_ms()
        sessions.arm(_epochs(self._metadata.image), now_ms)
        number = sessions.on_heartbeat(
            broker_id,
            report.broker_epoch,
            echo=report.echo,
            applied_index=report.applied_index,
            is_draining=report.is_draining,
            is_disk_full=report.is_disk_full,
            now_ms=now_ms,
        )
        if number is None:
            raise StaleBrokerEpochError(
                f"broker {broker_id} is not registered under epoch {report.broker_epoch}"
            )
        image = self._metadata.image
        broker = image.brokers[broker_id]
        if broker.is_fenced or report.is_draining or report.is_disk_full:
            self._work.set()
        # A fenced broker has lost all leadership and membership already, and a draining one is not unfenced.
        is_drained = (
            report.is_draining
            and (broker.is_draining or broker.is_fenced)
            and not elections.plan_drain(image, broker_id)
        )
        knows = self._knows_its_fence(broker, report.applied_index)
        age_ms = self._majority_age_ms(now_ms) if knows else self._settings.session_ms
        return BrokerHeartbeatAnswer(
            number=number,
            is_drained=is_drained,
            age_ms=age_ms,
            access_version=image.access_version,
            controller_ms=now_ms if image.feature_level >= CLOCKS_LEVEL else None,
            cluster_ms=self._cluster_ms(broker_id, report.reading_ms),
        )

    def _cluster_ms(self, broker_id: int, reading_ms: int | None) -> int | None:
        """Take a broker's reading; return the cluster's time at which this node's monotonic clock was 0, or None."""
        self._readings.take(broker_id, reading_ms)
        cluster_ms = self._readings.cluster_ms()
        # A new controller has not heard all voters yet.
        is_settled = self._clock.now_ms() - self._since_ms >= CLOCKS_SETTLE_MS
        if cluster_ms is None and self._do_clocks_agree and is_settled:
            self._do_clocks_agree = False
            logger.error(
                "no majority of the voters' clocks agrees within %d ms: %s; set the clocks of these machines",
                self._settings.clock_skew_ms_max,
                self._readings,
            )
        elif cluster_ms is not None and not self._do_clocks_agree:
            self._do_clocks_agree = True
            logger.info("the clocks of a majority of the voters agree again")
        return cluster_ms

    def _knows_its_fence(self, broker: Broker, index: int) -> bool:
        """Return whether a broker whose image is at ``index`` knows of its fence, if it is fenced.

        A broker that was silent for a session may be heard again before Raft has reached it. With a lease, or unfenced,
        it would act for partitions that others lead now.
        """
        if broker.broker_id in self._fencing:
            return False
        if not broker.is_fenced:
            return True
        if broker.stored_epoch != broker.broker_epoch:
            # The broker was never unfenced since it registered, so its registration is its fence.
            return index >= broker.broker_epoch
        epoch, fenced_at = self._fenced_at.get(broker.broker_id, (-1, 0))
        if epoch != broker.broker_epoch:
            fenced_at = self._metadata.image.index
            self._fenced_at[broker.broker_id] = broker.broker_epoch, fenced_at
        return index >= fenced_at

    def _majority_age_ms(self, now_ms: MonotonicMs) -> int:
        """Return how long ago a majority of the voters, with this node, was last heard, in ms.

        A Raft leader that was cut off still counts itself as leader for a while. Its leases must not outlive its
        knowledge of a majority. Otherwise it would be the last to refuse writes that cannot be committed.
        """
        others = [v for v in self._settings.voters if v != self._node_id]
        needed = (len(others) + 1) // 2
        if not needed:
            return 0
        heard = (self._metadata.quorum.last_contact_ms(voter) for voter in others)
        latest = sorted((h for h in heard if h is not None), reverse=True)
        if len(latest) < needed:
            return self._settings.session_ms
        return max(0, now_ms - latest[needed - 1])

    # -- quick detection of dead processes -------------------------------------------------------

    def on_disconnected(self, broker_id: int) -> None:
        """Find out whether the broker's process is gone, because a connection to it broke."""
        if self._sessions is not None:
            self.suspect(broker_id)

    def suspect(self, broker_id: int) -> None:
        """Dial the broker; two refusals, 100 ms apart, mean that its process is gone."""
        if broker_id not in self._probes and broker_id != self._node_id:
            task = asyncio.create_task(self._probe(broker_id), name=f"probe-{broker_id}")
            self._probes[broker_id] = task
            task.add_done_callback(lambda _: self._probes.pop(broker_id, None))

    async def _probe(self, broker_id: int) -> None:
        refusals = 0
        for attempt in range(PROBES_MAX):
            if attempt:
                await self._clock.sleep(PROBE_PAUSE_MS)
            result = await self._dial(broker_id, timeout_ms=PROBE_TIMEOUT_MS)
            # A dying process may still accept for a moment after its connections broke.
            refusals = refusals + 1 if result is ProbeResult.REFUSED else 0
            if refusals == REFUSALS_TO_FENCE:
                break
        if refusals == REFUSALS_TO_FENCE and self._sessions is not None:
            logger.info("broker gone broker_id=%d: connection refused twice", broker_id)
            self._sessions.end(broker_id)
            self._work.set()

    # -- turns -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run turn after turn, until another controller's claim is in force."""
        last_ms = self._clock.now_ms()
        while True:
            try:
                async with asyncio.timeout(TICK_MS / 1000):
                    await self._work.wait()
            except TimeoutError:
                pass
            self._work.clear()
            now_ms = self._clock.now_ms()
            sessions = self._sessions
            if sessions is None or self._metadata.image.controller_epoch > self._epoch:
                return
            if now_ms - last_ms > self._settings.session_ms // 2:
                logger.warning("controller stalled ms=%d: sessions start again", now_ms - last_ms)
                sessions.rearm(now_ms)
            try:
                await self._turn(sessions, now_ms)
            except StaleControllerEpochError:
                return
            except MilenaError as error:
                logger.info("controller turn failed epoch=%d: %s", self._epoch, error)
                await self._clock.sleep(TICK_MS)
            last_ms = self._clock.now_ms()

    async def _turn(self, sessions: BrokerSessions, now_ms: MonotonicMs) -> None:
        sessions.arm(_epochs(self._metadata.image), now_ms)
        await self._fence(sessions, now_ms)
        await self._unfence(sessions, now_ms)
        await self._drain(sessions)
        await self._relieve(sessions)
        await self._elect()
        await self._reassigner.turn(self._metadata.image)
        await self._prefer(now_ms)
        await self._forget_producers(now_ms)
        await self._raise_level()
        await self._correct_time()
        await self._check_image(now_ms)

    async def _check_image(self, now_ms: MonotonicMs) -> None:
        """Have every node compare its image with this one, so that a node with another image soon stops."""
        if now_ms < self._check_due_ms:
            return
        checks = self._metadata.checks
        check = checks.next_check()
        if check is None:
            return  # the image is being hashed, and the turn must not wait for that
        self._check_due_ms = now_ms + max(CHECK_IMAGE_MS, CHECK_IMAGE_SHARE * checks.hash_ms)
        await self._propose(check)

    async def _fence(self, sessions: BrokerSessions, now_ms: MonotonicMs) -> None:
        for broker_id in sessions.expired(now_ms):
            image = self._metadata.image
            broker = image.brokers.get(broker_id)
            session = sessions.get(broker_id)
            if broker is None or session is None or session.broker_epoch != broker.broker_epoch:
                continue
            if sessions.is_alive(broker_id, now_ms):
                continue  # it was heard while another broker was being fenced
            changes = elections.plan_fence(image, broker_id)
            if broker.is_fenced and not changes:
                continue
            logger.info(
                "fence broker_id=%d broker_epoch=%d changes=%d",
                broker_id,
                broker.broker_epoch,
                len(changes),
            )
            self._lost_ms = now_ms
            self._fencing.add(broker_id)
            self._fenced_at.pop(broker_id, None)
            try:
                # This command has the fence and the first changes; changes beyond its limit follow as elections.
                await self._propose(
                    FenceBroker(
                        controller_epoch=self._epoch,
                        broker_id=broker_id,
                        broker_epoch=broker.broker_epoch,
                        changes=tuple(changes[:CHANGES_MAX]),
                    )
                )
            finally:
                self._fencing.discard(broker_id)

    async def _unfence(self, sessions: BrokerSessions, now_ms: MonotonicMs) -> None:
        image = self._metadata.image
        for broker in image.brokers.values():
            session = sessions.get(broker.broker_id)
            if (
                broker.is_fenced
                and session is not None
                and session.has_reported
                and session.broker_epoch == broker.broker_epoch
                and self._knows_its_fence(broker, session.applied_index)
                and not session.is_draining
                and sessions.is_alive(broker.broker_id, now_ms)
            ):
                logger.info("unfence broker_id=%d", broker.broker_id)
                await self._propose(
                    UnfenceBroker(
                        controller_epoch=self._epoch,
                        broker_id=broker.broker_id,
                        broker_epoch=broker.broker_epoch,
                    )
                )

    async def _drain(self, sessions: BrokerSessions) -> None:
        for broker_id in list(self._metadata.image.brokers):
            image = self._metadata.image
            broker = image.brokers.get(broker_id)
            session = sessions.get(broker_id)
            if broker is None or session is None or not session.is_draining or broker.is_fenced:
                continue
            changes = elections.plan_drain(image, broker_id)
            if broker.is_draining and not changes:
                continue
            logger.info("drain broker_id=%d changes=%d", broker_id, len(changes))
            await self._propose(
                DrainBroker(
                    controller_epoch=self._epoch,
                    broker_id=broker_id,
                    broker_epoch=broker.broker_epoch,
                    changes=tuple(changes[:CHANGES_MAX]),
                )
            )

    async def _relieve(self, sessions: BrokerSessions) -> None:
        """Take leadership and ISR membership from brokers with a full disk, if another live broker has room."""
        image = self._metadata.image
        live = image.live_brokers()
        full = [b for b in live if (s := sessions.get(b)) is not None and s.is_disk_full]
        if len(full) < len(live):
            for broker_id in full:
                await self._propose_changes(
                    elections.plan_drain(self._metadata.image, broker_id), "relieve"
                )

    async def _elect(self) -> None:
        image = self._metadata.image
        with_unclean = self._clock.now_ms() - self._lost_ms >= UNCLEAN_PATIENCE_MS
        if self._peace is not None and self._peace.holds(image, with_unclean=with_unclean):
            return
        changes = (
            *elections.plan_elections(image, with_unclean=with_unclean),
            *elections.plan_shrinks(image),
        )
        self._peace = None if changes else _Peace.of(image, with_unclean=with_unclean)
        await self._propose_changes(changes, "elect")

    async def _raise_level(self) -> None:
        image = self._metadata.image
        level = cluster.supported_level(image)
        if level > image.feature_level:
            logger.info("feature level from=%d to=%d", image.feature_level, level)
            await self._propose(SetFeatureLevel(feature_level=level))

    async def _correct_time(self) -> None:
        """Set the applied time back if the clock of a proposer was ahead, for example before it knew the time."""
        image = self._metadata.image
        now_ms = self._clock.expiry_ms()
        if image.feature_level < CLOCKS_LEVEL or not now_ms or self._readings.cluster_ms() is None:
            return
        # A correct proposer may be ahead of the others by the skew, and this node behind them by the same.
        ahead_ms = image.now_ms - now_ms
        if ahead_ms > 2 * self._settings.clock_skew_ms_max:
            logger.warning("applied time set back ahead_ms=%d", ahead_ms)
            await self._propose(CorrectTime(controller_epoch=self._epoch, now_ms=now_ms))

    async def _prefer(self, now_ms: MonotonicMs) -> None:
        interval_ms = self._settings.preferred_interval_ms
        if interval_ms == 0 or now_ms - self._preferred_ms < interval_ms:
            return
        self._preferred_ms = now_ms
        await self._propose_changes(elections.plan_preferred(self._metadata.image), "prefer")

    async def _forget_producers(self, now_ms: MonotonicMs) -> None:
        """Propose to forget the names that began transactions and are not used any more."""
        image = self._metadata.image
        if image.feature_level < producers.LEVEL or now_ms < self._forget_due_ms:
            return
        since_ms = WallMs(self._clock.expiry_ms() - self._settings.transactional_id_ms)
        found = tuple(islice(producers.unused(image, since_ms), FORGOTTEN_PER_COMMAND_MAX))
        if len(found) < FORGOTTEN_PER_COMMAND_MAX:
            pause_ms = self._settings.transactional_id_ms // FORGET_LOOKS
            self._forget_due_ms = MonotonicMs(now_ms + pause_ms)
        if found:
            logger.info("transactional ids forgotten count=%d", len(found))
            await self._propose(ForgetProducers(producer_ids=found, unused_since_ms=since_ms))

    async def _propose_changes(self, changes: Sequence[LeaderChange], why: str) -> None:
        for first in range(0, len(changes), CHANGES_MAX):
            part = tuple(changes[first : first + CHANGES_MAX])
            logger.info("%s partitions=%d", why, len(part))
            taken = await self._propose(ElectLeaders(controller_epoch=self._epoch, changes=part))
            if isinstance(taken, tuple) and not any(taken):
                # Each command makes a new image, and each image a new turn: changes that are always refused must not
                # cause a busy loop.
                await self._clock.sleep(TICK_MS)

    async def _propose(
        self,
        command: FenceBroker
        | UnfenceBroker
        | DrainBroker
        | ElectLeaders
        | StepReassignments
        | SetFeatureLevel
        | CheckImage
        | CorrectTime
        | ForgetProducers,
    ) -> object:
        return await self._metadata.propose(command, timeout_ms=CONTROLLER_PROPOSE_MS)


def _epochs(image: Image) -> dict[int, int]:
    return {b.broker_id: b.broker_epoch for b in image.brokers.values()}
