"""The introductory steps of other REST proxies, as requests with the expected responses.

Each quickstart follows a proxy's own introduction, with its media types, names and types of values:

Confluent's REST proxy  https://docs.confluent.io/platform/current/kafka-rest/quickstart.html and its README
Redpanda's HTTP proxy   https://docs.redpanda.com/current/develop/http-proxy/
Karapace                https://github.com/Aiven-Open/karapace, README
Strimzi's bridge        https://strimzi.io/docs/bridge/latest/, Kafka Bridge quickstart

If the proxies differ, Milena behaves as docs/http-api.md describes. Milena has no schema registry, so it must refuse
steps with Avro, with an explanation.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
AVRO_V2 = "application/vnd.kafka.avro.v2+json"
META_V2 = "application/vnd.kafka.v2+json"
PLAIN = "application/json"


class Anything:
    """Equal to every value for which ``is_fine`` returns true."""

    def __init__(self, is_fine: Callable[[Any], bool] = lambda found: True, what: str = "") -> None:
        self._is_fine = is_fine
        self._what = what or "anything"

    def __eq__(self, other: object) -> bool:
        return self._is_fine(other)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"<{self._what}>"


ANY = Anything()
NUMBER = Anything(lambda found: isinstance(found, int) and found >= 0, "a number")


class AtLeast(dict[str, Any]):
    """Equal to an object with at least these fields."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(
            key in other and value == other[key] for key, value in self.items()
        )

    __hash__ = None


class InAnyOrder(list[Any]):
    """Equal to a list with the same items in any order."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list) or len(other) != len(self):
            return False
        left = list(other)
        for wanted in self:
            found = next((item for item in left if wanted == item), None)
            if found is None:
                return False
            left.remove(found)
        return True

    __hash__ = None


class Holding(list[Any]):
    """Equal to a list that has at least these items."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and all(any(w == o for o in other) for w in self)

    __hash__ = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request. ``path`` may start with ``{base_uri}``, the ``base_uri`` of the consumer that was created last."""

    method: str
    path: str
    body: Any = None
    """The body: a str is sent unchanged, any other value as JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    status: int | tuple[int, ...] = 200
    answer: Any = ANY
    """The expected JSON of the response; a response 204 must have no body."""
    media: str | None = None
    """The expected media type of the response; None if any is accepted."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quickstart:
    """The steps of one introduction. ``names`` are topics, groups and consumers, which get new names in each run."""

    title: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.title


def get(path: str, answer: Any = ANY, *, accept: str | None = None, **named: Any) -> Step:
    """Return a step that reads."""
    headers = {} if accept is None else {"Accept": accept}
    return Step(method="GET", path=path, answer=answer, headers=headers, **named)


def post(path: str, body: Any, *, sends: str | None = META_V2, **named: Any) -> Step:
    """Return a step that changes something."""
    headers = {} if sends is None else {"Content-Type": sends}
    return Step(method="POST", path=path, body=body, headers=headers, **named)


def delete(path: str, *, sends: str | None = META_V2) -> Step:
    """Return a step that deletes something."""
    headers = {} if sends is None else {"Content-Type": sends}
    return Step(method="DELETE", path=path, headers=headers, status=204)


BASE = "{base_uri}"
SENTENCE = Anything(lambda found: isinstance(found, str) and " " in found, "a sentence")
REFUSED: dict[str, Any] = {
    "status": (415, 422),
    "answer": AtLeast(error_code=NUMBER, message=SENTENCE),
}


def written(*places: tuple[Any, Any]) -> Any:
    """Return the response to a write: (partition, offset) of each record."""
    return AtLeast(
        offsets=[
            AtLeast(partition=partition, offset=offset, error_code=None, error=None)
            for partition, offset in places
        ],
        key_schema_id=None,
        value_schema_id=None,
    )


def record(topic: str, key: Any, value: Any, partition: Any, offset: Any) -> Any:
    """Return a record of a response; Milena adds the record's time."""
    return AtLeast(topic=topic, key=key, value=value, partition=partition, offset=offset)


def partition_of(number: Any) -> Any:
    """Return a description of a partition whose replicas are all in sync."""
    replica = AtLeast(broker=NUMBER, leader=ANY, in_sync=True)
    replicas = Anything(
        lambda found: isinstance(found, list) and bool(found) and all(replica == r for r in found),
        "replicas in sync",
    )
    return AtLeast(partition=number, leader=NUMBER, replicas=replicas)


