"""A member of a classic group, by itself: its row, its session, and the protocols of several members."""

from milena.model.types import MonotonicMs
from node.groups.classic.calls import JoinRequest
from node.groups.classic.member import Member, chosen_protocol, common_protocols
from node.groups.member_sessions import NEVER
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ClassicMember

NOW = MonotonicMs(1_000)


def member(member_id: str, *protocols: str) -> Member:
    request = JoinRequest(
        group_id="g",
        member_id=member_id,
        client_id="c",
        host="h",
        session_ms=10_000,
        rebalance_ms=60_000,
        protocol_type="consumer",
        protocols=tuple((name, name.encode()) for name in protocols),
    )
    return Member.of_join(member_id, request, NOW)


def known(member_id: str) -> Member:
    row = ClassicMember(
        member_id=member_id,
        instance_id=None,
        client_id="c",
        host="h",
        session_ms=10_000,
        rebalance_ms=60_000,
        assignment=b"a",
    )
    return Member.of_row(row, NOW)


def test_most_members_choose_among_the_protocols_that_all_support() -> None:
    members = [
        member("1", "range", "sticky"),
        member("2", "sticky", "range"),
        member("3", "sticky", "range", "x"),
    ]
    assert common_protocols(members) == {"range", "sticky"}
    assert chosen_protocol(members) == "sticky"


def test_of_two_protocols_with_as_many_votes_the_first_members_favourite_is_chosen() -> None:
    assert chosen_protocol([member("1", "a", "b"), member("2", "b", "a")]) == "a"


def test_members_without_a_common_protocol_choose_none() -> None:
    assert chosen_protocol([member("1", "a"), member("2", "b")]) == ""


def test_a_member_that_has_not_joined_here_has_no_say() -> None:
    assert common_protocols([known("1")]) is None
    assert chosen_protocol([known("1"), member("2", "b")]) == "b"


def test_a_member_that_waits_for_a_response_does_not_expire() -> None:
    one = member("1", "a")
    assert one.due_ms == NOW + 10_000
    one.joining = 7
    assert one.due_ms == NEVER
    one.joining, one.syncing = None, 8
    assert one.due_ms == NEVER


def test_a_row_survives_the_way_through_a_member() -> None:
    row = known("1").row(has_assignment=True)
    assert Member.of_row(row, NOW).row(has_assignment=True) == row
    assert known("1").row(has_assignment=False).assignment == b""


def test_the_longest_rebalance_timeout_is_bounded() -> None:
    one = member("1", "a")
    asked = JoinRequest(
        group_id="g",
        member_id="1",
        session_ms=10_000,
        rebalance_ms=2**31 - 1,
        protocol_type="consumer",
        protocols=(("b", b""),),
    )
    one.update(asked)
    assert one.rebalance_ms == min(2**31 - 1, group_rules.DURATION_MS_MAX)
    assert one.names == {"b"}
