"""The parts of a node that services, groups and REST consumers share. ``node.assembly`` creates the one object."""

from concurrent.futures import Executor
from dataclasses import dataclass

from node.control.membership import Membership
from node.metadata.store import MetadataStore
from node.metrics.counts import NodeCounts
from node.peers.port import Peers
from node.process.cluster_clock import NodeClock
from node.replication.local_replicas import LocalReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The parts that a request needs wherever it is served.

    Classes that serve requests take it as their first argument, and the parts that only they need after it.
    """

    metadata: MetadataStore
    """The applied image, and proposals to the quorum."""
    replicas: LocalReplicas
    membership: Membership
    """This broker's state in the cluster: its epoch, its lease, whether its disk is full."""
    peers: Peers
    """Calls to other nodes."""
    clock: NodeClock
    counts: NodeCounts
    pool: Executor
    """For long work that must not run on the event loop."""
