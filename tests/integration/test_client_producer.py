"""The producer against real nodes: what it acknowledged is there, once and in order, whatever happened to the nodes."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from milena import (
    BufferFullError,
    Client,
    ClientClosedError,
    DeliveryTimeoutError,
    RecordTooLargeError,
    TargetNotFoundError,
    UnknownResultError,
)
from milena import sync as blocking
from tests.support.clusters.live_cluster import (
    create_topic,
    end_offset,
    eventually,
    leader_of,
    ok,
    others,
    partition_state,
    read,
    restart,
    running_cluster,
    wait_in_sync,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("producer")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def all_nodes(cluster):
    """Every test begins with all of them, whatever the one before it left behind."""
    restart(cluster, *[node for node in cluster.nodes if not node.process.is_running])


def urls(cluster):
    return [node.url for node in cluster.nodes]


async def bring_back(cluster, node):
    """Started by the main thread: a node dies with the thread that started it."""
    node.process.start()
    await cluster.wait_ready(node)


async def stored(client, topic, partition):
    """All that a reader sees of a partition, in order."""
    async with client.reader(topic, partition) as reader:
        return [record async for record in reader]


async def until_readable(client, topic, partition, count):
    async with asyncio.timeout(60), client.reader(topic, partition, follow=True) as reader:
        async for record in reader:
            if record.offset >= count - 1:
                return


async def check_history(client, topic, partitions, sent):
    """``sent``: partition → values in the order of sending, with their deliveries."""
    for _, delivery in (pair for pairs in sent.values() for pair in pairs):
        await delivery
    for partition in range(partitions):
        # With acks=1 the last receipts may come before readers see the records.
        await until_readable(client, topic, partition, len(sent[partition]))
        records = await stored(client, topic, partition)
        assert [record.offset for record in records] == list(range(len(records)))
        found = [record.value for record in records]
        assert found == [value for value, _ in sent[partition]], "nothing lost, doubled, reordered"
        for value, delivery in sent[partition]:
            assert found[(await delivery).offset] == value


@pytest.mark.parametrize("acks", ["all", 1])
async def test_a_leader_is_killed_in_the_middle_and_nothing_is_lost_doubled_or_reordered(
    cluster, acks
):
    topic = create_topic(cluster.node(1), f"killed-{acks}", partitions=3)
    for partition in range(3):
        wait_in_sync(cluster, topic, partition)
    victim = leader_of(cluster, topic)
    sent = {partition: [] for partition in range(3)}
    async with Client(urls(cluster)) as client:
        async with client.producer(acks=acks, linger_ms=1, batch_bytes=4096) as producer:
            for number in range(6000):
                partition, value = number % 3, b"value %06d" % number
                delivery = await producer.send(topic, value, partition=partition)
                sent[partition].append((value, delivery))
                if number == 2000:
                    if acks == 1:
                        # What only the leader has dies with it; that is what acks=1 means.
                        await producer.flush()
                        await asyncio.to_thread(wait_everywhere, cluster, topic, sent)
                    await asyncio.to_thread(victim.process.kill)
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 60
        await check_history(client, topic, 3, sent)
    await bring_back(cluster, victim)


def wait_everywhere(cluster, topic, sent):
    """Every replica shows every record: equal high watermarks alone may all stand before the leader's last records."""

    def is_everywhere():
        return all(
            len(ok(read(node, topic, partition, replica="local"))) == len(pairs)
            for node in cluster.nodes
            for partition, pairs in sent.items()
        )

    eventually(is_everywhere)


async def test_every_node_is_killed_once_under_load_and_nothing_is_lost_or_doubled(cluster):
    topic = create_topic(cluster.node(1), "rolling", partitions=2)
    for partition in range(2):
        wait_in_sync(cluster, topic, partition)
    sent = {0: [], 1: []}
    stop = asyncio.Event()
    async with Client(urls(cluster)) as client:
        async with client.producer(linger_ms=2, batch_bytes=2048) as producer:

            async def write(partition):
                number = 0
                while not stop.is_set():
                    value = b"%d-%06d" % (partition, number)
                    sent[partition].append(
                        (value, await producer.send(topic, value, partition=partition))
                    )
                    number += 1
                    if number % 20 == 0:
                        await sent[partition][-1][1]

            writers = [asyncio.create_task(write(partition)) for partition in range(2)]
            for node in cluster.nodes:
                await asyncio.to_thread(node.process.kill)
                await bring_back(cluster, node)
                for partition in range(2):
                    await asyncio.to_thread(wait_in_sync, cluster, topic, partition)
            stop.set()
            await asyncio.gather(*writers)
        assert min(len(sent[0]), len(sent[1])) > 50
        await check_history(client, topic, 2, sent)


