"""Rules of one local replica: syncs, a disk that is full or failing, what a restart finds, damaged copies."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.errors import (
    DiskFailedError,
    DiskFullError,
    FateUnknownError,
    NotLeaderError,
    ReplicaDamagedError,
)
from milena.model.pending import Pending
from milena.model.requests import Acks
from milena.model.types import ReplicaHealth
from node.replica.runner import ReplicaRole
from raft_meta.machine.image import Partition, Reassignment
from tests.support.clusters import leaders
from tests.support.clusters.runners import (
    DIRECTORY,
    Bench,
    batch,
    following,
    leading,
    settings,
    values_of,
)
from tests.support.disk.log_model import stamped
from tests.support.time.virtual_time import after, current_loop, settle, virtual

RECORDS = stamped(batch("a", "b"), base_offset=0, leader_epoch=5, append_time_ms=1)
"""As a leader sends them."""


class TestSyncing:
    @virtual
    async def test_who_waits_until_it_is_stored_is_called_back_after_the_sync(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        bench.send(batch("a"), Acks.NONE)
        await settle()
        waiting: Pending[None] = Pending()
        bench.runner.call_when_stored(waiting)
        await settle()
        assert not waiting.done()
        bench.pool.release()
        await settle()
        assert waiting.done()

    @virtual
    async def test_a_failed_sync_is_fatal_and_acknowledges_nothing(self) -> None:
        bench = leading()
        bench.files.fail_next_sync(DIRECTORY)
        task = bench.send(batch("a"), timeout_ms=500)
        await settle()
        assert bench.fatal
        assert bench.runner.high_watermark == 0
        await after(501)
        with pytest.raises(FateUnknownError):
            task.result()

    @virtual
    async def test_a_failed_write_is_fatal(self) -> None:
        bench = leading()
        bench.files.fail_next_write(DIRECTORY)
        task = bench.send(batch("a"))
        await settle()
        assert bench.fatal
        assert not task.done()
        task.cancel()
        current_loop().failures.clear()

    @virtual
    async def test_a_failed_sync_of_a_truncation_is_fatal(self) -> None:
        bench = following("a", "b")
        await settle()
        bench.files.fail_next_sync(DIRECTORY)
        with pytest.raises(Exception, match="cannot sync"):
            bench.runner.truncate_as_follower(leader_epoch=6, epoch=5, end_offset=1)
        assert bench.fatal

    @virtual
    async def test_a_failed_sync_of_retention_is_fatal(self) -> None:
        bench = leading(retention_ms="1")
        await bench.sent("a", acks=Acks.ALL)
        await after(10_000)
        bench.files.fail_next_sync(DIRECTORY)
        with pytest.raises(DiskFailedError):
            bench.runner.upkeep.maybe_apply_retention()
        assert bench.fatal

    @virtual
    async def test_relaxed_topic_is_synced_by_time(self) -> None:
        bench = leading(flush_messages="1000", flush_ms="300")
        await bench.sent("a", acks=Acks.ALL)
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        assert bench.log.flushing.synced_end == 0
        await after(301)
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        await settle()
        assert bench.log.flushing.synced_end == 1


class TestFullDisk:
    @virtual
    async def test_the_write_is_refused_and_leadership_is_given_up(self) -> None:
        bench = leading()
        bench.files.capacity = bench.files.used_bytes()
        task = bench.send(batch("a"))
        await settle()
        with pytest.raises(DiskFullError):
            task.result()
        assert bench.full_disks == [bench.runner]
        assert bench.content() == []

    @virtual
    async def test_reads_go_on_and_writes_come_back_with_room(self) -> None:
        bench = leading()
        await bench.sent("a", acks=Acks.ALL)
        bench.files.capacity = bench.files.used_bytes()
        for _ in range(3):
            big = bench.send(batch("x" * 5_000_000))
            await settle()
            with pytest.raises(DiskFullError):
                big.result()
        assert values_of(await bench.runner.read(0, max_bytes=1 << 20, end_offset=1)) == ["a"]
        bench.files.capacity = None
        assert (await bench.sent("b", acks=Acks.ALL)).base_offset == 1
        assert not bench.runner.is_disk_full

    @virtual
    async def test_a_follower_without_room_tells_so_too(self) -> None:
        # Its leader's writers would otherwise wait for it until the lag bound.
        bench = following()
        source = leading()
        source.log.append_as_leader([batch("x" * 5_000_000)], leader_epoch=5, now_ms=1)
        data = source.log.read_span(0, max_bytes=1 << 20)
        bench.files.capacity = bench.files.used_bytes()
        with pytest.raises(DiskFullError):
            bench.runner.append_as_follower(data, leader_epoch=6)
        assert bench.full_disks == [bench.runner]


class TestRestart:
    async def restarted(self, *, hw: int, cut: bool = False) -> Bench:
        bench = leading()
        for value in ("a", "b", "c"):
            await bench.sent(value, acks=Acks.ALL)
        bench.log.checkpointing.run(hw)
        bench.files.crash()
        if cut:
            path = next(p for p in bench.files.paths() if p.endswith(".log"))
            file = bench.files.open(path)
            file.truncate(bench.log.state.table.active.size_bytes - 1)
            file.sync()
            file.close()
        bench.runner = bench.open(is_listed=True)
        return bench

    @virtual
    async def test_what_was_acknowledged_survives_a_power_cut(self) -> None:
        bench = await self.restarted(hw=2)
        assert bench.content() == ["a", "b", "c"]
        assert bench.runner.high_watermark == 2
        assert bench.runner.role is ReplicaRole.OFFLINE

    @virtual
    async def test_high_watermark_is_never_above_the_log_end(self) -> None:
        bench = await self.restarted(hw=3, cut=True)
        assert bench.log.log_end_offset == 2
        assert bench.runner.high_watermark == 2
        assert bench.log.health is ReplicaHealth.SUSPECT

    @virtual
    async def test_a_suspect_is_sound_once_it_is_in_sync_without_a_mark(self) -> None:
        bench = await self.restarted(hw=3, cut=True)
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=6, partition_epoch=8))
        assert bench.log.health is ReplicaHealth.SUSPECT
        bench.image(leaders.partition((1, 2, 3), leader=2, leader_epoch=6, partition_epoch=9))
        assert bench.log.health is ReplicaHealth.SOUND

    async def compacted_now(self) -> Bench:
        """A suspect whose topic is compacted from here on; its leader sent offset 2, which is not synced yet."""
        bench = await self.restarted(hw=3, cut=True)
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=6, partition_epoch=8))
        source = leading()
        source.log.append_as_leader([batch(v) for v in "abc"], leader_epoch=5, now_ms=1)
        bench.pool.hold()
        rest = source.log.read_span(2, max_bytes=1 << 20)
        bench.runner.append_as_follower(rest, leader_epoch=6)
        bench.settings = settings(cleanup_policy="compact")
        return bench

    @virtual
    async def test_who_waits_for_a_sync_hears_of_a_copy_that_begins_anew(self) -> None:
        """A follower's loop holds its fetches until it does: nothing would ever be fetched again."""
        bench = await self.compacted_now()
        waiter: Pending[None] = Pending()
        bench.runner.call_when_stored(waiter)
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=7, partition_epoch=9))
        assert bench.log.log_end_offset == 0
        assert waiter.done()
        bench.pool.release()

    @virtual
    async def test_a_copy_does_not_begin_anew_within_a_leader_epoch(self) -> None:
        """Its leader may take it into the ISR for a position that it would lose."""
        bench = await self.compacted_now()
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=6, partition_epoch=9))
        assert bench.log.log_end_offset == 3
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=7, partition_epoch=10))
        assert bench.log.log_end_offset == 0
        bench.pool.release()

    @staticmethod
    def moving(isr: tuple[int, ...] = (2, 3), *, leader_epoch: int) -> Partition:
        """Replica 1 takes the place of 3."""
        move = Reassignment(
            former=(2, 3),
            target=(2, 1),
            is_started=True,
            max_concurrent=0,
            throttle_bytes_per_s=0,
        )
        state = leaders.partition(isr, replicas=(2, 3, 1), leader=2, leader_epoch=leader_epoch)
        return replace(state, moving=move)

    @virtual
    async def test_a_copy_under_way_begins_anew_with_each_leader_where_the_log_is_compacted(
        self,
    ) -> None:
        """What speaks of its first part may be gone from the log of the next leader."""
        bench = Bench(settings=settings(cleanup_policy="compact"))
        bench.image(self.moving(leader_epoch=6))
        for epoch in (7, 8):
            bench.runner.append_as_follower(RECORDS, leader_epoch=epoch - 1)
            assert bench.content() == ["a", "b"]
            bench.image(self.moving(leader_epoch=epoch))
            assert bench.log.log_end_offset == 0
        bench.runner.append_as_follower(RECORDS, leader_epoch=8)
        bench.image(self.moving((2, 3, 1), leader_epoch=8))
        bench.image(self.moving((2, 3, 1), leader_epoch=9))
        assert bench.content() == ["a", "b"], "it is whole, and counts"

    @virtual
    async def test_a_copy_under_way_of_any_other_log_goes_on(self) -> None:
        bench = Bench()
        bench.image(self.moving(leader_epoch=6))
        bench.runner.append_as_follower(RECORDS, leader_epoch=6)
        bench.image(self.moving(leader_epoch=7))
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_replica_that_was_away_keeps_what_it_has(self) -> None:
        bench = Bench(settings=settings(cleanup_policy="compact"))
        bench.image(leaders.partition((1, 2, 3), leader=2, leader_epoch=6))
        bench.runner.append_as_follower(RECORDS, leader_epoch=6)
        bench.image(leaders.partition((2, 3), leader=3, leader_epoch=7))
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_damaged_copy_neither_leads_nor_serves(self) -> None:
        bench = leading()
        await bench.sent("a", acks=Acks.ALL)
        await bench.runner.close(is_clean=True)
        for path in bench.files.paths():
            bench.files.remove(path)
        bench.files.remove_tree(DIRECTORY)
        bench.runner = bench.open(is_listed=True)
        bench.image(leaders.partition((2,), leader=2, leader_epoch=6, partition_epoch=8))
        assert bench.runner.is_damaged
        assert bench.runner.role is ReplicaRole.FOLLOWER
        with pytest.raises(ReplicaDamagedError):
            await bench.runner.read(0, max_bytes=1, end_offset=1)

    @virtual
    async def test_closing_waits_for_the_sync_under_way(self) -> None:
        bench = leading()
        bench.pool.hold()
        bench.send(batch("a"), Acks.NONE)
        await settle()
        closing = asyncio.ensure_future(bench.runner.close(is_clean=True))
        await settle()
        assert not closing.done()
        bench.pool.release()
        await closing
        with pytest.raises(NotLeaderError):
            await bench.send(batch("b"))


