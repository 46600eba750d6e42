"""REST consumers on three real nodes: made on one, subscribed on another, read on a third, and not tied to any."""

import itertools
import random
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    encoded,
    eventually,
    in_background,
    metadata,
    offsets_of,
    ok,
    others,
    restart,
    running_cluster,
    write,
    write_batch,
)
from tests.support.groups.live_groups import (
    committed,
    consumer_of,
    coordinator_of,
    member_of,
    new_group,
    settle,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

DOC = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("rest")) as nodes:
        yield nodes


def topic_with(cluster, *records, partitions=1):
    topic = create_topic(cluster.node(1), new_group("topic"), partitions=partitions)
    for partition in range(partitions):
        for value in records:
            offsets_of(write(cluster.node(2), topic, value, partition=partition))
    return topic


def test_made_on_one_node_subscribed_on_another_read_on_a_third(cluster):
    topic = topic_with(cluster, "a", "b", "c")
    consumer = consumer_of(cluster, new_group("three")).subscribe(topic)
    [first, second, third] = consumer.read_records(3)
    assert [record["offset"] for record in (first, second, third)] == [0, 1, 2]
    assert (first["topic"], first["partition"], first["key"], first["value"]) == (
        topic,
        0,
        None,
        "a",
    )
    offsets_of(write(cluster.node(3), topic, "d"))
    assert consumer.read_values(1) == ["d"]


def test_the_first_read_gives_what_there_is_and_an_empty_one_takes_its_time(cluster):
    topic = topic_with(cluster, 1)
    consumer = consumer_of(cluster, new_group("first")).subscribe(topic)
    began = time.monotonic()
    assert [record["value"] for record in consumer.read(timeout=20_000)] == [1]
    assert time.monotonic() - began < 10
    began = time.monotonic()
    assert consumer.read(timeout=700) == []
    assert 0.65 <= time.monotonic() - began < 10
    with in_background(lambda: consumer.read(timeout=30_000)) as waiting:
        time.sleep(0.2)
        offsets_of(write(cluster.node(1), topic, 2))
        assert [record["value"] for record in waiting.result()] == [2]


def test_it_outlives_the_node_that_made_it_and_its_coordinator(cluster):
    topic = topic_with(cluster, *range(5), partitions=3)
    group = new_group("outlives")
    consumer = consumer_of(cluster, group)
    maker = next(
        n for n in cluster.nodes if n.url == "http://" + urlsplit(consumer.base_uri).netloc
    )
    consumer.subscribe(topic)
    assert sorted(consumer.read_values(15)) == sorted([*range(5)] * 3)
    consumer.commit()
    for partition in range(3):
        offsets_of(write(cluster.node(1), topic, "not committed", partition=partition))
    consumer.read_values(3)
    for victim in (maker, coordinator_of(cluster, group)):
        is_coordinator = victim is coordinator_of(cluster, group)
        victim.process.kill()
        try:
            alive = others(cluster, victim)
            eventually(lambda at=alive[0]: consumer.ask_on(at, "GET /subscription").status == 200)
            if is_coordinator:
                again = eventually(lambda: ok(consumer.ask("GET /records", timeout=500)))
                assert {r["value"] for r in again} == {"not committed"}, "on from the last commit"
        finally:
            restart(cluster, victim)
    assert committed(cluster.node(2), group, topic) == {0: 5, 1: 5, 2: 5}


def test_a_record_that_is_larger_than_max_bytes_is_delivered_alone(cluster):
    topic = topic_with(cluster, "x" * 1000, "y" * 1000, "z")
    consumer = consumer_of(cluster, new_group("large")).subscribe(topic)
    assert [len(record["value"]) for record in consumer.read(max_bytes=1)] == [1000]
    assert [len(record["value"]) for record in consumer.read(max_bytes=1)] == [1000]
    assert [record["value"] for record in consumer.read(max_bytes=1)] == ["z"]


def test_to_commit_means_what_was_delivered(cluster):
    topic = topic_with(cluster, *range(4))
    group = new_group("delivered")
    consumer = consumer_of(cluster, group).subscribe(topic)
    consumer.read(max_bytes=1)
    consumer.commit()
    assert committed(cluster.node(3), group, topic) == {0: 1}
    places = {"partitions": [{"topic": topic, "partition": 0}]}
    in_body = ok(consumer.ask("GET /offsets", places))
    assert [(o["partition"], o["offset"]) for o in in_body["offsets"]] == [(0, 1)]
    in_query = ok(consumer.ask("GET /offsets", topic=topic, partition=0))
    assert in_query == in_body


@pytest.mark.parametrize(("key", "stored"), [("offsets", 3), ("partitions", 2)])
def test_both_meanings_of_a_committed_offset_are_understood(cluster, key, stored):
    topic = topic_with(cluster, *range(4))
    group = new_group("meaning")
    consumer = consumer_of(cluster, group).subscribe(topic)
    consumer.read_records(4)
    body = {key: [{"topic": topic, "partition": 0, "offset": 2}]}
    assert consumer.ask("POST /offsets", body).status == 204
    assert committed(cluster.node(1), group, topic) == {0: stored}


