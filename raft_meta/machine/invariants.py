"""The check of every image's invariants: for snapshots from disk or network, and for tests."""

from collections.abc import Iterator
from itertools import pairwise

from raft_meta.machine import brokers, producers, transactional_ids, transactions
from raft_meta.machine.access import access, audit, quotas
from raft_meta.machine.groups import consumers, group_rules
from raft_meta.machine.image import Ending, Image, Partition, PartitionKey, TransactionKey
from raft_meta.machine.topics import configs


def violations(image: Image) -> list[str]:
    """Return a sentence for each violation in the image; empty for every image that commands can make."""
    return [
        *_of_maps(image),
        *_of_growths(image),
        *_of_partitions(image),
        *_of_groups(image),
        *_of_offsets(image),
        *_of_consumers(image),
        *_of_names(image),
        *_of_transactions(image),
        *transactional_ids.problems(image),
        *access.problems(image),
        *quotas.problems(image),
        *audit.problems(image),
    ]


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
    yield from _of_producer_owners(image)
    for broker in image.brokers.values():
        if not broker.stored_epoch <= broker.broker_epoch <= image.index:
            yield f"broker {broker.broker_id} has an epoch from the future"
        if broker.kafka_addresses and image.feature_level < brokers.KAFKA_LEVEL:
            yield f"broker {broker.broker_id} has Kafka addresses below the feature level that stores them"
    for broker_id, proposer in image.proposers.items():
        if any(sequence <= proposer.floor for sequence in proposer.window):
            yield f"proposer {broker_id} remembers a sequence below its floor"


def _of_producer_owners(image: Image) -> Iterator[str]:
    owned = [producer for producer in image.producers.values() if producer.principal]
    if image.feature_level < producers.OWNERS_LEVEL and (owned or image.producer_blocks):
        yield "producers have principals below the feature level that stores them"
    if image.named_counts != producers.names_by_principal(owned):
        yield "the counts of named producers are wrong"
    if image.blocks_of != producers.blocks_by_principal(image.producer_blocks.values()):
        yield "blocks of producer ids and their principals do not match"
    if any(producer.name is None for producer in owned):
        yield "a producer without a name has a principal and no block"
    for number, block in image.producer_blocks.items():
        is_whole = 0 < (number + 1) * producers.IDS_PER_BLOCK <= image.next_producer_id
        if number != block.number or not is_whole or not block.principal:
            yield f"block {number} of producer ids is another one, or of no principal"
        if not 0 < block.used <= producers.IDS_PER_BLOCK:
            yield f"block {number} of producer ids has given out {block.used}"


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
    yield from _of_reassignment(partition)


def _of_reassignment(partition: Partition) -> Iterator[str]:
    replicas, moving = partition.replicas, partition.moving
    if not replicas or len(set(replicas)) != len(replicas):
        yield "replicas are not distinct brokers"
    if moving is None:
        return
    if not moving.target or len(set(moving.target)) != len(moving.target):
        yield "the target of a reassignment is not made of distinct brokers"
    if not moving.former or replicas[: len(moving.former)] != moving.former:
        yield "a reassignment lost one of the former replicas"
    if moving.is_started and not set(moving.target) <= set(replicas):
        yield "a reassignment is started without all of its new replicas"
    if not moving.is_started and replicas != moving.former:
        yield "a reassignment has new replicas before it is started"
    if moving.max_concurrent < 0 or moving.throttle_bytes_per_s < 0:
        yield "a reassignment has negative bounds"


def _of_order(partition: Partition) -> Iterator[str]:
    for name in ("isr", "eligible", "damaged"):
        members: tuple[int, ...] = getattr(partition, name)
        if members != tuple(replica for replica in partition.replicas if replica in members):
            yield f"{name} is not made of replicas in their order"
    suspects = [suspect.broker_id for suspect in partition.suspects]
    if suspects != sorted(set(suspects)):
        yield "suspects are not in order"


