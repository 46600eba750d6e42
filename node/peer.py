"""Calls between nodes over the peer port: the listener, the dialer, and the question whether a process still runs.

One port serves Raft and data. The listener reads the preface of each connection with a deadline and hands Raft sockets
over untouched, to be wrapped on the quorum's own loop; data connections become ``node.peer_link`` links.

What a caller may conclude from an error of ``PeerClient.call``:

- ``PeerUnreachableError``: nothing was sent; the peer has done nothing.
- ``PeerLostError``: sent, and then the link broke or the time was up; the peer may have done it, or may yet.
- any other ``MilenaError``: raised by the peer's handler, and of the same class here.

Everything in this module runs on one loop, the data loop.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum, unique

from node.peer_codec import Buffer, Channel, Fields
from node.peer_link import (
    HANDSHAKE_MS_MAX,
    CallerLink,
    Handler,
    PeerLostError,
    PeerUnreachableError,
    Reply,
    ServerLink,
    ServerLinkOwner,
)
from raft_meta.consensus import frames
from raft_meta.consensus.frames import Handshake, HandshakeRole, PeerIdentity, PeerProtocolError
from storage.errors import StartupError

__all__ = [
    "Channel",
    "Fields",
    "Handler",
    "PeerClient",
    "PeerListener",
    "PeerLostError",
    "PeerServer",
    "PeerUnreachableError",
    "ProbeResult",
    "Reply",
    "probe",
]

log = logging.getLogger("milena.peer")

DIAL_MS_MAX = 2_000
"""From the look-up of the name to the end of the TCP handshake."""
PREFACE_MS_MAX = 3_000
STRANGERS_MAX = 256
"""Connections that have not yet proved who they are; more are closed at once."""
ACCEPT_RETRY_MS = 100
"""Wait after a failed accept (no descriptor left), so that the loop does not spin."""
BACKLOG = 128
HANG_UP_MS_MAX = 1_000
"""How long queued answers may take to leave when the node stops."""
REASONS_KEPT_MAX = 64
TCP_THIN_LINEAR_TIMEOUTS = 16
"""Linux's number of the option, which Python has no name for. Source: linux/tcp.h."""

UNACKNOWLEDGED_MS_MAX = 5_000
"""TCP_USER_TIMEOUT: a peer whose machine is gone does not acknowledge; the kernel gives up after this."""
KEEPALIVE_IDLE_S = 5
KEEPALIVE_PROBES = 3

IdentitySource = Callable[[], PeerIdentity]
"""Who this node is now; asked at every handshake, since the cluster id is learnt at the first boot."""


@unique
class ProbeResult(StrEnum):
    """What a bare connect says about a peer's process."""

    CONNECTED = "connected"
    """Something listens there; it may be stalled."""
    REFUSED = "refused"
    """The machine answers and nothing listens: the process is gone."""
    UNREACHABLE = "unreachable"
    """No answer, no route or no such name: nothing is known."""


