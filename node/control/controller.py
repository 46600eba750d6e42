"""The controller: the Raft leader's node, which watches the brokers and elects leaders of partitions.

It decides from the local image and from its table of sessions. Each decision is a command that names the state on which
it is based. So if the state has changed, or another controller has taken over, the command does nothing. Heartbeats are
not written to the log.

A turn has these steps, in this order:

1. Fence brokers whose session ended, and elect other leaders for their partitions.
2. Unfence brokers that have caught up.
3. Drain brokers that ask for it.
4. Take leadership from brokers with a full disk.
5. Elect leaders for partitions without one.
6. Continue moves of replicas.
7. From time to time, restore preferred leaders, forget unused producers, and abort overdue transactions of Kafka
   clients.
8. Raise the cluster's feature level if every broker supports the next one, correct the applied time if needed, and
   have the nodes compare their images.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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
from raft_meta.machine import cluster, producers, transactional_ids, transactions
from raft_meta.machine.commands import (
    ClaimController,
    Command,
    CorrectTime,
    DrainBroker,
    ElectLeaders,
    EndTransactions,
    FenceBroker,
    ForgetProducers,
    InitCluster,
    LeaderChange,
    SetFeatureLevel,
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
"""After this many refused connections in a row, a broker's process counts as gone."""
PROBE_TIMEOUT_MS = 500
UNCLEAN_PATIENCE_MS = 10_000
"""The time before a replica outside the ISR may be elected, if the topic allows it, in ms.

It starts when a controller takes over, or fences a broker. After a power cut of all machines, the replicas that have
the records need some time to come back.
"""
CHECK_IMAGE_MS = 60_000
"""The shortest time between two comparisons of all nodes' images with the controller's, in ms."""
CHECK_IMAGE_SHARE = 100
"""The shortest time between two comparisons, as a multiple of the time that a hash takes. So each node spends at most a
hundredth of its time on hashes."""
FORGET_LOOKS = 100
"""How often unused transactional ids are searched for within the time for which they are kept."""
OVERDUE_PAUSE_MS = 1_000
"""The pause between two searches for overdue transactions of Kafka clients."""
CLOCKS_LEVEL = 11
"""The feature level from which on every broker reports its clock, and the controller compares the clocks."""
CLOCKS_SETTLE_MS = 5_000
"""The time after taking over before the controller logs that the voters' clocks do not agree, in ms."""
CHANGES_MAX = 2_000
"""Largest number of partition changes in a command."""


class Dial(Protocol):
    """Connects to a broker's peer port once, to find out whether its process runs."""

    def __call__(self, broker_id: int, /, *, timeout_ms: float) -> Awaitable[ProbeResult]:
        """Connect, close the connection at once, and return the result."""


class _Peace(NamedTuple):
    """The parts of an image for which no election was due. While they do not change, none is due."""

    brokers: Map[int, Broker]
    partitions: Map[PartitionKey, Partition]
    topics: Map[str, Topic]
    with_unclean: bool
    """Whether unclean elections were considered."""
    is_led: bool
    """Whether every partition has a leader. Then no settings of topics can make an election due."""

    @classmethod
    def of(cls, image: Image, *, with_unclean: bool) -> "_Peace":
        """Return the parts of the image on which elections depend."""
        is_led = all(partition.leader is not None for partition in image.partitions.values())
        return cls(image.brokers, image.partitions, image.topics, with_unclean, is_led)

    def holds(self, image: Image, *, with_unclean: bool) -> bool:
        """Return whether no election is due in this image either. Unchanged parts of images are the same objects."""
        return (
            self.brokers is image.brokers
            and self.partitions is image.partitions
            and (self.is_led or (self.topics is image.topics and self.with_unclean == with_unclean))
        )


