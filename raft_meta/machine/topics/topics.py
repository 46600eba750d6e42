"""Topics: create, delete, add partitions, configure. Names follow Kafka's rules, so that Kafka's tools can use them.

The proposer chooses topic id and placement, and this module checks them. A new partition has every live replica in isr,
because all copies are empty. The first live one leads, draining brokers last, at leader epoch 0. If isr is smaller than
min.insync.replicas, no record is committed, so the empty copies of the other replicas lack none. These are eligible.
"""

import re

from milena.model.errors import (
    ConflictError,
    InvalidReplicationError,
    InvalidRequestError,
    InvalidTopicNameError,
    StaleVersionError,
    TopicExistsError,
    TopicNotFoundError,
    UnavailableError,
)
from milena.model.types import WallMs
from raft_meta.machine import bounds, transactional_ids, transactions
from raft_meta.machine.commands import AddPartitions, AlterConfigs, CreateTopic, DeleteTopic
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import groups, offsets
from raft_meta.machine.image import Image, Partition, PartitionKey, Topic
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import configs, partitions

TopicCommand = CreateTopic | DeleteTopic | AddPartitions | AlterConfigs

GROWTHS_KEPT = 16
"""How many of its latest growths a topic keeps. A growth is an addition of partitions. A write with an idempotency key
may be in the partition to which its key belonged before a growth. It is searched there for a day."""
NAME_LENGTH_MAX = 249
"""As in Kafka: a partition's folder is the name, a dash and up to five digits. A file name has 255 bytes at most."""
PARTITIONS_MAX = 10_000
"""Largest number of partitions of one topic. At replication factor 5, a command that creates all stays below 1 MiB."""

ELIGIBLE_LEVEL = 5
"""The feature level from which on replicas of a new partition may be eligible. Nodes of older releases make none of
them eligible, so below this level, images would differ."""

