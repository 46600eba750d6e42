"""Tokens: how many a user may have, which ones a token may see, and with what they go."""

from dataclasses import replace

import pytest

from http_api.routes import ROUTES
from raft_meta.machine.access import access
from raft_meta.machine.commands import AlterAcls
from tests.support.fakes.ports import CLUSTER_ID, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic, entry, grant

ROOT = basic("root")
ANN = basic("ann")
OF_ANN = "/users/ann/tokens"


@pytest.fixture
async def closed():
    node = FakeNode()
    node.image = replace(node.image, feature_level=access.FAMILIES_LEVEL)
    node.add_topic("orders")
    async with serving(node) as api:
        closed_node = ClosedNode(node)
        closed_node.user("ann")
        closed_node.user("eve")
        yield api, closed_node


async def make(api, caller, user="ann", **body):
    return await api.post(f"/users/{user}/tokens", body, headers=caller)


def bearer_of(answer):
    return {"Authorization": f"Bearer {answer.json['token']}"}


async def delete(api, caller, token_id, user="ann"):
    return await api.call("DELETE", f"/users/{user}/tokens/{token_id}", headers=caller)


async def listed(api, caller, user="ann", query=""):
    answer = await api.get(f"/users/{user}/tokens{query}", headers=caller)
    return [token["token_id"] for token in answer.json["tokens"]]


class TestHowMany:
    async def test_one_user_cannot_take_the_tokens_of_the_others(self, closed, monkeypatch):
        monkeypatch.setattr(access, "TOKENS_PER_USER_MAX", 3)
        monkeypatch.setattr("node.access.service.TOKENS_PER_USER_MAX", 3)
        api, _ = closed
        eve = basic("eve")
        made = [await make(api, eve, "eve") for _ in range(3)]
        refused = await make(api, eve, "eve")
        assert refused.error == (409, 40930)
        assert "DELETE /users/eve/tokens/ID" in refused.json["message"]
        assert len(await listed(api, eve, "eve")) == 3
        # Signing in is to make a token, too.
        assert (await make(api, ANN)).status == 201
        assert (await delete(api, eve, made[0].json["token_id"], "eve")).status == 204
        assert (await make(api, eve, "eve")).status == 201

    async def test_expired_ones_make_room_and_no_others(self, closed, monkeypatch):
        monkeypatch.setattr(access, "TOKENS_PER_USER_MAX", 2)
        monkeypatch.setattr("node.access.service.TOKENS_PER_USER_MAX", 2)
        api, node = closed
        kept = (await make(api, ANN)).json["token_id"]
        await make(api, ANN, lifetime_ms=1)
        node.node.access.clock.ms += 10
        fresh = (await make(api, ANN)).json["token_id"]
        assert set(await listed(api, ANN)) == {kept, fresh}
        assert (await make(api, ANN)).error == (409, 40930)

    async def test_the_bound_holds_before_every_node_knows_it(self, closed, monkeypatch):
        monkeypatch.setattr("node.access.service.TOKENS_PER_USER_MAX", 1)
        monkeypatch.setattr(access, "TOKENS_PER_USER_MAX", 1)
        api, node = closed
        node.node.image = replace(node.node.image, feature_level=access.FAMILIES_LEVEL - 1)
        assert (await make(api, ANN)).status == 201
        assert (await make(api, ANN)).error == (409, 40930)


class TestFamilies:
    async def test_a_token_dies_with_the_one_that_made_it(self, closed):
        api, _ = closed
        first = await make(api, ANN)
        second = await make(api, bearer_of(first))
        third = await make(api, bearer_of(second))
        assert [a.json["parent"] for a in (first, second, third)] == [
            None,
            first.json["token_id"],
            second.json["token_id"],
        ]
        assert (await delete(api, ANN, first.json["token_id"])).status == 204
        for answer in (first, second, third):
            assert (await api.get("/topics", headers=bearer_of(answer))).status == 401
        assert await listed(api, ANN) == []

    async def test_also_one_that_it_made_for_another_user(self, closed):
        api, _ = closed
        of_root = await make(api, ROOT, "root")
        of_eve = await make(api, bearer_of(of_root), "eve")
        await delete(api, ROOT, of_root.json["token_id"], "root")
        assert (await api.get("/topics", headers=bearer_of(of_eve))).status == 401
        assert await listed(api, ROOT, "eve") == []

    async def test_it_lives_no_longer(self, closed):
        api, _ = closed
        first = await make(api, ANN, lifetime_ms=1000)
        for asked in ({}, {"lifetime_ms": 10**9}):
            child = await make(api, bearer_of(first), **asked)
            assert child.json["expires_ms"] <= first.json["expires_ms"]

    async def test_a_password_may_be_changed_with_and_without_them(self, closed):
        api, _ = closed
        token = bearer_of(await make(api, ANN))
        body = {"password": "another one 1"}
        kept = await api.call("PUT", "/users/ann", json=body, headers=ANN)
        # The answer says that there are some left.
        assert kept.json["token_count"] == 1
        assert (await api.get("/topics", headers=token)).status == 200
        body = {"password": "another one 2", "revoke_tokens": True}
        caller = basic("ann", "another one 1")
        gone = await api.call("PUT", "/users/ann", json=body, headers=caller)
        assert gone.json["token_count"] == 0
        assert (await api.get("/topics", headers=token)).status == 401


