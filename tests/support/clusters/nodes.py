"""Whole nodes in one process, on virtual time: real code, memory disks, and a network and a quorum that tests control.

The nodes are those of ``node.assembly``, without the sockets, HTTP and Raft of ``node.wiring``. A cluster of three
starts within a few virtual milliseconds. All random choices come from one seed.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

from milena.model.errors import MilenaError, StartupError
from milena.model.requests import (
    Acks,
    FetchRequest,
    FetchResult,
    ProduceReceipt,
    ProduceRequest,
    Records,
)
from node.assembly import Assembly, Ids, NodePorts
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.control.membership import Identity
from node.groups.group_offsets import MINUTE_MS
from node.metadata.store import MetadataMachine
from node.replica.runner import PartitionRunner
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.commands import CreateTopic
from raft_meta.machine.image import Image
from storage.replica.data_directory import DataDirectory
from tests.support.clusters.runners import values_of
from tests.support.disk.memory_files import Keep, MemoryFiles
from tests.support.fakes.peers import Network
from tests.support.fakes.quorum import FakeQuorum, SharedLog
from tests.support.time.virtual_time import LoopClock, LoopExecutor, current_loop, settle

ROOT = "/data"
ELECTION_MS = 300
SESSION_MS = 1_500
BY_HAND = ("compactor", "scrubber", "doubts")
"""Parts that are not started with a node, because they change files that other tests inspect."""


class SimNode(Assembly):
    """One simulated process. ``fatal`` is the error that would end a real process; with it this one counts as dead."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.fatal: list[BaseException] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.is_over = False
        self.files = cluster.files.setdefault(node_id, MemoryFiles())
        self.machine_clock = LoopClock(cluster.skews_ms.get(node_id, 0))
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
            on_role_change=self.on_role_change,
            is_reachable=lambda: cluster.has_quorum(node_id),
        )
        self.peer = cluster.network.join(node_id, {})
        super().__init__(cluster.config(node_id), self._node_ports())
        cluster.network.handlers[node_id] = dict(self.peer_handlers)
        cluster.network.listeners[node_id] = self.controller.on_disconnected

    def _node_ports(self) -> NodePorts:
        cluster = self.cluster
        return NodePorts(
            clock=self.machine_clock,
            ids=Ids(
                incarnation=cluster.starts,
                directory_id=self.directory.directory_id,
                session_ids=cluster.rng,
                placement=cluster.rng,
                random_bytes=random.Random(self.node_id).randbytes,
            ),
            new_uuid=lambda: UUID(int=cluster.rng.getrandbits(128)),
            files=self.files,
            directory=self.directory,
            pool=self.pool,
            sync_pool=self.pool,
            password_pool=self.pool,
            machine=self.machine,
            quorum=self.quorum,
            peers=self.peer,
            voters={number: Address("127.0.0.1", number) for number in cluster.node_ids},
            identity=lambda: Identity(
                api_url=f"http://node{self.node_id}",
                peer_host="127.0.0.1",
                peer_port=self.node_id,
                rack=cluster.racks.get(self.node_id),
                feature_min=1,
                feature_max=cluster.feature_max,
            ),
            on_fatal=self.die,
            feature_max=cluster.feature_max,
        )

    # A process's life.

    async def start(self) -> None:
        await self.recover()
        self.quorum.catch_up()
        self.health.has_started = True
        for name, work in self.background().items():
            if name not in BY_HAND:
                task = asyncio.get_running_loop().create_task(work(), name=name)
                task.add_done_callback(self._on_done)
                self.tasks.append(task)
        self.on_role_change(self.quorum.status())

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.die(error)

    def die(self, error: BaseException) -> None:
        if not self.is_over:
            self.fatal.append(error)

    async def _end_tasks(self) -> None:
        self.controller.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def end(self) -> None:
        """End all tasks of this process. A job on a simulated thread may run a little longer, without effect."""
        self.is_over = True
        self.quorum.stop_now()
        await self._end_tasks()
        await self.transaction_markers.close()
        await self.transaction_ends.close()
        await self.consumers.close()
        await self.groups.close()
        await self.replicas.fetchers.stop()
        self.fetch_server.close()

    async def stop(self) -> None:
        """Stop gracefully, in the order of ``node.wiring``."""
        await self.membership.drain(timeout_ms=5_000)
        self.controller.close()
        await self.quorum.transfer_leadership(timeout_ms=1_000)
        await self._end_tasks()
        await self.close_parts()
        self.is_over = True
        self.cluster.network.kill(self.node_id)
        self.quorum.stop_now()
        self.directory.mark_clean_stop()
        self.directory.close()

    # What a client does.

    async def write(
        self, topic: str, *values: str, partition: int | None = 0, acks: Acks = Acks.ALL,
        timeout_ms: int = 2_000,
    ) -> list[ProduceReceipt]:  # fmt: skip
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
        """Return all committed values."""
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
    """Nodes, their disks, and the network and quorum between them."""

    node_ids: tuple[int, ...] = (1, 2, 3)
    seed: int = 0
    network_ms: Callable[[Random], float] = lambda rng: 0.0
    disk_delay_ms: Callable[[Random], float] = lambda rng: 0.0
    preferred_interval_ms: int = 10**9
    throttle_bytes_per_s: int = 0
    offsets_retention_minutes: int = 60
    initial_delay_ms: int = 0
    """How long an empty classic group waits for further members."""
    is_broken: bool = False
    """Whether the test injects errors, so that the nodes may contain exceptions."""
    idle_ms: int = 300_000
    """The idle time in ms after which a REST consumer is deleted."""
    feature_max: int = FEATURE_LEVEL_MAX
    """The highest feature level that the nodes' release supports."""
    racks: dict[int, str] = field(default_factory=dict)
    skews_ms: dict[int, int] = field(default_factory=dict)
    """How far clocks are ahead when nodes start, in ms."""
    network: Network = field(default_factory=Network)
    log: SharedLog = field(default_factory=SharedLog)
    files: dict[int, MemoryFiles] = field(default_factory=dict)
    nodes: dict[int, SimNode] = field(default_factory=dict)
    """The running nodes."""
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

    def config(self, node_id: int) -> NodeConfig:
        return NodeConfig(
            node_id=node_id,
            data_dir=Path(ROOT),
            auto_create_topics=True,
            # Check retention often: the period is shorter than a round of housekeeping, so each round checks it.
            retention_check_ms=500,
            broker_session_ms=SESSION_MS,
            heartbeat_ms=200,
            replica_lag_time_max_ms=10_000,
            replica_fetch_wait_ms_max=500,
            replica_fetch_bytes_max=1 << 20,
            replication_throttle_bytes_per_s=self.throttle_bytes_per_s,
            leader_balance_interval_ms=self.preferred_interval_ms,
            offsets_retention_minutes=self.offsets_retention_minutes,
            offsets_retention_check_ms=self.offsets_retention_minutes * MINUTE_MS // 6,
            consumer_instance_timeout_ms=self.idle_ms,
            group_initial_rebalance_delay_ms=self.initial_delay_ms,
        )

    # Who reaches whom.

    def reaches(self, node_id: int) -> set[int]:
        """Return the running nodes that this node can reach, including itself."""
        return {
            other
            for other in self.nodes
            if other == node_id or self.network.is_open(node_id, other)
        }

    def has_quorum(self, node_id: int) -> bool:
        """Return whether the node can reach a Raft leader that has a majority."""
        leader = self.log.leader_id
        if node_id not in self.nodes or leader not in self.nodes:
            return False
        is_led = node_id == leader or self.network.is_open(node_id, leader)
        return is_led and len(self.reaches(leader)) * 2 > len(self.node_ids)

    def topology_changed(self) -> None:
        """Let the quorum elect another leader, some time after the present one lost its majority."""
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
        # Nodes accept writes only after they have compared their clocks and have a lease.
        await self.until(lambda: all(n.membership.has_lease for n in self.nodes.values()))
        return self

    async def restart(self, node_id: int) -> SimNode:
        node = self.nodes[node_id] = SimNode(self, node_id)
        self.topology_changed()
        await node.start()
        return node

    async def kill(self, node_id: int, *, power: bool = False, keep: Keep = "none") -> None:
        """Kill the process; with ``power``, its unsynced writes are lost too."""
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
        """End all nodes; fail if a process died by itself."""
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
        if not self.is_broken:
            contained = [node.counts.contained.counts for node in self.dead]
            assert not any(node.counts.contained.total for node in self.dead), contained
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
        """Create a topic; return when every partition has a leader and all replicas are in sync."""
        named = tuple(sorted((k.replace("_", "."), v) for k, v in configs.items()))
        topic_id = self.new_topic_id()
        await self.any.metadata.propose(
            CreateTopic(topic_id=topic_id, name=topic, configs=named, placement=placement),
            timeout_ms=2_000,
        )
        await self.until(lambda: self.is_led(topic))

    def is_led(self, topic: str) -> bool:
        """Return whether every partition's leader has taken over."""
        found = self.image.topic(topic)
        if found is None:
            return False
        for number in range(found.partition_count):
            state = self.image.partitions[found.topic_id, number]
            if state.leader is None or state.leader not in self.nodes:
                return False
            if not self.nodes[state.leader].membership.has_lease:
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


async def outcome(work: Awaitable[list[ProduceReceipt]]) -> "list[int | None] | MilenaError":
    """Return the offsets of a write, or its error."""
    try:
        receipts = await work
    except MilenaError as error:
        return error
    for receipt in receipts:
        if receipt.error is not None:
            return receipt.error
    return [receipt.offset for receipt in receipts]


@contextlib.asynccontextmanager
async def cluster_of(cluster: Cluster | None = None) -> AsyncIterator[Cluster]:
    """Start a cluster, and close it at the end."""
    found = cluster or Cluster()
    try:
        yield await found.start()
    finally:
        await found.close()


__all__ = ["Cluster", "SimNode", "StartupError", "cluster_of", "outcome"]
