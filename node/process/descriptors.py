"""How many files a node may have open: raised as far as the system lets it, and shared out.

Storage comes first: a log that cannot open a segment stops its node. Clients get what is left.
"""

import resource

PEERS_AND_RAFT = 512
"""Descriptors for peers, the Raft directory, and whatever libraries open."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def affordable_connections(wanted: int, limit: int) -> int:
    """As many client connections as were asked for, but no more than half of what is left to share."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, (limit - PEERS_AND_RAFT) // 2), 1)
