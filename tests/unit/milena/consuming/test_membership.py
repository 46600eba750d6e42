"""The rules of a member's life, one by one."""

import itertools

import pytest

from milena.consuming.membership import Beat, BeatAnswer, GroupMembership
from milena.consuming.options import ConsumerOptions, Subscription
from milena.records import TopicPartition

A, B, C = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
def member():
    ids = itertools.count(1)
    return GroupMembership(
        ConsumerOptions(group="g"), Subscription(topics=("t",)), lambda: f"m{next(ids)}"
    )


def answer(member, *assignment, epoch=1):
    return BeatAnswer(
        member_id=member.member_id,
        member_epoch=epoch,
        generation=epoch,
        heartbeat_interval_ms=500,
        assignment=frozenset(assignment),
    )


def hear(member, *assignment, epoch=1):
    return member.on_answer(member.beat(is_held=False), answer(member, *assignment, epoch=epoch))


def test_the_first_heartbeat_joins_and_says_everything(member):
    beat = member.beat(is_held=True)
    assert (beat.member_epoch, beat.wait_ms) == (0, 0)
    assert beat.subscription == Subscription(topics=("t",))
    assert beat.session_timeout_ms == 45_000
    assert not member.is_due


def test_later_heartbeats_say_what_is_owned_and_wait(member):
    hear(member, A)
    member.take({A})
    assert member.beat(is_held=True) == Beat(
        member_id="m1", member_epoch=1, owned=frozenset({A}), wait_ms=500
    )
    assert member.beat(is_held=False).wait_ms == 0


def test_what_is_assigned_is_taken_and_what_is_not_any_more_is_given_back(member):
    assert hear(member, A, B)
    assert (member.added, member.revoked) == ({A, B}, frozenset())
    member.take({A, B})
    assert not member.is_due
    assert hear(member, B, C, epoch=2)
    assert (member.added, member.revoked) == ({C}, {A})
    assert A in member.beat(is_held=True).owned, "until the application is done with it"
    member.give_back({A})
    assert A not in member.beat(is_held=True).owned


def test_what_may_be_taken_any_moment_is_not_said_to_be_given_back(member):
    hear(member, A)
    member.take({A})
    hear(member, A, B, epoch=2)
    assert member.beat(is_held=True).owned == {A, B}
    hear(member, A, epoch=2)
    assert member.beat(is_held=True).owned == {A}


def test_nothing_is_taken_that_is_not_assigned(member):
    hear(member, A)
    with pytest.raises(AssertionError):
        member.take({B})


def test_an_answer_to_an_earlier_epoch_or_life_changes_nothing(member):
    early = member.beat(is_held=False)
    hear(member, A, epoch=3)
    assert not member.on_answer(early, answer(member, B, epoch=2))
    assert member.assignment == {A}
    member.lose()
    assert not hear_late(member, early)
    member.forget()
    assert not hear_late(member, early)
    assert member.assignment == frozenset()


def hear_late(member, beat):
    return member.on_answer(
        beat,
        BeatAnswer(
            member_id="m1",
            member_epoch=9,
            generation=9,
            heartbeat_interval_ms=1,
            assignment=frozenset({A}),
        ),
    )


def test_a_loss_silences_it_until_the_application_knows_and_then_it_is_somebody_new(member):
    hear(member, A)
    member.take({A})
    member.lose()
    assert member.is_due
    assert member.owned == {A}
    assert (member.added, member.revoked) == (frozenset(), frozenset())
    assert member.beat(is_held=True) is None
    assert member.farewell() is None
    member.forget()
    beat = member.beat(is_held=True)
    assert (beat.member_id, beat.member_epoch, beat.owned) == ("m2", 0, frozenset())
    assert beat.subscription is not None


def test_a_new_subscription_is_said_until_it_was_answered(member):
    hear(member, A)
    assert member.beat(is_held=True).subscription is None
    member.subscribe(Subscription(pattern="x.*"))
    beat = member.beat(is_held=True)
    assert beat.subscription == Subscription(pattern="x.*")
    assert (beat.member_epoch, beat.wait_ms) == (1, 0)
    member.on_answer(beat, answer(member, A))
    assert member.beat(is_held=True).subscription is None


def test_only_a_member_says_farewell_and_none_that_is_to_come_back():
    static = GroupMembership(
        ConsumerOptions(group="g", instance_id="i"), Subscription(topics=("t",)), lambda: "m"
    )
    assert static.farewell() is None
    hear(static, A)
    assert static.farewell() is None
    assert static.beat(is_held=True).instance_id is None, "it was told"


def test_farewell_of_a_member(member):
    assert member.farewell() is None
    hear(member, A)
    assert member.farewell() == Beat(member_id="m1", member_epoch=-1, owned=frozenset())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "not the name"),
        ({"assignor": "best"}, "assignor='best'"),
        ({"session_timeout_ms": 10}, "session_timeout_ms=10"),
        ({"max_poll_records": 0}, "max_poll_records=0"),
        ({"fetch_bytes": 2, "buffer_bytes": 1}, "buffer_bytes=1"),
    ],
)
def test_options_out_of_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ConsumerOptions(**options)


def test_a_start_that_is_no_position_is_refused():
    with pytest.raises(TypeError, match="start='latest' is not a position"):
        ConsumerOptions(start="latest")


def test_a_list_of_topics_is_told_to_be_taken_apart():
    with pytest.raises(TypeError, match="names of topics one by one"):
        Subscription(topics=(["t"],))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "topics or to a pattern"),
        ({"topics": ("t",), "pattern": "x"}, "topics or to a pattern"),
        ({"pattern": "("}, "not a regular expression"),
    ],
)
def test_subscriptions_that_say_nothing_or_too_much_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Subscription(**fields)
