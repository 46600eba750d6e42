"""Sockets between nodes: bound, connected, tuned, and told apart by their preface.

Nothing here knows what is said on them; ``peer_client`` and ``peer_server`` do.
"""

import asyncio
import socket
import ssl
import sys
from enum import StrEnum, unique

from node.peers.link import HANDSHAKE_MS_MAX
from raft_meta.consensus import frames
from raft_meta.consensus.frames import PeerProtocolError

BACKLOG = 128
TCP_THIN_LINEAR_TIMEOUTS = 16
"""Linux's number of the option, which Python has no name for. Source: linux/tcp.h."""

UNACKNOWLEDGED_MS_MAX = 5_000
"""TCP_USER_TIMEOUT: a peer whose machine is gone does not acknowledge; the kernel gives up after this."""
KEEPALIVE_IDLE_S = 5
KEEPALIVE_PROBES = 3


@unique
class ProbeResult(StrEnum):
    """The result of a bare connect, as far as it tells of a peer's process."""

    CONNECTED = "connected"
    """Something listens there; it may be stalled."""
    REFUSED = "refused"
    """The machine answers and nothing listens: the process is gone."""
    UNREACHABLE = "unreachable"
    """No answer, no route or no such name: nothing is known."""


async def probe(address: tuple[str, int], *, timeout_ms: float) -> ProbeResult:
    """Whether a process listens there: connect, and close at once."""
    try:
        connection = await connect(*address, timeout_ms)
    except ConnectionRefusedError:
        return ProbeResult.REFUSED
    except OSError:
        return ProbeResult.UNREACHABLE
    connection.close()
    return ProbeResult.CONNECTED


def tls_seconds(tls: ssl.SSLContext | None) -> float | None:
    """How long TLS may take to shake hands; None: there is none."""
    return None if tls is None else HANDSHAKE_MS_MAX / 1000


def bind(
    family: int, kind: int, protocol: int, _: str, address: tuple[str | int, ...]
) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address cannot be bound.
    """
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


def tune(connection: socket.socket) -> None:
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


async def read_preface(connection: socket.socket) -> bytes | None:
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


async def connect(host: str, port: int, timeout_ms: float) -> socket.socket:
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
