"""The background work on segments: what is compacted when, how fast, and when tombstones may go."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.types import MonotonicMs
from node.replica.compactor import FAILED_PAUSE_MS, EveryReplicaHas, Throttle
from raft_meta.machine.image import Partition, Reassignment
from tests.support.clusters.compacted_cluster import CONFIGS, compact, compactor_of, update, write
from tests.support.clusters.nodes import cluster_of
from tests.support.disk.compacted_log import records_of, values_of
from tests.support.time.virtual_time import LoopClock, after, virtual

COMPLETE = Partition(replicas=(1, 2, 3), isr=(2, 1, 3), leader=1, leader_epoch=4, partition_epoch=9)

MOVING = Reassignment(
    former=(1, 2, 3), target=(1, 2, 4), is_started=True, max_concurrent=0, throttle_bytes_per_s=0
)


class TestEveryReplicaHas:
    def look(self, known: EveryReplicaHas, offset: int, at: int, **changes: object) -> int:
        has_lease = bool(changes.pop("has_lease", True))
        state = replace(COMPLETE, **changes)  # type: ignore[arg-type]
        return known.look(state, offset, MonotonicMs(at), has_lease=has_lease)

    def test_a_high_watermark_counts_when_all_are_still_in_sync_later(self) -> None:
        known = EveryReplicaHas(100)
        assert self.look(known, 10, 0) == 0
        assert self.look(known, 20, 99) == 0
        assert self.look(known, 30, 100) == 10
        assert self.look(known, 40, 150) == 10
        assert self.look(known, 50, 200) == 30

    @pytest.mark.parametrize(
        "changes",
        [
            {"isr": (1, 2)},
            {"leader": None},
            {"has_lease": False},
            {"damaged": (2,)},
            {"moving": MOVING},
        ],
    )
    def test_it_begins_anew_when_a_replica_may_be_missing(self, changes: dict[str, object]) -> None:
        known = EveryReplicaHas(100)
        self.look(known, 10, 0)
        assert self.look(known, 10, 100) == 10
        assert self.look(known, 20, 200, **changes) == 0
        assert self.look(known, 20, 300) == 0
        assert self.look(known, 20, 400) == 20

    def test_a_change_in_between_that_was_not_seen_counts_too(self) -> None:
        known = EveryReplicaHas(100)
        self.look(known, 10, 0)
        assert self.look(known, 20, 100, partition_epoch=11) == 0
        assert self.look(known, 30, 200, partition_epoch=11) == 20

    def test_nothing_is_known_of_a_partition_without_a_state(self) -> None:
        assert EveryReplicaHas(0).look(None, 10, MonotonicMs(5), has_lease=True) == 0


def test_the_throttle_spreads_work_and_forgives_what_took_long() -> None:
    throttle = Throttle(1_000_000)
    assert throttle.pause_ms(0, 10_000) == 0
    assert throttle.pause_ms(1_500_000, 10_000) == pytest.approx(500), "a second was free"
    assert throttle.pause_ms(100_000, 10_500) == pytest.approx(100)
    assert throttle.pause_ms(100_000, 20_000) == 0


class TestLogs:
    @virtual
    async def test_each_replica_is_compacted_by_its_own_node(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 20)
            before = [cluster.runner(i, "t").log.size_bytes for i in (1, 2, 3)]
            await compact(cluster, 1, 3)
            after = [cluster.runner(i, "t").log.size_bytes for i in (1, 2, 3)]
            assert after[0] < before[0] / 4
            assert after[1] == before[1]
            assert after[2] == after[0]
            for node_id in (1, 2, 3):
                log = cluster.runner(node_id, "t").log
                assert values_of(log) == {b"key-%d" % n: b"19" for n in range(4)}
                assert log.log_end_offset == 80

    @virtual
    async def test_segments_of_other_topics_are_closed_by_age_and_left_as_they_are(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), segment_ms="1000")
            await update(cluster, 5)
            await compact(cluster, 1)
            log = cluster.runner(1, "t").log
            assert (len(log.state.table.segments), log.compaction.clean_end) == (2, 0)
            assert len(await cluster.nodes[1].read("t")) == 20

    @virtual
    async def test_what_was_done_is_counted(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 20)
            compactor = compactor_of(cluster, 1)
            await compactor.look()
            await LoopClock().sleep(1_500)
            await compactor.look()
            counts = compactor.counts
            assert (counts.runs, counts.failures, counts.removed_records) == (1, 0, 76)
            assert counts.dirty_bytes > counts.saved_bytes > 1000
            assert counts.last_run_ms == LoopClock().wall_ms()
            await compactor.look()
            assert (counts.runs, counts.dirty_bytes) == (1, 0)

    @virtual
    async def test_it_takes_its_time(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 20)
            await compactor_of(cluster, 1).look()
            await LoopClock().sleep(1_500)
            compactor = compactor_of(cluster, 1, bytes_per_s=1_000)
            began_ms = LoopClock().now_ms()
            await compactor.look()
            took_ms = LoopClock().now_ms() - began_ms
            assert took_ms + 1_000 >= compactor.counts.worked_bytes

    @virtual
    async def test_a_log_that_cannot_be_compacted_is_left_alone_for_a_while(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 20)
            compactor = compactor_of(cluster, 1)
            await compactor.look()
            await LoopClock().sleep(1_500)
            files = cluster.files[1]
            files.capacity = files.used_bytes() + 1000
            await compactor.look()
            await compactor.look()
            assert (compactor.counts.runs, compactor.counts.failures) == (0, 1)
            files.capacity = None
            await compactor.look()
            assert compactor.counts.runs == 0
            await LoopClock().sleep(FAILED_PAUSE_MS)
            await compactor.look()
            assert compactor.counts.runs == 1

    @virtual
    async def test_a_replica_that_goes_away_ends_its_compaction(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 20)
            await compactor_of(cluster, 1).look()
            await LoopClock().sleep(1_500)
            runner = cluster.runner(1, "t")
            run = runner.upkeep.begin_compaction(0)
            assert run is not None
            await cluster.nodes[1].admin.delete_topic("t")
            await cluster.until(lambda: runner.is_closed)
            assert run.is_done
            assert await runner.upkeep.compact_slice(run) == 0

    @virtual
    async def test_a_run_that_may_drop_tombstones_ends_where_a_replica_goes_missing(self) -> None:
        """Who copies the log meanwhile must not get a record from before the run and miss its tombstone after it."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 200)
            compactor = compactor_of(cluster, 1, bytes_per_s=20_000)
            runner = cluster.runner(1, "t")
            await compactor.look()
            while not compactor._tombstone_end(runner):
                await LoopClock().sleep(1_000)
            looking = asyncio.create_task(compactor.look())
            await LoopClock().sleep(100)
            assert runner.log.compaction._run is not None, "it is at work"
            await cluster.kill(3)
            await cluster.until(lambda: 3 not in cluster.isr_of("t"))
            await LoopClock().sleep(1_500)
            assert runner.log.compaction._run is None
            await looking
            assert compactor.counts.runs == 0
            await compactor.look()
            assert compactor.counts.runs == 1, "the next one drops none of them"

    @virtual
    @pytest.mark.parametrize(("tombstone_end", "is_ended"), [(1, True), (0, False)])
    async def test_it_ends_before_the_one_that_is_missing_can_be_sent_anything(
        self, tombstone_end: int, *, is_ended: bool
    ) -> None:
        """A slice that is at work would put a group of segments in its place after the first fetch."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 200)
            await compactor_of(cluster, 1).look()
            await LoopClock().sleep(1_500)
            runner = cluster.runner(1, "t")
            run = runner.upkeep.begin_compaction(tombstone_end)
            assert run is not None
            assert not run.is_done
            await cluster.kill(3)
            await cluster.until(lambda: runner.state is not None and 3 not in runner.state.isr)
            assert run.is_done is is_ended


class TestFollowers:
    @virtual
    async def test_a_replica_that_was_away_catches_up_with_a_compacted_leader(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 5)
            await cluster.kill(3)
            await cluster.until(lambda: 3 not in cluster.isr_of("t"))
            await update(cluster, 20)
            await compact(cluster, 1, 2)
            await cluster.restart(3)
            await cluster.until(lambda: 3 in cluster.isr_of("t"))
            log = cluster.runner(3, "t").log
            assert log.log_end_offset == 100
            assert values_of(log) == {b"key-%d" % n: b"19" for n in range(4)}
            assert log.size_bytes > cluster.runner(1, "t").log.size_bytes

    @virtual
    async def test_a_deletion_is_not_forgotten_while_a_replica_is_away(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 5)
            await cluster.kill(3)
            await cluster.until(lambda: 3 not in cluster.isr_of("t"))
            await write(cluster, ("key-0", None))
            await LoopClock().sleep(1_100)
            for _ in range(5):
                await compact(cluster, 1, 2)
                await LoopClock().sleep(5_000)
            await cluster.restart(3)
            await cluster.until(lambda: 3 in cluster.isr_of("t"))
            wanted = {b"key-%d" % n: b"4" for n in (1, 2, 3)}
            assert [values_of(cluster.runner(i, "t").log) for i in (1, 2, 3)] == [wanted] * 3

    @virtual
    async def test_a_copy_that_lost_a_part_is_made_anew(self) -> None:
        """The tombstone in that part is gone from the leader: the rest alone would keep what it deleted."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 5)
            await write(cluster, ("key-0", None))
            await update(cluster, 1)
            await write(cluster, ("key-0", None))
            await after(1_100)
            compactors = [compactor_of(cluster, node_id) for node_id in (1, 2)]
            for _ in range(8):
                for compactor in compactors:
                    await compactor.look()
                await after(1_500)
            for node_id in (1, 2):
                log = cluster.runner(node_id, "t").log
                assert all(key != b"key-0" for key, _ in records_of(log).values())
            segment = cluster.runner(3, "t").log.state.table.segments[0]
            path, middle = segment.path(".log"), segment.size_bytes // 2
            await cluster.kill(3)
            await cluster.until(lambda: 3 not in cluster.isr_of("t"))
            cluster.files[3].flip_bit(path, middle)
            await cluster.restart(3)
            await cluster.until(lambda: 3 in cluster.isr_of("t"))
            logs = [cluster.runner(node_id, "t").log for node_id in (1, 2, 3)]
            assert [log.log_end_offset for log in logs] == [26] * 3
            assert b"key-0" not in values_of(logs[2])
            assert values_of(logs[2]) == values_of(logs[0])

    @virtual
    async def test_a_deletion_is_forgotten_once_every_replica_has_it(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            await update(cluster, 5)
            await write(cluster, ("key-0", None))
            await LoopClock().sleep(1_100)
            log = cluster.runner(1, "t").log
            compactor = compactor_of(cluster, 1)
            for _ in range(3):
                await compactor.look()
                await LoopClock().sleep(1_500)
            assert (b"key-0", None) in records_of(log).values()
            for _ in range(5):
                await compactor.look()
                await LoopClock().sleep(1_500)
            assert (b"key-0", None) not in records_of(log).values()
            assert len(records_of(log)) == 3