class TestGrants:
    async def test_a_token_with_grants_sees_and_deletes_itself_alone(self, closed):
        api, node = closed
        other = (await make(api, ANN)).json["token_id"]
        narrow = node.token("ann", "narrow12", grant("READ"))
        of_root = node.token("root", "narrow34", grant("READ"))
        assert await listed(api, narrow) == ["narrow12"]
        assert await listed(api, of_root, "root") == ["narrow34"]
        for caller, user in ((narrow, "ann"), (of_root, "root")):
            assert (await make(api, caller, user)).error == (403, 40301)
            assert (await make(api, caller, "eve")).error == (403, 40301)
        absent = await delete(api, narrow, "nothere1")
        refused = await delete(api, narrow, other)
        assert refused.error == absent.error == (404, 40414)
        assert refused.json["message"] == absent.json["message"].replace("nothere1", other)
        assert (await delete(api, narrow, "narrow12")).status == 204
        assert (await api.get("/topics", headers=narrow)).status == 401
        assert await listed(api, ANN) == [other]


class TestPages:
    async def test_a_list_comes_in_pages(self, closed):
        api, node = closed
        for number in range(5):
            node.token("ann", f"token{number:04}")
        names = [f"token{number:04}" for number in range(5)]
        assert await listed(api, ANN) == names
        assert await listed(api, ANN, query="?skip=1&limit=2") == names[1:3]
        assert await listed(api, ANN, query="?order=desc&limit=2") == names[:2:-1]
        assert (await api.get(f"{OF_ANN}?limit=2", headers=ANN)).json["total"] == 5

    async def test_users_and_quotas_too(self, closed):
        api, _ = closed
        page = (await api.get("/users?skip=1&limit=1", headers=ROOT)).json
        assert (page["total"], [user["name"] for user in page["users"]]) == (3, ["eve"])
        page = (await api.get("/users?contains=NN", headers=ROOT)).json
        assert (page["total"], [user["name"] for user in page["users"]]) == (1, ["ann"])
        for user in ("ann", "eve"):
            body = {"user": user, "limits": {"request_rate": 5}}
            assert (await api.call("PUT", "/quotas", json=body, headers=ROOT)).status == 200
        page = (await api.get("/quotas?skip=1", headers=ROOT)).json
        assert (page["total"], [quota["user"] for quota in page["quotas"]]) == (2, ["eve"])

    async def test_without_a_limit_a_list_is_not_longer_than_a_page(self, closed, monkeypatch):
        api, node = closed
        monkeypatch.setattr("http_api.describing.pages.ROWS_MAX", 2)
        for number in range(3):
            node.token("ann", f"token{number:04}")
        assert len(await listed(api, ANN)) == 2

    def test_all_lists_of_what_callers_make_have_pages(self):
        lists = {
            r.operation_id: r for r in ROUTES if r.method == "GET" and "list" in r.operation_id
        }
        paged = {name for name, route in lists.items() if "limit" in route.query_names}
        assert {"listUsers", "listTokens", "listQuotas", "listGroups", "listTransactions"} <= paged

    async def test_others_get_their_turn_while_entries_are_listed(self, closed, monkeypatch):
        turns = []

        async def turn():
            turns.append(1)

        for module in ("http_api.v3.acls", "node.access.service"):
            monkeypatch.setattr(f"{module}.one_turn", turn)
        api, node = closed
        acls = tuple(
            entry("User:ann", Allowed("READ", "TOPIC", f"t{number:03}")) for number in range(600)
        )
        node.store.apply(AlterAcls(added=acls, removed=()))
        monkeypatch.setattr("node.access.service.ACLS_PER_TURN", 250)
        path = f"/v3/clusters/{CLUSTER_ID}/acls"
        answer = await api.get(path, headers=ROOT)
        assert len(answer.json["data"]) == 600
        assert len(turns) >= 4
        answer = await api.get(f"{path}?principal=User:ann&resource_name=t005", headers=ROOT)
        assert len(answer.json["data"]) == 1