def _of_groups(image: Image) -> Iterator[str]:
    if image.feature_level < group_rules.LEVEL and (image.groups or image.consumers):
        yield "groups or consumers below the feature level that knows them"
    for group in image.groups.values():
        if not 0 < group.version <= image.index:
            yield f"group {group.group_id} has a version from the future"
        if not 0 <= group.emptied_ms <= image.now_ms or (group.member_count and group.emptied_ms):
            yield f"group {group.group_id} has lost its members at a wrong time"
        problems = [*group_rules.group_problems(group), *group_rules.classic_problems(group)]
        if group.classic is not None and image.feature_level < group_rules.CLASSIC_LEVEL:
            yield f"group {group.group_id} is classic below the feature level that knows classic groups"
        for problem in problems:
            yield f"group {group.group_id}: {problem}"
        # The last partition is known only of canonical sets.
        for partitions in (s for m in group.members for s in (m.held, m.target) if not problems):
            absent = group_rules.absent_partition(image, partitions)
            if absent is not None:
                yield f"group {group.group_id} names {absent}, which is not there"


def _of_offsets(image: Image) -> Iterator[str]:
    if image.offset_count != sum(len(found) for found in image.offsets.values()):
        yield "the count of committed offsets is wrong"
    for group_id, offsets in image.offsets.items():
        if group_id not in image.groups or not offsets:
            yield f"offsets of group {group_id}, which is not there, or none of them"
        for key, committed in offsets.items():
            if key not in image.partitions:
                yield f"group {group_id} has an offset in {key}, which is not there"
            if committed.offset < 0 or committed.commit_ms > image.now_ms:
                yield f"group {group_id} has an offset in {key} that no client can have committed"


def _of_consumers(image: Image) -> Iterator[str]:
    if image.consumer_counts != consumers.counts_by_principal(image.consumers.values()):
        yield "the counts of REST consumers are wrong"
    for (group_id, instance), consumer in image.consumers.items():
        name = f"consumer {instance} of group {group_id}"
        problems = list(group_rules.consumer_problems(consumer))
        for problem in problems:
            yield f"{name}: {problem}"
        if not 0 < consumer.created_index <= image.index:
            yield f"{name} comes from the future"
        if consumer.principal and image.feature_level < quotas.LEVEL:
            yield f"{name} is somebody's below the feature level that says so"
        absent = None if problems else group_rules.absent_partition(image, consumer.assigned)
        if absent is not None:
            yield f"{name} names {absent}, which is not there"


def _of_growths(image: Image) -> Iterator[str]:
    for topic in image.topics.values():
        counts = [*(count for count, _ in topic.growths), topic.partition_count]
        if any(before >= after for before, after in pairwise(counts)):
            yield f"topic {topic.name} did not grow so"
        if topic.growths and image.feature_level < transactions.LEVEL:
            yield f"topic {topic.name} keeps its growth below the feature level that knows it"


def _of_names(image: Image) -> Iterator[str]:
    for producer in image.producers.values():
        if producer.used_ms and (producer.name is None or image.feature_level < producers.LEVEL):
            yield f"producer {producer.producer_id} is to be forgotten, and has no name or no level for it"


def _of_transactions(image: Image) -> Iterator[str]:
    is_ended = [producer for producer in image.producers.values() if producer.last]
    if image.feature_level < transactions.LEVEL and (image.ending or is_ended):
        yield "transactions below the feature level that knows them"
    for producer in is_ended:
        words = (producers.COMMITTED, producers.ABORTED)
        if producer.last not in words or producer.producer_epoch < 1:
            yield f"producer {producer.producer_id} has no epoch that ended so"
    if image.ending_count != sum(len(found) for found in image.ending.values()):
        yield "the count of transactions that end is wrong"
    for key, endings in image.ending.items():
        if key not in image.partitions or not endings:
            yield f"transactions end in {key}, which is not there, or none of them"
        for transaction, ending in endings.items():
            for problem in _of_ending(image, key, transaction, ending):
                yield f"transaction {transaction} in {key}: {problem}"


def _of_ending(
    image: Image, key: PartitionKey, transaction: TransactionKey, ending: Ending
) -> Iterator[str]:
    producer_id, epoch = transaction
    producer = image.producers.get(producer_id)
    if not 0 < producer_id < image.next_producer_id or epoch < 0:
        yield "it never started"
    if producer is not None and producer.producer_epoch <= epoch:
        yield f"it ended, and its producer is still at epoch {producer.producer_epoch}"
    if ending.end_offset < 1:
        yield "it wrote nothing"
    if ending.extents and key not in {(e.topic_id, e.partition) for e in ending.extents}:
        yield "it wrote elsewhere alone"
