"""The listener: what it tells the cluster, how many it takes in, and how it closes."""

import asyncio

import pytest

from node.kafka.apis.api import EXTERNAL, Api, Body, KafkaAddress, KafkaCall, KafkaServices
from node.kafka.listener import CLOSE_S
from node.kafka.rights import KNOWN
from node.kafka.wire import cold
from tests.support.clusters.kafka_clients import KafkaClient, decoded, listener_of
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
async def test_the_cluster_learns_the_address_of_each_socket() -> None:
    async with cluster_of() as cluster:
        listener = listener_of(
            cluster.nodes[1], external=lambda: KafkaAddress("a.example.org", 9094, EXTERNAL)
        )
        telling = asyncio.create_task(listener.advertise())
        await cluster.until(lambda: cluster.image.brokers[1].kafka_addresses != ())
        telling.cancel()
        assert cluster.image.brokers[1].kafka_addresses == (
            ("external", "a.example.org", 9094),
            ("plain", "127.0.0.1", 9092),
        )


@pytest.mark.parametrize("is_shared", [False, True])
@virtual
async def test_two_nodes_with_one_address_tell_so_unless_they_share_it(
    is_shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of() as cluster:
        telling = []
        for node_id, host in ((1, "a"), (2, "b"), (3, "a")):
            address = KafkaAddress(f"{host}.example.org", 9092, is_shared=is_shared)
            listener = listener_of(cluster.nodes[node_id], address=lambda one=address: one)
            telling.append(asyncio.create_task(listener.advertise()))

        counts = [cluster.nodes[node_id].counts.kafka for node_id in (1, 2, 3)]

        def equal() -> list[int]:
            return [one.equal_addresses for one in counts]

        await asyncio.sleep(3)  # of virtual time
        assert equal() == ([0, 0, 0] if is_shared else [1, 0, 1])
        warnings = sorted(line for line in caplog.messages if "address for Kafka clients" in line)
        ends = ["address=a.example.org:9092 node_id=1", "address=a.example.org:9092 node_id=3"]
        assert [line[-len(ends[0]) :] for line in warnings] == ([] if is_shared else ends)
        telling.pop().cancel()
        await cluster.kill(3)
        await cluster.until(lambda: cluster.nodes[1].metadata.image.brokers[3].is_fenced)
        await asyncio.sleep(3)
        assert equal()[:2] == [0, 0]
        for task in telling:
            task.cancel()


@virtual
async def test_addresses_of_different_listeners_may_be_equal_too() -> None:
    async with cluster_of() as cluster:
        first = listener_of(cluster.nodes[1], address=lambda: KafkaAddress("a.example.org", 9094))
        second = listener_of(
            cluster.nodes[2],
            address=lambda: KafkaAddress("b.example.org", 9094),
            external=lambda: KafkaAddress("A.example.org.", 9094, EXTERNAL),
        )
        telling = [asyncio.create_task(one.advertise()) for one in (first, second)]
        await asyncio.sleep(3)  # of virtual time
        assert [cluster.nodes[number].counts.kafka.equal_addresses for number in (1, 2)] == [1, 1]
        for task in telling:
            task.cancel()


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


FETCH = 11


def fetch_frame(wait_ms: int) -> bytes:
    """A request that waits at the end of an empty partition."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1, "current_leader_epoch": -1}
    topics = [{"topic": "t", "partitions": [part]}]
    fields = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 1, "topics": topics}
    return cold.encode_request(1, FETCH, fields)


@virtual
async def test_a_stop_ends_long_polls_at_once_and_starts_no_more() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        listener = listener_of(cluster.nodes[1])
        client, idle = KafkaClient(listener.connection()), KafkaClient(listener.connection())
        first = client.ask(1, FETCH, fetch_frame(20_000))
        client.ask(1, FETCH, fetch_frame(20_000))
        await settle()
        assert client.answers() == []
        began_s = asyncio.get_running_loop().time()
        await listener.close()
        assert asyncio.get_running_loop().time() - began_s < 0.1
        ((correlation_id, body),) = client.answers()
        assert correlation_id == first
        (topic,) = decoded(1, FETCH, body).responses
        assert [(part.error_code, part.high_watermark) for part in topic.partitions] == [(0, 0)]
        assert client.transport.is_aborted
        assert idle.transport.is_aborted
        assert cluster.nodes[1].counts.kafka.connections == 0


@virtual
async def test_a_stop_gives_other_requests_a_moment_only() -> None:
    async def hang(services: KafkaServices, call: KafkaCall) -> Body:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        fetch = Api(
            key=1, name="Fetch", first=0, last=FETCH, flexible_from=99, handle=hang, access=KNOWN
        )
        apis = {1: fetch}
        listener = listener_of(cluster.nodes[1], apis=apis)
        client = KafkaClient(listener.connection())
        client.ask(1, FETCH, fetch_frame(20_000))
        await settle()
        began_s = asyncio.get_running_loop().time()
        await listener.close()
        assert asyncio.get_running_loop().time() - began_s == CLOSE_S
        await settle()
        assert client.transport.is_aborted
