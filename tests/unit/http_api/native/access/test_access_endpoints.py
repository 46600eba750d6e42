"""Users, tokens, entries and the mode through the API: what is made, what is refused, and who may."""

import io
from dataclasses import replace

import pytest
from multidict import CIMultiDict

from http_api import app
from http_api.routes import ROUTES
from milena.model.access import AccessMode
from milena.model.errors import NoQuorumError
from node.access.callers import VERIFIED_MS
from node.config.options import OPTIONS
from raft_meta.machine.access.access import SCRAM_LEVEL
from raft_meta.machine.commands import AlterAcls, DeleteUser, PutUser
from tests.support.fakes.ports import CLUSTER_ID, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.contract import ACL
from tests.support.http.credentials import VERIFIER, Allowed, ClosedNode, basic, grant

ROOT = basic("root")
JSON = {"Content-Type": "application/json"}
ACLS = f"/v3/clusters/{CLUSTER_ID}/acls"
ADMIN = (
    Allowed("ALTER", "CLUSTER", "kafka-cluster"),
    Allowed("DESCRIBE", "CLUSTER", "kafka-cluster"),
)
READ_ORDERS = {"resource_type": "TOPIC", "name": "orders", "operations": ["READ"]}


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("orders")
    async with serving(node) as api:
        yield api, ClosedNode(node)


@pytest.mark.parametrize(
    ("second", "status"), [(ROOT["Authorization"], 200), ("Bearer other", 400)]
)
async def test_credentials_that_come_twice_count_once(closed, second, status):
    api, _ = closed
    headers = CIMultiDict([*ROOT.items(), ("Authorization", second)])
    assert (await api.call("GET", "/topics/orders", headers=headers)).status == status


async def put(api, path, body, headers=ROOT):
    return await api.call("PUT", path, json=body, headers=headers)


async def token_of(api, user, body=None, headers=ROOT):
    return await api.post(f"/users/{user}/tokens", body or {}, "application/json", headers=headers)


async def test_who_asks_is_told_who_it_is(closed):
    api, node = closed
    assert (await api.get("/access", headers=ROOT)).json == {
        "mode": "required",
        "version": node.node.image.access_version,
        "principal": "User:root",
        "user": "root",
        "token_id": None,
        "is_superuser": True,
    }
    node.user("ann")
    told = (await api.get("/access", headers=node.token("ann"))).json
    assert (told["user"], told["token_id"], told["is_superuser"]) == ("ann", "token123", False)


async def test_who_asks_nothing_of_a_cluster_that_asks_nothing_is_anonymous():
    async with serving() as api:
        told = (await api.get("/access")).json
    assert (told["mode"], told["principal"], told["user"]) == ("off", "User:ANONYMOUS", None)
    assert told["is_superuser"] is True


async def test_who_closes_an_open_cluster_is_told_so_and_is_nobody_then():
    async with serving() as api:
        await put(api, "/users/root", {"password": "a good password", "is_superuser": True}, {})
        closed = await put(api, "/access", {"mode": "required"}, {})
        assert (closed.status, closed.json["mode"]) == (200, "required")
        assert (await put(api, "/access", {"mode": "off"}, {})).status == 401
        assert (await put(api, "/access", {"mode": "off"}, ROOT)).json["mode"] == "off"


async def test_a_superuser_who_closes_an_open_cluster_is_told_who_it_is_from_then_on():
    async with serving() as api:
        await put(api, "/users/root", {"password": "a good password", "is_superuser": True}, {})
        closed = (await put(api, "/access", {"mode": "required"}, ROOT)).json
    assert (closed["mode"], closed["principal"], closed["is_superuser"]) == (
        "required",
        "User:root",
        True,
    )


