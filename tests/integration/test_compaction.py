"""Compacted topics on real nodes: logs shrink, readers see the last value of each key, whoever is killed meanwhile."""

from itertools import count

import pytest

from milena import json_bytes, sync
from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    encoded,
    end_offset,
    eventually,
    metric,
    offsets_of,
    ok,
    others,
    read,
    restart,
    running_cluster,
    wait_in_sync,
    write,
    write_batch,
)

pytestmark = pytest.mark.integration

KEYS = 40
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": 64 << 10,
    "segment_ms": 500,
    "min_cleanable_dirty_ratio": 0.1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("compaction")
    with running_cluster(
        directory, retention_check_ms=200, compaction_bytes_per_s=1 << 20
    ) as nodes:
        yield nodes


def stored_bytes(node, topic):
    """What the node's copy takes on its disk."""
    topics = ok(call(node, "GET /metadata"))["topics"]
    topic_id = next(t["topic_id"] for t in topics if t["name"] == topic)
    directory = node.data_dir / "topics" / topic_id / "0"
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def survivors(node, topic):
    """Offset → (key, value) of every record that the node's own copy has, read as any client reads.

    Read up to the high watermark that the leader knows when the reading begins: a follower hears
    of it a moment later, and is asked again until then.
    """
    end = end_offset(node, topic)
    found = {}
    offset = 0
    while offset < end:
        answer = eventually(lambda offset=offset: further(node, topic, offset))
        following = int(answer.headers["Milena-Next-Offset"])
        records = ok(answer)
        assert all(offset <= record["offset"] < following for record in records)
        found |= {record["offset"]: (record["key"], record["value"]) for record in records}
        offset = following
    return found


def further(node, topic, offset):
    """A read of the node's own copy that comes beyond ``offset``; false when there is none yet."""
    answer = read(node, topic, offset=offset, replica="local")
    ok(answer)
    return int(answer.headers["Milena-Next-Offset"]) > offset and answer


def values_of(records):
    """The last value of each key, in the order of offsets; without those that were deleted."""
    values = dict(records[offset] for offset in sorted(records))
    return {key: value for key, value in values.items() if value is not None}


def update(node, topic, number, *, keys=KEYS):
    """Write every key anew."""
    records = [{"key": f"key-{n}", "value": [number, n, "x" * 150]} for n in range(keys)]
    return offsets_of(call(node, f"POST /topics/{topic}/partitions/0", {"records": records}))


def expected(number):
    return {f"key-{n}": [number, n, "x" * 150] for n in range(KEYS)}


def test_a_log_shrinks_to_the_last_value_of_each_key_on_every_node(cluster):
    topic = create_topic(cluster.node(1), "users", **COMPACTED)
    for number in range(60):
        update(cluster.node(1 + number % 3), topic, number)
    end = end_offset(cluster.node(1), topic)
    assert end == 60 * KEYS
    written = 60 * KEYS * 150
    for node in cluster.nodes:
        eventually(lambda node=node: stored_bytes(node, topic) < written / 6)
        eventually(lambda node=node: len(survivors(node, topic)) < 3 * KEYS)
        assert values_of(survivors(node, topic)) == expected(59)
        assert end_offset(node, topic) == end
        # Counted when a run is over; what it wrote is in its place before.
        eventually(lambda node=node: metric(node, "compaction_runs_total") >= 1)
        eventually(lambda node=node: metric(node, "compaction_saved_bytes_total") > written / 2)
    # The same offset names the same record everywhere.
    copies = [survivors(node, topic) for node in cluster.nodes]
    for offset in set(copies[0]) & set(copies[1]) & set(copies[2]):
        assert copies[0][offset] == copies[1][offset] == copies[2][offset]
    first = ok(read(cluster.node(2), topic, offset=0, count=1))
    assert first[0]["offset"] > 0


def test_replicas_that_were_compacted_as_far_have_the_same_records(cluster):
    topic = create_topic(cluster.node(1), "settled", **COMPACTED)
    for number in range(20):
        update(cluster.node(1), topic, number)

    def records():
        copies = [survivors(node, topic) for node in cluster.nodes]
        assert copies[0] == copies[1] == copies[2]
        return copies[0]

    # The active segment is closed by its age, and compacted: each key is left once.
    eventually(lambda: len(records()) == KEYS)
    assert values_of(records()) == expected(19)


