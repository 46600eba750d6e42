"""Producing: who picks the partition, when a write counts, and what a retry does."""

from base64 import b64decode
from collections import Counter
from datetime import datetime

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    end_offset,
    eventually,
    leader_of,
    offsets_of,
    ok,
    others,
    partition_state,
    restart,
    values,
    wait_in_sync,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


def produce(node, topic, *records):
    return offsets_of(call(node, f"POST /topics/{topic}", {"records": list(records)}))


def test_records_without_a_key_take_turns_and_those_of_a_key_stay_together(cluster):
    """Without a key requests go round the partitions; a key's hash picks one; a producer may name its own."""
    topic = create_topic(cluster.node(1), "partitioning", partitions=4)
    node = cluster.node(1)
    keyless = Counter(p for _ in range(12) for p, _ in produce(node, topic, {"value": "no key"}))
    assert keyless == {0: 3, 1: 3, 2: 3, 3: 3}

    by_key = {}
    for turn in range(3):
        for number in range(20):
            record = {"key": f"user {number}", "value": turn}
            ((partition, _),) = produce(cluster.nodes[turn], topic, record)
            by_key.setdefault(number, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in by_key.values()), "on every node alike"
    assert set().union(*by_key.values()) == {0, 1, 2, 3}, "different keys are spread"

    # A producer that knows the topology chooses: here, what the second node leads.
    near = next(p for p in range(4) if leader_of(cluster, topic, p) is cluster.node(2))
    ((partition, _),) = produce(
        cluster.node(2), topic, {"key": "user 1", "value": "near", "partition": near}
    )
    assert partition == near


def test_a_producer_may_fire_and_forget_or_wait_and_may_always_retry(cluster):
    """acks=0 is answered at once without an offset; a waiting write tells where it is; a retry adds nothing."""
    topic = create_topic(cluster.node(1), "ways-of-sending")
    assert offsets_of(write(cluster.node(1), topic, "forgotten", acks=0)) == [(0, None)]
    eventually(lambda: end_offset(cluster.node(1), topic) == 1)
    assert offsets_of(write(cluster.node(1), topic, "waited for")) == [(0, 1)]
    for node in cluster.nodes:
        assert offsets_of(write(node, topic, "retried", key="retry")) == [(0, 2)]
    assert values(cluster.node(2), topic) == ["forgotten", "waited for", "retried"]


def test_acks_say_how_many_replicas_must_have_a_record_before_it_counts(cluster):
    """With one follower gone, acks=1 goes on; acks=all needs min.insync.replicas and refuses below it at once."""
    three = create_topic(cluster.node(1), "acks-three", min_insync_replicas=3)
    two = create_topic(cluster.node(1), "acks-two", min_insync_replicas=2)
    leaders = {leader_of(cluster, three).node_id, leader_of(cluster, two).node_id}
    victim = next(node for node in cluster.nodes if node.node_id not in leaders)
    victim.process.kill()
    # On both: the leader of either may be the later one to hear of it, and would wait for the third copy until then.
    for at in others(cluster, victim):
        for topic in (three, two):
            eventually(lambda n=at, t=topic: victim.node_id not in partition_state(n, t)["isr"])
    for at in others(cluster, victim):
        refused = write(at, three, "too few")
        assert refused.refusal == (503, 50303)
        assert "nothing was written" in refused.json["message"]
        offsets_of(write(at, three, "by the leader", acks=1))
        offsets_of(write(at, two, "by both"))
        offsets_of(write(at, two, "forgotten", acks=0))
    restart(cluster, victim)
    wait_in_sync(cluster, three)
    assert offsets_of(write(victim, three, "by all")) == [(0, 2)]
    assert values(victim, three) == ["by the leader", "by the leader", "by all"]
    eventually(lambda: Counter(values(victim, two)) == {"by both": 2, "forgotten": 2})


def test_a_bad_request_is_told_what_to_change(cluster):
    """A producer that is wrong hears it at once, and nothing of its request is written."""
    topic = create_topic(cluster.node(1), "bad-requests")
    path = f"POST /topics/{topic}"
    bodies = [b"{", {"records": []}, {"records": [{"valeu": 1}]}, {"records": "x"}, [1]]
    for body in bodies:
        answer = call(cluster.node(2), path, body)
        assert 400 <= answer.status < 500, answer
        assert answer.json["message"]
    too_large = {"records": [{"value": "x" * (9 << 20)}]}
    assert call(cluster.node(2), path, too_large).refusal == (413, 413)
    assert end_offset(cluster.node(3), topic) == 0
    ok(call(cluster.node(2), path, {"records": [{"value": 1}]}))


def test_receipts_of_v3_tell_a_record_s_time_as_its_readers_get_it(cluster):
    """A record's own time, else when the request came; where the topic says so, when the leader appended it."""
    clusters = call(cluster.node(1), "GET /v3/clusters").json["data"]
    for kind in ("CreateTime", "LogAppendTime"):
        topic = create_topic(cluster.node(1), f"times-{kind.lower()}", message_timestamp_type=kind)
        path = f"/v3/clusters/{clusters[0]['cluster_id']}/topics/{topic}/records:batch"
        told = []
        for node in cluster.nodes:
            entries = [{"id": "now"}, {"id": "then", "timestamp": 1_700_000_000_001}]
            answer = call(node, f"POST {path}", {"entries": entries})
            told += [datetime.fromisoformat(row["timestamp"]) for row in answer.json["successes"]]
        read = ok(call(cluster.node(1), f"GET /topics/{topic}/partitions/0/records"))
        assert [round(time.timestamp() * 1000) for time in told] == [r["timestamp"] for r in read]


def test_text_is_written_and_read_as_strings_without_quotes_in_the_log(cluster):
    """What one client writes as text another reads as text, by a fetch or as a consumer."""
    text = "application/vnd.kafka.text.v2+json"
    topic = create_topic(cluster.node(1), "text")
    records = {"records": [{"key": "k", "value": "tëa"}]}
    offsets_of(call(cluster.node(1), f"POST /topics/{topic}", records, content_type=text))
    path = f"GET /topics/{topic}/partitions/0/records"
    binary = "application/vnd.kafka.binary.v2+json"
    (stored,) = ok(call(cluster.node(2), path, headers={"Accept": binary}))
    assert b64decode(stored["value"]) == "tëa".encode()
    (read,) = ok(call(cluster.node(3), path, headers={"Accept": text}))
    assert (read["key"], read["value"]) == ("k", "tëa")

    new = {"name": "c", "format": "text", "auto.offset.reset": "earliest"}
    ok(call(cluster.node(1), "POST /consumers/readers-of-text", new))
    base = "/consumers/readers-of-text/instances/c"
    place = {"partitions": [{"topic": topic, "partition": 0}]}
    ok(call(cluster.node(2), f"POST {base}/assignments", place))
    delivered = call(cluster.node(3), f"GET {base}/records", timeout=5_000)
    assert [row["value"] for row in ok(delivered)] == ["tëa"]
