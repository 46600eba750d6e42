"""Rules of a partition leader: what counts as an acknowledgement, what is committed, who is in sync."""

import pytest

from node.replica.leader import FetchVerdict, PartitionLeader
from raft_meta.machine.image import Broker
from tests.support.clusters.leaders import broker, brokers, leader, partition

EVERYONE = brokers(1, 2, 3)


def judge(core: PartitionLeader, **changes: object) -> FetchVerdict:
    asked: dict[str, object] = {
        "follower": 2,
        "broker_epoch": 20,
        "leader_epoch": 5,
        "offset": 10,
        "last_epoch": 4,
        "log_start": 0,
        "epoch_end": (4, 10),
        "brokers": EVERYONE,
    }
    return core.judge_fetch(**{**asked, **changes})  # type: ignore[arg-type]


def fetch(core: PartitionLeader, follower: int, offset: int, now_ms: int = 0) -> bool:
    return core.on_accepted_fetch(
        follower=follower, broker_epoch=follower * 10, offset=offset, now_ms=now_ms
    )


def append(core: PartitionLeader, log_end: int, now_ms: int = 0) -> None:
    core.on_appended(log_end, now_ms=now_ms)
    core.on_stored(log_end)


class TestJudgeFetch:
    def test_position_on_our_log_is_accepted(self) -> None:
        assert judge(leader()) is FetchVerdict.ACCEPTED

    def test_stale_leader_epoch_is_refused(self) -> None:
        assert judge(leader(), leader_epoch=4) is FetchVerdict.STALE_LEADER_EPOCH

    def test_future_leader_epoch_is_refused(self) -> None:
        assert judge(leader(), leader_epoch=6) is FetchVerdict.UNKNOWN_LEADER_EPOCH

    @pytest.mark.parametrize("epoch", [19, 21])
    def test_another_life_of_the_broker_is_refused(self, epoch: int) -> None:
        assert judge(leader(), broker_epoch=epoch) is FetchVerdict.STALE_BROKER_EPOCH

    def test_unknown_broker_is_refused(self) -> None:
        assert judge(leader(), follower=9) is FetchVerdict.STALE_BROKER_EPOCH

    def test_broker_without_a_replica_is_refused(self) -> None:
        everyone = brokers(1, 2, 3, 4)
        verdict = judge(leader(), follower=4, broker_epoch=40, brokers=everyone)
        assert verdict is FetchVerdict.NOT_A_REPLICA

    def test_offset_below_the_log_start_is_told_so(self) -> None:
        assert judge(leader(), offset=3, log_start=4) is FetchVerdict.BELOW_LOG_START

    def test_empty_follower_at_the_log_start_is_accepted(self) -> None:
        verdict = judge(leader(), offset=4, log_start=4, last_epoch=-1, epoch_end=(-1, -1))
        assert verdict is FetchVerdict.ACCEPTED

    def test_who_ends_at_the_log_start_with_an_epoch_that_we_know_nothing_of_starts_anew(
        self,
    ) -> None:
        def verdict(offset: int) -> FetchVerdict:
            return judge(leader(), offset=offset, log_start=4, last_epoch=2, epoch_end=(-1, -1))

        assert verdict(4) is FetchVerdict.BELOW_LOG_START
        assert verdict(5) is FetchVerdict.DIVERGING

    def test_epoch_that_we_do_not_have_diverges(self) -> None:
        # KIP-595: the greatest epoch <= theirs on our log is another one.
        assert judge(leader(), last_epoch=4, epoch_end=(3, 8)) is FetchVerdict.DIVERGING

    def test_offset_beyond_the_end_of_its_epoch_diverges(self) -> None:
        assert judge(leader(), offset=11, epoch_end=(4, 10)) is FetchVerdict.DIVERGING


class TestHighWatermark:
    def test_advances_to_the_least_stored_end_of_the_isr(self) -> None:
        core = leader()
        append(core, 20)
        assert not fetch(core, 2, 20)
        assert fetch(core, 3, 15)
        assert core.high_watermark == 15

    def test_new_leader_knows_nobodys_end(self) -> None:
        core = leader(high_watermark=4)
        append(core, 20)
        fetch(core, 2, 20)
        assert core.high_watermark == 4, "broker 3 has not acknowledged in this epoch"

    def test_unsynced_records_of_the_leader_do_not_count(self) -> None:
        core = leader()
        core.on_appended(20, now_ms=0)
        fetch(core, 2, 20)
        fetch(core, 3, 20)
        assert core.high_watermark == 10
        assert core.on_stored(20)
        assert core.high_watermark == 20

    def test_does_not_advance_below_min_insync(self) -> None:
        core = leader((1,))
        append(core, 20)
        assert core.high_watermark == 10
        assert not core.has_enough_in_sync

    def test_never_falls(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20)
        fetch(core, 3, 20)
        fetch(core, 2, 12)
        assert core.high_watermark == 20

    def test_follower_outside_the_isr_does_not_hold_it_back(self) -> None:
        core = leader((1, 2))
        append(core, 20)
        fetch(core, 3, 0)
        assert fetch(core, 2, 20)
        assert core.high_watermark == 20

    def test_established_once_it_reached_the_start_of_the_epoch(self) -> None:
        core = leader(high_watermark=4)
        assert not core.is_established
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        assert core.is_established


