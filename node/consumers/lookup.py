"""Names and ids: what REST consumers' calls name, found in the image."""

from collections.abc import Awaitable, Callable, Sequence

from immutables import Map

from http_api.group_ports import TopicPartition
from milena.model.errors import ConsumerNotFoundError
from node.consumers.consumer_messages import CommittedRow, ConsumerOffsetRow
from node.metadata.lookup import check_partition
from node.metadata.store import MetadataStore
from raft_meta.machine.commands import OffsetCommit
from raft_meta.machine.image import (
    CommittedOffset,
    ConsumerKey,
    Image,
    PartitionKey,
    RestConsumer,
    Topic,
)

_NO_OFFSETS: Map[PartitionKey, CommittedOffset] = Map()


async def consumer(
    metadata: MetadataStore, key: ConsumerKey, current_image: Callable[[], Awaitable[Image]]
) -> RestConsumer:
    """The consumer; what another node has answered with, this one finds too.

    Raises:
        ConsumerNotFoundError: a majority knows no such consumer.
    """
    found = metadata.image.consumers.get(key)
    if found is None:
        found = (await current_image()).consumers.get(key)
    if found is None:
        raise ConsumerNotFoundError(
            f"group {key[0]!r} has no consumer {key[1]!r}: it was never made, was deleted, or not heard of for too long"
        )
    return found


async def partition_keys(
    names: Sequence[TopicPartition], topic: Callable[[str], Awaitable[Topic]]
) -> list[PartitionKey]:
    """Ids of these partitions, in order.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: one of them does not exist.
    """
    keys: list[PartitionKey] = []
    for name, number in names:
        found = await topic(name)
        check_partition(found, number)
        keys.append((found.topic_id, number))
    return keys


async def offset_commits(
    offsets: Sequence[ConsumerOffsetRow], topic: Callable[[str], Awaitable[Topic]]
) -> list[OffsetCommit]:
    """The same offsets by ids.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: one of the partitions does not exist.
    """
    keys = await partition_keys([(row.topic, row.partition) for row in offsets], topic)
    return [
        OffsetCommit(
            topic_id=topic_id,
            partition=number,
            offset=row.offset,
            leader_epoch=row.leader_epoch,
            metadata=row.metadata,
        )
        for (topic_id, number), row in zip(keys, offsets, strict=True)
    ]


def committed(
    image: Image, group_id: str, names: Sequence[TopicPartition]
) -> tuple[CommittedRow, ...]:
    """What the group has committed of these; the others are left out."""
    offsets = image.offsets.get(group_id, _NO_OFFSETS)
    found: list[CommittedRow] = []
    for name, number in names:
        row = offsets.get((image.topic_ids.get(name, ""), number))
        if row is not None:
            found.append(
                CommittedRow(
                    topic=name,
                    partition=number,
                    offset=row.offset,
                    leader_epoch=row.leader_epoch,
                    metadata=row.metadata,
                    commit_ms=row.commit_ms,
                )
            )
    return tuple(found)
