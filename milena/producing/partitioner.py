"""Choose the partition of a record: by its key's hash, in turn, or by the caller's own rule (pure).

Keys are hashed with murmur2, as in Kafka, so that both put a key into the same partition. Records without a key go to
one partition until its batch is full or sent, and then to the next partition. Otherwise each partition would get many
small batches, which cost every node more than a few large ones.

Source: KIP-480 (sticky partitioner), with turns instead of random choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from milena.cluster.view import NodeView, TopicView
from milena.errors import BadRecordError
from milena.model.partitioner import partition_for_key

KEYS_REMEMBERED = 1 << 14
"""Number of keys whose hash is cached.

Programs repeat their keys, and murmur2 in Python costs more than sending a record.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """An argument of a partitioner: the topic's partitions with leaders and replicas, and the cluster's nodes."""

    topic: TopicView
    nodes: tuple[NodeView, ...]

    @property
    def partition_count(self) -> int:
        """The number of partitions. A partition is a number in [0, partition_count)."""
        return len(self.topic.partitions)


Partitioner = Callable[[bytes | None, bytes | None, Topology], int]
"""A function of the caller from (key, value, topology) to a partition. Key and value are bytes. It must not block."""

key_partition = lru_cache(maxsize=KEYS_REMEMBERED)(partition_for_key)
"""The partition of a key, as Kafka's default partitioner chooses it."""


def choose(
    partitioner: Partitioner, key: bytes | None, value: bytes | None, topology: Topology
) -> int:
    """Return the partition that the caller's function chooses.

    Raises:
        BadRecordError: the function failed, or returned a value that is no partition of the topic.
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
    """Return the partitions that have a leader; return all if none has, because they may get one at any moment."""
    led = tuple(p.partition for p in topic.partitions if p.leader is not None)
    return led or tuple(p.partition for p in topic.partitions)


def next_in_turn(available: Sequence[int], last: int) -> int:
    """Return the first available partition with a number above ``last``, or the first one if there is none."""
    for partition in available:
        if partition > last:
            return partition
    return available[0]
