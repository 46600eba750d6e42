"""Consumer groups of real Kafka clients on three real nodes: they share partitions, and outlive their coordinator."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Message, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from loadtest.cluster.local_cluster import LocalCluster
from tests.integration.kafka.test_kafka_clients import bootstrap, brokers
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    call,
    create_topic,
    eventually,
    offsets_of,
    ok,
    running_cluster,
    write,
)

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("kafka-groups"),
        kafka_listen="127.0.0.1:0",
        group_initial_rebalance_delay_ms="0",
    ) as found:
        eventually(lambda: len(brokers(found)) == 3)
        yield found


def fill(cluster: LocalCluster, topic: str, count: int = RECORDS) -> None:
    create_topic(cluster.nodes[0], topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap(cluster)})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def member(cluster: LocalCluster, group: str, topic: str, **settings: object) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([topic])
    return consumer


def _text(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes), value
    return value.decode()


def take(consumer: Consumer, into: list[str], is_enough: Callable[[], bool]) -> None:
    """Read until enough is there; a commit covers each batch."""

    def step() -> bool:
        batch = consumer.consume(50, timeout=0.2)
        into.extend(_text(one) for one in batch if one.error() is None)
        if batch:
            consumer.commit(asynchronous=False)
        return is_enough()

    eventually(step)


def test_two_members_share_the_partitions_and_read_each_record_once(cluster: LocalCluster) -> None:
    fill(cluster, "shared")
    with (
        closing(member(cluster, "pair", "shared")) as one,
        closing(member(cluster, "pair", "shared")) as two,
    ):

        def is_split() -> bool:
            one.poll(0.1)
            two.poll(0.1)
            return len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2

        # Records that arrive before the split are read again from the committed offsets: there are none yet.
        eventually(is_split)
        parts = {(a.topic, a.partition) for c in (one, two) for a in c.assignment()}
        assert parts == {("shared", number) for number in range(PARTITIONS)}


def test_a_group_goes_on_where_it_committed_and_http_sees_its_offsets(
    cluster: LocalCluster,
) -> None:
    fill(cluster, "resumed")
    first: list[str] = []
    with closing(member(cluster, "resuming", "resumed")) as consumer:
        take(consumer, first, lambda: len(first) == RECORDS)
    assert sorted(map(int, first)) == list(range(RECORDS))
    second: list[str] = []
    with closing(member(cluster, "resuming", "resumed")) as consumer:
        producer = Producer({"bootstrap.servers": bootstrap(cluster)})
        producer.produce("resumed", "new", partition=0)
        producer.flush(DEADLINE_S)
        take(consumer, second, lambda: bool(second))
    assert second == ["new"]
    group = ok(call(cluster.nodes[0], "GET /groups/resuming"))
    assert group["kind"] == "classic"
    committed = {int(number): one["offset"] for number, one in group["offsets"]["resumed"].items()}
    assert committed == {
        0: RECORDS // PARTITIONS + 1,
        **dict.fromkeys((1, 2, 3), RECORDS // PARTITIONS),
    }


def test_a_kafka_python_group_reads_what_http_wrote(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "mixed", partitions=PARTITIONS)
    for number in range(20):
        offsets_of(write(cluster.nodes[number % 3], "mixed", number))
    consumer = KafkaConsumer(
        "mixed",
        bootstrap_servers=bootstrap(cluster),
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    with closing(consumer):
        found = [json.loads(next(consumer).value) for _ in range(20)]
    assert sorted(found) == list(range(20))


def test_members_of_both_kinds_are_refused_with_a_sentence(cluster: LocalCluster) -> None:
    fill(cluster, "kinds", 4)
    read: list[str] = []
    with closing(member(cluster, "kinds", "kinds")) as consumer:
        take(consumer, read, lambda: len(read) == 4)
        node = cluster.nodes[0]
        ok(call(node, "POST /consumers/kinds", {"name": "rest", "format": "json"}))
        instance = "/consumers/kinds/instances/rest"
        answer = call(node, f"POST {instance}/subscription", {"topics": ["kinds"]})
        if answer.status < 300:
            answer = call(node, f"GET {instance}/records")
        assert answer.status == 409, answer
        assert "Kafka" in answer.json["message"], answer


def test_a_coordinator_that_dies_does_not_end_the_group(cluster: LocalCluster) -> None:
    fill(cluster, "lasting")
    seen: list[str] = []
    with closing(
        member(cluster, "lasting", "lasting", **{"session.timeout.ms": 30_000})
    ) as consumer:
        take(consumer, seen, lambda: len(seen) == RECORDS)
        # The client ends with its last reference, and its calls with it.
        admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
        described = admin.describe_consumer_groups(["lasting"])["lasting"].result(DEADLINE_S)
        assert described.state is ConsumerGroupState.STABLE
        coordinator = described.coordinator.id
        node = next(one for one in cluster.nodes if one.node_id == coordinator)
        node.process.kill()
        producer = Producer({"bootstrap.servers": bootstrap(cluster)})
        for number in range(RECORDS, 2 * RECORDS):
            producer.produce("lasting", str(number), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        take(consumer, seen, lambda: len(set(seen)) == 2 * RECORDS)
    assert sorted(map(int, set(seen))) == list(range(2 * RECORDS))


# -- group.protocol=consumer (KIP-848) -------------------------------------------------------------


def new_member(cluster: LocalCluster, group: str, topic: str, **settings: object) -> Consumer:
    """A member of Kafka's consumer protocol; the node sets its session."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([topic])
    return consumer