async def test_a_caller_without_credentials_that_closes_an_open_cluster_is_no_superuser_from_then_on():
    async with serving() as api:
        await put(api, "/users/root", {"password": "a good password", "is_superuser": True}, {})
        closed = (await put(api, "/access", {"mode": "required"}, {})).json
    assert (closed["principal"], closed["user"], closed["is_superuser"]) == (
        "User:ANONYMOUS",
        None,
        False,
    )


async def test_a_user_is_made_changed_and_deleted(closed):
    api, _ = closed
    made = await put(api, "/users/ann", {"password": "her password"})
    assert (made.status, made.json) == (
        201,
        {
            "name": "ann",
            "is_superuser": False,
            "password_count": 1,
            "token_count": 0,
            "scram_mechanisms": [],
        },
    )
    rotated = await put(api, "/users/ann", {"password": "her other one", "keep_previous": True})
    assert (rotated.status, rotated.json["password_count"]) == (200, 2)
    for password in ("her password", "her other one"):
        assert (await api.get("/access", headers=basic("ann", password))).status == 200
    assert (await put(api, "/users/ann", {"password": "the third one"})).json["password_count"] == 1
    for password in ("her password", "her other one"):
        assert (await api.get("/access", headers=basic("ann", password))).status == 401
    assert (await put(api, "/users/ann", {"is_superuser": True})).json["is_superuser"] is True
    assert (await api.get("/access", headers=basic("ann", "the third one"))).json["is_superuser"]
    assert (await api.call("DELETE", "/users/ann", headers=ROOT)).status == 204
    assert (await api.get("/users/ann", headers=ROOT)).error == (404, 40413)
    assert (await api.get("/access", headers=basic("ann", "the third one"))).status == 401


async def test_scram_is_given_renewed_and_taken_by_operators_alone(closed):
    api, node = closed
    below = await put(api, "/users/ann", {"password": "her password", "scram": True})
    assert (below.status, "feature level 12" in below.json["message"]) == (409, True)
    node.node.image = replace(node.node.image, feature_level=SCRAM_LEVEL)
    both = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    made = await put(api, "/users/ann", {"password": "her password", "scram": True})
    assert (made.status, made.json["scram_mechanisms"]) == (201, both)
    first = node.node.image.users["ann"].scram
    hers = basic("ann", "her password")
    for body in ({"password": "her other one", "scram": True}, {"scram": False}):
        assert (await put(api, "/users/ann", body, hers)).status == 403
    # Her own change of the password renews them.
    changed = await put(api, "/users/ann", {"password": "her other one"}, hers)
    assert (changed.status, changed.json["scram_mechanisms"]) == (200, both)
    second = node.node.image.users["ann"].scram
    assert all(one.stored_key != other.stored_key for one, other in zip(first, second, strict=True))
    taken = await put(api, "/users/ann", {"scram": False})
    assert (taken.status, taken.json["scram_mechanisms"]) == (200, [])
    assert (await api.get("/access", headers=basic("ann", "her other one"))).status == 200
    keys = [key for one in (*first, *second) for key in (one.stored_key, one.server_key)]
    users = (await api.get("/users", headers=ROOT)).body
    assert not any(key in users or key.hex().encode() in users for key in keys)


@pytest.mark.parametrize(
    "body",
    [
        {"password": "short"},
        {"password": "x" * 1025},
        {"password": "tab\tin the middle"},
        {"password": 12345678},
        {"keep_previous": True},
        {"scram": True},
        {"scram": "SCRAM-SHA-256", "password": "a good password"},
        {"is_superuser": "perhaps"},
        {"passwort": "a good password"},
        [],
    ],
)
async def test_what_makes_no_user_is_refused_without_repeating_secrets(closed, body):
    api, node = closed
    before = node.node.image
    answer = await put(api, "/users/ann", body)
    assert answer.status in (400, 422)
    for secret in ("short", "x" * 20, "in the middle", "12345678", "a good password"):
        assert secret not in answer.json["message"]
    assert node.node.image is before


