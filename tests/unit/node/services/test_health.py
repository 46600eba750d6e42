"""Rules of the probes: ready once rejoined and caught up, and from then on until it drains."""

from milena.model.requests import Acks
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import LoopClock, after, virtual


@virtual
async def test_a_node_that_has_not_started_or_joined_is_not_ready_and_says_why() -> None:
    cluster = Cluster()
    node = await cluster.restart(1)
    node.health.has_started = False
    assert not node.health.is_started()
    assert "recovered" in node.health.readiness().reason
    node.health.has_started = True
    assert "quorum" in node.health.readiness().reason
    await cluster.restart(2)
    await cluster.until(lambda: node.membership.is_unfenced and node.membership.has_lease)
    assert node.health.readiness().is_ready
    await cluster.close()


@virtual
async def test_a_node_that_is_catching_up_is_not_ready() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.kill(3)
        await cluster.nodes[1].write("t", "a")
        cluster.network.cut(3, 1)
        node = await cluster.restart(3)
        await cluster.until(lambda: node.membership.is_unfenced)
        await after(50)
        assert "catching up" in node.health.readiness().reason
        cluster.heal()
        await cluster.until(lambda: node.health.readiness().is_ready)


@virtual
async def test_a_node_does_not_wait_for_records_that_no_live_node_has() -> None:
    async with cluster_of() as cluster:
        await cluster.create("u", (1, 3))
        await cluster.kill(1)
        await cluster.until(lambda: cluster.isr_of("u") == (3,))
        await cluster.nodes[3].write("u", "a", acks=Acks.LEADER)
        await cluster.kill(3)
        await cluster.until(lambda: not cluster.is_led("u"))
        node = await cluster.restart(1)
        await cluster.until(lambda: node.membership.is_unfenced and node.membership.has_lease)
        await cluster.until(lambda: node.health.readiness().is_ready)
        assert not cluster.is_led("u")


@virtual
async def test_a_node_does_not_wait_for_records_of_which_only_a_damaged_copy_is_left() -> None:
    async with cluster_of() as cluster:
        await cluster.create("u", (3,))
        await cluster.nodes[3].write("u", "a")
        (segment,) = cluster.runner(3, "u").log.state.table.segments
        await cluster.kill(3)
        cluster.files[3].remove(segment.path(LOG_SUFFIX))
        node = await cluster.restart(3)
        await cluster.until(lambda: node.health.readiness().is_ready)
        assert cluster.runner(3, "u").is_damaged
        assert not cluster.is_led("u")


@virtual
async def test_once_ready_a_lost_quorum_or_a_full_disk_takes_it_not_out_of_service() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.nodes[1].write("t", "a")
        await after(50)
        node = cluster.nodes[1]
        assert node.health.readiness().is_ready
        cluster.isolate(1)
        node.membership.on_disk_full()
        await after(5_000)
        assert node.health.readiness().is_ready
        assert await node.read("t", is_local=True) == ["a"]


@virtual
async def test_a_draining_node_is_not_ready() -> None:
    async with cluster_of() as cluster:
        node = cluster.nodes[2]
        await node.membership.drain(timeout_ms=2_000)
        assert "draining" in node.health.readiness().reason
        assert b"milena_ready 0.0" in node.health.metrics(has_partitions=True)


@virtual
async def test_a_drained_node_leads_nothing_and_still_answers() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        node = cluster.nodes[2]
        await node.write("t", "a")
        assert await node.health.drain(timeout_ms=2_000)
        state = cluster.nodes[1].metadata.image.partitions
        assert {p.leader for p in state.values()} == {1}
        await node.write("t", "b")
        assert await node.read("t") == ["a", "b"]


@virtual
async def test_a_node_that_keeps_a_partition_has_not_drained_and_says_so_at_once() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2,))
        await cluster.create("u", (2, 1, 3))
        node = cluster.nodes[2]
        began_ms = LoopClock().now_ms()
        assert not await node.health.drain(timeout_ms=60_000)
        assert LoopClock().now_ms() - began_ms < 5_000
        leaders = {
            key[0]: p.leader for key, p in cluster.nodes[1].metadata.image.partitions.items()
        }
        assert sorted(leaders.values()) == [1, 2]
