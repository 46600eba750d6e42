"""The interface for calls between nodes over the peer port.

One port serves Raft and data. The listener (``node.peers.server``) reads the preface of each connection within a
timeout. It passes sockets of Raft connections to the quorum's loop. Data connections become links
(``node.peers.link``), and ``node.peers.client`` dials them. ``probe`` tests whether a process still runs. The other
parts of a node use ``Peers``, which ``PeerClient`` implements.

The error of ``Peers.call`` tells the caller what happened:

- ``PeerUnreachableError``: nothing was sent, so the peer has done nothing.
- ``PeerLostError``: the request was sent. Then the link broke or the timeout passed. The peer may have carried out the
  request, or may still do so.
- any other ``MilenaError``: the peer's handler raised it.

All of this runs on the data loop.
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
    """Calls to other nodes, for all parts of a node."""

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
        """Send a request in this turn of the loop, without a timeout; False: nothing was sent, call ``connect`` first.

        Raises:
            PeerUnreachableError: nothing was sent.
        """

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: PeerChannel = PeerChannel.RPC
    ) -> None:
        """Wait until a link is open that accepts a request.

        Raises:
            PeerUnreachableError: the reason is in the message.
        """

    def is_connected(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is open, as far as this node knows."""

    def is_silent(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        """Return whether a link is open, but its peer has been silent for so long that no caller should wait for it."""

    def disconnect(self, node_id: int, channel: PeerChannel | None = None) -> None:
        """Drop one link to a node, or all (None). Waiting calls fail as lost."""

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        """Find out whether the peer's process still listens: connect and close at once. This uses no link."""
