"""Transactions of real Kafka clients on three real nodes: readers of both interfaces see each one whole, or nothing."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from loadtest.cluster.local_cluster import LocalCluster
from tests.integration.kafka.test_kafka_clients import bootstrap, brokers
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    create_topic,
    eventually,
    leader_of,
    restart,
    running_cluster,
    values,
    wait_in_sync,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("kafka-transactions"),
        kafka_listen="127.0.0.1:0",
        group_initial_rebalance_delay_ms="0",
    ) as found:
        eventually(lambda: len(brokers(found)) == 3)
        yield found


def producer_of(cluster: LocalCluster, name: str, **settings: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            **settings,
        }
    )
    made.init_transactions(DEADLINE_S)
    return made


def write(producer: Producer, topic: str, *rows: str) -> None:
    for row in rows:
        producer.produce(topic, json.dumps(row), partition=0)


def seen(cluster: LocalCluster, topic: str, count: int) -> list[str]:
    """The committed values by Kafka's protocol, after checking that the HTTP API has the same."""
    found: list[str] = []
    with closing(
        Consumer(
            {
                "bootstrap.servers": bootstrap(cluster),
                "group.id": f"readers-of-{topic}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def step() -> bool:
            for message in consumer.consume(100, timeout=0.2):
                value = message.value()
                assert not message.error(), message.error()
                assert isinstance(value, bytes)
                found.append(str(json.loads(value)))
            return len(found) >= count

        eventually(step)
        assert consumer.consume(1, timeout=0.3) == []
    node = next(one for one in cluster.nodes if one.process.is_running)
    assert [str(value) for value in values(node, topic)] == found
    return found


def test_commits_are_seen_as_a_whole_and_aborts_never(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "whole", partitions=1)
    producer = producer_of(cluster, "whole")
    wanted = []
    for number in range(6):
        rows = [f"{number}-{part}" for part in range(20)]
        producer.begin_transaction()
        write(producer, "whole", *rows)
        assert producer.flush(DEADLINE_S) == 0
        if number % 3 == 1:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
            wanted += rows
    assert seen(cluster, "whole", len(wanted)) == wanted


def test_a_second_producer_of_the_name_fences_the_first(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "fenced", partitions=1)
    first = producer_of(cluster, "fenced")
    first.begin_transaction()
    write(first, "fenced", "left")
    assert first.flush(DEADLINE_S) == 0
    second = producer_of(cluster, "fenced")
    second.begin_transaction()
    write(second, "fenced", "a")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    second.commit_transaction(DEADLINE_S)
    assert seen(cluster, "fenced", 1) == ["a"]


def test_each_input_counts_once_in_the_output_and_the_offsets(cluster: LocalCluster) -> None:
    """Consume, transform, produce; every other attempt is aborted and starts again from the committed offset."""
    for topic in ("input", "output"):
        create_topic(cluster.nodes[0], topic, partitions=1)
    plain = Producer({"bootstrap.servers": bootstrap(cluster)})
    for number in range(60):
        plain.produce("input", str(number))
    assert plain.flush(DEADLINE_S) == 0
    done = attempts = 0
    while done < 60:
        attempts += 1
        producer = producer_of(cluster, "transform")
        with closing(
            Consumer(
                {
                    "bootstrap.servers": bootstrap(cluster),
                    "group.id": "transform",
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
        ) as consumer:
            consumer.subscribe(["input"])
            batch = eventually(lambda: consumer.consume(20, timeout=0.5))
            producer.begin_transaction()
            for message in batch:
                value = message.value()
                assert isinstance(value, bytes)
                producer.produce("output", json.dumps(value.decode() + "!"))
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                DEADLINE_S,
            )
            if attempts % 2:
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                done += len(batch)
            offsets = consumer.committed([TopicPartition("input", 0)], DEADLINE_S)
            assert max(0, offsets[0].offset) == done
    assert seen(cluster, "output", 60) == [f"{number}!" for number in range(60)]


def test_a_leader_that_dies_amid_a_transaction_takes_nothing_with_it(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "lasting", partitions=1)
    wait_in_sync(cluster, "lasting")
    producer = producer_of(cluster, "lasting")
    wanted = []
    for number in range(3):
        producer.begin_transaction()
        rows = [f"{number}-{part}" for part in range(10)]
        write(producer, "lasting", *rows)
        assert producer.flush(DEADLINE_S) == 0
        node = leader_of(cluster, "lasting")
        if number == 1:
            node.process.kill()
        more = f"{number}-last"
        write(producer, "lasting", more)
        producer.commit_transaction(DEADLINE_S)
        wanted += [*rows, more]
        if number == 1:
            restart(cluster, node)
    assert seen(cluster, "lasting", len(wanted)) == wanted


def test_kafka_python_commits_records_and_offsets(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "python", partitions=1)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap(cluster).split(","), transactional_id="python"
    )
    producer.init_transactions()
    place = KafkaPartition("python", 0)
    for number in range(4):
        producer.begin_transaction()
        producer.send("python", value=str(number).encode())
        producer.send_offsets_to_transaction(
            {place: OffsetAndMetadata(number + 1, "", -1)}, "python"
        )
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert seen(cluster, "python", 2) == ["0", "2"]
    with closing(
        KafkaConsumer(bootstrap_servers=bootstrap(cluster).split(","), group_id="python")
    ) as consumer:
        assert consumer.committed(place) == 3


def test_aiokafka_commits_records_and_offsets(cluster: LocalCluster) -> None:
    create_topic(cluster.nodes[0], "aio", partitions=1)

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap(cluster), transactional_id="aio"
        ) as producer:
            for number in range(4):
                await producer.begin_transaction()
                await producer.send_and_wait("aio", str(number).encode())
                await producer.send_offsets_to_transaction(
                    {AioPartition("aio", 0): number + 1}, "aio"
                )
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    asyncio.run(run())
    assert seen(cluster, "aio", 2) == ["0", "2"]
    with closing(
        KafkaConsumer(bootstrap_servers=bootstrap(cluster).split(","), group_id="aio")
    ) as consumer:
        assert consumer.committed(KafkaPartition("aio", 0)) == 3