class TestDamageFound:
    """What the scrubber found in a sealed segment of replica 1, and what becomes of it as the image says."""

    async def damaged(self) -> Bench:
        """Offsets 0 to 2 are sealed, and the second of them rots; offset 3 is in the active segment."""
        bench = leading(segment_ms="1000")
        for value in ("a", "b", "c"):
            await bench.sent(value)
        await after(2_000)
        bench.runner.upkeep.maybe_roll()
        await bench.sent("d")
        await bench.runner.upkeep.maybe_checkpoint()
        path = min(p for p in bench.files.paths() if p.endswith(".log"))
        bench.files.flip_bit(path, len(bench.log.read_span(0, max_bytes=1)) + 70)
        scrub = bench.log.begin_scrub(0)
        assert scrub is not None
        while not scrub.is_done:
            scrub.step()
        scrub.close()
        assert scrub.damage is not None
        assert scrub.damage.offset == 1
        bench.runner.damage = scrub.damage
        return bench

    @pytest.mark.parametrize(
        ("isr", "eligible"), [((1, 2, 3), ()), ((2,), (1,))], ids=["in sync", "eligible"]
    )
    @virtual
    async def test_a_copy_that_counts_is_not_cut_until_it_counts_no_more(
        self, isr: tuple[int, ...], eligible: tuple[int, ...]
    ) -> None:
        """Another leader may take over before the command that takes the copy out of the ISR is committed."""
        bench = await self.damaged()
        counted = leaders.partition(isr, leader=2, leader_epoch=6, partition_epoch=8)
        bench.image(replace(counted, eligible=eligible))
        assert bench.log.log_end_offset == 4, "it holds what was committed with it"
        assert bench.log.health is ReplicaHealth.SOUND
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=7, partition_epoch=9))
        assert bench.log.log_end_offset == 1
        assert bench.log.health is ReplicaHealth.DAMAGED
        assert bench.runner.high_watermark == 1

    @virtual
    async def test_a_restored_copy_that_is_elected_at_once_leads(self) -> None:
        """Its last leader was gone before it heard that it is in sync: nobody else would lead in this epoch."""
        bench, source = await self.damaged(), leading()
        source.log.append_as_leader([batch(v) for v in "abcd"], leader_epoch=5, now_ms=1)
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=6, partition_epoch=8))
        assert bench.log.health is ReplicaHealth.DAMAGED
        rest = source.log.read_span(1, max_bytes=1 << 20)
        bench.runner.append_as_follower(rest, leader_epoch=6)
        bench.image(leaders.partition((1, 2), leader=None, leader_epoch=7, partition_epoch=9))
        assert bench.log.health is ReplicaHealth.DAMAGED
        bench.image(leaders.partition((1,), leader=1, leader_epoch=8, partition_epoch=10))
        assert bench.log.health is ReplicaHealth.SOUND
        assert bench.runner.role is ReplicaRole.LEADER

    @virtual
    async def test_a_copy_is_not_cut_within_a_leader_epoch(self) -> None:
        """Its leader may know a position by now that it would lose."""
        bench = await self.damaged()
        bench.follow(2)
        bench.image(leaders.partition((2, 3), leader=2, leader_epoch=6, partition_epoch=9))
        assert bench.log.log_end_offset == 4
