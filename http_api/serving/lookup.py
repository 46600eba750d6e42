"""Topics and partitions that a path names, found in the replicated state or refused."""

from collections.abc import Mapping

from http_api.serving.call import Call
from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Partition, Topic

# Partition numbers are 32 bits wide; more digits than that name nothing.
_PARTITION_DIGITS_MAX = 9


async def find_topic(call: Call) -> Topic:
    """The topic that the path names.

    Raises:
        TopicNotFoundError: there is none.
    """
    return await call.ports.metadata.topic(call.names["topic"])


async def find_partition(call: Call) -> tuple[Topic, int, Partition]:
    """The partition that the path names, as this node knows it: who looks for a leader does not wait for a majority.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: there is none, as a majority says.
        NoQuorumError: there is none here, and no majority answered.
    """
    metadata = call.ports.metadata
    partition = partition_number(call)
    topic = await metadata.topic(call.names["topic"], partition)
    state = metadata.image.partition(topic.topic_id, partition)
    if state is None:
        raise no_such_partition(topic, partition)
    return topic, partition, state


def no_such_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """The error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic '{topic.name}' has {topic.partition_count} partitions; there is no {partition}"
    )


def partition_number(call: Call) -> int:
    """The number of a partition in the path, whether or not there is one.

    Raises:
        PartitionNotFoundError: not a number, or none that a partition can have.
    """
    return parse_partition(call.names)


def parse_partition(names: Mapping[str, str]) -> int:
    """A partition from the names of a path.

    Raises:
        PartitionNotFoundError: not a number, or none that a partition can have.
    """
    text = names["partition"]
    if text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX:
        return int(text)
    raise PartitionNotFoundError(f"topic '{names['topic']}' has no partition '{text}'")


def partitions_of(call: Call, topic: Topic) -> list[tuple[int, Partition]]:
    """The topic's partitions, as far as this node's image has them."""
    image = call.ports.metadata.image
    states = ((p, image.partition(topic.topic_id, p)) for p in range(topic.partition_count))
    return [(partition, state) for partition, state in states if state is not None]
