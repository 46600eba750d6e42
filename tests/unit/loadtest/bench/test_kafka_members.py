"""Members that join at the same time, at the coordinator of a node in memory."""

import asyncio
from typing import Any, cast

import pytest

from loadtest.bench.clients import kafka_members
from loadtest.bench.clients.http_load import HttpLoadError
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.kafka_clients import KafkaClient, listener_of
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import virtual


class Writer:
    """The writing end of a connection to a node in memory, whose responses a stream reader gets."""

    def __init__(self, client: KafkaClient, reader: asyncio.StreamReader) -> None:
        self._client = client
        transport: Any = client.transport
        transport.write = reader.feed_data
        transport.writelines = lambda pieces: reader.feed_data(b"".join(pieces))

    def write(self, data: bytes) -> None:
        self._client.send(data)

    def close(self) -> None:
        self._client.transport.abort()


def connections_to(
    node: SimNode, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = listener_of(node)
    found = []
    for _ in range(count):
        reader = asyncio.StreamReader()
        writer = Writer(KafkaClient(listener.connection()), reader)
        found.append((reader, cast("asyncio.StreamWriter", writer)))
    return found


@virtual
async def test_all_have_their_assignment_in_one_generation_and_leave() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        took_s = await kafka_members.join_over("g", connections_to(node, 5))
        assert 0 <= took_s < 10
        classic = cluster.image.groups["g"].classic
        assert classic is None or not classic.members


@virtual
async def test_a_code_that_no_repetition_heals_ends_the_turn() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        with pytest.raises(HttpLoadError, match="error code 24"):
            await kafka_members.join_over("", connections_to(cluster.nodes[1], 1))


@virtual
async def test_members_of_a_group_that_another_node_coordinates_give_up() -> None:
    async with cluster_of() as cluster:
        others = [node for node in cluster.nodes if node != coordinator_of(cluster.image, "g")]
        with pytest.raises(HttpLoadError, match="not all have their assignment"):
            await kafka_members.join_over("g", connections_to(cluster.nodes[others[0]], 2))
