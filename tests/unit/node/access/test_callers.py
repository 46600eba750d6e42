"""Who is let in: by password, by token, by nothing; for how long that holds, and what happens while it is looked at."""

import asyncio

import pytest

from http_api.access.callers import ANYBODY, OPEN, UNCERTAIN
from milena.model.access import AccessMode, Operation, ResourceType
from milena.model.errors import NotReadyError, TooManyRequestsError, UnauthenticatedError
from node.access.callers import VERIFIED_MS
from node.access.passwords import WRONG_AT_ONCE
from raft_meta.machine.commands import AlterAcls, DeleteUser, PutUser, SetAccessMode
from tests.support.fakes.access import SILENCE_MS_MAX
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import (
    PASSWORD,
    VERIFIER,
    Allowed,
    ClosedNode,
    basic,
    bearer,
    entry,
    grant,
)

HERE = "10.0.0.1"
READ = Allowed("READ", "TOPIC", "orders")


def header(headers) -> str:
    return headers["Authorization"]


@pytest.fixture
def node():
    return FakeNode()


@pytest.fixture
def closed(node):
    return ClosedNode(node)


def may_read(caller, topic="orders") -> bool:
    return caller.may(Operation.READ, ResourceType.TOPIC, topic)


async def test_a_cluster_that_asks_nothing_looks_at_nothing(node):
    assert node.callers.version == OPEN
    assert node.callers.known("whatever", HERE) is ANYBODY
    assert may_read(ANYBODY)


async def test_a_password_is_looked_at_once(node, closed):
    closed.user("ann", READ)
    given = header(basic("ann"))
    assert node.callers.known(given, HERE) is None
    caller = await node.callers.identify(given, HERE)
    assert (caller.principal, caller.user, caller.token_id) == ("User:ann", "ann", None)
    assert may_read(caller)
    assert not may_read(caller, "others")
    node.access.pool.hold()
    assert node.callers.known(given, HERE) is caller
    node.access.clock.ms += VERIFIED_MS
    node.access.heard_ms = node.access.clock.ms
    # It holds as long as nothing changes; after that the password must be looked at again.
    closed.allow("ann", Allowed("READ", "TOPIC", "others"))
    assert node.callers.known(given, HERE) is None


async def test_many_who_come_with_one_password_cost_one_look(node, closed):
    closed.user("ann")
    await node.access.passwords.find((), "x", "10.9.9.9")
    node.access.pool.hold()
    given = header(basic("ann"))
    asked = [asyncio.ensure_future(node.callers.identify(given, HERE)) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    node.access.pool.release()
    assert {caller.principal for caller in await asyncio.gather(*asked)} == {"User:ann"}


async def test_one_who_gives_up_takes_nobody_along(node, closed):
    closed.user("ann")
    await node.access.passwords.find((), "x", "10.9.9.9")
    node.access.pool.hold()
    first, second = (
        asyncio.ensure_future(node.callers.identify(header(basic("ann")), HERE)) for _ in "12"
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    node.access.pool.release()
    assert (await second).user == "ann"


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Basic",
        "Basic !",
        "Basic cm9vdA==",
        "Bearer",
        "Bearer mln_",
        "Bearer mln_a_b_c",
        "Bearer x",
        "Digest username=root",
        "Basic cm9vdDpw, Basic cm9vdDpw",
        "bearer " + "x" * 8000,
        "Basic \udcff",
    ],
)
async def test_what_is_no_credential_is_refused(node, closed, given):
    async def ask():
        if node.callers.known(given, HERE) is None:
            await node.callers.identify(given, HERE)

    with pytest.raises(UnauthenticatedError):
        await ask()


async def test_unknown_users_and_wrong_passwords_are_told_the_same(node, closed):
    told = set()
    for headers in (basic("root", "another one"), basic("nobody")):
        with pytest.raises(UnauthenticatedError) as raised:
            await node.callers.identify(header(headers), HERE)
        told.add(raised.value.message)
    assert len(told) == 1


async def test_who_is_known_gets_in_whatever_strangers_try(node, closed):
    given = header(basic("root"))
    await node.callers.identify(given, HERE)
    for number in range(WRONG_AT_ONCE):
        before_ms = node.access.clock.ms
        with pytest.raises(UnauthenticatedError):
            await node.callers.identify(header(basic("root", f"wrong {number}")), HERE)
        node.access.clock.ms = before_ms
    with pytest.raises(TooManyRequestsError):
        await node.callers.identify(header(basic("root", "wrong again")), HERE)
    assert node.callers.known(given, HERE).user == "root"


async def test_a_password_that_is_changed_is_good_no_more(node, closed):
    closed.user("ann")
    given = header(basic("ann"))
    caller = await node.callers.identify(given, HERE)
    version = node.image.users["ann"].version
    closed.store.apply(
        PutUser(name="ann", version=version, verifiers=("another",), is_superuser=False)
    )
    assert not node.callers.holds(caller)
    assert node.callers.known(given, HERE) is None
    with pytest.raises(UnauthenticatedError):
        await node.callers.identify(given, HERE)


async def test_a_user_of_the_same_name_inherits_neither_tokens_nor_entries(node, closed):
    closed.user("ann", READ)
    token = header(closed.token("ann"))
    assert may_read(node.callers.known(token, HERE))
    closed.store.apply(DeleteUser(name="ann"))
    closed.user("ann")
    with pytest.raises(UnauthenticatedError):
        node.callers.known(token, HERE)
    assert not may_read(await node.callers.identify(header(basic("ann")), HERE))


