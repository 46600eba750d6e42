"""This broker's place in the cluster: registration, heartbeats to the controller, and the lease that they earn.

The lease runs from the moment when an answered heartbeat was *sent*. Without it this node must assume that it has been
fenced and that others lead its partitions: it refuses writes at once instead of letting them wait for a commit that
cannot come.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.clock import Clock
from node.metadata import MetadataStore
from node.peer import PeerClient
from node.peer_codec import Channel
from raft_meta.machine.commands import RegisterBroker, ReplicaReport
from raft_meta.machine.image import Broker, Image
from storage.data_directory import DataDirectory
from storage.errors import (
    BrokerIdInUseError,
    FateUnknownError,
    MilenaError,
    StaleBrokerEpochError,
    StartupError,
    UnavailableError,
)
from storage.types import MonotonicMs

logger = logging.getLogger(__name__)

HEARTBEAT = "heartbeat"
CHANNEL = Channel.CONTROL
REGISTER_TIMEOUT_MS = 10_000
TAKEN_ID_PATIENCE_MS = 10_000
RETRY_MS = 100

LocalHeartbeat = Callable[[int, dict[str, object]], dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What this broker tells of itself when it registers."""

    api_url: str
    peer_host: str
    peer_port: int
    rack: str | None
    feature_min: int
    feature_max: int


