"""A connection remembers who came over it last, and nobody is taken for somebody else by it."""

import pytest

from node.access.callers import Callers
from raft_meta.machine.commands import PutUser, SetAccessMode
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import QUICK_HASHER, Allowed, ClosedNode, basic
from tests.unit.http_api.quick.test_lane import connected, request

DESCRIBE, WRITE = Allowed("DESCRIBE", "TOPIC", "t"), Allowed("WRITE", "TOPIC", "t")
LOOK = "/topics/t/partitions/0"


def look(authorization: str, *headers: str) -> bytes:
    lines = [f"GET {LOOK} HTTP/1.1", "Host: h", f"Authorization: {authorization}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def write(authorization: str) -> bytes:
    """The usual way: it brings an id of its own."""
    return request(f"Authorization: {authorization}", "X-Request-Id: mine")


@pytest.fixture
def looked_up(monkeypatch):
    """How often it was found out who comes."""
    found = []
    known = Callers.known

    def counted(self, authorization, *rest, **more):
        found.append(authorization)
        return known(self, authorization, *rest, **more)

    monkeypatch.setattr(Callers, "known", counted)
    return found


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api, connected(api) as client:
        yield client, ClosedNode(node)


async def status(client, sent: bytes) -> int:
    return int((await client.ask(sent))[0].split()[1])


async def test_it_is_found_out_once_for_a_connection(closed, looked_up):
    client, node = closed
    token = node.token("root")["Authorization"]
    for _ in range(5):
        assert await status(client, look(token)) == 200
    assert len(looked_up) == 1


async def test_users_take_turns_on_one_connection(closed):
    client, node = closed
    node.user("ann", DESCRIBE)
    node.user("eve")
    ann = node.token("ann", "anns1234")["Authorization"]
    eve = node.token("eve", "eves1234")["Authorization"]
    for _ in range(3):
        assert await status(client, look(ann)) == 200
        assert await status(client, look(eve)) == 403
        assert await status(client, look(f"{ann}x")) == 401
        assert await status(client, look("")) == 401


@pytest.mark.parametrize("ask", [look, write])
@pytest.mark.parametrize("way", ["revoke", "take", "deny", "expire", "silence"])
async def test_what_changes_is_in_force_for_the_next_request(closed, way, ask):
    client, node = closed
    node.user("ann", DESCRIBE, WRITE)
    token = node.token("ann", lifetime_ms=1_000)["Authorization"]
    assert await status(client, ask(token)) == 200
    written = len(node.node.produce_requests)
    access = node.node.access
    if way == "revoke":
        node.revoke()
    elif way == "take":
        node.take("ann")
    elif way == "deny":
        node.deny("ann", DESCRIBE)
        node.deny("ann", WRITE)
    elif way == "expire":
        access.clock.ms += 1_000
    else:
        access.clock.ms += 30_001
    expected = {"revoke": 401, "expire": 401, "take": 403, "deny": 403, "silence": 503}
    assert await status(client, ask(token)) == expected[way]
    assert len(node.node.produce_requests) == written


@pytest.mark.parametrize("more", [[], ["X-Request-Id: mine"]])
async def test_a_repeat_is_not_told_that_nothing_was_written_where_nobody_is_let_in(closed, more):
    client, node = closed
    token = node.token("root")["Authorization"]
    sent = request(f"Authorization: {token}", "Idempotency-Key: k", *more)
    assert await status(client, sent) == 200
    node.node.access.clock.ms += 30_001
    assert await status(client, sent) == 504


async def test_a_password_that_was_changed_is_good_no_more(closed):
    client, node = closed
    ann = node.user("ann", DESCRIBE)["Authorization"]
    for _ in range(2):
        assert await status(client, look(ann)) == 200
    present = node.node.image.users["ann"]
    changed = QUICK_HASHER.hash("another password")
    node.store.apply(
        PutUser(name="ann", version=present.version, verifiers=(changed,), is_superuser=False)
    )
    assert await status(client, look(ann)) == 401
    assert await status(client, look(basic("ann", "another password")["Authorization"])) == 200


async def test_long_credentials_are_not_kept(closed, looked_up):
    client, node = closed
    token = node.token("root")["Authorization"].replace(" ", " " * 1_100)
    for _ in range(2):
        await status(client, look(token))
    assert len(looked_up) >= 2


async def test_where_nobody_is_asked_any_more_nobody_is_remembered(closed, looked_up):
    client, node = closed
    token = node.token("root")["Authorization"]
    assert await status(client, look(token)) == 200
    node.store.apply(SetAccessMode(access_mode="off"))
    assert await status(client, look(f"{token}x")) == 200
    node.store.apply(SetAccessMode(access_mode="required"))
    assert await status(client, look(token)) == 200
    assert await status(client, look(f"{token}x")) == 401
