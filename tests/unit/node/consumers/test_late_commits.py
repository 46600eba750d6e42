"""A commit of given offsets whose answer was lost does not come after later ones."""

import asyncio

import pytest

from http_api.ports.groups import OffsetToCommit
from milena.model.errors import FateUnknownError
from tests.support.clusters.nodes import cluster_of
from tests.support.groups.sim_consumers import Client
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_what_was_committed_since_stays() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.any.write("t", "a", "b", "c")
        client = await (await Client(cluster).create()).subscribe("t")
        await client.read()
        asked, other = [node_id for node_id in cluster.nodes if node_id != client.coordinator]
        cluster.network.lose_answers_to.add((asked, "consumer_commit"))
        first = OffsetToCommit(topic="t", partition=0, offset=1)
        committing = asyncio.create_task(client.commit(first, node_id=asked))
        await after(100)
        assert await client.committed() == {0: 1}
        second = OffsetToCommit(topic="t", partition=0, offset=2)
        await client.commit(second, node_id=other)
        cluster.network.lose_answers_to.clear()
        cluster.nodes[asked].peer.disconnect(client.coordinator)
        with pytest.raises(FateUnknownError):
            await committing
        assert await client.committed() == {0: 2}
