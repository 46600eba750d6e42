"""This broker's place in the cluster: registration, then what it tells the controller of itself until it leaves."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.clock import Clock
from node.heartbeats import Heartbeats, LocalHeartbeat, Report
from node.metadata import MetadataStore
from node.peer import PeerClient
from raft_meta.machine.commands import RegisterBroker, ReplicaReport
from raft_meta.machine.image import Broker, Image
from storage.data_directory import DataDirectory
from storage.errors import (
    BrokerIdInUseError,
    FateUnknownError,
    StaleBrokerEpochError,
    StartupError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_MS = 10_000
TAKEN_ID_PATIENCE_MS = 10_000
RETRY_MS = 100


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
        self._directory = directory
        self._clock = clock
        self._controller: tuple[int, int] | None = None
        self._is_drained = False
        self._heartbeats = Heartbeats(
            broker_id=broker_id,
            metadata=metadata,
            peer=peer,
            clock=clock,
            session_ms=session_ms,
            interval_ms=heartbeat_ms,
            report=self._report,
            local_heartbeat=local_heartbeat,
            on_answer=self._on_answer,
        )

    # -- what others look at ---------------------------------------------------------------------

    @property
    def has_lease(self) -> bool:
        """Whether the controller counts on this broker, as far as can be known."""
        return self._heartbeats.lease_left_ms > 0

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs without another answer."""
        return self._heartbeats.lease_left_ms

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
        deadline: int | None = None
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
                # A node that was killed and lost its directory looks like this until it is fenced, which begins anew
                # with every controller: time without a quorum does not count.
                now_ms = self._clock.now_ms()
                if deadline is None:
                    deadline = now_ms + TAKEN_ID_PATIENCE_MS
                if now_ms > deadline:
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
        self._heartbeats.soon()

    def on_image(self, image: Image) -> None:
        """A new controller wants to hear of us at once; so does one that waits for us to catch up."""
        controller = (image.controller_id or 0, image.controller_epoch)
        broker = self.me(image)
        if controller != self._controller or (broker is not None and broker.is_fenced):
            self._controller = controller
            self._heartbeats.soon()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        await self._heartbeats.run()

    def _report(self) -> Report | None:
        if self.broker_epoch < 0:
            return None
        return {
            "epoch": self.broker_epoch,
            "index": self._metadata.image.index,
            "draining": self.is_draining,
            "full": self.is_disk_full,
        }

    def _on_answer(self, answer: Report) -> None:
        self._is_drained = bool(answer["drained"])

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
        """Ask the controller to take all leadership and ISR membership away; True when it has.

        A broker that has not registered in this life leads nothing and counts nowhere: there is nothing to wait for,
        and since it says that it is draining, it will not be let in.
        """
        self.is_draining = True
        if self.broker_epoch < 0:
            return True
        deadline = self._clock.now_ms() + timeout_ms
        while not self._is_drained and self._clock.now_ms() < deadline:
            self.beat_soon()
            await self._metadata.changed(25)
        return self._is_drained
