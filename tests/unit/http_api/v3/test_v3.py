"""v3: clusters, brokers, topics, configs, partitions, replicas."""

from dataclasses import replace

import pytest

from milena.model.errors import InvalidReplicationError, TooManyReplicasError
from raft_meta.machine.image import Reassignment
from raft_meta.machine.topics.configs import KEYS
from tests.support.fakes.ports import CLUSTER_ID, FakeNode
from tests.support.http.api_server import V3, serving


def check_item(api, item, kind, path):
    assert item["kind"] == kind
    assert item["cluster_id"] == CLUSTER_ID
    assert item["metadata"]["self"] == f"{api.base_url}{V3}{path}"
    assert item["metadata"]["resource_name"].startswith(f"crn:///kafka={CLUSTER_ID}")


async def listing(api, path, kind):
    """The items of a list, whose envelope is checked."""
    answer = await api.get(path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json
    assert list(body) == ["kind", "metadata", "data"]
    assert body["kind"] == kind
    assert body["metadata"] == {"self": api.base_url + path, "next": None}
    return body["data"]


async def test_root_leads_to_the_cluster(api):
    related = (await api.get("/v3")).json["clusters"]["related"]
    assert related == f"{api.base_url}/v3/clusters"


async def test_clusters(api):
    (cluster,) = await listing(api, "/v3/clusters", "KafkaClusterList")
    check_item(api, cluster, "KafkaCluster", "")
    assert cluster["controller"] == {"related": f"{api.base_url}{V3}/brokers/1"}
    assert {
        "brokers",
        "broker_configs",
        "consumer_groups",
        "topics",
        "partition_reassignments",
    } <= set(cluster)
    assert (await api.get(V3)).json == cluster


async def test_a_cluster_without_controller(api):
    api.node._set_image(controller_id=None)
    assert (await api.get(V3)).json["controller"] is None


async def test_another_cluster(api):
    for path in (
        "",
        "/topics",
        "/topics/t",
        "/brokers",
        "/topics/t/configs",
        "/topics/t/partitions",
    ):
        assert (await api.get(f"/v3/clusters/other{path}")).error == (404, 40406)
    assert (await api.call("DELETE", "/v3/clusters/other/topics/t")).error == (404, 40406)
    assert (await api.post("/v3/clusters/other/topics", {"topic_name": "a"})).error == (404, 40406)
    assert "t" in api.node.image.topic_ids


async def test_a_cluster_that_is_being_formed():
    node = FakeNode()
    node._set_image(cluster_id="")
    async with serving(node) as api:
        assert (await api.get("/v3/clusters")).error == (503, 50309)


async def test_a_broker_that_is_gone_is_forgotten(api):
    node = api.node
    assert (await api.call("DELETE", f"{V3}/brokers/2")).error == (409, 40915)
    assert (await api.call("DELETE", f"{V3}/brokers/9")).error == (404, 40407)
    assert (await api.call("DELETE", f"{V3}/brokers/x")).error == (404, 40407)
    answer = await api.call("DELETE", f"{V3}/brokers/3")
    assert answer.error == (409, 40915)
    assert "still holds" in answer.json["message"]
    node.add_broker(4, is_fenced=True)
    assert (await api.call("DELETE", f"{V3}/brokers/4")).status == 204
    assert set(node.image.brokers) == {1, 2, 3}
    assert (await api.call("DELETE", "/v3/clusters/other/brokers/2")).error == (404, 40406)


async def test_a_topic_gets_more_partitions(api):
    answer = await api.call("PATCH", f"{V3}/topics/t", json={"partitions_count": 3})
    assert answer.status == 200
    check_item(api, answer.json, "KafkaTopic", "/topics/t")
    assert answer.json["partitions_count"] == 3
    assert api.node.image.topic("t").partition_count == 3
    for body, error in (
        ({}, (422, 422)),
        ({"partitions_count": None}, (422, 422)),
        ({"partitions_count": 0}, (422, 422)),
        ({"partitions_count": "x"}, (400, 400)),
        ({"partitions_count": 5, "replication_factor": 2}, (422, 422)),
    ):
        assert (await api.call("PATCH", f"{V3}/topics/t", json=body)).error == error, body
    call = {"json": {"partitions_count": 4}}
    assert (await api.call("PATCH", f"{V3}/topics/nope", **call)).error == (404, 40403)
    assert (await api.call("PATCH", "/v3/clusters/other/topics/t", **call)).error == (404, 40406)
    api.node.errors["add_partitions"] = TooManyReplicasError("too many")
    assert (await api.call("PATCH", f"{V3}/topics/t", **call)).error == (409, 40917)


async def test_brokers(api):
    brokers = await listing(api, f"{V3}/brokers", "KafkaBrokerList")
    assert [broker["broker_id"] for broker in brokers] == [1, 2, 3]
    check_item(api, brokers[1], "KafkaBroker", "/brokers/2")
    assert (brokers[1]["host"], brokers[1]["port"], brokers[1]["rack"]) == (
        "node2.test",
        8082,
        "r2",
    )
    assert (await api.get(f"{V3}/brokers/2")).json == brokers[1]
    for missing in ("9", "x", "-1"):
        assert (await api.get(f"{V3}/brokers/{missing}")).error == (404, 40407)


async def test_topics(api):
    topics = await listing(api, f"{V3}/topics", "KafkaTopicList")
    assert [topic["topic_name"] for topic in topics] == ["many", "t"]
    check_item(api, topics[0], "KafkaTopic", "/topics/many")
    assert (topics[0]["partitions_count"], topics[0]["replication_factor"]) == (3, 3)
    assert topics[0]["is_internal"] is False
    base = f"{api.base_url}{V3}/topics/many"
    assert topics[0]["partitions"] == {"related": f"{base}/partitions"}
    assert topics[0]["configs"] == {"related": f"{base}/configs"}
    assert (await api.get(f"{V3}/topics/many")).json == topics[0]
    assert (await api.get(f"{V3}/topics/x")).error == (404, 40403)


async def test_links_follow_the_proxy(api):
    headers = {"Forwarded": "host=kafka.example;proto=https", "X-Forwarded-Path": "/log"}
    body = (await api.get(f"{V3}/topics/t", headers=headers)).json
    assert body["metadata"]["self"] == f"https://kafka.example/log{V3}/topics/t"
    assert (await api.get(f"{V3}/topics/t", headers={"Forwarded": "proto=mqtt"})).error == (
        400,
        400,
    )


async def test_create_topic(api):
    answer = await api.post(
        f"{V3}/topics",
        {
            "topic_name": "new",
            "partitions_count": 2,
            "replication_factor": 3,
            "configs": [
                {"name": "retention.ms", "value": "5"},
            ],
        },
        "application/json",
    )
    assert answer.status == 201
    assert answer.headers["Location"] == f"{api.base_url}{V3}/topics/new"
    check_item(api, answer.json, "KafkaTopic", "/topics/new")
    assert answer.json["partitions_count"] == 2
    assert dict(api.node.image.topic("new").configs) == {"retention.ms": "5"}


async def test_only_validate(api):
    answer = await api.post(f"{V3}/topics", {"topic_name": "new", "validate_only": True})
    assert (answer.status, answer.json["topic_name"]) == (200, "new")
    assert "Location" not in answer.headers
    assert (await api.get(f"{V3}/topics/new")).status == 404


async def test_a_topic_that_exists(api):
    answer = await api.post(f"{V3}/topics", {"topic_name": "t"})
    assert answer.error == (400, 40002)
    assert answer.json["message"] == "Topic 't' already exists."


@pytest.mark.parametrize(
    "given",
    [
        {"0": [1, 2], "1": [2, 3]},
        [{"partition_id": 0, "broker_ids": [1, 2]}, {"partition_id": 1, "broker_ids": [2, 3]}],
    ],
)
async def test_explicit_placement(api, given):
    seen = []
    original = api.node.create_topic

    async def create_topic(topic):
        seen.append(topic)
        return await original(topic)

    api.node.create_topic = create_topic
    await api.post(f"{V3}/topics", {"topic_name": "new", "replicas_assignments": given})
    assert {p: list(b) for p, b in seen[0].replicas_assignments.items()} == {0: [1, 2], 1: [2, 3]}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", (422, 422)),
        (b"{", (400, 400)),
        ([], (400, 400)),
        ({}, (422, 422)),
        ({"topic_name": ""}, (422, 422)),
        ({"topic_name": 5}, (400, 400)),
        ({"topic_name": "a b"}, (400, 40002)),
        ({"topic_name": "a", "partitions_count": 0}, (422, 422)),
        ({"topic_name": "a", "partitions_count": 1.5}, (400, 400)),
        ({"topic_name": "a", "replication_factor": -1}, (422, 422)),
        ({"topic_name": "a", "replicas_assignments": 5}, (400, 400)),
        ({"topic_name": "a", "replicas_assignments": {"x": [1]}}, (400, 400)),
        ({"topic_name": "a", "replicas_assignments": {"0": 1}}, (400, 400)),
        ({"topic_name": "a", "replicas_assignments": {"0": ["1"]}}, (400, 400)),
        ({"topic_name": "a", "replicas_assignments": [{"broker_ids": [1]}]}, (422, 422)),
        ({"topic_name": "a", "configs": {"retention.ms": "1"}}, (400, 400)),
        ({"topic_name": "a", "configs": [{"value": "1"}]}, (422, 422)),
        ({"topic_name": "a", "configs": [{"name": "nope", "value": "1"}]}, (400, 40002)),
        ({"topic_name": "a", "configs": [{"name": "retention.ms", "value": "x"}]}, (400, 40002)),
        ({"topic_name": "a", "foo": 1}, (422, 422)),
    ],
)
async def test_refuses_bad_topics(api, body, error):
    assert (await api.post(f"{V3}/topics", body)).error == error
    assert sorted(api.node.image.topic_ids) == ["many", "t"]