@pytest.mark.parametrize("meaning", ["last", "next"])
def test_a_client_of_either_proxy_reads_each_record_once_across_a_restart(cluster, meaning):
    """Confluent's clients commit the last record that they read, Strimzi's the next one."""
    topic = topic_with(cluster, *range(6))
    group = new_group("moved")
    settings = {
        "commit.offsets": meaning,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first = consumer_of(cluster, group, **settings).subscribe(topic)
    last = first.read_records(6)[2]["offset"]
    offset = last if meaning == "last" else last + 1
    body = {"offsets": [{"topic": topic, "partition": 0, "offset": offset}]}
    assert first.ask("POST /offsets", body).status == 204
    assert first.ask("DELETE ").status == 204
    again = consumer_of(cluster, group, **settings).subscribe(topic)
    assert again.read_values(3) == [3, 4, 5]


def test_the_path_in_front_of_a_proxy_is_in_every_link(cluster):
    node = cluster.node(1)
    headers = {
        "X-Forwarded-Host": "example.org",
        "X-Forwarded-Path": "/kafka",
        "X-Forwarded-Proto": "https",
    }
    group = new_group("behind")
    made = ok(call(node, f"POST /consumers/{group}", {"name": "f"}, headers=headers))
    assert made["base_uri"] == f"https://example.org/kafka/consumers/{group}/instances/f"
    (found,) = ok(call(node, "GET /v3/clusters", headers=headers))["data"]
    assert found["metadata"]["self"].startswith("https://example.org/kafka/v3/clusters/")


def test_two_consumers_share_and_one_takes_over_when_the_other_goes(cluster):
    topic = topic_with(cluster, partitions=4)
    group = new_group("share")
    one, two = (consumer_of(cluster, group).subscribe(topic) for _ in range(2))
    eventually(lambda: len(one.assignments()) == len(two.assignments()) == 2)
    assert one.assignments() | two.assignments() == {(topic, n) for n in range(4)}
    for partition in range(4):
        offsets_of(write(cluster.node(2), topic, partition, partition=partition))
    found = one.read_values(2) + two.read_values(2)
    assert sorted(found) == [0, 1, 2, 3]
    two.commit()
    two.delete()
    assert two.ask("GET /records").refusal == (404, 40403)
    eventually(lambda: len(one.assignments()) == 4)
    offsets = [write(cluster.node(1), topic, "more", partition=n) for n in range(4)]
    assert all(answer.status == 200 for answer in offsets)
    assert one.read_values(4) == ["more"] * 4


def test_rest_consumers_and_members_are_one_group(cluster):
    topic = topic_with(cluster, partitions=4)
    group = new_group("mixed")
    consumer = consumer_of(cluster, group).subscribe(topic)
    member = member_of(cluster, group, topic)
    [share] = settle(member)
    assert len(share) == 2
    eventually(lambda: consumer.assignments() == {(topic, n) for n in range(4)} - share)
    consumer.delete()
    eventually(lambda: len(member.beat()) == 4)


def test_assigned_by_hand_and_sought(cluster):
    topic = topic_with(cluster, *range(6), partitions=2)
    consumer = consumer_of(cluster, new_group("hand"))
    where = {"partitions": [{"topic": topic, "partition": 1}]}
    assert consumer.ask("POST /assignments", where).status == 204
    assert consumer.assignments() == {(topic, 1)}
    assert consumer.read_values(6) == [*range(6)]
    seek = {"offsets": [{"topic": topic, "partition": 1, "offset": 4}]}
    assert consumer.ask("POST /positions", seek).status == 204
    assert consumer.read_values(2) == [4, 5]
    assert consumer.ask("POST /positions/beginning", where).status == 204
    assert consumer.read_values(6) == [*range(6)]
    assert consumer.ask("POST /positions/end", where).status == 204
    assert consumer.read(timeout=200) == []
    elsewhere = {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}
    assert consumer.ask("POST /positions", elsewhere).refusal == (409, 40903)
    assert consumer.ask("POST /subscription", {"topics": [topic]}).refusal == (409, 40903)


def test_conflicts_are_told(cluster):
    topic = topic_with(cluster)
    group = new_group("conflict")
    consumer = consumer_of(cluster, group)
    assert consumer.ask("GET /records").refusal == (409, 40903)
    both = {"topics": [topic], "topic_pattern": ".*"}
    assert consumer.ask("POST /subscription", both).refusal == (409, 40903)
    consumer.subscribe(topic)
    where = {"partitions": [{"topic": topic, "partition": 0}]}
    assert consumer.ask("POST /assignments", where).refusal == (409, 40903)
    again = {"name": consumer.name, "format": "json"}
    assert call(cluster.node(3), f"POST /consumers/{group}", again).refusal == (409, 40902)
    bad = {"format": "json", "auto.offset.reset": "sometimes"}
    assert call(cluster.node(1), f"POST /consumers/{group}", bad).refusal == (422, 42204)
    accept = {"Accept": "application/vnd.kafka.avro.v2+json"}
    at = f"/consumers/{group}/instances/{consumer.name}/records"
    assert call(cluster.node(2), f"GET {at}", headers=accept).refusal == (406, 40601)
    assert consumer.ask("DELETE /subscription").status == 204
    assert ok(consumer.ask("GET /subscription"))["topics"] == []


def test_a_record_that_is_no_json_is_an_error_in_its_place(cluster):
    topic = topic_with(cluster, "before")
    ok(write_batch(cluster.node(1), topic, encoded(b"\xff\x00")))
    offsets_of(write(cluster.node(1), topic, "after"))
    consumer = consumer_of(cluster, new_group("undecodable")).subscribe(topic)
    found = consumer.read_records(3)
    assert [record["offset"] for record in found] == [0, 1, 2]
    assert [found[0]["value"], found[2]["value"]] == ["before", "after"]
    assert "error" in str(found[1])
    consumer.commit()


def test_a_consumer_that_commits_by_itself_goes_on_after_what_it_delivered(cluster):
    topic = topic_with(cluster, *range(3))
    group = new_group("auto")
    consumer = consumer_of(cluster, group, auto_commit_enable=True).subscribe(topic)
    assert consumer.read_values(3) == [0, 1, 2]
    consumer.read(timeout=50)
    consumer.delete()
    eventually(lambda: committed(cluster.node(1), group, topic) == {0: 3})
    offsets_of(write(cluster.node(1), topic, 3))
    assert consumer_of(cluster, group).subscribe(topic).read_values(1) == [3]


def test_its_address_is_what_the_client_used(cluster):
    group = new_group("address")
    forwarded = {"Forwarded": "proto=https;host=log.example.org"}
    found = ok(call(cluster.node(1), f"POST /consumers/{group}", {"name": "f"}, headers=forwarded))
    assert found["base_uri"] == f"https://log.example.org/consumers/{group}/instances/f"


def test_reading_writes_nothing_to_the_quorum(cluster):
    topic = topic_with(cluster, partitions=2)
    consumers = [consumer_of(cluster, new_group("nothing")).subscribe(topic) for _ in range(3)]
    for consumer in consumers:
        consumer.read(timeout=10)

    def is_quiet():
        before = metadata(cluster.node(1))["version"]
        for _ in range(5):
            for consumer in consumers:
                consumer.read(timeout=10)
        return metadata(cluster.node(1))["version"] == before

    # The controller compares images now and then, and consumers of other tests are shared out.
    eventually(is_quiet)


def lose(url, *, is_read, wait_s):
    """Ask, and drop the answer: all of it, after it came, or the connection before it did."""
    where = urlsplit(url)
    head = f"GET {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(head.encode())
        time.sleep(wait_s)
        while is_read and connection.recv(1 << 16):
            pass


def test_a_client_that_loses_answers_reads_each_record_once(cluster):
    partitions, count = 3, 120
    topic = create_topic(cluster.node(1), new_group("topic"), partitions=partitions)
    group, rng = new_group("loses"), random.Random(7)
    consumer = consumer_of(cluster, group, **{"auto.commit.enable": True}).subscribe(topic)
    path = f"/consumers/{group}/instances/{consumer.name}/records"

    def write_all():
        for number in range(count):
            offsets_of(
                write(cluster.nodes[number % 3], topic, number, partition=number % partitions)
            )
            time.sleep(0.01)

    found, lost = [], 0
    with in_background(write_all) as writing:
        for number in itertools.count():
            query = f"token=run.{number}&timeout=200&max_bytes={rng.choice((1, 20, 100_000))}"
            while rng.random() < 0.5:
                url = f"{rng.choice(cluster.nodes).url}{path}?{query}"
                lose(url, is_read=rng.random() < 0.7, wait_s=rng.choice((0, 0.02)))
                lost += 1
            answer = ok(call(rng.choice(cluster.nodes), f"GET {path}?{query}"))
            found += [(record["partition"], record["offset"], record["value"]) for record in answer]
            if len(found) >= count and not answer:
                break
        writing.result()
    assert lost > 10
    for partition in range(partitions):
        offsets = [offset for p, offset, _ in found if p == partition]
        assert offsets == list(range(count // partitions)), partition
    assert sorted(value for *_, value in found) == list(range(count))
    ok(call(cluster.node(2), f"DELETE /consumers/{group}/instances/{consumer.name}"))
    assert sum(committed(cluster.node(3), group, topic).values()) == count


def test_the_loop_that_the_document_shows_reads_each_record_once(cluster):
    topic = topic_with(cluster, *range(5))
    group = new_group("shown")
    consumer = consumer_of(cluster, group).subscribe(topic)
    (program,) = (block for block in blocks(DOC, "python") if "def records(" in block)
    names: dict[str, object] = {}
    exec(program, names)
    url = f"{cluster.node(2).url}/consumers/{group}/instances/{consumer.name}"
    found = names["records"](url, "run")
    assert [record["value"] for record in itertools.islice(found, 5)] == [*range(5)]