@pytest.mark.parametrize("name", ["ANONYMOUS", "a:b", "*", "a b", "x" * 256])
async def test_a_name_that_is_none_is_refused(closed, name):
    api, _ = closed
    answer = await put(api, f"/users/{name}", {})
    assert answer.status in (400, 422), answer


async def test_the_last_superuser_stays(closed):
    api, _ = closed
    assert (await api.call("DELETE", "/users/root", headers=ROOT)).error == (409, 40929)
    assert (await put(api, "/users/root", {"is_superuser": False})).error == (409, 40929)


async def test_who_administers_access_makes_no_superuser_and_touches_none(closed):
    api, node = closed
    ann = node.user("ann", *ADMIN)
    assert (await put(api, "/users/bob", {"password": "his password"}, ann)).status == 201
    assert (await put(api, "/users/eve", {"is_superuser": True}, ann)).error == (403, 40301)
    assert (await put(api, "/users/root", {"password": "mine now!"}, ann)).error == (403, 40301)
    assert (await api.call("DELETE", "/users/root", headers=ann)).error == (403, 40301)
    assert (await put(api, "/access", {"mode": "off"}, ann)).error == (403, 40301)
    assert (await token_of(api, "bob", headers=ann)).error == (403, 40301)
    assert (await token_of(api, "root", headers=ann)).error == (403, 40301)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_node_that_is_behind_lets_nobody_change_a_user_that_is_a_superuser_by_now(
    closed, method
):
    api, node = closed
    ann, bob = node.user("ann", *ADMIN), node.user("bob")

    def promoted():
        user = node.node.image.users["bob"]
        put = PutUser(name="bob", version=user.version, verifiers=(VERIFIER,), is_superuser=True)
        node.store.apply(put)

    # What another node did arrives with the barrier before the change.
    arrives(node, promoted)
    body = {"password": "mine now!"} if method == "PUT" else None
    refused = await api.call(method, "/users/bob", json=body, headers=ann)
    assert refused.error == (403, 40301)
    assert (await api.get("/access", headers=bob)).json["is_superuser"] is True


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_user_that_is_deleted_meanwhile_does_not_make_itself_again(closed, is_made_again):
    api, node = closed
    ann = node.user("ann")

    def deleted():
        node.store.apply(DeleteUser(name="ann"))
        if is_made_again:
            node.user("ann")

    arrives(node, deleted)
    assert (await put(api, "/users/ann", {"password": "her new one"}, ann)).error == (401, 40101)
    assert ("ann" in node.node.image.users) is is_made_again


def arrives(node, change):
    """Let a change of another node arrive with the next barrier."""
    barrier = node.node.current_image

    async def current_image():
        node.node.current_image = barrier
        change()
        return await barrier()

    node.node.current_image = current_image


async def test_who_came_with_a_password_changes_its_own(closed):
    api, node = closed
    ann = node.user("ann")
    assert (await put(api, "/users/ann", {"password": "her new one"}, ann)).status == 200
    fresh = basic("ann", "her new one")
    assert (await put(api, "/users/ann", {"is_superuser": True}, fresh)).error == (403, 40301)
    assert (await put(api, "/users/bob", {"password": "her new one"}, fresh)).error == (403, 40301)
    # A token that was stolen does not become a password.
    token = node.token("ann")
    assert (await put(api, "/users/ann", {"password": "not hers"}, token)).error == (403, 40301)


