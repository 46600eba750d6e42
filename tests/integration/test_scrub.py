"""A bit that rots on the disk of a running node is found and restored; who reads elsewhere notices nothing."""

import json

import pytest

from milena.sync import Client
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    leader_of,
    metric,
    ok,
    others,
    running_cluster,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

VALUES = [f"value-{number:04d}-" + "x" * 1000 for number in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("scrub")
    with running_cluster(directory, scrub_bytes_per_s=64 << 20, scrub_interval_ms=1000) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def unscrubbed(tmp_path_factory):
    """Nothing is checked but what somebody says is damaged."""
    directory = tmp_path_factory.mktemp("unscrubbed")
    with running_cluster(directory, scrub_bytes_per_s=0) as nodes:
        yield nodes


def first_segment(node, topic):
    topics = ok(call(node, "GET /metadata"))["topics"]
    topic_id = next(t["topic_id"] for t in topics if t["name"] == topic)
    return min((node.data_dir / "topics" / topic_id / "0").glob("*.log"))


def flip(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def whole_log(node, topic):
    """Everything, though a fetch ends with a segment."""
    found = []
    while part := values(node, topic, offset=len(found)):
        found += part
    return found


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_flipped_bit_is_found_and_restored(cluster, who):
    topic = create_topic(cluster.nodes[0], f"rot-{who}", segment_bytes=64 << 10)
    for value in VALUES:
        ok(write(cluster.nodes[0], topic, value))
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    node = leader if who == "leader" else others(cluster, leader)[0]
    path = first_segment(node, topic)
    whole = path.read_bytes()[:60_000]
    # Closed segments are checked once a checkpoint has sealed them.
    eventually(lambda: path.with_suffix(".index").exists())
    found = metric(node, "scrub_damage_total")
    flip(path, 20_000)

    def is_restored():
        assert values(node, topic, offset=190) == VALUES[190:]
        return (
            metric(node, "scrub_damage_total") == found + 1 and path.read_bytes()[:60_000] == whole
        )

    eventually(is_restored)
    wait_in_sync(cluster, topic)
    assert (leader_of(cluster, topic) is leader) is (who == "follower")
    eventually(lambda: f"segment={path}" in node.log_path.read_text())
    for reader in cluster.nodes:
        assert whole_log(reader, topic) == VALUES


@pytest.mark.parametrize("segment_bytes", [64 << 10, 1 << 30], ids=["sealed", "growing"])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_what_a_reader_meets_damaged_is_restored_and_then_read(unscrubbed, who, segment_bytes):
    """It asks the leader, or another node, which asks the leader."""
    nodes = unscrubbed.nodes
    topic = create_topic(nodes[0], f"met-{who}-{segment_bytes}", segment_bytes=segment_bytes)
    for value in VALUES:
        ok(write(nodes[0], topic, value))
    wait_in_sync(unscrubbed, topic)
    leader = leader_of(unscrubbed, topic)
    reader = leader if who == "leader" else others(unscrubbed, leader)[0]
    path = first_segment(leader, topic)
    if segment_bytes < 1 << 20:
        eventually(lambda: path.with_suffix(".index").exists())
    found = metric(leader, "scrub_damage_total")
    flip(path, 20_000)

    # An offset by its distance from the end is the leader's to find, whoever is asked.
    bad = len(whole_part(reader, topic))
    assert 15 <= bad < 20
    answer = call(reader, f"GET /topics/{topic}/partitions/0/records", offset=bad - len(VALUES))
    assert answer.refusal == (503, 50307)
    assert answer.headers["Retry-After"] == "1"
    assert f"{topic}-0: the records at offset {bad} are damaged" in answer.json["message"]

    eventually(lambda: leader_of(unscrubbed, topic) is not leader)
    eventually(lambda: whole_log(reader, topic) == VALUES)
    wait_in_sync(unscrubbed, topic)
    assert metric(leader, "scrub_damage_total") == found + 1
    for node in nodes:
        assert whole_log(node, topic) == VALUES
        log = node.log_path.read_text()
        assert "Traceback" not in log
        assert "unexpected error" not in log


def whole_part(node, topic):
    """What lies before the damage in the leader's copy: the answer ends there."""
    answer = call(node, f"GET /topics/{topic}/partitions/0/records", offset=-len(VALUES))
    assert int(answer.headers["Milena-Next-Offset"]) == len(ok(answer))
    return ok(answer)


def test_the_client_reads_on_once_what_it_was_sent_damaged_is_restored(unscrubbed):
    """It is sent stored batches as they are: it has its node check them, and is patient."""
    topic = create_topic(unscrubbed.nodes[0], "met-by-client", segment_bytes=64 << 10)
    for value in VALUES:
        ok(write(unscrubbed.nodes[0], topic, value))
    wait_in_sync(unscrubbed, topic)
    leader = leader_of(unscrubbed, topic)
    path = first_segment(leader, topic)
    eventually(lambda: path.with_suffix(".index").exists())
    found = metric(leader, "scrub_damage_total")
    flip(path, 20_000)
    with Client(leader.url) as client, client.reader(topic, 0) as reader:
        assert [json.loads(record.value) for record in reader] == VALUES
    eventually(lambda: metric(leader, "scrub_damage_total") == found + 1)