class Membership:
    """Registers this broker once, then keeps its session alive."""

    def __init__(
        self,
        *,
        broker_id: int,
        identity: Callable[[], Identity],
        metadata: MetadataStore,
        peer: PeerClient,
        directory: DataDirectory,
        clock: Clock,
        session_ms: int,
        heartbeat_ms: int,
        local_heartbeat: LocalHeartbeat,
    ) -> None:
        self.broker_epoch = -1
        self.is_draining = False
        self.is_disk_full = False
        self._broker_id = broker_id
        self._identity = identity
        self._metadata = metadata
        self._peer = peer
        self._directory = directory
        self._clock = clock
        self._session_ms = session_ms
        self._heartbeat_ms = heartbeat_ms
        self._local_heartbeat = local_heartbeat
        self._lease_ms = MonotonicMs(-session_ms)
        self._echo = 0
        self._controller: tuple[int, int] | None = None
        self._is_drained = False
        self._soon = asyncio.Event()

    # -- what others look at ---------------------------------------------------------------------

    @property
    def has_lease(self) -> bool:
        """Whether the controller counts on this broker, as far as can be known."""
        return self._clock.now_ms() - self._lease_ms < self._session_ms

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs without another answer."""
        return max(0, self._lease_ms + self._session_ms - self._clock.now_ms())

    def me(self, image: Image) -> Broker | None:
        """This broker in the image, if it is this life of it."""
        broker = image.brokers.get(self._broker_id)
        return broker if broker is not None and broker.broker_epoch == self.broker_epoch else None

    @property
    def is_unfenced(self) -> bool:
        """Whether this life of the broker takes part."""
        broker = self.me(self._metadata.image)
        return broker is not None and not broker.is_fenced

    # -- registration ----------------------------------------------------------------------------

    async def register(self, reports: Sequence[ReplicaReport], *, was_clean_stop: bool) -> int:
        """Register until the quorum takes it; returns the broker epoch, which the directory remembers.

        Raises:
            StartupError: another live broker uses our id.
        """
        deadline = self._clock.now_ms() + TAKEN_ID_PATIENCE_MS
        is_waiting = False
        while True:
            try:
                epoch = await self._metadata.propose(
                    self._registration(reports, was_clean_stop=was_clean_stop),
                    timeout_ms=REGISTER_TIMEOUT_MS,
                )
            except StaleBrokerEpochError:
                # The wall clock was set back since our last life, which names incarnations by it.
                self._metadata.outlive_past_incarnations()
                continue
            except BrokerIdInUseError as error:
                # A node that was killed and lost its directory looks like this until it is fenced.
                if self._clock.now_ms() > deadline:
                    raise StartupError(error.message) from error
                await self._clock.sleep(RETRY_MS)
                continue
            except (UnavailableError, FateUnknownError) as error:
                if not is_waiting:
                    logger.warning("waiting for the metadata quorum: %s", error)
                is_waiting = True
                await self._clock.sleep(RETRY_MS)
                continue
            assert isinstance(epoch, int)
            self._directory.set_broker_epoch(epoch)
            self.broker_epoch = epoch
            logger.info("registered broker_id=%d broker_epoch=%d", self._broker_id, epoch)
            return epoch

    def _registration(
        self, reports: Sequence[ReplicaReport], *, was_clean_stop: bool
    ) -> RegisterBroker:
        identity = self._identity()
        return RegisterBroker(
            broker_id=self._broker_id,
            directory_id=self._directory.directory_id,
            last_broker_epoch=self._directory.broker_epoch,
            incarnation=self._metadata.incarnation,
            api_url=identity.api_url,
            peer_host=identity.peer_host,
            peer_port=identity.peer_port,
            rack=identity.rack,
            feature_min=identity.feature_min,
            feature_max=identity.feature_max,
            was_clean_stop=was_clean_stop,
            reports=tuple(reports),
        )

    # -- heartbeats ------------------------------------------------------------------------------

    def beat_soon(self, image: Image | None = None) -> None:
        """Do not wait for the next turn: the controller changed, or the image reached a point it waits for."""
        del image
        self._soon.set()

    def on_image(self, image: Image) -> None:
        """A new controller wants to hear of us at once; so does one that waits for us to catch up."""
        controller = (image.controller_id or 0, image.controller_epoch)
        broker = self.me(image)
        if controller != self._controller or (broker is not None and broker.is_fenced):
            self._controller = controller
            self._soon.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            try:
                await self._beat()
            except MilenaError as error:
                logger.debug("heartbeat failed: %s", error)
            try:
                async with asyncio.timeout(self._heartbeat_ms / 1000):
                    await self._soon.wait()
                # A storm of image changes must not become a storm of heartbeats.
                await self._clock.sleep(RETRY_MS / 10)
            except TimeoutError:
                pass
            self._soon.clear()

    async def _beat(self) -> None:
        leader_id = self._metadata.quorum.status().leader_id
        if leader_id is None or self.broker_epoch < 0:
            return
        header: dict[str, object] = {
            "epoch": self.broker_epoch,
            "echo": self._echo,
            "index": self._metadata.image.index,
            "draining": self.is_draining,
            "full": self.is_disk_full,
        }
        sent_ms = self._clock.now_ms()
        if leader_id == self._broker_id:
            answer = self._local_heartbeat(leader_id, header)
        else:
            try:
                answer, _ = await self._peer.call(
                    leader_id, HEARTBEAT, header, timeout_ms=self._session_ms // 2, channel=CHANNEL
                )
            except FateUnknownError:
                # What is lost may stay stuck behind TCP's growing timers: a new connection is quicker.
                self._peer.disconnect(leader_id, CHANNEL)
                raise
        self._take_answer(answer, sent_ms)

    def _take_answer(self, answer: dict[str, object], sent_ms: MonotonicMs) -> None:
        match answer:
            case {"answer": int(number), "drained": bool(is_drained), "age": int(age_ms)}:
                self._echo = number
                # As old as what the controller knew of its majority when it answered.
                self._lease_ms = max(self._lease_ms, MonotonicMs(sent_ms - age_ms))
                self._is_drained = is_drained
            case _:
                logger.warning("heartbeat: an answer of the wrong shape")

    # -- a full disk -----------------------------------------------------------------------------

    def on_disk_full(self) -> None:
        """Writes are refused here: let others lead, and do not count us as in sync."""
        if not self.is_disk_full:
            self.is_disk_full = True
            logger.warning("disk full: giving up leadership")
            self.beat_soon()

    def on_disk_room(self) -> None:
        """There is room again."""
        if self.is_disk_full:
            self.is_disk_full = False
            logger.info("disk has room again")
            self.beat_soon()

    # -- draining --------------------------------------------------------------------------------

    async def drain(self, *, timeout_ms: int) -> bool:
        """Ask the controller to take all leadership and ISR membership away; True when it has."""
        self.is_draining = True
        deadline = self._clock.now_ms() + timeout_ms
        while not self._is_drained and self._clock.now_ms() < deadline:
            self.beat_soon()
            await self._metadata.changed(25)
        return self._is_drained