async def test_a_token_is_shown_once_and_is_good_until_it_is_deleted(closed):
    api, node = closed
    node.user("ann", Allowed("READ", "TOPIC", "orders"))
    ann = basic("ann")
    made = await token_of(api, "ann", {"note": "n", "lifetime_ms": 1000}, ann)
    assert made.status == 201
    assert made.headers["Cache-Control"] == "no-store"
    token = made.json
    assert token["expires_ms"] - token["created_ms"] == 1000
    bearer = {"Authorization": f"Bearer {token['token']}"}
    assert (await api.get("/topics", headers=bearer)).json == ["orders"]
    listed = (await api.get("/users/ann/tokens", headers=ann)).json["tokens"]
    assert listed == [{name: value for name, value in token.items() if name != "token"}]
    path = f"/users/ann/tokens/{token['token_id']}"
    assert (
        await api.call("DELETE", f"/users/root/tokens/{token['token_id']}", headers=ROOT)
    ).error == (
        404,
        40414,
    )
    assert (await api.call("DELETE", path, headers=ann)).status == 204
    assert (await api.get("/topics", headers=bearer)).status == 401
    assert (await api.call("DELETE", path, headers=ann)).error == (404, 40414)


@pytest.mark.parametrize(
    "body",
    [
        {"note": "x" * 256},
        {"note": "\x1b[2J"},
        {"note": "two\nlines"},
        {"lifetime_ms": 0},
        {"grants": []},
        {"grants": [{**READ_ORDERS, "operations": []}]},
        {"grants": [{**READ_ORDERS, "operations": ["FLY"]}]},
        {"grants": [{**READ_ORDERS, "resource_type": "TABLE"}]},
        {"grants": [{**READ_ORDERS, "pattern_type": "REGEX"}]},
        {"grants": [READ_ORDERS] * 101},
    ],
)
async def test_what_makes_no_token_is_refused(closed, body):
    api, node = closed
    answer = await token_of(api, "root", body)
    assert answer.status == 422, answer
    assert not node.node.image.tokens


async def test_entries_are_added_found_and_removed(closed):
    api, _ = closed
    other = {**ACL, "principal": "User:bob", "host": "0:0::1"}
    assert (await api.post(ACLS, ACL, "application/json", headers=ROOT)).status == 201
    batch = {"data": [ACL, other]}
    assert (await api.post(f"{ACLS}:batch", batch, "application/json", headers=ROOT)).status == 201
    listed = (await api.get(ACLS, headers=ROOT)).json
    assert listed["kind"] == "KafkaAclList"
    said = [{name: item[name] for name in ACL} for item in listed["data"]]
    assert said == [ACL, {**other, "host": "::1"}]
    # Its link leads to it, and to nothing else.
    itself = listed["data"][1]["metadata"]["self"].partition("/v3")[2]
    assert len((await api.get(f"/v3{itself}", headers=ROOT)).json["data"]) == 1
    found = (await api.get(f"{ACLS}?host=0:0:0:0:0:0:0:1", headers=ROOT)).json["data"]
    assert [item["principal"] for item in found] == ["User:bob"]
    removed = await api.call("DELETE", f"{ACLS}?principal=User:alice", headers=ROOT)
    assert [item["principal"] for item in removed.json["data"]] == ["User:alice"]
    assert len((await api.get(ACLS, headers=ROOT)).json["data"]) == 1
    again = await api.call("DELETE", f"{ACLS}?principal=User:alice", headers=ROOT)
    assert again.json == {"data": []}


