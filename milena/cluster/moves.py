"""Moves of replicas between nodes: requested moves, moves in progress, and moves that change a replication factor."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from milena.cluster.view import ClusterView, PartitionView
from milena.fields import AnswerFields, Json
from milena.records import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedMove:
    """The requested move of one partition. ``error`` is None if the move was accepted, otherwise the reason."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    is_cancelled: bool
    error: str | None

    @property
    def added(self) -> tuple[int, ...]:
        """The nodes that must copy the partition for the move."""
        return tuple(node for node in self.after if node not in self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningReplica:
    """A replica that is being added. ``offsets_left`` and ``bytes_left`` are None if its leader did not report them."""

    node_id: int
    is_in_sync: bool
    offsets_left: int | None
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition that is moving. ``state`` is waiting, catching_up or finishing."""

    topic: str
    partition: int
    state: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    isr: tuple[int, ...]
    added: tuple[JoiningReplica, ...]

    @property
    def bytes_left(self) -> int | None:
        """The bytes that the new replicas of the partition have yet to copy; None while unknown."""
        sizes = [replica.bytes_left for replica in self.added]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) and self.state != "waiting" else None


def planned_moves(answer: Json) -> list[RequestedMove]:
    """Return the moves in the response to a request that starts or cancels moves."""
    return [
        row.read(
            RequestedMove, before=row.integers("replicas_before"), after=row.integers("replicas")
        )
        for row in AnswerFields(answer, "reassignments").objects("partitions")
    ]


def running_moves(answer: Json) -> list[Move]:
    """Return the moves in progress from a node's response."""
    return [
        row.read(
            Move,
            before=row.integers("replicas_before"),
            after=row.integers("replicas"),
            added=tuple(map(_added, row.objects("added"))),
        )
        for row in AnswerFields(answer, "reassignments").objects("reassignments")
    ]


def _added(row: AnswerFields) -> JoiningReplica:
    return row.read(JoiningReplica, node_id=row.integer("broker_id"))


def with_replicas(view: ClusterView, topic: str, factor: int) -> dict[TopicPartition, list[int]]:
    """Return the new nodes of each partition of a topic whose number of replicas is not ``factor``.

    The preferred leader stays first. New replicas go to other racks if possible, then to the nodes with the fewest
    replicas. Replicas that are not in sync are dropped first.

    Raises:
        ValueError: there are too few nodes; the message says how many.
    """
    racks = {node.node_id: node.rack for node in view.nodes}
    usable = [node.node_id for node in view.nodes if node.is_live and not node.is_draining]
    if factor > len(usable):
        raise ValueError(
            f"{factor} replicas need {factor} nodes that are up and not draining; there are {len(usable)}"
        )
    loads = Counter(node for _, p in view.partitions() for node in p.replicas)
    found = {}
    for partition in next((t.partitions for t in view.topics if t.name == topic), ()):
        if len(partition.replicas) == factor:
            continue
        replicas = _resized(partition, factor, usable, racks, loads)
        loads.subtract(partition.replicas)
        loads.update(replicas)
        found[TopicPartition(topic, partition.partition)] = replicas
    return found


def _resized(
    partition: PartitionView,
    factor: int,
    usable: Iterable[int],
    racks: dict[int, str | None],
    loads: Counter[int],
) -> list[int]:
    replicas = list(partition.replicas)

    def crowd(node: int) -> int:
        """Return how many other replicas are in the node's rack."""
        return sum(racks.get(other) == racks.get(node) for other in replicas if other != node)

    while len(replicas) < factor:
        left = [node for node in usable if node not in replicas]
        replicas.append(min(left, key=lambda node: (crowd(node), loads[node], node)))
    while len(replicas) > factor:
        isr = partition.isr
        kept = next((node for node in replicas if node in isr), replicas[0])
        left = [node for node in replicas if node != kept]
        replicas.remove(
            max(left, key=lambda node: (node not in isr, crowd(node), loads[node], node))
        )
    return replicas
