"""The parts of a node that all its replicas share. ``node.assembly`` creates the one object."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.metrics.counts import NodeCounts
from node.process.cluster_clock import NodeClock
from node.replica.leader import IsrProposal

if TYPE_CHECKING:
    from node.replica.runner import PartitionRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """Parts that all runners of a node share."""

    broker_id: int
    clock: NodeClock
    pool: Executor
    """Worker threads for upkeep and for reads that need the disk."""
    sync_pool: Executor
    """Worker threads for syncs only, so that syncs do not queue behind slow reads."""
    lag_ms_max: int
    on_fatal: Callable[[BaseException], None]
    """Must stop the process."""
    on_proposal: Callable[["PartitionRunner", IsrProposal], None]
    """Sends an ISR proposal to the quorum, and calls ``on_proposal_done`` with the outcome."""
    on_disk_full: Callable[["PartitionRunner"], None]
    on_doubt: Callable[["PartitionRunner", int | None], None]
    """Must have the segment with this offset checked for damage; None: all closed segments."""
    counts: NodeCounts
    on_write: Callable[[], None] | None = None
    """Called on every append, as leader or follower."""
    on_transaction: Callable[["PartitionRunner"], None] = lambda runner: None
    """Called for a leader whose log has, or is about to have, an open transaction."""
