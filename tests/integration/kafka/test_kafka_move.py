"""The programs of docs/coming-from.md copy topics of another cluster and move its groups, as they stand there."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer

from loadtest.cluster.local_cluster import LocalCluster
from loadtest.cluster.node_process import NodeProcess
from tests.integration.kafka.test_kafka_clients import bootstrap, consumed
from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    DEADLINE_S,
    call,
    cluster_id,
    create_topic,
    end_offset,
    eventually,
    ok,
    running_cluster,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text(encoding="utf-8")
COPY, MOVE = blocks(PAGE, "python")
PARTITIONS = 3
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]
"""Key, value, headers and timestamp (ms)."""


class Move:
    """Two clusters of one node, and the programs that join them."""

    def __init__(self, there: LocalCluster, here: LocalCluster, directory: Path) -> None:
        self.there = there
        self.here = here
        self._directory = directory

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        for place, cluster in (
            ("kafka.example.org:9092", self.there),
            ("127.0.0.1:9092", self.here),
        ):
            assert program.count(f'"{place}"') == 1
            program = program.replace(place, bootstrap(cluster))
        return (sys.executable, "-c", program, *arguments)

    @contextmanager
    def copying(self, topic: str) -> Iterator[NodeProcess]:
        """Run a copy."""
        process = NodeProcess(
            self.command(COPY, topic), environment={}, log_path=self._directory / "copy.log"
        )
        process.start()
        try:
            yield process
            assert process.is_running, process.log_tail()
        finally:
            process.kill()

    def copied(self, topic: str) -> int:
        """Return the end of the copied partitions, with markers and aborted records."""
        return sum(end_offset(self.here.nodes[0], topic, number) for number in range(PARTITIONS))

    def move_group(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(MOVE, *arguments), capture_output=True, text=True, timeout=300, check=False
        )

    def topic(self, name: str) -> str:
        """Create a topic in both clusters."""
        for cluster in (self.there, self.here):
            create_topic(cluster.nodes[0], name, partitions=PARTITIONS, replicas=1)
        return name


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    directory = tmp_path_factory.mktemp("kafka-move")
    with ExitStack() as running:
        clusters = [
            running.enter_context(
                running_cluster(
                    directory / name,
                    node_count=1,
                    kafka_listen="127.0.0.1:0",
                    group_initial_rebalance_delay_ms="0",
                )
            )
            for name in ("there", "here")
        ]
        yield Move(clusters[0], clusters[1], directory)


def send(cluster: LocalCluster, topic: str, first: int, count: int) -> None:
    """Write records of 30 keys: many have the same time, some no value, one is large, and some times go back."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "enable.idempotence": True,
            "message.max.bytes": 8_000_000,
        }
    )
    for number in range(first, first + count):
        # One is larger than a client sends unless told to.
        times = 1_000_000 if number == first + 1 else 1
        producer.produce(
            topic,
            None if number % 50 == 7 else f"{number % 10}" * times + f"-{number}",
            key=f"k{number % 30}",
            timestamp=BASE_TIMESTAMP_MS + (number // 200) * 10 - number % 3,
            headers=[("number", b"%d" % number), ("number", b"again")],
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def send_transactions(cluster: LocalCluster, topic: str, first: int, count: int) -> None:
    """Write ``count`` records in committed transactions, and others in aborted ones: both leave gaps."""
    producer = Producer({"bootstrap.servers": bootstrap(cluster), "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    for number in range(first, first + count, 10):
        producer.begin_transaction()
        producer.produce(topic, "never", key=f"k{number % 30}")
        producer.flush()
        producer.abort_transaction(DEADLINE_S)
        producer.begin_transaction()
        for one in range(number, number + 10):
            producer.produce(topic, f"{one}", key=f"k{one % 30}")
        producer.commit_transaction(DEADLINE_S)


def row(record: Message) -> Row:
    return record.key(), record.value(), record.headers() or [], record.timestamp()[1]


def copied(record: Message) -> Row:
    """Return what was copied: all but the header of the copy, which comes last."""
    key, value, headers, timestamp = row(record)
    assert headers[-1][0] == "source-offset"
    return key, value, headers[:-1], timestamp


def by_partition(records: list[Message], form: Callable[[Message], Row]) -> dict[int, list[Row]]:
    return {
        number: [form(record) for record in records if record.partition() == number]
        for number in range(PARTITIONS)
    }


def all_records(cluster: LocalCluster, topic: str, count: int) -> list[Message]:
    return consumed(cluster, topic, count, range(PARTITIONS))


def work(cluster: LocalCluster, group: str, topic: str, count: int) -> list[Message]:
    """Let a member of a group read ``count`` records, commit them and leave."""
    settings = {
        "bootstrap.servers": bootstrap(cluster),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    found: list[Message] = []
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        end = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < end:
            record = consumer.poll(1)
            if record is not None:
                assert record.error() is None, record.error()
                found.append(record)
        consumer.commit(asynchronous=False)
        assert consumer.poll(0.5) is None or len(found) == count
    return found


def test_groups_go_on_where_they_were_and_nothing_is_lost_while_the_copy_is_killed(
    move: Move,
) -> None:
    topic = move.topic("orders")
    send(move.there, topic, 0, 3_000)
    with move.copying(topic) as copy:
        for kills in range(3):
            before = move.copied(topic)
            send(move.there, topic, 3_000 + 1_000 * kills, 1_000)
            eventually(lambda before=before: move.copied(topic) > before)
            copy.kill()
            copy.start()
        send_transactions(move.there, topic, 6_000, 300)
        assert len(all_records(move.here, topic, 6_300)) == 6_300
        seen = work(move.there, "billing", topic, 2_345)
        assert len(work(move.there, "done", topic, 6_300)) == 6_300
        for group in ("billing", "done"):
            moved = move.move_group(group, topic)
            assert moved.returncode == 0, moved.stderr
            assert " there, " in moved.stdout
        send(move.there, topic, 6_300, 300)
        before = by_partition(all_records(move.there, topic, 6_600), row)
        assert sum(map(len, before.values())) == 6_600

        rest = by_partition(work(move.here, "billing", topic, 6_600 - 2_345), copied)
        read = by_partition(seen, row)
        assert {number: read[number] + rest[number] for number in rest} == before
        last = by_partition(work(move.here, "done", topic, 300), copied)
        assert last == {number: before[number][-len(rows) :] for number, rows in last.items()}
        assert sum(map(len, last.values())) == 300
        assert by_partition(all_records(move.here, topic, 6_600), copied) == before


def test_times_are_kept_and_none_becomes_that_of_the_copy(move: Move) -> None:
    """Also of a topic with the brokers' times, if it has CreateTime here; 0 becomes 1."""
    topic = "times"
    for cluster in (move.there, move.here):
        create_topic(cluster.nodes[0], topic, partitions=PARTITIONS, replicas=1, retention_ms=-1)
    records = [{"value": time, "timestamp": time, "partition": 0} for time in (0, 1, 2)]
    ok(call(move.there.nodes[0], f"POST /topics/{topic}", {"records": records}))
    by_broker = "/topics/times/configs/message.timestamp.type"
    path = f"/v3/clusters/{cluster_id(move.there.nodes[0])}{by_broker}"
    ok(call(move.there.nodes[0], f"PUT {path}", {"value": "LogAppendTime"}))
    ok(call(move.there.nodes[0], f"POST /topics/{topic}", {"records": [{"value": 3}]}))
    with move.copying(topic):
        found = by_partition(all_records(move.here, topic, 4), copied)
    there = by_partition(all_records(move.there, topic, 4), row)
    assert [time for *_, time in there[0]][:3] == [0, 1, 2]
    assert [time for *_, time in found[0]][:3] == [1, 1, 2]
    assert {n: rows[3 if n == 0 else 0 :] for n, rows in found.items()} == {
        n: rows[3 if n == 0 else 0 :] for n, rows in there.items()
    }


def test_a_group_is_moved_only_while_it_rests(move: Move) -> None:
    topic = move.topic("busy")
    send(move.there, topic, 0, 30)
    work(move.there, "busy", topic, 30)
    settings = {"bootstrap.servers": bootstrap(move.there), "group.id": "busy"}
    with closing(Consumer(settings)) as member:
        member.subscribe([topic])

        def is_member() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        eventually(is_member)
        refused = move.move_group("busy", topic)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "group busy is in use" in refused.stderr
    refused = move.move_group("nothing-read", topic)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "group nothing-read has no offsets in these topics" in refused.stderr


def test_a_group_that_is_ahead_of_the_copy_skips_nothing(move: Move) -> None:
    topic = move.topic("ahead")
    send(move.there, topic, 0, 90)
    assert len(work(move.there, "ahead", topic, 90)) == 90
    moved = move.move_group("ahead", topic)
    assert moved.returncode == 0, moved.stderr
    with move.copying(topic):
        send(move.there, topic, 90, 30)
        found = by_partition(work(move.here, "ahead", topic, 120), copied)
    assert found == by_partition(all_records(move.there, topic, 120), row)


def test_a_group_is_not_moved_once_a_producer_writes_here(move: Move) -> None:
    topic = move.topic("late")
    send(move.there, topic, 0, 60)
    work(move.there, "late", topic, 60)
    send(move.here, topic, 60, 60)
    refused = move.move_group("late", topic)
    assert refused.returncode == 1
    assert "is not a copy" in refused.stderr


def test_a_topic_with_records_but_without_a_position_is_not_copied(move: Move) -> None:
    topic = move.topic("filled")
    send(move.here, topic, 0, 60)
    refused = subprocess.run(
        move.command(COPY, topic), capture_output=True, text=True, timeout=300, check=False
    )
    assert refused.returncode == 1
    assert f"{topic}-0 has records here, but no position of the copy" in refused.stderr
