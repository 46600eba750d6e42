"""Real Kafka clients on three real nodes: what they write and read, also beside HTTP clients and hostile ones."""

import contextlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    call,
    create_topic,
    eventually,
    kafka_address,
    leader_of,
    metric,
    offsets_of,
    ok,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("kafka"),
        kafka_listen="127.0.0.1:0",
        kafka_external_listen="127.0.0.1:0",
        auto_create_topics="true",
    ) as found:
        eventually(lambda: len(brokers(found)) == 3)
        yield found


def bootstrap(cluster: LocalCluster) -> str:
    return ",".join(kafka_address(node) for node in cluster.nodes if node.process.is_running)


def brokers(cluster: LocalCluster, *, is_external: bool = False) -> dict[int, str]:
    address = kafka_address(cluster.nodes[0], is_external=is_external)
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.list_topics(timeout=DEADLINE_S).brokers
    return {broker_id: f"{one.host}:{one.port}" for broker_id, one in found.items()}


class Sent:
    """A producer of librdkafka, and what became of its records."""

    def __init__(self, cluster: LocalCluster, **settings: object) -> None:
        self.receipts: list[tuple[int, int]] = []
        self.errors: list[object] = []
        self._producer = Producer({"bootstrap.servers": bootstrap(cluster), **settings})

    def send(self, topic: str, value: str, **options: object) -> None:
        self._producer.produce(topic, value, on_delivery=self._on_delivery, **options)
        self._producer.poll(0)

    def _on_delivery(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.receipts.append((message.partition(), message.offset()))

    def finish(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0
        assert self.errors == []


def consumed(
    cluster: LocalCluster,
    topic: str,
    count: int,
    partitions: Sequence[int] = (0,),
    **settings: object,
) -> list[Message]:
    """The first records of the partitions, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "group.id": "unused",
            "enable.auto.commit": False,
            **settings,
        }
    )
    found: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        end = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < end:
            for message in consumer.consume(10_000, 1):
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


def test_every_node_tells_where_all_are(cluster: LocalCluster) -> None:
    assert brokers(cluster) == {node.node_id: kafka_address(node) for node in cluster.nodes}
    assert {metric(node, "kafka_listeners") for node in cluster.nodes} == {2}


def test_clients_of_the_external_address_stay_there(cluster: LocalCluster) -> None:
    outside = {node.node_id: kafka_address(node, is_external=True) for node in cluster.nodes}
    assert not set(outside.values()) & set(brokers(cluster).values())
    assert brokers(cluster, is_external=True) == outside
    topic = create_topic(cluster.nodes[0], "outside", partitions=3)
    found = {"bootstrap.servers": outside[2]}
    sent = Sent(cluster, **found)
    for number in range(30):
        sent.send(topic, f"v{number}", partition=number % 3)
    sent.finish()
    assert len(consumed(cluster, topic, 30, (0, 1, 2), **found)) == 30


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_writes_and_reads(cluster: LocalCluster, codec: str) -> None:
    topic = create_topic(cluster.nodes[0], f"confluent-{codec}", partitions=3)
    sent = Sent(cluster, **{"enable.idempotence": True, "compression.type": codec, "linger.ms": 5})
    for number in range(300):
        sent.send(topic, f"v{number}", partition=number % 3, key=f"k{number}", headers={"h": b"x"})
    sent.finish()
    assert sorted(sent.receipts) == [(p, offset) for p in range(3) for offset in range(100)]
    found = consumed(cluster, topic, 300, (0, 1, 2))
    assert sorted(int((m.value() or b"")[1:]) for m in found) == list(range(300))
    assert {(m.headers() or [])[0] for m in found} == {("h", b"x")}
    for message in found:
        assert (message.key() or b"")[1:] == (message.value() or b"")[1:]


def test_kafka_python_writes_and_reads(cluster: LocalCluster) -> None:
    topic = create_topic(cluster.nodes[0], "python", partitions=3)
    producer = KafkaProducer(bootstrap_servers=bootstrap(cluster), acks="all")
    for number in range(90):
        producer.send(topic, b"v%d" % number, partition=number % 3, timestamp_ms=1_000 * number + 1)
    producer.flush(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap(cluster), group_id=None, enable_auto_commit=False
    )
    places = [PythonPartition(topic, number) for number in range(3)]
    consumer.assign(places)
    consumer.seek_to_beginning()
    found: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    while len(found) < 90 and time.monotonic() < end:
        for records in consumer.poll(500).values():
            found += [record.value for record in records]
    assert sorted(found) == sorted(b"v%d" % number for number in range(90))
    assert consumer.end_offsets(places) == dict.fromkeys(places, 30)
    assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
    (place, at), *_ = consumer.offsets_for_times({places[0]: 45_001}).items()
    assert (place, at.offset, at.timestamp) == (places[0], 15, 45_001)
    consumer.close()


def test_clients_of_both_interfaces_read_each_others_records(cluster: LocalCluster) -> None:
    topic = create_topic(cluster.nodes[0], "both")
    assert offsets_of(write(cluster.nodes[1], topic, {"a": 1}, "two")) == [(0, 0), (0, 1)]
    sent = Sent(cluster)
    sent.send(topic, '"three"')
    sent.finish()
    assert sent.receipts == [(0, 2)]
    assert offsets_of(write(cluster.nodes[2], topic, 4)) == [(0, 3)]
    for node in cluster.nodes:
        assert values(node, topic) == [{"a": 1}, "two", "three", 4]
    found = [m.value() for m in consumed(cluster, topic, 4)]
    assert found == [b'{"a":1}', b'"two"', b'"three"', b"4"]


def test_a_missing_topic_is_made_by_asking_for_it(cluster: LocalCluster) -> None:
    sent = Sent(cluster)
    sent.send("made-by-kafka", "v")
    sent.finish()
    assert "made-by-kafka" in ok(call(cluster.nodes[1], "GET /topics"))


def test_an_idempotent_producer_writes_each_record_once_while_leaders_change(
    cluster: LocalCluster,
) -> None:
    topic = create_topic(cluster.nodes[0], "killed")
    sent = Sent(
        cluster, **{"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 60_000}
    )
    for number in range(2_000):
        sent.send(topic, f"{number}")
        if number == 500:
            leader = leader_of(cluster, topic)
            leader.process.kill()
        time.sleep(0.001)
    sent.finish()
    assert len(sent.receipts) == 2_000
    restart(cluster, *(node for node in cluster.nodes if not node.process.is_running))
    wait_in_sync(cluster, topic)
    found = [int(m.value() or b"") for m in consumed(cluster, topic, 2_000)]
    assert found == list(range(2_000))
    eventually(lambda: len(brokers(cluster)) == 3)


def test_no_record_of_a_quick_producer_is_lost_or_doubled_when_a_leader_dies(
    cluster: LocalCluster,
) -> None:
    """50,000 records a second to three partitions, as far as the machine allows; a leader is killed in the middle."""
    topic = create_topic(cluster.nodes[0], "quick", partitions=3)
    wait_in_sync(cluster, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 60_000,
            "queue.buffering.max.messages": 400_000,
        }
    )
    count, rate = 150_000, 50_000
    offsets: dict[int, int] = {}
    errors: list[object] = []

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            value = int(message.value() or b"")
            assert offsets.setdefault(value, int(message.offset() or 0)) == message.offset()

    began = time.monotonic()
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 3, on_delivery=on_delivery)
        if number % 500 == 0:
            producer.poll(max(0.0, began + number / rate - time.monotonic()))
        if number == count // 3:
            leader_of(cluster, topic).process.kill()
    assert producer.flush(DEADLINE_S) == 0
    assert errors == []
    assert len(offsets) == count
    found: list[list[int]] = [[], [], []]
    for message in consumed(cluster, topic, count, range(3)):
        number = int(message.value() or b"")
        assert offsets[number] == message.offset()
        found[message.partition() or 0].append(number)
    assert found == [list(range(part, count, 3)) for part in range(3)]
    restart(cluster, *(node for node in cluster.nodes if not node.process.is_running))
    wait_in_sync(cluster, topic)
    eventually(lambda: len(brokers(cluster)) == 3)


@contextlib.contextmanager
def connected(node: LocalNode) -> Iterator[socket.socket]:
    host, _, port = kafka_address(node).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as found:
        yield found


def is_closed(connection: socket.socket) -> bool:
    """Whether the node closes the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


HEAD = struct.pack(">hhih", 3, 9, 1, -1) + b"\0"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", (1 << 31) - 1),
        struct.pack(">ihhi", 8, 9_999, 0, 1),
        struct.pack(">ihhi", 8, 3, 99, 1),
        struct.pack(">i", len(HEAD) + 5) + HEAD + b"\xff\xff\xff\xff\x0f",
    ],
    ids=["http", "tls", "negative", "empty", "huge", "key", "version", "array"],
)
def test_a_frame_that_cannot_be_ends_its_connection_alone(
    cluster: LocalCluster, data: bytes
) -> None:
    node = cluster.nodes[0]
    with connected(node) as connection:
        connection.sendall(data)
        assert is_closed(connection)
    assert len(brokers(cluster)) == 3


