"""Look-ups in an image that raise the error for the client if the topic or partition does not exist. Pure."""

from typing import Protocol

from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Topic


class GetTopic(Protocol):
    """Look up a topic by name. ``partition``: the requested partition, which another node may have just added."""

    async def __call__(self, name: str, partition: int = 0) -> Topic: ...  # noqa: D102


class TopicToWrite(Protocol):
    """Look up a topic like ``GetTopic``; create a missing one if nodes create topics and ``may_create`` allows it."""

    async def __call__(  # noqa: D102
        self, name: str, partition: int = 0, *, may_create: bool
    ) -> Topic: ...


def check_partition(topic: Topic, partition: int) -> None:
    """Refuse a partition that the topic does not have."""
    if not 0 <= partition < topic.partition_count:
        raise no_partition(topic, partition)


def no_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """Return the error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic {topic.name} has partitions 0 to {topic.partition_count - 1}, not {partition}"
    )
