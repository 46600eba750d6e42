"""Assembles all parts of a node, in the same way in production, in the cluster simulation and in unit tests.

``NodePorts`` is all that a node needs from its surroundings: time, randomness, files, threads, the metadata quorum, the
other nodes, and a way to end the process. ``node.wiring`` makes them from sockets and threads; tests make them in
memory.

They also drive the parts. They call ``recover``. Then they pass the calls of peers (``peer_handlers``) and changes of
the Raft leader (``on_role_change``). They run ``background`` until the node leaves, and then ``close_parts``.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from http_api.access.group_shares import GroupShares
from http_api.access.refusals import Refusals
from http_api.ports.node import ApiLimits, Ports
from http_api.serving.quotas import Quotas
from milena.disk.files import Files
from milena.model.access import AccessMode
from milena.model.clock import Clock
from milena.model.errors import MilenaError, StartupError
from node.access.callers import Callers
from node.access.first_user import FirstUser, read_password
from node.access.passwords import Passwords
from node.access.scram_logins import ScramLogins
from node.access.service import AccessService
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.consumers.consumer_assembly import RestConsumers
from node.context import NodeContext
from node.control.controller import Controller
from node.control.membership import Identity, Membership
from node.control.messages import HEARTBEAT
from node.groups.classic.coordinated import ClassicSettings
from node.groups.group_assembly import Groups
from node.groups.group_offsets import MINUTE_MS, ExpirySettings
from node.metadata.discovery import VOTERS, VoterDirectory
from node.metadata.store import MetadataMachine, MetadataStore
from node.metrics.counts import NodeCounts
from node.metrics.exposition import NodeMetrics, ReplicaSample
from node.peers.port import Handler, Peers
from node.process.cluster_clock import ClusterClock
from node.process.keep_going import keep_going
from node.replica.compactor import Compactor
from node.replica.runner import PartitionRunner
from node.replica.runner_context import RunnerContext
from node.replica.scrubber import CopyGiver, Scrubber
from node.replication.catch_up import CatchUpThrottle
from node.replication.fetch_server import FetchServer
from node.replication.fetch_wire import FETCH, FETCH_WAKE
from node.replication.fetcher import LeaderFetcher, ReplicaFetchers
from node.replication.isr_proposals import IsrProposer
from node.replication.local_replicas import LocalReplicas
from node.replication.transaction_ends import TransactionEnds
from node.replication.transaction_markers import TransactionMarkers
from node.services import messages
from node.services.admin import AdminService, TopicDefaults
from node.services.audit_writer import AuditWriter
from node.services.elections import ElectionService
from node.services.health import HealthService
from node.services.history import HistoryService
from node.services.produce import ProduceService
from node.services.producers import ProducerService
from node.services.reads import ReadService
from node.services.reassignments import ReassignmentService
from node.services.record_deletion import DeletionService
from node.services.transactions.lookup import TransactionLookup
from node.services.transactions.service import TransactionService
from node.services.transactions.sight import TransactionSight
from node.services.transactions.transactional_ids import TransactionalIds
from raft_meta.consensus.quorum import Quorum, QuorumStatus
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.image import Image
from storage.replica.data_directory import DataDirectory

if TYPE_CHECKING:
    from node.access.web_tokens import WebTokens
    from node.kafka.apis.api import KafkaServices

logger = logging.getLogger(__name__)

TICK_MS = 200
LEASE_POLL_MS = 100
HOUSEKEEPING_MS = 1_000
REFUSALS_MS = 60_000
ROOM_BYTES = 8 << 20
"""Free space that ends a full disk. It lets a few segments grow, so that the state does not flap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Random and time-dependent values that a node starts with."""

    incarnation: int
    directory_id: str
    session_ids: random.Random
    placement: random.Random
    random_bytes: Callable[[int], bytes]
    """Unpredictable bytes: secrets are made of them."""


async def _nothing() -> None:
    """Do nothing: the default without process upkeep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The surroundings of a node, given by the program that runs it."""

    clock: Clock
    ids: Ids
    new_uuid: Callable[[], uuid.UUID]
    """Names things that are created while the node runs."""
    files: Files
    directory: DataDirectory
    pool: Executor
    """For cold reads, recovery and other long work."""
    sync_pool: Executor
    """Only for syncs of logs."""
    password_pool: Executor
    """Only for hashes of passwords, one at a time."""
    machine: MetadataMachine
    quorum: Quorum
    """Applies what it commits to ``machine``."""
    peers: Peers
    voters: Mapping[int, Address]
    """The voters that this node was given at its start."""
    identity: Callable[[], Identity]
    """Called once the node listens."""
    on_fatal: Callable[[BaseException], None]
    """Must stop the process."""
    on_cluster_id: Callable[[str], None] = lambda _: None
    """Called with the cluster's id when an image names another one than the directory does."""
    on_write: Callable[[], None] | None = None
    """Called at every append, as leader and as follower."""
    process_upkeep: Callable[[], Awaitable[None]] = _nothing
    """Called periodically, together with the upkeep of logs."""
    feature_max: int = FEATURE_LEVEL_MAX
    """The highest feature level of this release."""
    certificate_expiry_s: Callable[[], Mapping[str, float]] = dict
    """Returns when the certificates in use expire, by the name of the option of their file."""


