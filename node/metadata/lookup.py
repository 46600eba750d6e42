"""Finds topics and partitions in an image, and makes the errors that clients get if they do not exist. Pure."""

from typing import Protocol

from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Topic


class GetTopic(Protocol):
    """Returns a topic by name. ``partition``: the requested partition, which another node may just have added.

    ``topic_id``: the first digits of the topic's id. A later topic of the name is refused like a missing one.
    """

    async def __call__(  # noqa: D102
        self, name: str, partition: int = 0, *, topic_id: str = ""
    ) -> Topic: ...


class TopicToWrite(Protocol):
    """Returns a topic like ``GetTopic``. A missing one is created if nodes create topics and ``may_create`` is True."""

    async def __call__(  # noqa: D102
        self, name: str, partition: int = 0, *, may_create: bool, topic_id: str = ""
    ) -> Topic: ...


def check_partition(topic: Topic, partition: int) -> None:
    """Refuse a partition that the topic does not have."""
    if not 0 <= partition < topic.partition_count:
        raise no_partition(topic, partition)


def no_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """Return the error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {partition}"
    )
