"""Consumer groups over HTTP: heartbeats, commits, descriptions, resets; and v3's groups, members and lag."""

import json

import pytest

from http_api.ports.groups import Heartbeat
from milena.model.errors import NoLeaderError, NotCoordinatorError
from tests.support.fakes.ports import NOW_MS
from tests.support.fakes.rest import COMMIT_MS
from tests.support.http.api_server import V3

JSON = "application/json"
G = "/groups/g"
V3G = f"{V3}/consumer-groups"


async def join(api, name="m1", topics=("t", "many"), **more):
    answer = await api.post(
        f"{G}/heartbeat",
        {"member_id": name, "member_epoch": 0, "topics": list(topics), "owned": [], **more},
        JSON,
    )
    assert answer.status == 200, answer
    return answer.json


async def commit(api, *places, **more):
    offsets = [{"topic": t, "partition": p, "offset": o} for t, p, o in places]
    return await api.post(f"{G}/offsets", {"offsets": offsets, **more}, JSON)


def entry(offset, metadata=""):
    return {
        "offset": offset,
        "leader_epoch": -1,
        "metadata": metadata,
        "commit_timestamp": COMMIT_MS,
    }


# -- heartbeats ------------------------------------------------------------------------------------


async def test_a_member_joins_stays_and_leaves(api):
    joined = await join(api)
    assert joined == {
        "member_id": "m1",
        "member_epoch": 1,
        "generation": 1,
        "heartbeat_interval_ms": 3000,
        "assignment": [
            {"topic": "many", "partitions": [0, 1, 2]},
            {"topic": "t", "partitions": [0]},
        ],
        "pending": [],
    }
    stayed = await api.post(f"{G}/heartbeat", {"member_id": "m1", "member_epoch": 1}, JSON)
    assert stayed.json == joined
    left = await api.post(f"{G}/heartbeat", {"member_id": "m1", "member_epoch": -1}, JSON)
    assert (left.json["member_epoch"], left.json["assignment"]) == (-1, [])
    gone = await api.post(f"{G}/heartbeat", {"member_id": "m1", "member_epoch": 1}, JSON)
    assert gone.error == (404, 40411)


async def test_everything_that_a_member_says_is_passed_on(api):
    await api.post(
        f"{G}/heartbeat?timeout_ms=2500",
        {
            "member_id": "m1", "member_epoch": 0, "instance_id": "i", "client_id": "c", "pattern": "t.*",
            "assignor": "range", "session_timeout_ms": 6000, "rebalance_timeout_ms": "9000",
            "owned": [{"topic": "t", "partitions": [0]}, {"topic": "many", "partitions": [2, 1]}],
        },
        JSON,
    )  # fmt: skip
    await api.post(f"{G}/heartbeat?timeout_ms=999999999", {"member_epoch": 0, "topics": []}, JSON)
    first, second = api.node.groups.heartbeats
    assert first == Heartbeat(
        group_id="g", member_id="m1", member_epoch=0, instance_id="i", client_id="c", host="127.0.0.1", topics=None,
        pattern="t.*", assignor="range", session_timeout_ms=6000, rebalance_timeout_ms=9000,
        owned=(("t", (0,)), ("many", (2, 1))), wait_ms=2500,
    )  # fmt: skip
    assert second == Heartbeat(
        group_id="g", member_id="", member_epoch=0, host="127.0.0.1", topics=(), wait_ms=300_000
    )


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"member_epoch": -2}, (422, 422)),
        ({"member_epoch": "now"}, (400, 400)),
        ({"member_epoch": 0, "topics": "t"}, (400, 400)),
        ({"member_epoch": 0, "owned": [{"topic": "t", "partitions": ["0"]}]}, (400, 400)),
        ({"member_epoch": 0, "owned": [{"topic": "t", "partitions": [-1]}]}, (422, 422)),
        ({"member_epoch": 0, "owned": [{"topic": "t", "partitions": [0] * 10_001}]}, (422, 422)),
        ({"member_epoch": 0, "session_timeout_ms": 10}, (422, 42204)),
        ({"member_epoch": 0, "topic": "t"}, (422, 422)),
    ],
)
async def test_heartbeats_that_cannot_be(api, body, error):
    assert (await api.post(f"{G}/heartbeat", body, JSON)).error == error


async def test_a_node_that_may_not_decide_says_so(api):
    api.node.errors["group_heartbeat"] = NotCoordinatorError("not now")
    answer = await api.post(f"{G}/heartbeat", {"member_epoch": 0}, JSON)
    assert answer.error == (503, 50310)
    assert answer.headers["Retry-After"] == "1"


# -- offsets ---------------------------------------------------------------------------------------


