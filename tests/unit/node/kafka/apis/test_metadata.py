"""Metadata: which brokers and leaders a client learns of, and which topics it makes."""

import uuid
from typing import Any

from node.kafka.apis import metadata
from tests.support.clusters.kafka_clients import clients_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import virtual


def brokers(found: Any) -> list[tuple[int, str, int]]:
    return [(broker.node_id, broker.host, broker.port) for broker in found.brokers]


@virtual
async def test_every_node_tells_of_all_that_have_the_interface() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, 3) as clients:
        for node_id, client in clients.items():
            found = await client.call(3, 9, topics=[])
            assert brokers(found) == [(i, "127.0.0.1", 9091 + i) for i in (1, 2, 3)]
            assert found.controller_id == node_id
            assert found.cluster_id == cluster.image.cluster_id


@virtual
async def test_clients_learn_the_addresses_of_the_listener_that_they_came_on() -> None:
    outside = [(2, "outside.example.org", 9094)]
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, external=2) as clients:
        await cluster.create("t", (1, 2, 3), (2, 3, 1))
        for _ in range(2):  # a kept row of a topic must not go to clients of the other listener
            inside, found = [await clients[i].call(3, 9, topics=[{"name": "t"}]) for i in (2, 0)]
            assert brokers(inside) == [(1, "127.0.0.1", 9092), (2, "127.0.0.1", 9093)]
            assert brokers(found) == outside
            codes = [
                [(part.error_code, part.leader_id) for part in answer.topics[0].partitions]
                for answer in (inside, found)
            ]
            assert codes == [[(0, 1), (0, 2)], [(72, -1), (0, 2)]]
        described = await clients[0].call(60, 0)
        assert [(b.broker_id, b.host, b.port) for b in described.brokers] == outside
        topic = (await clients[0].call(75, 0, topics=[{"name": "t"}])).topics[0]
        assert [part.leader_id for part in topic.partitions] == [-1, 2]


@virtual
async def test_a_transactional_id_has_a_coordinator_that_the_client_reaches() -> None:
    """All nodes serve all transactional ids, and node 3 has no Kafka interface."""
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, external=2) as clients:
        for client, reachable in ((clients[1], {1, 2}), (clients[2], {1, 2}), (clients[0], {2})):
            names = [f"id-{number}" for number in range(30)]
            found = await client.call(10, 5, coordinator_keys=names, key_type=1)
            assert {row.error_code for row in found.coordinators} == {0}
            assert {row.node_id for row in found.coordinators} == reachable


@virtual
async def test_the_coordinator_is_found_at_the_address_of_the_same_listener() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, 3, external=2) as clients:
        service = cluster.nodes[1].groups.classic
        names = {service.find_coordinator(f"g{i}"): f"g{i}" for i in range(50)}
        for client, addresses in (
            (clients[1], {i: (0, "127.0.0.1", 9091 + i) for i in (1, 2, 3)}),
            (clients[0], {1: (15, "", -1), 2: (0, "outside.example.org", 9094), 3: (15, "", -1)}),
        ):
            for node_id, expected in addresses.items():
                found = await client.call(10, 3, key=names[node_id], key_type=0)
                assert (found.error_code, found.host, found.port) == expected


@virtual
async def test_a_leader_without_the_interface_is_none_to_clients() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1, 2) as clients:
        await cluster.create("t", (1, 2, 3), (3, 1, 2))
        for version, code in ((9, 72), (5, 5)):
            found = await clients[2].call(3, version, topics=[{"name": "t"}])
            assert [broker.node_id for broker in found.brokers] == [1, 2]
            (topic,) = found.topics
            assert [(p.error_code, p.leader_id) for p in topic.partitions] == [(0, 1), (code, -1)]


@virtual
async def test_a_topic_is_told_with_leaders_replicas_and_id() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, 3) as clients:
        await cluster.create("t", (2, 3, 1))
        topic = cluster.image.topic("t")
        assert topic is not None
        by_name = await clients[1].call(3, 12, topics=[{"name": "t"}])
        by_id = await clients[1].call(
            3, 12, topics=[{"name": None, "topic_id": uuid.UUID(hex=topic.topic_id)}]
        )
        everything = await clients[1].call(3, 12, topics=None)
        for found in (by_name, by_id, everything):
            (row,) = found.topics
            assert (row.error_code, row.name, row.topic_id.hex) == (0, "t", topic.topic_id)
            (part,) = row.partitions
            assert (part.leader_id, part.leader_epoch) == (2, 0)
            assert (part.replica_nodes, sorted(part.isr_nodes)) == ([2, 3, 1], [1, 2, 3])
            assert part.offline_replicas == []
        (unknown,) = (
            await clients[1].call(3, 12, topics=[{"name": None, "topic_id": uuid.UUID(int=5)}])
        ).topics
        assert unknown.error_code == 100


@virtual
async def test_a_row_is_made_again_when_its_topic_or_a_broker_changes() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1, 2, 3) as clients:
        await cluster.create("t", (2, 3, 1))

        async def leader() -> tuple[int, list[int]]:
            (topic,) = (await clients[1].call(3, 9, topics=[{"name": "t"}])).topics
            return topic.partitions[0].leader_id, topic.partitions[0].offline_replicas

        assert await leader() == await leader() == (2, [])
        await cluster.kill(2)
        await cluster.until(lambda: cluster.is_led("t"))
        now, offline = await leader()
        assert now in {1, 3}
        assert offline == [2]


@virtual
async def test_a_missing_topic_is_made_if_client_and_node_allow_it() -> None:
    async with cluster_of() as cluster, clients_of(cluster, 1) as clients:

        async def codes(**fields: Any) -> list[tuple[str, int, int]]:
            found = await clients[1].call(3, 9, **fields)
            return [(row.name, row.error_code, len(row.partitions)) for row in found.topics]

        names = [{"name": "a"}, {"name": "b/c"}]
        assert await codes(topics=names, allow_auto_topic_creation=False) == [
            ("a", 3, 0),
            ("b/c", 3, 0),
        ]
        assert cluster.image.topic("a") is None
        assert await codes(topics=names, allow_auto_topic_creation=True) == [
            ("a", 0, 1),
            ("b/c", 17, 0),
        ]
        assert cluster.image.topic("a") is not None
        assert cluster.nodes[1].counts.kafka.requests[("Metadata", 3)] == 1
        assert cluster.nodes[1].counts.kafka.requests[("Metadata", 17)] == 1


@virtual
async def test_one_request_makes_a_bounded_number_of_topics() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster, clients_of(cluster, 1) as clients:
        most = metadata.CREATED_AT_ONCE_MAX
        names = [{"name": f"t{number:03}"} for number in range(most + 5)]
        found = await clients[1].call(3, 9, topics=names)
        assert [row.error_code for row in found.topics] == [0] * most + [3] * 5
