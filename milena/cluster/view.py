"""View of a cluster: values, and the judgement of its health (pure)."""

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
    """One partition. ``leader`` is None while there is none; the first of ``replicas`` is the preferred one."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        """Some replica is not in sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic. ``configs``: effective values where the endpoint gives them, else those that were set.

    ``topic_id`` tells a topic from a later one of the same name; None where the endpoint does not give it.
    """

    name: str
    partitions: tuple[PartitionView, ...]
    configs: dict[str, str] = field(default_factory=dict)
    topic_id: str | None = None

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition: all have the same number outside a reassignment."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The whole cluster at one version of its metadata."""

    cluster_id: str
    version: int
    controller_id: int | None
    nodes: tuple[NodeView, ...]
    topics: tuple[TopicView, ...]
    is_current: bool = True
    """All that any node had answered is in it; False: no majority could be asked, or was to be."""

    def partitions(self) -> Iterator[tuple[TopicView, PartitionView]]:
        """Every partition with its topic."""
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def leads(self) -> dict[int, int]:
        """How many partitions each node leads."""
        counts = dict.fromkeys((node.node_id for node in self.nodes), 0)
        for _, partition in self.partitions():
            if partition.leader in counts:
                counts[partition.leader] += 1
        return counts

    def health(self) -> "Health":
        """Faults, if there are any."""
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
    """Faults of a cluster. A node that is down counts even when it holds no replica."""

    down: tuple[int, ...]
    leaderless: tuple[tuple[str, int], ...]
    under_replicated: tuple[tuple[str, int], ...]
    has_controller: bool
    has_majority: bool
    """A majority of the metadata quorum answers; without one, all else here may be old."""

    @property
    def is_healthy(self) -> bool:
        """Nothing is wrong."""
        is_agreed = self.has_majority and self.has_controller
        return is_agreed and not (self.down or self.leaderless or self.under_replicated)
