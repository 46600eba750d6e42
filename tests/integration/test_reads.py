"""Where a read begins, how long it waits, and that every node answers it alike."""

import base64
import json
import time
from datetime import UTC, datetime

import pytest

from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    BATCH,
    call,
    create_topic,
    encoded,
    end_offset,
    eventually,
    in_background,
    leader_of,
    offsets_of,
    ok,
    others,
    read,
    running_cluster,
    values,
    write,
    write_batch,
)

pytestmark = pytest.mark.integration

MINUTE_LATER = datetime.fromtimestamp(BASE_TIMESTAMP_MS / 1000 + 60, UTC).isoformat()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("reads")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def hundred(cluster):
    """A topic with the values 0 to 99 at the offsets 0 to 99, a second apart."""
    topic = create_topic(cluster.node(1), "hundred")
    records = [{"value": n, "timestamp": BASE_TIMESTAMP_MS + 1000 * n} for n in range(100)]
    for start in range(0, 100, 10):
        batch = {"records": records[start : start + 10]}
        ok(call(cluster.node(1), f"POST /topics/{topic}", batch))
    return topic


@pytest.mark.parametrize(
    ("query", "first"),
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({"offset": "earliest"}, 0, id="earliest"),
        pytest.param({"offset": 37}, 37, id="offset"),
        pytest.param({"offset": -1}, 99, id="last"),
        pytest.param({"offset": -15}, 85, id="last-few"),
        pytest.param({"offset": -1000}, 0, id="more-than-there-are"),
        pytest.param({"timestamp": BASE_TIMESTAMP_MS - 1}, 0, id="time-before-all"),
        pytest.param({"timestamp": BASE_TIMESTAMP_MS + 42_000}, 42, id="time-of-a-record"),
        pytest.param({"timestamp": BASE_TIMESTAMP_MS + 42_001}, 43, id="time-between"),
        pytest.param({"timestamp": MINUTE_LATER}, 60, id="iso-8601"),
    ],
)
def test_every_node_begins_where_the_query_says(cluster, hundred, query, first):
    for node in cluster.nodes:
        answer = read(node, hundred, **query)
        assert [record["value"] for record in ok(answer)] == list(range(first, 100)), node.url
        assert answer.headers["Milena-Start-Offset"] == str(first)
        assert answer.headers["Milena-Next-Offset"] == "100"


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"offset": "latest"}, id="latest"),
        pytest.param({"offset": 100}, id="offset"),
        pytest.param({"timestamp": BASE_TIMESTAMP_MS + 99_001}, id="time-after-all"),
    ],
)
def test_the_end_is_an_empty_answer(cluster, hundred, query):
    for node in cluster.nodes:
        answer = read(node, hundred, **query)
        assert ok(answer) == []
        assert answer.headers["Milena-Next-Offset"] == "100"


def test_an_offset_beyond_the_end_is_out_of_range_on_every_node(cluster, hundred):
    for node in cluster.nodes:
        assert read(node, hundred, offset=101).refusal == (400, 40002)


def test_count_cuts_within_a_batch_and_the_header_says_where_to_go_on(cluster, hundred):
    for node in cluster.nodes:
        answer = read(node, hundred, offset=5, count=3)
        assert [record["offset"] for record in ok(answer)] == [5, 6, 7]
        assert answer.headers["Milena-Next-Offset"] == "8"


def test_a_byte_limit_below_one_batch_still_gives_one(cluster, hundred):
    for node in cluster.nodes:
        assert values(node, hundred, offset=20, max_bytes=1) == list(range(20, 30))


def test_encoded_batches_come_as_they_are_stored(cluster, hundred):
    bodies = {read_batches(node, hundred) for node in cluster.nodes}
    assert len(bodies) == 1


def read_batches(node, topic):
    path = f"/topics/{topic}/partitions/0/records"
    answer = call(node, f"GET {path}", headers={"Accept": BATCH})
    assert (answer.status, answer.headers["Content-Type"]) == (200, BATCH)
    return answer.body


def test_unknown_topics_and_partitions_are_404_at_once_on_every_node(cluster, hundred):
    for node in cluster.nodes:
        assert read(node, "nowhere").refusal == (404, 40402)
        assert read(node, hundred, 1).refusal == (404, 40402)
        assert write(node, "nowhere", 1).refusal == (404, 40401)


def test_a_waiting_read_is_answered_by_the_next_record_on_leader_and_followers(cluster):
    topic = create_topic(cluster.node(1), "long-poll")
    leader = leader_of(cluster, topic)
    for number, reader in enumerate([leader, *others(cluster, leader)]):
        with in_background(
            lambda at=reader, n=number: read(at, topic, offset=n, timeout=30_000)
        ) as waiting:
            # The read must have arrived before the record does; a fetch of the same offset has then been asked as well.
            assert ok(read(reader, topic, offset=number, timeout=300)) == []
            assert not waiting.done()
            began = time.monotonic()
            offsets_of(write(leader, topic, f"record {number}"))
            assert [r["value"] for r in ok(waiting.result())] == [f"record {number}"]
            assert time.monotonic() - began < 10, "far below the 30 s that the read may wait"


def test_a_read_that_waits_in_vain_takes_its_timeout_and_no_longer(cluster, hundred):
    for node in cluster.nodes:
        began = time.monotonic()
        assert ok(read(node, hundred, offset=100, timeout=400)) == []
        assert 0.35 <= time.monotonic() - began < 10


