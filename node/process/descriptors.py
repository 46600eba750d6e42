"""The limit of a node's open files: it is raised as far as the system allows, and divided.

Storage comes first: a log that cannot open a segment stops its node. Clients get the rest.
"""

import resource

PEERS_AND_RAFT = 512
"""Descriptors for peers, the Raft directory, and libraries."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def affordable_connections(wanted: int, limit: int) -> int:
    """Return the wanted number of client connections, but at most half of the remaining descriptors."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, (limit - PEERS_AND_RAFT) // 2), 1)
