"""Tokens of an issuer over HTTP: the lane lets them in for as long as they and the keys behind them are good."""

import pytest

from node.access.web_tokens import LEEWAY_S
from raft_meta.machine.commands import AlterAcls
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import ClosedNode, entry
from tests.support.http.issuer import MemoryIssuer, document, public_jwk
from tests.unit.http_api.quick.test_lane import connected
from tests.unit.http_api.quick.test_lane_access import WRITE, ask


@pytest.fixture
async def trusting():
    node = FakeNode()
    node.add_topic("t")
    closed = ClosedNode(node)
    issuer = MemoryIssuer(node)
    closed.store.apply(AlterAcls(added=(entry("Group:writers", WRITE),), removed=()))
    async with serving(node) as api:
        yield api, issuer


def bearer(token: str):
    return {"Authorization": f"Bearer {token}"}


async def test_the_first_token_brings_the_keys_and_the_next_take_the_lane(trusting):
    api, issuer = trusting
    token = bearer(issuer.token(groups=["writers"]))
    async with connected(api) as client:
        assert await ask(client, token, 3) == ["200"] * 3
        assert api.node.quick_requests
        assert await ask(client, bearer(issuer.token(groups=["readers"])), 2) == ["403"] * 2
        assert await ask(client, bearer(issuer.token("rsa/2")), 2) == ["401"] * 2
    assert issuer.asked_count == 1


async def test_an_end_is_an_end_in_the_lane(trusting):
    api, issuer = trusting
    token = bearer(issuer.token(groups=["writers"], exp=issuer.clock.wall_ms() // 1000 + 1))
    async with connected(api) as client:
        assert await ask(client, token, 3) == ["200"] * 3
        issuer.clock.ms += (1 + LEEWAY_S) * 1000
        api.node.access.heard_ms = issuer.clock.ms
        assert await ask(client, token, 2) == ["401"] * 2


async def test_a_key_that_is_taken_away_is_so_in_the_lane(trusting):
    api, issuer = trusting
    token = bearer(issuer.token(groups=["writers"]))
    async with connected(api) as client:
        assert await ask(client, token, 3) == ["200"] * 3
        count = len(api.node.quick_requests)
        issuer.document = document(public_jwk("p256"))
        await issuer.keys.refresh()
        assert await ask(client, token, 2) == ["401"] * 2
    assert len(api.node.quick_requests) == count
