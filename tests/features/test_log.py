"""The commit log: what it is, how it is kept on disk, for how long, and what guards its bytes."""

import errno
import os
import time
from pathlib import Path

import pytest

from milena.model.batch.decode import check_batch, iterate_batches
from tests.support.clusters.live_cluster import (
    BATCH,
    call,
    create_topic,
    encoded,
    end_offset,
    eventually,
    leader_of,
    metadata,
    metric,
    offsets_of,
    ok,
    others,
    read,
    restart,
    values,
    wait_in_sync,
    write,
    write_batch,
)

pytestmark = pytest.mark.integration

STAMP_BYTES = 31
"""The leader's part of a batch; all behind it is the producer's."""


def folder_of(node, topic, partition=0) -> Path:
    """Where a node keeps its copy of a partition."""
    topics = metadata(node)["topics"]
    topic_id = next(t["topic_id"] for t in topics if t["name"] == topic)
    return node.data_dir / "topics" / topic_id / str(partition)


def segments_of(node, topic):
    return sorted(folder_of(node, topic).glob("*.log"))


def stored_batches(node, topic):
    """The partition's bytes on disk, without the room that is set aside behind them."""
    found = b"".join(path.read_bytes() for path in segments_of(node, topic))
    end = 0
    while int.from_bytes(found[end : end + 4], "big"):
        end += check_batch(found, end).batch_bytes
    return found[:end]


def fetched_batches(node, topic, offset=0):
    path = f"/topics/{topic}/partitions/0/records?offset={offset}"
    answer = call(node, f"GET {path}", headers={"Accept": BATCH})
    assert answer.status == 200, answer
    return answer.body


def test_events_are_kept_in_an_append_only_log_in_the_order_of_their_offsets(cluster):
    """Each event gets the next offset; topic, partition and offset name it for ever, and nothing changes it."""
    topic = create_topic(cluster.node(1), "append-only")
    seen = {}
    for number in range(20):
        node = cluster.nodes[number % 3]
        ((partition, offset),) = offsets_of(write(node, topic, f"event {number}"))
        assert (partition, offset) == (0, number), "offsets have no gaps"
        seen[offset] = f"event {number}"
        assert values(node, topic) == list(seen.values()), "what was there before is as it was"
    for offset, value in seen.items():
        for node in cluster.nodes:
            (record,) = ok(read(node, topic, offset=offset, count=1, timeout=1000))
            assert (record["topic"], record["partition"], record["offset"]) == (topic, 0, offset)
            assert record["value"] == value
    change = f"/topics/{topic}/partitions/0/records"
    assert {call(cluster.node(1), f"{m} {change}").status for m in ("PUT", "PATCH", "DELETE")} == {
        405
    }, "there is no call that would change or remove a record"


def test_a_topic_is_split_into_partitions_that_are_spread_over_brokers(cluster):
    """A broker holds partitions of many topics, and a topic is larger than any one of its brokers."""
    topics = [create_topic(cluster.node(1), f"split-{n}", partitions=6, replicas=2) for n in "ab"]
    for topic in topics:
        # What the second node knows without asking: it hears of new topics a moment later.
        found = eventually(
            lambda name=topic: [t for t in metadata(cluster.node(2))["topics"] if t["name"] == name]
        )[0]
        held = {
            n: {p["partition"] for p in found["partitions"] if n in p["replicas"]}
            for n in (1, 2, 3)
        }
        assert set().union(*held.values()) == set(range(6))
        assert all(0 < len(partitions) < 6 for partitions in held.values()), "none holds it all"
        assert {p["leader"] for p in found["partitions"]} == {1, 2, 3}, "nor do writes meet at one"
        for partition in range(6):
            offsets_of(write(cluster.node(3), topic, partition, partition=partition))
            assert values(cluster.node(3), topic, partition) == [partition]


def test_a_log_is_cut_into_segments_named_by_their_first_offset(cluster):
    """A segment that is full is closed and the next one begun; any offset is found among them."""
    topic = create_topic(cluster.node(1), "segments", segment_bytes=64 << 10)
    for number in range(40):
        offsets_of(write(cluster.node(1), topic, [number, "x" * 6000]))
    leader = leader_of(cluster, topic)
    bases = [int(path.stem) for path in segments_of(leader, topic)]
    assert bases[0] == 0
    assert len(bases) > 3
    for base, path in zip(bases, segments_of(leader, topic), strict=True):
        assert check_batch(path.read_bytes()).base_offset == base
        assert path.stat().st_size <= (64 << 10) + 8000 or base == bases[-1]
    for offset in range(40):
        (record,) = ok(read(leader, topic, offset=offset, count=1))
        assert record["value"][0] == offset


def test_records_are_kept_for_a_time_and_not_until_they_are_read(cluster):
    """Segments past their time are deleted, offsets stay as they are, and reading deletes nothing."""
    topic = create_topic(
        cluster.node(1), "retention", segment_bytes=64 << 10, retention_ms=3_600_000
    )
    now_ms = int(time.time() * 1000)
    # Two hours old: too old when the topic's hour is over; the last ones are of today.
    for number in range(30):
        timestamp = now_ms - (2 * 3_600_000 if number < 20 else 0)
        record = {"value": [number, "x" * 6000], "timestamp": timestamp}
        offsets_of(call(cluster.node(1), f"POST /topics/{topic}", {"records": [record]}))
    # The segment of the first young record stays, and all before it go.
    bases = [int(path.stem) for path in segments_of(leader_of(cluster, topic), topic)]
    first = max(base for base in bases if base <= 20)
    assert first >= 10, "whole segments go, so a few old records stay for company"
    for _ in range(3):
        for node in cluster.nodes:
            eventually(lambda at=node: ok(read(at, topic, count=1))[0]["offset"] == first)
            records = ok(read(node, topic, offset=25, timeout=1000))
            assert [(r["offset"], r["value"][0]) for r in records][:1] == [(25, 25)]
            eventually(lambda at=node: read(at, topic, offset=0).refusal == (400, 40002))


