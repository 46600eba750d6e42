"""The limit of a node's open files: raises it as far as the system allows, and divides it.

Storage has priority, because a log that cannot open a segment stops its node. Clients get at most half of the rest.
"""

import resource

PEERS_AND_RAFT = 512
"""Number of descriptors for peers, the Raft directory and libraries."""


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def affordable_connections(wanted: int, limit: int) -> int:
    """Return how many client connections the node may have: ``wanted``, but at most half of the other descriptors."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, (limit - PEERS_AND_RAFT) // 2), 1)
