"""Quotas: what a caller may take, what happens above, and that others never notice."""

import asyncio

import pytest

from http_api.ports import ApiLimits
from http_api.quotas import BURST_S, CALLERS_MAX, WAIT_S_MAX, Quotas
from milena.model.errors import QuotaExceededError
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode
from tests.unit.http_api.quick.test_lane import connected, request

ALL = Allowed("ALL", "TOPIC", "t")


def test_a_rate_is_kept_however_it_is_asked_for():
    quotas = Quotas(ApiLimits(request_rate=10))
    taken, now_s = 0, 0.0
    while now_s < 20:
        if quotas.wait_s("a", now_s) == 0:
            quotas.charge("a", now_s, requests=1)
            taken += 1
        now_s += 0.01
    assert 10 * 20 <= taken <= 10 * (20 + BURST_S) + 1


def test_bytes_are_charged_afterwards_and_waited_for():
    quotas = Quotas(ApiLimits(consumer_byte_rate=1000))
    assert quotas.wait_s("a", 0) == 0
    quotas.charge("a", 0, bytes_out=10_000)
    assert quotas.wait_s("a", 0) == pytest.approx(10 - BURST_S)
    assert quotas.wait_s("a", 8) == pytest.approx(0)
    assert quotas.wait_s("b", 0) == 0


def test_what_is_not_bounded_costs_nothing():
    quotas = Quotas(ApiLimits(producer_byte_rate=10))
    quotas.charge("a", 0, requests=1000, bytes_out=10**9)
    assert quotas.wait_s("a", 0) == 0
    assert not Quotas(ApiLimits()).is_on


def test_a_short_wait_is_waited_and_a_long_one_told():
    quotas = Quotas(ApiLimits(request_rate=10))
    quotas.charge("a", 0, requests=21)
    assert quotas.short_wait_s("a", 0) == pytest.approx(0.1)
    quotas.charge("a", 0, requests=int(10 * WAIT_S_MAX) + 30)
    with pytest.raises(QuotaExceededError, match="a has used up") as raised:
        quotas.short_wait_s("a", 0)
    assert raised.value.retry_after_s == pytest.approx(3.3)


def test_as_many_callers_are_remembered_as_there_is_room_for():
    quotas = Quotas(ApiLimits(request_rate=1))
    quotas.charge("first", 0, requests=1000)
    for number in range(CALLERS_MAX):
        quotas.charge(str(number), 0, requests=1)
    assert quotas.wait_s("first", 0) == 0
    assert quotas.wait_s(str(CALLERS_MAX - 1), 0) == 0


async def at_once(api, headers, count: int):
    """So many writes that do not wait for each other."""
    body = {"records": [{"value": 1}]}
    return await asyncio.gather(
        *(api.post("/topics/t", body, headers=headers) for _ in range(count))
    )


async def test_a_greedy_caller_is_told_and_others_are_served():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, ApiLimits(request_rate=1)) as api:
        closed = ClosedNode(node)
        ann, bob = (closed.token(name, f"token{name}") for name in made(closed, "ann", "bob"))
        greedy = await at_once(api, ann, 50)
        told = [answer for answer in greedy if answer.status == 429]
        assert len(told) >= 50 // 2
        assert {answer.error for answer in told} == {(429, 42903)}
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in told)
        assert all("User:ann" in answer.json["message"] for answer in told)
        assert [answer.status for answer in await at_once(api, bob, 2)] == [200] * 2
        # A probe is nobody's.
        assert (await api.get("/livez")).status == 200


def made(closed: ClosedNode, *names: str) -> tuple[str, ...]:
    for name in names:
        closed.user(name, ALL)
    return names


async def test_the_lane_is_counted_as_well():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, ApiLimits(request_rate=1)) as api, connected(api) as client:
        seen = [(await client.ask(request()))[0].split()[1] for _ in range(20)]
    assert node.quick_requests
    assert seen[:2] == ["200"] * 2
    assert seen.count("429") >= 10


async def test_who_sends_too_many_bytes_waits_for_the_next_request():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, ApiLimits(producer_byte_rate=1000)) as api:
        big = {"records": [{"value": "x" * 10_000}]}
        assert (await api.post("/topics/t", big)).status == 200
        assert (await api.post("/topics/t", big)).error == (429, 42903)


async def test_who_is_sent_too_many_bytes_waits_for_the_next_answer():
    node = FakeNode()
    node.add_topic("t")
    node.append("t", 0, [b"x" * 10_000])
    async with serving(node, ApiLimits(consumer_byte_rate=1000)) as api:
        path = "/topics/t/partitions/0/records"
        accept = {"Accept": "application/vnd.kafka.binary.v2+json"}
        assert (await api.get(path, headers=accept)).status == 200
        assert (await api.get(path, headers=accept)).error == (429, 42903)
