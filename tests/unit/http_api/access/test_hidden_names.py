"""Names of topics and transactions do not reach callers that may not see them, whatever they ask that they may ask."""

import json

import orjson
import pytest
from yarl import URL

from http_api.protocol.media import JSON_TYPE
from http_api.routes import ROUTES
from milena.model.requests import OpenTransaction
from raft_meta.machine.copies import replace
from raft_meta.machine.image import CommittedOffset, Map
from tests.support.fakes.ports import CLUSTER_ID, NOW_MS, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic

HIDDEN = "gamma-secret"
NAME = "hidden-payments"
GINA = basic("gina")
ROOT = basic("root")
OF_GROUPS = [route for route in ROUTES if route.method == "GET" and "{group}" in route.path]


@pytest.fixture
async def closed():
    node = FakeNode()
    for topic in ("alpha", HIDDEN):
        node.add_topic(topic)
    async with serving(node) as api:
        closed_node = ClosedNode(node)
        closed_node.user("gina", Allowed("READ", "GROUP", "g1"), Allowed("READ", "TOPIC", "alpha"))
        body = {"member_id": "m1", "member_epoch": 0, "topics": [HIDDEN, "alpha"], "owned": []}
        assert (await api.post("/groups/g1/heartbeat", body, headers=ROOT)).status == 200
        offsets = [{"topic": topic, "partition": 0, "offset": 0} for topic in (HIDDEN, "alpha")]
        body = {"member_id": "m1", "member_epoch": 1, "offsets": offsets}
        assert (await api.post("/groups/g1/offsets", body, headers=ROOT)).status < 300
        node.transactions.open = [
            OpenTransaction(
                producer_id=7,
                producer_epoch=0,
                producer_name=NAME,
                topic=topic,
                partition=0,
                first_offset=0,
                records=1,
                began_ms=NOW_MS,
                timeout_ms=1000,
                state="open",
                leader=1,
            )
            for topic in ("alpha", HIDDEN)
        ]
        yield api, closed_node


def path_of(route, topic) -> str:
    names = {
        "group": "g1",
        "cluster": CLUSTER_ID,
        "consumer": "m1",
        "instance": "none",
        "topic": topic,
        "partition": "0",
    }
    path = route.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    if route.operation_id == "previewGroupReset":
        path += f"?topic={topic}&to=earliest"
    return path


@pytest.mark.parametrize("route", OF_GROUPS, ids=lambda route: route.operation_id)
async def test_no_answer_about_a_group_names_a_topic_that_the_caller_may_not_see(closed, route):
    api, _ = closed
    answer = await api.get(path_of(route, "alpha"), headers=GINA)
    assert HIDDEN.encode() not in answer.body, answer
    told = await api.get(path_of(route, HIDDEN), headers=GINA)
    absent = await api.get(path_of(route, "never-there"), headers=GINA)
    if "{topic}" in route.path or "topic=" in path_of(route, HIDDEN):
        # Not there, and not to be seen, are the same.
        assert told.status == absent.status
        assert told.body.replace(HIDDEN.encode(), b"T") == absent.body.replace(b"never-there", b"T")


SECRET = [{"topic": HIDDEN, "partition": 0}]
OF_CONSUMERS = {
    "seekConsumer": {"offsets": [{**SECRET[0], "offset": 0}]},
    "seekConsumerToBeginning": {"partitions": SECRET},
    "seekConsumerToEnd": {"partitions": SECRET},
    "commitConsumerOffsets": {"offsets": [{**SECRET[0], "offset": 0}]},
    "getConsumerOffsets": {"partitions": SECRET},
    "assignConsumer": {"partitions": SECRET},
    "subscribeConsumer": {"topics": [HIDDEN]},
}
"""Operations that name topics, and bodies that name one."""


QUERIES = (f"?topic={HIDDEN}", f"?topic={HIDDEN}&partition=0")
"""Which name one as well."""


@pytest.mark.parametrize(
    ("operation", "query"),
    [
        *((operation, "") for operation in OF_CONSUMERS),
        *(("getConsumerOffsets", query) for query in QUERIES),
    ],
)
async def test_a_consumer_does_not_tell_whether_a_topic_exists(closed, operation, query):
    api, _ = closed
    assert (await api.post("/consumers/g1", {"name": "c"}, headers=GINA)).status == 200
    (route,) = [one for one in ROUTES if one.operation_id == operation]
    path = route.path.replace("{group}", "g1").replace("{instance}", "c") + query
    body = None if query else OF_CONSUMERS[operation]
    told = await api.call(route.method, path, json=body, headers=GINA)
    assert told.status == 403
    absent = b"never-there"
    body = (
        None if body is None else orjson.loads(orjson.dumps(body).replace(HIDDEN.encode(), absent))
    )
    path = path.replace(HIDDEN, absent.decode())
    refused = await api.call(route.method, path, json=body, headers=GINA)
    assert refused.status == 403
    assert refused.body.replace(absent, b"T") == told.body.replace(HIDDEN.encode(), b"T")


async def test_every_call_of_consumers_whose_body_names_topics_is_tried(closed):
    naming = {
        route.operation_id
        for route in ROUTES
        if route.path.startswith("/consumers/{group}/instances/{instance}/")
        and route.body is not None
    }
    assert naming <= set(OF_CONSUMERS)