@pytest.mark.parametrize("path", ["/admin/topics", f"{V3}/topics"])
@pytest.mark.parametrize(
    ("configs", "hint"),
    [
        ([("retention.ms", "5"), ("retention.ms", "7")], "'retention.ms' twice"),
        ([("retention.ms", "5"), ("retention.ms", "5")], "'retention.ms' twice"),
        ([("retention.ms", None)], "leave 'retention.ms' out"),
        ([("retention.ms",)], "leave 'retention.ms' out"),
    ],
)
async def test_creation_does_not_guess_configs(api, path, configs, hint):
    given = [dict(zip(("name", "value"), config, strict=False)) for config in configs]
    answer = await api.post(path, {"topic_name": "a", "configs": given})
    assert answer.error == (422, 422)
    assert hint in answer.json["message"]
    assert sorted(api.node.image.topic_ids) == ["many", "t"]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            {"partitions_count": 5, "replicas_assignments": {"0": [1]}},
            "partitions_count is 5, but replicas_assignments names 1",
        ),
        (
            {"partitions_count": 1, "replicas_assignments": {"0": [1], "1": [1]}},
            "partitions_count is 1, but replicas_assignments names 2",
        ),
        (
            {"replication_factor": 3, "replicas_assignments": {"0": [1, 2, 3], "1": [1]}},
            "gives partition 1 1 replicas",
        ),
        ({"replicas_assignments": {"0": [1], "00": [2]}}, "partition 0 twice"),
        (
            {
                "replicas_assignments": [
                    {"partition_id": 0, "broker_ids": [1]},
                    {"partition_id": 0, "broker_ids": [2]},
                ]
            },
            "partition 0 twice",
        ),
    ],
)
async def test_creation_does_not_guess_replicas(api, given, hint):
    answer = await api.post(f"{V3}/topics", {"topic_name": "a", **given})
    assert answer.error == (422, 422)
    assert hint in answer.json["message"]
    assert sorted(api.node.image.topic_ids) == ["many", "t"]


