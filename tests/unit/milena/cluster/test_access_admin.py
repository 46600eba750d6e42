"""Access control by the client, asynchronous and blocking: what is asked, what is told, and what nothing shows."""

import asyncio
import inspect

import pytest

from milena import Client, sync
from milena.blocking.access import AccessAdmin as BlockingAccessAdmin
from milena.cluster.access_admin import AccessAdmin
from milena.cluster.access_views import AclEntry, AclFilter, QuotaView, TokenGrant, UserView
from milena.cluster.http import HttpCall, RawAnswer
from milena.cluster.http_connection import HttpRequest
from milena.errors import (
    AnswerError,
    CredentialsRefusedError,
    NotPermittedError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.model.access import AccessMode
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret
from tests.support.fakes.access_api import TOKEN_SECRET
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving

CANARY = "canary-of-a-password"


def methods(kind):
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


class Blocking:
    """The blocking twin, called as the other one is: from a thread that may wait."""

    def __init__(self, access):
        self._access = access

    def __getattr__(self, name):
        method = getattr(self._access, name)

        async def call(*args, **keywords):
            return await asyncio.to_thread(method, *args, **keywords)

        return call


@pytest.fixture(params=["asyncio", "blocking"])
async def access(api, request):
    if request.param == "asyncio":
        async with Client(api.url) as client:
            yield client.admin.access
        return
    client = sync.Client(api.url)
    yield Blocking(client.admin.access)
    await asyncio.to_thread(client.close)


def test_the_twins_have_the_same_methods_with_the_same_parameters():
    inner, outer = methods(AccessAdmin), methods(BlockingAccessAdmin)
    assert inner.keys() == outer.keys()
    for name, method in inner.items():
        assert inspect.iscoroutinefunction(method), name
        assert not inspect.iscoroutinefunction(outer[name]), name
        assert inspect.signature(method) == inspect.signature(outer[name]), name


async def test_the_mode_and_who_asks(api, access):
    api.access.be("root", is_superuser=True, token_id="0abc1234")
    api.access.add_user("root", "x", is_superuser=True)
    assert (await access.state()).mode == "off"
    found = await access.set_mode(AccessMode.REQUIRED)
    assert (found.mode, found.version, found.principal) == ("required", 7, "User:root")
    assert (found.user, found.token_id, found.is_superuser) == ("root", "0abc1234", True)
    assert api.access.asked[-1] == ("PUT", "/access", {"mode": "required"})


async def test_users_are_made_changed_and_deleted(api, access):
    made = await access.put_user("b@x/y", password=Secret(CANARY), is_superuser=False)
    assert made == UserView(name="b@x/y", is_superuser=False, password_count=1, token_count=0)
    assert api.access.asked[-1] == (
        "PUT",
        "/users/b@x/y",
        {"password": CANARY, "is_superuser": False},
    )
    await access.put_user("b@x/y", password=Secret("new"), keep_previous=True)
    assert api.access.asked[-1][2] == {"password": "new", "keep_previous": True}
    assert api.access.passwords["b@x/y"] == ["new", CANARY]
    await access.put_user("a")
    assert api.access.asked[-1][2] == {}
    with_scram = await access.put_user(
        "b@x/y", password=Secret("new"), keep_previous=True, scram=True
    )
    assert api.access.asked[-1][2] == {"password": "new", "keep_previous": True, "scram": True}
    assert with_scram.scram_mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert (await access.put_user("b@x/y", scram=False)).scram_mechanisms == ()
    assert api.access.asked[-1][2] == {"scram": False}
    assert [user.name for user in await access.users()] == ["a", "b@x/y"]
    assert (await access.user("b@x/y")).password_count == 2
    await access.delete_user("b@x/y")
    with pytest.raises(TargetNotFoundError, match="no user b@x/y"):
        await access.user("b@x/y")


async def test_a_bare_password_is_refused(api, access):
    with pytest.raises(TypeError, match=r"password=Secret"):
        await access.put_user("a", password=CANARY)
    assert api.access.asked == []


async def test_tokens_are_made_listed_and_deleted(api, access):
    api.access.add_user("alice")
    api.access.add_token("alice", "zzzzzzzz", created_ms=1)
    grant = TokenGrant(resource_type="TOPIC", name="orders", operations=("READ",))
    made = await access.create_token("alice", note="ci", lifetime_ms=1000, grants=[grant])
    assert made.token == Secret(TOKEN_SECRET)
    assert TOKEN_SECRET not in f"{made!r} {made}"
    assert api.access.asked[-1][2] == {
        "note": "ci",
        "lifetime_ms": 1000,
        "grants": [
            {
                "resource_type": "TOPIC",
                "pattern_type": "LITERAL",
                "name": "orders",
                "operations": ["READ"],
            }
        ],
    }
    oldest, found = await access.tokens("alice")
    assert (oldest.token_id, oldest.expires_ms) == ("zzzzzzzz", None)
    assert found == made.view
    assert (found.note, found.grants, found.expires_ms) == ("ci", (grant,), 1_767_225_601_000)
    await access.create_token("alice")
    assert api.access.asked[-1][2] == {}
    await access.delete_token("alice", "zzzzzzzz")
    with pytest.raises(TargetNotFoundError, match="no such token"):
        await access.delete_token("alice", "zzzzzzzz")
    with pytest.raises(TargetNotFoundError, match="no user bob"):
        await access.tokens("bob")


async def test_entries_are_added_found_and_removed(api, access):
    read = AclEntry(
        principal="User:alice", resource_type="TOPIC", resource_name="orders", operation="READ"
    )
    deny = AclEntry(
        principal="User:*",
        resource_type="GROUP",
        resource_name="a",
        operation="DELETE",
        permission="DENY",
        pattern_type="PREFIXED",
        host="10.0.0.1",
    )
    await access.add_acls([read, deny])
    method, path, body = api.access.asked[-1]
    assert (method, path) == ("POST", "/v3/clusters/c1/acls:batch")
    assert body["data"][1] == {
        "resource_type": "GROUP",
        "resource_name": "a",
        "pattern_type": "PREFIXED",
        "principal": "User:*",
        "host": "10.0.0.1",
        "operation": "DELETE",
        "permission": "DENY",
    }
    assert await access.acls() == [deny, read]
    wanted = AclFilter(principal="User:alice", resource_name="orders")
    assert await access.acls(wanted) == [read]
    said = {"principal": "User:alice", "resource_name": "orders"}
    assert api.access.asked[-1] == ("GET", "/v3/clusters/c1/acls", said)
    assert await access.remove_acls(wanted) == [read]
    assert api.access.asked[-1] == ("DELETE", "/v3/clusters/c1/acls", said)
    assert await access.acls() == [deny]


async def test_quotas_are_set_listed_and_deleted(api, access):
    keys = {QuotaKey.REQUEST_RATE: 5, QuotaKey.STREAM_COUNT: 2}
    made = await access.alter_quota(keys, user="ann", client_id="*")
    assert made == QuotaView(
        user="ann", client_id="*", limits={"request_rate": 5, "stream_count": 2}
    )
    assert await access.quotas() == [made]
    left = await access.alter_quota({QuotaKey.STREAM_COUNT: None}, user="ann", client_id="*")
    assert left.limits == {"request_rate": 5}
    only = await access.alter_quota({QuotaKey.CONSUMER_COUNT: 1}, client_id="app")
    assert (only.user, only.client_id) == (None, "app")
    await access.delete_quota(user="ann", client_id="*")
    assert await access.quotas() == [only]


async def test_what_nobody_may_do_is_said(api, access):
    with pytest.raises(AnswerError, match="no superuser") as caught:
        await access.set_mode(AccessMode.REQUIRED)
    assert caught.value.error_code == 40929
    api.access.add_user("root", "x", is_superuser=True)
    with pytest.raises(AnswerError, match="last superuser"):
        await access.delete_user("root")
    for status, error in ((401, CredentialsRefusedError), (403, NotPermittedError)):
        api.answer = (status, {"error_code": status * 100 + 1, "message": "no"})
        with pytest.raises(error):
            await access.users()


@pytest.mark.parametrize("body", [[], {}, {"users": [{"name": "a"}]}, {"users": [1]}])
async def test_answers_of_another_shape_are_told(api, access, body):
    api.answer = (200, body)
    with pytest.raises(UnexpectedAnswerError):
        await access.users()


async def test_a_password_whose_answer_is_lost_is_sent_again_unless_the_former_one_is_kept(api):
    """Another node may be asked only for what is the same done twice."""

    async def hang(request):
        await asyncio.Event().wait()

    api.access._put_user = hang
    async with serving(api.app()) as url, Client(url, timeout_s=0.2) as client:
        with pytest.raises(UnreachableError):
            await client.admin.access.put_user("a", password=Secret(CANARY))
        with pytest.raises(UnknownResultError) as caught:
            await client.admin.access.put_user("a", password=Secret(CANARY), keep_previous=True)
    assert CANARY not in f"{caught.value!r} {caught.value.message}"


def test_requests_and_answers_do_not_show_their_bodies():
    body = CANARY.encode()
    shown = [
        HttpCall(method="PUT", path="/users/a", body=body),
        HttpRequest(method="PUT", path="/users/a", headers={}, body=body, answer_bytes_max=1),
        RawAnswer(status=201, headers={}, body=body, url="http://a:1"),
    ]
    assert CANARY not in repr(shown)
