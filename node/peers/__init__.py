"""Calls between nodes: one framed connection for each dialer and channel, and what a silent peer means for calls.

The channels are RPC, fetches and control (``codec.PeerChannel``). Raft has its own connections to the same port.
"""
