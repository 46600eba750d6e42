"""Members of groups in a simulated cluster; each call may go to any node."""

from collections.abc import Iterable

from http_api.ports.groups import (
    Heartbeat,
    HeartbeatAnswer,
    OffsetToCommit,
    by_topic,
    each_partition,
)
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster, SimNode

ALL = (1, 2, 3)


class Member:
    """A member that a test controls: it works on its assignment, and reports it as owned."""

    def __init__(
        self, cluster: Cluster, name: str, *, group: str = "g", topics: Iterable[str] = ("t",)
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.name = name
        self.topics = tuple(topics)
        self.epoch = 0
        self.owned: set[tuple[str, int]] = set()
        self.answer: HeartbeatAnswer | None = None

    async def beat(self, *, node: int = 1, wait_ms: int = 0, **settings: object) -> HeartbeatAnswer:
        is_new = self.epoch == 0
        heartbeat = Heartbeat(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            topics=self.topics if is_new else None,
            owned=by_topic(sorted(self.owned)),
            wait_ms=wait_ms,
            **settings,  # type: ignore[arg-type]  # forwarded as they are
        )
        answer = await self.cluster.nodes[node].groups.service.heartbeat(heartbeat)
        self.epoch = answer.member_epoch
        self.owned = set(each_partition(answer.assignment))
        self.answer = answer
        return answer

    async def leave(self, *, node: int = 1) -> None:
        await self.cluster.nodes[node].groups.service.heartbeat(
            Heartbeat(group_id=self.group, member_id=self.name, member_epoch=-1)
        )

    async def commit(self, partition: int, offset: int, *, node: int = 1) -> None:
        await self.cluster.nodes[node].groups.service.commit(
            self.group,
            [OffsetToCommit(topic="t", partition=partition, offset=offset)],
            member_id=self.name,
            member_epoch=self.epoch,
        )

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


async def started(partitions: int = 4, **settings: int) -> Cluster:
    cluster = await Cluster(**settings).start()  # type: ignore[arg-type]  # forwarded as they are
    # The feature level rises when all nodes have registered.
    await cluster.until(lambda: cluster.image.feature_level >= 3)
    await cluster.create("t", *[ALL] * partitions)
    return cluster


def coordinator(cluster: Cluster, group: str = "g") -> SimNode:
    found = coordinator_of(cluster.image, group)
    assert found is not None
    return cluster.nodes[found]


def other(cluster: Cluster, group: str = "g") -> int:
    return next(i for i in cluster.nodes if i != coordinator(cluster, group).node_id)
