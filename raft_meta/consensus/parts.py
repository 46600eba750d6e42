"""The settings of a core, and the objects that its parts have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raft_meta.consensus.library import Library
from raft_meta.consensus.outbox import Outbox
from raft_meta.consensus.quorum import StateMachine
from raft_meta.consensus.snapshot import SnapshotStore
from raft_meta.consensus.wal import Wal

WINDOW_PIECES: Final = 16
"""Most unacknowledged snapshot pieces: 4 MiB at 256 KiB a piece, more than a local network holds in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """The settings of one node. Times in seconds.

    ``voters``: ids of all voters. A node that is not among them is an observer.
    ``incarnation``: larger than at any earlier start of this node.
    ``leader_fallback_s``: a leader that has had no response from a majority for this long steps down. If a majority
    needs a snapshot, sending and loading it must take less time than this.
    """

    node_id: int
    voters: tuple[int, ...]
    incarnation: int
    election_timeout_s: tuple[float, float] = (0.5, 1.0)
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.0
    batch_bytes: int = 4 << 20
    window_pieces: int = WINDOW_PIECES
    log_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """The objects that a core shares with its replicator, installer, snapshotter and reads."""

    config: CoreConfig
    library: Library
    wal: Wal
    snapshots: SnapshotStore
    machine: StateMachine
    outbox: Outbox
    clock: Callable[[], float]