async def test_counts_that_agree_with_assignments_are_accepted(api):
    given = {"partitions_count": 1, "replication_factor": 2, "replicas_assignments": {"0": [1, 2]}}
    assert (await api.post(f"{V3}/topics", {"topic_name": "a", **given})).status == 201


async def test_more_replicas_than_brokers(api):
    api.node.errors["create_topic"] = InvalidReplicationError("3 brokers, 5 replicas")
    assert (await api.post(f"{V3}/topics", {"topic_name": "a"})).error == (400, 40002)


async def test_delete_topic(api):
    answer = await api.call("DELETE", f"{V3}/topics/t")
    assert (answer.status, answer.body) == (204, b"")
    assert (await api.call("DELETE", f"{V3}/topics/t")).error == (404, 40403)


# -- configs

CONFIGS = f"{V3}/topics/t/configs"


async def test_configs(api):
    configs = await listing(api, CONFIGS, "KafkaTopicConfigList")
    retention = next(config for config in configs if config["name"] == "retention.ms")
    check_item(api, retention, "KafkaTopicConfig", "/topics/t/configs/retention.ms")
    assert (retention["topic_name"], retention["value"]) == ("t", "604800000")
    assert (retention["is_default"], retention["is_read_only"], retention["is_sensitive"]) == (
        True,
        False,
        False,
    )
    assert retention["source"] == "DEFAULT_CONFIG"
    assert retention["synonyms"] == [
        {"name": "retention.ms", "value": "604800000", "source": "DEFAULT_CONFIG"}
    ]
    assert (await api.get(f"{CONFIGS}/retention.ms")).json == retention


