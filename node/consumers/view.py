"""One REST consumer as the image says it is now: what it asks for, what it may read, and what only it may commit."""

from collections.abc import Callable, Sequence

from milena.model.errors import ConsumerNotFoundError
from node.groups.members import assignment_of, member_of
from raft_meta.machine import partition_sets
from raft_meta.machine.image import (
    ConsumerKey,
    GroupMember,
    Image,
    PartitionKey,
    RestConsumer,
)


class ConsumerView:
    """See the module. ``created_index`` tells it from an earlier consumer of the same name."""

    __slots__ = ("_image", "created_index", "key")

    def __init__(self, consumer: RestConsumer, image: Callable[[], Image]) -> None:
        self.key: ConsumerKey = (consumer.group_id, consumer.instance)
        self.created_index = consumer.created_index
        self._image = image

    @property
    def image(self) -> Image:
        """The image, now."""
        return self._image()

    @property
    def consumer(self) -> RestConsumer:
        """The consumer, now.

        Raises:
            ConsumerNotFoundError: it was deleted.
        """
        found = self.image.consumers.get(self.key)
        if found is None or found.created_index != self.created_index:
            raise ConsumerNotFoundError(
                f"group {self.key[0]!r} has no consumer {self.key[1]!r} any more"
            )
        return found

    def assigned(self) -> Sequence[PartitionKey]:
        """What it reads now, by hand or as a member."""
        image, consumer = self.image, self.consumer
        if consumer.assigned:
            topics = image.topics
            return [k for k in partition_sets.keys_of(consumer.assigned) if k[0] in topics]
        return list(partition_sets.keys_of(assignment_of(image, *self.key)))

    def member(self) -> GroupMember | None:
        """It as a member of its group, now; None: it is none."""
        return member_of(self.image, *self.key)

    def held(self) -> frozenset[PartitionKey] | None:
        """What only it may commit, as a member; None: it is none."""
        member = self.member()
        return None if member is None else frozenset(partition_sets.keys_of(member.held))

    def name(self, key: PartitionKey) -> str:
        """A partition, for people."""
        topic = self.image.topics.get(key[0])
        return f"{key[0] if topic is None else topic.name}-{key[1]}"
