"""Rules of one local replica: what becomes of its writers and its log when another one leads, and who is in sync."""

import asyncio

import pytest

from milena.model.batch.encode import with_extensions
from milena.model.batch.header import ProducerStamp, TransactionExtension
from milena.model.errors import (
    CorruptLogError,
    FateUnknownError,
    NotLeaderError,
)
from milena.model.requests import Acks
from node.replica.leader import IsrProposal
from tests.support.clusters import leaders
from tests.support.clusters.runners import batch, following, leading
from tests.support.time.virtual_time import after, settle, virtual


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
    @virtual
    async def test_what_the_leader_has_deleted_is_decided(self) -> None:
        """The marker of a transaction that begins there may be on its way."""
        bench, source = following(), leading()
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
        bench = following("a")
        assert bench.appends == 1, "a follower tells of what it writes as well"
        with pytest.raises(NotLeaderError):
            bench.runner.append_as_follower(b"", leader_epoch=5)
        with pytest.raises(NotLeaderError):
            bench.runner.advance_as_follower(leader_epoch=5, high_watermark=9, log_start=0)
        with pytest.raises(NotLeaderError):
            bench.runner.truncate_as_follower(leader_epoch=5, epoch=5, end_offset=0)

    @virtual
    async def test_high_watermark_reaches_no_further_than_our_log(self) -> None:
        bench = following("a", "b")
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=99, log_start=0)
        assert bench.runner.high_watermark == 2

    @virtual
    async def test_high_watermark_never_falls(self) -> None:
        bench = following("a", "b", hw=2)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=1, log_start=0)
        assert bench.runner.high_watermark == 2

    @virtual
    async def test_truncates_to_the_common_prefix_and_keeps_the_rest(self) -> None:
        bench = following("a", "b", "c", hw=1)
        bench.runner.truncate_as_follower(leader_epoch=6, epoch=5, end_offset=2)
        await settle()
        assert bench.content() == ["a", "b"]
        assert bench.runner.high_watermark == 1

    @virtual
    async def test_refuses_to_truncate_committed_records_and_stops_following(self) -> None:
        bench = following("a", "b", "c", hw=3)
        with pytest.raises(CorruptLogError):
            bench.runner.truncate_as_follower(leader_epoch=6, epoch=5, end_offset=2)
        assert bench.runner.is_stuck
        await settle()
        assert bench.content() == ["a", "b", "c"]

    @virtual
    async def test_truncates_committed_records_after_an_unclean_election(self) -> None:
        bench = following("a", "b", "c", hw=3)
        bench.image(
            leaders.partition((2,), leader=2, leader_epoch=7, partition_epoch=9, unclean_epoch=7)
        )
        bench.runner.truncate_as_follower(leader_epoch=7, epoch=5, end_offset=1)
        await settle()
        assert bench.content() == ["a"]
        assert bench.runner.high_watermark == 1

    @virtual
    async def test_begins_anew_where_the_leaders_log_starts(self) -> None:
        bench = following("a", hw=1)
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
        bench = following("a", "b", "c", hw=1)
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=1, log_start=2)
        assert bench.log.log_start_offset == 0
        bench.runner.advance_as_follower(leader_epoch=6, high_watermark=3, log_start=2)
        assert bench.log.log_start_offset == 2

    @virtual
    async def test_a_follower_leads_nobody(self) -> None:
        bench = following("a")
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
            bench.log.start.advance(2)
        bench.lead((1, 2), epoch=6, version=8)
        await bench.sent("c")
        bench.log.start.advance(2)
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
        bench.log.start.advance(2)
        await bench.sent("c")
        assert bench.log.state.epoch_end(5) == (-1, -1)
        assert bench.ack(2, 3, last_epoch=5) == "DIVERGING"
        assert bench.runner.agreed_end(5) == (5, 2)
        assert bench.ack(2, 2, last_epoch=5) == "BELOW_LOG_START"


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
