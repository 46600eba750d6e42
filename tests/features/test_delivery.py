"""Delivery: at most once, at least once and exactly once, each shown while a leader dies."""

import itertools
from collections import Counter
from threading import Thread

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    leader_of,
    offsets_of,
    ok,
    others,
    read,
    restart,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

COUNT = 60
KILL_AT = 20


def sent(node, topic, value, **how):
    """Send once, and look at nothing: whether it arrived is not this writer's business."""
    try:
        write(node, topic, value, **how)
    except OSError:
        return


def acknowledged(nodes, topic, value, **how):
    """Send until it is acknowledged, to one node after the other."""
    turns = itertools.cycle(nodes)
    eventually(lambda: offsets_of(write(next(turns), topic, value, **how)))


def test_a_writer_chooses_between_losing_repeating_and_neither(cluster):
    """Never retried: at most once. Retried: at least once. Retried under a key: exactly once, and in order."""
    topics = {
        name: create_topic(cluster.node(1), f"deliver-{name}") for name in ("most", "least", "once")
    }
    for topic in topics.values():
        wait_in_sync(cluster, topic)
    victim = leader_of(cluster, topics["once"])
    nodes = others(cluster, victim)
    for number in range(COUNT):
        if number == KILL_AT:
            victim.process.kill()
        sent(nodes[number % 2], topics["most"], number, acks=0)
        acknowledged(nodes, topics["least"], number)
        acknowledged(nodes, topics["once"], number, key=f"event-{number}")
    # Whoever retries does not know whether the first try was written: here it was, and the answer got lost.
    acknowledged(nodes, topics["least"], 0)
    acknowledged(nodes, topics["once"], 0, key="event-0")
    restart(cluster, victim)
    for topic in topics.values():
        wait_in_sync(cluster, topic)
    found = {name: values(cluster.node(2), topic) for name, topic in topics.items()}
    assert max(Counter(found["most"]).values()) == 1
    assert set(found["most"]) <= set(range(COUNT))
    counted = Counter(found["least"])
    assert set(counted) == set(range(COUNT))
    assert counted[0] >= 2
    assert found["once"] == list(range(COUNT))


class Account:
    """A reader that sums up what it reads. What it stored survives its crashes; its memory does not."""

    def __init__(self, nodes, topic):
        self.nodes, self.topic = itertools.cycle(nodes), topic
        self.stored = (0, 0)
        """(next offset, sum): one value, so that both change or none does."""

    def run(self, until):
        """One life: read on from what is stored; every second batch it crashes after its work, before it is stored."""
        offset, total = self.stored
        for turn in itertools.count():
            if offset >= until:
                return
            answer = eventually(
                lambda at=offset: read(
                    next(self.nodes), self.topic, offset=at, count=7, timeout=500
                )
            )
            if answer.status != 200:
                continue
            total += sum(record["value"] for record in ok(answer))
            offset = int(answer.headers["Milena-Next-Offset"])
            if turn % 2:
                return
            self.stored = (offset, total)


def test_a_reader_that_stores_its_position_with_its_results_counts_each_record_once(cluster):
    """Whatever dies, leader or reader: what was not stored is read again, what was stored is not."""
    topic = create_topic(cluster.node(1), "deliver-account")
    wait_in_sync(cluster, topic)
    victim = leader_of(cluster, topic)
    nodes = others(cluster, victim)

    def produce():
        for number in range(COUNT):
            if number == KILL_AT:
                victim.process.kill()
            acknowledged(nodes, topic, number, key=f"amount-{number}")

    writer = Thread(target=produce)
    writer.start()
    account = Account(nodes, topic)
    lives = 0
    while account.stored[0] < COUNT:
        account.run(COUNT)
        lives += 1
    writer.join()
    restart(cluster, victim)
    assert account.stored == (COUNT, sum(range(COUNT)))
    assert lives > 3
    again = Account(cluster.nodes, topic)
    while again.stored[0] < COUNT:
        again.run(COUNT)
    assert again.stored == account.stored
    assert (
        ok(call(cluster.node(1), f"GET /topics/{topic}/partitions/0/offsets"))["end_offset"]
        == COUNT
    )
