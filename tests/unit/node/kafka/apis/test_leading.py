"""Which partitions a node serves to Kafka clients, and whom it names instead."""

import asyncio

import pytest

from node.config.budgets import READ_LEADER_WAIT_MS
from node.kafka.apis.api import KafkaAddress, KafkaCall
from node.kafka.apis.leading import addresses_of, leader_of, led_here
from node.kafka.apis.registry import APIS
from node.kafka.identity import ConnectionIdentity
from node.kafka.wire import cold
from node.kafka.wire.primitives import WireReader
from raft_meta.machine.commands import CreateTopic
from tests.support.clusters.kafka_clients import client_of, services_of
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import virtual


@virtual
async def test_a_partition_is_served_by_its_leader_in_its_epoch() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        topic = cluster.image.topic("t")
        services = {i: services_of(node) for i, node in cluster.nodes.items()}
        assert led_here(services[1], topic, 0) is cluster.runner(1, "t")
        assert led_here(services[1], topic, 0, 0) is cluster.runner(1, "t")
        assert led_here(services[1], topic, 0, 1) == 75
        assert led_here(services[2], topic, 0) == 6
        assert led_here(services[1], topic, 1) == led_here(services[1], None, 0) == 3
        assert leader_of(services[2], topic, 0) == (1, 0)
        assert leader_of(services[2], topic, 1) is leader_of(services[2], None, 0) is None


async def created_at_once(cluster: Cluster, *placement: tuple[int, ...]) -> SimNode:
    """Create the topic t; return node 1, whose image has the topic and which has no replica yet."""
    node = cluster.nodes[1]
    wanted = CreateTopic(topic_id=cluster.new_topic_id(), name="t", configs=(), placement=placement)
    await node.metadata.propose(wanted, timeout_ms=2_000)
    assert led_here(services_of(node), node.metadata.image.topic("t"), 0) == 6
    return node


@virtual
async def test_the_first_fetch_of_a_new_topic_waits_until_the_leader_has_taken_over() -> None:
    async with cluster_of() as cluster:
        client = client_of(await created_at_once(cluster, (1, 2, 3)))
        parts = [
            {
                "partition": 0,
                "current_leader_epoch": -1,
                "fetch_offset": 0,
                "partition_max_bytes": 1_000,
            }
        ]
        found = await client.call(
            1, 10, max_wait_ms=0, min_bytes=1, max_bytes=1_000, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[{"topic": "t", "partitions": parts}], forgotten_topics_data=[],
        )  # fmt: skip
        assert found.responses[0].partitions[0].error_code == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
@virtual
async def test_the_first_request_to_a_new_topic_waits_until_the_leader_has_taken_over(
    acks: int,
) -> None:
    async with cluster_of() as cluster:
        node = await created_at_once(cluster, (1, 2, 3), (1, 2, 3))
        client = client_of(node)
        parts = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
        records = encoded(numbered(KafkaRecord(b"v")))
        found = await client.call(
            2, 6, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": parts}]
        )
        assert found.topics[0].partitions[0].error_code == 0
        written = {
            "transactional_id": None,
            "acks": acks,
            "timeout_ms": 1_000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 1, "records": records}]}],
        }
        client.ask(0, 9, cold.encode_request(0, 9, written))
        await client.connection.idle()
        assert not client.transport.is_aborted
        await cluster.until(lambda: cluster.runner(1, "t", 1).log.log_end_offset == 1)


@virtual
async def test_a_node_that_never_takes_over_refuses_all_partitions_after_one_wait() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), (1, 2, 3))
        node = cluster.nodes[1]
        topic = node.metadata.image.topic("t")
        assert topic is not None
        for partition in (0, 1):
            del node.replicas.runners[topic.topic_id, partition]
        now = asyncio.get_running_loop().time
        before = now()
        parts = [
            {"partition_index": number, "timestamp": -1, "current_leader_epoch": -1}
            for number in (0, 1)
        ]
        found = await client_of(node).call(
            2, 6, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": parts}]
        )
        assert [row.error_code for row in found.topics[0].partitions] == [6, 6]
        assert now() - before == pytest.approx(READ_LEADER_WAIT_MS / 1_000, abs=0.05)


@virtual
async def test_only_addresses_of_leaders_that_clients_reach_are_told() -> None:
    async with cluster_of() as cluster:
        services = services_of(cluster.nodes[1])
        address = KafkaAddress("127.0.0.1", 9092)
        call = KafkaCall(
            APIS[0],
            11,
            "",
            WireReader(b"", 0, is_flexible=True),
            address=address,
            identity=ConnectionIdentity(services.access, "", None),
        )
        assert addresses_of(services, call, [None]) == []
        found = addresses_of(services, call, [(1, 0), (2, 0), None])
        assert [(row.broker_id, row.host, row.port) for row in found] == [(1, "127.0.0.1", 9092)]
