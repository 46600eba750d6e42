"""The quick lane lets in nobody whom the usual way would refuse: a head that is known is its caller's alone."""

import pytest

from milena.model.access import AccessMode
from raft_meta.machine.commands import AlterAcls, SetAccessMode
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, entry
from tests.unit.http_api.quick.test_lane import connected, request

WRITE = Allowed("WRITE", "TOPIC", "t")


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        yield api, ClosedNode(node)


def sent(headers) -> bytes:
    return request(f"Authorization: {headers['Authorization']}")


async def ask(client, headers, times: int = 1) -> list[str]:
    return [(await client.ask(sent(headers)))[0].split()[1] for _ in range(times)]


async def test_who_may_write_takes_the_lane(closed):
    api, node = closed
    ann = node.user("ann", WRITE)
    async with connected(api) as client:
        assert await ask(client, ann, 3) == ["200"] * 3
    # A password is looked at for the first request; the second finds it known, and is the first that is learned.
    assert len(api.node.quick_requests) in (1, 2)


@pytest.mark.parametrize("way", ["entry", "token", "user", "mode"])
async def test_what_is_revoked_is_so_for_the_next_request(closed, way):
    api, node = closed
    node.user("ann", WRITE)
    token = node.token("ann")
    async with connected(api) as client:
        assert await ask(client, token, 3) == ["200"] * 3
        count = len(api.node.produce_requests) + len(api.node.quick_requests)
        assert api.node.quick_requests
        if way == "entry":
            node.take("ann")
        elif way == "token":
            node.revoke()
        elif way == "user":
            node.deny("ann", WRITE)
        else:
            api.node.access.heard_ms -= 60_000
            api.node.callers.attend()
        expected = {"entry": "403", "token": "401", "user": "403", "mode": "503"}[way]
        assert await ask(client, token, 3) == [expected] * 3
    assert len(api.node.produce_requests) + len(api.node.quick_requests) == count


async def test_a_token_that_expires_does_so_in_the_lane(closed):
    api, node = closed
    node.user("ann", WRITE)
    token = node.token("ann", lifetime_ms=1000)
    async with connected(api) as client:
        assert await ask(client, token, 3) == ["200"] * 3
        api.node.access.clock.ms += 1000
        assert await ask(client, token, 2) == ["401"] * 2


async def test_a_head_without_credentials_is_another_head(closed):
    api, node = closed
    node.user("ann", WRITE)
    token = node.token("ann")
    async with connected(api) as client, connected(api) as other:
        assert await ask(client, token, 3) == ["200"] * 3
        for _ in range(2):
            assert (await other.ask(request()))[0].split()[1] == "401"
        # The very head, on another connection, is the same caller's.
        assert await ask(other, token, 1) == ["200"]


async def test_who_may_from_one_address_may_not_from_another(closed):
    api, node = closed
    node.user("ann")
    only = entry("User:ann", WRITE, host="127.0.0.1")
    node.store.apply(AlterAcls(added=(only,), removed=()))
    token = node.token("ann")
    async with connected(api) as client, connected(api, source="127.0.0.2") as other:
        assert await ask(client, token, 3) == ["200"] * 3
        assert api.node.quick_requests
        # The very same bytes, on a connection from elsewhere.
        assert await ask(other, token, 2) == ["403"] * 2
        assert await ask(client, token, 1) == ["200"]


async def test_a_lane_that_was_open_closes_with_the_mode(closed):
    api, node = closed
    node.store.apply(SetAccessMode(access_mode=AccessMode.OFF))
    async with connected(api) as client:
        for _ in range(3):
            assert (await client.ask(request()))[0].split()[1] == "200"
        assert api.node.quick_requests
        node.store.apply(SetAccessMode(access_mode=AccessMode.REQUIRED))
        for _ in range(3):
            assert (await client.ask(request()))[0].split()[1] == "401"


async def test_where_refusals_are_only_logged_each_request_is(closed, caplog):
    api, node = closed
    node.store.apply(SetAccessMode(access_mode=AccessMode.OPTIONAL))
    async with connected(api) as client:
        for _ in range(3):
            assert (await client.ask(request()))[0].split()[1] == "200"
    assert not api.node.quick_requests
    assert sum("would be refused" in line for line in caplog.messages) == 3


async def test_a_topic_that_is_missing_is_not_made_for_who_may_not(closed):
    api, node = closed
    node.user("ann", WRITE)
    node.user("bob", WRITE, Allowed("CREATE", "TOPIC", "t"))
    ann, bob = node.token("ann", "tokenann"), node.token("bob", "tokenbob")
    async with connected(api) as client:
        await ask(client, ann, 3)
        await ask(client, bob, 3)
    for requests in (api.node.produce_requests, api.node.quick_requests):
        flags = [request.may_create for request in requests]
        assert set(flags) == {False, True}
        assert flags == sorted(flags)