def test_a_record_is_on_every_disk_before_it_is_acknowledged_unless_the_topic_says_otherwise(
    cluster,
):
    """By default each append is synced first; a relaxed topic is synced after so many messages, or a time."""
    strict = create_topic(cluster.node(1), "strict")
    relaxed = create_topic(cluster.node(1), "relaxed", flush_messages=1000)
    timed = create_topic(cluster.node(1), "timed", flush_messages=1000, flush_ms=100)

    def syncs():
        return [metric(node, "syncs_total") for node in cluster.nodes]

    def added(before):
        return [now - then for now, then in zip(syncs(), before, strict=True)]

    before = syncs()
    for number in range(10):
        offsets_of(write(cluster.node(1), strict, number))
    assert min(added(before)) >= 10
    before = syncs()
    for number in range(10):
        offsets_of(write(cluster.node(1), relaxed, number))
    assert values(cluster.node(1), relaxed) == list(range(10))
    assert max(added(before)) < 10
    before = syncs()
    offsets_of(write(cluster.node(1), timed, 1))
    eventually(lambda: min(added(before)) >= 1)


def anonymous_bytes(pid):
    """Memory of a process that is not a file's."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


def test_records_are_cached_by_the_operating_system_and_not_by_the_process(cluster):
    """A node's memory does not grow with its data, and the cache is as warm after a restart as before."""
    topic = create_topic(cluster.node(1), "page-cache", replicas=1)
    node = leader_of(cluster, topic)
    batch = encoded(*[os.urandom(1 << 20)] * 2)
    ok(write_batch(node, topic, batch))
    fetched_batches(node, topic)
    before = anonymous_bytes(node.process.pid)
    count = 48
    for _ in range(count):
        ok(write_batch(node, topic, batch))
    for offset in range(0, 2 * count, 2):
        assert len(fetched_batches(node, topic, offset)) >= len(batch)
    grown = anonymous_bytes(node.process.pid) - before
    assert grown < count * len(batch) / 2, (
        f"{grown >> 20} MB for {count * len(batch) >> 20} MB of data"
    )
    (segment,) = segments_of(node, topic)
    node.process.kill()
    restart(cluster, node)
    with segment.open("rb") as file:
        # Fails instead of waiting when the bytes are not in the operating system's cache.
        try:
            found = os.preadv(file.fileno(), [bytearray(1 << 20)], 30 << 20, os.RWF_NOWAIT)
        except OSError as error:
            # A file system in memory has nothing else to read from.
            if error.errno != errno.EOPNOTSUPP:
                raise
        else:
            assert found == 1 << 20
    assert len(fetched_batches(node, topic, 30)) >= len(batch)


def test_stored_bytes_go_to_the_reader_as_they_are(cluster):
    """What a producer encoded is what every disk holds and what a reader gets, but for the leader's stamp."""
    topic = create_topic(cluster.node(1), "as-they-are")
    sent = [encoded(f'"{n}"'.encode(), b"\xff\xfe") for n in range(3)]
    for batch in sent:
        ok(write_batch(cluster.node(2), topic, batch))
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        eventually(lambda at=node: len(fetched_batches(at, topic)) == sum(map(len, sent)))
        body = fetched_batches(node, topic)
        assert body == stored_batches(node, topic)
        found = [
            body[at + STAMP_BYTES : at + header.batch_bytes] for at, header in iterate_batches(body)
        ]
        assert found == [batch[STAMP_BYTES:] for batch in sent]


def test_every_byte_is_under_a_checksum_when_it_is_written(cluster):
    """A batch that was damaged on its way is refused, whichever of its bytes it is."""
    topic = create_topic(cluster.node(1), "checked-on-write")
    batch = encoded(b'"sound"', b'"records"')
    for position in range(0, len(batch), 7):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert write_batch(cluster.nodes[position % 3], topic, bytes(damaged)).status == 422
    assert end_offset(cluster.node(1), topic) == 0
    ok(write_batch(cluster.node(1), topic, batch))
    assert values(cluster.node(3), topic) == ["sound", "records"]


def test_a_record_that_rots_on_a_disk_is_found_and_restored_from_another(cluster):
    """Checksums are verified when a node comes back: a damaged copy is repaired and never shown."""
    topic = create_topic(cluster.node(1), "rot")
    for number in range(5):
        offsets_of(write(cluster.node(1), topic, f"record {number}"))
    wait_in_sync(cluster, topic)
    victim = others(cluster, leader_of(cluster, topic))[0]
    eventually(
        lambda: (
            len(stored_batches(victim, topic))
            == len(stored_batches(leader_of(cluster, topic), topic))
        )
    )
    sound = stored_batches(victim, topic)
    (segment,) = segments_of(victim, topic)
    victim.process.kill()
    with segment.open("r+b") as file:
        file.seek(sound.index(b"record 2"))
        file.write(b"forged 2")
    restart(cluster, victim)
    wait_in_sync(cluster, topic)
    expected = [f"record {number}" for number in range(5)]
    eventually(lambda: values(victim, topic, replica="local") == expected)
    eventually(lambda: stored_batches(victim, topic) == sound)
