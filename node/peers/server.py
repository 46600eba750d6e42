"""The peer port: accepts connections and passes each, by its preface, to the quorum or to this node's handlers.

Until a connection has proved the peer's identity, its time is limited. The number of such connections is limited, too.
Runs on the data loop.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import MilenaError, StartupError
from node.config.budgets import REFUSED_RETRY_MS
from node.peers.codec import PeerChannel
from node.peers.link import Handler, IdentitySource, ServerLink
from node.peers.sockets import BACKLOG, bind, read_preface, tls_seconds, tune
from raft_meta.consensus import frames
from raft_meta.consensus.frames import Handshake, HandshakeRole, PeerProtocolError

log = logging.getLogger("milena.peer")

PREFACE_MS_MAX = 3_000
STRANGERS_MAX = 256
"""Largest number of connections that have not proved their peer's identity. Further ones are closed at once."""
HANG_UP_MS_MAX = 1_000
"""How long the server waits for queued responses to be sent when the node stops, in ms."""
REASONS_KEPT_MAX = 64


class PeerServer:
    """The handlers of this node, and the links on which peers call them.

    ``on_disconnected(node_id, channel)``: called when a peer's last link of this channel is closed.
    ``contained``: gets errors of handlers that are no ``MilenaError``.
    """

    def __init__(
        self,
        *,
        on_disconnected: Callable[[int, PeerChannel], None] | None = None,
        contained: ContainedErrors | None = None,
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self._on_disconnected = on_disconnected
        self._contained = ContainedErrors() if contained is None else contained
        self._links: dict[ServerLink, None] = {}
        """All links, in order of arrival, so that a simulated run repeats."""
        self._current: dict[tuple[int, PeerChannel], ServerLink] = {}
        self._idle: asyncio.Future[None] | None = None
        self._refusals: set[str] = set()

    def register(self, request_type: str, handler: Handler) -> None:
        """Register the handler of a request type. Each type has exactly one."""
        assert request_type not in self.handlers, f"two handlers for {request_type}"
        self.handlers[request_type] = handler

    def connected(self, channel: PeerChannel) -> frozenset[int]:
        """Return the ids of peers that have a link of this channel to this node."""
        return frozenset(node_id for node_id, name in self._current if name is channel)

    def strangers(self) -> int:
        """Return the number of links whose peer has not proved its identity."""
        return sum(link.channel is None for link in self._links)

    def add(self, link: ServerLink) -> None:
        """Add a link whose handshake is about to start."""
        self._links[link] = None

    def discard(self, link: ServerLink) -> None:
        """Remove a link that is closed, or that never opened."""
        self._links.pop(link, None)
        if not self._links and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def link_opened(self, link: ServerLink) -> None:
        """Close an older link of the same peer and channel: the peer has given it up."""
        assert link.channel is not None, "opened without a channel"
        key = (link.peer_id, link.channel)
        before = self._current.get(key)
        self._current[key] = link
        if before is not None:
            before.abort("the peer opened another connection")
        log.info("peer connected node_id=%d channel=%s", link.peer_id, link.channel)

    def link_lost(self, link: ServerLink) -> None:
        """Note that a link is closed. If it was the last one of its peer and channel, call ``on_disconnected``."""
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
        """Log a refused connection. Repeated equal reasons are logged once, because the peer will retry."""
        is_known = reason in self._refusals
        if len(self._refusals) < REASONS_KEPT_MAX:
            self._refusals.add(reason)
        log.log(logging.DEBUG if is_known else logging.WARNING, "peer refused reason=%s", reason)

    def handler_failed(self, error: BaseException, request_id: str) -> MilenaError:
        """Report an unexpected error of a handler; return the refusal for the peer. The node goes on."""
        return self._contained.report(EntryPoint.PEER, error, "request_id", request_id)

    async def close(self) -> None:
        """Send the queued responses, then close every link. Handlers that still run are cancelled."""
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


@dataclass(eq=False, kw_only=True)
class PeerListener:
    """The peer port. ``on_raft_socket``: gets accepted Raft sockets after their preface was read."""

    server: PeerServer
    identity: IdentitySource
    secret: bytes = field(repr=False)
    on_raft_socket: Callable[[socket.socket], None]
    tls: ssl.SSLContext | None = None
    verifies_id: bool = False
    """Whether a peer's certificate must name the node id that the peer claims."""

    def __post_init__(self) -> None:
        self._socket: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._strangers: set[asyncio.Task[bool]] = set()

    @property
    def port(self) -> int:
        """The bound port. If the configured port is 0, the system has chosen one."""
        assert self._socket is not None, "the port of a listener that is not started"
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Bind the port and accept connections.

        Raises:
            StartupError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._socket = bind(*found[0])
        except OSError as error:
            raise StartupError(
                f"cannot listen on peer address {host}:{port}: {error.strerror or error}; free the port, or give "
                "another --peer-listen"
            ) from error
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
        await self.server.close()

    def _on_readable(self) -> None:
        """Accept the waiting connections. This is no task, because a cancelled task could leave a socket open."""
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
                    REFUSED_RETRY_MS / 1000, loop.add_reader, self._socket, self._on_readable
                )
                return
            self._on_accepted(connection)

    def _on_accepted(self, connection: socket.socket) -> None:
        if len(self._strangers) + self.server.strangers() >= STRANGERS_MAX:
            self.server.refused("too many connections that prove nothing")
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
        """Read the preface and pass the connection on. Return False if the caller must close the connection."""
        try:
            connection.setblocking(False)
            tune(connection)
            async with asyncio.timeout(PREFACE_MS_MAX / 1000):
                preface = await read_preface(connection)
            if preface is None:
                return False
            if frames.decode_preface(preface) is frames.Channel.RAFT:
                self.on_raft_socket(connection)
            else:
                await self._serve(connection)
        except TimeoutError:
            self.server.refused("nothing was sent")
        except (PeerProtocolError, OSError) as error:
            self.server.refused(str(error))
        else:
            return True
        return False

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshake = Handshake(
            HandshakeRole.ACCEPTOR,
            self.identity(),
            self.secret,
            channel=frames.Channel.DATA,
            verifies_id=self.verifies_id,
        )
        link = ServerLink(loop, handshake, self.server.handlers, self.server)
        self.server.add(link)
        try:
            await loop.connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self.tls,
                ssl_handshake_timeout=tls_seconds(self.tls),
            )
        except BaseException:
            self.server.discard(link)
            raise
