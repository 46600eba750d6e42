"""Writes that name their offset, on real nodes: a counter that several clients count up loses and doubles nothing."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    encoded,
    eventually,
    leader_of,
    offsets_of,
    ok,
    read,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

DOC = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
CLIENTS, ADDS = 3, 60
BATCH = "application/vnd.milena.batch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("conditional")) as nodes:
        yield nodes


def documented(name: str) -> Callable[..., int]:
    """A function of a program in docs/http-api.md."""
    (program,) = (block for block in blocks(DOC, "python") if f"def {name}(" in block)
    names: dict[str, object] = {}
    exec(program, names)
    return names[name]


def write_at(node, topic, if_match, *numbers, key=None):
    headers = {"If-Match": if_match} | ({} if key is None else {"Idempotency-Key": key})
    body = {"records": [{"value": number} for number in numbers]}
    return call(node, f"POST /topics/{topic}/partitions/0", body, headers=headers)


def test_it_is_written_on_every_node_where_the_partition_ends_as_named(cluster):
    topic = create_topic(cluster.node(1), "named")
    for end, node in enumerate(cluster.nodes):
        assert offsets_of(write_at(node, topic, f'"{end}"', end)) == [(0, end)]
        for other in cluster.nodes:
            refused = write_at(other, topic, f'"{end}"', "late")
            assert refused.status == 412
            assert refused.json["end_offset"] == end + 1
    assert values(cluster.node(2), topic) == [0, 1, 2]


def test_what_a_read_on_any_node_tells_can_be_named_on_any_other(cluster):
    topic = create_topic(cluster.node(1), "told")
    for number in range(6):
        tag = read(cluster.nodes[number % 3], topic).headers["ETag"]
        assert re.fullmatch(rf'"[0-9a-f]{{12}}\.{number}"', tag)
        asked = call(cluster.nodes[(number + 1) % 3], f"GET /topics/{topic}/partitions/0/offsets")
        assert asked.headers["ETag"] == tag
        offsets_of(write_at(cluster.nodes[(number + 2) % 3], topic, tag, number))


def test_an_encoded_batch_is_judged_likewise(cluster):
    topic = create_topic(cluster.node(1), "encoded")
    for node in cluster.nodes:
        path = f"POST /topics/{topic}/partitions/0/records"
        answers = [
            call(node, path, encoded(b"x"), content_type=BATCH, headers={"If-Match": f'"{end}"'})
            for end in (node.node_id - 1, node.node_id - 1)
        ]
        assert ok(answers[0])["base_offset"] == node.node_id - 1
        assert answers[1].json["end_offset"] == node.node_id


def test_a_repeat_under_a_key_gets_its_first_answer_after_the_leader_was_killed(cluster):
    topic = create_topic(cluster.node(1), "repeated")
    first = offsets_of(write_at(cluster.node(1), topic, "0", "a", key="once"))
    leader = leader_of(cluster, topic)
    leader.process.kill()
    node = next(node for node in cluster.nodes if node is not leader)
    eventually(lambda: write(node, topic, "after").status == 200)
    assert offsets_of(write_at(node, topic, "0", "a", key="once")) == first
    assert write_at(node, topic, "0", "a").status == 412
    restart(cluster, leader)
    wait_in_sync(cluster, topic)


def test_a_counter_counts_every_acknowledged_increment_once_while_its_leader_is_killed(cluster):
    topic = create_topic(cluster.node(1), "counter")
    add = documented("add")
    totals: list[int] = []
    half_way = threading.Event()

    def count_up(number: int) -> None:
        for _ in range(ADDS):
            totals.append(add(f"{cluster.nodes[number].url}/topics/{topic}/partitions/0", 1))
            if len(totals) > CLIENTS * ADDS // 3:
                half_way.set()

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(count_up, number) for number in range(CLIENTS)]
        half_way.wait(60)
        leader = leader_of(cluster, topic)
        leader.process.kill()
        restart(cluster, leader)
        for client in clients:
            client.result()
    assert sorted(totals) == list(range(1, CLIENTS * ADDS + 1)), "each increment made one total"
    assert values(cluster.node(1), topic) == list(range(1, CLIENTS * ADDS + 1))
