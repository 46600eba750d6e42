"""What happened to the groups that this node coordinates, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounts:
    """Since the node started."""

    heartbeats: int = 0
    rebalances: int = 0
    """Times that partitions were shared out anew."""
    expired_members: int = 0
    commits: int = 0
    """Commits of members and tools that were accepted."""
    committed_offsets: int = 0
    commit_commands: int = 0
    """Commands that carried them to the quorum."""
    expired_offsets: int = 0
    groups: int = 0
    """Coordinated here, now; those with members."""
    members: int = 0
    """Of these groups, now."""