async def test_an_entry_is_searched_for_as_in_other_servers(closed):
    api, _ = closed
    entries = [
        ("orders", "LITERAL"),
        ("orders-eu", "LITERAL"),
        ("ord", "PREFIXED"),
        ("orders", "PREFIXED"),
        ("orders-", "PREFIXED"),
        ("*", "LITERAL"),
    ]
    for name, pattern in entries:
        entry = {**ACL, "resource_name": name, "pattern_type": pattern}
        made = await api.post(ACLS, entry, "application/json", headers=ROOT)
        assert (made.status, made.body) == (201, b"")
        # The link of the answer finds what was made, and nothing else.
        place = made.headers["Location"].removeprefix(api.base_url)
        (found,) = (await api.get(place, headers=ROOT)).json["data"]
        assert (found["resource_name"], found["pattern_type"]) == (name, pattern)
        assert found["metadata"]["self"] == made.headers["Location"]

    async def search(query):
        answer = await api.get(f"{ACLS}?{query}", headers=ROOT)
        assert answer.status == 200, (query, answer)
        return {(item["resource_name"], item["pattern_type"]) for item in answer.json["data"]}

    everything = set(entries)
    named = {entry for entry in entries if entry[0] == "orders"}
    for query in (
        "pattern_type=ANY",
        "pattern_type=any&resource_type=ANY&operation=any&permission=Any",
        "resource_type=&resource_name=&pattern_type=&principal=&host=&operation=&permission=",
        "pattern_type=MATCH",
        "resource_type=topic&principal=",
    ):
        assert await search(query) == everything, query
    assert await search("resource_name=orders") == named
    assert await search("resource_name=orders&pattern_type=ANY") == named
    assert await search("resource_name=orders&pattern_type=literal") == {("orders", "LITERAL")}
    assert await search("resource_name=orders&pattern_type=MATCH") == {
        ("orders", "LITERAL"),
        ("ord", "PREFIXED"),
        ("orders", "PREFIXED"),
        ("*", "LITERAL"),
    }
    assert await search("resource_name=orders-eu&pattern_type=MATCH") == everything - {
        ("orders", "LITERAL")
    }
    gone = await api.call(
        "DELETE", f"{ACLS}?resource_name=orders-eu&pattern_type=MATCH", headers=ROOT
    )
    assert len(gone.json["data"]) == 5
    assert await search("") == {("orders", "LITERAL")}


@pytest.mark.parametrize(
    ("method", "query", "body"),
    [
        ("DELETE", "", None),
        ("DELETE", "?operation=FLY", None),
        ("DELETE", "?principal=", None),
        ("DELETE", "?operation=READ&principal=", None),
        ("DELETE", "?operation=ANY&pattern_type=MATCH", None),
        ("GET", "?resource_type=TABLE", None),
        ("GET", "?operation=MATCH", None),
        ("POST", "", {**ACL, "pattern_type": "MATCH"}),
        ("POST", "", {**ACL, "pattern_type": "ANY"}),
        ("POST", "", {**ACL, "resource_type": "ANY"}),
        ("POST", "", {**ACL, "operation": "any"}),
        ("POST", "", {**ACL, "permission": "ANY"}),
        ("POST", "", {**ACL, "operation": "FLY"}),
        ("POST", "", {**ACL, "operation": "IDEMPOTENT_WRITE"}),
        ("POST", "", {**ACL, "principal": "alice"}),
        ("POST", "", {**ACL, "host": "example.org"}),
        ("POST", "", {**ACL, "resource_type": "CLUSTER"}),
        ("POST", "", {name: word for name, word in ACL.items() if name != "host"}),
        ("POST", ":batch", {"data": [ACL, {**ACL, "permission": "MAYBE"}]}),
        ("POST", ":batch", {"data": ACL}),
    ],
)
async def test_what_makes_no_entry_is_refused_and_changes_nothing(closed, method, query, body):
    api, node = closed
    answer = await api.call(method, f"{ACLS}{query}", json=body, headers=ROOT)
    assert answer.status in (400, 422), answer
    assert not node.node.image.acls


@pytest.mark.parametrize("path", ["", ":batch"])
@pytest.mark.parametrize(
    "host",
    [
        "999.1.1.1",
        "1.2.3.256",
        "1.2.3.4.5",
        "127.1",
        "010.0.0.1",
        "00.0.0.0",
        "1.2.3",
        "1",
        ":::",
        "12345::",
        "10.0.0.0/8",
    ],
)
async def test_a_host_that_is_no_address_is_refused(closed, path, host):
    api, node = closed
    entry = {**ACL, "permission": "DENY", "host": host}
    body = {"data": [ACL, entry]} if path else entry
    answer = await api.post(f"{ACLS}{path}", body, "application/json", headers=ROOT)
    assert answer.status == 422, answer
    assert "is not a host" in answer.json["message"]
    assert not node.node.image.acls


