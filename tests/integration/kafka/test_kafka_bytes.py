"""Readers of both interfaces compare every record, byte by byte, while nodes die and logs are cut and compacted."""

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena.model.batch.decode import records_in
from tests.support.clusters.live_cluster import (
    BATCH,
    call,
    create_topic,
    end_offset,
    eventually,
    kafka_address,
    leader_of,
    metric,
    ok,
    restart,
    running_cluster,
    wait_in_sync,
)

pytestmark = pytest.mark.integration

ROUNDS = int(os.environ.get("BYTES_ROUNDS", "3"))
"""Kills of a leader; each takes some ten seconds."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": 64 << 10,
    "segment_ms": 500,
    "min_cleanable_dirty_ratio": 0.1,
}
SECONDS_BETWEEN = 3.0

Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Key, value, headers and time of a record."""


class Comparison:
    """The first content that any reader saw at each offset of a topic; each later one must be the same."""

    def __init__(self) -> None:
        self.contents: defaultdict[str, dict[int, Content]] = defaultdict(dict)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.differences: list[str] = []
        self._lock = threading.Lock()

    def see(self, reader: str, topic: str, offset: int, content: Content) -> None:
        """Compare one record."""
        with self._lock:
            self.counts[reader] += 1
            first = self.contents[topic].setdefault(offset, content)
            if first != content:
                self.differences.append(f"{reader} {topic}@{offset}: {content} and {first}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path,
        kafka_listen="127.0.0.1:0",
        retention_check_ms=200,
        compaction_bytes_per_s=8 << 20,
    ) as found:
        yield found


@contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run functions in threads until the block ends; each must return soon after the event is set."""
    is_over = threading.Event()
    failed: list[BaseException] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(is_over)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def writing(servers: str, topic: str, codec: str, acks: str) -> Callable[[threading.Event], None]:
    """Write records of any bytes with a producer of its own, with few keys so that compaction finds much."""

    def work(is_over: threading.Event) -> None:
        rng = random.Random(f"{topic} {codec} {acks}")
        settings = {
            "bootstrap.servers": servers,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "linger.ms": 5,
            "log_level": 0,
        }
        producer = Producer(settings)
        while not is_over.is_set():
            for _ in range(20):
                headers = [
                    (f"h{n}", rng.choice((None, b"", rng.randbytes(9))))
                    for n in range(rng.randrange(3))
                ]
                value = None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 1, 300)))
                key = b"%d" % rng.randrange(20)
                with suppress(BufferError):
                    producer.produce(
                        topic, value, key, 0, **({"headers": headers} if headers else {})
                    )
            producer.poll(0.1)
        producer.purge()
        producer.flush(0)

    return work


def writing_lines(cluster: LocalCluster, topic: str) -> Callable[[threading.Event], None]:
    """Write over HTTP, to any node that runs."""

    def work(is_over: threading.Event) -> None:
        number = 0
        while not is_over.wait(0.1):
            records = [{"key": f"k{n}", "value": [number, "x" * 50]} for n in range(10)]
            with suppress(ConnectionError):
                call(
                    cluster.nodes[number % 3],
                    f"POST /topics/{topic}/partitions/0",
                    {"records": records},
                )
            number += 1

    return work


def fetching(node: LocalNode, topic: str, seen: Comparison) -> Callable[[threading.Event], None]:
    """Fetch encoded batches of the node's own replica, again and again from the first offset."""

    def work(is_over: threading.Event) -> None:
        offset: int | str = "earliest"
        while not is_over.is_set():
            try:
                answer = call(
                    node,
                    f"GET /topics/{topic}/partitions/0/records",
                    headers={"Accept": BATCH},
                    is_patient=False,
                    offset=offset,
                    replica="local",
                )
            except ConnectionError:
                is_over.wait(0.2)
                continue
            if answer.status != 200:
                # A start that is deleted by now, or a node that is not ready.
                offset = "earliest"
                is_over.wait(0.2)
                continue
            following = int(answer.headers["Milena-Next-Offset"])
            start = 0 if isinstance(offset, str) else offset
            for place, time_ms, key, value, headers in records_in(answer.body, start, following):
                content = (key, value, tuple(headers or ()), time_ms)
                seen.see(f"node {node.node_id}", topic, place, content)
            if following > start:
                offset = following
                continue
            offset = "earliest"
            is_over.wait(0.2)

    return work


def consuming(servers: str, topic: str, seen: Comparison) -> Callable[[threading.Event], None]:
    """Consume over Kafka, again and again from the first offset, and let the client check each batch."""

    def work(is_over: threading.Event) -> None:
        settings = {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        with closing(Consumer(settings)) as consumer:
            while not is_over.is_set():
                consumer.assign([TopicPartition(topic, 0, 0)])
                while messages := consumer.consume(1_000, 1):
                    for message in messages:
                        if message.error() is not None:
                            raise KafkaException(message.error())
                        content = (
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                        )
                        seen.see("kafka", topic, message.offset(), content)
                    if is_over.is_set():
                        break

    return work


def test_all_readers_get_the_same_bytes_while_nodes_die_and_logs_change(
    cluster: LocalCluster,
) -> None:
    servers = ",".join(kafka_address(node) for node in cluster.nodes)
    topics = (
        create_topic(cluster.nodes[0], "cut", segment_bytes=64 << 10),
        create_topic(cluster.nodes[0], "compacted", **COMPACTED),
    )
    seen = Comparison()
    writers = [
        writing(servers, topic, codec, acks)
        for topic in topics
        for codec, acks in (*((codec, "all") for codec in CODECS), ("lz4", "1"))
    ]
    readers = [fetching(node, topic, seen) for node in cluster.nodes for topic in topics]
    kafka = [consuming(servers, topic, seen) for topic in topics]
    lines = [writing_lines(cluster, topic) for topic in topics]
    deleted = 0
    with running(*readers, *kafka):
        with running(*writers, *lines):
            for number in range(ROUNDS):
                time.sleep(SECONDS_BETWEEN)
                leader = leader_of(cluster, topics[number % 2])
                leader.process.kill()
                time.sleep(SECONDS_BETWEEN)
                restart(cluster, leader)
                for topic in topics:
                    wait_in_sync(cluster, topic)
                before = end_offset(leader, "cut") // 2
                path = "POST /topics/cut/partitions/0/records:delete"
                answer = ok(call(leader, path, {"before_offset": before}))
                deleted = int(answer["log_start_offset"])
        # A run takes long beside so many readers; their count is 0 again after a kill.
        eventually(
            lambda: any(metric(node, "compaction_runs_total") >= 1 for node in cluster.nodes)
        )
        time.sleep(SECONDS_BETWEEN)
    print("records compared:", dict(seen.counts))
    assert seen.differences == []
    assert deleted > 0
    assert set(seen.counts) == {"kafka", "node 1", "node 2", "node 3"}
    assert sum(seen.counts.values()) > 2 * sum(map(len, seen.contents.values()))