async def test_commits_with_and_without_a_member(api):
    assert (await commit(api, ("t", 0, 0), ("many", 1, 0))).status == 204
    joined = await join(api)
    assert (await commit(api, ("t", 0, 0))).error == (409, 40918)
    member = {"member_id": "m1", "member_epoch": joined["member_epoch"]}
    assert (await commit(api, ("t", 0, 5), **member)).status == 204
    assert (await commit(api, ("t", 0, 6), **{**member, "member_epoch": 9})).error == (409, 40925)
    assert (await commit(api, ("t", 0, 6), **{**member, "member_id": "x"})).error == (404, 40411)
    assert (await commit(api, ("t", 0, 6), member_id="m1")).error == (422, 422)
    found = (await api.get(f"{G}/offsets")).json
    assert found == {
        "group_id": "g",
        "offsets": {"many": {"1": entry(0)}, "t": {"0": entry(5)}},
    }
    assert (await api.get(f"{G}/offsets?topic=t")).json["offsets"] == {"t": {"0": entry(5)}}
    assert (await api.get(f"{G}/offsets?topic=x")).json["offsets"] == {}
    assert (await api.get(f"{G}/offsets?topic=")).error == (400, 400)
    assert (await api.get("/groups/x/offsets")).error == (404, 40405)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0}]}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": -1}]}, (422, 422)),
        ({"offsets": [{"topic": "x", "partition": 0, "offset": 0}]}, (404, 40401)),
        ({"offsets": [{"topic": "t", "partition": 7, "offset": 0}]}, (404, 40402)),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 0}] * 10_001}, (422, 422)),
    ],
)
async def test_commits_that_cannot_be(api, body, error):
    assert (await api.post(f"{G}/offsets", body, JSON)).error == error


# -- descriptions, deletion, reset -----------------------------------------------------------------


async def test_a_group_is_described(api):
    await commit(api, ("t", 0, 3))
    await join(api, client_id="here", instance_id="i")
    head = {
        "group_id": "g", "kind": "server", "state": "STABLE", "generation": 1, "assignor": "sticky",
        "coordinator": 1, "member_count": 1,
    }  # fmt: skip
    assert (await api.get("/groups")).json == {"total": 1, "groups": [head]}
    assert (await api.get(f"{G}/")).json == {
        **head,
        "members": [
            {
                "member_id": "m1", "instance_id": "i", "client_id": "here", "host": "127.0.0.1",
                "is_rest": False, "topics": ["many", "t"], "pattern": None, "member_epoch": 1,
                "assignment": [{"topic": "many", "partitions": [0, 1, 2]}, {"topic": "t", "partitions": [0]}],
                "revoking": [], "pending": [],
            }
        ],
        "offsets": {"t": {"0": entry(3)}},
    }  # fmt: skip
    assert (await api.get("/groups/x")).error == (404, 40405)


async def test_a_group_with_members_stays(api):
    await join(api)
    assert (await api.call("DELETE", G)).error == (409, 40918)
    refused = await api.post(f"{G}/offsets:reset", {"topic": "t", "to": "earliest"}, JSON)
    assert refused.error == (409, 40918)


async def test_a_group_without_members_goes(api):
    await commit(api, ("t", 0, 3))
    assert (await api.call("DELETE", G)).status == 204
    assert (await api.call("DELETE", G)).error == (404, 40405)


@pytest.mark.parametrize("path", [G, f"{V3G}/g"])
@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("earliest", 0),
        ("latest", 4),
        (2, 2),
        ("2", 2),
        (4, 4),
        ("2023-11-14T22:13:21Z", 2),
        ("1969-01-01T00:00:00Z", 0),
        ("2030-01-01", 4),
    ],
)
async def test_a_group_goes_on_elsewhere(api, path, to, offset):
    for time in (NOW_MS, NOW_MS + 1000):
        api.node.append("t", 0, [b"1", b"2"], base_timestamp_ms=time)
    await commit(api, ("t", 0, 1))
    answer = await api.post(f"{path}/offsets:reset", {"topic": "t", "to": to}, JSON)
    assert answer.json == {"group_id": "g", "offsets": {"t": {"0": entry(offset)}}}
    assert (await api.get(f"{G}/offsets")).json == answer.json


