"""The object graph of one node, and the order in which its parts start and stop.

Start: data directory → recovery of every log → metadata quorum and peer port → API → registration → replicas.
Stop, the reverse: drain (others lead now) → hand over Raft leadership → API → replicas (sync, checkpoint) → quorum.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from aiohttp import web

from http_api.app import build_runner
from http_api.ports import ApiLimits, Ports
from node import descriptors, memory
from node.admin import AdminService, TopicDefaults
from node.awake import Awake
from node.catch_up import CatchUpThrottle
from node.clock import Clock, SystemClock
from node.compactor import Compactor, CompactorSettings
from node.config import NodeConfig, secret_of
from node.consumers.consumer_assembly import RestConsumers
from node.controller import Controller, ControllerSettings
from node.discovery import VOTERS, VoterDirectory, find_voters
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
from node.metrics import NodeCounts, NodeMetrics, ReplicaSample
from node.option_kinds import Address
from node.partition_runner import PartitionRunner, RunnerContext
from node.peer import PeerClient, PeerListener, PeerServer
from node.peer_codec import Channel
from node.produce import PRODUCE, ProduceService
from node.producers import SEQUENCES, ProducerService
from node.reads import READ, ReadService
from node.reassignments import MOVES, ReassignmentService
from node.record_deletion import DELETE_RECORDS, DeletionService
from node.records import RecordsService
from node.replicas import LocalReplicas
from node.replication.leader import IsrProposal
from node.scrubber import CopyGiver, Scrubber, ScrubSettings
from node.tls import api_tls, peer_tls, watches_of
from raft_meta.consensus.frames import PeerIdentity
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.consensus.raft_quorum import QuorumConfig, RaftQuorum
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.image import Image
from storage.data_directory import DataDirectory
from storage.errors import StartupError
from storage.os_files import OsFiles

logger = logging.getLogger(__name__)

EXIT_FATAL = 70
EXIT_REFUSED = 78
WORKERS = 8
"""Threads for syncs, cold reads and recovery: they wait for the disk, not for the processor."""
TICK_MS = 200
LEASE_POLL_MS = 100
FEATURE_LEVEL = FEATURE_LEVEL_MAX
TRANSFER_TIMEOUT_MS = 2_000
API_SHUTDOWN_S = 2.0
DRAIN_MS_MAX = 20_000
HOUSEKEEPING_MS = 1_000
ROOM_BYTES = 8 << 20
"""Free space that ends a full disk: enough for a few segments to grow, so that the state does not flap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Everything random or of the moment that a node starts with."""

    incarnation: int
    directory_id: str
    session_ids: random.Random
    placement: random.Random


def draw_ids(clock: Clock) -> Ids:
    """The only place where a node rolls dice. An incarnation is a wall time: it grows with every start."""
    source = random.SystemRandom()
    return Ids(
        incarnation=clock.wall_ms(),
        directory_id=uuid.uuid4().hex,
        session_ids=random.Random(source.getrandbits(64)),
        placement=random.Random(source.getrandbits(64)),
    )


def die(error: BaseException) -> None:
    """Stop at once, without cleaning up: what is in memory is not to be trusted, the disk is."""
    if isinstance(error, StartupError):
        # The node has no place in the cluster that it found.
        sys.stderr.write(f"milena: cannot start: {error.message}\n")
        sys.stderr.flush()
        os._exit(EXIT_REFUSED)
    logger.critical("fatal: %s: %s", type(error).__name__, error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_FATAL)


class Node:
    """One running node. Built and driven by ``run``."""

    def __init__(
        self, config: NodeConfig, *, clock: Clock, ids: Ids, voters: Mapping[int, Address]
    ) -> None:
        self.config = config
        self._clock = clock
        self._ids = ids
        self._loop = asyncio.get_running_loop()
        self._awake = (
            Awake(config.cpu_awake_ms, loop=self._loop) if config.cpu_awake_ms > 0 else None
        )
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="milena-io")
        self._sync_pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="milena-sync")
        self._files = OsFiles()
        self.directory = DataDirectory.open(
            self._files,
            str(config.data_dir),
            node_id=config.node_id,
            directory_id=ids.directory_id,
        )
        self.counts = NodeCounts()
        self._machine = MetadataMachine()
        self._secret = secret_of(config)
        self._peer_tls = peer_tls(config)
        self._api_tls = api_tls(config)
        self._certificates = watches_of(config, self._api_tls, self._peer_tls)
        self.voters = dict(voters)
        self.quorum = self._build_quorum()
        self.metadata = MetadataStore(
            node_id=config.node_id,
            incarnation=ids.incarnation,
            machine=self._machine,
            quorum=self.quorum,
            clock=clock,
            on_failure=die,
        )
        self._build_peers()
        self._build_replication()
        self._build_services()
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- building --------------------------------------------------------------------------------

    def _build_quorum(self) -> RaftQuorum:
        config = self.config
        return RaftQuorum(
            config=QuorumConfig(
                node_id=config.node_id,
                voters={i: (a.host, a.port) for i, a in self.voters.items()},
                directory=f"{self.directory.root}/raft",
                secret=self._secret,
                cluster_id=self.directory.cluster_id or "",
                election_timeout_ms=(
                    config.election_timeout_ms_min,
                    config.election_timeout_ms_max,
                ),
                heartbeat_ms=config.raft_append_period_ms,
                seed=self._ids.session_ids.getrandbits(32),
                incarnation=self._ids.incarnation,
                ssl_server=None if self._peer_tls is None else self._peer_tls.server,
                ssl_client=None if self._peer_tls is None else self._peer_tls.client,
            ),
            files=self._files,
            state_machine=self._machine,
            on_role_change=self._on_role_change,
            on_fatal=die,
        )

    def _build_peers(self) -> None:
        self.peer_server = PeerServer(on_disconnected=self._on_disconnected, on_failure=die)
        self.peer_listener = PeerListener(
            server=self.peer_server,
            identity=self._peer_identity,
            secret=self._secret,
            on_raft_socket=self.quorum.accept,
            tls=None if self._peer_tls is None else self._peer_tls.server,
        )
        self.peer = PeerClient(
            identity=self._peer_identity,
            secret=self._secret,
            resolve=self._resolve,
            on_disconnected=self._on_disconnected,
            tls=None if self._peer_tls is None else self._peer_tls.client,
        )
        self.controller = Controller(
            node_id=self.config.node_id,
            metadata=self.metadata,
            probe=self.peer.probe,
            clock=self._clock,
            settings=ControllerSettings(
                session_ms=self.config.broker_session_ms,
                preferred_interval_ms=self.config.leader_balance_interval_ms,
                voters=tuple(sorted(self.voters)),
                feature_level=FEATURE_LEVEL,
                new_cluster_id=lambda: uuid.uuid4().hex,
            ),
            on_failure=die,
        )
        self.membership = Membership(
            broker_id=self.config.node_id,
            identity=self._identity,
            metadata=self.metadata,
            peer=self.peer,
            directory=self.directory,
            clock=self._clock,
            session_ms=self.config.broker_session_ms,
            heartbeat_ms=self.config.heartbeat_ms,
            local_heartbeat=self.controller.take_heartbeat,
        )

    def _build_replication(self) -> None:
        config = self.config
        self.isr_proposer = IsrProposer(
            metadata=self.metadata,
            clock=self._clock,
            broker_epoch=lambda: self.membership.broker_epoch,
            timeout_ms=config.broker_session_ms,
        )
        self.replicas = LocalReplicas(
            files=self._files,
            directory=self.directory,
            context=RunnerContext(
                broker_id=config.node_id,
                clock=self._clock,
                pool=self._pool,
                sync_pool=self._sync_pool,
                lag_ms_max=config.replica_lag_time_max_ms,
                on_fatal=die,
                on_proposal=self._on_proposal,
                on_disk_full=lambda _: self.membership.on_disk_full(),
                on_doubt=self._on_doubt,
                counts=self.counts,
                on_write=None if self._awake is None else self._awake.on_write,
            ),
            pool=self._pool,
            clock=self._clock,
        )
        self.replicas.use_fetchers(ReplicaFetchers(self._make_fetcher))
        self.compactor = Compactor(
            runners=lambda: self.replicas,
            clock=self._clock,
            settings=CompactorSettings(
                check_ms=config.retention_check_ms,
                bytes_per_s=config.compaction_bytes_per_s,
                settle_ms=2 * config.broker_session_ms,
            ),
            counts=self.counts.compaction,
            has_lease=lambda: self.membership.has_lease,
        )
        self.scrubber = Scrubber(
            runners=lambda: self.replicas,
            settled=self.replicas.settled,
            clock=self._clock,
            pool=self._pool,
            settings=ScrubSettings(
                bytes_per_s=config.scrub_bytes_per_s, interval_ms=config.scrub_interval_ms
            ),
            counts=self.counts.scrub,
            giver=CopyGiver(
                metadata=self.metadata,
                clock=self._clock,
                broker_epoch=lambda: self.membership.broker_epoch,
            ),
            rng=self._ids.placement,
        )
        self.fetch_server = FetchServer(
            find_runner=self.replicas.find,
            brokers=lambda: self.metadata.image.brokers,
            throttle=CatchUpThrottle(config.replication_throttle_bytes_per_s, self._loop.time),
        )

    def _make_fetcher(self, leader_id: int) -> LeaderFetcher:
        return LeaderFetcher(
            leader_id,
            peer=self.peer,
            clock=self._clock,
            settings=FetcherSettings(
                wait_ms_max=self.config.replica_fetch_wait_ms_max,
                bytes_max=self.config.replica_fetch_bytes_max,
            ),
            broker_epoch=lambda: self.membership.broker_epoch,
            next_session_id=lambda: self._ids.session_ids.getrandbits(62) + 1,
            has_room=lambda: not self.membership.is_disk_full,
            short_syncs=lambda: self.counts.short_syncs,
            on_failure=die,
        )

    def _on_proposal(self, runner: PartitionRunner, proposal: IsrProposal) -> None:
        self.isr_proposer.submit(runner, proposal)

    def _on_doubt(self, runner: PartitionRunner, offset: int | None) -> None:
        self.scrubber.doubt(runner, offset)

    def _build_services(self) -> None:
        config = self.config
        self.producers = ProducerService(
            metadata=self.metadata, replicas=self.replicas, peer=self.peer
        )
        self.admin = AdminService(
            metadata=self.metadata,
            defaults=TopicDefaults(
                partition_count=config.default_partitions,
                replication_factor=config.default_replication_factor,
                is_auto_create=config.creates_topics,
            ),
            rng=self._ids.placement,
            new_topic_id=lambda: uuid.uuid4().hex,
            producers=self.producers,
        )
        self.produce = ProduceService(
            metadata=self.metadata,
            replicas=self.replicas,
            membership=self.membership,
            peer=self.peer,
            clock=self._clock,
            counts=self.counts,
            producers=self.producers,
            topic_to_write=self.admin.topic_to_write,
        )
        self.reads = ReadService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,
            topic_to_read=self.admin.topic,
            has_lease=lambda: self.membership.has_lease,
            sync_count=lambda: self.counts.syncs,
        )
        self.deletions = DeletionService(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,
            clock=self._clock,
            topic_to_read=self.admin.topic,
            has_lease=lambda: self.membership.has_lease,
        )
        self.reassignments = ReassignmentService(
            metadata=self.metadata, replicas=self.replicas, peer=self.peer, pool=self._pool
        )
        self.groups = Groups(
            metadata=self.metadata,
            peer=self.peer,
            clock=self._clock,
            pool=self._pool,
            counts=self.counts.groups,
            broker_epoch=lambda: self.membership.broker_epoch,
            has_lease=lambda: self.membership.has_lease,
            topic=self.admin.topic,
            fetch=self.reads.fetch,
            new_member_id=lambda: str(uuid.uuid4()),
            expiry=ExpirySettings(
                retention_ms=config.offsets_retention_minutes * MINUTE_MS,
                check_ms=config.offsets_retention_check_ms,
            ),
            on_failure=die,
        )
        self.consumers = RestConsumers(
            metadata=self.metadata,
            replicas=self.replicas,
            peer=self.peer,
            clock=self._clock,
            groups=self.groups,
            fetch=self.reads.fetch,
            report_damage=self.reads.doubt,
            topic=self.admin.topic,
            current_image=self.admin.current_image,
            broker_epoch=lambda: self.membership.broker_epoch,
            new_name=lambda: f"rest-consumer-{uuid.uuid4()}",
            idle_ms=config.consumer_instance_timeout_ms,
        )
        self.metrics = NodeMetrics(
            node_id=config.node_id,
            clock=self._clock,
            counts=self.counts,
            image=lambda: self.metadata.image,
            quorum=self.quorum.status,
            replicas=self._samples,
            is_ready=lambda: self.health.readiness().is_ready,
        )
        self.health = HealthService(
            metadata=self.metadata,
            membership=self.membership,
            replicas=self.replicas,
            render_metrics=self.metrics.render,
        )
        self.voter_directory = VoterDirectory(self.voters)
        self.peer_server.register(SEQUENCES, self.producers.on_sequences)
        self.peer_server.register(VOTERS, self.voter_directory.on_voters)
        self.peer_server.register(HEARTBEAT, self.controller.on_heartbeat)
        self.peer_server.register(FETCH, self.fetch_server.on_fetch)
        self.peer_server.register(FETCH_WAKE, self.fetch_server.on_wake)
        self.peer_server.register(PRODUCE, self.produce.on_produce)
        self.peer_server.register(READ, self.reads.on_read)
        self.peer_server.register(MOVES, self.reassignments.on_moves)
        self.peer_server.register(DELETE_RECORDS, self.deletions.on_delete_records)
        for part in (self.groups.calls, self.consumers):
            for request_type, handler in part.peer_handlers.items():
                self.peer_server.register(request_type, handler)
        for listener in (
            self._on_image,
            self.replicas.on_image,
            self.membership.on_image,
            self.controller.on_image,
            self.groups.on_image,
            self.consumers.on_image,
        ):
            self.metadata.listen(listener)

    # -- what the parts ask of each other --------------------------------------------------------

    def _samples(self) -> list[ReplicaSample]:
        return [
            ReplicaSample(
                topic=runner.topic,
                partition=runner.partition,
                is_leader=runner.leader is not None,
                log_start_offset=runner.log.log_start_offset,
                log_end_offset=runner.log.log_end_offset,
                high_watermark=runner.high_watermark,
                stored_bytes=runner.log.size_bytes,
                counts=runner.counts,
            )
            for runner in self.replicas
        ]

    def _peer_identity(self) -> PeerIdentity:
        return PeerIdentity(
            node_id=self.config.node_id,
            cluster_id=self.directory.cluster_id or "",
            is_voter=self.config.node_id in self.voters,
            incarnation=self._ids.incarnation,
            voters=tuple(sorted(self.voters)),
        )

    def _identity(self) -> Identity:
        address = self.config.peer_address(self.peer_listener.port)
        return Identity(
            api_url=self.config.url(self.api_port),
            peer_host=address.host,
            peer_port=address.port,
            rack=self.config.rack,
            feature_min=1,
            feature_max=FEATURE_LEVEL,
        )

    def _resolve(self, node_id: int) -> tuple[str, int] | None:
        """Where a node listens for peers: as it registered, else as we were told at the start."""
        broker = self.metadata.image.brokers.get(node_id)
        if broker is not None:
            return broker.peer_host, broker.peer_port
        address = self.voters.get(node_id)
        return None if address is None else (address.host, address.port)

    def _on_disconnected(self, node_id: int, channel: Channel) -> None:
        del channel
        self.controller.on_disconnected(node_id)

    def _on_role_change(self, status: QuorumStatus) -> None:
        """On the quorum's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_status, status)

    def _on_status(self, status: QuorumStatus) -> None:
        self.controller.on_status(status)
        self.membership.beat_soon()

    def _on_image(self, image: Image) -> None:
        self.voter_directory.image = image
        if image.cluster_id and self.directory.cluster_id != image.cluster_id:
            try:
                self.directory.set_cluster_id(image.cluster_id)
            except StartupError as error:
                die(error)
            self.quorum.set_cluster_id(image.cluster_id)

    # -- running ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything up to an API that answers; registration goes on in the background of ``run``."""
        self._api_socket = _bind(self.config.listen)
        self.api_port = self._api_socket.getsockname()[1]
        self._was_clean = self.directory.consume_clean_marker()
        await self.replicas.recover(was_clean=self._was_clean)
        await self.quorum.start()
        await self.peer_listener.start(*self.config.peer_listen)
        self._runner = build_runner(
            Ports(
                records=RecordsService(self.produce, self.reads, self.deletions),
                metadata=self.admin,
                health=self.health,
                reassignments=self.reassignments,
                groups=self.groups.service,
                consumers=self.consumers.service,
                limits=self._api_limits(),
            ),
            on_broken_invariant=die,
            shutdown_timeout_s=API_SHUTDOWN_S,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._api_socket, ssl_context=self._api_tls).start()
        self.health.has_started = True
        logger.info("listening url=%s data_dir=%s", self.url, self.directory.root)

    def _api_limits(self) -> ApiLimits:
        limits = self.config.limits
        wanted = limits.connections_max
        connections_max = descriptors.affordable_connections(wanted, descriptors.raise_limit())
        if connections_max < wanted:
            logger.warning(
                "the limit of open files allows fewer connections connections_max=%d configured=%d",
                connections_max,
                wanted,
            )
        return replace(limits, connections_max=connections_max)

    @property
    def url(self) -> str:
        """Where clients reach this node."""
        return self.config.url(self.api_port)

    async def serve(self, stop: asyncio.Event) -> None:
        """Take part in the cluster until ``stop`` is set, then leave it in order."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._join(), name="join"),
                group.create_task(self.isr_proposer.run(), name="isr-proposals"),
                group.create_task(self.replicas.run(), name="replicas"),
                group.create_task(self._tick(), name="tick"),
                group.create_task(self._housekeeping(), name="housekeeping"),
                group.create_task(self.compactor.run(), name="compactor"),
                group.create_task(self.scrubber.run(), name="scrubber"),
                group.create_task(self.scrubber.attend(), name="doubts"),
                group.create_task(self._watch_lease(), name="lease"),
                group.create_task(self.groups.coordinator.run(), name="groups"),
                group.create_task(self.groups.expiry.run(), name="offset-expiry"),
                group.create_task(self.consumers.run(), name="consumers"),
            ]
            await stop.wait()
            await self._leave()
            for task in tasks:
                task.cancel()
        await self._close()

    async def _join(self) -> None:
        epoch = await self.membership.register(
            self.replicas.reports(), was_clean_stop=self._was_clean
        )
        self.metadata.checks.begin()
        self.replicas.broker_epoch = epoch
        self.replicas.on_image(self.metadata.image)
        await self.membership.run()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_MS)
            self.replicas.tick()

    async def _watch_lease(self) -> None:
        """Answer waiting writers when the lease ends, not when their patience does."""
        while True:
            left_ms = self.membership.lease_left_ms
            if left_ms > 0:
                await self._clock.sleep(left_ms + 1)
                continue
            self.replicas.on_lease_lost()
            while not self.membership.has_lease:
                await self._clock.sleep(LEASE_POLL_MS)

    async def _housekeeping(self) -> None:
        """Checkpoints, retention and room, one small thing at a time."""
        retention_ms = self._clock.now_ms()
        returns = memory.Returns(self._clock)
        while True:
            await self._clock.sleep(HOUSEKEEPING_MS)
            for runner in list(self.replicas):
                await runner.upkeep.maybe_checkpoint()
            if self._clock.now_ms() - retention_ms >= self.config.retention_check_ms:
                retention_ms = self._clock.now_ms()
                self.replicas.run_retention()
            for watch in self._certificates:
                watch.maybe_reload()
            if returns.are_due():
                await asyncio.to_thread(memory.give_back)
            if self.membership.is_disk_full and self.directory.has_room(ROOM_BYTES):
                self.directory.maybe_restore_reserve()
                self.membership.on_disk_room()

    async def _leave(self) -> None:
        """Graceful stop: others lead before we go."""
        logger.info("draining")
        if self.membership.broker_epoch >= 0:
            timeout_ms = self.config.drain_timeout_ms
            if not await self.membership.drain(timeout_ms=min(timeout_ms, DRAIN_MS_MAX)):
                logger.warning("drain incomplete: partitions may wait for an election")
        if self.quorum.status().role is Role.LEADER and len(self.voters) > 1:
            self.controller.close()
            await self.quorum.transfer_leadership(timeout_ms=TRANSFER_TIMEOUT_MS)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _close(self) -> None:
        self.controller.close()
        await self.produce.close()
        await self.consumers.close()
        await self.groups.close()
        await self.replicas.close(is_clean=True)
        self.fetch_server.close()
        await self.peer.close()
        await self.peer_listener.stop()
        await self.peer_server.close()
        await self.quorum.stop()
        self.directory.mark_clean_stop()
        self.directory.close()
        self._pool.shutdown()
        self._sync_pool.shutdown()
        if self._awake is not None:
            self._awake.close()
        logger.info("stopped")


def _bind(address: Address) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        StartupError: the address is taken or not ours.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error
    return bound


async def build_node(config: NodeConfig) -> Node:
    """A node of the real world, not started yet; an observer first asks who the voters are.

    Raises:
        StartupError: the node refuses to start.
    """
    clock = SystemClock()
    voters = config.voters
    if config.join:
        voters = await find_voters(
            config, secret=secret_of(config), tls=peer_tls(config), clock=clock
        )
    return Node(config, clock=clock, ids=draw_ids(clock), voters=voters)
