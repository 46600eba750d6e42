"""Replication: leaders and followers, who is in sync, what readers may see, and what happens when nodes die."""

import threading
import time

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    end_offset,
    eventually,
    in_background,
    leader_of,
    offsets_of,
    ok,
    others,
    partition_state,
    read,
    restart,
    values,
    wait_in_sync,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


def test_the_leader_takes_all_writes_and_followers_on_other_brokers_copy_them(cluster):
    """Three copies on three brokers by default, byte for byte; writes through any node go to the leader."""
    ok(call(cluster.node(1), "POST /admin/topics", {"topic_name": "copies"}))
    state = eventually(lambda: partition_state(cluster.node(1), "copies"))
    assert sorted(state["replicas"]) == [1, 2, 3]
    assert state["leader"] in state["replicas"]
    for number, node in enumerate(cluster.nodes):
        assert offsets_of(write(node, "copies", number)) == [(0, number)]
    for node in cluster.nodes:
        eventually(lambda at=node: values(at, "copies", replica="local") == [0, 1, 2])


def test_any_in_sync_follower_can_take_over(cluster):
    """Each leader that dies is replaced by a replica that has everything; the dead one comes back as a follower."""
    topic = create_topic(cluster.node(1), "take-over")
    led = []
    for life in range(2):
        offsets_of(write(cluster.nodes[life], topic, f"life {life}"))
        before = partition_state(cluster.node(1), topic)
        leader = leader_of(cluster, topic)
        node = others(cluster, leader)[0]
        leader.process.kill()
        eventually(
            lambda at=node, old=leader: (
                partition_state(at, topic)["leader"] not in (None, old.node_id)
            )
        )
        after = partition_state(node, topic)
        assert after["leader"] in before["isr"], "chosen among those in sync"
        assert after["leader_epoch"] > before["leader_epoch"]
        led.append(leader.node_id)
        restart(cluster, leader)
        wait_in_sync(cluster, topic)
        assert partition_state(leader, topic)["leader"] == after["leader"]
        assert values(leader, topic) == [f"life {n}" for n in range(life + 1)]
    assert led[0] != led[1]


def test_a_follower_that_is_gone_leaves_the_in_sync_replicas_and_comes_back_when_it_caught_up(
    cluster,
):
    """In sync means alive and caught up; the set shrinks at once when a broker dies."""
    topic = create_topic(cluster.node(1), "in-sync")
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    follower = others(cluster, leader)[0]
    follower.process.kill()
    eventually(lambda: follower.node_id not in partition_state(leader, topic)["isr"])
    for number in range(5):
        offsets_of(write(leader, topic, number))
    restart(cluster, follower)
    wait_in_sync(cluster, topic)
    eventually(lambda: values(follower, topic, replica="local") == list(range(5)))


def test_readers_never_see_a_record_that_not_all_in_sync_replicas_have(cluster):
    """Below the high watermark a record is safe; above it nobody sees it, whatever node is asked."""
    topic = create_topic(cluster.node(1), "high-watermark", min_insync_replicas=3)
    offsets_of(write(cluster.node(1), topic, "committed"))
    leader = leader_of(cluster, topic)
    followers = others(cluster, leader)
    for follower in followers:
        eventually(lambda at=follower: values(at, topic, replica="local") == ["committed"])
        follower.process.pause()
    try:
        # The leader stores it; nobody else can.
        offsets_of(write(leader, topic, "uncommitted", acks=1))
        assert values(leader, topic, offset=0, replica="local") == ["committed"]
        waited = read(leader, topic, offset=1, timeout=300, replica="local")
        assert ok(waited) == []
        assert waited.headers["Milena-High-Watermark"] == "1"
    finally:
        for follower in followers:
            follower.process.resume()
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        found = eventually(lambda at=node: values(at, topic, replica="local"))
        assert found[0] == "committed"
        # Asked in this order: what was uncommitted may be committed at any moment now.
        seen = len(values(node, topic))
        assert seen <= end_offset(node, topic)
    eventually(lambda: len({tuple(values(node, topic)) for node in cluster.nodes}) == 1)


def test_what_was_read_is_never_taken_back(cluster):
    """While leaders die under a reader, every value that it saw at an offset stays there: reads are repeatable."""
    topic = create_topic(cluster.node(1), "repeatable")
    stop = threading.Event()
    seen: dict[int, str] = {}

    def follow() -> list[str]:
        """Read from node to node; what contradicts what was seen before."""
        wrong = []
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                answer = read(cluster.nodes[turn % 3], topic, offset=0)
            except OSError:
                continue
            for record in ok(answer) if answer.status == 200 else ():
                if seen.setdefault(record["offset"], record["value"]) != record["value"]:
                    wrong.append(
                        f"offset {record['offset']}: {seen[record['offset']]}, then {record['value']}"
                    )
        return wrong

    written = []
    with in_background(follow) as contradictions:
        try:
            for number in range(30):
                node = cluster.nodes[number % 3]
                value = f"value {number}"
                eventually(
                    lambda at=node, v=value: offsets_of(
                        write(at, topic, v, key=v.replace(" ", "-"))
                    )
                )
                written.append(value)
                if number in (8, 18):
                    leader = leader_of(cluster, topic)
                    leader.process.kill()
                    leader.process.start()
        finally:
            stop.set()
        assert contradictions.result() == []
    restart(cluster, *cluster.nodes)
    wait_in_sync(cluster, topic)
    final = dict(enumerate(values(cluster.node(1), topic)))
    assert {offset: final[offset] for offset in seen} == seen
    assert list(final.values()) == written


def test_the_cluster_works_on_when_a_server_stops(cluster):
    """A leader is killed under a writer: nothing is lost or doubled, and the writer hardly waits."""
    topic = create_topic(cluster.node(1), "failover", partitions=3)
    for partition in range(3):
        wait_in_sync(cluster, topic, partition)
    victim = leader_of(cluster, topic, 0)
    nodes = others(cluster, victim)
    longest_s, last_s = 0.0, time.monotonic()
    written = {partition: [] for partition in range(3)}
    for number in range(60):
        if number == 20:
            victim.process.kill()
        partition, value = number % 3, f"event-{number}"
        eventually(
            lambda at=nodes[number % 2], p=partition, v=value: offsets_of(
                write(at, topic, v, partition=p, key=v)
            )
        )
        written[partition].append(value)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    assert longest_s < 10, "far less on a machine that has nothing else to do"
    restart(cluster, victim)
    for partition in range(3):
        wait_in_sync(cluster, topic, partition)
        for node in cluster.nodes:
            assert values(node, topic, partition) == written[partition]