async def test_a_config_is_set_and_reset(api):
    assert (await api.call("PUT", f"{CONFIGS}/retention.ms", json={"value": "5"})).status == 204
    config = (await api.get(f"{CONFIGS}/retention.ms")).json
    assert (config["value"], config["is_default"], config["source"]) == (
        "5",
        False,
        "DYNAMIC_TOPIC_CONFIG",
    )
    assert [synonym["source"] for synonym in config["synonyms"]] == [
        "DYNAMIC_TOPIC_CONFIG",
        "DEFAULT_CONFIG",
    ]
    assert (await api.call("DELETE", f"{CONFIGS}/retention.ms")).status == 204
    assert (await api.get(f"{CONFIGS}/retention.ms")).json["is_default"] is True


async def test_numbers_are_taken_as_values(api):
    assert (await api.call("PUT", f"{CONFIGS}/retention.ms", json={"value": 5})).status == 204
    assert (await api.get(f"{CONFIGS}/retention.ms")).json["value"] == "5"


async def test_several_configs_at_once(api):
    data = [
        {"name": "retention.ms", "value": "5"},
        {"name": "segment.bytes", "operation": "DELETE"},
    ]
    assert (await api.post(f"{CONFIGS}:alter", {"data": data})).status == 204
    assert dict(api.node.image.topic("t").configs) == {"retention.ms": "5"}
    checked = {
        "data": [{"name": "retention.ms", "value": "6", "operation": "set"}],
        "validate_only": True,
    }
    assert (await api.post(f"{CONFIGS}:alter", checked)).status == 204
    assert dict(api.node.image.topic("t").configs) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"data": [{"name": "nope", "value": "1"}]}, (400, 40002)),
        ({"data": [{"name": "retention.ms", "value": "x"}]}, (400, 40002)),
        ({"data": [{"name": "retention.ms", "operation": "APPEND"}]}, (422, 422)),
        ({"data": [{"name": "a"}, {"name": "a"}]}, (422, 422)),
        ({"data": [{"value": "1"}]}, (422, 422)),
        ({"data": 1}, (400, 400)),
        ({"foo": 1}, (422, 422)),
        ({}, (422, 422)),
        ({"data": None, "validate_only": True}, (422, 422)),
        (b"", (400, 400)),
    ],
)
async def test_refuses_bad_changes(api, body, error):
    assert (await api.post(f"{CONFIGS}:alter", body)).error == error


@pytest.mark.parametrize("path", [f"{CONFIGS}:alter", f"{V3}/topics/-/configs:alter"])
@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({}, "use operation DELETE"),
        ({"value": None}, "use operation DELETE"),
        ({"operation": None}, "use operation DELETE"),
        ({"operation": "SET"}, "use operation DELETE"),
        ({"operation": "set", "value": None}, "use operation DELETE"),
        ({"operation": "DELETE", "value": "6"}, "use operation SET"),
        ({"operation": "", "value": "6"}, "neither SET nor DELETE"),
    ],
)
async def test_a_change_does_not_guess_between_set_and_delete(api, path, change, hint):
    await api.call("PUT", f"{CONFIGS}/retention.ms", json={"value": "5"})
    changes = [{"name": "retention.ms", **change}]
    is_one = path == f"{CONFIGS}:alter"
    data = changes if is_one else [{"topic_name": "t", "configs": changes}]
    answer = await api.post(path, {"data": data})
    assert answer.error == (422, 422)
    assert "config 'retention.ms'" in answer.json["message"]
    assert hint in answer.json["message"]
    assert dict(api.node.image.topic("t").configs) == {"retention.ms": "5"}


async def test_configs_that_do_not_exist(api):
    assert (await api.get(f"{CONFIGS}/nope")).error == (404, 40408)
    assert (await api.call("PUT", f"{CONFIGS}/nope", json={"value": "1"})).error == (400, 40002)
    assert (await api.call("PUT", f"{CONFIGS}/retention.ms", json={})).error == (422, 422)
    assert (await api.get(f"{V3}/topics/x/configs")).error == (404, 40403)
    assert (
        await api.call("PUT", f"{V3}/topics/x/configs/retention.ms", json={"value": "1"})
    ).error == (404, 40403)


async def test_configs_of_all_topics(api):
    configs = await listing(api, f"{V3}/topics/-/configs", "KafkaTopicConfigList")
    assert {config["topic_name"] for config in configs} == {"many", "t"}