async def test_a_leader_that_is_paused_is_left_for_the_next_one(cluster):
    topic = create_topic(cluster.node(1), "paused")
    wait_in_sync(cluster, topic)
    victim = leader_of(cluster, topic)
    async with Client([node.url for node in others(cluster, victim)]) as client:
        async with client.producer() as producer:
            await (await producer.send(topic, b"before"))
            victim.process.pause()
            try:
                begun_s = time.monotonic()
                receipt = await (await producer.send(topic, b"under"))
                waited_s = time.monotonic() - begun_s
            finally:
                victim.process.resume()
            assert receipt.offset == 1
            assert waited_s < 25, "far below the 30 s of a request"
            await (await producer.send(topic, b"after"))
        wait_in_sync(cluster, topic)
        assert [r.value for r in await stored(client, topic, 0)] == [b"before", b"under", b"after"]


async def test_acks_say_how_much_a_receipt_means(cluster):
    topic = create_topic(cluster.node(1), "acks", min_insync_replicas=2)
    wait_in_sync(cluster, topic)
    async with Client(cluster.node(2).url) as client:
        for acks in ("all", 1, 0):
            async with client.producer(acks=acks) as producer:
                receipt = await (await producer.send(topic, b"acks %s" % str(acks).encode()))
                assert receipt.offset == {"all": 0, 1: 1, 0: None}[acks]
        eventually(lambda: end_offset(cluster.node(1), topic) == 3)
        records = await stored(client, topic, 0)
    assert [record.value for record in records] == [b"acks all", b"acks 1", b"acks 0"]


async def test_too_few_replicas_hold_a_record_up_until_its_time_is_over(cluster):
    topic = create_topic(cluster.node(1), "too-few", replicas=2, min_insync_replicas=2)
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    state = partition_state(leader, topic)
    follower = cluster.node(next(n for n in state["replicas"] if n != leader.node_id))
    follower.process.kill()
    eventually(lambda: len(partition_state(leader, topic)["isr"]) == 1)
    async with Client(leader.url) as client:
        async with client.producer(delivery_timeout_ms=1500) as producer:
            delivery = await producer.send(topic, b"refused")
            with pytest.raises((DeliveryTimeoutError, UnknownResultError)) as caught:
                await delivery
        async with client.producer() as producer:
            kept = await producer.send(topic, b"kept")
            await bring_back(cluster, follower)
            receipt = await kept
        records = await stored(client, topic, 0)
    assert records[receipt.offset].value == b"kept"
    if isinstance(caught.value, DeliveryTimeoutError):
        assert [record.value for record in records] == [b"kept"]


async def test_callbacks_tell_of_every_record(cluster):
    topic = create_topic(cluster.node(1), "callbacks", partitions=3)
    heard = []
    async with Client(cluster.node(1).url) as client, client.producer() as producer:
        for number in range(300):
            await producer.send(
                topic,
                b"%d" % number,
                key=b"k%d" % (number % 10),
                on_delivery=lambda receipt, error, n=number: heard.append((n, receipt, error)),
            )
        await producer.flush()
        assert sorted(number for number, _, _ in heard) == list(range(300))
        assert all(error is None for _, _, error in heard)
        for number, receipt, _ in heard[::50]:
            record = (await stored(client, topic, receipt.partition))[receipt.offset]
            assert (record.value, record.key) == (b"%d" % number, b"k%d" % (number % 10))


async def test_a_full_buffer_holds_senders_up_and_loses_nothing(cluster):
    topic = create_topic(cluster.node(1), "full", partitions=2)
    options = {"buffer_bytes": 8192, "batch_bytes": 2048}
    async with Client(cluster.node(1).url) as client:
        async with client.producer(**options) as producer:
            for number in range(1000):
                await producer.send(topic, b"%0100d" % number)
        assert sum([len(await stored(client, topic, p)) for p in range(2)]) == 1000


async def test_no_room_while_the_cluster_is_away_is_said_in_time(cluster, unused_tcp_port):
    topic = create_topic(cluster.node(1), "away", replicas=1)
    leader = leader_of(cluster, topic)
    options = {
        "buffer_bytes": 2048,
        "batch_bytes": 1024,
        "max_block_ms": 300,
        "delivery_timeout_ms": 60_000,
    }
    async with Client(leader.url) as client, client.producer(**options) as producer:
        deliveries = [await producer.send(topic, b"first")]
        await producer.flush()
        leader.process.kill()

        async def send_on():
            for _ in range(100):
                deliveries.append(await producer.send(topic, b"x" * 500))

        with pytest.raises(BufferFullError):
            await send_on()
        await bring_back(cluster, leader)
        receipts = [await delivery for delivery in deliveries]
        records = await stored(client, topic, 0)
    assert [receipt.offset for receipt in receipts] == list(range(len(deliveries)))
    assert len(records) == len(deliveries)


