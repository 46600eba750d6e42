"""The interface of calls between nodes over the peer port.

One port serves Raft and data. The listener (``node.peers.server``) reads the preface of each connection with a
deadline. It passes Raft sockets to the quorum's loop, which wraps them. Data connections become ``node.peers.link``
links, which ``node.peers.client`` dials. ``probe`` tests whether a process still runs. The parts of a node use
``Peers``; ``PeerClient`` implements it with sockets.

A caller of ``Peers.call`` may conclude from an error:

- ``PeerUnreachableError``: nothing was sent; the peer has done nothing.
- ``PeerLostError``: the request was sent, then the link broke or the timeout passed. The peer may have done it, or may
  still do it.
- any other ``MilenaError``: the peer's handler raised it; it has the same class here.

All of it runs on one loop, the data loop.
"""

from collections.abc import Sequence
from typing import Protocol

from milena.model.pending import Taker
from node.peers.client import PeerClient
from node.peers.codec import Buffer, Fields, PeerChannel
from node.peers.link import Answer, Handler, PeerLostError, PeerUnreachableError, Reply
from node.peers.server import PeerListener, PeerServer
from node.peers.sockets import ProbeResult, probe

__all__ = [
    "Fields",
    "Handler",
    "PeerChannel",
    "PeerClient",
    "PeerListener",
    "PeerLostError",
    "PeerServer",
    "PeerUnreachableError",
    "Peers",
    "ProbeResult",
    "Reply",
    "probe",
]


class Peers(Protocol):
    """The calls of a node's parts to other nodes."""

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

    def ask(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        answer: Taker[Answer],
        *,
        channel: PeerChannel,
    ) -> bool:
        """Send a request in this loop turn, without a timeout; False: nothing was sent, call ``connect`` first.

        Raises:
            PeerUnreachableError: nothing was sent.
        """

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: PeerChannel = PeerChannel.RPC
    ) -> None:
        """Wait until a link is up that accepts a request.

        Raises:
            PeerUnreachableError: the reason is in the message.
        """

    def is_connected(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is up, as far as this node knows."""

    def is_silent(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is up whose peer was silent for so long that no caller should wait for it."""

    def disconnect(self, node_id: int, channel: PeerChannel | None = None) -> None:
        """Drop one link to a node, or all (None); waiting calls fail as lost."""

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        """Test whether the peer's process still listens; no link is created or used."""
