"""Producing with the client: what it takes off a program's hands."""

from collections import Counter

import pytest

from milena import Client, json_bytes
from milena.model.batch.decode import iterate_batches
from milena.model.partitioner import partition_for_key
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    leader_of,
    ok,
    others,
    partition_state,
    wait_in_sync,
)

pytestmark = pytest.mark.integration


def urls(cluster):
    return [node.url for node in cluster.nodes]


async def everything(client, topic, partition):
    async with client.reader(topic, partition) as reader:
        return [record async for record in reader]


async def test_the_producer_picks_the_partition_in_turns_by_key_or_by_a_rule_of_its_own(cluster):
    """Keys hash as with Kafka; batches without keys take turns; a rule sees who leads what."""
    topic = create_topic(cluster.node(1), "client-partitioning", partitions=4)

    def near(key, value, topology):
        """Whatever the first node leads."""
        return next(p.partition for p in topology.topic.partitions if p.leader == 1)

    async with Client(urls(cluster)) as client:
        async with client.producer() as producer:
            for number in range(8):
                receipt = await (await producer.send(topic, b"x", key=b"user-%d" % number))
                assert receipt.partition == partition_for_key(b"user-%d" % number, 4)
            keyless = Counter()
            for _ in range(8):
                receipt = await (await producer.send(topic, b"no key"))
                keyless[receipt.partition] += 1
            assert keyless == {0: 2, 1: 2, 2: 2, 3: 2}
        async with client.producer(partitioner=near) as producer:
            receipt = await (await producer.send(topic, b"near", key=b"user-1"))
            assert partition_state(cluster.node(1), topic, receipt.partition)["leader"] == 1


async def test_the_producer_turns_objects_into_bytes_and_sends_many_records_at_once(cluster):
    """Serializers, a buffer with a bound, and a sender in the background that gathers what comes within a moment."""
    topic = create_topic(cluster.node(1), "client-batching")
    async with Client(urls(cluster)) as client:
        options = {"linger_ms": 200, "value_serializer": json_bytes, "key_serializer": json_bytes}
        async with client.producer(**options, compression="lz4") as producer:
            for number in range(500):
                await producer.send(topic, {"number": number}, key=number % 3)
        async with client.reader(topic, 0) as reader:
            chunks = [chunk async for chunk in reader.chunks()]
        batches = [header for chunk in chunks for _, header in iterate_batches(chunk.data)]
        assert sum(header.record_count for header in batches) == 500
        assert len(batches) < 20, "five hundred records are a few batches"
    records = ok(call(cluster.node(2), f"GET /topics/{topic}/partitions/0/records?count=2"))
    assert [(r["key"], r["value"]) for r in records] == [(0, {"number": 0}), (1, {"number": 1})]


async def test_a_record_is_sent_and_forgotten_waited_for_or_called_back(cluster):
    """Three ways of sending, on one producer, and a leader that dies among them: what was promised is there."""
    topic = create_topic(cluster.node(1), "client-sending")
    wait_in_sync(cluster, topic)
    victim = leader_of(cluster, topic)
    called = []
    async with Client([node.url for node in others(cluster, victim)]) as client:
        async with client.producer() as producer:
            await producer.send(topic, b"forgotten")
            assert (await (await producer.send(topic, b"waited for"))).offset == 1
            victim.process.kill()
            for number in range(20):
                await producer.send(
                    topic, b"called %d" % number, on_delivery=lambda r, e: called.append((r, e))
                )
            await producer.flush()
        assert [receipt.offset for receipt, error in called] == list(range(2, 22))
        found = [record.value for record in await everything(client, topic, 0)]
    assert found == [b"forgotten", b"waited for", *(b"called %d" % n for n in range(20))]
    victim.process.start()
    await cluster.wait_ready(victim)
    wait_in_sync(cluster, topic)


async def test_a_list_of_records_is_written_once_and_in_order_though_its_leader_is_killed(cluster):
    """All are taken at once, with keys or without; each has a receipt that is true."""
    topic = create_topic(cluster.node(1), "client-many", partitions=3)
    values = [b"%06d" % number for number in range(30_000)]
    keys = [b"user-%d" % (number % 50) for number in range(30_000)]
    async with Client(urls(cluster)) as client, client.producer(batch_bytes=8 << 10) as producer:
        sent = [await producer.send_many(topic, values[:10_000], keys=keys[:10_000])]
        victim = leader_of(cluster, topic)
        victim.process.kill()
        for start in (10_000, 20_000):
            some = slice(start, start + 10_000)
            sent.append(await producer.send_many(topic, values[some], keys=keys[some]))
        receipts = [receipt for deliveries in sent for receipt in await deliveries]
        victim.process.start()
        await cluster.wait_ready()
        stored = [await everything(client, topic, partition) for partition in range(3)]
    assert sum(map(len, stored)) == 30_000
    for number, receipt in enumerate(receipts):
        record = stored[receipt.partition][receipt.offset]
        assert (record.key, record.value) == (keys[number], values[number])
    for records in stored:
        assert [r.value for r in records] == sorted(r.value for r in records)