class PeerServer(ServerLinkOwner):
    """The handlers of this node, and the links on which peers call them.

    ``on_disconnected(node_id, channel)``: a peer's last link of this channel is gone.
    ``on_failure(error)``: a handler raised something else than a ``MilenaError``: a broken invariant.
    """

    def __init__(
        self,
        *,
        on_disconnected: Callable[[int, Channel], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self._on_disconnected = on_disconnected
        self._on_failure = on_failure
        self._links: set[ServerLink] = set()
        self._current: dict[tuple[int, Channel], ServerLink] = {}
        self._idle: asyncio.Future[None] | None = None
        self._refusals: set[str] = set()

    def register(self, request_type: str, handler: Handler) -> None:
        """Serve a type of request; each has one handler."""
        assert request_type not in self.handlers, f"two handlers for {request_type}"
        self.handlers[request_type] = handler

    def connected(self, channel: Channel) -> frozenset[int]:
        """The peers that have a link of this channel to this node."""
        return frozenset(node_id for node_id, name in self._current if name is channel)

    def strangers(self) -> int:
        """Links whose peer has not proved who it is."""
        return sum(link.channel is None for link in self._links)

    def add(self, link: ServerLink) -> None:
        """A link that is about to shake hands."""
        self._links.add(link)

    def discard(self, link: ServerLink) -> None:
        """A link that is gone, or never came up."""
        self._links.discard(link)
        if not self._links and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def link_opened(self, link: ServerLink) -> None:
        """The newest link of a peer and channel replaces the one before: the peer has given that up."""
        assert link.channel is not None, "opened without a channel"
        key = (link.peer_id, link.channel)
        before = self._current.get(key)
        self._current[key] = link
        if before is not None:
            before.abort("the peer opened another connection")
        log.info("peer connected node_id=%d channel=%s", link.peer_id, link.channel)

    def link_lost(self, link: ServerLink) -> None:
        """Tell only about the last link of a peer and channel."""
        self.discard(link)
        if link.channel is None:
            self.refused(link.failure)
            return
        key = (link.peer_id, link.channel)
        if self._current.get(key) is link:
            del self._current[key]
            log.info("peer disconnected node_id=%d channel=%s reason=%s", *key, link.failure)
            if self._on_disconnected is not None:
                self._on_disconnected(*key)

    def refused(self, reason: str) -> None:
        """Name a connection that was turned away; the same reason once, for its peer will try again and again."""
        is_known = reason in self._refusals
        if len(self._refusals) < REASONS_KEPT_MAX:
            self._refusals.add(reason)
        log.log(logging.DEBUG if is_known else logging.WARNING, "peer refused reason=%s", reason)

    def handler_failed(self, error: BaseException) -> None:
        """Log what a handler must not raise, and tell the node."""
        log.error("a peer's request failed inside", exc_info=error)
        if self._on_failure is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Send the answers that are queued, then drop every link; handlers that still run are cancelled."""
        self._on_disconnected = None
        if not self._links:
            return
        loop = asyncio.get_running_loop()
        self._idle = loop.create_future()
        for link in list(self._links):
            link.hang_up("this node is stopping")
        deadline = loop.call_later(HANG_UP_MS_MAX / 1000, self._abort)
        await self._idle
        deadline.cancel()

    def _abort(self) -> None:
        for link in list(self._links):
            link.abort("this node is stopping")


class PeerListener:
    """The peer port. ``on_raft_socket`` takes accepted sockets of which only the preface has been read."""

    def __init__(
        self,
        *,
        server: PeerServer,
        identity: IdentitySource,
        secret: bytes,
        on_raft_socket: Callable[[socket.socket], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = server
        self._identity = identity
        self._secret = secret
        self._on_raft_socket = on_raft_socket
        self._tls = tls
        self._socket: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._strangers: set[asyncio.Task[bool]] = set()

    @property
    def port(self) -> int:
        """The port that is bound, also when any was asked for."""
        assert self._socket is not None, "the port of a listener that is not started"
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Bind and accept.

        Raises:
            StartupError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._socket = _bind(*found[0])
        except OSError as error:
            raise StartupError(f"cannot listen on peer address {host}:{port}: {error}") from error
        loop.add_reader(self._socket, self._on_readable)

    async def stop(self) -> None:
        """Close the port and every data link."""
        if self._retry is not None:
            self._retry.cancel()
        listening, self._socket = self._socket, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        strangers = list(self._strangers)
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        await self._server.close()

    def _on_readable(self) -> None:
        """Accept what waits. Done here rather than in a task, which might be cancelled with a socket in its hands."""
        assert self._socket is not None, "a listener that is not started"
        for _ in range(BACKLOG):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept a peer reason=%s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(
                    ACCEPT_RETRY_MS / 1000, loop.add_reader, self._socket, self._on_readable
                )
                return
            self._on_accepted(connection)

    def _on_accepted(self, connection: socket.socket) -> None:
        if len(self._strangers) + self._server.strangers() >= STRANGERS_MAX:
            self._server.refused("too many connections that prove nothing")
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._admit(connection), name="peer-admit")
        self._strangers.add(task)

        def on_done(done: "asyncio.Task[bool]") -> None:
            self._strangers.discard(done)
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error("a peer could not be passed on", exc_info=error)
            if done.cancelled() or error is not None or not done.result():
                connection.close()

        task.add_done_callback(on_done)

    async def _admit(self, connection: socket.socket) -> bool:
        """Read the preface and pass the connection on; False: it is to be closed."""
        try:
            connection.setblocking(False)
            _tune(connection)
            async with asyncio.timeout(PREFACE_MS_MAX / 1000):
                preface = await _read_preface(connection)
            if preface is None:
                return False
            if frames.decode_preface(preface) is frames.Channel.RAFT:
                self._on_raft_socket(connection)
            else:
                await self._serve(connection)
        except TimeoutError:
            self._server.refused("nothing was sent")
        except (PeerProtocolError, OSError) as error:
            self._server.refused(str(error))
        else:
            return True
        return False

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshake = Handshake(
            HandshakeRole.ACCEPTOR,
            self._identity(),
            self._secret,
            channel=frames.Channel.DATA,
        )
        link = ServerLink(loop, handshake, self._server.handlers, self._server)
        self._server.add(link)
        try:
            await loop.connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=_tls_seconds(self._tls),
            )
        except BaseException:
            self._server.discard(link)
            raise


class PeerClient:
    """Calls to other nodes, over one link for each node and channel, dialled when it is first needed.

    ``resolve(node_id)``: host and port, asked at every dial since addresses change; None: not known.
    ``on_disconnected(node_id, channel)``: a link that was up is gone, though this node did not close it.
    ``is_anyone``: whoever listens at the address will do, its node id is not known yet.
    """

    def __init__(
        self,
        *,
        identity: IdentitySource,
        secret: bytes,
        resolve: Callable[[int], tuple[str, int] | None],
        on_disconnected: Callable[[int, Channel], None] | None = None,
        tls: ssl.SSLContext | None = None,
        is_anyone: bool = False,
    ) -> None:
        self._is_anyone = is_anyone
        self._identity = identity
        self._secret = secret
        self._resolve = resolve
        self._on_disconnected = on_disconnected
        self._tls = tls
        self._links: dict[tuple[int, Channel], CallerLink] = {}
        self._dials: dict[tuple[int, Channel], asyncio.Task[CallerLink]] = {}
        self._unreachable: dict[tuple[int, Channel], str] = {}
        """Why the last dial failed, where it did."""
        self._is_closed = False

    async def call(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        body: Sequence[Buffer] = (),
        *,
        timeout_ms: float,
        channel: Channel = Channel.RPC,
    ) -> tuple[Fields, bytes]:
        """Ask a peer; returns the fields and the body of its answer.

        Raises:
            PeerUnreachableError: nothing was sent.
            PeerLostError: sent; what became of it is not known.
            MilenaError: what the peer's handler raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        link = self._links.get((node_id, channel))
        if link is None or not link.is_open or link.is_full:
            link = await self._link(node_id, channel, deadline)
        request_id, answer = link.start_call(request_type, fields, body)
        timer = loop.call_at(deadline, _expire, answer, node_id, request_type, timeout_ms)
        try:
            return await answer
        finally:
            timer.cancel()
            link.forget(request_id)

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: Channel = Channel.RPC
    ) -> None:
        """Dial unless a link is up.

        Raises:
            PeerUnreachableError: the reason is in the message.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        await self._link(node_id, channel, deadline)

    def is_connected(self, node_id: int, channel: Channel = Channel.RPC) -> bool:
        """A link is up, as far as this node knows."""
        link = self._links.get((node_id, channel))
        return link is not None and link.is_open

    def disconnect(self, node_id: int, channel: Channel | None = None) -> None:
        """Drop one link to a node, or all (None), without a report; waiting calls fail as lost.

        The next call dials again.
        """
        for name in Channel if channel is None else (channel,):
            link = self._links.pop((node_id, name), None)
            if link is not None:
                link.close()

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        """Whether the peer's process still listens, by a bare connect; no link is made or touched."""
        address = self._resolve(node_id)
        if address is None:
            return ProbeResult.UNREACHABLE
        return await probe(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Drop every link; calls fail from now on."""
        self._is_closed = True
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        for link in links:
            await link.closed

    async def _link(self, node_id: int, channel: Channel, deadline: float) -> CallerLink:
        """An open link with room for a frame."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    link = self._links.get((node_id, channel))
                    if link is None or not link.is_open:
                        link = await asyncio.shield(self._dial(node_id, channel))
                    if not link.is_full:
                        return link
                    await link.wait_for_room()
        except TimeoutError:
            raise PeerUnreachableError(
                f"no connection to node {node_id} in time; nothing was sent"
            ) from None

    def _dial(self, node_id: int, channel: Channel) -> "asyncio.Task[CallerLink]":
        """The dial under way, or a new one: callers share it."""
        key = (node_id, channel)
        dial = self._dials.get(key)
        if dial is None:
            dial = asyncio.get_running_loop().create_task(
                self._open(node_id, channel), name=f"peer-dial-{node_id}-{channel}"
            )
            self._dials[key] = dial
            dial.add_done_callback(lambda done: self._on_dialled(key, done))
        return dial

    def _on_dialled(self, key: tuple[int, Channel], dial: "asyncio.Task[CallerLink]") -> None:
        del self._dials[key]
        # Reading the exception keeps asyncio from reporting it when every caller has given up.
        if not dial.cancelled() and dial.exception() is None and dial.result().is_open:
            self._links[key] = dial.result()

    async def _open(self, node_id: int, channel: Channel) -> CallerLink:
        """Connect and shake hands.

        Raises:
            PeerUnreachableError: with the reason.
        """
        address = None if self._is_closed else self._resolve(node_id)
        if address is None:
            why = "this node is stopping" if self._is_closed else "its address is not known"
            raise PeerUnreachableError(f"node {node_id} cannot be reached: {why}")
        handshake = Handshake(
            HandshakeRole.DIALER,
            self._identity(),
            self._secret,
            channel=frames.Channel.DATA,
            expected_node_id=None if self._is_anyone else node_id,
        )
        loop = asyncio.get_running_loop()
        link = CallerLink(loop, handshake, channel, self._on_lost)
        try:
            await self._connect(link, *address)
            await link.ready
        except (OSError, UnicodeError) as error:
            link.abort(f"{address[0]}:{address[1]}: {str(error) or type(error).__name__}")
        except asyncio.CancelledError:
            link.close()
            raise
        if not link.is_open:
            self._log_unreachable(node_id, channel, link.failure)
            raise PeerUnreachableError(f"node {node_id} cannot be reached: {link.failure}")
        log.info("peer reached node_id=%d channel=%s", node_id, channel)
        self._unreachable.pop((node_id, channel), None)
        return link

    def _log_unreachable(self, node_id: int, channel: Channel, reason: str) -> None:
        """Once for each reason in a row: callers try again several times a second."""
        key = (node_id, channel)
        is_known = self._unreachable.get(key) == reason
        self._unreachable[key] = reason
        level = logging.DEBUG if is_known else logging.WARNING
        log.log(level, "peer unreachable node_id=%d channel=%s reason=%s", *key, reason)

    async def _connect(self, link: CallerLink, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        connection = await _connect(host, port, DIAL_MS_MAX)
        try:
            _tune(connection)
            await loop.sock_sendall(connection, frames.encode_preface(frames.Channel.DATA))
            await loop.create_connection(
                lambda: link,
                sock=connection,
                ssl=self._tls,
                server_hostname=host if self._tls is not None else None,
                ssl_handshake_timeout=_tls_seconds(self._tls),
            )
        except BaseException:
            connection.close()
            raise

    def _on_lost(self, link: CallerLink) -> None:
        key = (link.peer_id, link.channel)
        if self._links.get(key) is link:
            del self._links[key]
        log.info("peer lost node_id=%d channel=%s reason=%s", *key, link.failure)
        if self._on_disconnected is not None:
            self._on_disconnected(*key)


async def probe(address: tuple[str, int], *, timeout_ms: float) -> ProbeResult:
    """Whether a process listens there: connect, and close at once."""
    try:
        connection = await _connect(*address, timeout_ms)
    except ConnectionRefusedError:
        return ProbeResult.REFUSED
    except OSError:
        return ProbeResult.UNREACHABLE
    connection.close()
    return ProbeResult.CONNECTED


def _expire(
    answer: "asyncio.Future[tuple[Fields, bytes]]",
    node_id: int,
    request_type: str,
    timeout_ms: float,
) -> None:
    if not answer.done():
        answer.set_exception(
            PeerLostError(
                f"node {node_id} did not answer {request_type!r} within {timeout_ms:.0f} ms"
            )
        )


def _tls_seconds(tls: ssl.SSLContext | None) -> float | None:
    return None if tls is None else HANDSHAKE_MS_MAX / 1000


def _bind(
    family: int, kind: int, protocol: int, _: str, address: tuple[str | int, ...]
) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _tune(connection: socket.socket) -> None:
    """Small frames leave at once; a machine that is gone is noticed by the kernel."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        # Few small messages are under way at a time: on a lossy network each retry must not wait twice as long
        # as the one before, or brokers miss their heartbeats.
        connection.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        # Linux has them all; elsewhere the pings of a link have to do.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _read_preface(connection: socket.socket) -> bytes | None:
    """The preface; None: closed before a byte came, as a probe does."""
    loop = asyncio.get_running_loop()
    preface = b""
    while len(preface) < frames.PREFACE_BYTES:
        data = await loop.sock_recv(connection, frames.PREFACE_BYTES - len(preface))
        if not data:
            if preface:
                raise PeerProtocolError("closed within the preface")
            return None
        preface += data
    return preface


async def _connect(host: str, port: int, timeout_ms: float) -> socket.socket:
    """A connected socket.

    Raises:
        ConnectionRefusedError: every address of the name refused.
        OSError: anything else, time included.
    """
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            for found in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                try:
                    return await _connect_to(*found)
                except OSError as error:
                    errors.append(error)
    except TimeoutError:
        raise TimeoutError(f"no connection within {timeout_ms:.0f} ms") from None
    others = [error for error in errors if not isinstance(error, ConnectionRefusedError)]
    raise (others or errors or [OSError(f"no address for {host}")])[0]


async def _connect_to(
    family: int, kind: int, protocol: int, _: str, address: tuple[str | int, ...]
) -> socket.socket:
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, address)
        if connection.getsockname() == connection.getpeername():
            # Dialling a free port of one's own machine may, by TCP's simultaneous open, meet oneself.
            raise ConnectionRefusedError("nobody listens there")
    except BaseException:
        connection.close()
        raise
    return connection
