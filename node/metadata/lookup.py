"""Looking things up in an image, with the error that a client is told where they are not there. Pure."""

from typing import Protocol

from milena.model.errors import PartitionNotFoundError
from raft_meta.machine.image import Topic


class GetTopic(Protocol):
    """The topic of a name; ``partition``: one that is asked for, which another node may have just added."""

    async def __call__(self, name: str, partition: int = 0) -> Topic: ...  # noqa: D102


class TopicToWrite(Protocol):
    """As ``GetTopic``, and a missing one is made, where nodes do that and ``may_create`` allows it."""

    async def __call__(  # noqa: D102
        self, name: str, partition: int = 0, *, may_create: bool
    ) -> Topic: ...


def check_partition(topic: Topic, partition: int) -> None:
    """Refuse a partition that the topic does not have."""
    if not 0 <= partition < topic.partition_count:
        raise no_partition(topic, partition)


def no_partition(topic: Topic, partition: int) -> PartitionNotFoundError:
    """The error for a partition that the topic does not have."""
    return PartitionNotFoundError(
        f"topic {topic.name} has partitions 0 to {topic.partition_count - 1}, not {partition}"
    )
