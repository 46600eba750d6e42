"""Who seeks begins anew: a call that was left behind takes nothing of what comes then."""

import asyncio

from http_api.ports.groups import Seek
from tests.support.clusters.nodes import cluster_of
from tests.support.groups.sim_consumers import Client
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_a_read_that_waits_ends_empty_when_its_consumer_seeks() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await (await Client(cluster).create()).subscribe("t")
        # Its asker may be gone, and the coordinator has not noticed yet.
        left_behind = asyncio.create_task(client.read(1, timeout_ms=60_000))
        await after(100)
        seek = Seek(topic="t", partition=0, offset=0)
        await cluster.nodes[2].consumers.service.seek(*client.name, [seek])
        await cluster.any.write("t", "a")
        assert await client.read(2) == ["a"]
        await client.commit()
        assert await client.committed() == {0: 1}
        assert await left_behind == []


@virtual
async def test_a_read_behind_it_in_the_queue_ends_empty_too() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await (await Client(cluster).create()).subscribe("t")
        left_behind = [
            asyncio.create_task(client.read(node_id, timeout_ms=60_000)) for node_id in (1, 2)
        ]
        await after(100)
        seek = Seek(topic="t", partition=0, offset=0)
        await cluster.nodes[3].consumers.service.seek(*client.name, [seek])
        await cluster.any.write("t", "a")
        assert await client.read(3) == ["a"]
        assert await asyncio.gather(*left_behind) == [[], []]
