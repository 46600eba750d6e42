"""Rules that take several nodes: failover, changes of the ISR, power cuts, full disks, graceful stops."""

import asyncio

from milena.model.errors import (
    DiskFullError,
    FateUnknownError,
    MilenaError,
    NotEnoughReplicasError,
)
from milena.model.requests import Acks
from tests.support.clusters.nodes import Cluster, cluster_of, outcome
from tests.support.time.virtual_time import after, virtual


async def gap_ms(cluster: Cluster, node_id: int, value: str) -> int:
    """How long it takes until a node accepts a write, trying again and again."""
    clock = cluster.any.clock
    began = clock.now_ms()
    while isinstance(await outcome(cluster.nodes[node_id].write("t", value)), MilenaError):
        assert clock.now_ms() - began < 20_000
        await clock.sleep(10)
    return clock.now_ms() - began


async def whole(cluster: Cluster) -> None:
    await cluster.until(lambda: set(cluster.isr_of("t")) == {1, 2, 3} and cluster.is_led("t"))


class TestFailover:
    @virtual
    async def test_a_killed_leader_is_replaced_within_a_fifth_of_a_second(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            raft_leader = cluster.log.leader_id
            victim = 2
            if raft_leader == victim:
                cluster.log.elect(1)
                await after(100)
            await cluster.nodes[1].write("t", "before")
            await cluster.kill(victim)
            assert await gap_ms(cluster, 1, "after") < 250
            assert await cluster.nodes[3].read("t") == ["before", "after"]

    @virtual
    async def test_an_isolated_leader_is_replaced_when_its_session_ends(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "before")
            cluster.isolate(2)
            assert await gap_ms(cluster, 1, "after") < 3_000
            cluster.heal()
            await whole(cluster)
            await after(20)
            for node_id in (1, 2, 3):
                assert await cluster.nodes[node_id].read("t", is_local=True) == ["before", "after"]

    @virtual
    async def test_an_isolated_leader_commits_nothing_and_loses_what_it_took(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "before")
            cluster.isolate(2)
            taken = asyncio.ensure_future(outcome(cluster.nodes[2].write("t", "lost")))
            await after(2_100)
            assert isinstance(taken.result(), FateUnknownError)
            await gap_ms(cluster, 1, "after")
            cluster.heal()
            await whole(cluster)
            await after(20)
            assert await cluster.nodes[2].read("t", is_local=True) == ["before", "after"]

    @virtual
    async def test_a_restarted_leader_does_not_resume_its_old_epoch(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            epoch = cluster.runner(2, "t").leader_epoch
            await cluster.kill(2)
            await cluster.restart(2)
            await whole(cluster)
            assert cluster.runner(2, "t").leader_epoch > epoch

    @virtual
    async def test_everything_survives_a_power_cut_of_all(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            values = [f"{i}" for i in range(10)]
            for value in values:
                await cluster.nodes[1].write("t", value)
            for node_id in (1, 2, 3):
                await cluster.kill(node_id, power=True)
            for node_id in (1, 2, 3):
                await cluster.restart(node_id)
            assert await gap_ms(cluster, 1, "after") < 10_000
            await whole(cluster)
            await after(20)
            for node_id in (1, 2, 3):
                assert await cluster.nodes[node_id].read("t", is_local=True) == [*values, "after"]

    @virtual
    async def test_the_last_replica_standing_is_waited_for(self) -> None:
        # KIP-966's case: two stop cleanly, the third dies, the two come back.
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3), min_insync_replicas="1")
            await cluster.nodes[1].write("t", "a")
            await cluster.stop_gracefully(1)
            await cluster.nodes[2].write("t", "b")
            await cluster.stop_gracefully(3)
            assert cluster.isr_of("t") == (2,)
            assert await outcome(cluster.nodes[2].write("t", "c")) == [2]
            await cluster.kill(2, power=True)
            await cluster.restart(1)
            await cluster.restart(3)
            await after(3_000)
            assert cluster.leader_of("t") is None
            await cluster.restart(2)
            await whole(cluster)
            assert await cluster.nodes[1].read("t") == ["a", "b", "c"]

    @virtual
    async def test_a_graceful_stop_fails_no_write_of_a_client_that_retries_once(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            stopping = asyncio.ensure_future(cluster.stop_gracefully(2))
            refused = 0
            for number in range(40):
                result = await outcome(cluster.nodes[3].write("t", f"{number}"))
                if isinstance(result, MilenaError):
                    refused += 1
                    assert not isinstance(
                        await outcome(cluster.nodes[1].write("t", f"{number}")), MilenaError
                    )
                await after(5)
            await stopping
            assert refused <= 1
            assert cluster.leader_of("t") != 2


class TestIsr:
    @virtual
    async def test_a_dead_follower_leaves_and_comes_back_when_it_has_caught_up(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.kill(3)
            assert await gap_ms(cluster, 1, "a") < 500
            await cluster.until(lambda: cluster.isr_of("t") == (2, 1))
            await cluster.restart(3)
            await whole(cluster)
            await after(20)
            assert await cluster.nodes[3].read("t", is_local=True) == ["a"]

    @virtual
    async def test_a_follower_cut_off_from_its_leader_alone_leaves_after_the_lag_bound(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            cluster.log.elect(1)
            await after(100)
            cluster.network.cut(2, 3)
            writing = asyncio.ensure_future(
                outcome(cluster.nodes[2].write("t", "b", timeout_ms=60_000))
            )
            await after(9_000)
            assert not writing.done()
            await cluster.until(lambda: cluster.isr_of("t") == (2, 1))
            assert await writing == [1]
            cluster.heal()
            await whole(cluster)

    @virtual
    async def test_an_emptied_directory_leaves_every_isr_before_it_comes_back(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "a")
            await cluster.kill(2)
            del cluster.files[2]
            await cluster.restart(2)
            await whole(cluster)
            await after(20)
            for node_id in (1, 2, 3):
                assert await cluster.nodes[node_id].read("t", is_local=True) == ["a"]

    @virtual
    async def test_the_only_copy_is_never_replaced_by_an_empty_one(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.nodes[1].write("t", "a")
            await cluster.kill(2)
            del cluster.files[2]
            await cluster.restart(2)
            await after(5_000)
            assert cluster.leader_of("t") is None

    @virtual
    async def test_too_few_in_sync_refuse_at_once_and_take_writes_again_later(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3), min_insync_replicas="3")
            await cluster.kill(3)
            await cluster.until(lambda: len(cluster.isr_of("t")) == 2)
            result = await outcome(cluster.nodes[1].write("t", "a"))
            assert isinstance(result, NotEnoughReplicasError)
            await cluster.restart(3)
            assert await gap_ms(cluster, 1, "b") < 5_000
            assert await cluster.nodes[1].read("t") == ["b"]


class TestFullDisk:
    @virtual
    async def test_a_full_leader_hands_over_and_comes_back_with_room(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "a")
            cluster.files[2].capacity = cluster.files[2].used_bytes()
            big = "x" * 5_000_000
            result = await outcome(cluster.nodes[1].write("t", big))
            assert result == [1] or isinstance(result, DiskFullError | FateUnknownError)
            assert await gap_ms(cluster, 1, big) < 1_000
            assert cluster.leader_of("t") != 2
            assert (await cluster.nodes[2].fetch("t", 0)).batches
            cluster.files[2].capacity = None
            await whole(cluster)

    @virtual
    async def test_a_full_follower_leaves_at_once_and_stays_out_until_it_has_room(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "a")
            await after(20)
            cluster.files[3].capacity = cluster.files[3].used_bytes()
            assert await gap_ms(cluster, 1, "x" * 5_000_000) < 1_000
            await cluster.until(lambda: 3 not in cluster.isr_of("t"))
            await after(1_000)
            before = len(cluster.log.commands)
            await after(30_000)
            assert 3 not in cluster.isr_of("t")
            assert len(cluster.log.commands) - before < 5, "the metadata must come to rest"
            cluster.files[3].capacity = None
            await whole(cluster)

    @virtual
    async def test_a_full_disk_on_a_quiet_topic_leaves_the_metadata_at_rest(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "a")
            await after(20)
            cluster.nodes[3].membership.on_disk_full()
            cluster.files[3].capacity = cluster.files[3].used_bytes()
            await after(2_000)
            before = len(cluster.log.commands)
            await after(30_000)
            assert len(cluster.log.commands) - before < 5
            assert 3 not in cluster.isr_of("t")
            cluster.files[3].capacity = None
            await whole(cluster)


class TestReading:
    @virtual
    async def test_nothing_that_was_read_is_ever_taken_back(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            cluster.network.cuts = {(2, 1), (2, 3)}
            await cluster.nodes[2].write("t", "b", acks=Acks.LEADER)
            seen = {i: await cluster.nodes[i].read("t", is_local=True) for i in (1, 2, 3)}
            assert all(values in ([], ["a"]) for values in seen.values())
            cluster.heal()
