"""Rules of heartbeats: what is not said stays, who may speak, and how long an answer is held back."""

from dataclasses import replace

import pytest

from http_api.ports.groups import Heartbeat
from milena.model.errors import (
    GroupLimitError,
    InvalidConsumerError,
    MemberFencedError,
    MemberNotFoundError,
    StaleMemberEpochError,
)
from milena.model.types import WallMs
from node.groups import heartbeat_rules
from node.groups.heartbeat_rules import REMINDER_MS
from node.groups.members import newcomer
from raft_meta.machine.groups.group_rules import MEMBERS_MAX
from raft_meta.machine.image import Group, GroupMember, PartitionSet

T = "1" * 32
ONE: PartitionSet = ((T, (0,)),)
BOTH: PartitionSet = ((T, (0, 1)),)


def heartbeat(epoch: int = 3, **said: object) -> Heartbeat:
    given: dict[str, object] = {"client_id": "", "host": "", "wait_ms": 60_000, **said}
    return Heartbeat(
        group_id="g",
        member_id="m1",
        member_epoch=epoch,
        **given,  # type: ignore[arg-type]
    )


def member(**values: object) -> GroupMember:
    made = replace(newcomer("m1"), topics=("t",), held=BOTH, target=BOTH, member_epoch=3)
    return replace(made, **values)  # type: ignore[arg-type]


def test_what_a_heartbeat_does_not_say_stays() -> None:
    assert heartbeat_rules.wanted_by(heartbeat(), member()) is None
    join = heartbeat_rules.wanted_by(heartbeat(session_timeout_ms=9_000), member())
    assert join is not None
    assert join.member == member(session_ms=9_000)


def test_topics_and_pattern_are_said_together() -> None:
    join = heartbeat_rules.wanted_by(heartbeat(pattern="a.*"), member())
    assert join is not None
    assert (join.member.topics, join.member.pattern) == ((), "a.*")


def test_who_joins_says_where_from_and_later_heartbeats_do_not_change_it() -> None:
    assert heartbeat_rules.wanted_by(heartbeat(host="b"), member(host="a")) is None
    join = heartbeat_rules.wanted_by(heartbeat(0, host="b", topics=("t",)), None)
    assert join is not None
    assert join.member.host == "b"


def test_a_group_has_room_for_so_many() -> None:
    heartbeat_rules.check_room("g", MEMBERS_MAX - 1)
    with pytest.raises(GroupLimitError):
        heartbeat_rules.check_room("g", MEMBERS_MAX)


def test_nobody_speaks_for_a_rest_consumer_or_under_an_epoch_to_come() -> None:
    with pytest.raises(InvalidConsumerError):
        heartbeat_rules.check_kind("g", member(is_rest=True))
    heartbeat_rules.check_not_ahead(heartbeat(3), member())
    with pytest.raises(StaleMemberEpochError):
        heartbeat_rules.check_not_ahead(heartbeat(4), member())
    with pytest.raises(InvalidConsumerError):
        heartbeat_rules.check_epoch(heartbeat(-2))


def test_an_answer_is_held_back_only_from_who_knows_what_holds() -> None:
    hold_back_ms = heartbeat_rules.hold_back_ms
    assert hold_back_ms(heartbeat(), member(), BOTH, is_told=False) == 0
    assert hold_back_ms(heartbeat(2), member(), BOTH, is_told=True) == 0
    assert hold_back_ms(heartbeat(), member(), BOTH, is_told=True) == member().session_ms // 2
    assert hold_back_ms(heartbeat(wait_ms=70), member(), None, is_told=True) == 70


def test_who_has_yet_to_give_back_is_reminded() -> None:
    asked = member(target=ONE)
    assert heartbeat_rules.hold_back_ms(heartbeat(), asked, BOTH, is_told=True) == REMINDER_MS
    assert heartbeat_rules.hold_back_ms(heartbeat(), asked, ONE, is_told=True) > REMINDER_MS


def test_a_member_that_is_gone_hears_whether_another_process_is_in_its_place() -> None:
    successor = replace(member(instance_id="i"), member_id="m2")
    group = Group(
        group_id="g",
        version=1,
        generation=3,
        assignor="range",
        members=(successor,),
        emptied_ms=WallMs(0),
    )
    absent = heartbeat_rules.absent
    assert isinstance(absent(heartbeat(), group, was_succeeded=False), MemberNotFoundError)
    taken = absent(heartbeat(instance_id="i"), group, was_succeeded=False)
    assert isinstance(taken, MemberFencedError)
    assert isinstance(absent(heartbeat(), group, was_succeeded=True), MemberFencedError)