async def test_where_a_reset_would_go_is_told_a_page_at_a_time_and_nothing_is_changed(api):
    for partition in (0, 0, 2):
        await api.post(f"/topics/many/partitions/{partition}", {"records": [{"value": 1}]}, JSON)
    await commit(api, ("many", 0, 1))
    await join(api)
    body = (await api.get(f"{G}/offsets:reset?topic=many&to=latest&limit=2")).json
    assert body == {
        "group_id": "g", "topic": "many", "total": 3,
        "partitions": [
            {"partition": 0, "now": 1, "then": 2}, {"partition": 1, "now": None, "then": 0},
        ],
    }  # fmt: skip
    for query, then in (("to=1&skip=2", [1]), ("to=earliest&order=desc&limit=1", [0])):
        body = (await api.get(f"{G}/offsets:reset?topic=many&{query}")).json
        assert [(row["partition"], row["then"]) for row in body["partitions"]] == [(2, then[0])]
    new = (await api.get("/groups/new/offsets:reset?topic=t&to=1970-01-01T00:00:00Z")).json
    assert new["partitions"][0]["now"] is None
    assert (await api.get("/groups/new")).status == 404
    assert (await api.get(f"{G}/offsets")).json["offsets"] == {"many": {"0": entry(1)}}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("topic=many", (400, 400)),
        ("to=latest", (400, 400)),
        ("topic=many&to=begin", (400, 400)),
        ("topic=nobody&to=latest", (404, 40401)),
        ("topic=many&to=latest&sort=lag", (400, 400)),
    ],
)
async def test_previews_that_cannot_be(api, query, error):
    assert (await api.get(f"{G}/offsets:reset?{query}")).error == error


async def test_only_some_partitions(api):
    await commit(api, *(("many", p, 0) for p in range(3)))
    for partition in range(3):
        api.node.append("many", partition, [b"1"])
    answer = await api.post(
        f"{G}/offsets:reset", {"topic": "many", "partitions": [2, 0], "to": "latest"}, JSON
    )
    assert answer.json["offsets"]["many"] == {"0": entry(1), "2": entry(1)}
    found = (await api.get(f"{G}/offsets")).json["offsets"]["many"]
    assert {p: item["offset"] for p, item in found.items()} == {"0": 1, "1": 0, "2": 1}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"topic": "t"}, (422, 422)),
        ({"to": "latest"}, (422, 422)),
        ({"topic": "t", "to": -1}, (422, 422)),
        ({"topic": "t", "to": 1.5}, (400, 400)),
        ({"topic": "t", "to": True}, (400, 400)),
        ({"topic": "t", "to": "soon"}, (400, 400)),
        ({"topic": "t", "to": "latest", "partitions": [5]}, (404, 40402)),
        ({"topic": "t", "to": "latest", "partitions": "0"}, (400, 400)),
        ({"topic": "t", "to": 1}, (400, 40002)),
        ({"topic": "t", "to": 10**20}, (422, 422)),
        ({"topic": "t", "to": str(10**20)}, (400, 400)),
    ],
)
async def test_resets_that_cannot_be(api, body, error):
    await commit(api, ("t", 0, 0))
    body = json.dumps(body).encode()
    assert (await api.post(f"{G}/offsets:reset", body, JSON)).error == error


@pytest.mark.parametrize("to", ["begin", "-1", True, 1.5])
async def test_a_reset_to_nowhere_is_told_where_to(api, to):
    refused = await api.post(f"{G}/offsets:reset", {"topic": "t", "to": to}, JSON)
    assert refused.error == (400, 400)
    assert "earliest, latest, an offset or an ISO-8601 time" in refused.json["message"]


# -- v3 --------------------------------------------------------------------------------------------


@pytest.fixture
async def group(api):
    """``m1`` reads both topics; five records are committed of eight."""
    for partition, count in ((0, 3), (1, 4)):
        api.node.append("many", partition, [b"1"] * count)
    api.node.append("t", 0, [b"1"])
    await commit(api, ("many", 0, 3), ("many", 1, 1), ("t", 0, 1))
    await join(api, topics=["many"], client_id="here", instance_id="i")
    return api


def without_links(item):
    plain = {k: v for k, v in item.items() if k not in ("metadata", "kind", "cluster_id")}
    return {k: v for k, v in plain.items() if not isinstance(v, dict)}


async def test_v3_groups(group):
    found = (await group.get(f"{V3G}/g")).json
    url = f"{group.base_url}{V3G}/g"
    assert found["kind"] == "KafkaConsumerGroup"
    assert found["metadata"]["self"] == url
    assert found["metadata"]["resource_name"].endswith("/consumer-group=g")
    assert without_links(found) == {
        "consumer_group_id": "g", "is_simple": False, "partition_assignor": "sticky", "state": "STABLE",
        "type": "CONSUMER", "is_mixed_consumer_group": False,
    }  # fmt: skip
    assert found["coordinator"]["related"] == f"{group.base_url}{V3}/brokers/1"
    assert found["consumers"] == found["consumer"] == {"related": f"{url}/consumers"}
    assert found["lag_summary"] == {"related": f"{url}/lag-summary"}
    listed = (await group.get(V3G)).json
    assert (listed["kind"], listed["data"]) == ("KafkaConsumerGroupList", [found])
    group.node.coordinator = None
    assert (await group.get(f"{V3G}/g")).json["coordinator"] is None
    assert (await group.get(f"{V3G}/x")).error == (404, 40405)