# -- partitions and replicas

PARTITION = f"{V3}/topics/many/partitions/1"


async def test_partitions(api):
    partitions = await listing(api, f"{V3}/topics/many/partitions", "KafkaPartitionList")
    assert [partition["partition_id"] for partition in partitions] == [0, 1, 2]
    check_item(api, partitions[1], "KafkaPartition", "/topics/many/partitions/1")
    assert partitions[1]["leader"] == {"related": f"{api.base_url}{PARTITION}/replicas/1"}
    assert partitions[1]["replicas"] == {"related": f"{api.base_url}{PARTITION}/replicas"}
    assert (await api.get(PARTITION)).json == partitions[1]
    api.node.set_partition("many", 1, leader=None)
    assert (await api.get(PARTITION)).json["leader"] is None


async def test_a_partition_with_offsets(api):
    api.node.append("many", 1, [b"1"] * 4)
    body = (await api.get(f"{PARTITION}/offset?offset_type=earliest_and_latest")).json
    assert body["kind"] == "KafkaPartitionWithOffsets"
    assert (body["earliest_offset"], body["latest_offset"]) == (0, 4)
    assert (await api.get(f"{PARTITION}/offset?offset_type=max")).error == (400, 400)


async def test_replicas(api):
    replicas = await listing(api, f"{PARTITION}/replicas", "KafkaReplicaList")
    assert [(r["broker_id"], r["is_leader"], r["is_in_sync"]) for r in replicas] == [
        (1, True, True),
        (2, False, True),
        (3, False, False),
    ]
    check_item(api, replicas[1], "KafkaReplica", "/topics/many/partitions/1/replicas/2")
    assert replicas[1]["broker"] == {"related": f"{api.base_url}{V3}/brokers/2"}
    assert (await api.get(f"{PARTITION}/replicas/2")).json == replicas[1]
    assert (await api.get(f"{PARTITION}/replicas/9")).error == (404, 40410)


async def test_replicas_of_a_broker(api):
    replicas = await listing(api, f"{V3}/brokers/3/partition-replicas", "KafkaReplicaList")
    assert [(r["topic_name"], r["partition_id"]) for r in replicas] == [
        ("many", 0),
        ("many", 1),
        ("many", 2),
        ("t", 0),
    ]
    assert (await api.get(f"{V3}/brokers/9/partition-replicas")).error == (404, 40407)
    assert (await api.get(f"{V3}/brokers/x/partition-replicas")).error == (404, 40407)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("topics/x/partitions", (404, 40403)),
        ("topics/x/partitions/0", (404, 40403)),
        ("topics/t/partitions/1", (404, 40402)),
        ("topics/t/partitions/x", (404, 40402)),
        ("topics/t/partitions/1/offset", (404, 40402)),
        ("topics/t/partitions/1/replicas", (404, 40402)),
        ("topics/t/partitions/0/replicas/x", (404, 40410)),
        ("nothing", (404, 404)),
    ],
)
async def test_what_does_not_exist(api, path, error):
    assert (await api.get(f"{V3}/{path}")).error == error


# -- links, configs of brokers, moves ----------------------------------------------------------------


def links_in(value):
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("self", "related") and isinstance(item, str):
                yield item
            else:
                yield from links_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from links_in(item)


async def test_no_link_leads_nowhere(api):
    moving(api, "many", 1)
    open_, seen = ["/v3"], set()
    while open_:
        path = open_.pop()
        answer = await api.get(path)
        assert answer.status == 200, path
        found = {link.removeprefix(api.base_url) for link in links_in(answer.json)} - seen
        seen |= found
        open_ += sorted(found)
    assert {f"{V3}/brokers/1/configs", f"{V3}/broker-configs"} <= seen
    assert f"{V3}/topics/many/partitions/1/reassignment" in seen


def moving(api, topic, partition):
    """Let a partition be on its way from brokers 1, 2, 3 to 3, 4."""
    image = api.node.image
    key = (image.topic_ids[topic], partition)
    move = Reassignment(
        target=(3, 4), former=(1, 2, 3), is_started=True, max_concurrent=0, throttle_bytes_per_s=0
    )
    state = replace(image.partitions[key], moving=move)
    api.node._set_image(partitions=image.partitions.set(key, state))