def test_deleted_keys_are_forgotten_in_the_end(cluster):
    topic = create_topic(cluster.node(1), "carts", delete_retention_ms=0, **COMPACTED)
    update(cluster.node(1), topic, 1)
    tombstones = [{"key": f"key-{n}", "value": None} for n in range(10)]
    offsets_of(call(cluster.node(2), f"POST /topics/{topic}/partitions/0", {"records": tombstones}))
    wanted = {key: value for key, value in expected(1).items() if int(key[4:]) >= 10}
    for node in cluster.nodes:
        assert values_of(survivors(node, topic)) == wanted
        eventually(lambda node=node: len(survivors(node, topic)) == KEYS - 10)
        assert values_of(survivors(node, topic)) == wanted
    # A reader at a place where nothing is left is told how far that goes, and waits there.
    assert end_offset(cluster.node(1), topic) == KEYS + 10
    answer = read(cluster.node(1), topic, offset=KEYS)
    assert (ok(answer), answer.headers["Milena-Next-Offset"]) == ([], str(KEYS + 10))


def test_records_without_a_key_are_refused_and_told_why(cluster):
    topic = create_topic(cluster.node(1), "strict", **COMPACTED)
    answer = write(cluster.node(2), topic, "a", partition=0)
    assert 400 <= answer.status < 500 or answer.json["offsets"][0]["error_code"], answer
    assert "has no key, but strict is compacted" in answer.body.decode()
    answer = write_batch(cluster.node(3), topic, encoded(b"a"))
    assert answer.status == 422
    assert "has no key, but the topic is compacted" in answer.body.decode()
    assert end_offset(cluster.node(1), topic) == 0
    assert write_batch(cluster.node(3), topic, encoded(b"a", keys=[b"k"])).status == 200


def test_a_policy_that_is_no_policy_is_refused(cluster):
    path = f"POST /v3/clusters/{cluster_id(cluster.node(1))}/topics"
    configs = [{"name": "cleanup.policy", "value": "compress"}]
    answer = call(cluster.node(1), path, {"topic_name": "x", "configs": configs})
    assert answer.status == 400
    assert "must be one of delete, compact, compact,delete" in answer.body.decode()


def leftovers(node):
    return [*node.data_dir.rglob("*.cleaned"), *node.data_dir.rglob("*.swap")]


def test_nothing_is_lost_when_nodes_are_killed_while_they_compact(cluster):
    topic = create_topic(cluster.node(1), "hurried", **COMPACTED)
    numbers = count()
    last = -1
    for victim in cluster.nodes:
        # Compaction is bounded to a rate at which it is under way most of the time.
        for _ in range(15):
            last = next(numbers)
            update(victim, topic, last)
        before = metric(victim, "compaction_worked_bytes_total")
        while metric(victim, "compaction_worked_bytes_total") <= before:
            # More to do each time: it may be through with what there was.
            last = next(numbers)
            update(victim, topic, last)
        victim.process.kill()
        survivor = others(cluster, victim)[0]
        for _ in range(10):
            last = next(numbers)
            eventually(lambda survivor=survivor, last=last: update(survivor, topic, last))
        restart(cluster, victim)
        wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        assert values_of(survivors(node, topic)) == expected(last)
        eventually(lambda node=node: len(survivors(node, topic)) == KEYS)
        assert values_of(survivors(node, topic)) == expected(last)
        # What a killed run left behind; one that is under way has such files as well, for a moment.
        eventually(lambda node=node: not leftovers(node))


def test_a_key_of_http_json_and_of_the_clients_json_is_one_key(cluster):
    node = cluster.node(1)
    wide = create_topic(node, "wide-keys", partitions=8)
    topic = create_topic(node, "mixed-keys", **COMPACTED)
    over_http = {"records": [{"key": "u1", "value": "http"}]}
    json_keys = {"key_serializer": json_bytes, "value_serializer": json_bytes}
    with sync.Client(node.url) as client, client.producer(**json_keys) as producer:
        (placed,) = ok(call(node, f"POST /topics/{wide}", over_http))["offsets"]
        assert producer.send(wide, "client", key="u1").result(60).partition == placed["partition"]
        ok(call(node, f"POST /topics/{topic}", over_http))
        last = producer.send(topic, "client", key="u1").result(60).offset
    for number in range(60):
        update(node, topic, number)

    def is_compacted():
        found = survivors(node, topic)
        return [offset for offset, (key, _) in found.items() if key == "u1"] == [last]

    eventually(is_compacted)
    assert survivors(node, topic)[last] == ("u1", "client")
