"""Retention: whole segments go, by size and by time; the offsets of what stays never change."""

import time

import pytest

from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    end_offset,
    eventually,
    leader_of,
    offsets_of,
    ok,
    partition_state,
    read,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

SEGMENT_BYTES = 64 << 10
PAYLOAD = "x" * 8000
RECORDS = 60
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("retention")
    with running_cluster(directory, retention_check_ms=200) as nodes:
        yield nodes


def fill(node, topic, numbers, *, age_ms=0):
    """A record a request, so that segments can roll between any two."""
    timestamp = int(time.time() * 1000) - age_ms
    for number in numbers:
        record = {"value": [number, PAYLOAD], "timestamp": timestamp}
        offsets_of(call(node, f"POST /topics/{topic}", {"records": [record]}))


def alter(node, topic, **configs):
    data = [
        {"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()
    ]
    path = f"/v3/clusters/{cluster_id(node)}/topics/{topic}/configs:alter"
    ok(call(node, f"POST {path}", {"data": data}))


def first_offset(node, topic):
    return ok(call(node, f"GET /topics/{topic}/partitions/0/offsets"))["beginning_offset"]


def segment_starts(cluster, node, topic):
    """Base offsets of the segments on the node's disk."""
    topics = ok(call(cluster.node(1), "GET /metadata"))["topics"]
    topic_id = next(t["topic_id"] for t in topics if t["name"] == topic)
    directory = node.data_dir / "topics" / topic_id / "0"
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def settled_start(node, topic):
    """The first offset, once it leaves less than two segments' worth."""
    start = first_offset(node, topic)
    return start if (RECORDS - start) * len(PAYLOAD) < 2 * SEGMENT_BYTES else 0


def read_from(node, topic, offset, end):
    """Every record up to ``end``; a fetch may give less than it could."""
    records = []
    while offset < end:
        records += ok(read(node, topic, offset=offset, timeout=1000))
        assert records, f"nothing at {offset}"
        assert records[-1]["offset"] >= offset, f"nothing at {offset}"
        offset = records[-1]["offset"] + 1
    return records


def check_what_is_left(cluster, topic, start, end):
    """From ``start`` on every offset has the value it always had, on every node; below it there is nothing."""
    for node in cluster.nodes:
        eventually(lambda at=node: first_offset(at, topic) == start)
        found = [(r["offset"], r["value"][0]) for r in read_from(node, topic, start, end)]
        assert found == [(offset, offset) for offset in range(start, end)]
        assert ok(read(node, topic, count=1))[0]["offset"] == start
        eventually(lambda at=node: read(at, topic, offset=start - 1).refusal == (400, 40002))


def check_disks(cluster, topic, start):
    """Each node keeps the segment that holds ``start`` and none below it."""

    def is_trimmed(node):
        first, second, *_ = [*segment_starts(cluster, node, topic), end_offset(node, topic) + 1]
        return first <= start < second

    for node in cluster.nodes:
        eventually(lambda at=node: is_trimmed(at))


def test_by_size_the_oldest_segments_go_on_every_node_and_offsets_stay(cluster):
    topic = create_topic(cluster.node(1), "by-size", segment_bytes=SEGMENT_BYTES)
    fill(cluster.node(1), topic, range(RECORDS))
    for node in cluster.nodes:
        assert len(read_from(node, topic, 0, RECORDS)) == RECORDS
        assert first_offset(node, topic) == 0, "what was read is not deleted for that"
    leader = leader_of(cluster, topic)
    segments = segment_starts(cluster, leader, topic)
    assert len(segments) > 5

    alter(cluster.node(2), topic, retention_bytes=3 * SEGMENT_BYTES)
    start = eventually(lambda: first_offset(cluster.node(1), topic))
    assert start in segments, "whole segments"
    assert 3 * SEGMENT_BYTES <= (RECORDS - start) * (len(PAYLOAD) + 200) < 5 * SEGMENT_BYTES
    check_what_is_left(cluster, topic, start, RECORDS)
    check_disks(cluster, topic, start)
    assert offsets_of(write(cluster.node(3), topic, [RECORDS, ""])) == [(0, RECORDS)]


def test_by_time_the_segments_go_whose_youngest_record_is_too_old(cluster):
    topic = create_topic(cluster.node(1), "by-time", segment_bytes=SEGMENT_BYTES)
    fill(cluster.node(1), topic, range(RECORDS // 2), age_ms=HOUR_MS)
    fill(cluster.node(1), topic, range(RECORDS // 2, RECORDS))
    segments = segment_starts(cluster, leader_of(cluster, topic), topic)
    newest_old = max(base for base in segments if base <= RECORDS // 2)

    alter(cluster.node(2), topic, retention_ms=HOUR_MS // 2)
    eventually(lambda: first_offset(cluster.node(1), topic) == newest_old)
    check_what_is_left(cluster, topic, newest_old, RECORDS)
    check_disks(cluster, topic, newest_old)


def test_a_topic_whose_every_record_is_too_old_is_empty_and_goes_on_at_its_offset(cluster):
    topic = create_topic(cluster.node(1), "all-old", retention_ms=HOUR_MS // 2)
    fill(cluster.node(1), topic, range(10), age_ms=HOUR_MS)
    for node in cluster.nodes:
        eventually(lambda at=node: first_offset(at, topic) == 10)
        assert values(node, topic) == []
    assert offsets_of(write(cluster.node(2), topic, [10, ""])) == [(0, 10)]
    check_what_is_left(cluster, topic, 10, 11)


def test_what_is_left_survives_a_kill_of_every_node(cluster):
    topic = create_topic(
        cluster.node(1), "killed", segment_bytes=SEGMENT_BYTES, retention_bytes=SEGMENT_BYTES
    )
    fill(cluster.node(1), topic, range(RECORDS))
    start = eventually(lambda: settled_start(cluster.node(1), topic))
    alter(cluster.node(1), topic, retention_bytes=-1)
    check_what_is_left(cluster, topic, start, RECORDS)
    cluster.kill()
    restart(cluster, *cluster.nodes)
    wait_in_sync(cluster, topic)
    check_what_is_left(cluster, topic, start, RECORDS)


def test_a_new_copy_begins_where_the_leader_does(cluster):
    """A follower that was away while segments went has nothing left to fetch at its end, and starts anew."""
    topic = create_topic(
        cluster.node(1), "behind", segment_bytes=SEGMENT_BYTES, retention_bytes=SEGMENT_BYTES
    )
    fill(cluster.node(1), topic, range(5))
    follower = next(n for n in cluster.nodes if n is not leader_of(cluster, topic))
    wait_in_sync(cluster, topic)
    follower.process.kill()
    left = next(n for n in cluster.nodes if n is not follower)
    eventually(lambda: follower.node_id not in partition_state(left, topic)["isr"])
    fill(left, topic, range(5, RECORDS))
    start = eventually(lambda: settled_start(left, topic))
    assert start > 5
    restart(cluster, follower)
    wait_in_sync(cluster, topic)
    eventually(lambda: ok(read(follower, topic, replica="local", count=1))[0]["offset"] == start)
    check_what_is_left(cluster, topic, start, RECORDS)