async def test_an_entry_of_an_older_release_with_such_a_host_is_listed_and_removed(closed):
    api, node = closed
    assert (await api.post(ACLS, ACL, "application/json", headers=ROOT)).status == 201
    ((stored,),) = node.node.image.acls.values()
    old = replace(stored, host="127.1")
    node.store.apply(AlterAcls(added=(old,), removed=(stored,)))
    assert [e["host"] for e in (await api.get(ACLS, headers=ROOT)).json["data"]] == ["127.1"]
    removed = await api.call("DELETE", f"{ACLS}?host=127.1", headers=ROOT)
    assert len(removed.json["data"]) == 1


async def test_an_address_in_ipv6_is_the_ipv4_one(closed):
    api, _ = closed
    entry = {**ACL, "host": "::ffff:1.2.3.4"}
    assert (await api.post(ACLS, entry, "application/json", headers=ROOT)).status == 201
    assert [e["host"] for e in (await api.get(ACLS, headers=ROOT)).json["data"]] == ["1.2.3.4"]


async def test_without_a_majority_nothing_is_changed_and_that_is_said(closed):
    api, node = closed
    node.node.errors["propose"] = NoQuorumError("no majority")
    answer = await put(api, "/users/ann", {"password": "her password"})
    assert answer.error == (503, 50305)
    assert "cannot change user ann" in answer.json["message"]
    assert "her password" not in answer.json["message"]


async def test_a_stream_ends_when_its_reader_may_not_read_any_more(closed):
    api, node = closed
    node.user("ann", Allowed("READ", "TOPIC", "orders"))
    node.node.append("orders", 0, [b"1"])
    url = f"{api.base_url}/topics/orders/partitions/0/records"
    headers = {**basic("ann"), "Accept": "text/event-stream"}
    async with api.session.get(url, headers=headers) as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
        node.take("ann")
        node.node.append("orders", 0, [b'"a secret"'])
        rest = await response.content.read()
    assert b"a secret" not in rest
    assert b"40301" in rest


async def test_a_stream_of_a_password_outlives_a_change_of_others(closed):
    api, node = closed
    ann = node.user("ann", Allowed("READ", "TOPIC", "orders"))
    node.node.append("orders", 0, [b"1"])
    url = f"{api.base_url}/topics/orders/partitions/0/records"
    async with api.session.get(url, headers={**ann, "Accept": "text/event-stream"}) as response:
        await response.content.readuntil(b'"value":1')
        access = node.node.access
        access.clock.ms += VERIFIED_MS
        access.heard_ms = access.clock.ms
        node.user("bob")
        node.node.append("orders", 0, [b"2"])
        await response.content.readuntil(b'"value":2')


async def test_a_long_poll_is_answered_by_what_its_caller_may_see_then(closed):
    api, node = closed
    node.user("ann", Allowed("DESCRIBE", "TOPIC", "orders"))
    ann = node.token("ann")
    version = node.node.version
    shown = (await api.get(f"/metadata?since={version - 1}", headers=ann)).json
    assert [topic["name"] for topic in shown["topics"]] == ["orders"]
    node.take("ann")
    shown = (await api.get("/metadata", headers=ann)).json
    assert shown["topics"] == []


async def test_who_may_write_nowhere_is_told_so_when_it_asks_for_a_producer_id(closed):
    api, node = closed
    eve = node.user("eve", Allowed("READ", "TOPIC", "orders"))
    answer = await api.post("/producers", {}, "application/json", headers=eve)
    assert answer.status == 403
    assert "User:eve may not WRITE TOPIC of any name" in answer.json["message"]
    assert answer.json["message"].endswith(": milena acls add User:eve --allow WRITE --topic NAME")


