"""The live connections of the Raft channel: which node dials, what a session may carry, when a session ends.

A session is a connection after its handshake. This module runs on the quorum's loop.

Of two voters, the one with the higher id dials the other. Observers dial every voter. So each pair of nodes has one
dialer, which keeps one connection. When it dials again, the acceptor closes the older connection at once and ignores
data that still arrives on it. With two live connections, messages could be reordered.

Names are resolved at every dial, because addresses change. A session ends if the peer closes it or breaks the protocol.
It also ends if sent bytes stay unacknowledged for ``TCP_USER_TIMEOUT``. So after a network failure the node dials
again. Otherwise it would wait for TCP's next retransmission, which may be minutes away.
"""

import asyncio
import logging
import random
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from raft_meta.consensus.frames import (
    ID_IN_USE,
    Channel,
    Handshake,
    HandshakeRole,
    PeerIdentity,
    PeerProtocolError,
    PeerRefusedError,
    Session,
    encode_preface,
)
from raft_meta.consensus.messages import Message, decode_message, encode_message
from raft_meta.consensus.peer_certificates import certified_ids

_log = logging.getLogger(__name__)

CONNECT_SECONDS_MAX: Final = 2.0
HANDSHAKE_SECONDS_MAX: Final = 2.0
CONGESTED_BYTES: Final = 8 << 20
"""If more bytes than this wait to be sent to a peer, the peer gets heartbeats only."""

OPENING_MAX: Final = 64
"""Most connections that are in their handshake at the same time; further ones are closed."""

_FRAME_BYTES_MAX: Final = 16 << 20
FRAME_SECONDS_MAX: Final = 20.0
"""Longest time from the first byte of a frame to its last: 16 MiB at 7 Mbit/s. If the length in a frame is damaged, the
decoder takes all later bytes, heartbeats included, as part of the frame. The session then seems alive, but delivers no
message. This timeout ends it."""

SILENCE_SECONDS: Final = 3.0
"""A peer that has not responded for this long may be replaced by another process with the same node id."""
_LAST_WORD_SECONDS: Final = 1.0
"""Time in which a refused peer can receive the reason before the connection is aborted."""

_COMPLAINT_SECONDS: Final = 10.0
_COMPLAINTS_MAX: Final = 100
_UNANSWERED_MS_MAX: Final = 3000
_BACKOFF_SECONDS: Final = (0.05, 1.0)
_TCP_THIN_LINEAR_TIMEOUTS: Final = 16
"""The number of the socket option on Linux. Python has no name for it. Source: linux/tcp.h."""

_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


class Events(Protocol):
    """The transport's listener. Called on the quorum's loop."""

    def on_connected(self, peer: PeerIdentity) -> None:
        """Called when a session with this peer is live. An older session with the peer is closed."""

    def on_disconnected(self, node_id: int) -> None:
        """Called when the session with this peer has ended."""

    def on_message(self, node_id: int, message: Message) -> None:
        """Called with each message of the live session."""

    def on_read(self) -> None:
        """Called after ``on_message`` was called for all messages that arrived together."""

    def on_refused(self, error: PeerRefusedError) -> None:
        """Called when a peer proved its identity and was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """The settings of a transport.

    ``voters``: id → (host, port). ``identity``: called for each connection; returns this node's identity.
    """

    voters: dict[int, tuple[str, int]]
    secret: bytes
    identity: Callable[[], PeerIdentity]
    ssl_server: ssl.SSLContext | None
    ssl_client: ssl.SSLContext | None
    verifies_id: bool = False
    """Whether a peer's certificate must name the node id that the peer claims."""


