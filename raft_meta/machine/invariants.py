"""What is true of every image, spelled out as a check: for snapshots that come from disk or network, and for tests."""

from collections.abc import Iterator

from raft_meta.machine import configs
from raft_meta.machine.image import Image, Partition, PartitionKey


def violations(image: Image) -> list[str]:
    """Sentences about everything that is wrong with the image; empty for every image that commands can make."""
    return [*_of_maps(image), *_of_partitions(image)]


def _of_maps(image: Image) -> Iterator[str]:
    names = {topic.name: topic.topic_id for topic in image.topics.values()}
    if names != dict(image.topic_ids) or len(names) != len(image.topics):
        yield "topic names and ids do not match"
    placed = {
        (topic.topic_id, partition)
        for topic in image.topics.values()
        for partition in range(topic.partition_count)
    }
    if placed != set(image.partitions):
        yield "partitions do not match the topics"
    named = {p.name: p.producer_id for p in image.producers.values() if p.name is not None}
    if named != dict(image.producer_names):
        yield "producer names and ids do not match"
    if any(not 0 < producer_id < image.next_producer_id for producer_id in image.producers):
        yield "a producer id was never allocated"
    for broker in image.brokers.values():
        if not broker.stored_epoch <= broker.broker_epoch <= image.index:
            yield f"broker {broker.broker_id} has an epoch from the future"
    for broker_id, proposer in image.proposers.items():
        if any(sequence <= proposer.floor for sequence in proposer.window):
            yield f"proposer {broker_id} remembers a sequence below its floor"


def _of_partitions(image: Image) -> Iterator[str]:
    live = frozenset(image.live_brokers())
    min_insync = {topic.topic_id: configs.min_insync(topic) for topic in image.topics.values()}
    for key, partition in image.partitions.items():
        if key[0] in min_insync:
            for problem in _of_partition(partition, live, min_insync[key[0]]):
                yield f"{_name(image, key)}: {problem}"


def _name(image: Image, key: PartitionKey) -> str:
    return f"{image.topics[key[0]].name}-{key[1]}"


def _of_partition(partition: Partition, live: frozenset[int], min_insync: int) -> Iterator[str]:
    isr, eligible = frozenset(partition.isr), frozenset(partition.eligible)
    yield from _of_order(partition)
    if not isr:
        yield "isr is empty"
    if not isr.isdisjoint(eligible):
        yield "a broker is in sync and merely eligible at once"
    if partition.leader is not None:
        if partition.leader not in isr or partition.leader not in live:
            yield f"leader {partition.leader} is not a live member of isr"
        if partition.suspects or partition.damaged:
            yield "a member in doubt stayed under a leader"
    if eligible and (partition.leader is None or len(isr) >= min_insync):
        yield "eligible replicas although isr suffices or there is no leader"
    if any(suspect.broker_id not in isr for suspect in partition.suspects):
        yield "a suspect outside isr"
    if partition.damaged and partition.damaged != partition.isr:
        yield "a damaged member beside others"
    if partition.unclean_epoch > partition.leader_epoch:
        yield "an unclean epoch from the future"


def _of_order(partition: Partition) -> Iterator[str]:
    for name in ("isr", "eligible", "damaged"):
        members: tuple[int, ...] = getattr(partition, name)
        if members != tuple(replica for replica in partition.replicas if replica in members):
            yield f"{name} is not made of replicas in their order"
    suspects = [suspect.broker_id for suspect in partition.suspects]
    if suspects != sorted(set(suspects)):
        yield "suspects are not in order"
