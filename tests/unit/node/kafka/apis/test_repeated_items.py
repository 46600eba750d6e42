"""The answers to a request that has an item twice: as Apache Kafka answers, list by list.

``test_every_list_of_every_api_has_a_case`` takes the lists from the message definitions, so a new key or version with a
list needs a case here. The table in ``node.kafka.apis.items`` says the rules in words.

Source: apache/kafka 4.x, ``KafkaApis``, ``ControllerApis``, ``ReplicationControlManager``, ``ConfigAdminManager``,
``ClientQuotaControlManager`` and the group coordinator.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from node.kafka.apis.items import NO_ID
from node.kafka.apis.registry import APIS
from node.kafka.wire import cold
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import virtual

NO_RESOURCE, DUPLICATE = 91, 92
NONE, UNKNOWN, BAD_MEMBER, BAD_ASSIGNMENT, BAD_REQUEST, NOT_NEEDED = 0, 3, 25, 39, 42, 84
TWO = [0, 0]


class World(NamedTuple):
    """An open node with topics ``t`` (with three records) and ``u``, a group, and a transactional producer."""

    cluster: Cluster
    client: KafkaClient
    producer: tuple[int, int]
    member: str
    """A member of the classic group ``c``, which is in generation 1."""

    @property
    def node(self) -> SimNode:
        return self.cluster.nodes[1]

    def topic_id(self, name: str = "t") -> uuid.UUID:
        return uuid.UUID(hex=self.cluster.image.topic_ids[name])


class Case(NamedTuple):
    """A request in which an item of each of ``lists`` is there several times, and what it must get.

    ``rows``: of the response; ``after``: of the node, once the request is served.
    """

    lists: tuple[str, ...]
    version: int
    fields: Callable[[World], dict[str, Any]]
    rows: Callable[[Any], object]
    expected: object
    after: Callable[[World], object] = lambda _: None
    state: object = None


def parts(topics: Iterable[Any], inner: str, number: str, *more: str) -> list[Any]:
    """The partitions in a response: name, number and further fields, error codes above all."""
    return [
        (
            getattr(topic, "name", None) or getattr(topic, "topic", None),
            *(getattr(part, name) for name in (number, *more)),
        )
        for topic in topics
        for part in getattr(topic, inner)
    ]


def batch(value: str) -> bytes:
    return encoded(numbered(KafkaRecord(value.encode())))


def offset(value: int) -> dict[str, Any]:
    return {
        "partition_index": 0,
        "committed_offset": value,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }


def fetched(start: int) -> dict[str, Any]:
    return {
        "partition": 0,
        "fetch_offset": start,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }


def fetch(world: World, **more: Any) -> dict[str, Any]:
    topic = {"topic": "t", "partitions": [fetched(0), fetched(1)]}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [topic, {"topic": "t", "partitions": [fetched(3)]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    } | more


def committed(world: World) -> int | None:
    offsets = world.cluster.image.offsets.get("g")
    found = None if offsets is None else offsets.get((world.topic_id().hex, 0))
    return None if found is None else found.offset


def acl(name: str = "t") -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": "acl",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def quota(value: float, *users: str) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": "user", "entity_name": user} for user in users or ("ann",)],
        "ops": [{"key": "request_rate", "value": value, "remove": False}],
    }


def value(text: str) -> dict[str, Any]:
    return {"name": "retention.ms", "value": text}


def config(text: str) -> dict[str, Any]:
    return value(text) | {"config_operation": 0}


def credential(user: str) -> dict[str, Any]:
    return {
        "name": user,
        "mechanism": 1,
        "iterations": 4_096,
        "salt": bytes(16),
        "salted_password": bytes(32),
    }


def new(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": -1, "replication_factor": -1} | fields


def named(*numbers: int, field: str = "partitions", name: str = "name") -> list[dict[str, Any]]:
    """Topic ``t`` twice, each with these partitions."""
    return [{name: "t", field: list(numbers)}, {name: "t", field: list(numbers)}]


def rows_of(topics: Iterable[Any], *fields: str) -> list[Any]:
    return [tuple(getattr(topic, field) for field in fields) for topic in topics]


def retention(world: World, name: str = "t") -> str | None:
    topic = world.cluster.image.topic(name)
    return None if topic is None else topic.configs.get("retention.ms")


CASES: dict[int, list[Case]] = {
    # Kafka takes the last batch and drops the others without a word. Here, none is written.
    0: [
        Case(
            ("topic_data", "topic_data.partition_data"),
            9,
            lambda _: {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 1_000,
                "topic_data": [
                    {"name": "t", "partition_data": [{"index": 0, "records": batch("x")}]},
                    {
                        "name": "t",
                        "partition_data": [
                            {"index": 0, "records": batch("y")},
                            {"index": 1, "records": batch("z")},
                        ],
                    },
                ],
            },
            lambda found: parts(found.responses, "partition_responses", "index", "error_code"),
            [("t", 0, BAD_REQUEST), ("t", 1, NONE)],
            lambda world: world.cluster.runner(1, "t").log.log_end_offset,
            3,
        )
    ],
    # The last one counts.
    1: [
        Case(
            ("topics", "topics.partitions"),
            11,
            fetch,
            lambda found: parts(
                found.responses, "partitions", "partition_index", "error_code", "records"
            ),
            [("t", 0, NONE, b"")],
        ),
        Case(
            ("forgotten_topics_data", "forgotten_topics_data.partitions"),
            11,
            lambda world: fetch(world, forgotten_topics_data=named(*TWO, name="topic"), topics=[]),
            lambda found: (found.error_code, found.responses),
            (NONE, []),
        ),
    ],
    2: [
        Case(
            ("topics", "topics.partitions"),
            7,
            lambda _: {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": "t",
                        "partitions": [
                            {"partition_index": p, "current_leader_epoch": -1, "timestamp": -1}
                            for p in numbers
                        ],
                    }
                    for numbers in ([0], [1, 0])
                ],
            },
            lambda found: parts(found.topics, "partitions", "partition_index", "error_code"),
            [("t", 0, BAD_REQUEST), ("t", 1, NONE)],
        )
    ],
    3: [
        Case(
            ("topics",),
            12,
            lambda world: {
                "topics": [
                    *[{"topic_id": NO_ID, "name": name} for name in ("t", "none", "t", "none")],
                    *[{"topic_id": world.topic_id("u"), "name": None}] * 2,
                ],
                "allow_auto_topic_creation": False,
            },
            lambda found: sorted(rows_of(found.topics, "name", "error_code")),
            [("none", UNKNOWN), ("t", NONE), ("u", NONE)],
        )
    ],
    8: [
        Case(
            ("topics", "topics.partitions"),
            8,
            lambda _: {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [
                    {"name": "t", "partitions": [offset(1), offset(2)]},
                    {"name": "t", "partitions": [offset(3)]},
                ],
            },
            lambda found: parts(found.topics, "partitions", "partition_index", "error_code"),
            [("t", 0, NONE)] * 3,
            committed,
            3,
        )
    ],
    9: [
        Case(
            ("topics", "topics.partition_indexes"),
            7,
            lambda _: {
                "group_id": "g",
                "topics": named(*TWO, field="partition_indexes"),
                "require_stable": False,
            },
            lambda found: parts(found.topics, "partitions", "partition_index", "error_code"),
            [("t", 0, NONE)] * 4,
        ),
        Case(
            ("groups", "groups.topics", "groups.topics.partition_indexes"),
            8,
            lambda _: {
                "groups": [
                    {"group_id": "g", "topics": named(*TWO, field="partition_indexes")},
                    {"group_id": "g", "topics": []},
                    {"group_id": "g", "topics": None},
                    {"group_id": "g", "topics": None},
                ],
                "require_stable": False,
            },
            lambda found: [
                (
                    one.group_id,
                    one.error_code,
                    parts(one.topics, "partitions", "partition_index", "error_code"),
                )
                for one in found.groups
            ],
            # All offsets are there once.
            [("g", NONE, [("t", 0, NONE)] * 4), ("g", NONE, []), ("g", NONE, [("t", 0, NONE)])],
        ),
    ],
    10: [
        Case(
            ("coordinator_keys",),
            4,
            lambda _: {"key_type": 0, "coordinator_keys": ["g", "g"]},
            lambda found: rows_of(found.coordinators, "key", "error_code"),
            [("g", NONE)] * 2,
        )
    ],
    # The first one counts.
    11: [
        Case(
            ("protocols",),
            3,
            lambda _: {
                "group_id": "j",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": data} for data in (b"1", b"2")],
            },
            lambda found: (found.error_code, found.members[0].metadata),
            (NONE, b"1"),
        )
    ],
    # The first one leaves, and is no member then.
    13: [
        Case(
            ("members",),
            3,
            lambda world: {
                "group_id": "c",
                "members": [{"member_id": world.member, "group_instance_id": None}] * 2,
            },
            lambda found: (found.error_code, rows_of(found.members, "error_code")),
            (NONE, [(NONE,), (BAD_MEMBER,)]),
        )
    ],
    # The last one counts.
    14: [
        Case(
            ("assignments",),
            3,
            lambda world: {
                "group_id": "c",
                "generation_id": 1,
                "member_id": world.member,
                "group_instance_id": None,
                "assignments": [
                    {"member_id": world.member, "assignment": data} for data in (b"1", b"2")
                ],
            },
            lambda found: (found.error_code, found.assignment),
            (NONE, b"2"),
        )
    ],
    15: [
        Case(
            ("groups",),
            3,
            lambda _: {"groups": ["c", "c"], "include_authorized_operations": False},
            lambda found: rows_of(found.groups, "group_id", "error_code"),
            [("c", NONE)],
        )
    ],
    16: [
        Case(
            ("states_filter", "types_filter"),
            5,
            lambda _: {
                "states_filter": ["CompletingRebalance"] * 2,
                "types_filter": ["classic"] * 2,
            },
            lambda found: rows_of(found.groups, "group_id"),
            [("c",)],
        )
    ],
    19: [
        Case(
            ("topics",),
            7,
            lambda _: {
                "topics": [new("a"), new("twice"), new("b"), new("twice"), new("twice")],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
            lambda found: rows_of(found.topics, "name", "error_code"),
            [("a", NONE), ("twice", BAD_REQUEST), ("b", NONE)],
            lambda world: sorted(world.cluster.image.topic_ids),
            ["a", "b", "t", "u"],
        ),
        Case(
            ("topics.assignments", "topics.assignments.broker_ids"),
            7,
            lambda _: {
                "topics": [
                    new("a", assignments=[{"partition_index": 0, "broker_ids": [1]}] * 2),
                    new("b", assignments=[{"partition_index": 0, "broker_ids": [1, 1]}]),
                ],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
            lambda found: rows_of(found.topics, "name", "error_code"),
            [("a", BAD_ASSIGNMENT), ("b", BAD_ASSIGNMENT)],
        ),
        # The last one counts.
        Case(
            ("topics.configs",),
            7,
            lambda _: {
                "topics": [new("a", configs=[value("1000"), value("2000")])],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
            lambda found: rows_of(found.topics, "name", "error_code"),
            [("a", NONE)],
            lambda world: retention(world, "a"),
            "2000",
        ),
    ],
    20: [
        Case(
            ("topic_names",),
            5,
            lambda _: {"topic_names": ["t", "u", "t"], "timeout_ms": 5_000},
            lambda found: rows_of(found.responses, "name", "error_code"),
            [("t", BAD_REQUEST), ("u", NONE)],
            lambda world: sorted(world.cluster.image.topic_ids),
            ["t"],
        ),
        Case(
            ("topics",),
            6,
            lambda world: {
                "topics": [{"name": None, "topic_id": world.topic_id()}] * 2
                + [{"name": "u", "topic_id": NO_ID}],
                "timeout_ms": 5_000,
            },
            lambda found: rows_of(found.responses, "name", "error_code"),
            [(None, BAD_REQUEST), ("u", NONE)],
            lambda world: sorted(world.cluster.image.topic_ids),
            ["t"],
        ),
        # Once by its id, and once by its name.
        Case(
            ("topics",),
            6,
            lambda world: {
                "topics": [
                    {"name": None, "topic_id": world.topic_id()},
                    {"name": "u", "topic_id": NO_ID},
                    {"name": "t", "topic_id": NO_ID},
                ],
                "timeout_ms": 5_000,
            },
            lambda found: rows_of(found.responses, "name", "error_code"),
            [("u", NONE), ("t", BAD_REQUEST)],
            lambda world: sorted(world.cluster.image.topic_ids),
            ["t"],
        ),
    ],
    # The last one counts.
    21: [
        Case(
            ("topics", "topics.partitions"),
            2,
            lambda _: {
                "topics": [
                    {"name": "t", "partitions": [{"partition_index": 0, "offset": at}]}
                    for at in (3, 2)
                ],
                "timeout_ms": 5_000,
            },
            lambda found: parts(
                found.topics, "partitions", "partition_index", "error_code", "low_watermark"
            ),
            [("t", 0, NONE, 2)],
            lambda world: world.cluster.runner(1, "t").log.log_start_offset,
            2,
        )
    ],
    23: [
        Case(
            ("topics", "topics.partitions"),
            4,
            lambda _: {
                "replica_id": -1,
                "topics": [
                    {
                        "topic": "t",
                        "partitions": [
                            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
                        ]
                        * 2,
                    }
                ]
                * 2,
            },
            lambda found: parts(found.topics, "partitions", "partition", "error_code"),
            [("t", 0, NONE)] * 4,
        )
    ],
    24: [
        Case(
            ("v3_and_below_topics", "v3_and_below_topics.partitions"),
            3,
            lambda world: {
                "v3_and_below_transactional_id": "tx",
                "v3_and_below_producer_id": world.producer[0],
                "v3_and_below_producer_epoch": world.producer[1],
                "v3_and_below_topics": named(*TWO),
            },
            lambda found: parts(
                found.results_by_topic_v3_and_below,
                "results_by_partition",
                "partition_index",
                "partition_error_code",
            ),
            [("t", 0, NONE)],
        )
    ],
    28: [
        Case(
            ("topics", "topics.partitions"),
            5,
            lambda world: {
                "transactional_id": "tx",
                "group_id": "g",
                "producer_id": world.producer[0],
                "producer_epoch": world.producer[1],
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [
                    {"name": "t", "partitions": [offset(1), offset(2)]},
                    {"name": "t", "partitions": [offset(3)]},
                ],
            },
            lambda found: parts(found.topics, "partitions", "partition_index", "error_code"),
            [("t", 0, NONE)] * 3,
            lambda world: [
                one.offset for one in world.cluster.image.transactional_ids["tx"].offsets
            ],
            [3],
        )
    ],
    30: [
        Case(
            ("creations",),
            3,
            lambda _: {"creations": [acl(), acl()]},
            lambda found: rows_of(found.results, "error_code"),
            [(NONE,), (NONE,)],
            lambda world: sorted(
                one.name for found in world.cluster.image.acls.values() for one in found
            ),
            ["acl", "t"],
        )
    ],
    31: [
        Case(
            ("filters",),
            3,
            lambda _: {"filters": [acl_filter(), acl_filter()]},
            lambda found: [
                (one.error_code, rows_of(one.matching_acls, "resource_name"))
                for one in found.filter_results
            ],
            [(NONE, [("acl",)]), (NONE, [])],
        )
    ],
    32: [
        Case(
            ("resources", "resources.configuration_keys"),
            4,
            lambda _: {
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": "t",
                        "configuration_keys": ["retention.ms"] * 2,
                    }
                ]
                * 2
            },
            lambda found: [
                (one.resource_name, one.error_code, len(one.configs)) for one in found.results
            ],
            [("t", NONE, 1)] * 2,
        )
    ],
    33: [
        Case(
            ("resources", "resources.configs"),
            2,
            lambda _: {
                "resources": [
                    {"resource_type": 2, "resource_name": "t", "configs": [value("1000")]},
                    {"resource_type": 2, "resource_name": "t", "configs": [value("2000")]},
                    {"resource_type": 2, "resource_name": "u", "configs": [value("1000")] * 2},
                ],
                "validate_only": False,
            },
            lambda found: rows_of(found.responses, "resource_name", "error_code"),
            [("t", BAD_REQUEST), ("t", BAD_REQUEST), ("u", BAD_REQUEST)],
            retention,
        )
    ],
    # The last directory counts.
    34: [
        Case(
            ("dirs", "dirs.topics", "dirs.topics.partitions"),
            2,
            lambda world: {
                "dirs": [
                    {"path": path, "topics": named(*TWO)}
                    for path in ("/none", str(world.node.directory.root))
                ]
            },
            lambda found: [
                (topic.topic_name, part.partition_index, part.error_code)
                for topic in found.results
                for part in topic.partitions
            ],
            [("t", 0, NONE)],
        )
    ],
    35: [
        Case(
            ("topics", "topics.partitions"),
            4,
            lambda _: {
                "topics": [
                    {"topic": "t", "partitions": [0, 0]},
                    {"topic": "t", "partitions": [1]},
                ]
            },
            lambda found: parts(found.results[0].topics, "partitions", "partition_index"),
            [("t", 0), ("t", 1)],
        )
    ],
    37: [
        Case(
            ("topics",),
            3,
            lambda _: {
                "topics": [
                    {"name": name, "count": 4, "assignments": None} for name in ("t", "u", "t")
                ],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
            lambda found: rows_of(found.results, "name", "error_code"),
            [("t", BAD_REQUEST), ("u", NONE)],
            lambda world: [world.cluster.image.topic(n).partition_count for n in ("t", "u")],  # type: ignore[union-attr]
            [2, 4],
        ),
        # Assignments are in the order of the new partitions, so none is a repetition.
        Case(
            ("topics.assignments", "topics.assignments.broker_ids"),
            3,
            lambda _: {
                "topics": [
                    {"name": "t", "count": 4, "assignments": [{"broker_ids": [1]}] * 2},
                    {"name": "u", "count": 2, "assignments": [{"broker_ids": [1, 1]}]},
                ],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
            lambda found: rows_of(found.results, "name", "error_code"),
            [("t", NONE), ("u", BAD_ASSIGNMENT)],
        ),
    ],
    42: [
        Case(
            ("groups_names",),
            2,
            lambda _: {"groups_names": ["g", "g"]},
            lambda found: rows_of(found.results, "group_id", "error_code"),
            [("g", NONE)],
        )
    ],
    43: [
        Case(
            ("topic_partitions", "topic_partitions.partitions"),
            2,
            lambda _: {
                "election_type": 0,
                "topic_partitions": named(*TWO, name="topic"),
                "timeout_ms": 5_000,
            },
            lambda found: parts(
                found.replica_election_results, "partition_result", "partition_id", "error_code"
            ),
            [("t", 0, NOT_NEEDED)] * 4,
        )
    ],
    44: [
        Case(
            ("resources", "resources.configs"),
            1,
            lambda _: {
                "resources": [
                    {"resource_type": 2, "resource_name": "t", "configs": [config("1000")]},
                    {"resource_type": 2, "resource_name": "t", "configs": [config("2000")]},
                    {"resource_type": 2, "resource_name": "u", "configs": [config("1000")] * 2},
                ],
                "validate_only": False,
            },
            lambda found: rows_of(found.responses, "resource_name", "error_code"),
            [("t", BAD_REQUEST), ("t", BAD_REQUEST), ("u", BAD_REQUEST)],
            retention,
        )
    ],
    45: [
        Case(
            ("topics", "topics.partitions", "topics.partitions.replicas"),
            1,
            lambda _: {
                "timeout_ms": 5_000,
                "topics": [
                    {"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}] * 2},
                    {"name": "t", "partitions": [{"partition_index": 1, "replicas": [1, 1]}]},
                ],
            },
            lambda found: parts(found.responses, "partitions", "partition_index", "error_code"),
            [("t", 0, NONE), ("t", 0, NONE), ("t", 1, BAD_ASSIGNMENT)],
        )
    ],
    46: [
        Case(
            ("topics", "topics.partition_indexes"),
            0,
            lambda _: {"topics": named(*TWO, field="partition_indexes"), "timeout_ms": 5_000},
            lambda found: (found.error_code, found.topics),
            (NONE, []),
        )
    ],
    47: [
        Case(
            ("topics", "topics.partitions"),
            0,
            lambda _: {
                "group_id": "g",
                "topics": [{"name": "t", "partitions": [{"partition_index": 0}] * 2}] * 2,
            },
            lambda found: (
                found.error_code,
                parts(found.topics, "partitions", "partition_index", "error_code"),
            ),
            (NONE, [("t", 0, NONE)] * 4),
            committed,
        )
    ],
    48: [
        Case(
            ("components",),
            1,
            lambda _: {
                "components": [{"entity_type": "user", "match_type": 0, "match": "ann"}] * 2,
                "strict": False,
            },
            lambda found: found.error_code,
            BAD_REQUEST,
        )
    ],
    49: [
        # Kafka has the same row, but applies the first of the two entries.
        Case(
            ("entries",),
            1,
            lambda _: {"entries": [quota(5), quota(6)], "validate_only": False},
            lambda found: [
                (one.error_code, one.entity[0].entity_name, len(one.entity))
                for one in found.entries
            ],
            [(BAD_REQUEST, "ann", 1)],
            lambda world: dict(world.cluster.image.quotas),
            {},
        ),
        # The last name of an entity counts.
        Case(
            ("entries.entity",),
            1,
            lambda _: {"entries": [quota(5, "ann", "bob")], "validate_only": False},
            lambda found: [
                (one.error_code, one.entity[0].entity_name, len(one.entity))
                for one in found.entries
            ],
            [(NONE, "bob", 1)],
            lambda world: [one.user for one in world.cluster.image.quotas.values()],
            ["bob"],
        ),
        Case(
            ("entries.ops",),
            1,
            lambda _: {
                "entries": [quota(5) | {"ops": quota(5)["ops"] + quota(6)["ops"]}],
                "validate_only": False,
            },
            lambda found: rows_of(found.entries, "error_code"),
            [(BAD_REQUEST,)],
        ),
    ],
    50: [
        Case(
            ("users",),
            0,
            lambda _: {"users": [{"name": "ann"}, {"name": "bob"}, {"name": "ann"}]},
            lambda found: rows_of(found.results, "user", "error_code"),
            [("ann", DUPLICATE), ("bob", NO_RESOURCE)],
        )
    ],
    51: [
        Case(
            ("upsertions", "deletions"),
            0,
            lambda _: {
                "deletions": [{"name": name, "mechanism": 1} for name in ("ann", "bob", "bob")],
                "upsertions": [credential("ann"), credential("cay"), credential("cay")],
            },
            lambda found: sorted(rows_of(found.results, "user", "error_code")),
            [("ann", DUPLICATE), ("bob", DUPLICATE), ("cay", DUPLICATE)],
            lambda world: sorted(world.cluster.image.users),
            [],
        )
    ],
    55: [
        Case(
            ("topics", "topics.partitions"),
            1,
            lambda _: {
                "topics": [
                    {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}] * 2}
                ]
            },
            lambda found: [
                (topic.topic_name, part.partition_index, part.error_code)
                for topic in found.topics
                for part in topic.partitions
            ],
            [("__cluster_metadata", 0, UNKNOWN)] * 2,
        )
    ],
    61: [
        Case(
            ("topics", "topics.partition_indexes"),
            0,
            lambda _: {"topics": named(*TWO, field="partition_indexes")},
            lambda found: parts(found.topics, "partitions", "partition_index", "error_code"),
            [("t", 0, NONE)] * 4,
        )
    ],
    65: [
        Case(
            ("transactional_ids",),
            0,
            lambda _: {"transactional_ids": ["tx", "tx"]},
            lambda found: rows_of(found.transaction_states, "transactional_id", "error_code"),
            [("tx", NONE)],
        )
    ],
    66: [
        Case(
            ("state_filters", "producer_id_filters"),
            1,
            lambda world: {
                "state_filters": ["Empty", "Empty", "Odd", "Odd"],
                "producer_id_filters": [world.producer[0]] * 2,
                "duration_filter": -1,
            },
            lambda found: (
                found.unknown_state_filters,
                rows_of(found.transaction_states, "transactional_id"),
            ),
            (["Odd"], [("tx",)]),
        )
    ],
    68: [
        Case(
            ("subscribed_topic_names",),
            1,
            lambda _: {
                "group_id": "h",
                "member_id": "m",
                "member_epoch": 0,
                "rebalance_timeout_ms": 10_000,
                "subscribed_topic_names": ["t", "t"],
                "topic_partitions": [],
            },
            lambda found: (
                found.error_code,
                [sorted(one.partitions) for one in found.assignment.topic_partitions],
            ),
            (NONE, [[0, 1]]),
            lambda world: [one.topics for one in world.cluster.image.groups["h"].members],
            [("t",)],
        ),
        Case(
            ("topic_partitions", "topic_partitions.partitions"),
            1,
            lambda world: {
                "group_id": "k",
                "member_id": "m",
                "member_epoch": 1,
                "topic_partitions": [
                    {"topic_id": world.topic_id(), "partitions": [0, 1, 0]},
                    {"topic_id": world.topic_id(), "partitions": [1]},
                ],
            },
            lambda found: (found.error_code, found.member_epoch),
            (NONE, 1),
        ),
    ],
    69: [
        Case(
            ("group_ids",),
            1,
            lambda _: {"group_ids": ["k", "k"], "include_authorized_operations": False},
            lambda found: rows_of(found.groups, "group_id", "error_code"),
            [("k", NONE)],
        )
    ],
    74: [
        Case(
            ("resource_types",),
            1,
            lambda _: {"resource_types": [2, 2]},
            lambda found: rows_of(found.config_resources, "resource_name"),
            [("t",), ("u",)],
        )
    ],
    75: [
        Case(
            ("topics",),
            0,
            lambda _: {
                "topics": [{"name": "t"}, {"name": "t"}],
                "response_partition_limit": 10,
                "cursor": None,
            },
            lambda found: rows_of(found.topics, "name", "error_code"),
            [("t", NONE)],
        )
    ],
}


def lists_of(key: int) -> set[str]:
    """The lists in the requests of an API, in the versions that are served."""
    api = APIS[key]
    kind = cold._CLASSES[key, "request"]
    return set(_lists(kind, "", range(api.first, api.last + 1)))


def _lists(kind: Any, prefix: str, versions: Iterable[int]) -> Iterator[str]:
    for name, field in kind.fields.items():
        having = [version for version in versions if field.for_version_q(version)]
        if not having:
            continue
        if field.is_array():
            yield prefix + name
        if field.is_struct() or field.is_struct_array():
            yield from _lists(field.data_class, f"{prefix}{name}.", having)


def test_every_list_of_every_api_has_a_case() -> None:
    expected = {key: found for key in APIS if (found := lists_of(key))}
    assert {
        key: {name for case in cases for name in case.lists} for key, cases in CASES.items()
    } == expected


async def world_of(cluster: Cluster) -> World:
    client = client_of(cluster.nodes[1])
    await cluster.create("t", (1,), (1,))
    await cluster.create("u", (1,))
    records = encoded(numbered(*(KafkaRecord(value.encode()) for value in "abc")))
    topic_data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    await client.call(0, 9, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=topic_data)
    made = await client.call(
        22,
        4,
        transactional_id="tx",
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    await client.call(
        8,
        7,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "t", "partitions": [offset(0)]}],
    )
    await client.call(30, 3, creations=[acl("acl")])
    await client.call(
        68,
        1,
        group_id="k",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = await client.call(
        11,
        3,
        group_id="c",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    return World(cluster, client, (made.producer_id, made.producer_epoch), joined.member_id)


@pytest.mark.parametrize(
    ("key", "case"),
    [
        pytest.param(key, case, id=f"{APIS[key].name}-{'-'.join(case.lists)}")
        for key, cases in CASES.items()
        for case in cases
    ],
)
@virtual
async def test_an_item_that_is_there_twice_gets_what_kafka_answers(key: int, case: Case) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        world = await world_of(cluster)
        found = await world.client.call(key, case.version, **case.fields(world))
        assert case.rows(found) == case.expected
        assert case.after(world) == case.state
