"""Topics that change while they are used: partitions come, records go, settings take effect, nodes are killed."""

import asyncio
import time

import pytest

from milena import Client
from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    eventually,
    leader_of,
    offsets_of,
    ok,
    others,
    read,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("run-time")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def all_nodes(cluster):
    """Every test begins with all of them, whatever the one before it left behind."""
    restart(cluster, *[node for node in cluster.nodes if not node.process.is_running])


def grow(node, topic, count):
    path = f"/v3/clusters/{cluster_id(node)}/topics/{topic}"
    return call(node, f"PATCH {path}", {"partitions_count": count})


def delete_records(node, topic, before, **query):
    path = f"/topics/{topic}/partitions/0/records:delete"
    return call(node, f"POST {path}", {"before_offset": before}, **query)


def test_a_producer_finds_new_partitions_and_loses_and_repeats_nothing(cluster):
    topic = create_topic(cluster.node(1), "grows", partitions=2)

    async def work():
        async with (
            Client([n.url for n in cluster.nodes], metadata_max_age_ms=200) as client,
            client.producer(linger_ms=1) as producer,
        ):
            sent = []
            last = None
            deadline_s = time.monotonic() + 120
            while len(sent) != last and time.monotonic() < deadline_s:
                number = len(sent)
                value = b"%d" % number
                delivery = await producer.send(topic, value, key=b"k%d" % (number % 50))
                sent.append((value, delivery))
                if number == 200:
                    ok(await asyncio.to_thread(grow, cluster.node(2), topic, 6))
                if number % 20 == 0 and number > 200:
                    receipt = await delivery
                    if number > 600 and receipt.partition >= 2 and last is None:
                        # It knows of them: every key once more, so that each of them gets some.
                        last = number + 50
                await asyncio.sleep(0)
            receipts = [(value, await delivery) for value, delivery in sent]
            found = {}
            for partition in range(6):
                async with client.reader(topic, partition) as reader:
                    found[partition] = [record.value async for record in reader]
        return receipts, found

    receipts, found = asyncio.run(work())
    assert {receipt.partition for _, receipt in receipts} == set(range(6))
    expected = {partition: [] for partition in range(6)}
    for value, receipt in sorted(receipts, key=lambda pair: pair[1].offset):
        expected[receipt.partition].append(value)
    assert found == expected, "each record once, where its receipt says, in order"


def test_an_idempotency_key_of_before_is_refused_afterwards(cluster):
    topic = create_topic(cluster.node(1), "keyed")
    body = {"records": [{"value": "paid"}]}
    # By their hashes some would go to the new partition.
    keys = [{"Idempotency-Key": f"payment-{number}"} for number in range(1, 7)]
    for key in keys:
        first = call(cluster.node(1), f"POST /topics/{topic}", body, headers=key)
        again = call(cluster.node(2), f"POST /topics/{topic}", body, headers=key)
        assert offsets_of(again) == offsets_of(first)
    assert ok(grow(cluster.node(3), topic, 2))["partitions_count"] == 2
    assert grow(cluster.node(1), topic, 1).refusal == (400, 40002)
    for node in cluster.nodes:
        eventually(lambda at=node: len(ok(call(at, f"GET /topics/{topic}/partitions"))) == 2)
    path = f"POST /topics/{topic}"
    answers = [call(n, path, body, headers=key) for n in cluster.nodes for key in keys]
    assert {answer.refusal for answer in answers} == {(409, 40912)}
    assert values(cluster.node(1), topic, 0) == ["paid"] * len(keys)
    assert values(cluster.node(1), topic, 1) == []


def test_deleted_records_stay_deleted_whoever_leads(cluster):
    topic = create_topic(cluster.node(1), "cut")
    for number in range(10):
        offsets_of(write(cluster.node(1), topic, number))
    leader = leader_of(cluster, topic)
    wait_in_sync(cluster, topic)
    follower = others(cluster, leader)[0]
    assert delete_records(follower, topic, 11).refusal == (400, 40002)
    assert ok(delete_records(follower, topic, 6)) == {"partition": 0, "log_start_offset": 6}
    leader.process.kill()
    for node in others(cluster, leader):
        eventually(lambda at=node: values(at, topic) == [6, 7, 8, 9])
        # A copy may be behind in what is committed, never in what is deleted.
        assert read(node, topic, offset=5, replica="local").refusal == (400, 40002)
    for node in cluster.nodes:
        node.process.kill()
    restart(cluster, *cluster.nodes)
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        eventually(lambda at=node: values(at, topic) == [6, 7, 8, 9])
        assert read(node, topic, offset=5, replica="local").refusal == (400, 40002)
    assert ok(delete_records(cluster.node(1), topic, "latest"))["log_start_offset"] == 10
    assert offsets_of(write(cluster.node(2), topic, "next")) == [(0, 10)]


def test_a_deletion_that_a_paused_replica_has_not_seen_is_not_called_done(cluster):
    topic = create_topic(cluster.node(1), "paused")
    offsets_of(write(cluster.node(1), topic, "a"))
    leader = leader_of(cluster, topic)
    wait_in_sync(cluster, topic)
    sleeper = others(cluster, leader)[0]
    sleeper.process.pause()
    try:
        assert delete_records(leader, topic, 1, timeout_ms=500).refusal == (504, 50401)
    finally:
        sleeper.process.resume()
    answer = eventually(lambda: ok(delete_records(leader, topic, 1)))
    assert answer == {"partition": 0, "log_start_offset": 1}


def test_shorter_retention_is_not_put_off_to_the_next_round(cluster):
    """Rounds are half a minute apart by default."""
    topic = create_topic(cluster.node(1), "shorter")
    stamp = int(time.time() * 1000) - HOUR_MS
    record = {"value": "old", "timestamp": stamp}
    offsets_of(call(cluster.node(1), f"POST /topics/{topic}", {"records": [record]}))
    assert values(cluster.node(2), topic) == ["old"]
    path = f"/v3/clusters/{cluster_id(cluster.node(3))}/topics/{topic}/configs/retention.ms"
    ok(call(cluster.node(3), f"PUT {path}", {"value": HOUR_MS // 2}))
    eventually(lambda: values(cluster.node(1), topic) == [], deadline_s=20)


def test_what_one_node_has_answered_the_next_answer_of_every_other_knows(cluster):
    path = f"/v3/clusters/{cluster_id(cluster.node(1))}/topics"
    for number in range(20):
        asked, *rest = (cluster.nodes[(number + n) % 3] for n in range(3))
        name = create_topic(asked, f"seen-at-once-{number}")
        for node in rest:
            assert name in ok(call(node, "GET /topics"))
            assert name in {topic["topic_name"] for topic in ok(call(node, f"GET {path}"))["data"]}
            assert name in {topic["name"] for topic in ok(call(node, "GET /metadata"))["topics"]}
        ok(grow(rest[0], name, 3))
        assert len(ok(call(asked, f"GET /topics/{name}"))["partitions"]) == 3
        call(rest[1], f"DELETE {path}/{name}")
        assert name not in ok(call(asked, "GET /topics"))