class TestIsrUnion:
    """The union rule: a proposed ISR counts until its fate is known."""

    def lagging(self) -> PartitionLeader:
        """Broker 3 is out of sync; then it catches up and is proposed."""
        core = leader((1, 2))
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        return core

    def test_joining_member_counts_from_the_proposal_on(self) -> None:
        core = self.lagging()
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        assert proposal.members == ((1, 10), (2, 20), (3, 30))
        append(core, 20)
        assert not fetch(core, 2, 20), "broker 3 may be in the ISR by now"
        assert core.high_watermark == 10

    def test_unknown_fate_goes_on_counting(self) -> None:
        core = self.lagging()
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        append(core, 20)
        fetch(core, 2, 20)
        assert not core.on_proposal_done(proposal, is_definite_refusal=False)
        assert core.high_watermark == 10

    def test_definite_refusal_stops_counting(self) -> None:
        core = self.lagging()
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        append(core, 20)
        fetch(core, 2, 20)
        assert core.on_proposal_done(proposal, is_definite_refusal=True)
        assert core.high_watermark == 20

    def test_newer_partition_epoch_settles_every_older_proposal(self) -> None:
        core = self.lagging()
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        append(core, 20)
        fetch(core, 2, 20)
        core.on_proposal_done(proposal, is_definite_refusal=False)
        assert core.on_image(partition((1, 2), partition_epoch=8), min_insync=2)
        assert core.high_watermark == 20

    def test_proposal_of_unknown_fate_is_followed_by_another(self) -> None:
        core = self.lagging()
        first = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert first is not None
        core.on_proposal_done(first, is_definite_refusal=False)
        fenced = {**EVERYONE, 3: broker(3, fenced=True)}
        second = core.next_proposal(now_ms=0, brokers=fenced)
        assert second is not None, "the image must move, or the union stays for ever"
        assert second.broker_ids == {1, 2}

    def test_one_proposal_at_a_time(self) -> None:
        core = self.lagging()
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is not None
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is None

    def test_min_insync_counts_the_committed_set_only(self) -> None:
        core = leader((1,))
        fetch(core, 2, 10)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is not None
        append(core, 20)
        fetch(core, 2, 20)
        assert core.high_watermark == 10, "the proposal may be refused"

    def test_shrinking_member_counts_until_the_image_moves(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20, now_ms=9_000)
        proposal = core.next_proposal(now_ms=10_001, brokers=EVERYONE)
        assert proposal is not None
        assert proposal.broker_ids == {1, 2}
        assert core.high_watermark == 10
        assert core.on_image(partition((1, 2), partition_epoch=8), min_insync=2)
        assert core.high_watermark == 20


