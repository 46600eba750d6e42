"""Producers, cluster metadata, probes."""

import asyncio

import pytest

from http_api.ports.node import ProducerState
from milena.model.errors import NoQuorumError
from tests.support.fakes.ports import CLUSTER_ID


async def test_producer_ids_are_allocated(api):
    first, second = await api.post("/producers"), await api.post("/producers", {})
    assert first.json == {"producer_id": 1, "producer_epoch": 0, "last_sequences": {}}
    assert second.json["producer_id"] != 1


async def test_a_name_keeps_its_id_under_the_next_epoch(api):
    first = await api.post("/producers", {"name": "p"})
    again = await api.post("/producers", {"name": "p"})
    assert again.json["producer_id"] == first.json["producer_id"]
    assert again.json["producer_epoch"] == first.json["producer_epoch"] + 1


async def test_last_sequences_tell_where_a_producer_stopped(api):
    async def allocate_producer(name):
        return ProducerState(producer_id=4, producer_epoch=2, last_sequences={"t": {0: 17}})

    api.node.allocate_producer = allocate_producer
    answer = await api.post("/producers", {"name": "p"})
    assert answer.json["last_sequences"] == {"t": {"0": 17}}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"name": ""}, (422, 422)),
        ({"name": "a\nb"}, (422, 422)),
        ({"name": "x" * 256}, (422, 422)),
        ({"name": 1}, (400, 400)),
        ({"other": 1}, (422, 422)),
        ([], (400, 400)),
        (b"null", (400, 400)),
        (b"{", (400, 400)),
    ],
)
async def test_refuses_names_that_are_none(api, body, error):
    assert (await api.post("/producers", body)).error == error


@pytest.mark.parametrize("path", ["/producers", "/drain"])
async def test_web_forms_are_refused_where_a_body_may_be_left_out(api, path):
    """Pages of other origins may send these without asking."""
    for type_ in ("application/x-www-form-urlencoded", "text/plain"):
        assert (await api.post(path, b"{}", type_)).error == (415, 415)
    assert not api.node.drains


async def test_no_quorum_no_producer(api):
    api.node.errors["allocate_producer"] = NoQuorumError("no quorum")
    answer = await api.post("/producers")
    assert answer.error == (503, 50305)
    assert answer.headers["Retry-After"] == "1"


async def test_metadata_shows_brokers_and_leaders(api):
    api.node.set_partition("t", 0, leader=None)
    body = (await api.get("/metadata")).json
    assert body["cluster_id"] == CLUSTER_ID
    assert body["version"] == api.node.image.index
    assert (body["controller_id"], body["controller_epoch"]) == (1, 3)
    assert body["brokers"][2] == {
        "broker_id": 3,
        "url": "http://node3.test:8082",
        "rack": "r3",
        "is_fenced": True,
        "is_draining": False,
    }
    topics = {topic["name"]: topic for topic in body["topics"]}
    assert list(topics) == ["many", "t"]
    assert len(topics["many"]["partitions"]) == 3
    assert topics["t"]["partitions"] == [
        {"partition": 0, "leader": None, "leader_epoch": 5, "replicas": [1, 2, 3], "isr": [1, 2]}
    ]


async def test_metadata_of_one_image_is_the_same_until_it_changes(api):
    first, second = await api.get("/metadata"), await api.get("/metadata")
    assert first.body == second.body
    api.node.add_topic("new")
    assert "new" in {topic["name"] for topic in (await api.get("/metadata")).json["topics"]}


async def test_metadata_waits_for_a_later_version(api):
    version = api.node.image.index
    waiting = asyncio.ensure_future(api.get(f"/metadata?since={version}&timeout=60000"))
    assert (await api.get(f"/metadata?since={version - 1}")).json["version"] == version
    api.node.add_topic("new")
    answer = (await waiting).json
    assert answer["version"] > version
    assert "new" in {topic["name"] for topic in answer["topics"]}


async def test_metadata_answers_after_the_timeout(api):
    version = api.node.image.index
    assert (await api.get(f"/metadata?since={version}&timeout=0")).json["version"] == version


@pytest.mark.parametrize("query", ["since=x", "since=-1", "since=1&timeout=-1", "since="])
async def test_refuses_bad_versions(api, query):
    assert (await api.get(f"/metadata?{query}")).error == (400, 400)


