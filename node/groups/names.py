"""Partitions by topic name, as clients say them, and by topic id, as the image does."""

from collections.abc import Callable

from node.groups.group_messages import PartitionsByTopic
from raft_meta.machine import partition_sets
from raft_meta.machine.image import Image, PartitionSet


class TopicNames:
    """Between the two, by the present image."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def to_ids(self, partitions: PartitionsByTopic) -> PartitionSet:
        """Partitions of topics that do not exist are left out: nobody can own them."""
        topic_ids = self._image().topic_ids
        return partition_sets.of(
            (topic_ids[name], number)
            for name, numbers in partitions
            if name in topic_ids
            for number in numbers
        )

    def to_names(self, partitions: PartitionSet) -> PartitionsByTopic:
        """In order of names; of topics that were deleted none."""
        topics = self._image().topics
        return tuple(
            sorted(
                (topics[topic_id].name, numbers)
                for topic_id, numbers in partitions
                if topic_id in topics
            )
        )
