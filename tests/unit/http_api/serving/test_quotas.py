"""Quotas: what a caller may take, what happens above, and that others never notice."""

import asyncio

import pytest
from immutables import Map

from http_api.ports.node import ApiLimits
from http_api.serving.quotas import (
    BURST_S,
    CALLERS_MAX,
    FULL_RETRY_S,
    WAIT_S_MAX,
    Bound,
    Payer,
    Quotas,
    payer_of,
)
from milena.model.errors import QuotaExceededError
from milena.model.quotas import QuotaKey
from raft_meta.machine.commands import AlterQuota
from raft_meta.machine.image import Quota
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode
from tests.unit.http_api.quick.test_lane import RECORD, connected, request

ALL = Allowed("ALL", "TOPIC", "t")


def known_as(user: str, client_id: str | None = None) -> Payer:
    return payer_of(f"User:{user}", "10.0.0.1", client_id)


ANN, BOB = known_as("ann"), known_as("bob")


def test_a_rate_is_kept_however_it_is_asked_for():
    quotas = Quotas(ApiLimits(request_rate=10))
    taken, now_s = 0, 0.0
    while now_s < 20:
        if quotas.wait_s(ANN, now_s) == 0:
            quotas.charge(ANN, now_s, requests=1)
            taken += 1
        now_s += 0.01
    assert 10 * 20 <= taken <= 10 * (20 + BURST_S) + 1


def test_bytes_are_charged_afterwards_and_waited_for():
    quotas = Quotas(ApiLimits(consumer_byte_rate=1000))
    assert quotas.wait_s(ANN, 0) == 0
    quotas.charge(ANN, 0, bytes_out=10_000)
    assert quotas.wait_s(ANN, 0) == pytest.approx(10 - BURST_S)
    assert quotas.wait_s(ANN, 8) == pytest.approx(0)
    assert quotas.wait_s(BOB, 0) == 0


def test_what_is_not_bounded_costs_nothing():
    quotas = Quotas(ApiLimits(producer_byte_rate=10))
    quotas.charge(ANN, 0, requests=1000, bytes_out=10**9)
    assert quotas.wait_s(ANN, 0) == 0
    assert not Quotas(ApiLimits()).is_on


def test_a_short_wait_is_waited_and_a_long_one_told():
    quotas = Quotas(ApiLimits(request_rate=10))
    quotas.charge(ANN, 0, requests=21)
    assert quotas.short_wait_s(ANN, 0) == pytest.approx(0.1)
    quotas.charge(ANN, 0, requests=int(10 * WAIT_S_MAX) + 30)
    with pytest.raises(QuotaExceededError, match="User:ann has used up") as raised:
        quotas.short_wait_s(ANN, 0)
    assert raised.value.retry_after_s == pytest.approx(3.3)


def test_as_many_callers_are_remembered_as_there_is_room_for():
    quotas = Quotas(ApiLimits(request_rate=1))
    quotas.charge(known_as("first"), 0, requests=1000)
    for number in range(CALLERS_MAX):
        quotas.charge(known_as(str(number)), 0, requests=1)
    assert quotas.wait_s(known_as("first"), 0) == 0
    assert quotas.wait_s(known_as(str(CALLERS_MAX - 1)), 0) == 0


def of(*quotas: tuple[str, str, int], key: QuotaKey = QuotaKey.REQUEST_RATE) -> Map:
    """What the state says: (user, client id, amount)."""
    return Map(
        {
            (user, client_id): Quota(user=user, client_id=client_id, limits=((key, amount),))
            for user, client_id, amount in quotas
        }
    )


ALL_ENTITIES = of(
    ("ann", "app", 1), ("ann", "*", 2), ("ann", "", 3), ("*", "app", 4), ("*", "*", 5), ("*", "", 6),
    ("", "app", 7), ("", "*", 8),
)  # fmt: skip


@pytest.mark.parametrize("left", range(9))
def test_the_most_specific_entity_counts(left: int):
    """The order of KIP-546; what is left of it after the first ones are gone."""
    there = Map({e: q for e, q in ALL_ENTITIES.items() if q.limits[0][1] > left})
    quotas = Quotas(ApiLimits(request_rate=9), lambda: there)
    bound = quotas.bound(known_as("ann", "app"), QuotaKey.REQUEST_RATE)
    assert bound is not None
    assert bound.amount == left + 1
    owner = {0: ("User:ann", "app"), 6: ("", "app"), 5: ("User:ann", ""), 8: ("User:ann", "")}
    assert bound.owner == owner.get(left, bound.owner)


def test_each_thing_is_bounded_by_the_first_that_says_something_of_it():
    there = of(("ann", "", 5)).update(of(("", "app", 7), key=QuotaKey.STREAM_COUNT))
    quotas = Quotas(ApiLimits(producer_byte_rate=9), lambda: there)
    payer = known_as("ann", "app")
    assert [quotas.bound(payer, key) for key in QuotaKey] == [
        Bound(("User:ann", ""), 5),
        Bound(("User:ann", ""), 9),
        None,
        None,
        Bound(("", "app"), 7),
        None,
    ]
    assert quotas.bound(BOB, QuotaKey.STREAM_COUNT) is None


