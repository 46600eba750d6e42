"""DescribeCluster and DescribeLogDirs: the brokers that a client reaches, and what a node has on its disk."""

from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.apis.api import INSIDE
from node.kafka.apis.cluster import QUORUM_TOPIC
from raft_meta.machine.commands import SetKafkaAddresses
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import ROOT, cluster_of
from tests.support.time.virtual_time import virtual


class TestDescribeCluster:
    @pytest.mark.parametrize("version", range(3))
    @virtual
    async def test_it_has_the_brokers_and_the_id(self, version: int) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[2])
            found = await client.call(60, version)
            assert (found.error_code, found.error_message) == (0, None)
            assert (found.cluster_id, found.controller_id) == (cluster.image.cluster_id, 2)
            brokers = [(b.broker_id, b.host, b.port, b.rack) for b in found.brokers]
            assert brokers == [(2, "127.0.0.1", 9092, None)]
            assert found.authorized_operations is None
            found = await client.call(60, version, include_cluster_authorized_operations=True)
            assert found.authorized_operations == {5, 7, 8, 9, 10, 11, 12}

    @virtual
    async def test_endpoints_of_other_types_are_not_here(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[2])
            for kind, code in ((2, 114), (0, 115), (3, 115), (127, 115), (-128, 115)):
                found = await client.call(60, 1, endpoint_type=kind)
                assert (found.error_code, found.endpoint_type, found.brokers) == (code, kind, [])
                assert "ask for endpoints of type 1" in found.error_message

    @virtual
    async def test_brokers_that_are_fenced_are_listed_on_request(self) -> None:
        async with cluster_of() as cluster:
            for broker_id in (1, 3):
                node = cluster.nodes[broker_id]
                await node.metadata.propose(
                    SetKafkaAddresses(
                        broker_id=broker_id,
                        broker_epoch=node.membership.broker_epoch,
                        addresses=((INSIDE, f"n{broker_id}", 9092),),
                    ),
                    timeout_ms=2_000,
                )
            client = client_of(cluster.nodes[2])
            await cluster.kill(3)
            await cluster.until(lambda: cluster.image.brokers[3].is_fenced)
            for has_fenced, expected in ((False, [1, 2]), (True, [1, 2, 3])):
                found = await client.call(60, 2, include_fenced_brokers=has_fenced)
                assert sorted(row.broker_id for row in found.brokers) == expected
                assert [row.broker_id for row in found.brokers if row.is_fenced] == expected[2:]
            quorum = await client.call(55, 2, topics=[])
            names = {node.node_id: [one.name for one in node.listeners] for node in quorum.nodes}
            # Java's client takes names in capitals only.
            assert names == {1: ["PLAIN"], 3: ["PLAIN"]}


class TestDescribeQuorum:
    @pytest.mark.parametrize("version", range(3))
    @virtual
    async def test_it_has_the_voters_and_the_leader(self, version: int) -> None:
        async with cluster_of() as cluster:
            asked = [
                {"topic_name": name, "partitions": [{"partition_index": 0}]}
                for name in (QUORUM_TOPIC, "t")
            ]
            found = await client_of(cluster.nodes[2]).call(55, version, topics=asked)
            quorum, other = (topic.partitions[0] for topic in found.topics)
            status = cluster.nodes[2].metadata.quorum.status()
            assert (quorum.error_code, quorum.leader_id) == (0, status.leader_id)
            assert (quorum.leader_epoch, quorum.high_watermark) == (
                status.term,
                status.commit_index,
            )
            ends = {state.replica_id: state.log_end_offset for state in quorum.current_voters}
            assert ends == {1: -1, 2: status.applied_index, 3: -1}
            assert other.error_code == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


class TestDescribeLogDirs:
    @staticmethod
    async def rows(
        client: KafkaClient, version: int, topics: Any
    ) -> list[tuple[str, int, int, int]]:
        found = await client.call(35, version, topics=topics)
        (directory,) = found.results
        assert (directory.error_code, directory.log_dir) == (0, ROOT)
        if version >= 4:
            assert 0 < directory.usable_bytes <= directory.total_bytes
        return [
            (topic.name, part.partition_index, part.partition_size, part.offset_lag)
            for topic in directory.topics
            for part in topic.partitions
        ]

    @pytest.mark.parametrize("version", range(1, 6))
    @virtual
    async def test_a_node_shows_its_own_replicas(self, version: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("b", (1, 2), (2, 3))
            await cluster.create("a", (3, 1))
            await cluster.nodes[1].write("b", "x", "y")
            runner = cluster.nodes[1].replicas.find(cluster.image.topic_ids["b"], 0)
            assert runner is not None
            size = runner.log.size_bytes
            assert size > 0
            client = client_of(cluster.nodes[1])
            assert await self.rows(client, version, None) == [("a", 0, 0, 0), ("b", 0, size, 0)]
            wanted = [
                {"topic": "b", "partitions": [0, 1, -1, (1 << 31) - 1]},
                {"topic": "a", "partitions": []},
                {"topic": "no", "partitions": [0]},
            ]
            assert await self.rows(client, version, wanted) == [("b", 0, size, 0)]
            assert await self.rows(client, version, []) == []


@pytest.mark.parametrize("version", range(1, 3))
@virtual
async def test_replicas_stay_in_the_only_directory(version: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2), (2, 3))
        ends = [-(1 << 31), (1 << 31) - 1]
        dirs = [
            {"path": ROOT, "topics": [{"name": "t", "partitions": [0, 1, *ends]}]},
            {"path": ROOT, "topics": [{"name": "no", "partitions": [0]}]},
            {"path": "/other", "topics": [{"name": "t", "partitions": [2]}]},
            {"path": "", "topics": [{"name": "", "partitions": [0]}]},
        ]
        found = await client_of(cluster.nodes[1]).call(34, version, dirs=dirs)
        assert [
            (topic.topic_name, part.partition_index, part.error_code)
            for topic in found.results
            for part in topic.partitions
        ] == [
            ("t", 0, 0),
            *(("t", number, 9) for number in (1, *ends)),
            ("t", 2, 57),
            ("no", 0, 9),
            ("", 0, 57),
        ]
