"""Which partitions a node serves to Kafka clients, and whom it names instead."""

from node.kafka.apis.api import KafkaAddress, KafkaCall
from node.kafka.apis.leading import addresses_of, leader_of, led_here
from node.kafka.apis.registry import APIS
from node.kafka.identity import ConnectionIdentity
from node.kafka.wire.primitives import WireReader
from tests.support.clusters.kafka_clients import services_of
from tests.support.clusters.nodes import cluster_of
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
