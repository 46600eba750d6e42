"""Count partitions by topic and by broker, and collect those in trouble: offline, or with too few in-sync replicas.

Pure, except that it lets the event loop run other work between steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, unique

from milena.model.turns import one_turn
from raft_meta.machine.image import Image, Partition, PartitionKey, Topic
from raft_meta.machine.topics.configs import min_insync

STEP = 1_000
"""Number of partitions that are counted in one step, which takes one or two milliseconds."""


@unique
class Trouble(IntEnum):
    """Troubles of a partition, the worst first."""

    OFFLINE = 0
    BELOW_MIN_INSYNC = 1
    UNDER_REPLICATED = 2


def trouble_of(partition: Partition, least: int) -> Trouble | None:
    """Return a partition's trouble, or None. ``least`` is the number of in-sync replicas that acks=all needs."""
    if partition.leader is None:
        return Trouble.OFFLINE
    if len(partition.isr) < least:
        return Trouble.BELOW_MIN_INSYNC
    return Trouble.UNDER_REPLICATED if len(partition.isr) < len(partition.replicas) else None


@dataclass(slots=True)
class TopicTally:
    """The partitions of a topic: their number, and how many have each trouble."""

    partitions: int = 0
    troubles: list[int] = field(default_factory=lambda: [0] * len(Trouble))

    @property
    def worst(self) -> tuple[int, ...]:
        """A sort key: more and worse trouble sorts higher."""
        return tuple(self.troubles)


@dataclass(slots=True)
class BrokerTally:
    """Counts of a broker's replicas."""

    leads: int = 0
    replicas: int = 0
    out_of_sync: int = 0


@dataclass(slots=True)
class ClusterTally:
    """Counts of all topics that were read."""

    topics: dict[str, TopicTally] = field(default_factory=dict)
    """The key is the topic_id."""
    brokers: dict[int, BrokerTally] = field(default_factory=dict)
    partitions: int = 0
    troubled: dict[Trouble, list[PartitionKey]] = field(
        default_factory=lambda: {trouble: [] for trouble in Trouble}
    )

    def worst(self) -> Iterator[tuple[PartitionKey, Trouble]]:
        """Yield partitions in trouble, the worst first."""
        for trouble, keys in self.troubled.items():
            for key in keys:
                yield key, trouble

    def add(self, key: PartitionKey, partition: Partition, least: int) -> None:
        """Count a partition."""
        topic = self.topics[key[0]]
        topic.partitions += 1
        self.partitions += 1
        if (trouble := trouble_of(partition, least)) is not None:
            topic.troubles[trouble] += 1
            self.troubled[trouble].append(key)
        for broker_id in partition.replicas:
            broker = self.brokers.setdefault(broker_id, BrokerTally())
            broker.replicas += 1
            broker.leads += broker_id == partition.leader
            broker.out_of_sync += broker_id not in partition.isr


async def tally(image: Image, topics: Iterable[Topic]) -> ClusterTally:
    """Count all partitions of these topics. Other work of the loop runs in between."""
    found, looked = ClusterTally(), 0
    for topic in topics:
        found.topics[topic.topic_id] = TopicTally()
        least = min_insync(topic)
        for number in range(topic.partition_count):
            key = (topic.topic_id, number)
            partition = image.partitions.get(key)
            if partition is not None:
                found.add(key, partition, least)
            looked += 1
            if looked % STEP == 0:
                await one_turn()
    return found


class LastTally:
    """A cache of the tally of all topics, until topics or partitions change."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._tally = ClusterTally()

    async def of_all(self, image: Image) -> ClusterTally:
        """Return the tally of an image. The image's maps are immutable, so the same map objects have the same tally."""
        seen = self._image
        if (
            seen is None
            or seen.partitions is not image.partitions
            or seen.topics is not image.topics
        ):
            self._tally = await tally(image, image.topics.values())
            self._image = image
        return self._tally
