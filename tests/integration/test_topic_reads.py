"""A whole topic read as events from real nodes, of which the one that serves the reader is killed."""

import asyncio
import json

import aiohttp
import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    end_offset,
    eventually,
    others,
    restart,
    running_cluster,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

PARTITIONS, ROUNDS, KILLED_AT = 3, 400, (150, 500)


@pytest.fixture
def cluster(tmp_path):
    with running_cluster(tmp_path) as nodes:
        yield nodes


async def test_who_comes_back_to_another_node_misses_nothing_and_gets_nothing_twice(cluster):
    topic = create_topic(cluster.node(1), "orders", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        wait_in_sync(cluster, topic, partition)
    seen: list[tuple[int, int]] = []
    nodes = [cluster.node(1), cluster.node(2), cluster.node(3)]
    writing = asyncio.create_task(asyncio.to_thread(write_on, cluster, topic))
    last_id, killed = "", 0
    while not (writing.done() and len(seen) >= total(cluster, topic)):
        node = nodes[killed % len(nodes)]
        async for id_, where in events(node, topic, last_id):
            last_id = id_
            seen.append(where)
            if killed < len(KILLED_AT) and len(seen) >= KILLED_AT[killed]:
                node.process.kill()
                await asyncio.to_thread(restart_others, cluster, node)
                killed += 1
                break
    assert killed == len(KILLED_AT)
    for partition in range(PARTITIONS):
        offsets = [offset for number, offset in seen if number == partition]
        assert offsets == list(range(end_offset(nodes[killed % len(nodes)], topic, partition)))


def restart_others(cluster, killed):
    """Whoever was killed before is back, so that a majority stays."""
    down = [node for node in others(cluster, killed) if not node.process.is_running]
    if down:
        restart(cluster, *down)


def write_on(cluster, topic):
    """Records, by whichever node takes them; who gets no answer writes again."""
    for number in range(ROUNDS):
        for partition in range(PARTITIONS):
            eventually(lambda n=number, p=partition: is_taken(cluster, topic, n, p))


def is_taken(cluster, topic, number, partition):
    node = cluster.nodes[number % len(cluster.nodes)]
    try:
        return write(node, topic, number, partition=partition, timeout_ms=2000).status == 200
    except OSError:
        return any(
            other.process.is_running and is_written(other, topic, number, partition)
            for other in others(cluster, node)
        )


def is_written(node, topic, number, partition):
    try:
        return write(node, topic, number, partition=partition, timeout_ms=2000).status == 200
    except OSError:
        return False


def total(cluster, topic):
    """Records that there are, as far as somebody can say."""
    node = next(node for node in cluster.nodes if node.process.is_running)
    answers = [
        call(node, f"GET /topics/{topic}/partitions/{partition}/offsets")
        for partition in range(PARTITIONS)
    ]
    return (
        sum(a.json["end_offset"] for a in answers) if all(a.status == 200 for a in answers) else -1
    )


async def events(node, topic, last_id):
    """Ids of events and where their records lie, until the node is gone or silent for a second."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    id_ = ""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{node.url}/topics/{topic}/records", headers=headers) as response,
        ):
            while True:
                async with asyncio.timeout(1):
                    line = (await response.content.readline()).decode().strip()
                if response.content.at_eof():
                    return
                name, _, text = line.partition(": ")
                if name == "id":
                    id_ = text
                elif name == "data" and id_:
                    record = json.loads(text)
                    yield id_, (record["partition"], record["offset"])
    except (TimeoutError, aiohttp.ClientError):
        return
