"""Rules of waiting for a change of the cluster: it is news of brokers and topics, never of what groups commit."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from http_api.ports.groups import OffsetToCommit
from http_api.ports.node import NewTopic
from raft_meta.machine.image import Image
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import after, virtual


async def commit(cluster: Cluster, offset: int, group: str = "g") -> None:
    """Every node has applied it when this returns."""
    await cluster.nodes[1].groups.service.commit(
        group, [OffsetToCommit(topic="t", partition=0, offset=offset)]
    )
    await after(50)


@virtual
async def test_what_groups_commit_is_no_news() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await commit(cluster, 0)
        admin = cluster.nodes[2].admin
        version, index = admin.version, admin.image.index
        waiting = asyncio.ensure_future(admin.image_since(version, timeout_ms=60_000))
        for offset in range(20):
            await commit(cluster, offset)
        assert not waiting.done()
        assert admin.version == version
        assert admin.image.index >= index + 20
        await cluster.nodes[1].admin.create_topic(
            NewTopic(name="u", partition_count=1, replication_factor=1)
        )
        assert (await waiting).topic("u") is not None
        assert admin.version > index


@virtual
async def test_a_version_seen_on_one_node_serves_to_wait_on_another() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await commit(cluster, 0)
        seen = cluster.nodes[1].admin.version
        later = cluster.nodes[3].admin
        waiting = asyncio.ensure_future(later.image_since(seen, timeout_ms=60_000))
        await commit(cluster, 1)
        assert not waiting.done()
        await cluster.kill(2)
        image = await waiting
        while not image.brokers[2].is_fenced:
            assert later.version > seen
            seen = later.version
            image = await later.image_since(seen, timeout_ms=60_000)


def work_of(listener: Callable[[Image], None], image: Image) -> int:
    """Calls that the listener makes for this image, of Python's and of C's."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        listener(image)
    finally:
        sys.setprofile(None)
    return calls


@virtual
@pytest.mark.parametrize("partitions", [2, 60])
async def test_a_commit_costs_no_listener_more_where_there_are_many_partitions(
    partitions: int,
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", *[(1, 2, 3)] * partitions)
        for number in range(partitions):
            await commit(cluster, 0, f"g{number}")
        node = cluster.nodes[1]
        metadata = node.metadata
        listeners, metadata._listeners = metadata._listeners, []
        await commit(cluster, 1, "g0")
        image = metadata.image
        assert max(work_of(listener, image) for listener in listeners) < 40
        node.replicas._work.clear()
        metadata._listeners = listeners
        await commit(cluster, 2, "g0")
        assert not node.replicas._work.is_set()
        assert metadata.image.groups is image.groups