async def test_a_callers_group_is_shown_as_far_as_it_may_see(closed):
    api, closed_node = closed
    for path in ("/groups/g1", "/groups/g1/members"):
        (member,) = (await api.get(path, headers=GINA)).json["members"]
        assert member["topics"] == ["alpha"]
        assert [row["topic"] for row in member["assignment"]] == ["alpha"]
    closed_node.allow("gina", Allowed("DESCRIBE", "TOPIC", HIDDEN))
    (member,) = (await api.get("/groups/g1", headers=GINA)).json["members"]
    assert set(member["topics"]) == {"alpha", HIDDEN}


async def test_another_members_heartbeat_does_not_tell_its_topics(closed):
    api, _ = closed
    body = {"member_id": "m1", "member_epoch": 1}
    answer = await api.post("/groups/g1/heartbeat", body, headers=GINA)
    assert answer.status == 200
    assert [row["topic"] for row in answer.json["assignment"]] == ["alpha"]


async def test_a_transactions_name_is_for_callers_that_may_see_it(closed):
    api, closed_node = closed
    (row,) = (await api.get("/transactions", headers=GINA)).json["transactions"]
    assert (row["transactional_id"], row["partition_count"]) == (None, 1)
    # Nor does a search tell it.
    assert (await api.get("/transactions?contains=hidden", headers=GINA)).json["total"] == 0
    closed_node.allow("gina", Allowed("DESCRIBE", "TRANSACTIONAL_ID", NAME))
    (row,) = (await api.get("/transactions?contains=hidden", headers=GINA)).json["transactions"]
    assert row["transactional_id"] == NAME


LABELS = {
    "/groups/g1/heartbeat": ("member_id", "instance_id", "client_id", "assignor", "pattern"),
    "/consumers/g1": ("name",),
    "/users/root/tokens": ("note",),
    "/producers": ("name",),
    "/transactions:begin": ("transactional_id",),
    "/admin/topics": ("topic_name",),
}


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path, fields in LABELS.items() for field in fields]
)
@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\nb", "a\x9bb", "a\u202eb"], ids=ascii)
async def test_a_name_that_others_are_shown_has_no_control_character(closed, path, field, text):
    api, _ = closed
    body = {"member_epoch": 0, "topics": ["alpha"], "owned": []} if "heartbeat" in path else {}
    answer = await api.post(path, {**body, field: text}, headers=ROOT)
    assert answer.status in {400, 422}, answer


MAKING = {
    "/groups/{}/heartbeat": {"member_epoch": 0, "topics": ["alpha"], "owned": []},
    "/groups/{}/offsets": {"offsets": [{"topic": "alpha", "partition": 0, "offset": 0}]},
    "/groups/{}/offsets:reset": {"topic": "alpha", "to": 0},
    "/consumers/{}": {"name": "c"},
}
"""Requests that make a group."""


@pytest.mark.parametrize("path", MAKING)
@pytest.mark.parametrize("name", ["a%C2%9Bb", "a%E2%80%AEb", "a%C2%85b"])
async def test_no_group_is_made_whose_name_has_a_control_character(closed, path, name):
    api, _ = closed
    answer = await api.post(path.format(name), MAKING[path], headers=ROOT)
    assert answer.status == 400
    assert "control characters" in answer.json["message"]


async def test_a_transaction_makes_no_group_whose_name_has_a_control_character(closed):
    api, _ = closed
    row = {"group": "a\x9bb", "topic": "alpha", "partition": 0, "next_offset": 0}
    answer = await api.post("/transactions", {"offsets": [row]}, headers=ROOT)
    assert answer.status == 400
    assert "control characters" in answer.json["message"]


ALL_MAKING = {
    **MAKING,
    "/groups/g1/heartbeat": {
        "member_epoch": 0,
        "topics": ["alpha"],
        "owned": [],
        "member_id": "{}",
    },
    "/consumers/g1": {"name": "{}"},
    "/transactions": {
        "offsets": [{"group": "{}", "topic": "alpha", "partition": 0, "next_offset": 0}]
    },
    "/users/{}": {"password": "long enough"},
}
"""Requests that make something which has its name in a path."""


@pytest.mark.parametrize("path", ALL_MAKING)
@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("is_closed", [False, True])
async def test_nothing_is_made_whose_name_clients_remove_from_paths(path, name, is_closed):
    node = FakeNode()
    node.add_topic("alpha")
    body = json.dumps(ALL_MAKING[path]).replace('"{}"', f'"{name}"')
    method = "PUT" if path.startswith("/users") else "POST"
    async with serving(node) as api:
        if is_closed:
            ClosedNode(node)
        # The test client is one that would remove the name.
        url = URL(api.base_url + path.format(name.replace(".", "%2E")), encoded=True)
        headers = {"Content-Type": JSON_TYPE, **(ROOT if is_closed else {})}
        # The lane takes a head that repeats.
        for _ in range(3):
            async with api.session.request(method, url, data=body, headers=headers) as response:
                assert response.status == 400
                assert "cannot be named" in (await response.json())["message"]


async def test_the_history_of_a_group_does_not_name_a_hidden_topic(closed):
    api, _ = closed
    node = api.node
    committed = CommittedOffset(offset=0, leader_epoch=-1, metadata="", commit_ms=NOW_MS)
    places = Map().set((node.image.topic_ids[HIDDEN], 0), committed)
    node.image = replace(node.image, offsets=node.image.offsets.set("g1", places))
    refused = await api.get("/history?group=g1", headers=GINA)
    assert refused.status == 403
    assert HIDDEN.encode() not in refused.body
