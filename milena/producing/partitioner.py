"""Which partition a record goes to: its key's hash, taking turns, or the caller's own rule (pure).

Keys go by murmur2 as with Kafka, so that both put a key into the same partition. Records without a key stick to one
partition until a batch for it is full or sent, and then go on to the next: whole batches take turns, and not records,
for many small batches cost everybody more than few large ones.

Source: KIP-480 (sticky partitioner), with turns in place of chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from milena.cluster.view import NodeView, TopicView
from milena.errors import BadRecordError
from milena.model.partitioner import partition_for_key

KEYS_REMEMBERED = 1 << 14
"""Keys whose hash is kept: programs repeat theirs, and murmur2 in Python costs more than sending a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A partitioner decides by this: the topic's partitions with leaders and replicas, and the cluster's nodes."""

    topic: TopicView
    nodes: tuple[NodeView, ...]

    @property
    def partition_count(self) -> int:
        """A partition is a number in [0, partition_count)."""
        return len(self.topic.partitions)


Partitioner = Callable[[bytes | None, bytes | None, Topology], int]
"""A rule of the caller's own: key, value (both serialized) and topology to partition. Must not block."""

key_partition = lru_cache(maxsize=KEYS_REMEMBERED)(partition_for_key)
"""The partition of a key; the same as Kafka's default partitioner gives."""


def choose(
    partitioner: Partitioner, key: bytes | None, value: bytes | None, topology: Topology
) -> int:
    """Partition by the caller's rule, checked.

    Raises:
        BadRecordError: it failed, or named no partition of the topic.
    """
    try:
        partition: object = partitioner(key, value, topology)
    except Exception as error:
        raise BadRecordError(f"the partitioner failed: {error!r}") from error
    if isinstance(partition, int) and 0 <= partition < topology.partition_count:
        return int(partition)
    raise BadRecordError(
        f"the partitioner chose {partition!r}; {topology.topic.name} has partitions 0 to "
        f"{topology.partition_count - 1}"
    )


def available_partitions(topic: TopicView) -> tuple[int, ...]:
    """The partitions that have a leader; all when none has, for one may get its leader any moment."""
    led = tuple(p.partition for p in topic.partitions if p.leader is not None)
    return led or tuple(p.partition for p in topic.partitions)


def next_in_turn(available: Sequence[int], last: int) -> int:
    """The partition after ``last``; the first when none comes after it."""
    for partition in available:
        if partition > last:
            return partition
    return available[0]
