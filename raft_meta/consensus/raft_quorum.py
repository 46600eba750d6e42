"""The quorum of a node: a Raft core with its thread, its connections and its directory.

Implements ``quorum.Quorum``. Everything except the public methods runs on a separate thread, so that syncs of the log
never delay produce and fetch requests. The files of the quorum's directory:

    voter               its node, its voters and its state (``bootstrap``)
    wal                 the log (``wal``)
    snapshot            the state up to some index (``snapshot``)

A voter takes part only when ``bootstrap`` allows it. An observer takes part at once.
"""

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from milena.disk.files import Files
from milena.model.errors import CorruptLogError, RequestTooLargeError, StartupError
from raft_meta.consensus.bootstrap import (
    VoterRecord,
    check_directory,
    next_state,
    store_record,
)
from raft_meta.consensus.core import RaftCore
from raft_meta.consensus.driver import Driver, LoopThread
from raft_meta.consensus.frames import ID_IN_USE, BootstrapState, PeerIdentity, PeerRefusedError
from raft_meta.consensus.library import COMMAND_BYTES_MAX, check_version, library_clock
from raft_meta.consensus.messages import Message
from raft_meta.consensus.parts import CoreConfig
from raft_meta.consensus.quorum import QuorumStatus, Role, StateMachine
from raft_meta.consensus.requests import Request, Requests
from raft_meta.consensus.snapshot import SnapshotStore
from raft_meta.consensus.transport import Transport, TransportConfig
from raft_meta.consensus.wal import Wal

_log = logging.getLogger(__name__)

_TRANSFER_POLL_SECONDS: Final = 0.02
_MISSING_LOG_SECONDS: Final = 5.0
_LEADER_FALLBACK_SECONDS_MIN: Final = 1.0

