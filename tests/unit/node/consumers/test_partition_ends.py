"""Rules of waiting at the ends of partitions: one question to a leader for all that wait, and none when nobody does."""

import asyncio

from node.consumers.partition_ends import POLL_MS, EndWaiter
from raft_meta.machine.image import PartitionKey
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import LoopClock, after, virtual


def key_of(cluster: Cluster, topic: str = "t") -> PartitionKey:
    found = cluster.image.topic(topic)
    assert found is not None
    return found.topic_id, 0


def polls(cluster: Cluster) -> int:
    return sum(kind == "tail" for _, _, kind, _ in cluster.network.calls)


def wait_at(cluster: Cluster, node_id: int, offset: int, *, ms: int = 60_000) -> asyncio.Task[int]:
    """Returns after how many ms it was woken."""
    waiter = EndWaiter()
    cluster.nodes[node_id].consumers.ends.watch(waiter, key_of(cluster), offset)

    async def wait() -> int:
        started = LoopClock().now_ms()
        await waiter.wait(ms)
        waiter.close()
        return LoopClock().now_ms() - started

    return asyncio.create_task(wait())


@virtual
async def test_a_thousand_that_wait_for_another_nodes_partition_ask_once() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2,))
        waiting = [wait_at(cluster, 1, 0) for _ in range(1_000)]
        await after(1_000)
        assert polls(cluster) == 1
        await cluster.nodes[2].write("t", "a")
        assert max(await asyncio.gather(*waiting)) < 1_100


@virtual
async def test_a_poll_that_is_over_is_followed_by_another_as_long_as_somebody_waits() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2,))
        waiting = wait_at(cluster, 1, 0, ms=3 * POLL_MS - 1_000)
        await waiting
        assert polls(cluster) == 3
        await after(2 * POLL_MS)
        assert polls(cluster) == 3
        assert len(cluster.nodes[1].consumers.ends) == 0


@virtual
async def test_those_who_wait_for_more_are_not_woken_by_less() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2,))
        one, two = wait_at(cluster, 1, 0), wait_at(cluster, 1, 1)
        await cluster.nodes[2].write("t", "a")
        await after(100)
        assert (one.done(), two.done()) == (True, False)
        await cluster.nodes[2].write("t", "b")
        await after(100)
        assert two.done()


@virtual
async def test_a_local_replica_wakes_without_any_question() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1))
        waiting = wait_at(cluster, 1, 0)
        await after(1_000)
        await cluster.nodes[2].write("t", "a")
        assert await waiting < 1_100
        assert polls(cluster) == 0
        assert len(cluster.nodes[1].consumers.ends) == 0
        assert not any(
            type(watcher).__name__ == "_Watch" for watcher in cluster.runner(1, "t").watchers
        )


@virtual
async def test_what_is_there_already_wakes_at_once() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1))
        await cluster.nodes[2].write("t", "a")
        await after(100)
        for node_id in (1, 2, 3):
            assert await wait_at(cluster, node_id, 0) < 10


@virtual
async def test_another_leader_lets_everybody_look_again() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3))
        waiting = wait_at(cluster, 1, 0)
        await after(100)
        await cluster.kill(2)
        assert await waiting < 10_000


@virtual
async def test_a_leader_that_cannot_be_asked_is_not_asked_all_the_time() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2,))
        cluster.network.cut(1, 2)
        cluster.network.calls.clear()
        await wait_at(cluster, 1, 0, ms=20_000)
        assert polls(cluster) <= 50