async def test_a_password_that_is_changed_while_it_is_looked_at_lets_nobody_in(node, closed):
    closed.user("ann")
    await node.access.passwords.find((), "x", "10.9.9.9")
    node.access.pool.hold()
    asked = asyncio.ensure_future(node.callers.identify(header(basic("ann")), HERE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closed.store.apply(DeleteUser(name="ann"))
    node.access.pool.release()
    with pytest.raises(UnauthenticatedError):
        await asked


async def test_a_token_is_known_at_once_and_until_its_end(node, closed):
    closed.user("ann", READ, Allowed("WRITE", "TOPIC", "orders"))
    token = header(closed.token("ann", "token123", grant("READ"), lifetime_ms=10))
    caller = node.callers.known(token, HERE)
    assert (caller.user, caller.token_id) == ("ann", "token123")
    assert may_read(caller)
    assert not caller.may(Operation.WRITE, ResourceType.TOPIC, "orders")
    node.access.clock.ms += 10
    assert not node.callers.holds(caller)
    with pytest.raises(UnauthenticatedError, match="expired"):
        node.callers.known(token, HERE)


async def test_a_superusers_token_with_grants_is_no_superuser(node, closed):
    assert node.callers.known(header(closed.token("root", "whole123")), HERE).is_superuser
    scoped = closed.token("root", "part1234", grant("READ"))
    assert not node.callers.known(header(scoped), HERE).is_superuser


async def test_a_wrong_secret_is_refused_whatever_the_token(node, closed):
    closed.token("root")
    for headers in (bearer("token123", "s3cres"), bearer("token123", ""), bearer("nothere1")):
        with pytest.raises(UnauthenticatedError):
            node.callers.known(header(headers), HERE)


async def test_from_where_one_calls_matters_where_an_entry_says_so(node, closed):
    closed.user("ann", READ)
    token = header(closed.token("ann"))
    assert node.callers.known(token, HERE).host == ""
    denied = entry("User:ann", READ, host="10.0.0.9", permission="DENY")
    closed.store.apply(AlterAcls(added=(denied,), removed=()))
    here, there = node.callers.known(token, HERE), node.callers.known(token, "::ffff:10.0.0.9")
    assert (here.host, there.host) == (HERE, "10.0.0.9")
    assert may_read(here)
    assert not may_read(there)


async def test_every_change_of_access_is_a_new_version(node, closed):
    caller = node.callers.known(header(closed.token("root")), HERE)
    assert node.callers.holds(caller)
    closed.allow("root", READ)
    assert not node.callers.holds(caller)


async def test_a_node_that_hears_nothing_lets_nobody_in(node, closed):
    token = header(closed.token("root"))
    caller = node.callers.known(token, HERE)
    node.access.clock.ms += SILENCE_MS_MAX
    node.callers.attend()
    assert node.callers.holds(caller)
    node.access.clock.ms += 1
    node.callers.attend()
    assert node.callers.version == UNCERTAIN
    assert not node.callers.holds(caller)
    for given in (token, None, header(basic("root"))):
        with pytest.raises(NotReadyError):
            node.callers.known(given, HERE)
    node.access.heard_ms = node.access.clock.ms
    node.callers.attend()
    assert node.callers.known(token, HERE).user == "root"


async def test_a_process_that_was_stopped_looks_at_the_time_first(node, closed):
    token = header(closed.token("root"))
    caller = node.callers.known(token, HERE)
    # Nothing else of the process has come to run yet.
    node.access.clock.ms += SILENCE_MS_MAX + 1
    with pytest.raises(NotReadyError):
        node.callers.known(token, HERE)
    node.access.heard_ms = node.access.clock.ms
    node.callers.attend()
    node.access.clock.ms += SILENCE_MS_MAX + 1
    assert not node.callers.holds(caller)


async def test_a_node_that_has_not_heard_in_this_life_trusts_no_old_image(node, closed):
    node.access.heard_ms = None
    node.callers.attend()
    assert node.callers.version == UNCERTAIN


async def test_an_open_cluster_stays_so_whatever_a_node_hears(node):
    node.access.heard_ms = None
    node.callers.attend()
    assert node.callers.version == OPEN


async def test_who_brings_nothing_is_anonymous_where_that_is_allowed(node):
    closed = ClosedNode(node, AccessMode.OPTIONAL)
    closed.store.apply(AlterAcls(added=(entry("User:ANONYMOUS", READ),), removed=()))
    caller = node.callers.known(None, HERE)
    assert (caller.principal, caller.user, caller.is_enforced) == ("User:ANONYMOUS", None, False)
    assert may_read(caller)
    closed.store.apply(SetAccessMode(access_mode=AccessMode.REQUIRED))
    with pytest.raises(UnauthenticatedError):
        node.callers.known(None, HERE)


async def test_nothing_shows_a_secret(node, closed, caplog):
    caplog.set_level("DEBUG")
    given = header(basic("ann", "a canary of a password"))
    seen = []
    with pytest.raises(UnauthenticatedError) as raised:
        await node.callers.identify(given, HERE)
    seen += [str(raised.value), repr(raised.value)]
    closed.user("ann")
    caller = await node.callers.identify(header(basic("ann")), HERE)
    seen += [repr(caller), repr(vars(node.callers)), *caplog.messages]
    for secret in ("canary", PASSWORD, given, header(basic("ann")), VERIFIER[-20:]):
        assert not [text for text in seen if secret in text]
