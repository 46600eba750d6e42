"""Partitions by topic name, as clients say them, and by topic id, as the image does."""

from collections.abc import Callable, Iterable, Sequence

from http_api.group_ports import TopicPartition
from raft_meta.machine import partition_sets
from raft_meta.machine.image import Image, PartitionSet


class TopicNames:
    """Between the two, by the present image."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def to_ids(self, partitions: Iterable[TopicPartition]) -> PartitionSet:
        """Partitions of topics that do not exist are left out: nobody can own them."""
        topic_ids = self._image().topic_ids
        return partition_sets.of(
            (topic_ids[name], number) for name, number in partitions if name in topic_ids
        )

    def to_names(self, partitions: PartitionSet) -> Sequence[TopicPartition]:
        """In order of names; of topics that were deleted none."""
        topics = self._image().topics
        return sorted(
            (topics[topic_id].name, number)
            for topic_id, number in partition_sets.keys_of(partitions)
            if topic_id in topics
        )