async def test_moves(api):
    path = f"{V3}/topics/many/partitions"
    assert (await api.get(f"{path}/1/reassignment")).error == (404, 40410)
    assert await listing(api, f"{path}/-/reassignment", "KafkaReassignmentList") == []
    moving(api, "many", 1)
    move = (await api.get(f"{path}/1/reassignment")).json
    assert (move["adding_replicas"], move["removing_replicas"]) == ([4], [1, 2])
    for many in (path, f"{V3}/topics/-/partitions"):
        assert await listing(api, f"{many}/-/reassignment", "KafkaReassignmentList") == [move]
    assert (await api.get(f"{V3}/topics/no/partitions/-/reassignment")).error == (404, 40403)


async def test_a_broker_has_the_defaults_of_topics_under_kafkas_names(api):
    configs = await listing(api, f"{V3}/brokers/2/configs", "KafkaBrokerConfigList")
    values = {config["name"]: config["value"] for config in configs}
    assert values["log.retention.ms"] == "604800000"
    assert {"log.segment.bytes", "log.flush.interval.messages", "message.max.bytes"} <= set(values)
    assert len(values) == len(KEYS), "every config of topics has its pair"
    assert all(config["is_read_only"] and config["broker_id"] == 2 for config in configs)
    cluster = await listing(api, f"{V3}/broker-configs", "KafkaClusterConfigList")
    assert {config["name"]: config["value"] for config in cluster} == values
    assert (await api.get(f"{V3}/brokers/2/configs/retention.ms")).error == (404, 40408)
    assert (await api.get(f"{V3}/broker-configs/retention.ms")).error == (404, 40408)


# -- what other servers' clients ask -----------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "/topics", "/topics/t", "/consumer-groups", "/consumer-groups/g"]
)
@pytest.mark.parametrize("value", ["true", "false", ""])
async def test_authorized_operations_may_be_asked_for(api, path, value):
    await api.post("/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    plain = await api.get(f"{V3}{path}")
    asked = await api.get(f"{V3}{path}?include_authorized_operations={value}")
    assert (asked.status, asked.json) == (plain.status, plain.json)
    assert plain.status == 200


async def test_configs_of_all_brokers(api):
    one = await listing(api, f"{V3}/brokers/1/configs", "KafkaBrokerConfigList")
    found = await listing(api, f"{V3}/brokers/-/configs", "KafkaBrokerConfigList")
    brokers = sorted(api.node.image.brokers)
    assert [c for c in found if c["broker_id"] == 1] == one
    assert {c["broker_id"] for c in found} == set(brokers)
    assert len(found) == len(brokers) * len(one)


async def test_configs_of_several_topics_at_once(api):
    path = f"{V3}/topics/-/configs:alter"
    change = {"name": "retention.ms", "value": "5000"}

    def of(*topics, **more):
        return {"data": [{"topic_name": t, "configs": [change]} for t in topics], **more}

    answer = await api.post(path, of("t", "many", validate_only=True))
    assert (answer.status, answer.body) == (204, b"")
    answer = await api.post(path, of("t", "many"))
    assert (answer.status, answer.body) == (204, b"")
    for topic in ("t", "many"):
        config = (await api.get(f"{V3}/topics/{topic}/configs/retention.ms")).json
        assert config["value"] == "5000"
    back = {"name": "retention.ms", "operation": "DELETE"}
    wrong = {"name": "nope", "value": "1"}
    answer = await api.post(
        path,
        {
            "data": [
                {"topic_name": "gone", "configs": [back]},
                {"topic_name": "many", "configs": [wrong]},
                {"topic_name": "t", "configs": [back]},
            ]
        },
    )
    assert answer.status == 207
    failures = [(one["topic_name"], one["error_code"]) for one in answer.json["failures"]]
    assert failures == [("gone", 40403), ("many", 40002)]
    assert all(one["message"] for one in answer.json["failures"])
    assert (await api.get(f"{V3}/topics/t/configs/retention.ms")).json["is_default"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"data": []}, (422, 422)),
        ({"data": [{"configs": []}]}, (422, 422)),
        ({"data": [{"name": "retention.ms", "value": "1"}]}, (422, 422)),
        (
            {"data": [{"topic_name": "t", "configs": []}, {"topic_name": "t", "configs": []}]},
            (422, 422),
        ),
    ],
)
async def test_changes_of_several_topics_that_cannot_be(api, body, error):
    assert (await api.post(f"{V3}/topics/-/configs:alter", body)).error == error


async def test_the_cluster_links_to_its_entries(api):
    cluster = (await api.get(V3)).json
    assert cluster["acls"] == {"related": f"{api.base_url}{V3}/acls"}
