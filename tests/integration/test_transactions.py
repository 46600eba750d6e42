"""Transactions on real nodes: what is acknowledged is there whole and once, whoever is killed meanwhile."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import milena
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    leader_of,
    ok,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

DOC = (Path(__file__).parents[2] / "docs" / "exactly-once.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("transactions")) as nodes:
        eventually(lambda: has_begun(nodes.node(1)))
        yield nodes


def has_begun(node):
    """The cluster has risen to the level that knows transactions."""
    return call(node, "POST /transactions:begin", {"transactional_id": "first"}).status == 200


def transact(node, *writes, offsets=(), key=None):
    body = {
        "writes": [
            {"topic": topic, "partition": 0, "records": [{"value": value} for value in values]}
            for topic, *values in writes
        ],
        "offsets": list(offsets),
    }
    headers = {} if key is None else {"Idempotency-Key": key}
    return call(node, "POST /transactions", body, headers=headers)


@pytest.mark.smoke
def test_one_request_writes_to_topics_and_moves_a_group_at_once(cluster):
    left, right = (create_topic(cluster.node(1), name) for name in ("left", "right"))
    offset = {"group": "both", "topic": left, "partition": 0, "next_offset": 2}
    for number, node in enumerate(cluster.nodes):
        answer = ok(transact(node, (left, number), (right, number), offsets=[offset]))
        assert answer["committed"]
    for node in cluster.nodes:
        eventually(lambda node=node: values(node, left) == values(node, right) == [0, 1, 2])
        committed = ok(call(node, "GET /groups/both"))["offsets"][left]["0"]["offset"]
        assert committed == 2


@pytest.mark.smoke
def test_what_is_open_is_read_by_nobody_and_what_is_aborted_never(cluster):
    topic = create_topic(cluster.node(1), "sessions")
    begun = ok(call(cluster.node(1), "POST /transactions:begin", {"transactional_id": "me"}))
    named = {"Milena-Transaction": begun["transaction"]}
    body = {"records": [{"value": 1}]}
    ok(call(cluster.node(2), f"POST /topics/{topic}/partitions/0", body, headers=named))
    write(cluster.node(3), topic, 2)
    path = f"/topics/{topic}/partitions/0/records"
    for node in cluster.nodes:
        assert values(node, topic) == []
        raw = ok(call(node, f"GET {path}?isolation=read_uncommitted&timeout=2000"))
        assert [record["value"] for record in raw] == [1, 2]
    listed = ok(call(cluster.node(2), "GET /transactions"))["transactions"]
    assert [row["transactional_id"] for row in listed] == ["me"]
    end = f"/transactions/{begun['producer_id']}/{begun['producer_epoch']}"
    assert ok(call(cluster.node(3), f"POST {end}:abort", {}))["aborted"]
    for node in cluster.nodes:
        eventually(lambda node=node: values(node, topic) == [2])
    assert call(cluster.node(1), f"POST {end}:commit", {"writes": []}).status == 409


def test_keyed_requests_are_there_whole_and_once_while_leaders_and_all_nodes_are_killed(cluster):
    """Each client sends a request again, to another node, until it has an answer."""
    left, right = (create_topic(cluster.node(1), name) for name in ("paid", "booked"))
    acknowledged: list[int] = []
    stop = threading.Event()

    def client(number):
        for count in range(10_000):
            if stop.is_set():
                return
            value, key = number * 10_000 + count, str(uuid.uuid4())
            turn = number
            while True:
                turn += 1
                node = cluster.nodes[turn % 3]
                try:
                    answer = transact(node, (left, value), (right, value), key=key)
                except OSError:
                    continue
                if answer.status == 200:
                    acknowledged.append(value)
                    break
                assert answer.status in (429, 503, 504), answer

    def some_more():
        wanted = len(acknowledged) + 20
        eventually(lambda: len(acknowledged) >= wanted)

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(client, number) for number in range(4)]
        for _ in range(2):
            some_more()
            victim = leader_of(cluster, left)
            victim.process.kill()
            some_more()
            restart(cluster, victim)
            wait_in_sync(cluster, left)
        cluster.kill()
        restart(cluster, *cluster.nodes)
        some_more()
        stop.set()
        for done in work:
            done.result()
    for node in cluster.nodes:
        eventually(lambda node=node: len(values(node, left)) == len(acknowledged))
        assert sorted(values(node, left)) == sorted(acknowledged)
        assert sorted(values(node, right)) == sorted(acknowledged)


def test_the_program_of_the_page_counts_each_order_once_while_a_node_is_killed(cluster):
    create_topic(cluster.node(1), "orders")
    create_topic(cluster.node(1), "totals")
    program = next(program for program in blocks(DOC, "python") if "def tally" in program)
    names: dict[str, object] = {}
    exec(program, names)
    for first in range(0, 300, 50):
        orders = [{"id": n, "count": 2, "price": n} for n in range(first, first + 50)]
        write(cluster.node(1), "orders", *orders)
    stop = threading.Event()
    urls = [node.url for node in cluster.nodes]

    def run():
        asyncio.run(names["tally"](urls, stop.is_set))

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(run)
        eventually(lambda: len(values(cluster.node(1), "totals")) > 50 or work.done())
        victim = leader_of(cluster, "totals")
        victim.process.kill()
        restart(cluster, victim)
        eventually(lambda: len(values(cluster.node(2), "totals")) >= 300 or work.done())
        stop.set()
        work.result()
    totals = values(cluster.node(3), "totals")
    assert sorted(total["id"] for total in totals) == list(range(300))
    assert all(total["cents"] == 2 * total["id"] for total in totals)


def test_a_program_that_blocks_commits_and_aborts_and_is_fenced(cluster):
    topic = create_topic(cluster.node(1), "blocking")
    with milena.sync.Client(cluster.node(1).url) as client:
        producer = client.transactional_producer("program")
        with producer.transaction() as tx:
            tx.send(topic, b"1")
            tx.send_many(topic, [b"2", b"3"])

        def fail():
            with producer.transaction() as tx:
                tx.send(topic, b"4").result()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with client.transactional_producer("program").transaction() as heir:
            heir.send(topic, b"5")
        with pytest.raises(milena.ProducerFencedError), producer.transaction() as tx:
            tx.send(topic, b"6")
    eventually(lambda: values(cluster.node(2), topic) == [1, 2, 3, 5])
