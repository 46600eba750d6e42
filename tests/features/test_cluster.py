"""The cluster as its users see it: who is there, who hears of changes, what is ordered, and what it is for."""

import gzip
import json
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    delete_topic,
    eventually,
    in_background,
    leader_of,
    metadata,
    metric,
    offsets_of,
    ok,
    read,
    restart,
    values,
)

pytestmark = pytest.mark.integration


def test_the_registry_of_brokers_knows_addresses_and_partitions_and_tells_of_changes(cluster):
    """A broker is listed while it lives; whoever watches hears of its end, of its return, and of topics."""
    node = cluster.node(1)
    topic = create_topic(node, "registry", partitions=3)
    for at in cluster.nodes:
        eventually(
            lambda n=at: (
                {b["broker_id"]: b["url"] for b in metadata(n)["brokers"] if not b["is_fenced"]}
                == {n.node_id: n.url for n in cluster.nodes}
            )
        )
        assert sorted(ok(call(at, "GET /brokers"))["brokers"]) == [1, 2, 3]
    path = f"/v3/clusters/{cluster_id(node)}/brokers/2/partition-replicas"
    held = ok(call(node, f"GET {path}"))["data"]
    assert {(r["topic_name"], r["partition_id"]) for r in held} >= {(topic, p) for p in range(3)}

    def watch(is_seen):
        """Follow the changes, one long poll after another, until one of them shows it."""
        seen = metadata(node)
        while not is_seen(seen):
            later = metadata(node, since=seen["version"], timeout=60_000)
            assert later["version"] > seen["version"], "it waits for a change"
            seen = later
        return seen

    def is_alive(seen, broker_id):
        return any(b["broker_id"] == broker_id and not b["is_fenced"] for b in seen["brokers"])

    victim = cluster.node(3)
    with in_background(lambda: watch(lambda seen: not is_alive(seen, 3))) as watched:
        victim.process.kill()
        assert not is_alive(watched.result(), 3)
    assert ok(call(node, "GET /brokers"))["brokers"] == [1, 2]
    with in_background(lambda: watch(lambda seen: is_alive(seen, 3))) as watched:
        restart(cluster, victim)
        assert is_alive(watched.result(), 3)

    def names(seen):
        return {t["name"] for t in seen["topics"]}

    with in_background(lambda: watch(lambda seen: "announced" in names(seen))) as watched:
        create_topic(cluster.node(2), "announced")
        watched.result()
    with in_background(lambda: watch(lambda seen: "announced" not in names(seen))) as watched:
        delete_topic(cluster.node(2), "announced")
        watched.result()


def test_records_of_a_key_keep_their_order_and_a_hot_partition_is_seen(cluster):
    """Order holds within a partition, so for each key; how busy each partition is can be read off."""
    topic = create_topic(cluster.node(1), "order", partitions=4)
    chance = random.Random(7)
    # Half of all events are of one user.
    users = [0 if chance.random() < 0.5 else chance.randrange(1, 40) for _ in range(400)]
    per_user = Counter()
    for start in range(0, len(users), 10):
        records = []
        for user in users[start : start + 10]:
            per_user[user] += 1
            records.append({"key": f"user-{user}", "value": [user, per_user[user]]})
        offsets_of(call(cluster.nodes[start % 3], f"POST /topics/{topic}", {"records": records}))
    last = Counter()
    written = {}
    for partition in range(4):
        records = ok(read(cluster.node(2), topic, partition))
        written[partition] = len(records)
        for user, number in (record["value"] for record in records):
            assert number == last[user] + 1, f"user {user} out of order in partition {partition}"
            last[user] = number
    assert last == per_user
    rates = {}
    for partition in range(4):
        leader = leader_of(cluster, topic, partition)
        labels = {"topic": topic, "partition": partition}
        assert metric(leader, "partition_records_in_total", **labels) == written[partition]
        rates[partition] = metric(leader, "partition_records_in_per_second", **labels)
    assert set(rates) == {0, 1, 2, 3}
    assert max(written.values()) > 180, "the hot one"


def page_views(count):
    """What a web site tells of its visitors: when, who, which page, how it went."""
    chance = random.Random(11)
    began_ms = (int(time.time()) // 3600 - 6) * 3_600_000
    return [
        {
            "time": began_ms + number * 6 * 3_600_000 // count,
            "user": f"u{chance.randrange(50)}",
            "page": chance.choice(["/", "/search", "/cart"]),
            "status": 500 if chance.random() < 0.02 else 200,
        }
        for number in range(count)
    ]


def test_activity_events_become_hourly_statistics_and_alerts(cluster):
    """Page views go in from many front ends; independent readers make statistics and alerts of the same events."""
    topic = create_topic(cluster.node(1), "page-views", partitions=3)
    views = page_views(3000)
    for start in range(0, len(views), 100):
        records = [
            {"key": view["user"], "value": view, "timestamp": view["time"]}
            for view in views[start : start + 100]
        ]
        offsets_of(
            call(cluster.nodes[start // 100 % 3], f"POST /topics/{topic}", {"records": records})
        )

    def events(node):
        return [v for p in range(3) for v in values(node, topic, p, max_bytes=8 << 20)]

    def by_hour(some):
        return Counter((view["time"] // 3_600_000, view["page"]) for view in some)

    statistics = by_hour(events(cluster.node(2)))
    assert statistics == by_hour(views)
    assert len({hour for hour, _ in statistics}) == 6
    alerts = [view for view in events(cluster.node(3)) if view["status"] >= 500]
    assert len(alerts) == sum(view["status"] >= 500 for view in views)
    # The last hour alone: a reader begins at a time instead of at an offset.
    last_hour = max(view["time"] // 3_600_000 for view in views) * 3_600_000
    recent = [
        v
        for p in range(3)
        for v in values(cluster.node(1), topic, p, timestamp=last_hour, max_bytes=8 << 20)
    ]
    assert {json.dumps(v) for v in views if v["time"] >= last_hour} <= {
        json.dumps(v) for v in recent
    }


def test_the_demo_writes_a_real_log_kills_a_leader_and_finds_every_line_again(tmp_path):
    """An access log goes through a cluster of its own while a leader is killed; every line is read back and checked."""
    log, stamp = tmp_path / "access.log.gz", int(time.time())
    lines = [
        f'10.0.{n % 7}.{n % 251} - - [{stamp + n}] "GET /item/{n % 97} HTTP/1.1" 200 {n}'
        for n in range(3000)
    ]
    log.write_bytes(gzip.compress("\n".join(lines).encode()))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "loadtest.demo",
            "--directory",
            str(tmp_path / "demo"),
            "--input",
            str(log),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3,000 records" in done.stdout
    assert "missing / doubled / foreign  0 / 0 / 0" in done.stdout