def parts_of(*consumers: Consumer) -> list[int]:
    return sorted(one.partition for consumer in consumers for one in consumer.assignment())


def test_members_of_the_consumer_protocol_share_and_commit(cluster: LocalCluster) -> None:
    fill(cluster, "server-side")
    read: list[str] = []
    with closing(new_member(cluster, "modern", "server-side")) as one:
        take(one, read, lambda: len(read) == RECORDS)
        assert sorted(map(int, read)) == list(range(RECORDS))
        with closing(new_member(cluster, "modern", "server-side")) as two:

            def is_split() -> bool:
                one.poll(0.1)
                two.poll(0.1)
                return len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2

            eventually(is_split)
            assert parts_of(one, two) == list(range(PARTITIONS))
            admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
            described = admin.describe_consumer_groups(["modern"])["modern"].result(DEADLINE_S)
            assert described.type.name == "CONSUMER"
            assert len(described.members) == 2
            listed = admin.list_consumer_groups().result(DEADLINE_S).valid
            assert {row.group_id: row.type.name for row in listed}["modern"] == "CONSUMER"
        # The one that is left reads everything, from the committed offsets on.

        def is_alone() -> bool:
            one.poll(0.1)
            return len(one.assignment()) == PARTITIONS

        eventually(is_alone)
    group = ok(call(cluster.nodes[0], "GET /groups/modern"))
    assert group["kind"] == "server"
    assert sum(one["offset"] for one in group["offsets"]["server-side"].values()) == RECORDS


def test_a_member_by_http_and_one_by_kafka_share_a_group(cluster: LocalCluster) -> None:
    fill(cluster, "both-ways")

    def beat(**fields: object) -> dict[str, Any]:
        body = {"topics": ["both-ways"], **fields}
        return ok(call(cluster.nodes[0], "POST /groups/mixed/heartbeat", body))

    with closing(new_member(cluster, "mixed", "both-ways")) as consumer:

        def has_all() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == PARTITIONS

        eventually(has_all)
        mine = beat(member_epoch=0, owned=[])

        def is_split() -> bool:
            nonlocal mine
            consumer.poll(0.1)
            mine = beat(
                member_id=mine["member_id"],
                member_epoch=mine["member_epoch"],
                owned=mine["assignment"],
            )
            return len(consumer.assignment()) == PARTITIONS // 2 and len(mine["assignment"]) > 0

        eventually(is_split)
        taken = [number for one in mine["assignment"] for number in one["partitions"]]
        assert sorted([*parts_of(consumer), *taken]) == list(range(PARTITIONS))
        beat(member_id=mine["member_id"], member_epoch=-1)


def test_a_static_member_of_the_consumer_protocol_comes_back(cluster: LocalCluster) -> None:
    fill(cluster, "named")
    for _ in range(2):
        settings = {"group.instance.id": "i1"}
        with closing(new_member(cluster, "named-group", "named", **settings)) as one:

            def has_all(consumer: Consumer = one) -> bool:
                consumer.poll(0.1)
                return len(consumer.assignment()) == PARTITIONS

            eventually(has_all)
    group = ok(call(cluster.nodes[0], "GET /groups/named-group"))
    # It is away, and keeps its partitions until its session ends.
    (member_row,) = group["members"]
    assert member_row["instance_id"] == "i1"
