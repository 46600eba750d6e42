"""Replicas move between real nodes under a producer while nodes are killed: what was acknowledged is there, once."""

import asyncio
from pathlib import Path

import pytest

from milena import Client
from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    encoded,
    eventually,
    in_background,
    metadata,
    ok,
    partition_state,
    restart,
    running_cluster,
    write_batch,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

TOPIC = "loaded"
PARTITIONS = 2
FILL_BATCHES = 24
FILL = b"x" * 1000
THROTTLE = 2_000_000
"""12 MB a partition: the move takes long enough for five nodes to be killed on the way."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("moves")
    with running_cluster(directory, node_count=5) as nodes:
        yield nodes


def create(cluster, *replicas):
    node = cluster.node(1)
    layout = [{"partition_id": n, "broker_ids": [*replicas]} for n in range(PARTITIONS)]
    body = {
        "topic_name": TOPIC,
        "replicas_assignments": layout,
        "configs": [{"name": "segment.bytes", "value": "1048576"}],
    }
    ok(call(node, f"POST /v3/clusters/{cluster_id(node)}/topics", body))


def fill(cluster):
    """Something to copy; returns how many records each partition has."""
    batch = encoded(*[FILL] * 500)
    for _ in range(FILL_BATCHES):
        for partition in range(PARTITIONS):
            ok(write_batch(cluster.node(1), TOPIC, batch, partition))
    return 500 * FILL_BATCHES


class Load:
    """An idempotent producer that writes until it is told to stop."""

    def __init__(self, cluster):
        self._urls = [node.url for node in cluster.nodes]
        self._is_over = False
        self.acknowledged = {}
        self.unknown = 0

    def run(self):
        asyncio.run(self._run())

    def stop(self):
        self._is_over = True

    async def _run(self):
        async with Client(self._urls) as client, client.producer(linger_ms=5) as producer:
            number = 0
            while not self._is_over:
                sent = []
                for _ in range(20):
                    number += 1
                    delivery = await producer.send(
                        TOPIC, b"%d" % number, partition=number % PARTITIONS
                    )
                    sent.append((number, delivery))
                for value, delivery in sent:
                    receipt = await delivery
                    self.acknowledged[receipt.partition, receipt.offset] = b"%d" % value
                await asyncio.sleep(0.02)


def asked(cluster):
    return next(node for node in cluster.nodes if node.process.is_running)


def replicas_of(cluster):
    return [partition_state(asked(cluster), TOPIC, n)["replicas"] for n in range(PARTITIONS)]


def move(cluster, body):
    return ok(call(asked(cluster), "POST /reassignments", body))["partitions"]


def is_at_rest(cluster):
    return ok(call(asked(cluster), "GET /reassignments"))["reassignments"] == []


def files_of(node):
    """Replicas that a node has on its disk."""
    return [*Path(node.data_dir, "topics").glob("*/*")]


async def everything(cluster):
    """All records: (partition, offset) → value."""
    found = {}
    async with Client([node.url for node in cluster.nodes]) as client:
        for partition in range(PARTITIONS):
            async with client.reader(TOPIC, partition) as reader:
                async for record in reader:
                    found[partition, record.offset] = record.value
    return found


def test_a_loaded_topic_moves_while_every_node_is_killed_once(cluster):
    create(cluster, 1, 2, 3)
    filled = fill(cluster)
    load = Load(cluster)
    with in_background(load.run) as writing:
        targets = [
            {"topic": TOPIC, "partition": n, "replicas": [3, 4, 5]} for n in range(PARTITIONS)
        ]
        move(cluster, {"partitions": targets, "throttle_bytes_per_s": THROTTLE})
        for victim in cluster.nodes:
            # Somebody is always catching up, or has just done so.
            victim.process.kill()
            eventually(lambda: metadata(asked(cluster)))
            restart(cluster, victim)
        eventually(lambda: is_at_rest(cluster) and replicas_of(cluster) == [[3, 4, 5]] * PARTITIONS)
        before = len(load.acknowledged)
        eventually(lambda: len(load.acknowledged) > before + 100)
        load.stop()
        writing.result(timeout=60)
    check(cluster, load, filled)
    for node in (cluster.node(1), cluster.node(2)):
        eventually(lambda at=node: not files_of(at))


def check(cluster, load, filled):
    found = asyncio.run(everything(cluster))
    written = {where: value for where, value in found.items() if value != FILL}
    assert len(found) - len(written) == filled * PARTITIONS
    assert load.acknowledged.items() <= found.items()
    assert len({*written.values()}) == len(written), "a record was written twice"
    for partition in range(PARTITIONS):
        offsets = sorted(offset for where, offset in found if where == partition)
        assert offsets == [*range(len(offsets))]


def test_a_drained_node_holds_nothing_and_may_go(cluster):
    rows = move(cluster, {"drain": 3})
    assert {row["partition"] for row in rows} == {*range(PARTITIONS)}
    eventually(lambda: is_at_rest(cluster) and all(3 not in row for row in replicas_of(cluster)))
    eventually(lambda: not files_of(cluster.node(3)))
    before = asyncio.run(everything(cluster))
    cluster.node(3).process.kill()
    assert asyncio.run(everything(cluster)) == before
