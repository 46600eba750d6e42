"""v2 topics, partitions, offsets, brokers."""

import pytest

from milena.model.errors import NoLeaderError
from tests.support.fakes.ports import CLUSTER_ID
from tests.support.http.api_server import V2

PARTITION = {
    "partition": 0,
    "leader": 1,
    "replicas": [
        {"broker": 1, "leader": True, "in_sync": True},
        {"broker": 2, "leader": False, "in_sync": True},
        {"broker": 3, "leader": False, "in_sync": False},
    ],
}


async def test_root(api):
    body = (await api.get("/")).json
    assert (body["cluster_id"], body["node_id"]) == (CLUSTER_ID, 1)
    assert body["milena_version"]


async def test_topics(api):
    answer = await api.get("/topics")
    assert (answer.json, answer.headers["Content-Type"]) == (["many", "t"], V2)


async def test_a_topic(api):
    api.node.add_topic("set", settings={"retention.ms": "5"})
    body = (await api.get("/topics/set")).json
    assert list(body) == ["name", "configs", "partitions"]
    assert body["name"] == "set"
    assert body["configs"]["retention.ms"] == "5"
    assert body["configs"]["min.insync.replicas"] == "2"
    assert all(isinstance(value, str) for value in body["configs"].values())
    assert body["partitions"] == [PARTITION]


async def test_partitions(api):
    body = (await api.get("/topics/many/partitions")).json
    assert body == [{**PARTITION, "partition": p} for p in range(3)]
    assert (await api.get("/topics/t/partitions/0")).json == PARTITION


async def test_a_partition_without_leader(api):
    api.node.set_partition("t", 0, leader=None)
    body = (await api.get("/topics/t/partitions/0")).json
    assert body["leader"] == -1
    assert not any(replica["leader"] for replica in body["replicas"])


async def test_offsets(api):
    api.node.append("t", 0, [b"1"] * 5)
    answer = await api.get("/topics/t/partitions/0/offsets")
    assert answer.json == {"beginning_offset": 0, "end_offset": 5, "last_stable_offset": 5}
    api.node.errors["offsets"] = NoLeaderError("none")
    assert (await api.get("/topics/t/partitions/0/offsets")).error == (503, 50302)


async def test_brokers_are_the_live_ones(api):
    assert (await api.get("/brokers")).json == {"brokers": [1, 2]}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/topics/x", (404, 40403)),
        ("/topics/x/partitions", (404, 40401)),
        ("/topics/x/partitions/0", (404, 40401)),
        ("/topics/x/partitions/0/offsets", (404, 40401)),
        ("/topics/x/partitions/0/records", (404, 40402)),
        ("/topics/t/partitions/1", (404, 40402)),
        ("/topics/t/partitions/-1", (404, 40402)),
        ("/topics/t/partitions/99999999999", (404, 40402)),
        ("/topics/t/partitions/x/offsets", (404, 40402)),
        ("/topics/t/partitions/٣", (404, 40402)),
    ],
)
async def test_what_does_not_exist(api, path, error):
    assert (await api.get(path)).error == error


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/t", "/topics/t/partitions", "/brokers"])
async def test_accept(api, path):
    assert (await api.get(path, "application/json")).headers["Content-Type"] == "application/json"
    assert (await api.get(path, "application/json;q=0.1, */*")).headers["Content-Type"] == V2
    assert (await api.get(path, "text/html")).error == (406, 40601)


async def test_create_topic(api):
    answer = await api.post("/admin/topics", {"topic_name": "new", "partitions_count": 3})
    assert (answer.status, answer.body) == (201, b"")
    assert len((await api.get("/topics/new/partitions")).json) == 3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"topic_name": "t"}, (400, 40002)),
        ({"topic_name": "a b"}, (400, 40002)),
        ({"topic_name": "a", "partitions_count": 0}, (422, 422)),
        ({"topic_name": "a", "partitions_count": "many"}, (400, 400)),
        ({"topic_name": "a", "configs": [{"name": "nope", "value": "1"}]}, (400, 40002)),
        ({"topic_name": "a", "extra": 1}, (422, 422)),
        (b"", (400, 400)),
    ],
)
async def test_refuses_bad_topics(api, body, error):
    assert (await api.post("/admin/topics", body)).error == error
