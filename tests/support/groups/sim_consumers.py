"""A client of a REST consumer in a simulated cluster; each call may go to any node."""

from http_api.ports.groups import Delivered, NewConsumer, OffsetToCommit
from milena.model.batch.decode import records_in
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster, SimNode

GROUP = "g"


def wanted(
    instance: str | None = "c",
    *,
    reset: str = "earliest",
    is_auto_commit: bool = False,
    min_bytes: int = 1,
    timeout_ms: int = 1_000,
) -> NewConsumer:
    return NewConsumer(
        instance=instance,
        format="json",
        auto_offset_reset=reset,
        is_auto_commit=is_auto_commit,
        fetch_min_bytes=min_bytes,
        request_timeout_ms=timeout_ms,
    )


def values(delivered: Delivered) -> list[str]:
    return [
        (row[3] or b"").decode()
        for part in delivered.deliveries
        for row in records_in(part.batches, part.start_offset, part.end_offset)
    ]


class Client:
    """A client of one REST consumer."""

    def __init__(self, cluster: Cluster, instance: str = "c", group: str = GROUP) -> None:
        self.cluster = cluster
        self.name = (group, instance)

    def at(self, node_id: int | None = None) -> SimNode:
        return self.cluster.any if node_id is None else self.cluster.nodes[node_id]

    async def create(self, node_id: int | None = None, **settings: object) -> "Client":
        service = self.at(node_id).consumers.service
        await service.create(self.name[0], wanted(self.name[1], **settings))  # type: ignore[arg-type]  # forwarded as they are
        return self

    async def subscribe(self, *topics: str, node_id: int | None = None) -> "Client":
        await self.at(node_id).consumers.service.subscribe(*self.name, topics, None)
        return self

    async def read(
        self,
        node_id: int | None = None,
        *,
        timeout_ms: int | None = 1_000,
        max_bytes: int | None = None,
        token: str = "",
    ) -> list[str]:
        service = self.at(node_id).consumers.service
        found = await service.records(
            *self.name, timeout_ms=timeout_ms, max_bytes=max_bytes, token=token
        )
        return values(found)

    async def commit(self, *offsets: OffsetToCommit, node_id: int | None = None) -> None:
        await self.at(node_id).consumers.service.commit(*self.name, offsets or None)

    async def committed(self, topic: str = "t", *partitions: int) -> dict[int, int]:
        names = [(topic, number) for number in partitions or (0,)]
        found = await self.at().consumers.service.committed(*self.name, names)
        return {row.partition: row.offset for row in found}

    @property
    def coordinator(self) -> int:
        found = coordinator_of(self.cluster.image, self.name[0])
        assert found is not None
        return found