class Transport:
    """All sessions of one node. Owned by the quorum's loop."""

    def __init__(self, config: TransportConfig, events: Events, rng: random.Random) -> None:
        self._config = config
        self._events = events
        self._rng = rng
        self._node_id = config.identity().node_id
        self._live: dict[int, _PeerConnection] = {}
        self._opening: dict[_PeerConnection, None] = {}
        """Connections in their handshake, in order of arrival, so that a simulated run repeats."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._contact_ms: dict[int, int] = {}
        self._unanswered: dict[int, float] = {}
        """Peer id → when the oldest message was sent to which the peer has not responded, in the loop's seconds."""
        self._complaints: dict[str, float] = {}
        self._is_closed = False

    # -- life

    def start(self) -> None:
        """Start to dial."""
        is_voter = self._node_id in self._config.voters
        for node_id in self._config.voters:
            if node_id != self._node_id and (not is_voter or self._node_id > node_id):
                self._spawn(self._keep_dialling(node_id))

    async def close(self) -> None:
        """Close all sessions and stop dialling."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in [*self._live.values(), *self._opening]:
            connection.abort()
        self._live.clear()

    def accept(self, connection: socket.socket) -> None:
        """Take an accepted socket whose preface has been read. Close it if too many handshakes are in progress."""
        if self._is_closed or len(self._opening) >= OPENING_MAX:
            connection.close()
            return
        task = self._spawn(self._open(connection, None))
        # If the task is cancelled before its first step, it never closes its socket.
        task.add_done_callback(lambda _: connection.close())

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- sessions

    def send(self, node_id: int, message: Message) -> None:
        """Send on the live session. If there is none, drop the message."""
        connection = self._live.get(node_id)
        if connection is not None:
            connection.send(encode_message(message))
            if message["type"] != "bootstrap":
                self._unanswered.setdefault(node_id, asyncio.get_running_loop().time())

    def is_congested(self, node_id: int) -> bool:
        """Whether more than ``CONGESTED_BYTES`` wait to be sent to this node."""
        connection = self._live.get(node_id)
        return connection is not None and connection.waiting_bytes > CONGESTED_BYTES

    def connected_ids(self) -> list[int]:
        """Return the ids of peers with a live session, sorted."""
        return sorted(self._live)

    def last_contact_ms(self, node_id: int) -> int | None:
        """Return when a message of the peer last arrived, in monotonic ms; None for never. Safe from any thread."""
        return self._contact_ms.get(node_id)

    # -- called by connections

    def on_session(self, connection: "_PeerConnection", session: Session) -> None:
        """Make a connection whose handshake finished the live session of its pair of nodes.

        Raises:
            PeerRefusedError: the peer was started with other voters, or another live process has its node id.
        """
        peer = session.peer
        self._check(peer)
        self._check_twin(connection, peer)
        older = self._live.pop(peer.node_id, None)
        self._unanswered.pop(peer.node_id, None)
        if older is not None:
            older.abort()
            self._events.on_disconnected(peer.node_id)
        self._opening.pop(connection, None)
        self._live[peer.node_id] = connection
        _log.info("raft session up node_id=%d peer_id=%d", self._node_id, peer.node_id)
        self._events.on_connected(peer)

    def _check(self, peer: PeerIdentity) -> None:
        voters = self._config.voters
        if peer.is_voter != (peer.node_id in voters) or (
            peer.voters and peer.voters != tuple(sorted(voters))
        ):
            raise PeerRefusedError(
                f"node {peer.node_id} was started with voters {list(peer.voters)}, "
                f"this node {self._node_id} with {sorted(voters)}",
                peer,
            )

    def _check_twin(self, connection: "_PeerConnection", peer: PeerIdentity) -> None:
        """Refuse a second process with the node id of a connected peer.

        If a node's configuration was copied, two live processes have the same node id. Each dials when its session
        ends, so without this check they would replace each other's session again and again.

        The live session stays unless the peer has been silent for ``SILENCE_SECONDS``. This covers a process that
        hangs. A process that ended has closed its session. If its machine vanished, the kernel ends the session after
        ``_UNANSWERED_MS_MAX``.
        """
        older = self._live.get(peer.node_id)
        if older is None or not peer.incarnation or older.incarnation in {0, peer.incarnation}:
            return
        now = asyncio.get_running_loop().time()
        if now - self._unanswered.get(peer.node_id, now) > SILENCE_SECONDS:
            return
        connection.send(encode_message({"type": "bootstrap", "state": ID_IN_USE}))
        raise PeerRefusedError(
            f"two live processes have node_id {peer.node_id}: the one that is connected stays; "
            "give the other one another id, or stop it",
            peer,
        )

    def on_frames(
        self, connection: "_PeerConnection", node_id: int, headers: Sequence[bytes]
    ) -> None:
        """Handle frames that arrived together. Their check has succeeded."""
        if self._live.get(node_id) is not connection:
            return
        self._unanswered.pop(node_id, None)
        self._contact_ms[node_id] = int(asyncio.get_running_loop().time() * 1000)
        try:
            for header in headers:
                # Handling an earlier message may have ended the session.
                if self._live.get(node_id) is connection:
                    self._events.on_message(node_id, decode_message(header))
        finally:
            self._events.on_read()

    def on_refused(self, error: PeerRefusedError) -> None:
        """Report a peer that proved its identity and is refused, to ``Events``."""
        if self._is_news(str(error)):
            self._events.on_refused(error)

    def on_broken(self, error: PeerProtocolError) -> None:
        """Log a peer that broke the protocol or does not know the secret."""
        if self._is_news(str(error)):
            _log.warning("raft connection refused reason=%r", str(error))

    def _is_news(self, reason: str) -> bool:
        """Return whether to report this reason now: peers dial every second, but a reason is reported every 10 s."""
        now = asyncio.get_running_loop().time()
        if now - self._complaints.get(reason, -_COMPLAINT_SECONDS) < _COMPLAINT_SECONDS:
            return False
        if len(self._complaints) >= _COMPLAINTS_MAX:
            self._complaints.clear()
        self._complaints[reason] = now
        return True

    def on_closed(self, connection: "_PeerConnection", node_id: int | None) -> None:
        """Remove a connection that is closed."""
        self._opening.pop(connection, None)
        if node_id is not None and self._live.get(node_id) is connection:
            del self._live[node_id]
            _log.info("raft session down node_id=%d peer_id=%d", self._node_id, node_id)
            if not self._is_closed:
                self._events.on_disconnected(node_id)

    # -- dialling

    async def _keep_dialling(self, node_id: int) -> None:
        loop = asyncio.get_running_loop()
        least, most = _BACKOFF_SECONDS
        backoff = least
        while not self._is_closed:
            try:
                # Not wait_for: in Python 3.11 it ignores a cancellation that arrives together with the result.
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    dialled = await self._dial(node_id)
                opened_at = loop.time()
                await self._open(dialled, node_id)
                # A peer that refuses this node ends each session at once. The backoff must keep growing then.
                if loop.time() - opened_at > most:
                    backoff = least
            except (OSError, TimeoutError) as error:
                _log.debug("dial failed peer_id=%d reason=%r", node_id, str(error))
            await _pause(backoff * (0.75 + 0.5 * self._rng.random()))
            backoff = min(most, backoff * 2)

    async def _dial(self, node_id: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self._config.voters[node_id]
        failure: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            dialled = socket.socket(family, kind, protocol)
            try:
                dialled.setblocking(False)
                await loop.sock_connect(dialled, address)
                await loop.sock_sendall(dialled, encode_preface(Channel.RAFT))
            except OSError as error:
                dialled.close()
                failure = error
            except BaseException:
                dialled.close()
                raise
            else:
                return dialled
        raise failure or OSError(f"{host} has no address")

    async def _open(self, opened: socket.socket, dialled_id: int | None) -> None:
        """Run a connection until it ends."""
        config, loop = self._config, asyncio.get_running_loop()
        handshake = Handshake(
            HandshakeRole.ACCEPTOR if dialled_id is None else HandshakeRole.DIALER,
            config.identity(),
            config.secret,
            channel=Channel.RAFT,
            expected_node_id=dialled_id,
            verifies_id=config.verifies_id,
        )
        connection = _PeerConnection(self, handshake, loop)
        self._opening[connection] = None
        try:
            opened.setblocking(False)
            _tune(opened)
            await self._connect(loop, connection, opened, dialled_id)
            await connection.closed
        except (OSError, TimeoutError) as error:
            _log.debug("raft connection failed peer_id=%s reason=%r", dialled_id, str(error))
        finally:
            self._opening.pop(connection, None)
            connection.abort()
            opened.close()

    async def _connect(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: "_PeerConnection",
        opened: socket.socket,
        dialled_id: int | None,
    ) -> None:
        config = self._config
        if dialled_id is None:
            tls = config.ssl_server
            await loop.connect_accepted_socket(
                lambda: connection,
                opened,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if tls else None,
            )
            return
        tls = config.ssl_client
        await loop.create_connection(
            lambda: connection,
            sock=opened,
            ssl=tls,
            server_hostname=config.voters[dialled_id][0] if tls else None,
            ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if tls else None,
        )


class _PeerConnection(asyncio.Protocol):
    """One socket: it does the handshake, then carries frames."""

    def __init__(
        self, owner: Transport, handshake: Handshake, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._owner = owner
        self._handshake = handshake
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False
        self._loop = loop
        self._deadline = loop.call_later(HANDSHAKE_SECONDS_MAX * 2, self.abort)
        self._unfinished: asyncio.TimerHandle | None = None
        """Set while a part of a frame has arrived, but not the whole frame."""
        self.closed: asyncio.Future[None] = loop.create_future()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent, because the kernel has not taken them yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def incarnation(self) -> int:
        """The peer's incarnation; 0 if unknown."""
        return 0 if self._session is None else self._session.peer.incarnation

    def send(self, header: bytes) -> None:
        """Send one frame. The whole message is in the frame's header, because the HMAC covers only the header."""
        if self._session is not None and self._transport is not None:
            self._transport.writelines(self._session.encoder.encode(header))

    def abort(self) -> None:
        """Close at once. Bytes that are not sent yet are lost."""
        self._is_aborted = True
        self._deadline.cancel()
        self._stop_watching()
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    def _close_gently(self) -> None:
        """Close after the waiting bytes are sent, or after ``_LAST_WORD_SECONDS``."""
        self._is_aborted = True
        if self._transport is not None:
            self._deadline = self._loop.call_later(_LAST_WORD_SECONDS, self.abort)
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of uvloop have asyncio's interface, but are no subclasses of its classes.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CONGESTED_BYTES)
        if self._handshake.verifies_id:
            self._handshake.certified_ids = certified_ids(transport.get_extra_info("peercert"))
        self._write_handshake()

    def data_received(self, data: bytes) -> None:
        try:
            if self._session is None:
                data = self._shake(data)
            if self._session is not None and data:
                self._take(self._session, data)
        except PeerRefusedError as error:
            self._owner.on_refused(error)
            self._close_gently()
        except PeerProtocolError as error:
            self._owner.on_broken(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._stop_watching()
        self._maybe_complain()
        node_id = None if self._session is None else self._session.peer.node_id
        self._owner.on_closed(self, node_id)
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def _maybe_complain(self) -> None:
        """Log a peer that closed the connection after this node's proof. The protocol lets it give no reason."""
        peer = self._handshake.peer
        if peer is not None and not self._handshake.is_complete and not self._is_aborted:
            self._owner.on_broken(
                PeerProtocolError(
                    f"node {peer.node_id} hung up on the proof of the cluster secret: it has another one, or stopped"
                )
            )

    def _shake(self, data: bytes) -> bytes:
        """Pass bytes to the handshake; return the bytes that arrived after it."""
        self._handshake.receive(data)
        self._write_handshake()
        if not self._handshake.is_complete:
            return b""
        session = self._handshake.finish(header_bytes_max=_FRAME_BYTES_MAX, body_bytes_max=0)
        self._deadline.cancel()
        self._session = session
        try:
            self._owner.on_session(self, session)
        except PeerRefusedError:
            self._session = None
            raise
        return session.leftover

    def _write_handshake(self) -> None:
        outgoing = self._handshake.outgoing()
        if outgoing and self._transport is not None:
            self._transport.write(outgoing)

    def _take(self, session: Session, data: bytes) -> None:
        frames = session.decoder.feed(data)
        is_whole = session.decoder.is_between_frames
        if is_whole or frames:
            self._stop_watching()
        if not is_whole and self._unfinished is None:
            self._unfinished = self._loop.call_later(FRAME_SECONDS_MAX, self._give_up)
        if frames:
            self._owner.on_frames(self, session.peer.node_id, [header for header, _ in frames])

    def _stop_watching(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def _give_up(self) -> None:
        self._owner.on_broken(
            PeerProtocolError(f"a frame did not end within {FRAME_SECONDS_MAX:g} s")
        )
        self.abort()


def _tune(connection: socket.socket) -> None:
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        # On a lossy network the kernel doubles the wait after each retry. Heartbeats that wait so long cause elections.
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS_MAX)


async def _pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()
