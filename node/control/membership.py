"""This broker's place in the cluster: registration, heartbeats to the controller, and draining."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from milena.model.errors import (
    BrokerIdInUseError,
    FateUnknownError,
    StaleBrokerEpochError,
    StartupError,
    UnavailableError,
)
from milena.model.types import MonotonicMs
from node.config.budgets import LONG_PROPOSE_MS, REFUSED_RETRY_MS
from node.control.broker_heartbeats import BrokerHeartbeats, LocalHeartbeat
from node.control.messages import BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.metadata.store import MetadataStore
from node.peers.port import Peers
from node.process.cluster_clock import ClusterClock
from raft_meta.machine.commands import RegisterBroker, ReplicaReport
from raft_meta.machine.image import Broker, Image
from storage.replica.data_directory import DataDirectory

logger = logging.getLogger(__name__)

ALARMING_ATTEMPTS = 50
"""After this many refusals of the registration (five seconds or more), a warning is logged."""
TAKEN_ID_SESSIONS = 3
"""Sessions under one controller after which this broker's id counts as that of another live node.

One session passes until a dead owner of the id is fenced. The controller may stall once, which restarts all sessions
(``BrokerSessions.rearm``). The third session covers the time of the stall.
"""
TAKEN_ID_SLACK_MS = 5_000
"""Additional time in ms, in which the fence is decided and committed."""
ANSWER_GAP_MS_MAX = 3_000
"""The longest time between two refusals that count as consecutive, in ms. After a longer time, there may have been no
controller meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The description of a broker in its registration."""

    api_url: str
    peer_host: str
    peer_port: int
    rack: str | None
    feature_min: int
    feature_max: int


class TakenId:
    """Decides when a refused broker id certainly belongs to another live node. Pure; times are monotonic ms.

    The state machine refuses an id while the broker that has it is not fenced. If that broker is another live node, the
    configuration is wrong, and this node should stop with a clear error.

    But a node that lost its directory is refused because of its own former process. It must wait until a controller has
    fenced that process. Each new controller first gives every broker a full session. So only time under one controller
    counts, and no time without a quorum.
    """

    def __init__(self, session_ms: int) -> None:
        self._patience_ms = TAKEN_ID_SESSIONS * session_ms + TAKEN_ID_SLACK_MS
        self._controller_epoch = -1
        self._since_ms = 0
        self._refused_ms = 0

    def is_certain(self, controller_epoch: int, now_ms: int) -> bool:
        """Note a refusal; return whether the id has been refused long enough under one controller."""
        is_same = controller_epoch == self._controller_epoch
        if not is_same or now_ms - self._refused_ms > ANSWER_GAP_MS_MAX:
            self._controller_epoch, self._since_ms = controller_epoch, now_ms
        self._refused_ms = now_ms
        return now_ms - self._since_ms > self._patience_ms


@dataclass(eq=False, kw_only=True)
class Membership:
    """Registers this broker once, then keeps its session alive by heartbeats."""

    broker_id: int
    identity: Callable[[], Identity]
    metadata: MetadataStore
    peer: Peers
    directory: DataDirectory
    clock: ClusterClock
    session_ms: int
    heartbeat_ms: int
    local_heartbeat: LocalHeartbeat

    def __post_init__(self) -> None:
        self.broker_epoch = -1
        self.is_draining = False
        self.is_disk_full = False
        self._controller: tuple[int, int] | None = None
        self._is_drained = False
        self.heard_ms: MonotonicMs | None = None
        """The last time at which this image certainly had all changes of users and permissions; None: never in this
        process. Monotonic ms."""
        self._heartbeats = BrokerHeartbeats(
            broker_id=self.broker_id,
            metadata=self.metadata,
            peer=self.peer,
            clock=self.clock,
            session_ms=self.session_ms,
            interval_ms=self.heartbeat_ms,
            report=self._report,
            local_heartbeat=self.local_heartbeat,
            on_answer=self._on_answer,
        )

    # -- state -----------------------------------------------------------------------------------

    @property
    def has_lease(self) -> bool:
        """Whether this broker has a lease. Without one it must not act as the leader of its partitions."""
        return self._heartbeats.lease_left_ms > 0

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs if no more response arrives, in ms."""
        return self._heartbeats.lease_left_ms

    def me(self, image: Image) -> Broker | None:
        """Return this broker's entry in the image; None if the image does not have its present registration."""
        broker = image.brokers.get(self.broker_id)
        return broker if broker is not None and broker.broker_epoch == self.broker_epoch else None

    @property
    def is_unfenced(self) -> bool:
        """Whether the image has this broker's present registration, and the broker is not fenced."""
        broker = self.me(self.metadata.image)
        return broker is not None and not broker.is_fenced

    # -- registration ----------------------------------------------------------------------------

    async def register(self, reports: Sequence[ReplicaReport], *, was_clean_stop: bool) -> int:
        """Try to register until the quorum accepts; store the broker epoch in the directory, and return it.

        Raises:
            StartupError: another live node uses this broker's id.
        """
        taken: TakenId | None = None
        attempts = 0
        while True:
            try:
                epoch = await self.metadata.propose(
                    self._registration(reports, was_clean_stop=was_clean_stop),
                    timeout_ms=LONG_PROPOSE_MS,
                )
            except StaleBrokerEpochError:
                # An incarnation number comes from the wall clock. The clock was set back since the last start.
                self.metadata.outlive_past_incarnations()
                continue
            except BrokerIdInUseError as error:
                if taken is None:
                    taken = TakenId(self.session_ms)
                    logger.warning("waiting for the broker id: %s", error)
                image = self.metadata.image
                if taken.is_certain(image.controller_epoch, self.clock.now_ms()):
                    raise StartupError(error.message) from error
                await self.clock.sleep(REFUSED_RETRY_MS)
                continue
            except (UnavailableError, FateUnknownError) as error:
                # A cluster that starts has no Raft leader for a moment, so the first refusals need no warning.
                attempts += 1
                if attempts in {1, ALARMING_ATTEMPTS}:
                    level = logging.INFO if attempts == 1 else logging.WARNING
                    logger.log(level, "waiting for the metadata quorum: %s", error)
                if isinstance(error, FateUnknownError):
                    # The lost registration may still be committed. It must not be committed after the next one, because
                    # this node will know only the next one's epoch. So the next one gets a higher incarnation.
                    self.metadata.outlive_past_incarnations()
                await self.clock.sleep(REFUSED_RETRY_MS)
                continue
            assert isinstance(epoch, int)
            self.directory.set_broker_epoch(epoch)
            self.broker_epoch = epoch
            logger.info("registered broker_id=%d broker_epoch=%d", self.broker_id, epoch)
            return epoch

    def _registration(
        self, reports: Sequence[ReplicaReport], *, was_clean_stop: bool
    ) -> RegisterBroker:
        return RegisterBroker(
            **asdict(self.identity()),
            broker_id=self.broker_id,
            directory_id=self.directory.directory_id,
            last_broker_epoch=self.directory.broker_epoch,
            incarnation=self.metadata.incarnation,
            was_clean_stop=was_clean_stop,
            reports=tuple(reports),
        )

    # -- heartbeats ------------------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Send a heartbeat soon: the controller changed, or it waits for an index that the image has reached."""
        self._heartbeats.soon()

    def on_image(self, image: Image) -> None:
        """Send a heartbeat soon if the controller is a new one, or if this broker is fenced and may have caught up."""
        controller = (image.controller_id or 0, image.controller_epoch)
        broker = self.me(image)
        if controller != self._controller or (broker is not None and broker.is_fenced):
            self._controller = controller
            self._heartbeats.soon()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        await self._heartbeats.run()

    def _report(self, echo: int) -> BrokerHeartbeatRequest | None:
        if self.broker_epoch < 0:
            return None
        return BrokerHeartbeatRequest(
            broker_epoch=self.broker_epoch,
            echo=echo,
            applied_index=self.metadata.image.index,
            is_draining=self.is_draining,
            is_disk_full=self.is_disk_full,
            reading_ms=self.clock.reading_ms,
        )

    def _on_answer(self, answer: BrokerHeartbeatAnswer, as_of_ms: MonotonicMs) -> None:
        self._is_drained = answer.is_drained
        if answer.access_version <= self.metadata.image.access_version:
            self.heard_ms = as_of_ms if self.heard_ms is None else max(self.heard_ms, as_of_ms)

    # -- a full disk -----------------------------------------------------------------------------

    def on_disk_full(self) -> None:
        """Report a full disk. The controller then moves leadership away and removes this broker from the ISRs."""
        if not self.is_disk_full:
            self.is_disk_full = True
            logger.warning("disk full: giving up leadership")
            self.beat_soon()

    def on_disk_room(self) -> None:
        """Report that the disk has room again."""
        if self.is_disk_full:
            self.is_disk_full = False
            logger.info("disk has room again")
            self.beat_soon()

    # -- draining --------------------------------------------------------------------------------

    async def drain(self, *, timeout_ms: int) -> bool:
        """Ask the controller to remove all leadership and ISR membership of this broker; return whether it is done.

        If this process has not registered, the broker leads nothing and is in no ISR. The controller will not unfence
        it, because it reports that it is draining. So there is nothing to wait for.
        """
        self.is_draining = True
        if self.broker_epoch < 0:
            return True
        deadline = self.clock.now_ms() + timeout_ms
        while not self._is_drained and self.clock.now_ms() < deadline:
            self.beat_soon()
            await self.metadata.changed(25)
        return self._is_drained
