"""What is sent to nodes about groups, and what their answers become."""

import pytest

from milena.cluster.group_views import GroupOffset
from milena.cluster.http import HttpSession
from milena.consuming.group_calls import GroupCalls
from milena.consuming.membership import Beat
from milena.consuming.options import Subscription
from milena.errors import (
    MemberUnknownError,
    NotNowError,
    StaleMemberError,
    UnexpectedAnswerError,
    UnreachableError,
)
from milena.records import TopicPartition
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOIN = Beat(
    member_id="m",
    member_epoch=0,
    owned=frozenset(),
    subscription=Subscription(topics=("t",)),
    client_id="app",
    assignor="sticky",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=60_000,
)


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
async def calls(api):
    async with HttpSession(api.url, timeout_s=5) as http:
        yield GroupCalls(http)


async def test_joining_says_everything_and_hears_what_is_assigned(api, calls):
    answer = await calls.heartbeat("my group", JOIN, session_ms=45_000)
    assert answer.assignment == {T0, T1}
    assert (answer.member_id, answer.member_epoch, answer.generation) == ("m", 1, 1)
    assert answer.heartbeat_interval_ms == 3_000
    assert api.groups.bodies == [
        (
            "/groups/my group/heartbeat",
            {
                "member_id": "m",
                "member_epoch": 0,
                "owned": [],
                "topics": ["t"],
                "client_id": "app",
                "assignor": "sticky",
                "session_timeout_ms": 45_000,
                "rebalance_timeout_ms": 60_000,
            },
        )
    ]


async def test_staying_says_what_is_owned_and_leaving_only_that(api, calls):
    await calls.heartbeat("g", JOIN, session_ms=45_000)
    stay = Beat(member_id="m", member_epoch=1, owned=frozenset({T1, T0}))
    await calls.heartbeat("g", stay, session_ms=45_000)
    left = await calls.heartbeat(
        "g", Beat(member_id="m", member_epoch=-1, owned=frozenset()), session_ms=45_000
    )
    assert left.assignment == frozenset()
    assert [body for _, body in api.groups.bodies[1:]] == [
        {"member_id": "m", "member_epoch": 1, "owned": [{"topic": "t", "partitions": [0, 1]}]},
        {"member_id": "m", "member_epoch": -1},
    ]


async def test_a_pattern_and_an_instance_are_said(api, calls):
    beat = Beat(
        member_id="m",
        member_epoch=0,
        owned=frozenset(),
        subscription=Subscription(pattern="a.*"),
        instance_id="i",
        session_timeout_ms=1_000,
        rebalance_timeout_ms=1_000,
    )
    await calls.heartbeat("g", beat, session_ms=1_000)
    body = api.groups.bodies[0][1]
    assert body["pattern"] == "a.*"
    assert "topics" not in body
    assert body["instance_id"] == "i"


async def test_a_heartbeat_is_held_as_long_as_it_asks_and_goes_on_to_another_node(
    api, unused_tcp_port
):
    gone = f"http://127.0.0.1:{unused_tcp_port}"
    async with HttpSession([gone, api.url], timeout_s=5) as http:
        calls = GroupCalls(http)
        await calls.heartbeat("g", JOIN, session_ms=45_000)
        beat = Beat(member_id="m", member_epoch=1, owned=frozenset({T0, T1}), wait_ms=30)
        await calls.heartbeat("g", beat, session_ms=45_000)
    assert api.requests[-1][1] == "/groups/g/heartbeat"


async def test_commits_and_what_is_committed(api, calls):
    assert await calls.committed("g", ["t"]) == {}
    await calls.heartbeat("g", JOIN, session_ms=45_000)
    await calls.commit(
        "g", {T1: 5, T0: 3}, member_id="m", member_epoch=1, topic_tags={T1: "9f3a12bc44de"}
    )
    assert api.groups.bodies[-1][1] == {
        "member_id": "m",
        "member_epoch": 1,
        "offsets": [
            {"topic": "t", "partition": 0, "offset": 3},
            {"topic": "t", "partition": 1, "offset": 5, "topic_id": "9f3a12bc44de"},
        ],
    }
    expected = {T0: GroupOffset(offset=3), T1: GroupOffset(offset=5)}
    assert await calls.committed("g", ["t"]) == expected
    assert await calls.committed("g") == expected
    assert await calls.committed("g", ["u"]) == {}


async def test_refusals_have_their_own_errors(api, calls):
    await calls.heartbeat("g", JOIN, session_ms=45_000)
    with pytest.raises(StaleMemberError):
        await calls.commit("g", {T0: 1}, member_id="m", member_epoch=9, topic_tags={})
    with pytest.raises(MemberUnknownError):
        await calls.commit("g", {T0: 1}, member_id="x", member_epoch=1, topic_tags={})
    with pytest.raises(MemberUnknownError):
        await calls.heartbeat(
            "g", Beat(member_id="x", member_epoch=1, owned=frozenset()), session_ms=45_000
        )
    api.answer = (503, {"error_code": 50310, "message": "not here"})
    with pytest.raises(NotNowError):
        await calls.commit("g", {T0: 1}, member_id=None, member_epoch=None, topic_tags={})


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"offsets": []},
        {"offsets": {"t": []}},
        {"offsets": {"t": {"x": {"offset": 1}}}},
        {"offsets": {"t": {"0": {"offset": "1"}}}},
        {"offsets": {"t": {"0": {}}}},
    ],
)
async def test_answers_of_another_shape_are_one_clear_error(api, calls, body):
    api.answer = (200, body)
    with pytest.raises(UnexpectedAnswerError):
        await calls.committed("g")


async def test_no_node_is_an_error_that_may_pass(unused_tcp_port):
    async with HttpSession(f"http://127.0.0.1:{unused_tcp_port}", timeout_s=5) as http:
        with pytest.raises(UnreachableError):
            await GroupCalls(http).commit(
                "g", {T0: 1}, member_id="m", member_epoch=1, topic_tags={}
            )
