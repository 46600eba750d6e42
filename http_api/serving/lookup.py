"""Topics and partitions that a path names, found in the replicated state or refused."""

from collections.abc import Mapping

from http_api.serving.call import Call
from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Partition, Topic

# Partition numbers have 32 bits. A longer number names no partition.
_PARTITION_DIGITS_MAX = 9


async def find_topic(call: Call) -> Topic:
    """Return the topic that the path names.

    Raises:
        TopicNotFoundError: there is none.
    """
    return await call.ports.metadata.topic(call.names["topic"])


async def find_partition(call: Call) -> tuple[Topic, int, Partition]:
    """Return the partition that the path names, as this node knows it.

    A caller that looks for a leader does not wait for a majority.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: there is none, as a majority confirms.
        NoQuorumError: there is none here, and no majority responded.
    """
    metadata = call.ports.metadata
    partition = partition_number(call)
    topic = await metadata.topic(call.names["topic"], partition)
    state = metadata.image.partition(topic.topic_id, partition)
    if state is None:
        raise no_such_partition(topic, partition)
    return topic, partition, state


def no_such_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """Return the error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic '{topic.name}' has {topic.partition_count} partitions; there is no {partition}"
    )


def partition_number(call: Call) -> int:
    """Return the number of a partition in the path, whether or not the partition exists.

    Raises:
        PartitionNotFoundError: the text is not a number, or not one that a partition can have.
    """
    return parse_partition(call.names)


def parse_partition(names: Mapping[str, str]) -> int:
    """Return the partition number among the names of a path.

    Raises:
        PartitionNotFoundError: the text is not a number, or not one that a partition can have.
    """
    text = names["partition"]
    if text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX:
        return int(text)
    raise PartitionNotFoundError(f"topic '{names['topic']}' has no partition '{text}'")


def partitions_of(call: Call, topic: Topic) -> list[tuple[int, Partition]]:
    """Return the topic's partitions that this node's image has."""
    image = call.ports.metadata.image
    states = ((p, image.partition(topic.topic_id, p)) for p in range(topic.partition_count))
    return [(partition, state) for partition, state in states if state is not None]
