"""Finds topics and partitions in an image, and makes the errors that clients get if they do not exist. Pure."""

from typing import Protocol

from milena.model.errors import OffsetOutOfRangeError, PartitionNotFoundError, TopicNotFoundError
from raft_meta.machine.image import Topic


class GetTopic(Protocol):
    """Returns a topic by name, whose id begins with ``tag``.

    ``partition``: the requested partition, which another node may just have added.
    """

    async def __call__(self, name: str, partition: int = 0, tag: str = "") -> Topic: ...  # noqa: D102


class TopicToWrite(Protocol):
    """Returns a topic like ``GetTopic``. A missing one is created if nodes create topics and ``may_create`` is True."""

    async def __call__(  # noqa: D102
        self, name: str, partition: int = 0, *, may_create: bool, topic_id: str = ""
    ) -> Topic: ...


async def topic_to_commit(topic: GetTopic, name: str, partition: int, topic_id: str) -> Topic:
    """Return the topic of an offset that a client commits; ``topic_id``: the first digits of its id, if known.

    Raises:
        TopicNotFoundError: there is no such topic, or only a later topic of the name.
    """
    try:
        return await topic(name, partition, topic_id)
    except OffsetOutOfRangeError as error:
        raise TopicNotFoundError(
            f"topic {name!r} does not have the id {topic_id}: the topic of this id was deleted, or is another one"
        ) from error


def check_partition(topic: Topic, partition: int) -> None:
    """Refuse a partition that the topic does not have."""
    if not 0 <= partition < topic.partition_count:
        raise no_partition(topic, partition)


def no_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """Return the error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {partition}"
    )


def made_again(name: str, tag: str) -> OffsetOutOfRangeError:
    """Return the error for a position in a deleted topic, when another topic of this name exists now."""
    return OffsetOutOfRangeError(
        f"topic '{name}' was deleted and made again: '{tag}' is not the beginning of its id any more. "
        "Begin again without the id of an event"
    )
