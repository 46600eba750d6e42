"""Rules of one local replica: group append, acknowledgement, demotion, truncation, a disk that is full or failing."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.batch.encode import with_extensions
from milena.model.batch.header import ProducerStamp, TransactionExtension, decode_header
from milena.model.errors import (
    CorruptLogError,
    DiskFailedError,
    DiskFullError,
    FateUnknownError,
    IdempotencyKeyReusedError,
    InvalidProducerError,
    MilenaError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    ReplicaDamagedError,
    RequestTooLargeError,
    TooManyRequestsError,
)
from milena.model.pending import Pending
from milena.model.requests import Acks, BatchReceipt
from milena.model.types import ReplicaHealth
from node.replica.leader import IsrProposal
from node.replica.runner import ReplicaRole
from storage.state.idempotency import IDEMPOTENCY_KEPT_MS, IdempotencyTable
from tests.support.clusters import leaders
from tests.support.clusters.runners import DIRECTORY, Bench, batch, settings, values_of
from tests.support.time.virtual_time import after, current_loop, settle, virtual

KEY = b"k" * 16


def leading(isr: tuple[int, ...] = (1,), **configs: str) -> Bench:
    bench = Bench(settings=settings(**({"min_insync_replicas": "1"} | configs)))
    bench.lead(isr)
    return bench


class Watcher:
    def __init__(self) -> None:
        self.log_ends: list[int] = []

    def on_news(self, runner: object) -> None:
        self.log_ends.append(runner.log.log_end_offset)  # type: ignore[attr-defined]


class TestGroupAppend:
    @virtual
    async def test_what_arrives_in_one_turn_is_one_write(self) -> None:
        bench = leading()
        writes = bench.files.operations["write"]
        tasks = [bench.send(batch(f"{i}")) for i in range(5)]
        await settle()
        assert [task.result().base_offset for task in tasks] == [0, 1, 2, 3, 4]
        assert bench.files.operations["write"] == writes + 1

    @virtual
    async def test_a_write_is_told_of_once_and_one_that_is_refused_is_not(self) -> None:
        bench = leading()
        tasks = [bench.send(batch(f"{i}")) for i in range(5)]
        await settle()
        assert bench.appends == 1
        bench.follow(2)
        tasks.append(bench.send(batch("late")))
        await settle()
        assert isinstance(tasks[-1].exception(), NotLeaderError)
        assert bench.appends == 1

    @virtual
    async def test_one_sync_covers_what_was_written_while_another_ran(self) -> None:
        bench = leading()
        bench.pool.hold()
        first = bench.send(batch("a"))
        await settle()
        others = [bench.send(batch(f"{i}")) for i in range(3)]
        await settle()
        assert not first.done()
        syncs = bench.files.operations["sync"]
        bench.pool.release()
        await settle()
        assert all(task.done() for task in (first, *others))
        assert bench.files.operations["sync"] == syncs + 2

    @virtual
    async def test_one_bad_batch_does_not_refuse_the_others_of_its_group(self) -> None:
        bench = leading(max_message_bytes="1024")
        tasks = [bench.send(batch(value)) for value in ("a", "x" * 2_000, "b")]
        await settle()
        assert tasks[0].result().base_offset == 0
        with pytest.raises(RequestTooLargeError):
            tasks[1].result()
        assert tasks[2].result().base_offset == 1
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_cancelled_writer_that_was_not_appended_writes_nothing(self) -> None:
        bench = leading()
        data = batch("a")
        pending = bench.runner.append(data, decode_header(data), acks=Acks.ALL, timeout_ms=1_000)
        pending.cancel()
        await settle()
        assert bench.content() == []


class TestDuplicates:
    @virtual
    async def test_a_batch_sent_twice_in_one_turn_is_appended_once(self) -> None:
        bench = leading()
        data = batch("a", "b", producer=ProducerStamp(7, 0, 0))
        first, second = bench.send(data), bench.send(data)
        await settle()
        assert not first.result().is_duplicate
        assert second.result().is_duplicate
        assert (second.result().base_offset, second.result().last_offset) == (0, 1)
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_batch_sent_again_later_gets_its_first_offsets(self) -> None:
        bench = leading()
        data = batch("a", producer=ProducerStamp(7, 0, 0))
        await bench.send(data)
        await bench.sent("between")
        receipt = await bench.send(data)
        assert receipt.is_duplicate
        assert receipt.base_offset == 0

    @virtual
    async def test_consecutive_sequences_of_one_turn_are_all_appended_in_order(self) -> None:
        bench = leading()
        tasks = [bench.send(batch(f"{i}", producer=ProducerStamp(7, 0, i))) for i in range(4)]
        await settle()
        assert [task.result().base_offset for task in tasks] == [0, 1, 2, 3]
        assert bench.content() == ["0", "1", "2", "3"]

    @virtual
    async def test_a_gap_in_the_sequences_is_refused(self) -> None:
        bench = leading()
        await bench.send(batch("a", producer=ProducerStamp(7, 0, 0)))
        with pytest.raises(InvalidProducerError):
            await bench.send(batch("c", producer=ProducerStamp(7, 0, 2)))

    @virtual
    async def test_a_duplicate_waits_for_the_high_watermark_as_the_original_does(self) -> None:
        bench = leading((1, 2))
        data = batch("a", key=KEY)
        first = bench.send(data, timeout_ms=60_000)
        await settle()
        second = bench.send(data, timeout_ms=60_000)
        await settle()
        assert not first.done()
        assert not second.done()
        bench.ack(2)
        await settle()
        assert first.result().base_offset == second.result().base_offset == 0
        assert second.result().is_duplicate

    @virtual
    async def test_a_key_with_another_body_is_refused_within_one_turn_too(self) -> None:
        bench = leading()
        first, second = bench.send(batch("a", key=KEY)), bench.send(batch("b", key=KEY))
        await settle()
        assert first.result().base_offset == 0
        with pytest.raises(IdempotencyKeyReusedError):
            second.result()

    @virtual
    async def test_no_key_is_taken_that_would_push_out_one_of_the_last_minutes(self) -> None:
        bench = leading()
        bench.log._state.writers.idempotency = IdempotencyTable(keys_max=2)
        keys = [bytes([number]) * 16 for number in range(3)]
        writes = [bench.send(batch("a", key=key)) for key in keys]
        await settle()
        assert [write.result().base_offset for write in writes[:2]] == [0, 1]
        with pytest.raises(TooManyRequestsError):
            writes[2].result()
        # Repeats, and what has no key, are none of it.
        assert (await bench.send(batch("a", key=keys[0]))).is_duplicate
        assert (await bench.send(batch("b"))).base_offset == 2
        await after(IDEMPOTENCY_KEPT_MS)
        assert (await bench.send(batch("a", key=keys[2]))).base_offset == 3


class TestAcks:
    @virtual
    async def test_acks_all_is_answered_after_the_high_watermark_passed(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"))
        await settle()
        assert bench.runner.high_watermark == 0
        assert not task.done()
        bench.ack(2)
        assert bench.runner.high_watermark == 1
        await settle()
        assert task.result().base_offset == 0

    @virtual
    async def test_acks_one_is_answered_after_our_own_sync(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"), Acks.LEADER)
        await settle()
        assert not task.done()
        bench.pool.release()
        await settle()
        assert task.result().base_offset == 0
        assert bench.runner.high_watermark == 0

    @virtual
    async def test_acks_none_is_answered_without_an_offset_before_the_sync(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"), Acks.NONE)
        await settle()
        assert task.result().base_offset is None
        bench.pool.release()

    @virtual
    async def test_relaxed_topic_answers_before_any_sync(self) -> None:
        bench = leading(flush_messages="1000")
        bench.pool.hold()
        assert (await bench.sent("a", acks=Acks.ALL)).base_offset == 0
        bench.pool.release()

    @virtual
    async def test_too_small_an_isr_refuses_before_the_append(self) -> None:
        bench = leading((1,), min_insync_replicas="2")
        with pytest.raises(NotEnoughReplicasError, match="nothing was written"):
            await bench.send(batch("a"))
        assert bench.content() == []
        assert (await bench.sent("b", acks=Acks.LEADER)).base_offset == 0

    @virtual
    async def test_no_commit_in_time_is_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=500)
        await after(501)
        with pytest.raises(FateUnknownError):
            task.result()
        assert bench.counts.fate_unknown == 1

    @virtual
    async def test_writers_that_went_away_are_forgotten(self) -> None:
        bench = leading((1, 2))
        tasks = [bench.send(batch("a"), acks, 60_000) for acks in (Acks.ALL, Acks.LEADER) * 50]
        bench.pool.hold()
        await settle()
        for task in tasks:
            task.cancel()
        await settle()
        assert len(bench.runner._acknowledgements) <= 2
        bench.pool.release()

    @virtual
    async def test_readers_that_went_away_are_forgotten(self) -> None:
        bench = leading()
        readers = [asyncio.ensure_future(bench.runner.wait_readable(0, 60_000)) for _ in range(100)]
        await settle()
        for reader in readers:
            reader.cancel()
        await settle()
        assert len(bench.runner._acknowledgements) <= 2

    @virtual
    async def test_followers_hear_of_a_write_before_our_own_sync_returns(self) -> None:
        bench = leading((1, 2))
        watcher = Watcher()
        bench.runner.watchers[watcher] = None
        bench.pool.hold()
        bench.send(batch("a"), Acks.NONE)
        await settle()
        assert watcher.log_ends == [1]
        assert bench.log.synced_end_offset == 0
        bench.pool.release()


class TestDemotion:
    @virtual
    async def test_appends_that_wait_for_their_turn_are_refused_with_nothing_written(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"))
        await asyncio.sleep(0)
        bench.follow(2)
        await settle()
        with pytest.raises(NotLeaderError, match="nothing was written") as caught:
            task.result()
        assert caught.value.leader == 2
        assert bench.content() == []

    @virtual
    async def test_a_writer_is_answered_when_the_new_leaders_high_watermark_passes(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=60_000)
        await settle()
        bench.follow(2)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=1, log_start=0)
        await settle()
        assert task.result().base_offset == 0

    @virtual
    async def test_a_writer_whose_record_is_truncated_hears_that_its_fate_is_unknown(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=60_000)
        await settle()
        bench.follow(2)
        bench.runner.truncate_as_follower(leader_epoch=6, epoch=-1, end_offset=-1)
        await settle()
        with pytest.raises(FateUnknownError):
            task.result()
        assert bench.content() == []

    @virtual
    async def test_acks_one_writer_of_a_truncated_record_is_not_told_that_it_is_stored(
        self,
    ) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"), Acks.LEADER, timeout_ms=60_000)
        await settle()
        bench.follow(2)
        bench.runner.truncate_as_follower(leader_epoch=6, epoch=-1, end_offset=-1)
        bench.pool.release()
        await settle()
        with pytest.raises(FateUnknownError):
            task.result()

    @virtual
    async def test_a_writer_hears_when_its_leader_was_cut_off(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=60_000)
        await settle()
        bench.runner.on_lease_lost()
        await settle()
        with pytest.raises(FateUnknownError):
            task.result()
        assert bench.content() == ["a"], "it may still be committed"

    @virtual
    async def test_a_removed_replicas_writers_hear_that_their_fate_is_unknown(self) -> None:
        bench = leading((1, 2))
        tasks = [bench.send(batch("a"), timeout_ms=60_000) for _ in range(2)]
        await settle()
        await bench.runner.close(is_clean=False)
        await settle()
        for task in tasks:
            with pytest.raises(FateUnknownError):
                task.result()

    @virtual
    async def test_a_clean_stop_does_not_call_unreplicated_records_committed(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=60_000)
        await settle()
        await bench.runner.close(is_clean=True)
        await settle()
        with pytest.raises(FateUnknownError):
            task.result()

    @virtual
    async def test_a_new_epoch_of_the_same_leader_knows_nobodys_end(self) -> None:
        bench = leading((1, 2))
        await bench.sent("a")
        bench.ack(2)
        bench.lead((1, 2), epoch=7, version=9)
        await bench.sent("b")
        assert bench.runner.high_watermark == 1
        bench.ack(2)
        assert bench.runner.high_watermark == 2

    @virtual
    async def test_an_image_of_the_same_epoch_keeps_what_the_leader_knows(self) -> None:
        bench = leading((1, 2, 3))
        await bench.sent("a")
        bench.ack(2)
        bench.lead((1, 2), version=8)
        assert bench.runner.high_watermark == 1
        assert bench.counts.isr_shrinks == 1


class TestFollowing:
    def follower(self, *values: str, hw: int = 0) -> Bench:
        """Replica 1 follows broker 2 in epoch 6 and holds these values of epoch 5."""
        bench = Bench()
        source = leading()
        bench.follow(2, epoch=5, version=7)
        source.log.append_as_leader([batch(v) for v in values], leader_epoch=5, now_ms=1)
        if values:
            data = source.log.read_span(0, max_bytes=1 << 20)
            bench.runner.append_as_follower(data, leader_epoch=5)
        bench.runner.advance_as_follower(leader_epoch=5, high_watermark=hw, log_start=0)
        bench.follow(2)
        return bench

    @virtual
    async def test_what_the_leader_has_deleted_is_decided(self) -> None:
        """The marker of a transaction that begins there may be on its way."""
        bench, source = self.follower(), leading()
        of_one = with_extensions(
            batch("x", producer=ProducerStamp(7, 0, -1)),
            transaction=TransactionExtension(-1, -1, 1_000),
        )
        source.log.append_as_leader(
            [batch("a"), of_one, batch("b"), of_one], leader_epoch=6, now_ms=1
        )
        bench.runner.append_as_follower(source.log.read_span(0, max_bytes=1 << 20), leader_epoch=6)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=4, log_start=0)
        assert bench.runner.stable_end == 1
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=4, log_start=3)
        assert bench.runner.stable_end == 3

    @virtual
    async def test_a_stale_leaders_records_are_refused(self) -> None:
        bench = self.follower("a")
        assert bench.appends == 1, "a follower tells of what it writes as well"
        with pytest.raises(NotLeaderError):
            bench.runner.append_as_follower(b"", leader_epoch=5)
        with pytest.raises(NotLeaderError):
            bench.runner.advance_as_follower(leader_epoch=5, high_watermark=9, log_start=0)
        with pytest.raises(NotLeaderError):
            bench.runner.truncate_as_follower(leader_epoch=5, epoch=5, end_offset=0)

    @virtual
    async def test_high_watermark_reaches_no_further_than_our_log(self) -> None:
        bench = self.follower("a", "b")
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=99, log_start=0)
        assert bench.runner.high_watermark == 2

    @virtual
    async def test_high_watermark_never_falls(self) -> None:
        bench = self.follower("a", "b", hw=2)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=1, log_start=0)
        assert bench.runner.high_watermark == 2

    @virtual
    async def test_truncates_to_the_common_prefix_and_keeps_the_rest(self) -> None:
        bench = self.follower("a", "b", "c", hw=1)
        bench.runner.truncate_as_follower(leader_epoch=6, epoch=5, end_offset=2)
        await settle()
        assert bench.content() == ["a", "b"]
        assert bench.runner.high_watermark == 1

    @virtual
    async def test_refuses_to_truncate_committed_records_and_stops_following(self) -> None:
        bench = self.follower("a", "b", "c", hw=3)
        with pytest.raises(CorruptLogError):
            bench.runner.truncate_as_follower(leader_epoch=6, epoch=5, end_offset=2)
        assert bench.runner.is_stuck
        await settle()
        assert bench.content() == ["a", "b", "c"]

    @virtual
    async def test_truncates_committed_records_after_an_unclean_election(self) -> None:
        bench = self.follower("a", "b", "c", hw=3)
        bench.image(
            leaders.partition((2,), leader=2, leader_epoch=7, partition_epoch=9, unclean_epoch=7)
        )
        bench.runner.truncate_as_follower(leader_epoch=7, epoch=5, end_offset=1)
        await settle()
        assert bench.content() == ["a"]
        assert bench.runner.high_watermark == 1

    @virtual
    async def test_begins_anew_where_the_leaders_log_starts(self) -> None:
        bench = self.follower("a", hw=1)
        leader = leading()
        bench.runner.restart_as_follower(
            leader_epoch=6,
            log_start=40,
            producers=leader.log.producer_snapshot(leader.log.log_end_offset),
        )
        assert bench.log.log_start_offset == bench.log.log_end_offset == 40
        assert bench.runner.high_watermark == 40

    @virtual
    async def test_adopts_the_leaders_log_start_once_that_is_committed_here(self) -> None:
        bench = self.follower("a", "b", "c", hw=1)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=1, log_start=2)
        assert bench.log.log_start_offset == 0
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=3, log_start=2)
        assert bench.log.log_start_offset == 2

    @virtual
    async def test_a_follower_leads_nobody(self) -> None:
        bench = self.follower("a")
        with pytest.raises(NotLeaderError):
            bench.ack(3)

    @pytest.mark.parametrize("is_emptied", [False, True])
    @virtual
    async def test_a_position_at_our_log_start_with_the_epoch_of_what_was_deleted_is_accepted(
        self, is_emptied: bool
    ) -> None:
        bench = leading((1, 2))
        await bench.sent("a", "b")
        bench.ack(2)
        if is_emptied:
            bench.log.advance_log_start(2)
        bench.lead((1, 2), epoch=6, version=8)
        await bench.sent("c")
        bench.log.advance_log_start(2)
        assert bench.ack(2, 2, last_epoch=5) == "ACCEPTED"
        assert bench.ack(2, 3, last_epoch=5) == "DIVERGING"
        assert bench.runner.agreed_end(5) == (5, 2)

    @virtual
    async def test_a_position_at_our_log_start_with_another_epoch_than_what_was_deleted_is_not(
        self,
    ) -> None:
        """What it has there is not what was committed: it would tell its writer that it is."""
        bench = leading((1, 2))
        await bench.sent("a")
        bench.lead((1, 2), epoch=6, version=8)
        await bench.sent("b")
        bench.ack(2)
        bench.log.advance_log_start(2)
        await bench.sent("c")
        assert bench.log.epoch_end(5) == (-1, -1)
        assert bench.ack(2, 3, last_epoch=5) == "DIVERGING"
        assert bench.runner.agreed_end(5) == (5, 2)
        assert bench.ack(2, 2, last_epoch=5) == "BELOW_LOG_START"


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
        bench = TestFollowing().follower("a", "b")
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
        assert bench.log.synced_end_offset == 0
        await after(301)
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        await settle()
        assert bench.log.synced_end_offset == 1


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
        bench = TestFollowing().follower()
        source = leading()
        source.log.append_as_leader([batch("x" * 5_000_000)], leader_epoch=5, now_ms=1)
        data = source.log.read_span(0, max_bytes=1 << 20)
        bench.files.capacity = bench.files.used_bytes()
        with pytest.raises(DiskFullError):
            bench.runner.append_as_follower(data, leader_epoch=6)
        assert bench.full_disks == [bench.runner]


class TestIsr:
    @virtual
    async def test_a_caught_up_follower_is_proposed_once(self) -> None:
        bench = leading((1, 2))
        bench.ack(2)
        bench.ack(3)
        bench.ack(3)
        assert [p.broker_ids for p in bench.proposals] == [{1, 2, 3}]

    @virtual
    async def test_a_lost_proposal_is_repeated_and_a_refused_one_counts_no_more(self) -> None:
        bench = leading((1, 2))
        bench.ack(2)
        bench.ack(3)
        task = bench.send(batch("a"))
        await settle()
        bench.ack(2)
        bench.runner.on_proposal_done(bench.proposals[0], is_definite_refusal=False)
        await settle()
        assert not task.done(), "broker 3 may be in the ISR"
        bench.brokers[3] = leaders.broker(3, fenced=True)
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        assert len(bench.proposals) == 2
        bench.runner.on_proposal_done(bench.proposals[1], is_definite_refusal=True)
        await settle()
        assert not task.done(), "the first proposal's fate is still unknown"
        bench.lead((1, 2), version=8)
        await settle()
        assert task.done()

    @virtual
    async def test_proposals_of_unknown_fate_do_not_pile_up(self) -> None:
        bench = leading((1, 2, 3))
        await bench.sent("a")
        await after(10_001)
        for _ in range(100):
            bench.runner.tick(bench.clock.now_ms(), bench.brokers)
            bench.runner.on_proposal_done(bench.proposals[-1], is_definite_refusal=False)
        assert len(bench.proposals) == 100
        assert bench.runner.leader is not None
        assert len(bench.runner.leader.outstanding) == 1

    @virtual
    async def test_refusal_of_a_repeated_proposal_says_nothing_of_its_first_copy(self) -> None:
        bench = leading((1, 2))
        bench.ack(2)
        bench.ack(3)
        bench.runner.on_proposal_done(bench.proposals[0], is_definite_refusal=False)
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        assert bench.proposals[1] == bench.proposals[0]
        bench.runner.on_proposal_done(bench.proposals[1], is_definite_refusal=True)
        await bench.sent("a")
        bench.ack(2)
        assert bench.runner.high_watermark == 0, "the first copy may have put broker 3 in"

    @virtual
    async def test_an_answer_to_an_earlier_leaderships_proposal_is_ignored(self) -> None:
        bench = leading((1, 2))
        bench.ack(3)
        old = bench.proposals[0]
        bench.lead((1, 2), epoch=7, version=9)
        bench.ack(3)
        bench.runner.on_proposal_done(old, is_definite_refusal=True)
        assert bench.runner.leader is not None
        assert bench.runner.leader.in_flight == bench.proposals[1]
        assert isinstance(old, IsrProposal)


class TestReading:
    @pytest.mark.parametrize(
        ("isr", "eligible", "has_heirs"),
        [((1,), (), False), ((1,), (1,), False), ((1, 2), (), True), ((1,), (2,), True)],
    )
    @virtual
    async def test_a_leader_has_heirs_where_the_controller_may_elect_another(
        self, isr: tuple[int, ...], eligible: tuple[int, ...], has_heirs: bool
    ) -> None:
        """It speaks of its log's end without asking the quorum only where nobody else can have led by then."""
        bench = leading(isr)
        assert bench.runner.state is not None
        bench.image(replace(bench.runner.state, eligible=eligible))
        assert bench.runner.role is ReplicaRole.LEADER
        assert bench.runner.has_heirs is has_heirs

    @virtual
    async def test_a_reader_waits_for_the_commit(self) -> None:
        bench = leading((1, 2))
        waiting = asyncio.ensure_future(bench.runner.wait_readable(0, 60_000))
        await bench.sent("a")
        assert not waiting.done()
        bench.ack(2)
        await settle()
        assert waiting.done()

    @virtual
    async def test_a_reader_waits_no_longer_than_it_said(self) -> None:
        bench = leading((1, 2))
        began = bench.clock.now_ms()
        await bench.runner.wait_readable(0, 700)
        assert bench.clock.now_ms() - began == 700

    @virtual
    async def test_below_the_log_start_is_out_of_range(self) -> None:
        bench = leading()
        await bench.sent("a", "b", acks=Acks.ALL)
        bench.log.advance_log_start(2)
        with pytest.raises(OffsetOutOfRangeError):
            bench.runner.check_offset(1, has_lease=True)

    @virtual
    async def test_above_the_end_is_judged_by_an_established_leader_only(self) -> None:
        bench = leading((1, 2))
        await bench.sent("a")
        bench.lead((1, 2), epoch=7, version=9)
        bench.runner.check_offset(1, has_lease=True)
        with pytest.raises(NotReadyError):
            bench.runner.check_offset(2, has_lease=True)
        bench.ack(2)
        with pytest.raises(OffsetOutOfRangeError):
            bench.runner.check_offset(2, has_lease=True)
        with pytest.raises(NotReadyError):
            bench.runner.check_offset(2, has_lease=False)

    @virtual
    async def test_a_read_that_misses_the_page_cache_goes_to_a_thread(self) -> None:
        bench = leading()
        for value in ("a", "b"):  # what was appended last is in memory
            await bench.sent(value, acks=Acks.ALL)
        for path in bench.files.paths():
            bench.files.evict(path)
        bench.pool.hold()
        reading = asyncio.ensure_future(bench.runner.read(0, max_bytes=1 << 20, end_offset=1))
        await settle()
        assert not reading.done()
        bench.pool.release()
        assert values_of(await reading) == ["a"]


