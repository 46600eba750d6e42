"""Calls between nodes over the peer port, as the rest of the node knows them.

One port serves Raft and data. The listener (``peer_server``) reads the preface of each connection with a deadline and
hands Raft sockets over untouched, to be wrapped on the quorum's own loop; data connections become ``node.peers.link``
links, which ``peer_client`` dials. ``probe`` says whether a process still runs.

What a caller may conclude from an error of ``PeerClient.call``:

- ``PeerUnreachableError``: nothing was sent; the peer has done nothing.
- ``PeerLostError``: sent, and then the link broke or the time was up; the peer may have done it, or may yet.
- any other ``MilenaError``: raised by the peer's handler, and of the same class here.

All of it runs on one loop, the data loop.
"""

from node.peers.client import PeerClient
from node.peers.codec import Fields, PeerChannel
from node.peers.link import Handler, PeerLostError, PeerUnreachableError, Reply
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
    "ProbeResult",
    "Reply",
    "probe",
]
