"""Calls between nodes over the peer port, as the rest of the node knows them.

One port serves Raft and data. The listener (``node.peers.server``) reads the preface of each connection with a
deadline and hands Raft sockets over untouched, to be wrapped on the quorum's own loop; data connections become
``node.peers.link`` links, which ``node.peers.client`` dials. ``probe`` says whether a process still runs. The parts
of a node know ``Peers``: ``PeerClient`` is the one with sockets.

What a caller may conclude from an error of ``Peers.call``:

- ``PeerUnreachableError``: nothing was sent; the peer has done nothing.
- ``PeerLostError``: sent, and then the link broke or the time was up; the peer may have done it, or may yet.
- any other ``MilenaError``: raised by the peer's handler, and of the same class here.

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
    """The other nodes, as the parts of a node call them."""

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
        """Ask a peer; returns the fields and the body of its answer.

        Raises:
            PeerUnreachableError: nothing was sent.
            PeerLostError: sent; what became of it is not known.
            MilenaError: what the peer's handler raised.
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
        """Ask in this very turn, without a time limit; False: nothing was sent, ``connect`` first.

        Raises:
            PeerUnreachableError: nothing was sent.
        """

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: PeerChannel = PeerChannel.RPC
    ) -> None:
        """Return once a link is up that takes a request.

        Raises:
            PeerUnreachableError: the reason is in the message.
        """

    def is_connected(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """A link is up, as far as this node knows."""

    def is_silent(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """A link is up, and nobody should wait on who is at its other end."""

    def disconnect(self, node_id: int, channel: PeerChannel | None = None) -> None:
        """Drop one link to a node, or all (None); waiting calls fail as lost."""

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        """Whether the peer's process still listens; no link is made or touched."""