async def test_a_batch_above_the_topics_bound_is_split_and_a_record_above_it_is_refused(cluster):
    topic = create_topic(cluster.node(1), "bounded", max_message_bytes=5000)
    async with Client(cluster.node(1).url) as client:
        async with client.producer(linger_ms=50) as producer:
            with pytest.raises(RecordTooLargeError):
                await producer.send(topic, b"x" * 5000)
            for number in range(200):
                await producer.send(topic, b"%0100d" % number)
        records = await stored(client, topic, 0)
    assert [record.value for record in records] == [b"%0100d" % n for n in range(200)]


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
async def test_compressed_records_come_back_as_they_were(cluster, compression):
    topic = create_topic(cluster.node(1), f"compressed-{compression}")
    async with Client(cluster.node(1).url) as client:
        async with client.producer(compression=compression) as producer:
            for number in range(2000):
                await producer.send(topic, b"line %d" % number, headers=[("n", b"%d" % number)])
        records = await stored(client, topic, 0)
    assert [r.value for r in records] == [b"line %d" % n for n in range(2000)]
    assert records[7].headers == (("n", b"7"),)


async def test_a_missing_topic_is_said_at_once(cluster):
    async with Client(cluster.node(1).url) as client, client.producer() as producer:
        with pytest.raises(TargetNotFoundError, match="missing"):
            await producer.send("missing", b"v")


@pytest.fixture
def single(tmp_path):
    with running_cluster(tmp_path, node_count=1) as nodes:
        yield nodes.node(1)


async def test_a_topic_is_made_by_its_first_record_where_nodes_do_that(single):
    async with Client(single.url) as client:
        async with client.producer() as producer:
            assert (await (await producer.send("made", b"v"))).offset == 0
        assert (await client.admin.topic("made")).replication_factor == 1


# -- blocking ----------------------------------------------------------------------------------------


def test_a_blocking_program_does_the_same(cluster):
    topic = create_topic(cluster.node(1), "blocking", partitions=2)
    heard = []
    with blocking.Client(cluster.node(1).url) as client:
        assert topic in client.admin.topic_names()
        with client.producer(buffer_bytes=16384, batch_bytes=4096) as producer:
            first = producer.send(topic, b"first", partition=0).result(30)
            assert (first.partition, first.offset) == (0, 0)
            for number in range(2000):
                producer.send(
                    topic,
                    b"%0100d" % number,
                    partition=1,
                    on_delivery=lambda receipt, error: heard.append(receipt.offset),
                )
            producer.flush(30)
            assert heard == list(range(2000))
        with pytest.raises(ClientClosedError):
            producer.send(topic, b"late")
        with client.reader(topic, 1) as reader:
            found = [record.value for record in reader]
            assert reader.next_offset == 2000
        with client.reader(topic, 1, start=1990) as reader:
            assert sum(len(records) for records in reader.batches()) == 10
        with client.reader(topic, 1) as reader:
            chunks = list(reader.chunks())
            assert chunks[-1].next_offset == 2000
    assert found == [b"%0100d" % number for number in range(2000)]


def test_a_blocking_producer_serves_many_threads(cluster):
    topic = create_topic(cluster.node(1), "threads", partitions=3)
    with blocking.Client(urls(cluster)) as client:
        with client.producer(buffer_bytes=64 << 10, batch_bytes=8 << 10) as producer:

            def work(who):
                found = [
                    producer.send(topic, b"%d-%05d" % (who, n), key=b"%d" % who)
                    for n in range(1000)
                ]
                return [delivery.result(60).offset for delivery in found]

            with ThreadPoolExecutor(4) as pool:
                offsets = list(pool.map(work, range(4)))
        assert all(mine == sorted(set(mine)) for mine in offsets)
        counts = [r.high_watermark for r in client.admin.offsets(client.admin.topic(topic))]
    assert sum(counts) == 4000


def test_a_callback_must_not_block_the_loop_and_is_told(cluster):
    topic = create_topic(cluster.node(1), "callback-blocks")
    raised = []
    done = threading.Event()
    with blocking.Client(cluster.node(1).url) as client, client.producer() as producer:

        def flush(receipt, error):
            try:
                producer.flush()
            except RuntimeError as problem:
                raised.append(str(problem))
            done.set()

        producer.send(topic, b"v", on_delivery=flush)
        assert done.wait(30)
    assert "own thread" in raised[0]
