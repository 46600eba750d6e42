"""Spark beside Kafka clients: it reads what their transactions committed, and they read what it writes."""

import datetime as dt
import time
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import Row

from tests.support.clusters.live_cluster import DEADLINE_S, create_topic, kafka_address

pytestmark = pytest.mark.integration

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIME_MS = int(time.time()) * 1000 - 60_000
RECORDS = [
    (b"k", b"v", [("h", b"1"), ("h", None), ("", b"\xff")]),
    (None, None, None),
    (b"\xff\x00", b"", [("only", b"")]),
    (b"", b"long " * 5_000, None),
    (None, "Grüße".encode(), None),
]
"""Key, value and headers."""


@pytest.fixture(scope="module")
def servers(cluster):
    return ",".join(kafka_address(node) for node in cluster.nodes)


def send(producer, topic, codec):
    """Send all records to partition 1; the last one says who sent them."""
    for number, (key, value, headers) in enumerate([*RECORDS, (None, codec.encode(), None)]):
        producer.produce(
            topic,
            value,
            key,
            1,
            timestamp=TIME_MS + number,
            **({"headers": headers} if headers else {}),
        )


def test_spark_reads_what_kafka_transactions_committed_in_every_codec(spark, cluster, servers):
    topic = create_topic(cluster.node(1), "of-kafka-clients", partitions=2)
    for codec in CODECS:
        settings = {
            "bootstrap.servers": servers,
            "transactional.id": f"spark-{codec}",
            "compression.type": codec,
            "linger.ms": 50,
        }
        producer = Producer(settings)
        producer.init_transactions(DEADLINE_S)
        for is_committed in (False, True):
            producer.begin_transaction()
            send(producer, topic, codec)
            if is_committed:
                producer.commit_transaction(DEADLINE_S)
            else:
                assert producer.flush(DEADLINE_S) == 0
                producer.abort_transaction(DEADLINE_S)
    left_open = Producer({"bootstrap.servers": servers, "transactional.id": "spark-open"})
    left_open.init_transactions(DEADLINE_S)
    left_open.begin_transaction()
    left_open.produce(topic, b"open", partition=1)
    assert left_open.flush(DEADLINE_S) == 0
    frame = (
        spark.read.format("milena")
        .options(url=cluster.node(2).url, subscribe=topic, includeHeaders="true")
        .load()
    )
    rows = frame.orderBy("offset").collect()
    assert {row.partition for row in rows} == {1}
    found = [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            None
            if row.headers is None
            else [
                (one.key, None if one.value is None else bytes(one.value)) for one in row.headers
            ],
            round(row.timestamp.timestamp() * 1000),
        )
        for row in rows
    ]
    wanted = [
        (key, value, headers, TIME_MS + number)
        for codec in CODECS
        for number, (key, value, headers) in enumerate([*RECORDS, (None, codec.encode(), None)])
    ]
    assert found == wanted


@pytest.mark.parametrize("is_transaction", [False, True])
def test_kafka_clients_read_what_spark_wrote(spark, cluster, servers, is_transaction):
    topic = create_topic(cluster.node(1), f"of-spark-{is_transaction}".lower(), partitions=2)
    rows = [
        Row(
            partition=1,
            key=None if key is None else bytearray(key),
            value=None if value is None else bytearray(value),
            headers=None
            if headers is None
            else [Row(key=name, value=data and bytearray(data)) for name, data in headers],
            timestamp=dt.datetime.fromtimestamp(TIME_MS / 1000 + number, dt.UTC),
        )
        for number, (key, value, headers) in enumerate(RECORDS)
    ]
    headers_type = "array<struct<key:string,value:binary>>"
    schema = f"partition int, key binary, value binary, headers {headers_type}, timestamp timestamp"
    writer = spark.createDataFrame(rows, schema).coalesce(1).write.format("milena").mode("append")
    writer = writer.options(url=cluster.node(3).url, topic=topic, includeTimestamps="true")
    if is_transaction:
        writer = writer.option("transactionalId", "of-spark")
    writer.save()
    found = {}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 1, 0)])
        end = time.monotonic() + DEADLINE_S
        while len(found) < len(RECORDS) and time.monotonic() < end:
            for message in consumer.consume(100, 1):
                assert message.error() is None
                found[message.timestamp()[1]] = (message.key(), message.value(), message.headers())
    assert found == {TIME_MS + 1_000 * number: record for number, record in enumerate(RECORDS)}