_RUNNING: Final = frozenset({BootstrapState.NONE, BootstrapState.MEMBER, BootstrapState.LEARNER})
"""States of the directory in which the core runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """The settings of one node's part in the metadata quorum.

    ``voters``: id → (peer host, peer port) of the 1, 3 or 5 voters. A node whose ``node_id`` is not among them is
    an observer. ``cluster_id``: empty until it is known. ``seed``: seed of the random election timeouts and backoffs.
    ``incarnation``: larger than at any earlier start of this node.
    """

    node_id: int
    voters: dict[int, tuple[str, int]]
    directory: str
    secret: bytes
    cluster_id: str
    seed: int
    incarnation: int
    election_timeout_ms: tuple[int, int] = (500, 1000)
    heartbeat_ms: int = 100
    log_bytes_max: int = 64 << 20
    ssl_server: ssl.SSLContext | None = None
    ssl_client: ssl.SSLContext | None = None
    verifies_id: bool = False
    """Whether a peer's certificate must name the node that the peer claims to be."""

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Ids of all voters, sorted."""
        return tuple(sorted(self.voters))

    @property
    def is_voter(self) -> bool:
        """Whether this node votes."""
        return self.node_id in self.voters


class RaftQuorum:
    """See ``quorum.Quorum``.

    ``on_role_change`` is called on the quorum's thread after each change of role, leader or term. ``on_fatal`` is
    called there at most once: the disk failed or an invariant broke. It must stop the process, and the quorum must not
    be used afterwards.
    """

    def __init__(
        self,
        config: QuorumConfig,
        *,
        files: Files,
        state_machine: StateMachine,
        on_role_change: Callable[[QuorumStatus], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._files = files
        self._machine = state_machine
        self._on_role_change = on_role_change
        self._on_fatal = on_fatal
        self._rng = random.Random(config.seed)
        self._cluster_id = config.cluster_id
        self._bootstrap = BootstrapState.NONE
        self._peer_states: dict[int, BootstrapState | None] = {}
        self._status = QuorumStatus(
            role=Role.FOLLOWER if config.is_voter else Role.OBSERVER,
            leader_id=None,
            term=0,
            commit_index=0,
            applied_index=0,
        )
        self._obstacle = ""
        self._thread = LoopThread(f"quorum-{config.node_id}")
        self._driver = Driver(
            self._thread.loop, on_tick=self._after_tick, on_fatal=self._after_fatal
        )
        self._requests = Requests(self._thread, self._driver)
        self._transport = Transport(
            TransportConfig(
                voters=config.voters,
                secret=config.secret,
                identity=self._identity,
                ssl_server=config.ssl_server,
                ssl_client=config.ssl_client,
                verifies_id=config.verifies_id,
            ),
            self,
            self._rng,
        )
        self._is_started = False
        self._was_connected = False
        self._strangers: set[int] = set()
        self._arriving: set[socket.socket] = set()

    # -- life

    async def start(self) -> None:
        """Recover the directory, start the thread, and connect to the peers. This binds no socket.

        Raises:
            StartupError: the directory belongs to another node or other voters.
            CorruptLogError: the log or the snapshot is damaged.
        """
        check_version()
        self._thread.start()
        self._is_started = True
        try:
            await self._thread.run(self._recover())
        except BaseException:
            self._is_started = False
            await self._thread.stop()
            self._close_arriving()
            raise

    async def _recover(self) -> None:
        config = self._config
        self._files.make_directory(config.directory)
        self._bootstrap = check_directory(
            self._files, config.directory, node_id=config.node_id, voters=config.voter_ids
        )
        if not config.is_voter:
            self._store(BootstrapState.NONE)
        self._peer_states = {voter: None for voter in config.voter_ids if voter != config.node_id}
        if self._bootstrap in _RUNNING:
            self._start_core()
        else:
            self._advance()
            self._log_missing(logging.INFO)
        self._transport.start()

    async def stop(self) -> None:
        """Sync and close the log, and end the thread."""
        if not self._is_started:
            return
        self._is_started = False
        await self._thread.run(self._close())
        await self._thread.stop()
        self._close_arriving()

    async def _close(self) -> None:
        core = self._driver.stop()
        self._requests.close()
        await self._transport.close()
        self._driver.close()
        if core is not None:
            core.close()

    def _start_core(self) -> None:
        config = self._config
        least, most = config.election_timeout_ms
        wal = Wal(self._files, f"{config.directory}/wal")
        if wal.is_new and self._bootstrap is BootstrapState.MEMBER:
            raise CorruptLogError(
                f"{config.directory}/wal is missing or empty, but this voter has taken part: remove "
                "the folder, and this node rejoins with the others' copy"
            )
        core = RaftCore(
            CoreConfig(
                node_id=config.node_id,
                voters=config.voter_ids,
                incarnation=config.incarnation,
                election_timeout_s=(least / 1000, most / 1000),
                heartbeat_s=config.heartbeat_ms / 1000,
                leader_fallback_s=max(_LEADER_FALLBACK_SECONDS_MIN, most / 1000),
                log_bytes_max=config.log_bytes_max,
            ),
            wal=wal,
            snapshots=SnapshotStore(self._files, config.directory),
            machine=self._machine,
            sender=self._transport,
            background=self._driver.in_background,
            clock=library_clock,
            rng=self._rng,
            is_learner=self._bootstrap is BootstrapState.LEARNER,
            on_member=lambda: self._enter(BootstrapState.MEMBER),
        )
        if core.wal.cut_bytes:
            _log.warning("torn tail cut from the raft log bytes=%d", core.wal.cut_bytes)
        for node_id in self._transport.connected_ids():
            core.connected(node_id)
        self._driver.start(core)

    # -- the quorum's interface

    def status(self) -> QuorumStatus:
        """Return the last known state; any thread."""
        return self._status

    def set_cluster_id(self, cluster_id: str) -> None:
        """From now on, refuse peers that belong to another cluster. Any thread."""
        self._cluster_id = cluster_id

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """See ``quorum.Quorum``."""
        if len(command) > COMMAND_BYTES_MAX:
            raise RequestTooLargeError(
                f"a metadata command of {len(command)} bytes; at most {COMMAND_BYTES_MAX} are allowed"
            )
        response = await self._requests.ask(Request(command, timeout_ms))
        assert isinstance(response, bytes), "a proposal is answered by bytes"
        return response

    async def barrier(self, *, timeout_ms: int) -> int:
        """See ``quorum.Quorum``."""
        index = await self._requests.ask(Request(None, timeout_ms))
        assert isinstance(index, int), "a barrier is answered by an index"
        return index

    async def transfer_leadership(self, *, timeout_ms: int) -> bool:
        """Transfer Raft leadership to another voter; return whether this node has stopped leading in time."""
        return await self._thread.run(self._transfer(timeout_ms))

    async def _transfer(self, timeout_ms: int) -> bool:
        loop = self._thread.loop
        deadline = loop.time() + timeout_ms / 1000
        while (core := self._driver.core) is not None and core.role is Role.LEADER:
            if loop.time() >= deadline or len(self._config.voters) == 1:
                return False
            self._driver.guarded(_ask_to_take_over)
            pause = loop.create_future()
            loop.call_later(_TRANSFER_POLL_SECONDS, pause.set_result, None)
            await pause
        return True

    def accept(self, connection: socket.socket) -> None:
        """Take an accepted socket whose preface has been read: it announced a Raft connection. Any thread."""
        self._arriving.add(connection)
        if not self._thread.call(lambda: self._take_over(connection)):
            self._close_arriving()

    def _take_over(self, connection: socket.socket) -> None:
        self._arriving.discard(connection)
        self._transport.accept(connection)

    def _close_arriving(self) -> None:
        """Close connections that ``accept`` passed to the thread, if the thread ended before it took them."""
        while self._arriving:
            self._arriving.pop().close()

    def start_obstacle(self) -> str:
        """See ``quorum.Quorum``."""
        return self._obstacle

    def last_contact_ms(self, node_id: int) -> int | None:
        """See ``quorum.Quorum``."""
        return self._transport.last_contact_ms(node_id)

    # -- events of the transport

    def _identity(self) -> PeerIdentity:
        return PeerIdentity(
            node_id=self._config.node_id,
            cluster_id=self._cluster_id,
            is_voter=self._config.is_voter,
            bootstrap=self._bootstrap,
            incarnation=self._config.incarnation,
            voters=self._config.voter_ids,
        )

    def on_connected(self, peer: PeerIdentity) -> None:
        """See ``transport.Events``."""
        self._was_connected = True
        self._driver.guarded(lambda core: core.connected(peer.node_id))
        # The handshake announced this node's state. The state may have changed since.
        self._transport.send(peer.node_id, {"type": "bootstrap", "state": int(self._bootstrap)})
        self._on_peer_state(peer.node_id, peer.bootstrap)

    def on_disconnected(self, node_id: int) -> None:
        """See ``transport.Events``."""
        if node_id in self._peer_states:
            self._peer_states[node_id] = None
        self._driver.guarded(lambda core: core.disconnected(node_id))

    def on_message(self, node_id: int, message: Message) -> None:
        """See ``transport.Events``."""
        if message["type"] == "bootstrap":
            state = message["state"]
            if state == ID_IN_USE:
                self._on_id_in_use()
            elif isinstance(state, int) and state in set(BootstrapState):
                self._on_peer_state(node_id, BootstrapState(state))
            return
        self._driver.do(lambda core: core.receive(node_id, message))

    def _on_id_in_use(self) -> None:
        """Note why peers end each session: they have a connection to another process with this node's id."""
        obstacle = (
            f"another live node has node_id {self._config.node_id}: give this node another id, or stop that one "
            "(a process of this node that died is forgotten within seconds)"
        )
        if self._obstacle != obstacle:
            _log.error("%s", obstacle)
        self._obstacle = obstacle

    def on_read(self) -> None:
        """See ``transport.Events``."""
        self._driver.tick()

    def on_refused(self, error: PeerRefusedError) -> None:
        """See ``transport.Events``."""
        _log.error("peer refused peer_id=%d reason=%r", error.peer.node_id, str(error))
        if self._is_stranger(error.peer):
            self._strangers.add(error.peer.node_id)
        # If one voter is refused, its configuration may be wrong. If a majority is refused, and no peer was ever
        # connected, this node's configuration is wrong.
        if not self._was_connected and len(self._strangers) > len(self._config.voters) // 2:
            self._after_fatal(StartupError(f"most voters are not this node's: {error}"))

    def _is_stranger(self, peer: PeerIdentity) -> bool:
        """Return whether a peer with a voter's id has another cluster id or other voters; a retry cannot help."""
        if peer.node_id not in self._config.voters:
            return False
        is_foreign = bool(self._cluster_id) and peer.cluster_id not in {"", self._cluster_id}
        return is_foreign or peer.voters not in {(), self._config.voter_ids}

    # -- first boot

    def _on_peer_state(self, node_id: int, state: BootstrapState) -> None:
        if node_id in self._peer_states:
            self._peer_states[node_id] = state
            try:
                self._advance()
            except BaseException as error:  # noqa: BLE001  # whatever it is, this node must not go on
                _log.critical("first start failed reason=%r", str(error), exc_info=error)
                self._after_fatal(error)

    def _advance(self) -> None:
        """Enter one state after the other, as far as the other voters' states allow."""
        if self._driver.core is not None or self._bootstrap in _RUNNING:
            return
        while (state := next_state(self._bootstrap, self._peer_states)) is not self._bootstrap:
            self._enter(state)
        if self._bootstrap in _RUNNING:
            self._start_core()

    def _enter(self, state: BootstrapState) -> None:
        if self._bootstrap is BootstrapState.FOUNDING:
            # A MEMBER without a log counts as one that lost its log, and is refused at the start. So the log must exist
            # before the state MEMBER is written.
            Wal(self._files, f"{self._config.directory}/wal").close()
        self._store(state)
        self._bootstrap = state
        _log.info("voter state node_id=%d state=%s", self._config.node_id, state.name.lower())
        for voter in self._peer_states:
            self._transport.send(voter, {"type": "bootstrap", "state": int(state)})

    def _store(self, state: BootstrapState) -> None:
        config = self._config
        record = VoterRecord(node_id=config.node_id, voters=config.voter_ids, state=state)
        store_record(self._files, config.directory, record)

    def _log_missing(self, level: int = logging.WARNING) -> None:
        """While the first start waits, log the missing voters every ``_MISSING_LOG_SECONDS``.

        The first message is no warning: nodes that start together miss each other for a moment.
        """
        if self._driver.core is not None or not self._is_started:
            return
        missing = tuple(
            f"{voter}={host}:{port}"
            for voter, (host, port) in self._config.voters.items()
            if voter in self._peer_states and self._peer_states[voter] is None
        )
        self._obstacle = (
            f"the first start of a cluster needs all voters; missing: {', '.join(missing)}"
        )
        if missing:
            _log.log(level, "first start waits for all voters missing=%s", ",".join(missing))
        self._thread.loop.call_later(_MISSING_LOG_SECONDS, self._log_missing)

    # -- events of the driver

    def _after_tick(self) -> None:
        core = self._driver.core
        if core is None:
            return
        before, self._status = self._status, core.status()
        if self._status.leader_id is not None:
            self._obstacle = ""
        if _is_news(before, self._status):
            _log.info(
                "quorum role node_id=%d role=%s leader_id=%s term=%d",
                self._config.node_id,
                self._status.role,
                self._status.leader_id,
                self._status.term,
            )
            self._on_role_change(self._status)
        # Deliver before publish: then the caller's loop resumes the callers before it handles the new image.
        self._requests.deliver()
        self._machine.publish()

    def _after_fatal(self, error: BaseException) -> None:
        self._status = replace(self._status, role=Role.FOLLOWER, leader_id=None)
        self._requests.close()
        asyncio.ensure_future(self._transport.close())  # noqa: RUF006  # the process is stopping
        self._on_fatal(error)


def _ask_to_take_over(core: RaftCore) -> None:
    core.transfer_leadership()


def _is_news(before: QuorumStatus, after: QuorumStatus) -> bool:
    return (before.role, before.leader_id, before.term) != (
        after.role,
        after.leader_id,
        after.term,
    )
