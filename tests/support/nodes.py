"""Whole nodes in one process, on virtual time: real shells, memory disks, a network and a quorum that tests control.

The object graph is that of ``node.wiring`` without sockets, HTTP and Raft. A cluster of three starts within a few
virtual milliseconds; everything random comes from one seed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from http_api.ports import Acks, FetchRequest, FetchResult, ProduceRequest, Receipt, Records
from node.admin import AdminService, TopicDefaults
from node.catch_up import CatchUpThrottle
from node.consumers.consumer_assembly import RestConsumers
from node.controller import Controller, ControllerSettings
from node.fetch_server import FetchServer
from node.fetch_wire import FETCH, FETCH_WAKE
from node.fetcher import FetcherSettings, LeaderFetcher, ReplicaFetchers
from node.groups.group_assembly import Groups
from node.groups.group_offsets import MINUTE_MS, ExpirySettings
from node.health import HealthService
from node.heartbeats import HEARTBEAT
from node.isr_proposals import IsrProposer
from node.membership import Identity, Membership
from node.metadata import MetadataMachine, MetadataStore
from node.metrics import NodeCounts
from node.partition_runner import PartitionRunner, RunnerContext
from node.produce import PRODUCE, ProduceService
from node.producers import SEQUENCES, ProducerService
from node.reads import READ, ReadService
from node.reassignments import MOVES, ReassignmentService
from node.record_deletion import DELETE_RECORDS, DeletionService
from node.replicas import LocalReplicas
from raft_meta.consensus.quorum import QuorumStatus
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.commands import CreateTopic
from raft_meta.machine.image import Image
from storage.data_directory import DataDirectory
from storage.errors import MilenaError, StartupError
from tests.support.fake_peers import FakePeer, Network
from tests.support.fake_quorum import FakeQuorum, SharedLog
from tests.support.memory_files import Keep, MemoryFiles
from tests.support.runners import values_of
from tests.support.virtual_time import LoopClock, LoopExecutor, current_loop, settle

ROOT = "/data"
TICK_MS = 200
HOUSEKEEPING_MS = 1_000
ELECTION_MS = 300
SESSION_MS = 1_500


class SimNode:
    """One process. ``fatal`` holds what a real one would have died of; it is dead then."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.fatal: list[BaseException] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.is_over = False
        self.doubt: Callable[[PartitionRunner, int | None], None] | None = None
        """That of a scrubber, where a test runs one."""
        self.files = cluster.files.setdefault(node_id, MemoryFiles())
        self.clock = LoopClock()
        self.counts = NodeCounts()
        cluster.starts += 1
        self.pool = LoopExecutor(cluster.disk_ms)
        self.directory = DataDirectory.open(
            self.files, ROOT, node_id=node_id, directory_id=f"dir{cluster.starts}", reserve_bytes=0
        )
        self.machine = MetadataMachine()
        self.quorum = FakeQuorum(
            cluster.log,
            node_id,
            self.machine,
            on_role_change=self._on_status,
            is_reachable=lambda: cluster.has_quorum(node_id),
        )
        self.metadata = MetadataStore(
            node_id=node_id,
            incarnation=cluster.starts,
            machine=self.machine,
            quorum=self.quorum,
            clock=self.clock,
            on_failure=self.die,
        )
        self.peer: FakePeer = cluster.network.join(node_id, {})
        self._build()
        cluster.network.handlers[node_id] = {
            HEARTBEAT: self.controller.on_heartbeat,
            FETCH: self.fetch_server.on_fetch,
            FETCH_WAKE: self.fetch_server.on_wake,
            PRODUCE: self.produce.on_produce,
            READ: self.reads.on_read,
            MOVES: self.reassignments.on_moves,
            DELETE_RECORDS: self.deletions.on_delete_records,
            SEQUENCES: self.producers.on_sequences,
            **self.groups.calls.peer_handlers,
            **self.consumers.peer_handlers,
        }
        cluster.network.listeners[node_id] = self.controller.on_disconnected

    def _build(self) -> None:
        cluster, node_id, clock = self.cluster, self.node_id, self.clock
        self.controller = Controller(
            node_id=node_id,
            metadata=self.metadata,
            probe=self.peer.probe,
            clock=clock,
            settings=ControllerSettings(
                session_ms=SESSION_MS,
                preferred_interval_ms=cluster.preferred_interval_ms,
                voters=cluster.node_ids,
                feature_level=FEATURE_LEVEL_MAX,
                new_cluster_id=lambda: "cluster",
            ),
            on_failure=self.die,
        )
        self.membership = Membership(
            broker_id=node_id,
            identity=lambda: Identity(
                api_url=f"http://node{node_id}",
                peer_host="127.0.0.1",
                peer_port=node_id,
                rack=None,
                feature_min=1,
                feature_max=FEATURE_LEVEL_MAX,
            ),
            metadata=self.metadata,
            peer=self.peer,  # type: ignore[arg-type]
            directory=self.directory,
            clock=clock,
            session_ms=SESSION_MS,
            heartbeat_ms=200,
            local_heartbeat=self.controller.take_heartbeat,
        )
        self.isr_proposer = IsrProposer(
            metadata=self.metadata,
            clock=clock,
            broker_epoch=lambda: self.membership.broker_epoch,
            timeout_ms=SESSION_MS,
        )
        self.replicas = LocalReplicas(
            files=self.files,
            directory=self.directory,
            context=RunnerContext(
                broker_id=node_id,
                clock=clock,
                pool=self.pool,
                sync_pool=self.pool,
                lag_ms_max=10_000,
                on_fatal=self.die,
                on_proposal=self.isr_proposer.submit,
                on_disk_full=lambda _: self.membership.on_disk_full(),
                on_doubt=self._on_doubt,
                counts=self.counts,
            ),
            pool=self.pool,
            clock=clock,
        )
        self.replicas.use_fetchers(ReplicaFetchers(self._fetcher))
        self.fetch_server = FetchServer(
            find_runner=self.replicas.find,
            brokers=lambda: self.metadata.image.brokers,
            throttle=CatchUpThrottle(cluster.throttle_bytes_per_s, current_loop().time),
        )
        self._build_services()
        for listener in (
            self._on_image,
            self.replicas.on_image,
            self.membership.on_image,
            self.controller.on_image,
            self.groups.on_image,
            self.consumers.on_image,
        ):
            self.metadata.listen(listener)

    def _build_services(self) -> None:
        cluster = self.cluster
        self.producers = ProducerService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,  # type: ignore[arg-type]
        )
        self.admin = AdminService(
            metadata=self.metadata,
            defaults=TopicDefaults(partition_count=1, replication_factor=None, is_auto_create=True),
            rng=cluster.rng,
            new_topic_id=cluster.new_topic_id,
            producers=self.producers,
        )
        self.produce = ProduceService(
            metadata=self.metadata,
            replicas=self.replicas,
            membership=self.membership,
            peer=self.peer,  # type: ignore[arg-type]
            clock=self.clock,
            counts=self.counts,
            producers=self.producers,
            topic_to_write=self.admin.topic_to_write,
        )
        self.reads = ReadService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,  # type: ignore[arg-type]
            topic_to_read=self.admin.topic,
            has_lease=lambda: self.membership.has_lease,
            sync_count=lambda: self.counts.syncs,
        )
        self.deletions = DeletionService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,  # type: ignore[arg-type]
            clock=self.clock,
            topic_to_read=self.admin.topic,
            has_lease=lambda: self.membership.has_lease,
        )
        self.reassignments = ReassignmentService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,  # type: ignore[arg-type]
            pool=self.pool,
        )
        self.health = HealthService(
            metadata=self.metadata,
            membership=self.membership,
            replicas=self.replicas,
            render_metrics=lambda: b"",
        )

        self.groups = Groups(
            metadata=self.metadata,
            peer=self.peer,  # type: ignore[arg-type]
            clock=self.clock,
            pool=self.pool,
            counts=self.counts.groups,
            broker_epoch=lambda: self.membership.broker_epoch,
            has_lease=lambda: self.membership.has_lease,
            topic=self.admin.topic,
            fetch=self.reads.fetch,
            new_member_id=lambda: f"member-{cluster.rng.getrandbits(64):016x}",
            expiry=ExpirySettings(
                retention_ms=cluster.offsets_retention_ms,
                check_ms=cluster.offsets_retention_ms // 6,
            ),
            on_failure=self.die,
        )
        self.consumers = RestConsumers(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,  # type: ignore[arg-type]
            clock=self.clock,
            groups=self.groups,
            fetch=self.reads.fetch,
            report_damage=self.reads.doubt,
            topic=self.admin.topic,
            current_image=self.admin.current_image,
            broker_epoch=lambda: self.membership.broker_epoch,
            new_name=lambda: f"rest-consumer-{cluster.rng.getrandbits(64):016x}",
            idle_ms=cluster.idle_ms,
        )

    def _fetcher(self, leader_id: int) -> LeaderFetcher:
        return LeaderFetcher(
            leader_id,
            peer=self.peer,  # type: ignore[arg-type]
            clock=self.clock,
            settings=FetcherSettings(wait_ms_max=500, bytes_max=1 << 20),
            broker_epoch=lambda: self.membership.broker_epoch,
            next_session_id=lambda: self.cluster.rng.getrandbits(62) + 1,
            has_room=lambda: not self.membership.is_disk_full,
            short_syncs=lambda: self.counts.short_syncs,
            on_failure=self.die,
        )

    def _on_doubt(self, runner: PartitionRunner, offset: int | None) -> None:
        if self.doubt is not None:
            self.doubt(runner, offset)

    def _on_status(self, status: QuorumStatus) -> None:
        self.controller.on_status(status)
        self.membership.beat_soon()

    def _on_image(self, image: Image) -> None:
        if image.cluster_id:
            self.directory.set_cluster_id(image.cluster_id)

    # A process's life.

    async def start(self) -> None:
        was_clean = self.directory.consume_clean_marker()
        await self.replicas.recover(was_clean=was_clean)
        self.quorum.catch_up()
        self.health.has_started = True
        for work in (
            self._join(was_clean),
            self.isr_proposer.run(),
            self.replicas.run(),
            self._tick(),
            self._housekeeping(),
            self.groups.coordinator.run(),
            self.groups.expiry.run(),
            self.consumers.run(),
        ):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._on_done)
            self.tasks.append(task)
        self._on_status(self.quorum.status())

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.die(task.exception())  # type: ignore[arg-type]

    def die(self, error: BaseException) -> None:
        if not self.is_over:
            self.fatal.append(error)

    async def _join(self, was_clean: bool) -> None:
        epoch = await self.membership.register(self.replicas.reports(), was_clean_stop=was_clean)
        self.replicas.broker_epoch = epoch
        self.replicas.on_image(self.metadata.image)
        await self.membership.run()

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK_MS)
            self.replicas.tick()

    async def _housekeeping(self) -> None:
        while True:
            await self.clock.sleep(HOUSEKEEPING_MS)
            for runner in list(self.replicas):
                await runner.upkeep.maybe_checkpoint()
            self.replicas.run_retention()
            if self.membership.is_disk_full and self.directory.has_room(1 << 20):
                self.membership.on_disk_room()

    async def end(self) -> None:
        """No task of this process goes on. What runs a moment longer, on "threads", harms nobody."""
        self.is_over = True
        self.quorum.stop_now()
        self.controller.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.consumers.close()
        await self.groups.close()
        await self.replicas.fetchers.stop()
        self.fetch_server.close()

    async def stop(self) -> None:
        """A graceful stop, in the order of the wiring."""
        await self.membership.drain(timeout_ms=5_000)
        self.controller.close()
        await self.quorum.transfer_leadership(timeout_ms=1_000)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.produce.close()
        await self.replicas.close(is_clean=True)
        self.cluster.network.kill(self.node_id)
        await self.end()
        self.directory.mark_clean_stop()
        self.directory.close()

    # What a client does.

    async def write(
        self, topic: str, *values: str, partition: int | None = 0, acks: Acks = Acks.ALL,
        timeout_ms: int = 2_000,
    ) -> list[Receipt]:  # fmt: skip
        request = ProduceRequest(
            topic=topic,
            records=Records(keys=None, values=[value.encode() for value in values]),
            acks=acks,
            timeout_ms=timeout_ms,
            partition=partition,
        )
        return list(await self.produce.produce(request))

    async def fetch(
        self, topic: str, offset: int | str = 0, *, partition: int = 0, timeout_ms: int = 0,
        is_local: bool = False, timestamp_ms: int | None = None, max_bytes: int = 1 << 20,
    ) -> FetchResult:  # fmt: skip
        return await self.reads.fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=timestamp_ms,
                max_bytes=max_bytes,
                timeout_ms=timeout_ms,
                is_local=is_local,
            )
        )

    async def delete_records(
        self, topic: str, before: int | None, *, partition: int = 0, timeout_ms: int = 2_000
    ) -> int:
        return await self.deletions.delete_records(topic, partition, before, timeout_ms=timeout_ms)

    async def read(self, topic: str, partition: int = 0, *, is_local: bool = False) -> list[str]:
        """All committed values."""
        found: list[str] = []
        offset: int | str = "earliest"
        while True:
            result = await self.fetch(topic, offset, partition=partition, is_local=is_local)
            if not result.batches:
                return found
            found += values_of(result.batches)
            offset = result.log_start_offset + len(found)


