"""Sessions of members: silence, times to give back, and when a member is believed to have let go."""

from dataclasses import replace

from milena.model.types import MonotonicMs, WallMs
from node.groups.member_sessions import NEVER, GroupSessions
from node.groups.members import newcomer
from raft_meta.machine.image import Group, GroupMember, PartitionSet

T = "1" * 32
ONE: PartitionSet = ((T, (0,)),)
BOTH: PartitionSet = ((T, (0, 1)),)


def ms(value: int) -> MonotonicMs:
    return MonotonicMs(value)


def group(*members: GroupMember) -> Group:
    return Group(
        group_id="g",
        version=1,
        generation=9,
        assignor="range",
        members=members,
        emptied_ms=WallMs(0),
    )


def member(held: PartitionSet = BOTH, target: PartitionSet = BOTH, **values: object) -> GroupMember:
    made = replace(newcomer("m1"), held=held, target=target, member_epoch=3)
    return replace(made, **values)  # type: ignore[arg-type]


def test_a_session_lasts_from_the_last_heartbeat() -> None:
    sessions = GroupSessions()
    sessions.look(group(member(session_ms=1_000)), ms(0))
    sessions.heard("m1", ms(500))
    assert sessions.next_due_ms() == 1_500
    assert sessions.expired(ms(1_499)) == []
    assert sessions.expired(ms(1_500)) == ["m1"]


def test_rest_members_have_no_session() -> None:
    sessions = GroupSessions()
    sessions.look(group(member(is_rest=True)), ms(0))
    assert sessions.next_due_ms() == NEVER


def test_the_time_to_give_back_runs_from_the_response_that_tells_the_member() -> None:
    sessions = GroupSessions()
    sessions.look(group(member()), ms(0))
    keeping = member(target=ONE, session_ms=100_000, rebalance_ms=2_000)
    sessions.look(group(keeping), ms(1_000))
    # It does not know of it yet.
    assert sessions.expired(ms(90_000)) == []
    assert sessions.told(keeping, ms(90_000))
    assert sessions.next_due_ms() == 92_000
    # Something else to give back does not begin it again.
    more = replace(keeping, target=())
    sessions.look(group(more), ms(91_000))
    assert not sessions.told(more, ms(91_000))
    assert sessions.expired(ms(91_999)) == []
    assert sessions.expired(ms(92_000)) == ["m1"]
    sessions.look(group(member(ONE, ONE, session_ms=100_000)), ms(92_000))
    assert sessions.expired(ms(93_000)) == []


def test_a_member_that_keeps_everything_is_in_no_hurry() -> None:
    sessions = GroupSessions()
    keeping = member(session_ms=100_000, rebalance_ms=2_000)
    sessions.look(group(keeping), ms(0))
    assert not sessions.told(keeping, ms(0))
    assert sessions.next_due_ms() == 100_000


def test_a_rest_member_gives_back_from_when_it_was_to() -> None:
    sessions = GroupSessions()
    sessions.look(group(member(target=ONE, is_rest=True, rebalance_ms=2_000)), ms(1_000))
    assert sessions.expired(ms(2_999)) == []
    assert sessions.expired(ms(3_000)) == ["m1"]


def test_a_node_that_was_not_listening_gives_everybody_full_times() -> None:
    sessions = GroupSessions()
    keeping = member(target=ONE, session_ms=1_000, rebalance_ms=1_000)
    sessions.look(group(keeping), ms(0))
    sessions.told(keeping, ms(0))
    sessions.extend(ms(5_000))
    assert sessions.expired(ms(5_999)) == []
    assert sessions.expired(ms(6_000)) == ["m1"]


def test_a_member_is_believed_once_it_was_told_what_to_give_back() -> None:
    sessions = GroupSessions()
    before, after = member(), member(target=ONE)
    sessions.look(group(before), ms(0))
    sessions.told(before, ms(1))
    sessions.look(group(after), ms(1))
    # Not yet: it may be about to take what it was told to be its own.
    assert sessions.given_back(after, 3, ONE) == ()
    sessions.told(after, ms(1))
    assert sessions.given_back(after, 3, BOTH) == ()
    assert sessions.given_back(after, 3, ONE) == ((T, (1,)),)


def test_a_member_is_not_believed_under_another_epoch_or_by_another_coordinator() -> None:
    sessions = GroupSessions()
    keeping = member(target=ONE)
    sessions.look(group(keeping), ms(0))
    assert sessions.given_back(keeping, 3, ONE) == ()
    sessions.told(keeping, ms(1))
    assert sessions.given_back(keeping, 2, ONE) == ()
    newer = replace(keeping, member_epoch=4)
    sessions.look(group(newer), ms(0))
    assert sessions.given_back(newer, 4, ONE) == ()


def test_who_is_gone_has_no_session() -> None:
    sessions = GroupSessions()
    sessions.look(group(member()), ms(0))
    sessions.look(None, ms(1))
    sessions.heard("m1", ms(2))
    assert sessions.member("m1") is None
    assert sessions.next_due_ms() == NEVER


def test_what_a_member_named_counts_under_the_same_epoch_only() -> None:
    sessions = GroupSessions()
    sessions.look(group(member()), ms(0))
    assert sessions.last_named("m1", 3) is None
    sessions.named("m1", 3, ONE)
    assert sessions.last_named("m1", 3) == ONE
    assert sessions.last_named("m1", 4) is None
    sessions.named("m2", 3, ONE)
    assert sessions.last_named("m2", 3) is None


def test_an_instance_id_is_held_by_a_member_that_was_heard_and_is_not_away() -> None:
    sessions = GroupSessions()
    sessions.look(group(member(instance_id="i1")), ms(0))
    # A new coordinator does not know whether the last one was told that the member is away.
    assert sessions.holder_of("i1", besides="m2") is None
    sessions.heard("m1", ms(1))
    assert sessions.holder_of("i1", besides="m2") is not None
    assert sessions.holder_of("i1", besides="m1") is None
    assert sessions.holder_of("i2", besides="m2") is None
    sessions.leave_for_now("m1")
    assert sessions.holder_of("i1", besides="m2") is None
    sessions.heard("m1", ms(2))
    assert sessions.holder_of("i1", besides="m2") is not None


def test_a_member_that_is_away_gives_back_at_once_and_keeps_its_session() -> None:
    sessions = GroupSessions()
    keeping = member(target=ONE, instance_id="i1", session_ms=10_000, rebalance_ms=5_000)
    sessions.look(group(keeping), ms(1_000))
    sessions.heard("m1", ms(1_000))
    assert sessions.expired(ms(2_000)) == []
    sessions.leave_for_now("m1")
    assert sessions.expired(ms(2_000)) == ["m1"]
    assert sessions.is_away("m1", ms(10_999))
    assert not sessions.is_away("m1", ms(11_000))
    assert not sessions.is_away("m2", ms(0))