def test_a_node_reads_its_own_copy_when_asked_to(cluster):
    topic = create_topic(cluster.node(1), "one-copy", replicas=1)
    holder = leader_of(cluster, topic)
    offsets_of(write(cluster.node(1), topic, "here"))
    assert values(holder, topic, replica="local") == ["here"]
    for node in others(cluster, holder):
        assert values(node, topic) == ["here"]
        assert read(node, topic, replica="local").refusal == (404, 40409)


def test_what_was_acknowledged_is_at_once_readable_everywhere(cluster):
    topic = create_topic(cluster.node(1), "read-your-writes")
    for number in range(30):
        writer = cluster.nodes[number % 3]
        ((_, offset),) = offsets_of(write(writer, topic, number))
        for reader in cluster.nodes:
            assert end_offset(reader, topic) == offset + 1
            assert values(reader, topic, offset=-1) == [number]


def transact(node, topic, *values):
    """Write in a transaction that readers see when it is answered; returns the offset of its last record."""
    records = [{"value": value} for value in values]
    body = {"writes": [{"topic": topic, "partition": 0, "records": records}]}
    done = ok(call(node, "POST /transactions", body))
    assert done["visible"]
    return done["writes"][0]["offsets"][-1]["offset"]


def produce(node, topic, *values):
    return offsets_of(write(node, topic, *values))[-1][1]


def fetched(**headers):
    def bodies(node, topic, offset):
        answer = call(
            node, f"GET /topics/{topic}/partitions/0/records", headers=headers, offset=offset
        )
        assert answer.status == 200, answer
        return answer.body

    return bodies


def whole_topic(node, topic, offset):
    path = f"GET /topics/{topic}/records"
    return call(node, path, headers={"Accept": "application/x-ndjson"}, offset=f"0:{offset}").body


def last_record(node, topic, offset):
    del offset
    return call(node, f"GET /topics/{topic}/partitions/0/records", offset=-1).body


def events(node, topic, offset):
    path = f"GET /topics/{topic}/partitions/0/records"
    accept = {"Accept": "text/event-stream"}
    return call(node, path, headers=accept, offset=offset, follow="false").body


def polled(node, topic, offset):
    """A consumer that begins at the offset and waits for nothing."""
    group = f"{topic}-readers"
    made = ok(call(node, f"POST /consumers/{group}", {"format": "text"}))
    path = f"/consumers/{group}/instances/{made['instance_id']}"
    where = [{"topic": topic, "partition": 0}]
    ok(call(node, f"POST {path}/assignments", {"partitions": where}))
    ok(call(node, f"POST {path}/positions", {"offsets": [{**where[0], "offset": offset}]}))
    answer = call(node, f"GET {path}/records", timeout=0)
    assert call(node, f"DELETE {path}").status == 204
    return answer.body


READS = {
    "json": fetched(Accept="application/vnd.kafka.json.v2+json"),
    "binary": fetched(Accept="application/vnd.kafka.binary.v2+json"),
    "text": fetched(Accept="application/vnd.kafka.text.v2+json"),
    "batches": fetched(Accept=BATCH),
    "arrow": fetched(Accept="application/vnd.apache.arrow.stream"),
    "lines": fetched(Accept="application/x-ndjson"),
    "events": events,
    "topic": whole_topic,
    "last": last_record,
    "consumer": polled,
}


@pytest.mark.parametrize("put", [produce, transact])
@pytest.mark.parametrize("kind", READS)
def test_what_was_acknowledged_is_in_every_answer_of_every_node(cluster, kind, put):
    topic = create_topic(cluster.node(1), f"at-once-{kind}-{put.__name__}")
    begin = {"transactional_id": "first"}
    eventually(lambda: call(cluster.node(1), "POST /transactions:begin", begin).status == 200)
    for number in range(9):
        writer, value = cluster.nodes[number % 3], f"text {number}"
        # A node that stands still on a busy machine refuses a write now and then.
        (offset,) = eventually(lambda at=writer, what=value: (put(at, topic, what),))
        for reader in cluster.nodes:
            body = READS[kind](reader, topic, offset)
            if kind == "binary":
                body = base64.b64decode(json.loads(body)[0]["value"])
            assert value.encode() in body, (number, reader.url)


def test_bytes_that_are_no_json_are_told_in_base64_in_their_place(cluster):
    topic = create_topic(cluster.node(1), "bytes")
    ok(write_batch(cluster.node(1), topic, encoded(b"\xff\x00", b"1")))
    for node in cluster.nodes:
        answer = read(node, topic)
        bad, good = ok(answer)
        assert (bad["value_base64"], bad["error_code"], good["value"]) == ("/wA=", 42203, 1)
        assert answer.headers["Content-Type"] == "application/vnd.kafka.json.v2+json"


def test_a_deleted_topic_is_gone_on_every_node(cluster):
    topic = create_topic(cluster.node(1), "short-lived")
    offsets_of(write(cluster.node(2), topic, 1))
    cluster_path = (
        f"/v3/clusters/{ok(call(cluster.node(3), 'GET /v3/clusters'))['data'][0]['cluster_id']}"
    )
    assert call(cluster.node(3), f"DELETE {cluster_path}/topics/{topic}").status == 204
    for node in cluster.nodes:
        eventually(lambda at=node: read(at, topic).status == 404)