class TestRestart:
    async def restarted(self, *, hw: int, cut: bool = False) -> Bench:
        bench = leading()
        for value in ("a", "b", "c"):
            await bench.sent(value, acks=Acks.ALL)
        bench.log.checkpoint(hw)
        bench.files.crash()
        if cut:
            path = next(p for p in bench.files.paths() if p.endswith(".log"))
            file = bench.files.open(path)
            file.truncate(bench.log._active.size_bytes - 1)
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


class TestAppendAtOnce:
    """``append`` of what has waited for others: the same promises, in this turn and without a task."""

    @staticmethod
    def begin(
        bench: Bench, value: str, acks: Acks = Acks.ALL, timeout_ms: int = 500
    ) -> list[BatchReceipt | MilenaError]:
        outcomes: list[BatchReceipt | MilenaError] = []
        data = batch(value)
        pending = bench.runner.append(
            data, decode_header(data), acks=acks, timeout_ms=timeout_ms, at_once=True
        )

        def on_done(done: Pending[BatchReceipt]) -> None:
            error = done.exception()
            assert error is None or isinstance(error, MilenaError)
            outcomes.append(done.result() if error is None else error)

        pending.add_done_callback(on_done)
        return outcomes

    @virtual
    async def test_all_in_sync_replicas_have_it_before_the_call_back(self) -> None:
        bench = leading((1, 2, 3))
        outcomes = self.begin(bench, "a")
        assert bench.content() == ["a"]
        await settle()
        bench.ack(2)
        assert outcomes == []
        bench.ack(3)
        assert [outcome.base_offset for outcome in outcomes] == [0]  # type: ignore[union-attr]
        await after(501)
        assert len(outcomes) == 1
        assert bench.counts.fate_unknown == 0

    @virtual
    async def test_our_own_sync_comes_before_it_too(self) -> None:
        bench = leading((1,))
        for acks in (Acks.ALL, Acks.LEADER):
            outcomes = self.begin(bench, "a", acks)
            assert outcomes == [], "not synced yet"
            await settle()
            assert len(outcomes) == 1

    @virtual
    async def test_it_goes_behind_what_was_queued_before(self) -> None:
        bench = leading((1,))
        queued = bench.runner.append(
            batch("a"), decode_header(batch("a")), acks=Acks.NONE, timeout_ms=1
        )
        self.begin(bench, "b")
        assert bench.content() == ["a", "b"]
        await queued

    @virtual
    async def test_no_commit_in_time_is_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        outcomes = self.begin(bench, "a")
        await after(501)
        assert [type(outcome) for outcome in outcomes] == [FateUnknownError]
        assert bench.counts.fate_unknown == 1
        bench.ack(2)
        assert len(outcomes) == 1

    @virtual
    async def test_each_waits_as_long_as_it_asked(self) -> None:
        bench = leading((1, 2))
        patient = self.begin(bench, "a", timeout_ms=900)
        hasty = self.begin(bench, "b", timeout_ms=100)
        late = self.begin(bench, "c", timeout_ms=400)
        await after(101)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [0, 1, 0]
        await after(300)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [0, 1, 1]
        bench.ack(2, 1)
        assert isinstance(patient[0], BatchReceipt)
        await after(600)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [1, 1, 1]
        assert bench.counts.fate_unknown == 2

    @virtual
    async def test_a_cut_and_a_lost_lease_are_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        outcomes = self.begin(bench, "a")
        await settle()
        bench.runner.on_lease_lost()
        assert [type(outcome) for outcome in outcomes] == [FateUnknownError]

    @virtual
    async def test_what_is_known_to_be_refused_is_not_begun(self) -> None:
        bench = leading((1,), min_insync_replicas="2")
        assert not bench.runner.may_append(Acks.ALL)
        assert bench.runner.may_append(Acks.LEADER)
        assert [type(o) for o in self.begin(bench, "a")] == [NotEnoughReplicasError]
        bench.follow(2)
        assert not bench.runner.may_append(Acks.LEADER)
        assert [type(o) for o in self.begin(bench, "a")] == [NotLeaderError]
        assert bench.content() == []

    @virtual
    async def test_a_full_disk_refuses_it_and_keeps_nothing(self) -> None:
        bench = leading((1,))
        bench.files.capacity = bench.files.used_bytes()
        assert [type(o) for o in self.begin(bench, "a")] == [DiskFullError]
        assert bench.runner.is_disk_full
