"""Views of the image: REST consumers, and the partitions and offsets that their calls name."""

from collections.abc import Callable, Sequence

from immutables import Map

from http_api.ports.groups import OffsetToCommit, PartitionCommit, TopicPartition, no_consumer
from milena.model.errors import ConsumerNotFoundError
from node.groups.members import assignment_of, member_of
from node.metadata.lookup import GetTopic, check_partition
from node.metadata.store import MetadataStore
from raft_meta.machine.commands import OffsetCommit
from raft_meta.machine.image import (
    CommittedOffset,
    ConsumerKey,
    GroupMember,
    Image,
    PartitionKey,
    RestConsumer,
)
from raft_meta.machine.topics import partition_sets

_NO_OFFSETS: Map[PartitionKey, CommittedOffset] = Map()


class ConsumerView:
    """One consumer in the image: its settings, the partitions that it reads, and those that only it may commit.

    ``created_index``: distinguishes it from an earlier consumer with the same name.
    """

    __slots__ = ("_image", "created_index", "key")

    def __init__(self, consumer: RestConsumer, image: Callable[[], Image]) -> None:
        self.key: ConsumerKey = (consumer.group_id, consumer.instance)
        self.created_index = consumer.created_index
        self._image = image

    @property
    def image(self) -> Image:
        """The present image."""
        return self._image()

    @property
    def consumer(self) -> RestConsumer:
        """The consumer in the present image.

        Raises:
            ConsumerNotFoundError: the consumer was deleted.
        """
        found = self.image.consumers.get(self.key)
        if found is None or found.created_index != self.created_index:
            raise ConsumerNotFoundError(
                f"group {self.key[0]!r} has no consumer {self.key[1]!r} any more"
            )
        return found

    def assigned(self) -> Sequence[PartitionKey]:
        """Return the partitions that the consumer reads now, by assignment or as a member."""
        image, consumer = self.image, self.consumer
        if consumer.assigned:
            topics = image.topics
            return [k for k in partition_sets.keys_of(consumer.assigned) if k[0] in topics]
        return list(partition_sets.keys_of(assignment_of(image, *self.key)))

    def member(self) -> GroupMember | None:
        """Return the group's member for this consumer in the present image; None if it is no member."""
        return member_of(self.image, *self.key)

    def held(self) -> frozenset[PartitionKey] | None:
        """Return the partitions that only this consumer may commit, because it is a member; None if it is no member."""
        member = self.member()
        return None if member is None else frozenset(partition_sets.keys_of(member.held))

    def name(self, key: PartitionKey) -> str:
        """Return a partition's name for messages."""
        topic = self.image.topics.get(key[0])
        return f"{key[0] if topic is None else topic.name}-{key[1]}"


async def find_consumer(metadata: MetadataStore, key: ConsumerKey) -> RestConsumer:
    """Return the consumer. If this node's image does not have it, ask for the newest image.

    Raises:
        ConsumerNotFoundError: there is no such consumer in the newest image either.
    """
    found = metadata.image.consumers.get(key)
    if found is None:
        found = (await metadata.current_image()).consumers.get(key)
    if found is None:
        raise no_consumer(*key)
    return found


async def partition_keys(names: Sequence[TopicPartition], topic: GetTopic) -> list[PartitionKey]:
    """Return topic id and number of these partitions, in order.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: one of them does not exist.
    """
    keys: list[PartitionKey] = []
    for name, number in names:
        found = await topic(name, number)
        check_partition(found, number)
        keys.append((found.topic_id, number))
    return keys


async def offset_commits(offsets: Sequence[OffsetToCommit], topic: GetTopic) -> list[OffsetCommit]:
    """Return the offsets to commit, with topic ids instead of names.

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
) -> tuple[PartitionCommit, ...]:
    """Return the group's committed offsets of these partitions. Partitions without one are left out."""
    offsets = image.offsets.get(group_id, _NO_OFFSETS)
    found: list[PartitionCommit] = []
    for name, number in names:
        row = offsets.get((image.topic_ids.get(name, ""), number))
        if row is not None:
            found.append(
                PartitionCommit(
                    topic=name,
                    partition=number,
                    offset=row.offset,
                    leader_epoch=row.leader_epoch,
                    metadata=row.metadata,
                    commit_ms=row.commit_ms,
                )
            )
    return tuple(found)