def created(name: str) -> Any:
    """Return the response to the creation of a consumer."""
    return {"instance_id": name, "base_uri": ANY}


AVRO_RECORDS = {
    "value_schema": json.dumps(
        {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
    ),
    "records": [{"value": {"name": "testUser"}}],
}

CONFLUENT = Quickstart(
    title="Confluent, v2",
    names=("jsontest", "binarytest", "avrotest", "json_group", "binary_group", "avro_group"),
    steps=(
        post(
            "/topics/jsontest",
            {"records": [{"value": {"foo": "bar"}}]},
            sends=JSON_V2,
            answer=written((0, 0)),
            media=META_V2,
        ),
        post(
            "/consumers/json_group",
            {"name": "my_instance", "format": "json", "auto.offset.reset": "earliest"},
            answer=created("my_instance"),
        ),
        post(BASE + "/subscription", {"topics": ["jsontest"]}, status=204),
        get(
            BASE + "/records",
            [record("jsontest", None, {"foo": "bar"}, 0, 0)],
            accept=JSON_V2,
            media=JSON_V2,
        ),
        delete(BASE),
        get(BASE + "/records", AtLeast(error_code=40403), accept=JSON_V2, status=404),
        post(
            "/topics/binarytest",
            {"records": [{"value": "S2Fma2E="}]},
            sends=BINARY_V2,
            answer=written((0, 0)),
        ),
        post(
            "/consumers/binary_group",
            {"name": "my_instance", "format": "binary", "auto.offset.reset": "earliest"},
            answer=created("my_instance"),
        ),
        post(BASE + "/subscription", {"topics": ["binarytest"]}, status=204),
        get(
            BASE + "/records",
            [record("binarytest", None, "S2Fma2E=", 0, 0)],
            accept=BINARY_V2,
            media=BINARY_V2,
        ),
        delete(BASE),
        post("/topics/avrotest", AVRO_RECORDS, sends=AVRO_V2, **REFUSED),
        post("/consumers/avro_group", {"name": "one", "format": "avro"}, **REFUSED),
        get("/topics", Holding(["jsontest", "binarytest"])),
        get("/topics/jsontest", AtLeast(name="jsontest", partitions=[partition_of(0)])),
        get("/topics/jsontest/partitions", [partition_of(0)]),
    ),
)

CONFLUENT_V3 = Quickstart(
    title="Confluent, v3",
    names=("v3test", "v3_group"),
    steps=(
        get("/v3/clusters", AtLeast(kind="KafkaClusterList", data=[AtLeast(kind="KafkaCluster")])),
        post(
            "/v3/clusters/{cluster}/topics",
            {"topic_name": "v3test"},
            sends=PLAIN,
            status=201,
            answer=AtLeast(kind="KafkaTopic", topic_name="v3test", partitions_count=1),
        ),
        get(
            "/v3/clusters/{cluster}/topics/v3test/partitions/0/offset?offset_type=earliest_and_latest",
            AtLeast(kind="KafkaPartitionWithOffsets", earliest_offset=0, latest_offset=0),
        ),
        get(
            "/v3/clusters/{cluster}/topics/-/partitions/-/reassignment",
            AtLeast(kind="KafkaReassignmentList"),
        ),
        get(
            "/v3/clusters/{cluster}/topics",
            AtLeast(kind="KafkaTopicList", data=Holding([AtLeast(topic_name="v3test")])),
        ),
        post(
            "/v3/clusters/{cluster}/topics/v3test/records",
            {"value": {"type": "JSON", "data": {"name": "testUser"}}},
            sends=PLAIN,
            answer=AtLeast(
                error_code=200, topic_name="v3test", partition_id=0, offset=0,
                value=AtLeast(type="JSON", size=19),
            ),
        ),
        post(
            "/v3/clusters/{cluster}/topics/v3test/records",
            '{"value":{"type":"JSON","data":"ONE"}} {"value":{"type":"JSON","data":"TWO"}}',
            sends=PLAIN,
            answer=[AtLeast(error_code=200, partition_id=0, offset=offset) for offset in (1, 2)],
        ),
        post(
            "/consumers/v3_group",
            {"name": "my_instance", "format": "json", "auto.offset.reset": "earliest"},
            answer=created("my_instance"),
        ),
        post(BASE + "/subscription", {"topics": ["v3test"]}, status=204),
        get(
            BASE + "/records",
            [
                record("v3test", None, {"name": "testUser"}, 0, 0),
                record("v3test", None, "ONE", 0, 1),
                record("v3test", None, "TWO", 0, 2),
            ],
            accept=JSON_V2,
        ),
        post(BASE + "/offsets", None, sends=None, status=204),
        get(
            "/v3/clusters/{cluster}/consumer-groups",
            AtLeast(data=Holding([AtLeast(kind="KafkaConsumerGroup", consumer_group_id="v3_group")])),
        ),
        get(
            "/v3/clusters/{cluster}/consumer-groups/v3_group/consumers",
            AtLeast(data=[AtLeast(kind="KafkaConsumer", consumer_id="my_instance")]),
        ),
        get(
            "/v3/clusters/{cluster}/consumer-groups/v3_group/lags",
            AtLeast(
                data=[
                    AtLeast(
                        kind="KafkaConsumerLag", topic_name="v3test", partition_id=0,
                        current_offset=3, log_end_offset=3, lag=0, consumer_id="my_instance",
                    )
                ]
            ),
        ),
        get(
            "/v3/clusters/{cluster}/consumer-groups/v3_group/lag-summary",
            AtLeast(kind="KafkaConsumerGroupLagSummary", total_lag=0, max_lag=0),
        ),
        delete(BASE),
    ),
)  # fmt: skip

THREE = [{"topic": "test_topic", "partition": partition} for partition in range(3)]
REDPANDA = Quickstart(
    title="Redpanda",
    names=("test_topic", "test_group"),
    steps=(
        post(
            "/admin/topics",
            {"topic_name": "test_topic", "partitions_count": 3},
            sends=JSON_V2,
            status=201,
        ),
        get("/brokers", {"brokers": Anything(lambda found: 1 in found, "live nodes")}),
        get("/topics", Holding(["test_topic"])),
        post(
            "/topics/test_topic",
            {
                "records": [
                    {"value": "Redpanda", "partition": 0},
                    {"value": "HTTP proxy", "partition": 1},
                    {"value": "Test event", "partition": 2},
                ]
            },
            sends=JSON_V2,
            answer=written((0, 0), (1, 0), (2, 0)),
        ),
        get(
            "/topics/test_topic/partitions/0/records?offset=0&timeout=1000&max_bytes=100000",
            [record("test_topic", None, "Redpanda", 0, 0)],
            accept=JSON_V2,
        ),
        post(
            "/consumers/test_group",
            {
                "format": "json",
                "name": "test_consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.enable": "false",
                "fetch.min.bytes": "1",
                "consumer.request.timeout.ms": "10000",
            },
            answer=created("test_consumer"),
        ),
        post(BASE + "/subscription", {"topics": ["test_topic"]}, status=204),
        get(
            BASE + "/records?timeout=1000&max_bytes=100000",
            InAnyOrder(
                [
                    record("test_topic", None, "Redpanda", 0, 0),
                    record("test_topic", None, "HTTP proxy", 1, 0),
                    record("test_topic", None, "Test event", 2, 0),
                ]
            ),
            accept=JSON_V2,
        ),
        Step(
            method="GET",
            path=BASE + "/offsets",
            body={"partitions": THREE},
            headers={"Content-Type": META_V2},
        ),
        post(
            BASE + "/offsets",
            {"partitions": [{**place, "offset": 0} for place in THREE]},
            status=204,
        ),
        Step(
            method="GET",
            path=BASE + "/offsets",
            body={"partitions": THREE},
            headers={"Content-Type": META_V2},
            answer={
                "offsets": InAnyOrder([AtLeast(**place, offset=0, metadata="") for place in THREE])
            },
        ),
        delete(BASE),
    ),
)

KARAPACE = Quickstart(
    title="Karapace",
    names=("my_topic", "my_consumers"),
    steps=(
        get("/topics", Anything(lambda found: isinstance(found, list), "a list")),
        post("/topics/my_topic", AVRO_RECORDS, sends=AVRO_V2, **REFUSED),
        post(
            "/topics/my_topic",
            {"records": [{"value": {"name": "name0"}}]},
            sends=JSON_V2,
            answer=written((0, 0)),
        ),
        get("/topics/my_topic", AtLeast(name="my_topic", partitions=[partition_of(0)])),
        Step(
            method="POST",
            path="/consumers/my_consumers",
            body={"name": "my_consumer", "format": "json", "auto.offset.reset": "earliest"},
            headers={"Content-Type": META_V2, "Accept": META_V2},
            answer=created("my_consumer"),
            media=META_V2,
        ),
        post(BASE + "/subscription", {"topics": ["my_topic"]}, status=204),
        get(
            BASE + "/records?timeout=1000",
            [record("my_topic", None, {"name": "name0"}, 0, 0)],
            accept=JSON_V2,
        ),
        post(BASE + "/offsets", {}, status=204),
        Step(
            method="GET",
            path=BASE + "/offsets",
            body={"partitions": [{"topic": "my_topic", "partition": 0}]},
            headers={"Content-Type": META_V2},
            answer={"offsets": [AtLeast(topic="my_topic", partition=0, offset=1)]},
        ),
        Step(method="DELETE", path=BASE, headers={"Accept": META_V2}, status=204),
    ),
)

LEADS = {
    "records": [
        {"key": "my-key", "value": "sales-lead-0001"},
        {"value": "sales-lead-0002", "partition": 2},
        {"value": "sales-lead-0003"},
    ]
}
BRIDGE = "bridge-topic"
LEAD_RECORDS = [
    record(BRIDGE, "my-key", "sales-lead-0001", NUMBER, NUMBER),
    record(BRIDGE, None, "sales-lead-0002", 2, NUMBER),
    record(BRIDGE, None, "sales-lead-0003", NUMBER, NUMBER),
]
STRIMZI = Quickstart(
    title="Strimzi",
    names=("bridge-topic", "bridge-group"),
    steps=(
        post(
            "/admin/topics",
            {"topic_name": "bridge-topic", "partitions_count": 3, "replication_factor": 1},
            sends=JSON_V2,
            status=201,
        ),
        post(
            "/topics/bridge-topic",
            LEADS,
            sends=JSON_V2,
            answer=written((NUMBER, NUMBER), (2, NUMBER), (NUMBER, NUMBER)),
            media=META_V2,
        ),
        get("/openapi/v3", AtLeast(paths=ANY)),
        get("/topics", Holding(["bridge-topic"])),
        get(
            "/topics/bridge-topic",
            AtLeast(
                name="bridge-topic",
                configs=AtLeast(),
                partitions=[partition_of(n) for n in range(3)],
            ),
        ),
        get("/topics/bridge-topic/partitions", [partition_of(n) for n in range(3)]),
        get("/topics/bridge-topic/partitions/0", partition_of(0)),
        get(
            "/topics/bridge-topic/partitions/2/offsets",
            {"beginning_offset": 0, "end_offset": NUMBER, "last_stable_offset": NUMBER},
        ),
        post(
            "/consumers/bridge-group",
            {
                "name": "bridge-consumer",
                "auto.offset.reset": "earliest",
                "format": "json",
                "enable.auto.commit": False,
                "fetch.min.bytes": 512,
                "consumer.request.timeout.ms": 30000,
            },
            answer=created("bridge-consumer"),
        ),
        post(BASE + "/subscription", {"topics": ["bridge-topic"]}, status=204),
        get(BASE + "/records", InAnyOrder(LEAD_RECORDS), accept=JSON_V2, media=JSON_V2),
        post("/topics/bridge-topic", LEADS, sends=JSON_V2),
        get(BASE + "/records", InAnyOrder(LEAD_RECORDS), accept=JSON_V2),
        post(BASE + "/offsets", None, sends=None, status=204),
        post(
            BASE + "/positions",
            {"offsets": [{"topic": "bridge-topic", "partition": 2, "offset": 1}]},
            status=204,
        ),
        get(
            BASE + "/records",
            Holding([record(BRIDGE, None, "sales-lead-0002", 2, 1)]),
            accept=JSON_V2,
        ),
        post(
            BASE + "/positions/beginning",
            {"partitions": [{"topic": "bridge-topic", "partition": 2}]},
            status=204,
        ),
        get(
            BASE + "/records",
            Holding([record(BRIDGE, None, "sales-lead-0002", 2, offset) for offset in (0, 1)]),
            accept=JSON_V2,
        ),
        post(
            BASE + "/positions/end",
            {"partitions": [{"topic": "bridge-topic", "partition": 2}]},
            status=204,
        ),
        get(BASE + "/records?timeout=100", [], accept=JSON_V2),
        get(
            BASE + "/subscription",
            AtLeast(
                topics=["bridge-topic"],
                partitions=[{"bridge-topic": InAnyOrder([0, 1, 2])}],
            ),
        ),
        delete(BASE, sends=None),
    ),
)

ALL = (CONFLUENT, CONFLUENT_V3, REDPANDA, KARAPACE, STRIMZI)