async def test_a_refusal_names_the_command_that_gives_the_right(closed):
    api, node = closed
    ann = node.user("ann", Allowed("READ", "TOPIC", "orders"))
    refused = await api.post("/topics/orders", {"records": [{"value": 1}]}, headers=ann)
    assert refused.status == 403
    assert refused.json["message"].endswith(
        "This adds an entry that allows it: milena acls add User:ann --allow WRITE --topic orders"
    )
    token = node.token("ann", "token123", grant("READ"))
    refused = await api.post("/topics/orders", {"records": [{"value": 1}]}, headers=token)
    assert "allows it (the token needs a grant for it, too): milena" in refused.json["message"]


async def test_a_handler_that_forgets_to_ask_is_a_bug_and_no_answer(closed, monkeypatch):
    _, node = closed

    async def careless(call):
        return await call.ports.metadata.topic("orders")

    table = tuple(
        replace(route, handler=careless) if route.operation_id == "listTopics" else route
        for route in ROUTES
    )
    monkeypatch.setattr(app, "ROUTES", table)
    async with serving(node.node) as careless_api:
        assert (await careless_api.get("/topics", headers=ROOT)).status == 500


async def test_credentials_are_asked_for_before_a_body_is(closed):
    api, _ = closed
    async with api.session.post(
        f"{api.base_url}/topics/orders",
        data=io.BytesIO(b"x" * (8 << 20)),
        headers={"Expect": "100-continue"},
    ) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_pages_script_is_not_asked_in_a_way_that_opens_the_browsers_own_box(closed):
    api, _ = closed
    for sent, is_basic in (
        ({"Sec-Fetch-Dest": "empty"}, False),
        ({"Sec-Fetch-Dest": "document"}, True),
    ):
        answer = await api.get("/topics", headers=sent)
        assert answer.status == 401
        assert ("Basic" in answer.headers["WWW-Authenticate"]) is is_basic


async def test_the_log_says_who_changed_what_and_who_asked_and_no_secrets(closed, caplog):
    api, _ = closed
    caplog.set_level("DEBUG")
    await put(api, "/users/ann", {"password": "her password", "is_superuser": True})
    token = (await token_of(api, "ann")).json
    await api.call("DELETE", f"/users/ann/tokens/{token['token_id']}", headers=ROOT)
    await api.post(ACLS, ACL, "application/json", headers=ROOT)
    await api.call("DELETE", f"{ACLS}?principal=User:alice", headers=ROOT)
    await api.call("DELETE", "/users/ann", headers=ROOT)
    await put(api, "/access", {"mode": "optional"})
    told = [
        line.partition(" what=")[2].partition(" remote=")[0].replace(token["token_id"], "ID")
        for line in caplog.messages
        if line.startswith("changed principal=User:root ")
    ]
    assert told == [
        "user ann: new, password, superuser",
        "token ID of user ann: made",
        "token ID of user ann: deleted",
        "added ALLOW User:alice READ TOPIC orders LITERAL from *",
        "removed ALLOW User:alice READ TOPIC orders LITERAL from *",
        "user ann: deleted",
        "access mode optional",
    ]
    asked = [line for line in caplog.messages if line.startswith("request ")]
    assert all(line.endswith("principal=User:root") for line in asked)
    for secret in ("her password", token["token"], ROOT["Authorization"].split()[1]):
        assert not [line for line in caplog.messages if secret in line]


def test_modes_are_what_the_option_offers():
    assert OPTIONS["access_mode"].kind.allowed == f"{AccessMode.REQUIRED} or {AccessMode.OPTIONAL}"


async def test_metrics_are_for_everybody_where_a_node_says_so():
    for is_public, status in ((False, 401), (True, 200)):
        node = FakeNode()
        async with serving(node, is_metrics_public=is_public) as api:
            ClosedNode(node)
            assert (await api.get("/metrics")).status == status
            assert (await api.get("/topics")).status == 401
