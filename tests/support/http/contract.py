"""A successful call of every operation, in an order in which all of them succeed on a fresh node."""

from dataclasses import dataclass, field

import orjson

from tests.support.http.api_server import (
    ARROW,
    BATCH,
    BINARY_V2,
    EVENTS,
    JSON_V2,
    NDJSON,
    TEXT_V2,
    V2,
    Answer,
)
from tests.support.http.openapi import Description

JSON = "application/json"


GONE_BROKER = 9
"""The id of a broker that is registered, is down, and has no replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request. In its path, ``$C`` stands for the cluster's id, and ``$T`` for the id of the latest token."""

    operation: str
    method: str
    path: str
    status: int = 200
    body: object = None
    type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return orjson.dumps(self.body)

    def sent_headers(self) -> dict[str, str]:
        return {**({} if self.type is None else {"Content-Type": self.type}), **self.headers}

    def at(self, cluster_id: str, token_id: str = "none") -> str:
        return self.path.replace("$C", f"/v3/clusters/{cluster_id}").replace("$T", token_id)


def get(operation: str, path: str, accept: str | None = None) -> Ask:
    headers = {} if accept is None else {"Accept": accept}
    return Ask(operation=operation, method="GET", path=path, headers=headers)


def post(
    operation: str, path: str, body: object, type_: str = JSON, status: int = 200, **headers: str
) -> Ask:
    """Return a POST; ``If_Match="2"`` is the header If-Match."""
    return Ask(
        operation=operation,
        method="POST",
        path=path,
        body=body,
        type=type_,
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


_TEXTS = {"records": [{"key": "u1", "value": {"item": "tea"}}, {"value": None}]}
_STRINGS = {"records": [{"key": "u1", "value": "tea"}, {"value": None}]}
_BYTES = {"records": [{"key": "dTE=", "value": "AAEC"}]}
_DECORATED = {
    "records": [
        {
            "value": 1,
            "timestamp": 1_700_000_000_000,
            "headers": [{"key": "h", "value": "aGk="}, {"name": "n", "value": None}],
        }
    ]
}
_TRANSACTION = {
    "writes": [{"topic": "orders", "records": [{"value": 1}, {"value": 2, "partition": 0}]}],
    "offsets": [{"group": "billing", "topic": "orders", "partition": 0, "next_offset": 1}],
}
_CONFIG = "$C/topics/pages/configs/retention.ms"


def asks(batch: bytes) -> list[Ask]:
    """Return the calls; ``batch`` is an encoded batch."""
    records = "/topics/orders/partitions/0/records"
    partition = "/topics/orders/partitions/0"
    v3_partition = "$C/topics/pages/partitions/0"
    topic = {"topic_name": "pages", "partitions_count": 2, "replication_factor": 1}
    return [
        get("getNode", "/"),
        get("getNode", "/", JSON),
        get("isLive", "/livez"),
        get("hasStarted", "/startupz"),
        get("isReady", "/readyz"),
        get("healthy", "/healthy"),
        get("ready", "/ready"),
        get("statusReady", "/status/ready"),
        get("underscoreHealth", "/_health"),
        get("getOpenApiByShortName", "/openapi"),
        get("getOpenApiByVersion", "/openapi/v3"),
        get("getMetrics", "/metrics"),
        get("getOpenApi", "/openapi.json"),
        post(
            "createTopic",
            "/admin/topics",
            {"topic_name": "orders", "replication_factor": 1},
            status=201,
        ),
        post(
            "createTopic",
            "/admin/topics",
            {"topic_name": "tallies", "partitions_count": 1, "replication_factor": 1},
            status=201,
        ),
        post("v3CreateTopic", "$C/topics", {**topic, "validate_only": True}),
        post(
            "v3CreateTopic",
            "$C/topics",
            {**topic, "configs": [{"name": "retention.ms", "value": "86400000"}]},
            status=201,
        ),
        post("produceToTopic", "/topics/orders", _TEXTS, JSON_V2),
        post("produceToTopic", "/topics/orders", _TEXTS, JSON, Accept=JSON),
        post("produceToTopic", "/topics/orders?acks=0", _DECORATED, JSON),
        post("produceToTopic", "/topics/orders?async=true", _TEXTS, JSON, status=204),
        post("produceToPartition", f"{partition}?async=true", _BYTES, BINARY_V2, status=204),
        post("produceBatch", f"{records}?async=true", _DECORATED, JSON_V2, status=204),
        post("produceToPartition", f"{partition}?acks=1", _BYTES, BINARY_V2),
        post("produceToPartition", partition, _BYTES, V2, Accept=JSON),
        post("produceToPartition", partition, _STRINGS, TEXT_V2),
        post("produceToPartition", partition, batch, BATCH),
        post("produceToTopic", "/topics/tallies", _TEXTS, JSON, If_Match='"0"'),
        post("produceToPartition", "/topics/tallies/partitions/0", _TEXTS, If_Match="2"),
        post(
            "produceBatch",
            "/topics/tallies/partitions/0/records",
            batch,
            BATCH,
            200,
            **{"If-Match": '"4"'},
        ),
        post("produceBatch", records, _DECORATED, JSON_V2),
        post("produceBatch", f"{records}?timeout_ms=5000", batch, BATCH),
        post("produceBatch", f"{records}?acks=0", batch, BATCH, Accept=JSON),
        # This call is the first one that allocates a producer id, so the id is 1.
        post("beginTransaction", "/transactions:begin", {"transactional_id": "payer"}),
        post(
            "produceToPartition",
            "/topics/tallies/partitions/0",
            _TEXTS,
            JSON,
            Milena_Transaction="1:0:30000",
        ),
        post(
            "commitTransaction",
            "/transactions/1/0:commit",
            {"writes": [{"topic": "tallies", "partition": 0, "end_offset": 8, "records": 2}]},
        ),
        post("abortTransaction", "/transactions/1/1:abort", {}),
        post("transact", "/transactions", _TRANSACTION),
        post("transact", "/transactions?timeout_ms=5000", _TRANSACTION, JSON_V2),
        get("listTransactions", "/transactions?older_than_ms=5"),
        get("listTransactions", "/transactions?sort=deadline&contains=a&limit=1&partitions=0"),
        get("fetchRecords", f"{records}?count=2&isolation=read_uncommitted"),
        get("fetchRecords", f"{records}?count=2", JSON_V2),
        get("fetchRecords", f"{records}?count=2", JSON),
        get("fetchRecords", f"{records}?offset=-3", BINARY_V2),
        get("fetchRecords", f"{records}?count=2", TEXT_V2),
        get("fetchRecords", f"{records}?timestamp=0&max_bytes=1", BATCH),
        get("fetchRecords", f"{records}?count=2", ARROW),
        get("fetchRecords", f"{records}?offset=latest&timeout=1&replica=local"),
        get("fetchRecords", f"{records}?offset=-3&format=binary", NDJSON),
        get("fetchRecords", f"{records}?offset=-3&follow=false", EVENTS),
        get("fetchTopic", "/topics/orders/records?offset=-3"),
        get("fetchTopic", "/topics/orders/records?count=2&format=binary", NDJSON),
        get("fetchTopic", "/topics/orders/records?follow=false", EVENTS),
        post("deleteRecords", f"{records}:delete?timeout_ms=5000", {"before_offset": 1}),
        get("listTopics", "/topics"),
        get("listTopics", "/topics", JSON),
        get("getTopic", "/topics/orders"),
        get("getTopic", "/topics/orders", JSON),
        get("listPartitions", "/topics/orders/partitions"),
        get("listPartitions", "/topics/orders/partitions", JSON),
        get("getPartition", partition),
        get("getPartition", partition, JSON),
        get("getOffsets", f"{partition}/offsets"),
        get("getOffsets", f"{partition}/offsets", JSON),
        get("listBrokers", "/brokers"),
        get("listBrokers", "/brokers", JSON),
        post("reassign", "/reassignments", {"rebalance": True, "dry_run": True}),
        get("listReassignments", "/reassignments"),
        get("listReassignments", "/reassignments?sort=bytes_left&order=desc&contains=ord&limit=1"),
        Ask(
            operation="cancelReassignments",
            method="DELETE",
            path="/reassignments?topic=orders&partition=0",
        ),
        get("getMetadata", "/metadata"),
        get("getMetadataSummary", "/metadata/summary"),
        get("listTopicSummaries", "/metadata/topics"),
        get("listTopicSummaries", "/metadata/topics?contains=ORD&sort=trouble&order=desc&limit=2"),
        get("listTopicSummaries", "/metadata/topics?sizes=all&sort=stored_bytes&limit=2"),
        get("getTopicSummary", "/metadata/topics/orders"),
        get("getTopicSummary", "/metadata/topics/pages?sizes=all&sort=leader&order=desc&skip=1"),
        get("getMetrics", "/metrics?partitions=false"),
        get("getHistory", "/history"),
        get("getHistory", "/history?topic=orders"),
        get("getHistory", "/history?group=billing"),
        get("getMetadata", "/metadata?since=0&timeout=1"),
        Ask(operation="allocateProducer", method="POST", path="/producers"),
        post("allocateProducer", "/producers", {"name": "billing"}),
        get("v3Root", "/v3"),
        get("v3ListClusters", "/v3/clusters"),
        get("v3GetCluster", "$C"),
        get("v3ListBrokers", "$C/brokers"),
        get("v3GetBroker", "$C/brokers/1"),
        get("v3ListBrokerReplicas", "$C/brokers/1/partition-replicas"),
        get("v3ListBrokerConfigs", "$C/brokers/1/configs"),
        get("v3GetBrokerConfig", "$C/brokers/1/configs/log.retention.ms"),
        get("v3ListClusterConfigs", "$C/broker-configs"),
        get("v3GetClusterConfig", "$C/broker-configs/log.retention.ms"),
        get("v3GetReassignment", "$C/topics/-/partitions/-/reassignment"),
        get("v3ListTopics", "$C/topics"),
        get("v3GetTopic", "$C/topics/pages"),
        get("v3ListTopicConfigs", "$C/topics/pages/configs"),
        get("v3ListTopicConfigs", "$C/topics/-/configs"),
        get("v3GetTopicConfig", _CONFIG),
        post(
            "v3ProduceRecords",
            "$C/topics/pages/records",
            {"key": {"type": "STRING", "data": "u1"}, "value": {"type": "JSON", "data": [1]}},
        ),
        post(
            "v3ProduceBatch",
            "$C/topics/pages/records:batch",
            {
                "entries": [
                    {"id": "1", "value": {"type": "JSON", "data": [1]}},
                    {"id": "2", "value": {"type": "BINARY", "data": "no base64"}},
                ]
            },
            status=207,
        ),
        Ask(
            operation="v3SetTopicConfig",
            method="PUT",
            path=_CONFIG,
            body={"value": "3600000"},
            type=JSON,
            status=204,
        ),
        post(
            "v3AlterTopicConfigs",
            "$C/topics/pages/configs:alter",
            {"data": [{"name": "segment.bytes", "value": "1048576"}]},
            status=204,
        ),
        post(
            "v3AlterTopicConfigs",
            "$C/topics/-/configs:alter",
            {
                "data": [
                    {
                        "topic_name": "gone",
                        "configs": [{"name": "segment.bytes", "value": "1048576"}],
                    }
                ]
            },
            status=207,
        ),
        Ask(operation="v3ResetTopicConfig", method="DELETE", path=_CONFIG, status=204),
        get("v3ListPartitions", "$C/topics/pages/partitions"),
        get("v3GetPartition", v3_partition),
        get("v3GetPartitionOffsets", f"{v3_partition}/offset"),
        get("v3ListReplicas", f"{v3_partition}/replicas"),
        get("v3GetReplica", f"{v3_partition}/replicas/1"),
        Ask(
            operation="v3UpdateTopic",
            method="PATCH",
            path="$C/topics/pages",
            body={"partitions_count": 3},
            type=JSON,
        ),
        Ask(
            operation="v3DeleteBroker",
            method="DELETE",
            path=f"$C/brokers/{GONE_BROKER}",
            status=204,
        ),
        Ask(operation="v3DeleteTopic", method="DELETE", path="$C/topics/pages", status=204),
        *consumer_asks(),
        *group_asks(),
        *access_asks(),
        post("drain", "/drain", {"timeout_ms": 1000}),
    ]


_ORDERS_0 = {"topic": "orders", "partition": 0}
_PLACES = {"partitions": [_ORDERS_0]}


def consumer_asks() -> list[Ask]:
    """Return the calls about REST consumers: one each for JSON, binary and text."""
    base = "/consumers/rest/instances"
    new = {"name": "c1", "format": "json", "auto.offset.reset": "earliest", "ext": {}}
    asked = [
        post("createConsumer", "/consumers/rest", new, V2),
        post("createConsumer", "/consumers/rest", {**new, "name": "c2"}, JSON, Accept=JSON),
        post("createConsumer", "/consumers/rest", {**new, "name": "b", "format": "binary"}, V2),
        post("createConsumer", "/consumers/rest", {**new, "name": "t", "format": "text"}, V2),
        post("subscribeConsumer", f"{base}/c1/subscription", {"topics": ["orders"]}, V2, 204),
    ]
    for accept in (V2, JSON):
        asked += [
            get("getConsumerSubscription", f"{base}/c1/subscription", accept),
            get("getConsumerAssignments", f"{base}/c1/assignments", accept),
        ]
    for name, query, accept in (
        ("c1", "", JSON_V2),
        ("c1", "?timeout=1&token=7f3a.1", JSON),
        ("c1", "?timeout=1&max_bytes=1000", JSON),
        ("c1", "?timeout=1", NDJSON),
        ("c1", "?timeout=1&follow=false", EVENTS),
        ("b", "?timeout=1", BINARY_V2),
        ("t", "?timeout=1", TEXT_V2),
    ):
        if name != "c1":
            asked.append(post("assignConsumer", f"{base}/{name}/assignments", _PLACES, V2, 204))
        asked.append(get("consumeRecords", f"{base}/{name}/records{query}", accept))
    asked += [
        post("commitConsumerOffsets", f"{base}/c1/offsets", {"offsets": []}, V2, 204),
        post(
            "commitConsumerOffsets",
            f"{base}/c1/offsets",
            {"offsets": [{**_ORDERS_0, "offset": 1, "metadata": "here"}]},
            V2,
            204,
        ),
        Ask(
            operation="getConsumerOffsets",
            method="GET",
            path=f"{base}/c1/offsets",
            body=_PLACES,
            type=V2,
        ),
        get("getConsumerOffsets", f"{base}/c1/offsets?topic=orders&partition=0", JSON),
        post(
            "seekConsumer",
            f"{base}/b/positions",
            {"offsets": [{**_ORDERS_0, "offset": 1}]},
            V2,
            204,
        ),
        post("seekConsumerToBeginning", f"{base}/b/positions/beginning", _PLACES, V2, 204),
        post("seekConsumerToEnd", f"{base}/b/positions/end", _PLACES, V2, 204),
        Ask(
            operation="unsubscribeConsumer",
            method="DELETE",
            path=f"{base}/b/subscription?token=7f3a.1",
            status=204,
        ),
        Ask(operation="deleteConsumer", method="DELETE", path=f"{base}/b", status=204),
    ]
    return asked


ACL = {
    "resource_type": "TOPIC",
    "resource_name": "orders",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


def put(operation: str, path: str, body: object, status: int = 200) -> Ask:
    return Ask(operation=operation, method="PUT", path=path, body=body, type=JSON, status=status)


def delete(operation: str, path: str, status: int = 204) -> Ask:
    return Ask(operation=operation, method="DELETE", path=path, status=status)


def access_asks() -> list[Ask]:
    """Return the calls about access control, which start and end in a cluster without it."""
    user, acls = "/users/alice", "$C/acls"
    grant = {"resource_type": "TOPIC", "name": "orders", "operations": ["READ"]}
    return [
        get("getAccess", "/access"),
        put("setAccess", "/access", {"mode": "off"}),
        put("putUser", user, {"password": "a good password"}, 201),
        put("putUser", user, {"password": "a better password", "keep_previous": True}),
        get("listUsers", "/users"),
        get("getUser", user),
        post("createToken", f"{user}/tokens", {"note": "n", "grants": [grant]}, JSON, 201),
        get("listTokens", f"{user}/tokens"),
        delete("deleteToken", f"{user}/tokens/$T"),
        post("v3CreateAcl", acls, ACL, JSON, 201),
        post("v3CreateAcls", f"{acls}:batch", {"data": [{**ACL, "host": "::1"}]}, JSON, 201),
        get("v3ListAcls", acls),
        get("v3ListAcls", f"{acls}?principal=User:alice&operation=READ"),
        delete("v3DeleteAcls", f"{acls}?resource_name=orders", 200),
        put("putQuota", "/quotas", {"user": "alice", "limits": {"request_rate": 1_000_000}}),
        get("listQuotas", "/quotas"),
        delete("deleteQuota", "/quotas?user=alice"),
        delete("deleteUser", user),
    ]


def group_asks() -> list[Ask]:
    """Return the calls about groups: one with a member, and one without."""
    v3 = "$C/consumer-groups"
    commit = {"offsets": [{**_ORDERS_0, "offset": 1, "metadata": "here"}]}
    joins = {"member_id": "c1", "member_epoch": 0, "topics": ["orders"], "owned": []}
    as_member = {**commit, "member_id": "c1", "member_epoch": 1}
    return [
        post("groupHeartbeat", "/groups/live/heartbeat?timeout_ms=0", joins),
        post("commitGroupOffsets", "/groups/live/offsets", as_member, JSON, 204),
        post("commitGroupOffsets", "/groups/billing/offsets", commit, JSON, 204),
        get("listGroups", "/groups"),
        get("listGroups", "/groups?contains=LIV&sort=members&order=desc&skip=0&limit=1"),
        get("listGroupMembers", "/groups/live/members"),
        get("listGroupMembers", "/groups/live/members?contains=C&sort=epoch&limit=1&partitions=0"),
        get("listGroupLags", "/groups/live/lags"),
        get("listGroupLags", "/groups/live/lags?contains=ord&sort=lag&order=desc&limit=1"),
        get("getGroup", "/groups/live"),
        get("getGroup", "/groups/billing"),
        get("getGroupOffsets", "/groups/billing/offsets?topic=orders"),
        get("previewGroupReset", "/groups/billing/offsets:reset?topic=orders&to=latest&limit=1"),
        get("previewGroupReset", "/groups/nobody/offsets:reset?topic=orders&to=0&order=desc"),
        post("resetGroupOffsets", "/groups/billing/offsets:reset", {"topic": "orders", "to": 1}),
        get("v3ListConsumerGroups", v3),
        get("v3GetConsumerGroup", f"{v3}/live"),
        get("v3ListConsumers", f"{v3}/live/consumers"),
        get("v3GetConsumer", f"{v3}/live/consumers/c1"),
        get("v3ListConsumerAssignments", f"{v3}/live/consumers/c1/assignments"),
        get(
            "v3GetConsumerAssignment",
            f"{v3}/live/consumers/c1/assignments/orders/partitions/0",
        ),
        get("v3GetConsumerGroupLagSummary", f"{v3}/live/lag-summary"),
        get("v3ListConsumerLags", f"{v3}/live/lags"),
        get("v3GetConsumerLag", f"{v3}/live/lags/orders/partitions/0"),
        post(
            "v3ResetConsumerGroupOffsets",
            f"{v3}/billing/offsets:reset",
            {"topic": "orders", "partitions": [0], "to": "earliest"},
        ),
        Ask(
            operation="v3DeleteConsumerGroup",
            method="DELETE",
            path=f"{v3}/billing",
            status=204,
        ),
        post("commitGroupOffsets", "/groups/billing/offsets", commit, JSON, 204),
        Ask(operation="deleteGroup", method="DELETE", path="/groups/billing", status=204),
    ]


def token_id_of(answer: Answer) -> str | None:
    """Return the id of the token in a response."""
    if answer.status != 201 or b'"token_id"' not in answer.body:
        return None
    return str(answer.json["token_id"])


def check_all(
    description: Description, answers: list[tuple[Ask, str, Answer]]
) -> set[tuple[str, int, str]]:
    """Check each (request, path, response); return the operations, statuses and types that occurred."""
    seen = set()
    for ask, path, answer in answers:
        assert answer.status == ask.status, (ask, answer)
        operation, status, _ = description.check(ask.method, path, answer)
        assert operation == ask.operation
        seen.add((operation, status, answer.headers.get("Content-Type", "").partition(";")[0]))
    return seen


def declared_successes(description: Description) -> set[tuple[str, int, str]]:
    """Return every operation with each type of each of its successful responses."""
    return {
        (operation["operationId"], int(status), type_)
        for path, methods in description.document["paths"].items()
        for method, operation in methods.items()
        for status, response in description.responses(method, path).items()
        if status.startswith("2")
        for type_ in response.get("content", {"": {}})
    }