async def test_v3_a_group_that_nobody_joined_is_simple(api):
    await commit(api, ("t", 0, 0))
    found = (await api.get(f"{V3G}/g")).json
    assert (found["is_simple"], found["state"]) == (True, "EMPTY")
    assert (await api.get(f"{V3G}/g/consumers")).json["data"] == []


async def test_v3_members(group):
    found = (await group.get(f"{V3G}/g/consumers/m1")).json
    assert without_links(found) == {
        "consumer_group_id": "g", "consumer_id": "m1", "instance_id": "i", "client_id": "here",
    }  # fmt: skip
    assert (await group.get(f"{V3G}/g/consumers")).json["data"] == [found]
    url = f"{group.base_url}{V3G}/g/consumers/m1/assignments"
    assert found["assignments"] == {"related": url}
    listed = (await group.get(url)).json
    assert [item["partition_id"] for item in listed["data"]] == [0, 1, 2]
    one = (await group.get(f"{url}/many/partitions/1")).json
    assert one == listed["data"][1]
    assert without_links(one) == {
        "consumer_group_id": "g", "consumer_id": "m1", "topic_name": "many", "partition_id": 1,
    }  # fmt: skip
    assert one["lag"]["related"] == f"{group.base_url}{V3G}/g/lags/many/partitions/1"
    assert one["partition"]["related"] == f"{group.base_url}{V3}/topics/many/partitions/1"
    assert (await group.get(f"{url}/t/partitions/0")).error == (404, 40410)
    assert (await group.get(f"{V3G}/g/consumers/x")).error == (404, 40411)
    assert (await group.get(f"{V3G}/g/consumers/x/assignments")).error == (404, 40411)


async def test_v3_lag(group):
    listed = (await group.get(f"{V3G}/g/lags")).json
    assert listed["kind"] == "KafkaConsumerLagList"
    rows = [
        (i["topic_name"], i["partition_id"], i["current_offset"], i["log_end_offset"], i["lag"])
        for i in listed["data"]
    ]
    assert rows == [("many", 0, 3, 3, 0), ("many", 1, 1, 4, 3), ("t", 0, 1, 1, 0)]
    readers = [(i["consumer_id"], i["instance_id"], i["client_id"]) for i in listed["data"]]
    assert readers == [("m1", "i", "here"), ("m1", "i", "here"), ("", None, "")]
    one = (await group.get(f"{V3G}/g/lags/many/partitions/1")).json
    assert one == listed["data"][1]
    assert (await group.get(f"{V3G}/g/lags/many/partitions/2")).error == (404, 40410)
    assert (await group.get(f"{V3G}/x/lags")).error == (404, 40405)


async def test_v3_lag_in_all(group):
    found = (await group.get(f"{V3G}/g/lag-summary")).json
    assert without_links(found) == {
        "consumer_group_id": "g", "max_lag_consumer_id": "m1", "max_lag_instance_id": "i",
        "max_lag_client_id": "here", "max_lag_topic_name": "many", "max_lag_partition_id": 1,
        "max_lag": 3, "total_lag": 3,
    }  # fmt: skip
    assert found["max_lag_consumer"]["related"].endswith("/consumer-groups/g/consumers/m1")
    assert found["max_lag_partition"]["related"].endswith("/topics/many/partitions/1")
    await group.post(f"{G}/heartbeat", {"member_id": "m1", "member_epoch": -1}, JSON)
    found = (await group.get(f"{V3G}/g/lag-summary")).json
    assert (found["max_lag_consumer_id"], found["max_lag_consumer"]) == ("", None)


async def test_v3_lag_of_what_is_not_there(group):
    await join(group, "m1")
    group.node.logs.pop(("many", 1))
    listed = (await group.get(f"{V3G}/g/lags")).json
    assert [item["partition_id"] for item in listed["data"]] == [0, 0]
    group.node.errors["offsets"] = NoLeaderError("none")
    listed = (await group.get(f"{V3G}/g/lags")).json
    assert {(item["log_end_offset"], item["lag"]) for item in listed["data"]} == {(None, None)}
    found = (await group.get(f"{V3G}/g/lag-summary")).json
    assert (found["max_lag"], found["total_lag"]) == (None, None)


async def test_v3_deletes_and_knows_other_clusters(api):
    await commit(api, ("t", 0, 0))
    other = V3G.replace("cluster-in-memory", "other")
    assert (await api.call("DELETE", f"{other}/g")).error == (404, 40406)
    reset = {"topic": "t", "to": "latest"}
    assert (await api.post(f"{other}/g/offsets:reset", reset, JSON)).error == (404, 40406)
    assert (await api.call("DELETE", f"{V3G}/g")).status == 204
    assert (await api.get(V3G)).json["data"] == []
