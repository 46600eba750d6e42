"""The placement of new replicas: spread over racks, balanced over brokers, and the same for the same seed.

The proposer computes a placement and puts it into the command. So a later release may have a better algorithm, and all
nodes still apply the same placement. For each partition in turn:

- The leader goes to the broker with the fewest leaders (of this topic, then of all topics). So within a topic, the
  numbers of leaders of brokers that are not draining differ by at most one.
- Each further replica goes to a rack that the partition uses least, and there to the broker with the fewest replicas
  (of this topic, then of all topics).
- If brokers are equal in this, a random order decides. It is drawn once per call. So the partitions of different
  topics do not all combine the same brokers.

Brokers without a rack count as one rack. A draining or fenced broker is used only if there are not enough others, as
in Kafka's controller (KIP-631). A replica on a fenced broker is the last of its partition, and joins isr when the
broker is back. So a topic that is created while a node is down has all its replicas once the node is up. If no broker
is alive, placement fails.
"""

from collections.abc import Sequence
from random import Random

from milena.model.errors import InvalidReplicationError, NotReadyError
from raft_meta.machine.image import Broker, Image, Topic


class _Load:
    """One broker and its numbers of leaders and replicas. ``rank``: its position in the random order."""

    __slots__ = (
        "all_leaders",
        "all_replicas",
        "broker_id",
        "rack",
        "rank",
        "reluctance",
        "topic_leaders",
        "topic_replicas",
    )

    def __init__(self, broker: Broker, rank: int) -> None:
        self.broker_id = broker.broker_id
        self.rack = broker.rack
        # Sort serving brokers before draining ones, and draining ones before fenced ones.
        self.reluctance = 2 * broker.is_fenced + broker.is_draining
        self.topic_leaders = self.topic_replicas = 0
        self.all_leaders = self.all_replicas = 0
        self.rank = rank

    def as_leader(self) -> tuple[int, ...]:
        return (
            self.reluctance,
            self.topic_leaders,
            self.topic_replicas,
            self.all_leaders,
            self.all_replicas,
            self.rank,
        )

    def as_follower(self, rack_replicas: int) -> tuple[int, ...]:
        return self.reluctance, rack_replicas, self.topic_replicas, self.all_replicas, self.rank


def place(
    image: Image, partition_count: int, replication_factor: int, rng: Random
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of new partitions, preferred leader first.

    Raises:
        InvalidReplicationError: there are fewer brokers than the replication factor, or a count is below 1.
        NotReadyError: no broker is alive.
    """
    return _place(image, partition_count, replication_factor, rng, ())


def place_more(
    image: Image, topic: Topic, partition_count: int, rng: Random
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of partitions to be added to ``topic``, balanced with those of its present partitions.

    ``partition_count``: the number of partitions that the topic will have.

    Raises:
        InvalidReplicationError: there are fewer brokers than the topic's replication factor, or there is nothing to
            add.
        NotReadyError: no broker is alive.
    """
    present = [
        image.partitions[topic.topic_id, number].replicas for number in range(topic.partition_count)
    ]
    missing = partition_count - topic.partition_count
    return _place(image, missing, topic.replication_factor, rng, present)


def _place(
    image: Image,
    partition_count: int,
    replication_factor: int,
    rng: Random,
    present: Sequence[tuple[int, ...]],
) -> tuple[tuple[int, ...], ...]:
    live = image.live_brokers()
    if partition_count < 1 or replication_factor < 1:
        raise InvalidReplicationError(
            "Partition count and replication factor must be at least 1, not"
            f" {partition_count} and {replication_factor}."
        )
    if replication_factor > len(image.brokers):
        raise InvalidReplicationError(
            f"Replication factor {replication_factor} is larger than the number of nodes,"
            f" {len(image.brokers)}."
        )
    if not live:
        raise NotReadyError("No node is alive; try again later.")
    taken = live if replication_factor <= len(live) else sorted(image.brokers)
    ranks = rng.sample(range(len(taken)), len(taken))
    loads = {
        broker_id: _Load(image.brokers[broker_id], rank)
        for broker_id, rank in zip(taken, ranks, strict=True)
    }
    for partition in image.partitions.values():
        _count(loads, partition.replicas)
    for replicas in present:
        _count_in_topic(loads, replicas)
    return tuple(_place_one(loads, replication_factor) for _ in range(partition_count))


def _count(loads: dict[int, _Load], replicas: tuple[int, ...]) -> None:
    for at, replica in enumerate(replicas):
        load = loads.get(replica)
        if load is not None:
            load.all_replicas += 1
            load.all_leaders += at == 0


def _count_in_topic(loads: dict[int, _Load], replicas: tuple[int, ...]) -> None:
    for at, replica in enumerate(replicas):
        load = loads.get(replica)
        if load is not None:
            load.topic_replicas += 1
            load.topic_leaders += at == 0


def _place_one(loads: dict[int, _Load], replication_factor: int) -> tuple[int, ...]:
    free = dict(loads)
    leader = min(free.values(), key=_Load.as_leader)
    leader.topic_leaders += 1
    leader.all_leaders += 1
    chosen = [leader]
    racks = {leader.rack: 1}
    del free[leader.broker_id]
    while len(chosen) < replication_factor:
        follower = min(free.values(), key=lambda load: load.as_follower(racks.get(load.rack, 0)))
        racks[follower.rack] = racks.get(follower.rack, 0) + 1
        chosen.append(follower)
        del free[follower.broker_id]
    for load in chosen:
        load.topic_replicas += 1
        load.all_replicas += 1
    return tuple(load.broker_id for load in chosen)
