"""The listener: what it tells the cluster, how many it takes in, and how it closes."""

import asyncio

from node.kafka.apis.api import KafkaAddress
from tests.support.clusters.kafka_clients import KafkaClient, listener_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import settle, virtual


@virtual
async def test_the_cluster_learns_the_address_again_after_a_restart() -> None:
    async with cluster_of() as cluster:
        for port in (9092, 9095):
            listener = listener_of(
                cluster.nodes[1], address=lambda port=port: KafkaAddress("127.0.0.1", port)
            )
            telling = asyncio.create_task(listener.advertise())
            await cluster.until(
                lambda port=port: (
                    cluster.nodes[2].metadata.image.brokers[1].kafka_address("plain")
                    == ("127.0.0.1", port)
                )
            )
            telling.cancel()
            await cluster.kill(1)
            await cluster.restart(1)
            await cluster.until(lambda: cluster.nodes[1].membership.is_unfenced)
            assert cluster.image.brokers[1].kafka_addresses == ()


@virtual
async def test_a_cluster_of_the_level_before_is_told_nothing() -> None:
    async with cluster_of(Cluster(feature_max=11)) as cluster:
        telling = asyncio.create_task(listener_of(cluster.nodes[1]).advertise())
        await settle(200)
        assert cluster.image.brokers[1].kafka_addresses == ()
        assert not telling.done()
        telling.cancel()


@virtual
async def test_above_the_bound_the_connection_that_is_idle_for_longest_goes() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        listener = listener_of(cluster.nodes[1], connections_max=2)
        first, second, third = (KafkaClient(listener.connection()) for _ in range(3))
        await settle()
        assert first.transport.is_aborted
        assert not second.transport.is_aborted
        assert not third.transport.is_aborted
        assert cluster.nodes[1].counts.kafka.connections == 2