async def test_probes(api):
    for path in ("/livez", "/startupz", "/readyz"):
        answer = await api.get(path)
        assert (answer.status, answer.json) == (200, {"status": "ok", "reason": ""})
    api.node.is_ready = api.node.has_started = False
    assert (await api.get("/livez")).status == 200
    started, ready = await api.get("/startupz"), await api.get("/readyz")
    assert (started.status, started.json["status"]) == (503, "unavailable")
    assert (ready.status, ready.json["reason"]) == (503, "catching up")


async def test_a_probe_that_says_no_is_not_logged_as_a_fault(api, caplog):
    caplog.set_level("DEBUG", "http_api.access")
    api.node.is_ready = api.node.has_started = False
    for path in ("/readyz", "/startupz", "/ready", "/status/ready"):
        assert (await api.get(path)).status == 503
    assert {record.levelname for record in caplog.records} == {"INFO"}


async def test_probes_have_the_names_that_other_servers_give_them(api):
    for is_ready in (True, False):
        api.node.is_ready = is_ready
        for path in ("/ready", "/status/ready"):
            assert (await api.get(path)).body == (await api.get("/readyz")).body
        assert (await api.get("/healthy")).status == 200


async def test_metrics_are_prometheus_text(api):
    answer = await api.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"milena_fake 1\n# HELP milena_http_requests_total" in answer.body


async def test_drain_hands_over_and_tells_whether_it_came_to_an_end(api):
    assert (await api.post("/drain", {"timeout_ms": 1500})).json == {
        "node_id": api.node.node_id,
        "is_drained": True,
    }
    api.node.can_drain = False
    assert (await api.post("/drain")).json["is_drained"] is False
    assert api.node.drains == [1500, 30_000]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"timeout_ms": 0}, 422),
        ({"timeout_ms": 300_001}, 422),
        ({"force": True}, 422),
        ([], 400),
        (b"null", 400),
    ],
)
async def test_drain_refuses_what_it_does_not_understand(api, body, error):
    assert (await api.post("/drain", body)).status == error
    assert not api.node.drains


async def test_records_are_deleted(api):
    path = "/topics/t/partitions/0/records:delete"
    api.node.append("t", 0, [b"1"])
    api.node.append("t", 0, [b"2"])
    for body, before, start in (
        ({"before_offset": 1}, 1, 1),
        ({"before_offset": "0"}, 0, 1),
        ({"before_offset": "latest"}, None, 2),
    ):
        answer = await api.post(f"{path}?timeout_ms=9", body, "application/json")
        assert answer.status == 200
        assert answer.json == {"partition": 0, "log_start_offset": start}
        assert api.node.deletions[-1] == ("t", 0, before, 9)
    await api.post(path, {"before_offset": 1})
    assert api.node.deletions[-1][3] == 30_000


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"before_offset": None}, (422, 422)),
        ({"before_offset": -1}, (422, 422)),
        ({"before_offset": "earliest"}, (400, 400)),
        ({"before_offset": True}, (400, 400)),
        ({"before_offset": 0, "partition": 1}, (422, 422)),
        ({"before_offset": 99}, (400, 40002)),
    ],
)
async def test_what_to_delete_must_be_said(api, body, error):
    assert (await api.post("/topics/t/partitions/0/records:delete", body)).error == error
    assert (
        await api.post("/topics/x/partitions/0/records:delete", {"before_offset": 0})
    ).error == (404, 40401)
    assert (
        await api.post("/topics/t/partitions/x/records:delete", {"before_offset": 0})
    ).error == (404, 40402)


async def test_the_last_hour_is_told_of_nodes_a_topic_or_a_group(api):
    api.node.add_topic("orders")
    nodes = (await api.get("/history")).json
    assert nodes["series"] == [
        {"name": "bytes_in_per_second", "node_id": 1, "values": [None, 0.2, 1000000]}
    ]
    assert nodes["busiest_partitions"][0]["records_in_per_second"] == 2.1
    assert nodes["busiest_partitions"][0]["records_out_per_second"] == 3.5
    assert nodes["silent_nodes"] == [2]
    assert nodes["nodes"] == [{"node_id": 1, "version": "0.1.0"}, {"node_id": 3, "version": None}]
    assert (await api.get("/history?topic=orders")).json["series"][0]["node_id"] is None
    assert (await api.get("/history?group=billing")).json["series"][0]["name"] == "lag"
    assert (await api.get("/history?topic=nothing")).error == (404, 40401)
    assert (await api.get("/history?topic=orders&group=billing")).status == 400
