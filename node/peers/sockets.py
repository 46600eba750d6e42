"""Sockets between nodes: bind, connect, set options, and read the preface.

The protocol on the sockets is in ``node.peers.client`` and ``node.peers.server``.
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
"""The number of the socket option on Linux. Python has no name for it. Source: linux/tcp.h."""

UNACKNOWLEDGED_MS_MAX = 5_000
"""TCP_USER_TIMEOUT in ms. If a machine is gone, it acknowledges nothing. The kernel then gives up after this time."""
KEEPALIVE_IDLE_S = 5
KEEPALIVE_PROBES = 3


@unique
class ProbeResult(StrEnum):
    """The result of connecting and closing at once, which tells whether a peer's process runs."""

    CONNECTED = "connected"
    """A process listens there. It may be stalled."""
    REFUSED = "refused"
    """The machine responds, but no process listens: the peer's process is gone."""
    UNREACHABLE = "unreachable"
    """No response, no route or an unknown name: it is unknown whether the process runs."""


async def probe(address: tuple[str, int], *, timeout_ms: float) -> ProbeResult:
    """Find out whether a process listens at the address: connect, and close at once."""
    try:
        connection = await connect(*address, timeout_ms)
    except ConnectionRefusedError:
        return ProbeResult.REFUSED
    except OSError:
        return ProbeResult.UNREACHABLE
    connection.close()
    return ProbeResult.CONNECTED


def tls_seconds(tls: ssl.SSLContext | None) -> float | None:
    """Return the timeout of the TLS handshake in seconds; None without TLS."""
    return None if tls is None else HANDSHAKE_MS_MAX / 1000


def bind(
    family: int, kind: int, protocol: int, _: str, address: tuple[str | int, ...]
) -> socket.socket:
    """Return a listening socket.

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
    """Set socket options, so that small frames are sent at once and the kernel notices a machine that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        # On a lossy network the kernel doubles the wait after each retry, and brokers would miss their heartbeats. Few
        # messages are in flight at the same time, so equal waits do no harm.
        connection.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        # Linux has all these options. On other systems, the pings of a link must suffice.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def read_preface(connection: socket.socket) -> bytes | None:
    """Read the preface; return None if the connection was closed before a byte arrived, as ``probe`` does."""
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
    """Return a connected socket.

    Raises:
        ConnectionRefusedError: every address of the name refused the connection.
        OSError: any other failure, a timeout included.
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
            # If no process listens on a port of this machine, a socket that dials the port may connect to itself, by
            # TCP's simultaneous open.
            raise ConnectionRefusedError("no program listens there")
    except BaseException:
        connection.close()
        raise
    return connection
