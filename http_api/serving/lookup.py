"""Look up the topic and the partition in a path, in the replicated state."""

from collections.abc import Callable, Mapping

from http_api.access.needs import ALL_TOPICS
from http_api.serving.call import Call
from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Partition, Topic

# Partition numbers have 32 bits. A longer number names no partition.
_PARTITION_DIGITS_MAX = 9


async def find_topic(call: Call) -> Topic:
    """Return the topic that the path names.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    return await call.ports.metadata.topic(call.names["topic"])


def seen_topics(call: Call, is_seen: Callable[[str], bool]) -> list[Topic]:
    """Return the topics that the caller may see, by name."""
    image = call.ports.metadata.image
    return [image.topics[id_] for name, id_ in sorted(image.topic_ids.items()) if is_seen(name)]


async def named_topics(call: Call, is_seen: Callable[[str], bool]) -> list[Topic]:
    """Return the topic that the path names; for ``ALL_TOPICS``, all that the caller may see.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    if call.names["topic"] == ALL_TOPICS:
        return seen_topics(call, is_seen)
    return [await find_topic(call)]


async def find_partition(call: Call) -> tuple[Topic, int, Partition]:
    """Return the partition in the path, as this node knows it.

    If this node knows the partition, the quorum is not asked, so that clients find a leader even without a majority.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: it does not exist, as a majority confirms.
        NoQuorumError: this node does not know the partition, and no majority responded.
    """
    metadata = call.ports.metadata
    partition = partition_number(call.names)
    topic = await metadata.topic(call.names["topic"], partition)
    state = metadata.image.partition(topic.topic_id, partition)
    if state is None:
        raise no_such_partition(topic, partition)
    return topic, partition, state


def no_such_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """Return the error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {partition}"
    )


def partition_number(names: Mapping[str, str]) -> int:
    """Return the number of the partition in a path, whether or not the partition exists.

    Raises:
        PartitionNotFoundError: the text is no number, or has too many digits.
    """
    text = names["partition"]
    if text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX:
        return int(text)
    raise PartitionNotFoundError(f"topic '{names['topic']}' has no partition '{text}'")


def partitions_of(call: Call, topic: Topic) -> list[tuple[int, Partition]]:
    """Return number and state of the topic's partitions, as far as this node's image has them."""
    image = call.ports.metadata.image
    states = ((p, image.partition(topic.topic_id, p)) for p in range(topic.partition_count))
    return [(partition, state) for partition, state in states if state is not None]