class TestIsrMembership:
    def test_joins_when_caught_up_to_the_high_watermark(self) -> None:
        core = leader((1, 2))
        append(core, 20)
        fetch(core, 2, 20)
        fetch(core, 3, 19)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is None
        fetch(core, 3, 20)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is not None

    def test_does_not_join_before_the_start_of_the_epoch(self) -> None:
        core = leader((1, 2), high_watermark=4)
        fetch(core, 3, 6)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is None

    @pytest.mark.parametrize(
        "other", [broker(3, fenced=True), broker(3, draining=True), broker(3, epoch=31)]
    )
    def test_fenced_draining_or_restarted_broker_does_not_join(self, other: object) -> None:
        core = leader((1, 2))
        fetch(core, 3, 10)
        assert core.next_proposal(now_ms=0, brokers={**EVERYONE, 3: other}) is None  # type: ignore[dict-item]

    def test_leaves_when_not_caught_up_for_too_long(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20, now_ms=5_000)
        fetch(core, 3, 15, now_ms=5_000)
        assert core.next_proposal(now_ms=10_000, brokers=EVERYONE) is None
        proposal = core.next_proposal(now_ms=10_001, brokers=EVERYONE)
        assert proposal is not None
        assert proposal.broker_ids == {1, 2}

    def test_follower_that_reaches_what_was_written_at_its_last_fetch_is_caught_up(self) -> None:
        # It may never be exactly at the end of a busy log, and is in sync all the same.
        core = leader()
        for step in range(1, 30):
            append(core, 10 + 10 * step, 1_000 * step)
            fetch(core, 2, 10 * step, now_ms=1_000 * step)
            fetch(core, 3, 10 * step, now_ms=1_000 * step)
        assert core.next_proposal(now_ms=29_500, brokers=EVERYONE) is None

    def test_follower_of_a_quiet_log_stays_in_sync(self) -> None:
        # Its fetches repeat no position that has not changed, so nothing is heard of it for hours.
        core = leader()
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        assert core.next_proposal(now_ms=3_600_000, brokers=EVERYONE) is None

    def test_lag_begins_with_the_first_append_that_it_does_not_have(self) -> None:
        core = leader()
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        append(core, 20, 3_600_000)
        fetch(core, 2, 20, now_ms=3_600_001)
        assert core.next_proposal(now_ms=3_610_000, brokers=EVERYONE) is None
        proposal = core.next_proposal(now_ms=3_610_001, brokers=EVERYONE)
        assert proposal is not None
        assert proposal.broker_ids == {1, 2}

    def test_whom_the_controller_took_out_is_not_wanted_back_at_once(self) -> None:
        # Else the two undo each other's changes as fast as the quorum takes them.
        core = leader()
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        core.on_image(partition((1, 2), partition_epoch=8), min_insync=2)
        assert core.next_proposal(now_ms=5_000, brokers=EVERYONE) is None
        assert core.next_proposal(now_ms=5_999, brokers=EVERYONE) is None
        assert core.next_proposal(now_ms=6_000, brokers=EVERYONE) is not None

    def test_whom_the_leader_itself_took_out_comes_back_when_it_has_caught_up(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20, now_ms=9_000)
        assert core.next_proposal(now_ms=10_001, brokers=EVERYONE) is not None
        core.on_image(partition((1, 2), partition_epoch=8), min_insync=2)
        core.in_flight = None
        fetch(core, 3, 20, now_ms=10_002)
        assert core.next_proposal(now_ms=10_002, brokers=EVERYONE) is not None

    def test_who_joins_may_stay(self) -> None:
        # A busy leader with a slow disk: its high watermark lags behind its log end. A follower that has the high
        # watermark, and has not been at the log end for longer than it may, would join and be taken out in turns.
        core = leader((1,), min_insync=1)
        core.on_appended(40, now_ms=0)
        core.on_stored(20)
        fetch(core, 3, 15, now_ms=20_000)
        fetch(core, 3, 20, now_ms=20_500)
        assert core.next_proposal(now_ms=20_500, brokers=EVERYONE) is None
        fetch(core, 3, 40, now_ms=21_000)
        proposal = core.next_proposal(now_ms=21_000, brokers=EVERYONE)
        assert proposal is not None
        core.on_image(partition((1, 3), partition_epoch=8), min_insync=1)
        core.in_flight = None
        assert core.next_proposal(now_ms=21_001, brokers=EVERYONE) is None

    def test_a_follower_without_room_may_stay_but_not_join(self) -> None:
        core = leader((1, 2))
        fetch(core, 2, 10)
        fetch(core, 3, 10)
        for follower in (2, 3):
            core.on_follower_room(follower, has_room=False)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is None
        core.on_follower_room(3, has_room=True)
        assert core.next_proposal(now_ms=0, brokers=EVERYONE) is not None

    def test_leader_never_proposes_itself_out(self) -> None:
        core = leader((1,))
        assert core.next_proposal(now_ms=10**9, brokers={1: broker(1, fenced=True)}) is None

    def test_member_that_lost_acknowledged_records_leaves_at_once(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20)
        fetch(core, 3, 20)
        fetch(core, 3, 12)
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        assert proposal.broker_ids == {1, 2}

    def test_expelled_member_joins_again_when_it_has_caught_up(self) -> None:
        core = leader()
        append(core, 20)
        fetch(core, 2, 20)
        fetch(core, 3, 20)
        fetch(core, 3, 12)
        proposal = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert proposal is not None
        core.on_proposal_done(proposal, is_definite_refusal=False)
        core.on_image(partition((1, 2), partition_epoch=8), min_insync=2)
        fetch(core, 3, 20)
        again = core.next_proposal(now_ms=0, brokers=EVERYONE)
        assert again is not None
        assert again.broker_ids == {1, 2, 3}


class TestDamage:
    @pytest.mark.parametrize(
        ("second", "stored_end", "expected"),
        [
            (broker(2), 6, True),
            (broker(2), 5, False),
            (broker(2), None, True),
            (broker(2, 21), 5, True),
            (broker(2, fenced=True), 6, False),
            (None, 6, False),
        ],
    )
    def test_a_live_replica_may_restore_damage_unless_its_log_ends_there(
        self, second: Broker | None, stored_end: int | None, *, expected: bool
    ) -> None:
        core = leader(isr=(1,))
        fetch(core, 3, 10)
        if stored_end is not None:
            fetch(core, 2, stored_end)
        everyone = {i: b for i, b in ({**EVERYONE, 2: second}).items() if b is not None}
        assert core.may_restore(5, 3, everyone) is expected

    def test_a_member_of_the_isr_may_restore_damage(self) -> None:
        core = leader(isr=(1, 2))
        assert core.may_restore(5, 3, EVERYONE)
        assert not core.may_restore(5, 2, brokers(1, 2))
