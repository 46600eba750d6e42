"""Calls between nodes: one framed connection for each dialer and channel, and the meaning of a peer's silence.

The channels are calls, fetches and control (``codec.PeerChannel``). Raft has separate connections to the same port.
"""