@dataclass(eq=False, kw_only=True)
class Controller:
    """The controller of a node. Every node has one, and only the Raft leader's is active. Owned by the data loop."""

    node_id: int
    metadata: MetadataStore
    dial: Dial
    clock: NodeClock
    session_ms: int
    preferred_interval_ms: int
    """The pause between checks whether the preferred replicas lead; 0: never check."""
    transactional_id_ms: int
    """How long a name that begins transactions is kept after its last use. It is longer than any transaction."""
    voters: tuple[int, ...]
    clock_skew_ms_max: int
    """The largest difference between two correct clocks."""
    feature_level: int
    """The feature level of a new cluster."""
    new_cluster_id: Callable[[], str]
    contained: ContainedErrors = field(default_factory=ContainedErrors)

    def __post_init__(self) -> None:
        self._epoch = -1
        self._sessions: BrokerSessions | None = None
        self._readings = ClockReadings((), 0)
        self._do_clocks_agree = True
        self._since_ms = self.clock.now_ms()
        """When this node last took over as controller."""
        self._term = -1
        self._previous_leader: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._fencing: set[int] = set()
        """Brokers for which a fencing command is in flight."""
        self._fenced_at: dict[int, tuple[int, int]] = {}
        """Broker → its epoch, and an index of this node's image at which the broker was already fenced."""
        self._work = asyncio.Event()
        self._parts = ImageParts(
            "brokers", "partitions", "controller_epoch", "feature_level", "voters"
        )
        self._topics: Map[str, Topic] | None = None
        self._preferred_ms = MonotonicMs(0)
        self._forget_due_ms = MonotonicMs(0)
        self._overdue_due_ms = MonotonicMs(0)
        self._check_due_ms = self.clock.now_ms() + CHECK_IMAGE_MS
        self._reassigner = Reassigner(
            clock=self.clock, propose=self._propose, propose_changes=self._propose_changes
        )
        self._lost_ms = self.clock.now_ms()
        """When this controller took over or last fenced a broker, in monotonic ms."""
        self._peace: _Peace | None = None
        """The parts of the last image for which no election was due. A search in many partitions is most of the cost of
        an idle controller, and this avoids it."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller."""
        return self._sessions is not None

    # -- role ------------------------------------------------------------------------------------

    def on_status(self, status: QuorumStatus) -> None:
        """Start or stop the controller, because the quorum's role changed."""
        is_leader = status.role is Role.LEADER
        if is_leader and (self._task is None or status.term != self._term):
            self._stop()
            self._term = status.term
            # If the task ended by an error, this node would answer heartbeats for ever but fence no broker. So
            # ``keep_going`` restarts it, and it claims the controller again.
            lead = partial(self._lead, status.term)
            self._task = asyncio.create_task(
                keep_going("controller", lead, clock=self.clock, contained=self.contained),
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
        """Start a turn at once if the image changed in a way that may need a decision."""
        before, self._topics = self._topics, image.topics
        peace = self._peace
        # The only relevant setting of a topic is whether it allows unclean elections. It matters only if a partition
        # has no leader.
        is_about_topics = before is not image.topics and not (
            peace is not None and peace.is_led and peace.partitions is image.partitions
        )
        if self._parts.have_changed(image) or is_about_topics:
            self._work.set()

    def close(self) -> None:
        """Stop the controller."""
        self._stop()

    async def _lead(self, term: int) -> None:
        while True:
            self._epoch = -1
            while self._epoch < 0:
                try:
                    self._epoch = await self._claim()
                except MilenaError as error:
                    logger.info("controller claim failed term=%d: %s", term, error)
                    await self.clock.sleep(TICK_MS)
            self._take_over()
            logger.info("controller epoch=%d term=%d", self._epoch, term)
            await self._run()
            # A claim of a former Raft leader was still in flight, and was committed after this node's claim. This
            # node still leads, and only the Raft leader can control. So it claims again.
            logger.warning("controller epoch=%d is over, term=%d goes on", self._epoch, term)

    async def _claim(self) -> int:
        """Raise the controller epoch and return it. The local image then has all commands committed before."""
        if not (await self.metadata.barrier(timeout_ms=CONTROLLER_PROPOSE_MS)).cluster_id:
            await self.metadata.propose(
                InitCluster(
                    cluster_id=self.new_cluster_id(),
                    voters=self.voters,
                    feature_level=self.feature_level,
                ),
                timeout_ms=CONTROLLER_PROPOSE_MS,
            )
        epoch = await self.metadata.propose(
            ClaimController(broker_id=self.node_id), timeout_ms=CONTROLLER_PROPOSE_MS
        )
        assert isinstance(epoch, int)
        return epoch

    def _take_over(self) -> None:
        now_ms = self._lost_ms = self._since_ms = self.clock.now_ms()
        sessions = self._sessions = BrokerSessions(self.session_ms)
        sessions.arm(_epochs(self.metadata.image), now_ms)
        self._readings = ClockReadings(self.voters, self.clock_skew_ms_max)
        previous = self._previous_leader
        if previous is not None and previous != self.node_id:
            heard_ms = self.metadata.quorum.last_contact_ms(previous)
            if heard_ms is not None:
                sessions.backdate(previous, MonotonicMs(heard_ms))
        for broker_id in self.metadata.image.brokers:
            if broker_id != self.node_id:
                self.suspect(broker_id)

    # -- heartbeats ------------------------------------------------------------------------------

    async def on_heartbeat(
        self, peer_id: int, fields: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Answer a heartbeat that arrived on the peer port; see ``take_heartbeat``."""
        del body
        return pack(self.take_heartbeat(peer_id, unpack(BrokerHeartbeatRequest, fields)))

    def take_heartbeat(
        self, broker_id: int, report: BrokerHeartbeatRequest
    ) -> BrokerHeartbeatAnswer:
        """Note a heartbeat and return the response to it.

        Raises:
            NotReadyError: this node is not the controller, or not yet.
            StaleBrokerEpochError: the broker is not registered, or has registered again.
        """
        sessions = self._sessions
        if sessions is None:
            raise NotReadyError(f"node {self.node_id} is not the controller")
        now_ms = self.clock.now_ms()
        sessions.arm(_epochs(self.metadata.image), now_ms)
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
                f"node {broker_id} is not registered under epoch {report.broker_epoch}"
            )
        image = self.metadata.image
        broker = image.brokers[broker_id]
        if broker.is_fenced or report.is_draining or report.is_disk_full:
            self._work.set()
        # A fenced broker leads nothing and is in no ISR. It stays so, because a draining broker is not unfenced.
        is_drained = (
            report.is_draining
            and (broker.is_draining or broker.is_fenced)
            and not elections.plan_drain(image, broker_id)
        )
        knows = self._knows_its_fence(broker, report.applied_index)
        age_ms = self._majority_age_ms(now_ms) if knows else self.session_ms
        return BrokerHeartbeatAnswer(
            number=number,
            is_drained=is_drained,
            age_ms=age_ms,
            access_version=image.access_version,
            controller_ms=now_ms if image.feature_level >= CLOCKS_LEVEL else None,
            cluster_ms=self._cluster_ms(broker_id, report.reading_ms),
        )

    def _cluster_ms(self, broker_id: int, reading_ms: int | None) -> int | None:
        """Store a broker's reading; return the cluster's time when this node's monotonic clock was 0, or None."""
        self._readings.take(broker_id, reading_ms)
        cluster_ms = self._readings.cluster_ms()
        # At first, a new controller has not heard from all voters.
        is_settled = self.clock.now_ms() - self._since_ms >= CLOCKS_SETTLE_MS
        if cluster_ms is None and self._do_clocks_agree and is_settled:
            self._do_clocks_agree = False
            logger.error(
                "no majority of the voters' clocks agrees within %d ms: %s; set the clocks of these machines",
                self.clock_skew_ms_max,
                self._readings,
            )
        elif cluster_ms is not None and not self._do_clocks_agree:
            self._do_clocks_agree = True
            logger.info("the clocks of a majority of the voters agree again")
        return cluster_ms

    def _knows_its_fence(self, broker: Broker, index: int) -> bool:
        """Return whether a broker with an image at ``index`` knows that it was fenced; True if it is not fenced.

        A broker that was silent for a session may be heard again before the command that fenced it reaches it. If it
        then got a lease, or were unfenced, it would act as the leader of partitions that others lead now.
        """
        if broker.broker_id in self._fencing:
            return False
        if not broker.is_fenced:
            return True
        if broker.stored_epoch != broker.broker_epoch:
            # A broker is fenced when it registers, and this one has not been unfenced since.
            return index >= broker.broker_epoch
        epoch, fenced_at = self._fenced_at.get(broker.broker_id, (-1, 0))
        if epoch != broker.broker_epoch:
            fenced_at = self.metadata.image.index
            self._fenced_at[broker.broker_id] = broker.broker_epoch, fenced_at
        return index >= fenced_at

    def _majority_age_ms(self, now_ms: MonotonicMs) -> int:
        """Return how long ago this node last heard from a majority of the voters (itself included), in ms.

        A Raft leader that is cut off still believes for a while that it leads. A lease that it gives must end with its
        knowledge of a majority. Otherwise brokers on its side would accept writes that cannot be committed.
        """
        others = [v for v in self.voters if v != self.node_id]
        needed = (len(others) + 1) // 2
        if not needed:
            return 0
        heard = (self.metadata.quorum.last_contact_ms(voter) for voter in others)
        latest = sorted((h for h in heard if h is not None), reverse=True)
        if len(latest) < needed:
            return self.session_ms
        return max(0, now_ms - latest[needed - 1])

    # -- quick detection of dead processes -------------------------------------------------------

    def on_disconnected(self, broker_id: int) -> None:
        """Find out whether a broker's process is gone: a connection to it was closed."""
        if self._sessions is not None:
            self.suspect(broker_id)

    def suspect(self, broker_id: int) -> None:
        """Connect to the broker. If two connections, 100 ms apart, are refused, its process is gone."""
        if broker_id not in self._probes and broker_id != self.node_id:
            task = asyncio.create_task(self._probe(broker_id), name=f"probe-{broker_id}")
            self._probes[broker_id] = task
            task.add_done_callback(lambda _: self._probes.pop(broker_id, None))

    async def _probe(self, broker_id: int) -> None:
        refusals = 0
        for attempt in range(PROBES_MAX):
            if attempt:
                await self.clock.sleep(PROBE_PAUSE_MS)
            result = await self.dial(broker_id, timeout_ms=PROBE_TIMEOUT_MS)
            # A process that is ending may still accept a connection, so this connects up to ``PROBES_MAX`` times.
            refusals = refusals + 1 if result is ProbeResult.REFUSED else 0
            if refusals == REFUSALS_TO_FENCE:
                break
        if refusals == REFUSALS_TO_FENCE and self._sessions is not None:
            logger.info("broker gone broker_id=%d: connection refused twice", broker_id)
            self._sessions.end(broker_id)
            self._work.set()

    # -- turns -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run turn after turn, until another controller has taken over."""
        last_ms = self.clock.now_ms()
        while True:
            try:
                async with asyncio.timeout(TICK_MS / 1000):
                    await self._work.wait()
            except TimeoutError:
                pass
            self._work.clear()
            now_ms = self.clock.now_ms()
            sessions = self._sessions
            if sessions is None or self.metadata.image.controller_epoch > self._epoch:
                return
            if now_ms - last_ms > self.session_ms // 2:
                logger.warning("controller stalled ms=%d: sessions start again", now_ms - last_ms)
                sessions.rearm(now_ms)
            try:
                await self._turn(sessions, now_ms)
            except StaleControllerEpochError:
                return
            except MilenaError as error:
                logger.info("controller turn failed epoch=%d: %s", self._epoch, error)
                await self.clock.sleep(TICK_MS)
            last_ms = self.clock.now_ms()

    async def _turn(self, sessions: BrokerSessions, now_ms: MonotonicMs) -> None:
        sessions.arm(_epochs(self.metadata.image), now_ms)
        await self._fence(sessions, now_ms)
        await self._unfence(sessions, now_ms)
        await self._drain(sessions)
        await self._relieve(sessions)
        await self._elect()
        await self._reassigner.turn(self.metadata.image)
        await self._prefer(now_ms)
        await self._forget_producers(now_ms)
        await self._abort_overdue(now_ms)
        await self._raise_level()
        await self._correct_time()
        await self._check_image(now_ms)

    async def _check_image(self, now_ms: MonotonicMs) -> None:
        """Have every node compare its image with this node's, so that a node with another image soon stops."""
        if now_ms < self._check_due_ms:
            return
        checks = self.metadata.checks
        check = checks.next_check()
        if check is None:
            return  # the image is still being hashed, and the turn must not wait for that
        self._check_due_ms = now_ms + max(CHECK_IMAGE_MS, CHECK_IMAGE_SHARE * checks.hash_ms)
        await self._propose(check)

    async def _fence(self, sessions: BrokerSessions, now_ms: MonotonicMs) -> None:
        for broker_id in sessions.expired(now_ms):
            image = self.metadata.image
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
                # One command fences the broker and makes the first changes. The rest follow as elections.
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
        image = self.metadata.image
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
        for broker_id in list(self.metadata.image.brokers):
            image = self.metadata.image
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
        """Remove brokers with a full disk from leadership and ISRs, if another live broker has room."""
        image = self.metadata.image
        live = image.live_brokers()
        full = [b for b in live if (s := sessions.get(b)) is not None and s.is_disk_full]
        if len(full) < len(live):
            for broker_id in full:
                await self._propose_changes(
                    elections.plan_drain(self.metadata.image, broker_id), "relieve"
                )

    async def _elect(self) -> None:
        image = self.metadata.image
        with_unclean = self.clock.now_ms() - self._lost_ms >= UNCLEAN_PATIENCE_MS
        if self._peace is not None and self._peace.holds(image, with_unclean=with_unclean):
            return
        changes = (
            *elections.plan_elections(image, with_unclean=with_unclean),
            *elections.plan_shrinks(image),
        )
        self._peace = None if changes else _Peace.of(image, with_unclean=with_unclean)
        await self._propose_changes(changes, "elect")

    async def _raise_level(self) -> None:
        image = self.metadata.image
        level = cluster.supported_level(image)
        if level > image.feature_level:
            logger.info("feature level from=%d to=%d", image.feature_level, level)
            await self._propose(SetFeatureLevel(feature_level=level))

    async def _correct_time(self) -> None:
        """Set the applied time back if the clock of a proposer was ahead."""
        image = self.metadata.image
        now_ms = self.clock.expiry_ms()
        if image.feature_level < CLOCKS_LEVEL or not now_ms or self._readings.cluster_ms() is None:
            return
        # The clock of a correct proposer may be ahead by the largest skew, and this node's may be behind by as much.
        ahead_ms = image.now_ms - now_ms
        if ahead_ms > 2 * self.clock_skew_ms_max:
            logger.warning("applied time set back ahead_ms=%d", ahead_ms)
            await self._propose(CorrectTime(controller_epoch=self._epoch, now_ms=now_ms))

    async def _prefer(self, now_ms: MonotonicMs) -> None:
        interval_ms = self.preferred_interval_ms
        if interval_ms == 0 or now_ms - self._preferred_ms < interval_ms:
            return
        self._preferred_ms = now_ms
        await self._propose_changes(elections.plan_preferred(self.metadata.image), "prefer")

    async def _forget_producers(self, now_ms: MonotonicMs) -> None:
        """Propose to forget names that began transactions, if they have not been used for long."""
        image = self.metadata.image
        if image.feature_level < producers.LEVEL or now_ms < self._forget_due_ms:
            return
        since_ms = WallMs(self.clock.expiry_ms() - self.transactional_id_ms)
        found = tuple(islice(producers.unused(image, since_ms), FORGOTTEN_PER_COMMAND_MAX))
        if len(found) < FORGOTTEN_PER_COMMAND_MAX:
            pause_ms = self.transactional_id_ms // FORGET_LOOKS
            self._forget_due_ms = MonotonicMs(now_ms + pause_ms)
        if found:
            logger.info("transactional ids forgotten count=%d", len(found))
            await self._propose(ForgetProducers(producer_ids=found, unused_since_ms=since_ms))

    async def _abort_overdue(self, now_ms: MonotonicMs) -> None:
        """Propose to abort transactions of Kafka clients whose time is over.

        Leaders abort those with records, too. Others hold up readers of the offsets that they staged.
        """
        image = self.metadata.image
        if not image.transactional_ids or now_ms < self._overdue_due_ms:
            return
        self._overdue_due_ms = MonotonicMs(now_ms + OVERDUE_PAUSE_MS)
        # The time at which a transaction began comes from the clock of the node that took the request.
        latest_ms = WallMs(self.clock.expiry_ms() - self.clock_skew_ms_max)
        ends = tuple(
            islice(transactional_ids.overdue(image, latest_ms), transactions.ENDS_PER_COMMAND_MAX)
        )
        if ends:
            logger.info(
                "transactions of kafka clients aborted, their time is over count=%d", len(ends)
            )
            await self._propose(EndTransactions(ends=ends))

    async def _propose_changes(self, changes: Sequence[LeaderChange], why: str) -> None:
        for first in range(0, len(changes), CHANGES_MAX):
            part = tuple(changes[first : first + CHANGES_MAX])
            logger.info("%s partitions=%d", why, len(part))
            taken = await self._propose(ElectLeaders(controller_epoch=self._epoch, changes=part))
            if isinstance(taken, tuple) and not any(taken):
                # Each command makes a new image, and each image starts a turn. If all changes are refused, wait, so
                # that this does not become a busy loop.
                await self.clock.sleep(TICK_MS)

    async def _propose(self, command: Command) -> object:
        return await self.metadata.propose(command, timeout_ms=CONTROLLER_PROPOSE_MS)


def _epochs(image: Image) -> dict[int, int]:
    return {b.broker_id: b.broker_epoch for b in image.brokers.values()}