@dataclass(eq=False)
class Cluster:
    """Nodes, their disks and what joins them."""

    node_ids: tuple[int, ...] = (1, 2, 3)
    seed: int = 0
    network_ms: Callable[[Random], float] = lambda rng: 0.0
    disk_delay_ms: Callable[[Random], float] = lambda rng: 0.0
    preferred_interval_ms: int = 10**9
    throttle_bytes_per_s: int = 0
    offsets_retention_ms: int = 60 * MINUTE_MS
    idle_ms: int = 300_000
    """Until a REST consumer that nobody calls is forgotten."""
    network: Network = field(default_factory=Network)
    log: SharedLog = field(default_factory=SharedLog)
    files: dict[int, MemoryFiles] = field(default_factory=dict)
    nodes: dict[int, SimNode] = field(default_factory=dict)
    """Those that run."""
    dead: list[SimNode] = field(default_factory=list)
    starts: int = 0

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.network.delay_ms = lambda: self.network_ms(self.rng)
        self.log.delay_ms = lambda: self.network_ms(self.rng)
        self._election: asyncio.TimerHandle | None = None

    def disk_ms(self) -> float:
        return self.disk_delay_ms(self.rng)

    def new_topic_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    # Who reaches whom.

    def reaches(self, node_id: int) -> set[int]:
        """The running nodes that this one talks to, itself included."""
        return {
            other
            for other in self.nodes
            if other == node_id or self.network.is_open(node_id, other)
        }

    def has_quorum(self, node_id: int) -> bool:
        """Whether the node hears of a Raft leader that a majority follows."""
        leader = self.log.leader_id
        if node_id not in self.nodes or leader not in self.nodes:
            return False
        is_led = node_id == leader or self.network.is_open(node_id, leader)
        return is_led and len(self.reaches(leader)) * 2 > len(self.node_ids)

    def topology_changed(self) -> None:
        """Raft elects another leader a while after the present one was lost."""
        for node in list(self.nodes.values()):
            node.quorum.hear()
        if self._election is None:
            loop = asyncio.get_running_loop()
            self._election = loop.call_later(ELECTION_MS / 1000, self._elect)

    def _elect(self) -> None:
        self._election = None
        leader = self.log.leader_id
        if leader is not None and self.has_quorum(leader):
            lost = [node for i, node in self.nodes.items() if not self.has_quorum(i)]
        else:
            able = [i for i in self.nodes if len(self.reaches(i)) * 2 > len(self.node_ids)]
            self.log.elect(self.rng.choice(able) if able else None)
            lost = [node for i, node in self.nodes.items() if not self.has_quorum(i)]
        for node in lost:
            node.quorum.forget_leader()
        for node in list(self.nodes.values()):
            node.quorum.hear()

    # Life and death.

    async def start(self) -> "Cluster":
        for node_id in self.node_ids:
            await self.restart(node_id)
        await self.until(lambda: all(n.membership.is_unfenced for n in self.nodes.values()))
        return self

    async def restart(self, node_id: int) -> SimNode:
        node = self.nodes[node_id] = SimNode(self, node_id)
        self.topology_changed()
        await node.start()
        return node

    async def kill(self, node_id: int, *, power: bool = False, keep: Keep = "none") -> None:
        """The process dies; with ``power``, its unsynced writes are lost too."""
        node = self.nodes.pop(node_id)
        self.dead.append(node)
        self.network.kill(node_id)
        await node.end()
        await settle()
        if power:
            self.files[node_id].crash(self.rng, keep)
        else:
            self.files[node_id].kill()
        self.topology_changed()

    async def stop_gracefully(self, node_id: int) -> None:
        node = self.nodes[node_id]
        await node.stop()
        del self.nodes[node_id]
        self.dead.append(node)
        self.topology_changed()

    def isolate(self, node_id: int) -> None:
        for other in self.node_ids:
            if other != node_id:
                self.network.cut(node_id, other)
        self.topology_changed()

    def heal(self) -> None:
        self.network.heal()
        self.topology_changed()

    async def close(self) -> None:
        """End everything; no process may have died by itself."""
        for node_id in list(self.nodes):
            node = self.nodes.pop(node_id)
            self.dead.append(node)
            self.network.kill(node_id)
            await node.end()
        if self._election is not None:
            self._election.cancel()
        await settle()
        loop = current_loop()
        loop.failures = [f for f in loop.failures if "was opened before the crash" not in str(f)]
        failures = [error for node in self.dead for error in node.fatal]
        assert not failures, failures
        assert not self.network.failures, self.network.failures

    # Waiting and looking.

    async def until(self, condition: Callable[[], bool], timeout_ms: int = 20_000) -> None:
        clock = LoopClock()
        deadline = clock.now_ms() + timeout_ms
        while not condition():
            assert clock.now_ms() < deadline, "it did not happen in time"
            await clock.sleep(5)

    @property
    def any(self) -> SimNode:
        return next(iter(self.nodes.values()))

    @property
    def image(self) -> Image:
        return max((n.metadata.image for n in self.nodes.values()), key=lambda image: image.index)

    async def create(self, topic: str, *placement: tuple[int, ...], **configs: str) -> None:
        """A topic that is led and in sync everywhere."""
        named = tuple(sorted((k.replace("_", "."), v) for k, v in configs.items()))
        topic_id = self.new_topic_id()
        await self.any.metadata.propose(
            CreateTopic(topic_id=topic_id, name=topic, configs=named, placement=placement),
            timeout_ms=2_000,
        )
        await self.until(lambda: self.is_led(topic))

    def is_led(self, topic: str) -> bool:
        """Whether every partition's leader has taken over."""
        found = self.image.topic(topic)
        if found is None:
            return False
        for number in range(found.partition_count):
            state = self.image.partitions[found.topic_id, number]
            if state.leader is None or state.leader not in self.nodes:
                return False
            runner = self.nodes[state.leader].replicas.find(found.topic_id, number)
            if runner is None or runner.leader is None or not runner.leader.is_established:
                return False
        return True

    def runner(self, node_id: int, topic: str, partition: int = 0) -> PartitionRunner:
        found = self.image.topic(topic)
        assert found is not None
        runner = self.nodes[node_id].replicas.find(found.topic_id, partition)
        assert runner is not None
        return runner

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        found = self.image.topic(topic)
        assert found is not None
        return self.image.partitions[found.topic_id, partition].leader

    def isr_of(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        found = self.image.topic(topic)
        assert found is not None
        return self.image.partitions[found.topic_id, partition].isr


async def outcome(work: Awaitable[list[Receipt]]) -> "list[int | None] | MilenaError":
    """Offsets of a write, or its error."""
    try:
        receipts = await work
    except MilenaError as error:
        return error
    for receipt in receipts:
        if receipt.error is not None:
            return receipt.error
    return [receipt.offset for receipt in receipts]


@contextlib.asynccontextmanager
async def cluster_of(cluster: Cluster | None = None) -> "contextlib.AsyncIterator[Cluster]":  # type: ignore[name-defined]
    """A started cluster that is closed in the end."""
    found = cluster or Cluster()
    try:
        yield await found.start()
    finally:
        await found.close()


__all__ = ["Cluster", "SimNode", "StartupError", "cluster_of", "outcome"]
