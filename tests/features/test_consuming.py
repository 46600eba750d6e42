"""Consuming: readers pull from where they like; the cluster keeps nothing of them."""

import pytest

from tests.support.clusters.live_cluster import (
    create_topic,
    eventually,
    in_background,
    metadata,
    offsets_of,
    ok,
    read,
    values,
    write,
)

pytestmark = pytest.mark.integration


def fill(cluster, topic, count, *, per_request=1):
    for start in range(0, count, per_request):
        numbers = range(start, min(start + per_request, count))
        offsets_of(write(cluster.node(1), topic, *numbers))


def test_a_reader_pulls_from_an_offset_as_many_bytes_as_it_likes(cluster):
    """Each answer says where the next request goes on; none is larger than asked for, but for one batch."""
    topic = create_topic(cluster.node(1), "pull")
    fill(cluster, topic, 300, per_request=10)
    for max_bytes in (1, 500, 1 << 20):
        found, offset, requests = [], 0, 0
        while offset < 300:
            answer = read(
                cluster.nodes[requests % 3], topic, offset=offset, max_bytes=max_bytes, timeout=1000
            )
            records = ok(answer)
            found += [record["value"] for record in records]
            assert max_bytes > 500 or len(records) <= 60
            offset = int(answer.headers["Milena-Next-Offset"])
            requests += 1
        assert found == list(range(300))
        assert (requests == 30) == (max_bytes == 1), "at least one batch, else nobody would get on"


def test_a_reader_waits_for_what_is_not_there_yet(cluster):
    """A pull may wait: it is answered by the next record, or empty when its time is up."""
    topic = create_topic(cluster.node(1), "wait")
    for number, node in enumerate(cluster.nodes):
        assert ok(read(node, topic, offset=number, timeout=100)) == []
        with in_background(
            lambda n=number, at=node: values(at, topic, offset=n, timeout=50_000)
        ) as got:
            offsets_of(write(cluster.node(1), topic, number))
            assert got.result() == [number]


def test_a_reader_may_go_back_and_replay_from_any_offset_or_time(cluster):
    """Whoever joins late reads from the beginning; whoever was wrong reads again; nothing is used up."""
    topic = create_topic(cluster.node(1), "replay")
    fill(cluster, topic, 30)
    stamps = {r["offset"]: r["timestamp"] for r in ok(read(cluster.node(1), topic))}
    for node in cluster.nodes:
        assert values(node, topic) == list(range(30))
        assert values(node, topic, offset=29, timeout=1000) == [29]
        assert values(node, topic, offset=7, timeout=1000) == list(range(7, 30))
        assert values(node, topic, offset=-3) == [27, 28, 29]
        assert values(node, topic) == list(range(30)), "as before"
        since = values(node, topic, timestamp=stamps[20])
        assert since == [n for n in range(30) if stamps[n] >= stamps[since[0]]]
        assert stamps[since[0]] == stamps[20]


def test_the_reader_knows_its_position_and_the_broker_does_not(cluster):
    """Readers at different places do not disturb each other, and reading leaves no trace in the cluster."""
    topic = create_topic(cluster.node(1), "stateless")
    fill(cluster, topic, 50)
    for node in cluster.nodes:
        eventually(lambda at=node: values(at, topic, replica="local", offset=49) == [49])
    before = metadata(cluster.node(1))
    positions = {"slow": 0, "quick": 0, "late": 40}
    found = {name: [] for name in positions}
    for turn in range(10):
        for step, name in enumerate(positions):
            node = cluster.nodes[(turn + step) % 3]
            answer = read(node, topic, offset=positions[name], count=1 + 4 * (name == "quick"))
            found[name] += [record["value"] for record in ok(answer)]
            positions[name] = int(answer.headers["Milena-Next-Offset"])
    assert found == {
        "slow": list(range(10)), "quick": list(range(50)), "late": list(range(40, 50)),
    }  # fmt: skip
    after = metadata(cluster.node(1))
    assert (after["topics"], after["brokers"]) == (before["topics"], before["brokers"])