class Assembly:
    """The parts, each under its name; none of them runs yet.

    Each part is created after those that it needs, and gets them as arguments. Three cycles are broken by a look-up at
    the time of the call:

    - Replicas report doubts to the scrubber, which reads replicas.
    - Replicas report transactions to the markers, which end them in replicas.
    - Metrics ask health whether the node is ready, and health renders metrics.
    """

    def __init__(self, config: NodeConfig, ports: NodePorts) -> None:
        self.config = config
        self.counts = NodeCounts()
        self._ports = ports
        self.directory = ports.directory
        self.clock = ClusterClock(
            ports.clock,
            skew_ms_max=config.clock_skew_ms_max,
            has_company=ports.voters.keys() != {config.node_id},
            floor_ms=lambda: ports.machine.image.now_ms,
        )
        self._was_clean = False
        self.metadata = MetadataStore(
            node_id=config.node_id,
            incarnation=ports.ids.incarnation,
            machine=ports.machine,
            quorum=ports.quorum,
            clock=self.clock,
            on_failure=ports.on_fatal,
        )
        self._build_control()
        self._build_access()
        self._build_replication()
        self._build_background_work()
        self._build_services()
        self._build_groups()
        self._build_health()
        self._listen()
        self.peer_handlers = self._peer_handlers()

    # -- building --------------------------------------------------------------------------------

    def _build_control(self) -> None:
        config, ports = self.config, self._ports
        self.voter_directory = VoterDirectory(ports.voters)
        self.controller = Controller(
            node_id=config.node_id,
            metadata=self.metadata,
            dial=ports.peers.probe,
            clock=self.clock,
            session_ms=config.broker_session_ms,
            preferred_interval_ms=config.leader_balance_interval_ms,
            transactional_id_ms=config.transactional_id_expiration_ms,
            voters=tuple(sorted(ports.voters)),
            clock_skew_ms_max=config.clock_skew_ms_max,
            feature_level=ports.feature_max,
            new_cluster_id=self._new_id,
            contained=self.counts.contained,
        )
        self.membership = Membership(
            broker_id=config.node_id,
            identity=ports.identity,
            metadata=self.metadata,
            peer=ports.peers,
            directory=ports.directory,
            clock=self.clock,
            session_ms=config.broker_session_ms,
            heartbeat_ms=config.heartbeat_ms,
            local_heartbeat=self.controller.take_heartbeat,
        )

    def _build_access(self) -> None:
        config, ports = self.config, self._ports
        passwords = Passwords(
            pool=ports.password_pool, clock=self.clock, random_bytes=ports.ids.random_bytes
        )
        self.web_tokens: WebTokens | None = None
        if config.oidc_issuer is not None:
            # Import it only if it is needed: it brings a cryptography library along.
            from node.access.issuers import web_tokens_of  # noqa: PLC0415

            self.web_tokens = web_tokens_of(config, pool=ports.pool, clock=self.clock)
        self.callers = Callers(
            metadata=self.metadata,
            passwords=passwords,
            clock=self.clock,
            heard_ms=lambda: self.membership.heard_ms,
            silence_ms_max=config.access_silence_ms_max,
            has_first_user=config.admin_password_file is not None,
            random_bytes=ports.ids.random_bytes,
            web_tokens=self.web_tokens,
            certificate_rule=config.tls_principal_rule,
        )
        self.scram_logins = ScramLogins(
            metadata=self.metadata,
            callers=self.callers,
            wrong=passwords.wrong,
            clock=self.clock,
            random_bytes=ports.ids.random_bytes,
        )
        self.refusals = Refusals()
        self.access = AccessService(
            metadata=self.metadata,
            passwords=passwords,
            clock=self.clock,
            random_bytes=ports.ids.random_bytes,
        )
        self.first_user: FirstUser | None = None
        if config.admin_password_file is not None:
            self.first_user = FirstUser(
                metadata=self.metadata,
                passwords=passwords,
                access=self.access,
                clock=self.clock,
                name=config.admin_user,
                password=read_password(config.admin_password_file),
                mode=AccessMode(config.access_mode),
                is_reset=config.reset_admin,
            )

    def _build_replication(self) -> None:
        config, ports = self.config, self._ports
        self.isr_proposer = IsrProposer(
            metadata=self.metadata,
            clock=self.clock,
            standing=self.membership,
            timeout_ms=config.broker_session_ms,
        )
        self.transaction_ends = TransactionEnds(
            metadata=self.metadata, clock=self.clock, contained=self.counts.contained
        )
        self.replicas = LocalReplicas(
            files=ports.files,
            directory=ports.directory,
            context=RunnerContext(
                broker_id=config.node_id,
                clock=self.clock,
                pool=ports.pool,
                sync_pool=ports.sync_pool,
                lag_ms_max=config.replica_lag_time_max_ms,
                on_fatal=ports.on_fatal,
                on_proposal=self.isr_proposer.submit,
                on_disk_full=lambda _: self.membership.on_disk_full(),
                on_doubt=self._on_doubt,
                counts=self.counts,
                on_write=ports.on_write,
                on_transaction=self._on_transaction,
            ),
            fetchers=ReplicaFetchers(self._fetcher),
        )
        self.transaction_markers = TransactionMarkers(
            metadata=self.metadata,
            replicas=self.replicas,
            ends=self.transaction_ends,
            clock=self.clock,
            # One clock may be ahead by the bound and another behind by it, and the time is known to a quarter of the
            # bound.
            clocks_apart_ms=5 * config.clock_skew_ms_max // 2,
            counts=self.counts,
        )
        self.fetch_server = FetchServer(
            find_runner=self.replicas.find,
            brokers=lambda: self.metadata.image.brokers,
            throttle=CatchUpThrottle(
                config.replication_throttle_bytes_per_s, asyncio.get_running_loop().time
            ),
        )

    def _fetcher(self, leader_id: int) -> LeaderFetcher:
        ports, config = self._ports, self.config
        return LeaderFetcher(
            leader_id,
            peer=ports.peers,
            clock=self.clock,
            wait_ms_max=config.replica_fetch_wait_ms_max,
            bytes_max=config.replica_fetch_bytes_max,
            standing=self.membership,
            next_session_id=lambda: ports.ids.session_ids.getrandbits(62) + 1,
            counts=self.counts,
        )

    def _build_background_work(self) -> None:
        config, ports = self.config, self._ports
        self.compactor = Compactor(
            runners=self.replicas,
            clock=self.clock,
            check_ms=config.retention_check_ms,
            bytes_per_s=config.compaction_bytes_per_s,
            # A replica that was in sync for two sessions was really in sync, not only believed to be.
            settle_ms=2 * config.broker_session_ms,
            counts=self.counts.compaction,
            standing=self.membership,
        )
        self.scrubber = Scrubber(
            runners=self.replicas,
            settled=self.replicas.settled,
            clock=self.clock,
            pool=ports.pool,
            bytes_per_s=config.scrub_bytes_per_s,
            interval_ms=config.scrub_interval_ms,
            counts=self.counts.scrub,
            giver=CopyGiver(metadata=self.metadata, standing=self.membership),
            rng=ports.ids.placement,
        )

    def _build_services(self) -> None:
        config, ports = self.config, self._ports
        self.context = node = NodeContext(
            metadata=self.metadata,
            replicas=self.replicas,
            membership=self.membership,
            peers=ports.peers,
            clock=self.clock,
            counts=self.counts,
            pool=ports.pool,
        )
        self.transaction_sight = TransactionSight(node, markers=self.transaction_markers)
        self.producers = ProducerService(node, sight=self.transaction_sight)
        self.admin = AdminService(
            metadata=self.metadata,
            defaults=TopicDefaults(
                partition_count=config.default_partitions,
                replication_factor=config.default_replication_factor,
                is_auto_create=config.creates_topics,
            ),
            rng=ports.ids.placement,
            new_topic_id=self._new_id,
            producers=self.producers,
        )
        self.transaction_lookup = TransactionLookup(node)
        self.produce = ProduceService(
            node,
            producers=self.producers,
            lookup=self.transaction_lookup,
            topic_to_write=self.admin.topic_to_write,
        )
        self.transactions = TransactionService(
            node,
            ends=self.transaction_ends,
            to_leader=self.produce.to_leader,
            lookup=self.transaction_lookup,
            sight=self.transaction_sight,
            topic_to_write=self.admin.topic_to_write,
            producers=self.producers,
        )
        self.transactional_ids = TransactionalIds(
            node, ends=self.transaction_ends, lookup=self.transaction_lookup
        )
        self.reads = ReadService(node, topic_to_read=self.admin.topic)
        self.deletions = DeletionService(node, topic_to_read=self.admin.topic)
        self.audit_writer = AuditWriter(
            node,
            offsets=self.reads.offsets,
            fetch=self.reads.fetch,
            write=self.produce.write_own,
        )
        self.elections = ElectionService(self.metadata)
        self.reassignments = ReassignmentService(node)

    def _build_groups(self) -> None:
        config, ports = self.config, self._ports
        self.groups = Groups(
            self.context,
            topic=self.admin.topic,
            fetch=self.reads.fetch,
            new_member_id=lambda: str(ports.new_uuid()),
            expiry=ExpirySettings(
                retention_ms=config.offsets_retention_minutes * MINUTE_MS,
                check_ms=config.offsets_retention_check_ms,
            ),
            classic=ClassicSettings(
                initial_delay_ms=config.group_initial_rebalance_delay_ms,
                new_id=lambda: str(ports.new_uuid()),
            ),
        )
        self.consumers = RestConsumers(
            self.context,
            groups=self.groups,
            reads=self.reads,
            topic=self.admin.topic,
            new_name=lambda: f"rest-consumer-{ports.new_uuid()}",
            idle_ms=config.consumer_instance_timeout_ms,
        )

    def _build_health(self) -> None:
        self.metrics = NodeMetrics(
            node_id=self.config.node_id,
            clock=self.clock,
            counts=self.counts,
            image=lambda: self.metadata.image,
            quorum=self._ports.quorum.status,
            replicas=self._samples,
            # The history is made below.
            groups=lambda: self.history.groups_here(),  # noqa: PLW0108
            is_ready=lambda: self.health.readiness().is_ready,
            directory=self._ports.directory,
            certificate_expiry_s=self._ports.certificate_expiry_s,
        )
        self.health = HealthService(self.context, render_metrics=self.metrics.render)
        self.history = HistoryService(
            self.context,
            topic=self.admin.topic,
            records_end=self.reads.records_end,
            appended_ms=self.reads.appended_ms,
            free_bytes=self._ports.directory.free_bytes,
        )

    def _listen(self) -> None:
        """Register the listeners of new images, in an order that they rely on.

        Produce and reads register themselves.
        """
        for listener in (
            # If the image is another cluster's, the node must do nothing that it says.
            self._on_image,
            # Callers that are accepted from now on are judged by this image.
            self.callers.on_image,
            # Roles change before any part uses the new image to judge what this node leads.
            self.replicas.on_image,
            self.transaction_markers.on_image,
            self.membership.on_image,
            self.controller.on_image,
            # REST consumers follow their groups, and watch the replicas that exist by now.
            self.groups.on_image,
            self.consumers.on_image,
            self.audit_writer.on_image,
        ):
            self.metadata.listen(listener)

    def _peer_handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of other nodes' requests, by request type."""
        return {
            VOTERS.name: self.voter_directory.on_voters,
            HEARTBEAT.name: self.controller.on_heartbeat,
            FETCH: self.fetch_server.on_fetch,
            FETCH_WAKE: self.fetch_server.on_wake,
            messages.PRODUCE.name: self.produce.on_produce,
            messages.PRODUCE_IF.name: self.produce.on_produce_if,
            messages.SEQUENCES.name: self.producers.on_sequences,
            messages.KNOWN_IMAGE.name: self.transactional_ids.on_known_image,
            messages.OPEN_TRANSACTION.name: self.transaction_lookup.on_open_transaction,
            messages.MARKED_TRANSACTION.name: self.transaction_sight.on_marked_transaction,
            messages.KEYED_TRANSACTION.name: self.transaction_lookup.on_keyed_transaction,
            messages.OPEN_TRANSACTIONS.name: self.transaction_lookup.on_open_transactions,
            messages.READ.name: self.reads.on_read,
            messages.DELETE_RECORDS.name: self.deletions.on_delete_records,
            messages.MOVES.name: self.reassignments.on_moves,
            messages.HISTORY.name: self.history.on_history,
            messages.SIZES.name: self.history.on_sizes,
            **self.groups.calls.peer_handlers,
            **self.consumers.peer_handlers,
        }

    # -- the interfaces to clients ---------------------------------------------------------------

    def api_ports(self, limits: ApiLimits) -> Ports:
        """Return the parts that the API uses."""
        return Ports(
            produce=self.produce,
            transactions=self.transactions,
            reads=self.reads,
            deletions=self.deletions,
            metadata=self.admin,
            health=self.health,
            history=self.history,
            reassignments=self.reassignments,
            groups=self.groups.service,
            consumers=self.consumers.service,
            callers=self.callers,
            access=self.access,
            refusals=self.refusals,
            limits=limits,
        )

    def kafka_services(
        self, *, quotas: Quotas, group_shares: GroupShares, has_tls: bool
    ) -> "KafkaServices":
        """Return the parts that the Kafka interface uses. Only a node that has one loads its code."""
        from node.kafka.apis.api import KafkaServices  # noqa: PLC0415
        from node.kafka.identity import AccessServices  # noqa: PLC0415

        return KafkaServices(
            metadata=self.metadata,
            replicas=self.replicas,
            standing=self.membership,
            admin=self.admin,
            deletions=self.deletions,
            reassignments=self.reassignments,
            elections=self.elections,
            directory=self.directory,
            groups=self.groups.classic,
            members=self.groups.server_members,
            produce=self.produce,
            reads=self.reads,
            transactional_ids=self.transactional_ids,
            clock=self.clock,
            limits=self.config.limits,
            access=AccessServices(
                callers=self.callers,
                refusals=self.refusals,
                port=self.access,
                quotas=quotas,
                group_shares=group_shares,
                scram=self.scram_logins,
                has_tls=has_tls,
            ),
            pool=self._ports.pool,
        )

    # -- calls between the parts -----------------------------------------------------------------

    def _new_id(self) -> str:
        return self._ports.new_uuid().hex

    def _on_doubt(self, runner: PartitionRunner, offset: int | None) -> None:
        self.scrubber.doubt(runner, offset)

    def _on_transaction(self, runner: PartitionRunner) -> None:
        self.transaction_markers.attend(runner)

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

    def _on_image(self, image: Image) -> None:
        self.voter_directory.image = image
        directory = self._ports.directory
        if image.cluster_id and directory.cluster_id != image.cluster_id:
            try:
                directory.set_cluster_id(image.cluster_id)
            except StartupError as error:
                self._ports.on_fatal(error)
            self._ports.on_cluster_id(image.cluster_id)

    def on_role_change(self, status: QuorumStatus) -> None:
        """Take another Raft leader, or none. Call this on the data loop."""
        self.controller.on_status(status)
        self.membership.beat_soon()

    # -- running ---------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Open every log that is on the disk."""
        # Remove the mark before the first log is opened: from then on, a stop without the mark was not a clean one.
        self._was_clean = self._ports.directory.consume_clean_marker()
        await self.replicas.recover(was_clean=self._was_clean)

    def background(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """Return the loops that run while the node takes part, by name. Each runs until cancelled."""
        loops: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "isr-proposals": self.isr_proposer.run,
            "transactions": self.transaction_markers.run,
            "tick": self._tick,
            "housekeeping": self._housekeeping,
            "history": self.history.run,
            "compactor": self.compactor.run,
            "scrubber": self.scrubber.run,
            "doubts": self.scrubber.attend,
            "lease": self._watch_lease,
            "groups": self.groups.coordinator.run,
            "offset-expiry": self.groups.expiry.run,
            "consumers": self.consumers.run,
            "refusals": self._tell_refusals,
        }
        if self.first_user is not None:
            loops["first-user"] = self.first_user.run
        if self.web_tokens is not None:
            loops["issuer-keys"] = self.web_tokens.keys.run
        return {
            "join": self._join,
            # An error while replicas are created or removed leaves the directory half changed, so it ends the node.
            "replicas": self.replicas.run,
            **{name: partial(self._keep_going, name, work) for name, work in loops.items()},
        }

    async def _keep_going(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        await keep_going(name, work, clock=self.clock, contained=self.counts.contained)

    async def _join(self) -> None:
        epoch = await self.membership.register(
            self.replicas.reports(), was_clean_stop=self._was_clean
        )
        self.metadata.checks.begin()
        # Earlier images belong to a former life of this broker, and were not acted on.
        self.replicas.broker_epoch = epoch
        self.replicas.on_image(self.metadata.image)
        # Do not repeat the registration: the findings of recovery are reported once.
        await self._keep_going("heartbeats", self.membership.run)

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK_MS)
            self.replicas.tick()
            self.callers.attend()

    async def _watch_lease(self) -> None:
        """Fail waiting writers when the lease ends, not at their own timeouts."""
        while True:
            left_ms = self.membership.lease_left_ms
            if left_ms > 0:
                await self.clock.sleep(left_ms + 1)
                continue
            self.replicas.on_lease_lost()
            while not self.membership.has_lease:
                await self.clock.sleep(LEASE_POLL_MS)

    async def _tell_refusals(self) -> None:
        """Write refused callers to the audit log, at most one entry per minute."""
        while True:
            await self.clock.sleep(REFUSALS_MS)
            taken = self.refusals.take()
            if taken is not None:
                try:
                    await self.admin.note("refused", {"node_id": self.config.node_id, **taken})
                except MilenaError as error:
                    logger.warning("refusals are not in the audit log: %s", error.message)

    async def _housekeeping(self) -> None:
        """Run checkpoints, retention and checks for free space, one small step at a time."""
        retention_ms = self.clock.now_ms()
        while True:
            await self.clock.sleep(HOUSEKEEPING_MS)
            for runner in list(self.replicas):
                await runner.upkeep.maybe_checkpoint()
            if self.clock.now_ms() - retention_ms >= self.config.retention_check_ms:
                retention_ms = self.clock.now_ms()
                self.replicas.run_retention()
            await self._ports.process_upkeep()
            if self.membership.is_disk_full and self._ports.directory.has_room(ROOM_BYTES):
                self._ports.directory.maybe_restore_reserve()
                self.membership.on_disk_room()

    async def close_parts(self) -> None:
        """Stop what waits or is in flight; each part closes before the parts that it calls. Sync and close the logs."""
        self.controller.close()
        await self.audit_writer.close()
        await self.transactions.close()
        await self.transactional_ids.close()
        await self.transaction_markers.close()
        await self.transaction_ends.close()
        await self.produce.close()
        # REST consumers use groups, and both read and commit to the end.
        await self.consumers.close()
        await self.groups.close()
        # This ends the node's own fetches.
        await self.replicas.close(is_clean=True)
        # Fetches of other nodes wait here for news of logs. There is no more news.
        self.fetch_server.close()
