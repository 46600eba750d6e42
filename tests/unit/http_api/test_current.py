"""Whatever one node has answered, the next answer of every node knows."""

from dataclasses import replace

import pytest

from http_api.routes import ROUTES
from http_api.v2 import consumers
from milena.model.errors import NoQuorumError
from tests.support.fakes.ports import CLUSTER_ID, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic

OF_THE_NODE = {
    "/", "/v3", "/v3/clusters", "/v3/clusters/{cluster}", "/openapi.json", "/openapi", "/openapi/v3",
    "/v3/clusters/{cluster}/broker-configs", "/v3/clusters/{cluster}/broker-configs/{config}",
    "/access",
}  # fmt: skip
"""Who answers, what it can do, and whom it takes its caller for: the same as long as the node runs, or once the cluster
has a name, or what the node itself goes by."""
V2, V3 = (
    "/topics/{topic}/partitions/{partition}",
    "/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}",
)
OF_LEADERS = {
    "/topics/{topic}/records", f"{V2}/records", f"{V2}/offsets", f"{V3}/offset",
    V2, V3, f"{V3}/replicas", f"{V3}/replicas/{{broker}}",
}  # fmt: skip
"""Come from a partition's leader, or say who that is, which has to be found where a majority is slow to answer. Before
a topic or a partition is said to be missing, the quorum is asked."""
OF_THE_LAST_HOUR = {"/history"}
"""What nodes have seen, whatever a majority knows by now; of a topic that is missing here the quorum is asked."""
FALLS_BACK = {
    "/metadata",
    "/metadata/summary",
    "/metadata/topics",
    "/metadata/topics/{topic}",
}
"""Answers without a majority, too, and says so."""
LISTS = (
    ("/topics", lambda body: body),
    ("/v3/clusters/cluster-in-memory/topics", lambda body: [t["topic_name"] for t in body["data"]]),
    ("/metadata", lambda body: [topic["name"] for topic in body["topics"]]),
    ("/metadata/topics", lambda body: [topic["name"] for topic in body["topics"]]),
)


def behind(node, change):
    """Let a change happen that this node has not heard of."""
    before = node.image
    change()
    node.image, node.unheard = before, node.image
    node.callers.on_image(before)


def test_every_read_of_the_replicated_state_is_current():
    others = OF_THE_NODE | OF_LEADERS | OF_THE_LAST_HOUR | FALLS_BACK
    rows = [row for row in ROUTES if row.method == "GET" and not row.is_exempt]
    late = {row.path for row in rows if not row.is_current} - others
    # Groups and their consumers are answered behind a barrier of their services' own.
    assert {path for path in late if "consumer" not in path and "group" not in path} == set()
    assert {row.path for row in ROUTES if row.is_current} & others == set()


@pytest.mark.parametrize(("path", "names"), LISTS)
async def test_a_list_knows_what_another_node_has_answered(api, path, names):
    behind(api.node, lambda: api.node.add_topic("made-elsewhere"))
    assert "made-elsewhere" in names((await api.get(path)).json)


async def test_a_description_knows_what_another_node_has_answered(api):
    behind(api.node, lambda: api.node.add_topic("t", settings={"retention.ms": "77"}))
    assert (await api.get("/topics/t")).json["configs"]["retention.ms"] == "77"


@pytest.mark.parametrize(
    "path", ["/topics/t/partitions/3", V3.format(cluster=CLUSTER_ID, topic="t", partition=3)]
)
async def test_a_partition_is_looked_for_at_the_quorum_before_it_is_missing(api, path):
    behind(api.node, lambda: api.node.add_topic("t", 4))
    assert (await api.get(path)).status == 200


async def test_who_leads_is_told_without_a_majority(api):
    api.node.errors["current_image"] = NoQuorumError("no majority answers")
    assert (await api.get("/topics/t/partitions/0")).json["leader"] == 1


async def test_a_list_that_may_be_old_is_not_given(api):
    api.node.errors["current_image"] = NoQuorumError("no majority answers")
    assert (await api.get("/topics")).error == (503, 50305)


async def test_the_clusters_map_is_given_without_a_majority_and_says_so(api):
    assert (await api.get("/metadata")).json["is_current"] is True
    assert (await api.get("/metadata?since=0")).json["is_current"] is False
    api.node.errors["current_image"] = NoQuorumError("no majority answers")
    for path in ("/metadata", "/metadata/summary", "/metadata/topics", "/metadata/topics/t"):
        answer = await api.get(path)
        assert (answer.status, answer.json["is_current"]) == (200, False)


async def test_a_right_that_another_node_has_given_refuses_nothing():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        closed = ClosedNode(node)
        closed.user("ann")
        rounds = counted_rounds(node)
        path, ann = "/topics/t/partitions/0", basic("ann")
        assert (await api.get(path, headers=ann)).status == 403
        assert len(rounds) == 1
        assert (await api.get(path, headers=basic("nobody"))).status == 401
        assert (await api.get(path)).status == 401
        assert len(rounds) == 1
        behind(node, lambda: closed.allow("ann", Allowed("DESCRIBE", "TOPIC", "t")))
        assert (await api.get(path, headers=ann)).status == 200
        node.errors["current_image"] = NoQuorumError("no majority answers")
        assert (await api.get(path, headers=ann)).status == 200
        assert (await api.get("/topics/u/partitions/0", headers=ann)).status == 503
        # A retry under an idempotency key: its first attempt may have written the records.
        path, keyed = "/topics/u/partitions/0/records", {**ann, "Idempotency-Key": "k"}
        assert (await api.post(path, {"records": [{"value": 1}]}, headers=ann)).status == 503
        assert (await api.post(path, {"records": [{"value": 1}]}, headers=keyed)).status == 504


async def test_a_user_that_is_no_superuser_any_more_is_changed():
    node = FakeNode()
    async with serving(node) as api:
        closed = ClosedNode(node)
        closed.user("ann", Allowed("ALTER", "CLUSTER", "kafka-cluster"))
        closed.user("bob", is_superuser=True)
        plain = replace(node.image.users["bob"], is_superuser=False)
        behind(node, lambda: put_user(node, plain))
        put = {
            "path": "/users/bob",
            "json": {"password": "a new password"},
            "headers": basic("ann"),
        }
        assert (await api.call("PUT", **put)).status == 200
        assert not node.image.users["bob"].is_superuser


def put_user(node, user):
    node.image = replace(node.image, users=node.image.users.set(user.name, user))


async def test_consumers_that_another_node_has_deleted_count_no_more(monkeypatch):
    monkeypatch.setattr(consumers, "CONSUMERS_PER_PRINCIPAL_MAX", 1)
    node = FakeNode()
    async with serving(node) as api:
        closed = ClosedNode(node)
        ann = closed.user("ann", Allowed("READ", "GROUP", "g"))
        counts = node.image.consumer_counts
        node.image = replace(node.image, consumer_counts=counts.set("User:ann", 1))
        assert (await api.post("/consumers/g", {"name": "c"}, headers=ann)).status == 409
        behind(node, lambda: setattr(node, "image", replace(node.image, consumer_counts=counts)))
        assert (await api.post("/consumers/g", {"name": "c"}, headers=ann)).status == 200


def counted_rounds(node):
    """Grows by one with every question to the quorum."""
    found, real = [], node.current_image

    async def current_image():
        found.append(node.image.index)
        return await real()

    node.current_image = current_image
    return found
