"""A real node: sockets, threads, certificates and files under the parts that ``node.assembly`` builds.

This module defines the order in which they start and stop.
Start: data directory → recovery of every log → metadata quorum and peer port → API → registration → replicas.
Stop: drain (others lead) → hand over Raft leadership → API → replicas (sync, checkpoint) → quorum → clean-stop mark.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from http_api.access.group_shares import GroupShares
from http_api.app import build_runner
from http_api.ports.node import ApiLimits
from http_api.serving.in_flight import RequestBytes
from http_api.serving.quotas import Quotas
from milena.disk.os_files import OsFiles
from milena.model.clock import Clock, SystemClock
from milena.model.errors import StartupError
from node.assembly import Assembly, Ids, NodePorts
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.config.rules import secret_of
from node.control.membership import Identity
from node.metadata.audit_lines import AuditLines
from node.metadata.discovery import find_voters
from node.metadata.store import MetadataMachine
from node.peers.codec import PeerChannel
from node.peers.port import PeerClient, PeerListener, PeerServer
from node.process import descriptors, memory
from node.process.awake import Awake
from node.process.sync_threads import SyncThreads
from node.process.tls import api_tls, peer_tls, watches_of
from raft_meta.consensus.frames import PeerIdentity
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.consensus.raft_quorum import QuorumConfig, RaftQuorum
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from storage.replica.data_directory import DataDirectory

if TYPE_CHECKING:
    from node.kafka.listener import KafkaListener

logger = logging.getLogger(__name__)

EXIT_FATAL = 70
EXIT_REFUSED = 78
WORKERS = 8
"""Threads in each of two pools: for syncs, and for cold reads and recovery. They wait for the disk, not the
processor."""
TRANSFER_TIMEOUT_MS = 2_000
API_SHUTDOWN_S = 2.0
PASSWORD_NICENESS = 10
"""Strangers can make the node compute hashes. That must not slow down authenticated callers."""
DRAIN_MS_MAX = 20_000


def draw_ids(clock: Clock) -> Ids:
    """Draw everything random that a node starts with.

    The incarnation is the wall time (ms). It grows with every start, unless the clock is set back.
    """
    source = random.SystemRandom()
    return Ids(
        incarnation=clock.wall_ms(),
        directory_id=uuid.uuid4().hex,
        session_ids=random.Random(source.getrandbits(64)),
        placement=random.Random(source.getrandbits(64)),
        random_bytes=os.urandom,
    )


def die(error: BaseException) -> None:
    """Stop at once, without cleaning up: the memory is not to be trusted, the disk is."""
    if isinstance(error, StartupError):
        # The node does not belong to the cluster that it found.
        sys.stderr.write(f"milena: cannot start: {error.message}\n")
        sys.stderr.flush()
        os._exit(EXIT_REFUSED)
    logger.critical("fatal: %s: %s", type(error).__name__, error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_FATAL)


class Node(Assembly):
    """One real node. Built and driven by ``node.cli``."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Clock,
        ids: Ids,
        voters: Mapping[int, Address],
        feature_max: int = FEATURE_LEVEL_MAX,
    ) -> None:
        """Build a node. ``feature_max``: the highest feature level to offer, as an earlier release would."""
        self._feature_max = feature_max
        self._loop = asyncio.get_running_loop()
        self._awake = (
            Awake(config.cpu_awake_ms, loop=self._loop) if config.cpu_awake_ms > 0 else None
        )
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="milena-io")
        self._sync_pool = SyncThreads(WORKERS, name="milena-sync")
        self._password_pool = ThreadPoolExecutor(
            1, thread_name_prefix="milena-passwords", initializer=_give_way
        )
        self._files = OsFiles()
        self.directory = DataDirectory.open(
            self._files,
            str(config.data_dir),
            node_id=config.node_id,
            directory_id=ids.directory_id,
        )
        self._ids = ids
        self._machine = MetadataMachine()
        self._machine.on_audited(
            AuditLines(config.audit_file, mark=config.data_dir / "audit-logged").write
        )
        self._secret = secret_of(config)
        self._peer_tls = peer_tls(config)
        self._api_tls = api_tls(config)
        self._certificates = watches_of(config, self._api_tls, self._peer_tls)
        self._returns = memory.Returns(clock)
        self.voters = dict(voters)
        self.quorum = self._build_quorum(config)
        self.peer = PeerClient(
            identity=self._peer_identity,
            secret=self._secret,
            resolve=self._resolve,
            on_disconnected=self._on_disconnected,
            tls=None if self._peer_tls is None else self._peer_tls.client,
            verifies_id=config.peer_tls_verify_id,
        )
        # The objects made so far call the parts, but only once the node runs.
        super().__init__(config, self._node_ports(clock))
        self._build_listener()
        self._runner: web.ServerRunner | None = None
        self._kafka_sockets: list[socket.socket] = []
        # Both interfaces charge the same buckets, and share the bound on bytes of requests.
        self._quotas = Quotas(config.limits, lambda: self.metadata.image.quotas)
        self._group_shares = GroupShares()
        self._request_bytes = RequestBytes(config.limits.bytes_in_flight_max)
        self._kafka = self._build_kafka()

    # -- building --------------------------------------------------------------------------------

    def _build_quorum(self, config: NodeConfig) -> RaftQuorum:
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
                verifies_id=config.peer_tls_verify_id,
            ),
            files=self._files,
            state_machine=self._machine,
            on_role_change=self._on_role_change,
            on_fatal=die,
        )

    def _node_ports(self, clock: Clock) -> NodePorts:
        return NodePorts(
            clock=clock,
            ids=self._ids,
            new_uuid=uuid.uuid4,
            files=self._files,
            directory=self.directory,
            pool=self._pool,
            sync_pool=self._sync_pool,
            password_pool=self._password_pool,
            machine=self._machine,
            quorum=self.quorum,
            peers=self.peer,
            voters=self.voters,
            identity=self._identity,
            on_fatal=die,
            on_cluster_id=self.quorum.set_cluster_id,
            on_write=None if self._awake is None else self._awake.on_write,
            process_upkeep=self._process_upkeep,
            feature_max=self._feature_max,
            certificate_expiry_s=self._certificate_expiry_s,
        )

    def _build_listener(self) -> None:
        self.peer_server = PeerServer(
            on_disconnected=self._on_disconnected, contained=self.counts.contained
        )
        for request_type, handler in self.peer_handlers.items():
            self.peer_server.register(request_type, handler)
        self.peer_listener = PeerListener(
            server=self.peer_server,
            identity=self._peer_identity,
            secret=self._secret,
            on_raft_socket=self.quorum.accept,
            tls=None if self._peer_tls is None else self._peer_tls.server,
            verifies_id=self.config.peer_tls_verify_id,
        )

    def _build_kafka(self) -> "KafkaListener | None":
        """Return the Kafka interface if there is one. Without it, none of its code is loaded.

        Raises:
            StartupError: the library that it needs is not installed.
        """
        if self.config.kafka_listen is None:
            return None
        try:
            from node.kafka.apis.api import EXTERNAL, INSIDE, KafkaAddress  # noqa: PLC0415
            from node.kafka.forwarding import FORWARDED  # noqa: PLC0415
            from node.kafka.listener import KafkaListener  # noqa: PLC0415
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "kafka":
                raise
            raise StartupError(
                "kafka_listen needs kafka-python, which is not installed: pip install 'milena-node[kafka]'"
            ) from error

        def address(place: int) -> KafkaAddress:
            host, port = self.config.kafka_address(
                self._kafka_sockets[place].getsockname()[1], place
            )
            is_last = place == len(self.config.kafka_listeners) - 1
            is_shared = self.config.kafka_one_address and is_last
            return KafkaAddress(host, port, (INSIDE, EXTERNAL)[place], is_shared=is_shared)

        listener = KafkaListener(
            services=self.kafka_services(
                quotas=self._quotas,
                group_shares=self._group_shares,
                has_tls=self._api_tls is not None,
            ),
            membership=self.membership,
            contained=self.counts.contained,
            counts=self.counts.kafka,
            addresses=[
                partial(address, place) for place in range(len(self.config.kafka_listeners))
            ],
            peers=self.peer,
            connections_max=self._connections_max(),
            request_bytes=self._request_bytes,
        )
        self.peer_server.register(FORWARDED.name, listener.forwarding.on_request)
        return listener

    # -- calls from the parts to the process -----------------------------------------------------

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
            feature_max=self._feature_max,
        )

    def _certificate_expiry_s(self) -> Mapping[str, float]:
        return {name: at for watch in self._certificates for name, at in watch.expiry_s.items()}

    def _resolve(self, node_id: int) -> tuple[str, int] | None:
        """Return a node's peer address: the registered one, else the one given at the start."""
        broker = self.metadata.image.brokers.get(node_id)
        if broker is not None:
            return broker.peer_host, broker.peer_port
        address = self.voters.get(node_id)
        return None if address is None else (address.host, address.port)

    def _on_disconnected(self, node_id: int, channel: PeerChannel) -> None:
        del channel
        self.controller.on_disconnected(node_id)

    def _on_role_change(self, status: QuorumStatus) -> None:
        """Pass on another Raft leader; called on the quorum's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.on_role_change, status)

    async def _process_upkeep(self) -> None:
        for watch in self._certificates:
            watch.maybe_reload()
        if self._returns.are_due():
            await asyncio.to_thread(memory.give_back)

    # -- running ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything up to an API that responds. Registration continues in the background of ``serve``."""
        # Bind first: if the address is taken, the node must refuse to start before it uses up the clean-stop mark.
        self._api_socket = _bind(self.config.listen)
        self.api_port = self._api_socket.getsockname()[1]
        self._kafka_sockets += [_bind(listen) for listen, _ in self.config.kafka_listeners]
        # Recover logs before the quorum starts: its images give roles to replicas, which must exist already.
        await self.recover()
        await self.quorum.start()
        await self.peer_listener.start(*self.config.peer_listen)
        self._runner = build_runner(
            self.api_ports(self._api_limits()),
            origins=self.config.cors_origins,
            hosts=self.config.allowed_hosts,
            proxies=self.config.trusted_proxies,
            is_metrics_public=self.config.metrics_public,
            contained=self.counts.contained,
            quotas=self._quotas,
            group_shares=self._group_shares,
            request_bytes=self._request_bytes,
            shutdown_timeout_s=API_SHUTDOWN_S,
        )
        await self._runner.setup()
        _listen(self._api_socket, self.config.listen)
        for bound, (address, _) in zip(
            self._kafka_sockets, self.config.kafka_listeners, strict=True
        ):
            _listen(bound, address)
        await web.SockSite(self._runner, self._api_socket, ssl_context=self._api_tls).start()
        if self._kafka is not None:
            await self._kafka.start(self._kafka_sockets, self._api_tls)
            texts = ("kafka listening address=%s:%d", "kafka listening externally address=%s:%d")
            for text, bound in zip(texts, self._kafka_sockets, strict=False):
                logger.info(text, *bound.getsockname()[:2])
        self.health.has_started = True
        logger.info("listening url=%s data_dir=%s", self.url, self.directory.root)

    def _connections_max(self) -> int:
        """Return how many connections each interface may have: they share the descriptors that clients may use."""
        interfaces = 1 if self.config.kafka_listen is None else 2
        wanted = self.config.limits.connections_max * interfaces
        affordable = descriptors.affordable_connections(wanted, descriptors.raise_limit())
        return max(1, affordable // interfaces)

    def _api_limits(self) -> ApiLimits:
        limits = self.config.limits
        wanted = limits.connections_max
        connections_max = self._connections_max()
        if connections_max < wanted:
            logger.info(
                "the limit of open files allows fewer connections connections_max=%d configured=%d",
                connections_max,
                wanted,
            )
        return replace(limits, connections_max=connections_max)

    @property
    def url(self) -> str:
        """The URL at which clients reach this node."""
        return self.config.url(self.api_port)

    async def serve(self, stop: asyncio.Event) -> None:
        """Take part in the cluster until ``stop`` is set; then leave it in order."""
        async with asyncio.TaskGroup() as group:
            loops = dict(self.background())
            if self._kafka is not None:
                loops["kafka-address"] = partial(
                    self._keep_going, "kafka-address", self._kafka.advertise
                )
            tasks = [group.create_task(work(), name=name) for name, work in loops.items()]
            await stop.wait()
            # All tasks continue meanwhile: heartbeats tell the controller that this node drains.
            await self._leave()
            for task in tasks:
                task.cancel()
        await self._close()

    async def _leave(self) -> None:
        """Stop gracefully: other nodes lead before this one goes."""
        logger.info("draining")
        if self.membership.broker_epoch >= 0:
            timeout_ms = self.config.drain_timeout_ms
            if not await self.membership.drain(timeout_ms=min(timeout_ms, DRAIN_MS_MAX)):
                logger.warning("drain incomplete: partitions may wait for an election")
        if self.quorum.status().role is Role.LEADER and len(self.voters) > 1:
            self.controller.close()
            await self.quorum.transfer_leadership(timeout_ms=TRANSFER_TIMEOUT_MS)
        # Stop the API last: until others lead, clients are better served here than refused.
        if self._kafka is not None:
            await self._kafka.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _close(self) -> None:
        await self.close_parts()
        # First stop calling other nodes, then stop responding to them. Then the quorum gets no further sockets.
        await self.peer.close()
        await self.peer_listener.stop()
        await self.peer_server.close()
        await self.quorum.stop()
        # Write the mark last: everything that it vouches for is on the disk.
        self.directory.mark_clean_stop()
        self.directory.close()
        self._pool.shutdown()
        self._sync_pool.shutdown()
        self._password_pool.shutdown(cancel_futures=True)
        if self._awake is not None:
            self._awake.close()
        logger.info("stopped")


def _give_way() -> None:
    """Let every other thread of the machine run first, on systems where threads have their own niceness."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PASSWORD_NICENESS)


def _bind(address: Address) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Raises:
        StartupError: the address is taken or is not one of this machine.
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
        raise _refused(address, error) from error
    return bound


def _listen(bound: socket.socket, address: Address) -> None:
    """Listen before the event loop does: if listening fails, uvloop closes the socket and tells its caller nothing.

    Raises:
        StartupError: another socket listens there. Two sockets can be bound to one address while none of them listens.
    """
    try:
        bound.listen()
    except OSError as error:
        raise _refused(address, error) from error


def _refused(address: Address, error: OSError) -> StartupError:
    return StartupError(
        f"cannot listen on {address}: {error.strerror or error}; free the port, or give another address"
    )


async def build_node(config: NodeConfig) -> Node:
    """Build a real node that is not started yet. An observer first asks for the voters.

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
