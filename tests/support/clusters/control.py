"""The controllers of several nodes on one shared metadata log. Tests play the brokers."""

import itertools
from dataclasses import dataclass, field

from immutables import Map

from milena.model.contained import ContainedErrors
from milena.model.errors import MilenaError
from node.control.controller import Controller
from node.control.messages import BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.metadata.store import MetadataMachine, MetadataStore
from node.peers.port import ProbeResult
from raft_meta.machine.commands import (
    Command,
    CreateTopic,
    RegisterBroker,
    ReplicaReport,
    UnfenceBroker,
)
from raft_meta.machine.image import Broker, Image, Partition
from tests.support.fakes.quorum import FakeQuorum, SharedLog
from tests.support.time.virtual_time import LoopClock, settle

SESSION_MS = 1_500
TRANSACTIONAL_ID_MS = 3_600_000
TOPIC_ID = "0" * 31 + "1"
_incarnations = itertools.count(1)


def registration(
    broker_id: int,
    *,
    directory_id: str | None = None,
    last_epoch: int = -1,
    reports: tuple[ReplicaReport, ...] = (),
    feature_max: int = 1,
) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        directory_id=directory_id or f"dir{broker_id}",
        last_broker_epoch=last_epoch,
        incarnation=next(_incarnations),
        api_url=f"http://broker{broker_id}",
        peer_host="127.0.0.1",
        peer_port=7000 + broker_id,
        rack=None,
        feature_min=1,
        feature_max=feature_max,
        was_clean_stop=False,
        reports=reports,
    )


def store(log: SharedLog, node_id: int, clock: LoopClock | None = None) -> MetadataStore:
    """Return a node's metadata store on the shared log."""
    machine = MetadataMachine()
    return MetadataStore(
        node_id=node_id,
        incarnation=next(_incarnations),
        machine=machine,
        quorum=FakeQuorum(log, node_id, machine),
        clock=clock or LoopClock(),
    )


@dataclass(eq=False)
class ControlledNode:
    """The metadata store and the controller of one node."""

    metadata: MetadataStore
    controller: Controller
    quorum: FakeQuorum
    contained: ContainedErrors


@dataclass(eq=False)
class Control:
    """Nodes 1 to 3; after ``start``, node 1 is the Raft leader. Brokers register when a test says so."""

    log: SharedLog = field(default_factory=SharedLog)
    clock: LoopClock = field(default_factory=LoopClock)
    probes: dict[int, ProbeResult] = field(default_factory=dict)
    dialled: list[int] = field(default_factory=list)
    preferred_interval_ms: int = 10**9
    feature_level: int = 1

    def __post_init__(self) -> None:
        self.nodes = {i: self._node(i) for i in (1, 2, 3)}
        self.epochs: dict[int, int] = {}
        self.echoes: dict[int, int] = {}

    def _node(self, node_id: int) -> ControlledNode:
        metadata = store(self.log, node_id, self.clock)
        quorum = metadata.quorum
        assert isinstance(quorum, FakeQuorum)
        contained = ContainedErrors()
        controller = Controller(
            node_id=node_id,
            metadata=metadata,
            dial=self._dial,
            clock=self.clock,
            transactional_id_ms=TRANSACTIONAL_ID_MS,
            session_ms=SESSION_MS,
            preferred_interval_ms=self.preferred_interval_ms,
            voters=(1, 2, 3),
            clock_skew_ms_max=2_000,
            feature_level=self.feature_level,
            new_cluster_id=lambda: "cluster",
            contained=contained,
        )
        metadata.listen(controller.on_image)
        quorum._on_role_change = controller.on_status
        return ControlledNode(metadata, controller, quorum, contained)

    async def _dial(self, broker_id: int, /, *, timeout_ms: float) -> ProbeResult:
        del timeout_ms
        self.dialled.append(broker_id)
        return self.probes.get(broker_id, ProbeResult.CONNECTED)

    async def start(self, *brokers: int) -> "Control":
        """Make node 1 the controller; register and unfence these brokers."""
        self.log.elect(1)
        await settle()
        for broker_id in brokers:
            await self.register(broker_id)
        for _ in range(3):
            self.beat_all()
            await settle()
        return self

    def stop(self) -> None:
        for node in self.nodes.values():
            node.controller.close()

    @property
    def active(self) -> Controller:
        return next(n.controller for n in self.nodes.values() if n.controller.is_active)

    @property
    def image(self) -> Image:
        return self.nodes[1].metadata.image

    def broker(self, broker_id: int) -> Broker:
        return self.image.brokers[broker_id]

    def partition(self, number: int = 0) -> Partition:
        return self.image.partitions[TOPIC_ID, number]

    async def propose(self, command: Command, node_id: int = 1) -> object:
        return await self.nodes[node_id].metadata.propose(command, timeout_ms=1_000)

    async def register(self, broker_id: int, **options: object) -> int:
        epoch = await self.propose(registration(broker_id, **options))  # type: ignore[arg-type]  # forwarded as they are
        assert isinstance(epoch, int)
        self.epochs[broker_id] = epoch
        self.echoes.pop(broker_id, None)
        await settle()
        return epoch

    async def create(self, *placement: tuple[int, ...], **configs: str) -> None:
        named = tuple(sorted((k.replace("_", "."), v) for k, v in configs.items()))
        await self.propose(
            CreateTopic(topic_id=TOPIC_ID, name="t", configs=named, placement=placement)
        )
        await settle()

    def beat(
        self,
        broker_id: int,
        *,
        draining: bool = False,
        full: bool = False,
        echo: int | None = None,
        epoch: int | None = None,
        index: int | None = None,
    ) -> BrokerHeartbeatAnswer | MilenaError:
        """Send a broker's heartbeat; return the response or the error."""
        report = BrokerHeartbeatRequest(
            broker_epoch=self.epochs[broker_id] if epoch is None else epoch,
            echo=self.echoes.get(broker_id, 0) if echo is None else echo,
            applied_index=self.image.index if index is None else index,
            is_draining=draining,
            is_disk_full=full,
        )
        try:
            answer = self.active.take_heartbeat(broker_id, report)
        except MilenaError as error:
            return error
        self.echoes[broker_id] = answer.number
        return answer

    def hear_majority(self) -> None:
        """Note that the controller has just heard from the other voters."""
        self.nodes[1].quorum.contacts.update({2: self.clock.now_ms(), 3: self.clock.now_ms()})

    def beat_all(self, *but: int) -> None:
        for broker_id in self.epochs:
            if broker_id not in but:
                self.beat(broker_id)

    async def live(self, ms: float, *silent: int) -> None:
        """Let time pass; all brokers except the silent ones send heartbeats."""
        end = self.clock.now_ms() + ms
        while self.clock.now_ms() < end:
            self.beat_all(*silent)
            await self.clock.sleep(min(100, end - self.clock.now_ms()))
        await settle()

    async def unfence(self, broker_id: int) -> None:
        await self.propose(
            UnfenceBroker(
                controller_epoch=self.image.controller_epoch,
                broker_id=broker_id,
                broker_epoch=self.epochs[broker_id],
            )
        )


NO_CONFIGS: Map[str, str] = Map()