def test_random_bytes_and_half_frames_leave_the_nodes_as_they_were(cluster: LocalCluster) -> None:
    rng = random.Random(6)
    node = cluster.nodes[0]
    keys = [(0, 9), (1, 12), (2, 6), (3, 9), (18, 3), (22, 4), (23, 4)]
    with contextlib.ExitStack() as open_connections:
        for _ in range(50):
            half = open_connections.enter_context(connected(node))
            half.sendall(struct.pack(">i", 30 << 20) + rng.randbytes(100))
        for _ in range(300):
            key, version = rng.choice(keys)
            body = (
                struct.pack(">hhih", key, version, 1, -1)
                + b"\0"
                + rng.randbytes(rng.randint(0, 200))
            )
            with connected(node) as connection, contextlib.suppress(ConnectionError):
                connection.sendall(struct.pack(">i", len(body)) + body)
                if rng.random() < 0.5:
                    connection.sendall(rng.randbytes(20))
        assert len(brokers(cluster)) == 3
    assert node.process.is_running
    assert metric(node, "kafka_refused_frames_total") > 100
    assert metric(node, "contained_errors_total", entry="kafka") == 0
    eventually(lambda: metric(node, "kafka_connections") < 20)
    topic = create_topic(node, "after")
    sent = Sent(cluster)
    sent.send(topic, "v")
    sent.finish()
    assert [m.value() for m in consumed(cluster, topic, 1)] == [b"v"]