OWN_KEYS_LEVEL = 11
"""The feature level from which on the idempotency keys of a new topic belong to the principal that sends them."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def apply(image: Image, index: int, now_ms: WallMs, command: TopicCommand) -> Outcome:
    """Apply a topic command.

    ``now_ms``: the time at which the topic is created or grows. ``index``: the new version of groups that lose the
    topic.

    Raises:
        InvalidTopicNameError, InvalidReplicationError, TooManyReplicasError, InvalidConfigError,
        TopicExistsError, TopicNotFoundError, StaleVersionError, UnavailableError, TransactionsPendingError: the
            command is refused.
    """
    match command:
        case CreateTopic():
            return _create(image, now_ms, command)
        case DeleteTopic():
            return _delete(image, index, command)
        case AddPartitions():
            return _add_partitions(image, now_ms, command)
        case AlterConfigs():
            return _alter_configs(image, command)


def check_name(name: str) -> None:
    """Refuse a name that Kafka would refuse.

    Raises:
        InvalidTopicNameError: the message says which rule it breaks.
    """
    if not name:
        raise InvalidTopicNameError("A topic name must not be empty.")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicNameError(
            f"A topic name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}."
        )
    if name in {".", ".."}:
        raise InvalidTopicNameError(f"A topic cannot be named {name!r}.")
    if not _NAME.fullmatch(name):
        raise InvalidTopicNameError(
            f"Topic name {name!r} has a character other than ASCII letters, digits, '.', '_' and '-'."
        )


def check_new_name(image: Image, name: str) -> None:
    """Refuse a name that no new topic may have. Proposers also call this before they propose the command.

    Raises:
        InvalidTopicNameError: the name breaks a rule of ``check_name``, or differs from the name of an existing topic
            only in '.' and '_'. Kafka refuses both, because its metric names cannot distinguish them.
        TopicExistsError: the topic exists.
    """
    check_name(name)
    if name in image.topic_ids:
        raise TopicExistsError(f"Topic '{name}' already exists.")
    if "." in name or "_" in name:
        flat = name.replace(".", "_")
        for other in image.topic_ids:
            if len(other) == len(name) and other.replace(".", "_") == flat:
                raise InvalidTopicNameError(
                    f"Topic '{name}' collides with existing topic '{other}'."
                )


def check_placement(image: Image, placement: tuple[tuple[int, ...], ...]) -> int:
    """Check a placement and return its replication factor.

    Raises:
        InvalidReplicationError: there are no or too many partitions, a broker is repeated or unknown, or rows have
            unequal lengths.
    """
    if not 1 <= len(placement) <= PARTITIONS_MAX:
        raise InvalidReplicationError(
            f"A topic has 1..{PARTITIONS_MAX} partitions, not {len(placement)}."
        )
    replication_factor = len(placement[0])
    for partition, replicas in enumerate(placement):
        if not replicas or len(replicas) != replication_factor:
            raise InvalidReplicationError(
                f"Every partition needs the same number of replicas: partition 0 has {replication_factor},"
                f" partition {partition} has {len(replicas)}."
            )
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicationError(
                f"Partition {partition} names a node twice: {partitions.ids(replicas)}."
            )
        unknown = [replica for replica in replicas if replica not in image.brokers]
        if unknown:
            raise InvalidReplicationError(
                f"Partition {partition} names nodes that are not registered: {partitions.ids(unknown)}."
            )
    return replication_factor


def _create(image: Image, now_ms: WallMs, command: CreateTopic) -> Outcome:
    check_new_name(image, command.name)
    if not _TOPIC_ID.fullmatch(command.topic_id):
        raise InvalidRequestError("A topic id has 32 lower-case hex digits.")
    if command.topic_id in image.topics:
        raise ConflictError(f"Topic id {command.topic_id} is taken.")
    replication_factor = check_placement(image, command.placement)
    if bounds.are_in_force(image):
        bounds.check_new_replicas(image, command.placement)
    topic = Topic(
        topic_id=command.topic_id,
        name=command.name,
        partition_count=len(command.placement),
        replication_factor=replication_factor,
        configs=configs.validate(command.configs, replication_factor, level=image.feature_level),
        created_ms=now_ms,
        has_own_keys=image.feature_level >= OWN_KEYS_LEVEL,
    )
    created = _placed(image, topic, command.placement, first_partition=0)
    after = replace(
        image,
        topics=image.topics.set(topic.topic_id, topic),
        topic_ids=image.topic_ids.set(topic.name, topic.topic_id),
    )
    return Outcome(partitions.with_partitions(after, created), topic.topic_id)


def _placed(
    image: Image, topic: Topic, placement: tuple[tuple[int, ...], ...], *, first_partition: int
) -> dict[PartitionKey, Partition]:
    """Return new partitions. A draining broker joins isr, but leads only if every live replica is draining."""
    live = frozenset(image.live_brokers())
    min_insync = configs.min_insync(topic) if image.feature_level >= ELIGIBLE_LEVEL else 0
    leaving = frozenset(b.broker_id for b in image.brokers.values() if b.is_draining)
    created: dict[PartitionKey, Partition] = {}
    for partition, replicas in enumerate(placement, first_partition):
        isr = tuple(replica for replica in replicas if replica in live)
        if not isr:
            raise UnavailableError(
                f"None of the nodes {partitions.ids(replicas)} of partition {partition} is alive; try again later."
            )
        leader = next((member for member in isr if member not in leaving), isr[0])
        others = tuple(replica for replica in replicas if replica not in live)
        created[topic.topic_id, partition] = Partition(
            replicas=replicas,
            isr=isr,
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
            # If the others were not eligible and the only in-sync replica died for good, no replica could lead.
            eligible=others if len(isr) < min_insync else (),
        )
    return created


def _delete(image: Image, index: int, command: DeleteTopic) -> Outcome:
    """Delete the topic, and all state of it in groups, consumers and transactions."""
    topic = _topic(image, command.topic_id)
    with image.partitions.mutate() as remaining:
        for partition in range(topic.partition_count):
            del remaining[topic.topic_id, partition]
        after = replace(
            image,
            topics=image.topics.delete(topic.topic_id),
            topic_ids=image.topic_ids.delete(topic.name),
            partitions=remaining.finish(),
        )
    after = transactions.without_topic(offsets.without_topic(after, topic), topic)
    after = transactional_ids.without_topic(after, index, topic)
    return Outcome(groups.without_topic(after, index, topic.topic_id))


def _add_partitions(image: Image, now_ms: WallMs, command: AddPartitions) -> Outcome:
    topic = _topic(image, command.topic_id)
    if topic.partition_count != command.partition_count:
        raise StaleVersionError(
            f"Topic '{topic.name}' has {topic.partition_count} partitions, not {command.partition_count}."
        )
    replication_factor = check_placement(image, command.placement)
    partition_count = topic.partition_count + len(command.placement)
    if replication_factor != topic.replication_factor or partition_count > PARTITIONS_MAX:
        raise InvalidReplicationError(
            f"Topic '{topic.name}' takes partitions of {topic.replication_factor} replicas, up to"
            f" {PARTITIONS_MAX} in all; these have {replication_factor}, and would make {partition_count}."
        )
    if bounds.are_in_force(image):
        bounds.check_new_replicas(image, command.placement)
    created = _placed(image, topic, command.placement, first_partition=topic.partition_count)
    growths = topic.growths
    if image.feature_level >= transactions.LEVEL:
        growths = (*growths, (topic.partition_count, now_ms))[-GROWTHS_KEPT:]
    grown = replace(topic, partition_count=partition_count, growths=growths)
    return Outcome(partitions.with_partitions(_with_topic(image, grown), created))


def _alter_configs(image: Image, command: AlterConfigs) -> Outcome:
    before = _topic(image, command.topic_id)
    altered = configs.alter(
        before.configs, command.changes, before.replication_factor, level=image.feature_level
    )
    if altered == before.configs:
        return Outcome(image)
    after = replace(before, configs=altered)
    transactions.check_configs(image, after)
    changed: dict[PartitionKey, Partition] = {}
    if configs.min_insync(after) < configs.min_insync(before):
        for number in range(before.partition_count):
            key = (before.topic_id, number)
            partition = partitions.with_min_insync(image.partitions[key], configs.min_insync(after))
            if partition is not image.partitions[key]:
                changed[key] = partition
    return Outcome(partitions.with_partitions(_with_topic(image, after), changed))


def _topic(image: Image, topic_id: str) -> Topic:
    topic = image.topics.get(topic_id)
    if topic is None:
        raise TopicNotFoundError(f"There is no topic with id {topic_id}.")
    return topic


def _with_topic(image: Image, topic: Topic) -> Image:
    return replace(image, topics=image.topics.set(topic.topic_id, topic))
