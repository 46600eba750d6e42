"""Where Kafka clients connect, on three real nodes: replicas in their rack, and one address for all nodes."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from loadtest.cluster.local_cluster import LocalCluster
from tests.integration.kafka.test_kafka_clients import Sent, bootstrap, brokers
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    create_topic,
    eventually,
    leader_of,
    metric,
    restart,
    running_cluster,
    wait_in_sync,
)

pytestmark = pytest.mark.integration

RACKS = ("a", "b", "c")


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("kafka-racks"), racks=RACKS, kafka_listen="127.0.0.1:0"
    ) as found:
        eventually(lambda: len(brokers(found)) == 3)
        yield found


def read_by(cluster: LocalCluster, node_id: int, topic: str) -> float:
    return metric(cluster.node(node_id), "partition_records_out_total", topic=topic, partition=0)


def poll(consumer: Consumer, count: int) -> list[bytes]:
    """The next records, up to ``count``."""
    found: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    return found


def test_a_consumer_reads_from_the_replica_in_its_rack_and_from_the_leader_if_that_dies(
    racked: LocalCluster,
) -> None:
    topic = create_topic(racked.nodes[0], "near")
    leader = leader_of(racked, topic)
    near = next(node for node in racked.nodes if node is not leader)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(racked),
            "group.id": "unused",
            "client.rack": RACKS[near.node_id - 1],
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )
    sent = Sent(racked)
    for number in range(500):
        sent.send(topic, f"{number}")
    sent.finish()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert poll(consumer, 500) == [b"%d" % number for number in range(500)]
    assert read_by(racked, near.node_id, topic) >= 500
    assert read_by(racked, leader.node_id, topic) == 0
    # New records arrive there, too, without a wait of the client.
    for number in range(20):
        sent.send(topic, f"{number}")
        sent.finish()
        assert poll(consumer, 1) == [b"%d" % number]
    near.process.kill()
    for number in range(50):
        sent.send(topic, f"{number}")
    sent.finish()
    assert poll(consumer, 50) == [b"%d" % number for number in range(50)]
    assert read_by(racked, leader.node_id, topic) >= 50
    consumer.close()
    restart(racked, near)
    wait_in_sync(racked, topic)