def test_who_shares_an_entity_shares_what_it_may_take():
    there = of(("", "app", 1), ("bob", "", 1))
    quotas = Quotas(ApiLimits(), lambda: there)
    quotas.charge(known_as("ann", "app"), 0, requests=100)
    assert quotas.wait_s(known_as("cid", "app"), 0) > 0
    assert quotas.wait_s(known_as("ann", "other"), 0) == 0
    quotas.charge(known_as("bob", "one"), 0, requests=100)
    assert quotas.wait_s(known_as("bob", "two"), 0) > 0


def test_each_that_has_none_of_its_own_has_it_for_itself():
    there = of(("*", "", 1))
    quotas = Quotas(ApiLimits(), lambda: there)
    quotas.charge(ANN, 0, requests=100)
    assert quotas.wait_s(ANN, 0) > 0
    assert quotas.wait_s(BOB, 0) == 0


def test_who_says_no_client_id_is_bound_as_those_without_a_quota_of_their_own():
    """Else whoever leaves the header out takes what it likes."""
    there = of(("", "*", 1))
    quotas = Quotas(ApiLimits(), lambda: there)
    for said in (None, "", "not a client id!", "*"):
        assert known_as("ann", said).client_id == ""
    assert quotas.bound(ANN, QuotaKey.REQUEST_RATE) == Bound(("", ""), 1)


def test_where_nobody_is_asked_each_address_has_the_quota_of_anonymous():
    there = of(("ANONYMOUS", "", 1))
    quotas = Quotas(ApiLimits(), lambda: there)
    one, other = payer_of("", "10.0.0.1", None), payer_of("", "10.0.0.2", None)
    quotas.charge(one, 0, requests=100)
    assert quotas.wait_s(one, 0) > 0
    assert quotas.wait_s(other, 0) == 0


def test_a_quota_that_changes_counts_at_once():
    states = [of(("ann", "", 1))]
    quotas = Quotas(ApiLimits(), lambda: states[-1])
    quotas.charge(ANN, 0, requests=12)
    assert quotas.wait_s(ANN, 0) == pytest.approx(12 - BURST_S)
    states.append(of(("ann", "", 4)))
    assert quotas.wait_s(ANN, 0) == pytest.approx(12 / 4 - BURST_S)
    states.append(Map())
    assert quotas.wait_s(ANN, 0) == 0
    assert not quotas.is_on


def test_places_are_bounded_and_given_back():
    there = of(("ann", "", 2), key=QuotaKey.STREAM_COUNT)
    quotas = Quotas(ApiLimits(), lambda: there)
    key = QuotaKey.STREAM_COUNT
    with quotas.place(ANN, key), quotas.place(ANN, key), quotas.place(BOB, key, 9):
        with pytest.raises(QuotaExceededError, match="stream_count of User:ann is 2") as raised:
            quotas.place(ANN, key).__enter__()
        assert raised.value.retry_after_s == FULL_RETRY_S
    with quotas.place(ANN, key, 2):
        pass
    with pytest.raises(QuotaExceededError):
        quotas.place(ANN, key, 3).__enter__()


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


async def test_a_request_that_the_lane_leaves_to_the_usual_way_is_charged_once(monkeypatch):
    charged = []
    charge = Quotas.charge

    def counted(self, payer, now_s, *, requests=0, **bytes_):
        charged.append(requests)
        charge(self, payer, now_s, requests=requests, **bytes_)

    monkeypatch.setattr(Quotas, "charge", counted)
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, ApiLimits(request_rate=1000)) as api, connected(api) as client:
        for _ in range(3):
            assert (await client.ask(request()))[0].split()[1] == "200"
        assert node.quick_requests
        bad = request(body=b"[" + RECORD[1:])
        assert (await client.ask(bad))[0].split()[1] in {"400", "422"}
    assert sum(charged) == 4


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


# -- as the cluster says ------------------------------------------------------------------------------


def bound(node: FakeNode, user: str = "", client_id: str = "", **limits: int) -> None:
    node.access.store.apply(
        AlterQuota(user=user, client_id=client_id, changes=tuple(limits.items()))
    )


async def test_a_quota_of_a_user_is_that_users_alone():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        closed = ClosedNode(node)
        ann, bob = (closed.token(name, f"token{name}") for name in made(closed, "ann", "bob"))
        bound(node, "ann", request_rate=1)
        assert 429 in {answer.status for answer in await at_once(api, ann, 20)}
        assert {answer.status for answer in await at_once(api, bob, 20)} == {200}


async def test_a_program_is_known_by_its_header_in_the_lane_as_well():
    node = FakeNode()
    node.add_topic("t")
    bound(node, client_id="app", request_rate=1)
    async with serving(node) as api, connected(api) as client:
        plain = [(await client.ask(request()))[0].split()[1] for _ in range(20)]
        named = request("Milena-Client-Id: app")
        said = [(await client.ask(named))[0].split()[1] for _ in range(20)]
    assert node.quick_requests
    assert set(plain) == {"200"}
    assert said[:2] == ["200"] * 2
    assert said.count("429") >= 10


async def test_a_connection_too_many_is_told_and_closed():
    node = FakeNode()
    node.add_topic("t")
    bound(node, "ANONYMOUS", connection_count=2)
    async with serving(node) as api:
        async with connected(api) as one, connected(api) as two:
            for _ in range(3):
                for client in (one, two):
                    assert (await client.ask(request()))[0].split()[1] == "200"
            async with connected(api) as three:
                status, headers, _ = await three.ask(request())
                assert status.split()[1] == "429"
                assert headers["Connection"] == "close"
                assert headers["Retry-After"] == "1"
        async with connected(api) as later:
            assert (await later.ask(request()))[0].split()[1] == "200"
