"""The view of a cluster: value classes, and the judgement of its health (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One registered node."""

    node_id: int
    url: str
    rack: str | None
    is_live: bool
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition. ``leader`` is None while no node leads it. The first of ``replicas`` is the preferred leader."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic. ``configs`` has all effective values if the endpoint sends them, otherwise only values that were set.

    ``topic_id`` distinguishes a topic from a later one of the same name; None if the endpoint does not give it.
    """

    name: str
    partitions: tuple[PartitionView, ...]
    configs: dict[str, str] = field(default_factory=dict)
    topic_id: str | None = None

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition. Others may differ, but only during a reassignment."""
        return len(self.partitions[0].replicas) if self.partitions else 0

    @property
    def min_insync_replicas(self) -> int:
        """The in-sync replicas that acks=all needs. The default is 2 for three replicas or more, else 1."""
        said = self.configs.get("min.insync.replicas", "")
        return int(said) if said.isdigit() else 2 if self.replication_factor >= 3 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSizes:
    """The bytes that all replicas of a topic store, and the configs that were set for the topic.

    The bytes do not include replicas on ``silent_nodes``, which did not respond. None means unknown.
    """

    topic_id: str
    stored_bytes: int | None
    silent_nodes: tuple[int, ...]
    partition_bytes: dict[int, int | None]
    set_configs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The whole cluster at one version of its metadata."""

    cluster_id: str
    version: int
    controller_id: int | None
    nodes: tuple[NodeView, ...]
    topics: tuple[TopicView, ...]
    is_current: bool = True
    """True if a majority of the quorum confirmed that the view is the newest; False if not, or if it was not asked."""

    def partitions(self) -> Iterator[tuple[TopicView, PartitionView]]:
        """Yield every partition with its topic."""
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def leads(self) -> dict[int, int]:
        """Return how many partitions each node leads."""
        counts = dict.fromkeys((node.node_id for node in self.nodes), 0)
        for _, partition in self.partitions():
            if partition.leader in counts:
                counts[partition.leader] += 1
        return counts

    def health(self) -> "Health":
        """Return the faults of the cluster as this view shows them."""
        every = list(self.partitions())
        return Health(
            down=tuple(node.node_id for node in self.nodes if not node.is_live),
            leaderless=tuple((t.name, p.partition) for t, p in every if p.leader is None),
            under_replicated=tuple(
                (t.name, p.partition) for t, p in every if p.is_under_replicated
            ),
            has_controller=self.controller_id is not None,
            has_majority=self.is_current,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The faults of a cluster: nodes down (even without replicas), partitions without a leader or in-sync replicas."""

    down: tuple[int, ...]
    leaderless: tuple[tuple[str, int], ...]
    under_replicated: tuple[tuple[str, int], ...]
    has_controller: bool
    has_majority: bool
    """True if a majority of the metadata quorum responds; without one, all other fields may be old."""

    @property
    def is_healthy(self) -> bool:
        """True if there is no fault."""
        is_agreed = self.has_majority and self.has_controller
        return is_agreed and not (self.down or self.leaderless or self.under_replicated)