def test_a_node_without_the_library_says_what_to_install(tmp_path: Path) -> None:
    start = (
        "import sys; sys.modules['kafka'] = None; from milena.cli import main; "
        "sys.argv = ['milena', 'start', '--data-dir', 'd', '--listen', '127.0.0.1:0', '--peer-listen', "
        "'127.0.0.1:0', '--kafka-listen', '127.0.0.1:0']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", start],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 78
    assert "pip install 'milena-node[kafka]'" in done.stderr


@pytest.mark.parametrize(
    "place",
    range(5),
    ids=["confluent-kafka", "kafka-python", "aiokafka", "transactions", "consumer protocol"],
)
def test_the_programs_of_the_page_print_what_they_wrote(
    cluster: LocalCluster, place: int, tmp_path: Path
) -> None:
    programs = [text for text in blocks(PAGE, "python") if "sasl.mechanism" not in text]
    assert len(programs) == 5
    program = programs[place].replace("127.0.0.1:9092", kafka_address(cluster.nodes[1]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "hello\n", done.stderr


def test_the_kafkajs_program_of_the_page_prints_what_it_wrote(cluster: LocalCluster) -> None:
    """Node finds kafkajs in NODE_PATH, if it is not installed beside the current directory."""
    node = shutil.which("node")
    if (
        node is None
        or subprocess.run(
            [node, "-e", "require('kafkajs')"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("Node.js with kafkajs is not installed")
    (program,) = blocks(PAGE, "js")
    program = program.replace("127.0.0.1:9092", kafka_address(cluster.nodes[1]))
    done = subprocess.run(
        [node, "-e", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "hello\n", done.stderr
