"""Where Kafka clients connect, on three real nodes: replicas in their rack, and one address for all nodes."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from loadtest.cluster.local_cluster import LocalCluster, free_ports
from tests.integration.kafka.test_kafka_clients import Sent, bootstrap, brokers
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    create_topic,
    eventually,
    kafka_address,
    leader_of,
    metric,
    restart,
    running_cluster,
    wait_in_sync,
)
from tests.support.http.balancer import balancing

pytestmark = pytest.mark.integration

RACKS = ("a", "b", "c")


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("kafka-racks"),
        own_options=[{"rack": rack} for rack in RACKS],
        kafka_listen="127.0.0.1:0",
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


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, str]]:
    """Three nodes behind one address, and that address."""
    (port,) = free_ports(1)
    with running_cluster(
        tmp_path_factory.mktemp("kafka-balanced"),
        kafka_listen="127.0.0.1:0",
        kafka_advertise=f"127.0.0.1:{port}",
        kafka_one_address="true",
        group_initial_rebalance_delay_ms="0",
    ) as cluster:

        def targets() -> list[tuple[str, int]]:
            alive = [node for node in cluster.nodes if node.process.is_running]
            places = [kafka_address(node).rpartition(":") for node in alive]
            return [(host, int(port)) for host, _, port in places]

        with balancing(port, targets):
            eventually(lambda: len(known(f"127.0.0.1:{port}")) == 3)
            yield cluster, f"127.0.0.1:{port}"


def known(address: str) -> dict[int, str]:
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=DEADLINE_S).brokers
    return {broker_id: f"{one.host}:{one.port}" for broker_id, one in found.items()}


def test_confluent_kafka_writes_and_reads_through_one_address(
    balanced: tuple[LocalCluster, str],
) -> None:
    cluster, address = balanced
    assert known(address) == dict.fromkeys((1, 2, 3), address)
    topic = create_topic(cluster.nodes[0], "confluent", partitions=6)
    for is_idempotent in (False, True):
        producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": is_idempotent, "linger.ms": 1}
        )
        for number in range(3_000):
            producer.produce(topic, f"{number}", partition=number % 6)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
    settings = {
        "bootstrap.servers": address,
        "group.id": "confluent",
        "auto.offset.reset": "earliest",
    }
    first, second = Consumer(settings), Consumer(settings)
    found: dict[int, list[int]] = {number: [] for number in range(6)}
    with closing(first), closing(second):
        for consumer in (first, second):
            consumer.subscribe([topic])
        end = time.monotonic() + DEADLINE_S
        while sum(map(len, found.values())) < 6_000 and time.monotonic() < end:
            for consumer in (first, second):
                message = consumer.poll(0.1)
                if message is not None:
                    assert message.error() is None, message.error()
                    found[message.partition() or 0].append(int(message.value() or b""))
        assert {len(consumer.assignment()) for consumer in (first, second)} == {3}
    # Each partition has the records of both producers, in the order in which they were sent.
    assert found == {number: list(range(number, 3_000, 6)) * 2 for number in range(6)}
    assert sum(metric(node, "kafka_forwarded_requests_total") for node in cluster.nodes) > 0


def test_kafka_python_writes_and_reads_through_one_address(
    balanced: tuple[LocalCluster, str],
) -> None:
    cluster, address = balanced
    topic = create_topic(cluster.nodes[0], "python", partitions=6)
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for number in range(600):
        producer.send(topic, b"%d" % number, partition=number % 6)
    producer.flush(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    with closing(consumer):
        found = [int(next(consumer).value) for _ in range(600)]
        consumer.commit()
    assert sorted(found) == list(range(600))
    for number in range(6):
        assert [value for value in found if value % 6 == number] == list(range(number, 600, 6))


def test_transactions_go_through_one_address(balanced: tuple[LocalCluster, str]) -> None:
    cluster, address = balanced
    source = create_topic(cluster.nodes[0], "source")
    target = create_topic(cluster.nodes[0], "target", partitions=3)
    sent = Sent(cluster, **{"bootstrap.servers": address})
    for number in range(30):
        sent.send(source, f"{number}")
    sent.finish()
    producer = Producer({"bootstrap.servers": address, "transactional.id": "through"})
    producer.init_transactions(DEADLINE_S)
    settings = {
        "bootstrap.servers": address,
        "group.id": "transactional",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([source])
        for is_commit in (False, True):
            producer.begin_transaction()
            for value in poll(consumer, 10):
                producer.produce(target, value, partition=int(value) % 3)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                DEADLINE_S,
            )
            if is_commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        committed = consumer.committed(consumer.assignment(), DEADLINE_S)
        assert [place.offset for place in committed] == [20]
    with closing(Consumer({**settings, "group.id": "unused"})) as reader:
        reader.assign([TopicPartition(target, number, 0) for number in range(3)])
        assert sorted(map(int, poll(reader, 10))) == list(range(10, 20))


def test_through_one_address_no_record_is_lost_or_doubled_while_nodes_die(
    balanced: tuple[LocalCluster, str],
) -> None:
    cluster, address = balanced
    topic = create_topic(cluster.nodes[0], "killed", partitions=3)
    sent = Sent(
        cluster,
        **{
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": 60_000,
        },
    )
    for number in range(2_400):
        sent.send(topic, f"{number}", partition=number % 3)
        if number == 600:
            leader_of(cluster, topic).process.kill()
        time.sleep(0.001)
    sent.finish()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
    with closing(consumer):
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        found = [int(value) for value in poll(consumer, 2_400)]
    for number in range(3):
        assert [value for value in found if value % 3 == number] == list(range(number, 2_400, 3))
    restart(cluster, *(node for node in cluster.nodes if not node.process.is_running))


def test_an_old_client_reaches_all_nodes_behind_a_port_for_each(tmp_path: Path) -> None:
    """librdkafka before 2.10, which kcat often has, takes brokers with one address for one broker.

    Each port leads to a node that is not the one which has that address.
    """
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")
    ports = free_ports(3)
    with (
        running_cluster(
            tmp_path / "nodes",
            own_options=[{"kafka_advertise": f"127.0.0.1:{port}"} for port in ports],
            kafka_listen="127.0.0.1:0",
            kafka_one_address="true",
        ) as cluster,
        ExitStack() as balancers,
    ):
        places = [kafka_address(node).rpartition(":") for node in cluster.nodes]
        targets = [(host, int(port)) for host, _, port in places]
        for place, port in enumerate(ports):
            other = targets[(place + 1) % 3]
            balancers.enter_context(balancing(port, lambda other=other: [other]))
        address = f"127.0.0.1:{ports[0]}"
        eventually(lambda: len(known(address)) == 3)
        topic = create_topic(cluster.nodes[0], "old", partitions=6)
        for number in range(6):
            place = (kcat, "-b", address, "-t", topic, "-p", f"{number}")
            value = b"%d\n" % number
            subprocess.run((*place, "-P"), input=value, timeout=DEADLINE_S, check=True)
            read = subprocess.run(
                (*place, "-C", "-o", "beginning", "-e", "-q"),
                capture_output=True,
                timeout=DEADLINE_S,
                check=True,
            )
            assert read.stdout == value
