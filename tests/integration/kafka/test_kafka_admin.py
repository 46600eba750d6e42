"""Admin clients of Kafka against three real nodes: kafka-python's, and confluent-kafka's, which is librdkafka's.

A client asks any broker what topics there are and how they are set. A broker that has not heard of a change yet
answers with what it knows, as Kafka's brokers do, so these tests ask until the change shows.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from loadtest.cluster.local_cluster import LocalCluster
from tests.support.clusters.live_cluster import eventually, kafka_address, running_cluster, write

pytestmark = pytest.mark.integration

UNKNOWN_TOPIC, EXISTS, BAD_PARTITIONS, BAD_REQUEST = 3, 36, 37, 42


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("kafka-admin")
    with running_cluster(directory, kafka_listen="127.0.0.1:0") as nodes:
        yield nodes


@pytest.fixture(scope="module")
def servers(cluster: LocalCluster) -> str:
    return ",".join(kafka_address(node) for node in cluster.nodes)


@pytest.fixture(scope="module")
def python(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers.split(","))
    eventually(lambda: len(client.describe_cluster()["brokers"]) == 3)
    yield client
    client.close()


@pytest.fixture(scope="module")
def confluent(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def results(futures: dict[Any, Any]) -> dict[str, int]:
    """The error code of each future."""

    def code(future: Any) -> int:
        try:
            future.result(30)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    return {str(getattr(key, "name", key)): code(future) for key, future in futures.items()}


class TestKafkaPython:
    def test_topics_are_made_grown_and_deleted(self, python: KafkaAdminClient) -> None:
        made = python.create_topics(
            {
                "p1": {
                    "num_partitions": 2,
                    "replication_factor": 2,
                    "configs": {"retention.ms": "5000"},
                },
                "p2": {"assignments": {0: [3, 1], 1: [2, 3]}},
                "p3": {"num_partitions": 1, "replication_factor": 3},
            },
            wait_for_metadata=True,
        )
        rows = {row["name"]: row for row in made["topics"]}
        assert {name: row["num_partitions"] for name, row in rows.items()} == {
            "p1": 2,
            "p2": 2,
            "p3": 1,
        }
        assert rows["p1"]["configs"]["retention.ms"]["value"] == "5000"
        assert rows["p3"]["replication_factor"] == 3
        described = {row["name"]: row for row in python.describe_topics(["p2"])}
        placed = [part["replica_nodes"] for part in described["p2"]["partitions"]]
        assert placed == [[3, 1], [2, 3]]
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            python.create_topics({"p1": {"num_partitions": 1, "replication_factor": 1}})
        python.create_partitions({"p1": 4, "p2": {"count": 3, "assignments": [[1, 2]]}})

        def counts() -> dict[str, int]:
            rows = python.describe_topics(["p1", "p2"])
            return {row["name"]: len(row["partitions"]) for row in rows}

        eventually(lambda: counts() == {"p1": 4, "p2": 3})
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            python.create_partitions({"p1": 4})
        topic_id = uuid.UUID(python.describe_topics(["p2"])[0]["topic_id"])
        python.delete_topics(["p1", topic_id, "p3"])
        eventually(lambda: not {"p1", "p2", "p3"} & set(python.list_topics()))

    def test_records_are_deleted(self, python: KafkaAdminClient, cluster: LocalCluster) -> None:
        python.create_topics(
            {"pr": {"num_partitions": 2, "replication_factor": 3}}, wait_for_metadata=True
        )
        for partition in (0, 1):
            write(cluster.node(1), "pr", 1, 2, 3, partition=partition)
        first, second = KafkaPartition("pr", 0), KafkaPartition("pr", 1)
        found = python.delete_records({first: 2, second: -1})
        assert {place: row["low_watermark"] for place, row in found.items()} == {
            first: 2,
            second: 3,
        }
        with pytest.raises(kafka.errors.OffsetOutOfRangeError):
            python.delete_records({first: 9})

    def test_cluster_disks_and_pages(self, python: KafkaAdminClient) -> None:
        python.create_topics(
            {"pd": {"num_partitions": 3, "replication_factor": 3}}, wait_for_metadata=True
        )
        assert [row["broker_id"] for row in python.describe_cluster()["brokers"]] == [1, 2, 3]

        def held() -> dict[int, set[int]]:
            """The partitions on the disk of each node. A follower makes its files a moment later."""
            found = {}
            for row in python.describe_log_dirs({"pd": [0, 1, 2]}):
                (directory,) = row["log_dirs"]
                assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
                rows = [part for topic in directory["topics"] for part in topic["partitions"]]
                found[row["broker"]] = {part["partition_index"] for part in rows}
            return found

        assert eventually(lambda: held() == {node_id: {0, 1, 2} for node_id in (1, 2, 3)})
        page = python.describe_topic_partitions(["pd"], response_partition_limit=2)
        assert [part["partition_index"] for part in page["topics"][0]["partitions"]] == [0, 1]
        rest = python.describe_topic_partitions(["pd"], cursor=page["next_cursor"])
        assert [part["partition_index"] for part in rest["topics"][0]["partitions"]] == [2]
        assert rest["next_cursor"] is None

    def test_a_partition_moves(self, python: KafkaAdminClient) -> None:
        python.create_topics({"pm": {"assignments": {0: [1, 2]}}}, wait_for_metadata=True)
        place = KafkaPartition("pm", 0)
        assert python.alter_partition_reassignments({place: [2, 3]}) == {place: None}

        def replicas() -> list[int]:
            found: list[int] = python.describe_topics(["pm"])[0]["partitions"][0]["replica_nodes"]
            return found

        eventually(lambda: replicas() == [2, 3])
        assert python.list_partition_reassignments([place]) == {}


class TestConfluent:
    def test_topics_are_made_grown_and_deleted(self, confluent: AdminClient) -> None:
        made = results(
            confluent.create_topics(
                [
                    NewTopic(
                        "c1",
                        num_partitions=2,
                        replication_factor=2,
                        config={"retention.ms": "5000"},
                    ),
                    NewTopic("c2", num_partitions=2, replica_assignment=[[3, 1], [2, 3]]),
                    NewTopic("c3"),
                    NewTopic("c/4"),
                ]
            )
        )
        assert made == {"c1": 0, "c2": 0, "c3": 0, "c/4": 17}
        assert results(
            confluent.create_topics([NewTopic("c1"), NewTopic("c5")], validate_only=True)
        ) == {
            "c1": EXISTS,
            "c5": 0,
        }
        grown = results(
            confluent.create_partitions(
                [
                    NewPartitions("c1", 4),
                    NewPartitions("c2", 3, replica_assignment=[[1, 2]]),
                    NewPartitions("c3", 1),
                ]
            )
        )
        assert grown == {"c1": 0, "c2": 0, "c3": BAD_PARTITIONS}

        def replicas() -> dict[str, list[list[int]]]:
            topics = confluent.list_topics(timeout=10).topics
            return {
                name: [part.replicas for _, part in sorted(topics[name].partitions.items())]
                for name in ("c1", "c2")
            }

        eventually(lambda: len(replicas()["c1"]) == 4 and len(replicas()["c2"]) == 3)
        assert replicas()["c2"] == [[3, 1], [2, 3], [1, 2]]
        deleted = results(confluent.delete_topics(["c1", "c2", "c3", "c5"]))
        assert deleted == {"c1": 0, "c2": 0, "c3": 0, "c5": UNKNOWN_TOPIC}
        eventually(lambda: not {"c1", "c2", "c3"} & set(confluent.list_topics(timeout=10).topics))

    def test_configs_are_described_and_changed(self, confluent: AdminClient) -> None:
        results(confluent.create_topics([NewTopic("cc", config={"flush.ms": "7"})]))
        topic = ConfigResource(ResourceType.TOPIC, "cc")

        def described(resource: ConfigResource) -> dict[str, ConfigEntry]:
            found: dict[str, ConfigEntry] = confluent.describe_configs([resource])[resource].result(
                30
            )
            return found

        def described_when(
            shows: Callable[[dict[str, ConfigEntry]], bool],
        ) -> dict[str, ConfigEntry]:
            """The configs of the topic, from a broker that knows the last change."""

            def once() -> dict[str, ConfigEntry] | None:
                found = described(topic)
                return found if shows(found) else None

            found = eventually(once)
            assert found is not None
            return found

        found = described(topic)
        assert (found["flush.ms"].value, found["flush.ms"].source) == (
            "7",
            ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
        )
        assert found["retention.ms"].is_default
        assert not found["retention.ms"].is_read_only
        assert "log.flush.interval.ms" in found["flush.ms"].synonyms

        def change(name: str, value: str | None, operation: AlterConfigOpType) -> int:
            entry = ConfigEntry(name, value, incremental_operation=operation)
            resource = ConfigResource(ResourceType.TOPIC, "cc", incremental_configs=[entry])
            (code,) = results(confluent.incremental_alter_configs([resource])).values()
            return code

        assert change("retention.ms", "5000", AlterConfigOpType.SET) == 0
        assert change("cleanup.policy", "compact", AlterConfigOpType.APPEND) == 0
        assert change("flush.ms", None, AlterConfigOpType.DELETE) == 0
        found = described_when(lambda found: found["flush.ms"].is_default)
        assert found["retention.ms"].value == "5000"
        assert found["cleanup.policy"].value == "compact,delete"
        assert change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT) == 0
        described_when(lambda found: found["cleanup.policy"].value == "compact")

        whole = ConfigResource(ResourceType.TOPIC, "cc", set_config={"segment.ms": "60000"})
        with pytest.warns(DeprecationWarning, match="incremental"):
            assert list(results(confluent.alter_configs([whole])).values()) == [0]
        described_when(
            lambda found: (
                [name for name, entry in found.items() if not entry.is_default] == ["segment.ms"]
            )
        )

        for node_id in ("1", "2", "3"):
            found = described(ConfigResource(ResourceType.BROKER, node_id))
            assert found["broker.id"].value == node_id
            assert found["broker.id"].is_read_only
        broker = ConfigResource(ResourceType.BROKER, "1", set_config={"log.retention.ms": "1"})
        with pytest.warns(DeprecationWarning, match="incremental"):
            assert list(results(confluent.alter_configs([broker])).values()) == [BAD_REQUEST]

    def test_records_are_deleted_on_their_leaders(
        self, confluent: AdminClient, cluster: LocalCluster
    ) -> None:
        results(confluent.create_topics([NewTopic("cr", num_partitions=3)]))
        for partition in range(3):
            write(cluster.node(1), "cr", 1, 2, 3, partition=partition)
        asked = [
            TopicPartition("cr", 0, 2),
            TopicPartition("cr", 1, -1),
            TopicPartition("cr", 2, 1),
        ]
        found = {
            place.partition: future.result(30).low_watermark
            for place, future in confluent.delete_records(asked).items()
        }
        assert found == {0: 2, 1: 3, 2: 1}

    def test_the_cluster_is_described(self, confluent: AdminClient) -> None:
        found = confluent.describe_cluster().result(30)
        assert [node.id for node in found.nodes] == [1, 2, 3]
        assert found.cluster_id
