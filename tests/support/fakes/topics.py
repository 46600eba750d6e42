"""Topics with several partitions as a consumer sees them, without a network."""

from collections.abc import Callable

from milena.cluster.metadata import Listener
from milena.cluster.view import ClusterView, PartitionView, TopicView
from milena.errors import TargetNotFoundError
from milena.records import Position
from tests.support.fakes.partition import Answer, FakePartition


class FakeTopics:
    """``FakeTopics(t=2)`` has the partitions t-0 and t-1. A value names its partition and offset: ``b"t-0:3"``."""

    def __init__(self, **counts: int) -> None:
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        self.tags: dict[str, str] = {}
        """The tag of each topic, which changes when the topic is created again."""
        self._listeners: list[Listener] = []
        for topic, count in counts.items():
            self.grow(topic, count)

    def grow(self, topic: str, count: int) -> None:
        """Set a topic's number of partitions, and call the listeners."""
        tag = self.tags.setdefault(topic, f"{topic}1")
        for partition in range(count):
            self.partitions.setdefault(
                (topic, partition), FakePartition(per_answer=100, topic_tag=tag)
            )
        for listener in list(self._listeners):
            listener(self._view())

    def make_again(self, topic: str) -> None:
        """Delete a topic, and create another one of its name with as many partitions."""
        former = [found for (name, _), found in self.partitions.items() if name == topic]
        self.tags[topic] = f"{topic}{int(self.tags[topic].removeprefix(topic)) + 1}"
        for number in range(len(former)):
            self.partitions[topic, number] = FakePartition(
                per_answer=100, topic_tag=self.tags[topic]
            )
        for partition in former:
            partition.wake()

    def write(self, topic: str, partition: int, count: int = 1) -> None:
        """Append ``count`` batches of one record each."""
        found = self.partitions[topic, partition]
        for _ in range(count):
            found.append(value_at(topic, partition, found.end))

    # -- the ports ---------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def mark_stale(self, topic: str | None = None) -> None:
        pass

    async def partition_count(self, name: str) -> int:
        count = sum(topic == name for topic, _ in self.partitions)
        if not count:
            raise TargetNotFoundError(f"no topic {name}", status=404, error_code=40401)
        return count

    async def fetch(
        self,
        topic: str,
        partition: int,
        *,
        offset: Position,
        max_bytes: int,
        wait_ms: int,
        is_verified: bool = False,
    ) -> Answer:
        found = self.partitions.get((topic, partition))
        if found is None:
            raise TargetNotFoundError(f"no {topic}-{partition}", status=404, error_code=40402)
        return await found.fetch(
            topic,
            partition,
            offset=offset,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            is_verified=is_verified,
        )

    def _view(self) -> ClusterView:
        topics = sorted({topic for topic, _ in self.partitions})
        return ClusterView(
            cluster_id="c",
            version=1,
            controller_id=1,
            nodes=(),
            topics=tuple(
                TopicView(
                    name=name,
                    configs={},
                    partitions=tuple(
                        PartitionView(
                            partition=p, leader=1, leader_epoch=1, replicas=(1,), isr=(1,)
                        )
                        for topic, p in sorted(self.partitions)
                        if topic == name
                    ),
                )
                for name in topics
            ),
        )


def value_at(topic: str, partition: int, offset: int) -> bytes:
    """Return the value that ``write`` appends there."""
    return f"{topic}-{partition}:{offset}".encode()
