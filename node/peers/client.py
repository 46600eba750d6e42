"""Calls to other nodes. Links (connections) are dialled when needed, shared by callers, and dropped on silence.

Runs on the data loop.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from milena.model.pending import Taker
from node.peers.codec import Buffer, Fields, PeerChannel
from node.peers.link import (
    Answer,
    CallerLink,
    IdentitySource,
    PeerLostError,
    PeerUnreachableError,
)
from node.peers.sockets import ProbeResult, connect, probe, tls_seconds, tune
from raft_meta.consensus import frames
from raft_meta.consensus.frames import Handshake, HandshakeRole

log = logging.getLogger("milena.peer")

DIAL_MS_MAX = 2_000
"""Longest time from the look-up of the name to the end of the TCP handshake."""


@dataclass(eq=False, kw_only=True)
class PeerClient:
    """Calls to other nodes, over one link for each node and channel.

    ``resolve(node_id)``: returns host and port, None if unknown. Called at every dial, because addresses change.
    ``on_disconnected(node_id, channel)``: called when a link that was open is lost, but not if this node closed it.
    ``is_anyone``: the node at an address may have any id, because its id is not known yet.
    ``verifies_id``: a peer's certificate must name the node id that the peer claims.
    """

    identity: IdentitySource
    secret: bytes = field(repr=False)
    resolve: Callable[[int], tuple[str, int] | None]
    on_disconnected: Callable[[int, PeerChannel], None] | None = None
    tls: ssl.SSLContext | None = None
    is_anyone: bool = False
    verifies_id: bool = False

    def __post_init__(self) -> None:
        self._links: dict[tuple[int, PeerChannel], CallerLink] = {}
        self._dials: dict[tuple[int, PeerChannel], asyncio.Task[CallerLink]] = {}
        self._unreachable: dict[tuple[int, PeerChannel], str] = {}
        """Link → the reason why its last dial failed, until a dial succeeds."""
        self._is_closed = False

    async def call(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        body: Sequence[Buffer] = (),
        *,
        timeout_ms: float,
        channel: PeerChannel = PeerChannel.RPC,
    ) -> Answer:
        """Send a request to a peer; return the fields and the body of its response.

        Raises:
            PeerUnreachableError: nothing was sent.
            PeerLostError: the request was sent; its fate is unknown.
            MilenaError: the peer's handler raised this error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        link = self._links.get((node_id, channel))
        if link is None or not link.is_open or link.is_full or link.is_doubtful:
            link = await self._link(node_id, channel, deadline)
        answer: asyncio.Future[Answer] = loop.create_future()
        request_id = link.start_call(request_type, fields, body, answer)
        timer = loop.call_at(deadline, _expire, answer, node_id, request_type, timeout_ms)
        try:
            return await answer
        finally:
            timer.cancel()
            link.forget(request_id)

    def ask(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        answer: Taker[Answer],
        *,
        channel: PeerChannel,
    ) -> bool:
        """Send a request in this turn of the loop, without a task or a timeout; return False if nothing was sent.

        After False, call ``connect`` first. ``answer`` gets the result or error that ``call`` would return or raise. A
        ``Pending`` calls back in the turn in which the response arrives. A caller that does not need the response any
        more must cancel the ``Pending`` or drop the link.

        Raises:
            PeerUnreachableError: nothing was sent.
        """
        link = self._links.get((node_id, channel))
        if link is None or not link.is_open or link.is_full or link.is_doubtful:
            return False
        link.start_call(request_type, fields, (), answer)
        return True

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: PeerChannel = PeerChannel.RPC
    ) -> None:
        """Wait until a link is up that accepts a request; dial if there is no link.

        Raises:
            PeerUnreachableError: the reason is in the message.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        await self._link(node_id, channel, deadline)

    def is_connected(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is open, as far as this node knows."""
        link = self._links.get((node_id, channel))
        return link is not None and link.is_open

    def is_silent(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is open, but its peer has been silent for so long that no caller should wait for it."""
        link = self._links.get((node_id, channel))
        return link is not None and link.is_silent

    def disconnect(self, node_id: int, channel: PeerChannel | None = None) -> None:
        """Drop one link to a node, or all (None). ``on_disconnected`` is not called; waiting calls fail as lost.

        The next call dials again.
        """
        for name in PeerChannel if channel is None else (channel,):
            link = self._links.pop((node_id, name), None)
            if link is not None:
                link.close()

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        """Find out whether the peer's process still listens: connect and close at once. This uses no link."""
        address = self.resolve(node_id)
        if address is None:
            return ProbeResult.UNREACHABLE
        return await probe(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Drop every link. All later calls fail."""
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

    async def _link(self, node_id: int, channel: PeerChannel, deadline: float) -> CallerLink:
        """Return an open link that has room for a frame and whose peer is not doubtful; wait until ``deadline``."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    link = self._links.get((node_id, channel))
                    if link is None or not link.is_open:
                        link = await asyncio.shield(self._dial(node_id, channel))
                    if link.is_full:
                        await link.wait_for_room()
                    elif link.is_doubtful:
                        await link.wait_for_sign()
                    else:
                        return link
        except TimeoutError:
            raise PeerUnreachableError(
                f"no connection to node {node_id} in time; nothing was sent"
            ) from None

    def _dial(self, node_id: int, channel: PeerChannel) -> "asyncio.Task[CallerLink]":
        """Return the task of the dial in progress; start one if there is none. All callers share it."""
        key = (node_id, channel)
        dial = self._dials.get(key)
        if dial is None:
            dial = asyncio.get_running_loop().create_task(
                self._open(node_id, channel), name=f"peer-dial-{node_id}-{channel}"
            )
            self._dials[key] = dial
            dial.add_done_callback(lambda done: self._on_dialled(key, done))
        return dial

    def _on_dialled(self, key: tuple[int, PeerChannel], dial: "asyncio.Task[CallerLink]") -> None:
        del self._dials[key]
        # Read the exception: otherwise asyncio reports it if no caller waits for the dial any more.
        if not dial.cancelled() and dial.exception() is None and dial.result().is_open:
            self._links[key] = dial.result()

    async def _open(self, node_id: int, channel: PeerChannel) -> CallerLink:
        """Connect and run the handshake.

        Raises:
            PeerUnreachableError: the message says why this failed.
        """
        address = None if self._is_closed else self.resolve(node_id)
        if address is None:
            why = "this node is stopping" if self._is_closed else "its address is not known"
            raise PeerUnreachableError(f"node {node_id} cannot be reached: {why}")
        handshake = Handshake(
            HandshakeRole.DIALER,
            self.identity(),
            self.secret,
            channel=frames.Channel.DATA,
            expected_node_id=None if self.is_anyone else node_id,
            verifies_id=self.verifies_id,
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
        log.info("peer reached node_id=%d channel=%s", link.peer_id, channel)
        self._unreachable.pop((node_id, channel), None)
        return link

    def _log_unreachable(self, node_id: int, channel: PeerChannel, reason: str) -> None:
        """Log a failed dial. Repeated equal reasons are logged once, because callers retry several times a second."""
        key = (node_id, channel)
        is_known = self._unreachable.get(key) == reason
        self._unreachable[key] = reason
        level = logging.DEBUG if is_known else logging.WARNING
        if self.is_anyone:
            log.log(level, "peer unreachable channel=%s reason=%s", channel, reason)
            return
        log.log(level, "peer unreachable node_id=%d channel=%s reason=%s", *key, reason)

    async def _connect(self, link: CallerLink, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        connection = await connect(host, port, DIAL_MS_MAX)
        try:
            tune(connection)
            await loop.sock_sendall(connection, frames.encode_preface(frames.Channel.DATA))
            await loop.create_connection(
                lambda: link,
                sock=connection,
                ssl=self.tls,
                server_hostname=host if self.tls is not None else None,
                ssl_handshake_timeout=tls_seconds(self.tls),
            )
        except BaseException:
            connection.close()
            raise

    def _on_lost(self, link: CallerLink) -> None:
        key = (link.peer_id, link.channel)
        if self._links.get(key) is link:
            del self._links[key]
        log.info("peer lost node_id=%d channel=%s reason=%s", *key, link.failure)
        if self.on_disconnected is not None:
            self.on_disconnected(*key)


def _expire(
    answer: "asyncio.Future[Answer]",
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
