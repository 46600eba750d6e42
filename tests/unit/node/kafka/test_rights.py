"""The access matrix of the Kafka interface: each key by clients with no, bad, too weak and sufficient credentials.

Every registered key is in ``REQUESTS``. A request is sent over a connection of a closed cluster. Its topic and group
are ``orders``; with ``absent`` in their place, a client that may not see them must get the same response.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from milena.model.access import CLUSTER_NAME, AccessMode, Operation, ResourceType
from node.kafka.apis.registry import APIS
from node.kafka.rights import Right
from node.kafka.wire import cold
from raft_meta.machine.image import Acl, AuditEntry
from tests.support.clusters.kafka_clients import (
    ADMIN,
    ANN,
    BOB,
    KafkaClient,
    acl,
    client_of,
    close_cluster,
    decoded,
    plain,
    sign_in,
)
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import settle, virtual

ROWS = Path(__file__).parents[3] / "data" / "wire" / "kafka_access.txt"
REFUSED = {29: "TOPIC", 30: "GROUP", 31: "CLUSTER", 53: "TRANSACTIONAL_ID"}
Fields = Mapping[str, Any]


class Asked(NamedTuple):
    """A request. ``fields``: of the name of the topic or group. ``code``: without rights, unless it is filtered."""

    version: int
    fields: Callable[[str], Fields]
    code: int | None = 29


def batch(producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    return encoded(numbered(KafkaRecord(b"v", key=b"k")), producer=producer)


def produced(name: str, records: bytes | None = None) -> Fields:
    part = {"index": 0, "records": batch() if records is None else records}
    topic = {"name": name, "partition_data": [part]}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1_000, "topic_data": [topic]}


def fetched(name: str) -> Fields:
    part = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [{"topic": name, "partitions": [part]}],
    }


def in_group(name: str) -> Fields:
    return {
        "group_id": name,
        "member_id": "",
        "group_instance_id": None,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        "members": [],
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": None,
    }


def committed(name: str) -> Fields:
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }
    return {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": [row]}],
    }


def only(names: Iterable[str], fields: Fields) -> Fields:
    return {name: fields[name] for name in names}


TIMED = {"timeout_ms": 5_000}
TOPIC_CONFIG = {"name": "retention.ms", "value": "5000"}
TOPIC_CHANGE = TOPIC_CONFIG | {"config_operation": 0}
REQUESTS: dict[int, Asked] = {
    0: Asked(9, produced),
    1: Asked(11, fetched),
    2: Asked(
        6,
        lambda name: {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
                    ],
                }
            ],
        },
    ),
    3: Asked(9, lambda name: {"topics": [{"name": name}], "allow_auto_topic_creation": False}),
    8: Asked(8, committed, 30),
    9: Asked(
        7,
        lambda name: {
            "group_id": name,
            "topics": [{"name": name, "partition_indexes": [0]}],
            "require_stable": False,
        },
        30,
    ),
    10: Asked(3, lambda name: {"key": name, "key_type": 0}, 30),
    11: Asked(
        9,
        lambda name: only(
            (
                "group_id",
                "session_timeout_ms",
                "rebalance_timeout_ms",
                "member_id",
                "group_instance_id",
                "protocol_type",
                "protocols",
                "reason",
            ),
            in_group(name),
        ),
        30,
    ),
    12: Asked(
        4,
        lambda name: only(
            ("group_id", "generation_id", "member_id", "group_instance_id"), in_group(name)
        ),
        30,
    ),
    13: Asked(5, lambda name: only(("group_id", "members"), in_group(name)), 30),
    14: Asked(
        5,
        lambda name: only(
            (
                "group_id",
                "generation_id",
                "member_id",
                "group_instance_id",
                "protocol_type",
                "protocol_name",
                "assignments",
            ),
            in_group(name),
        ),
        30,
    ),
    15: Asked(5, lambda name: {"groups": [name], "include_authorized_operations": True}, 30),
    16: Asked(4, lambda _: {"states_filter": []}, None),
    19: Asked(
        7,
        lambda name: {
            "topics": [{"name": f"{name}-2", "num_partitions": -1, "replication_factor": -1}],
            "validate_only": True,
            **TIMED,
        },
    ),
    20: Asked(5, lambda name: {"topic_names": [name], **TIMED}),
    21: Asked(
        2,
        lambda name: {
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}],
            **TIMED,
        },
    ),
    22: Asked(4, lambda _: {"transactional_id": None, "transaction_timeout_ms": 1_000}, 31),
    23: Asked(
        4,
        lambda name: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": name,
                    "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}],
                }
            ],
        },
    ),
    24: Asked(
        3,
        lambda name: {
            "v3_and_below_transactional_id": "orders",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": name, "partitions": [0]}],
        },
        53,
    ),
    25: Asked(
        3,
        lambda name: {
            "transactional_id": "orders",
            "producer_id": 1,
            "producer_epoch": 0,
            "group_id": name,
        },
        53,
    ),
    26: Asked(
        3,
        lambda name: {
            "transactional_id": name,
            "producer_id": 1,
            "producer_epoch": 0,
            "committed": True,
        },
        53,
    ),
    28: Asked(
        3,
        lambda name: {
            "transactional_id": "orders",
            "group_id": name,
            "producer_id": 1,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 1,
                            "committed_leader_epoch": 0,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        },
        53,
    ),
    29: Asked(
        2,
        lambda _: {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        },
        31,
    ),
    30: Asked(
        2,
        lambda name: {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": name,
                    "resource_pattern_type": 3,
                    "principal": "User:eve",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
        31,
    ),
    31: Asked(
        2,
        lambda name: {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": name,
                    "pattern_type_filter": 3,
                    "principal_filter": "User:eve",
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
        31,
    ),
    32: Asked(
        4,
        lambda name: {
            "resources": [
                {"resource_type": 2, "resource_name": name, "configuration_keys": None},
            ]
        },
    ),
    33: Asked(
        2,
        lambda name: {
            "resources": [{"resource_type": 2, "resource_name": name, "configs": [TOPIC_CONFIG]}],
            "validate_only": True,
        },
    ),
    34: Asked(
        2,
        lambda name: {
            "dirs": [{"path": "/data", "topics": [{"name": name, "partitions": [0]}]}],
        },
        31,
    ),
    35: Asked(4, lambda name: {"topics": [{"topic": name, "partitions": [0]}]}, 31),
    37: Asked(
        3,
        lambda name: {
            "topics": [{"name": name, "count": 2, "assignments": None}],
            "validate_only": True,
            **TIMED,
        },
    ),
    42: Asked(2, lambda name: {"groups_names": [name]}, 30),
    43: Asked(
        2,
        lambda name: {
            "election_type": 0,
            "topic_partitions": [{"topic": name, "partitions": [0]}],
            **TIMED,
        },
        31,
    ),
    44: Asked(
        1,
        lambda name: {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": name,
                    "configs": [TOPIC_CONFIG | {"config_operation": 0}],
                }
            ],
            "validate_only": True,
        },
    ),
    45: Asked(
        1,
        lambda name: {
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
            "allow_replication_factor_change": True,
            **TIMED,
        },
        31,
    ),
    46: Asked(0, lambda _: {"topics": None, **TIMED}, 31),
    47: Asked(
        0,
        lambda name: {
            "group_id": name,
            "topics": [{"name": name, "partitions": [{"partition_index": 0}]}],
        },
        30,
    ),
    48: Asked(1, lambda _: {"components": [], "strict": False}, 31),
    49: Asked(
        1,
        lambda _: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "eve"}],
                    "ops": [{"key": "request_rate", "value": 1000.0, "remove": False}],
                }
            ],
            "validate_only": False,
        },
        31,
    ),
    50: Asked(0, lambda _: {"users": None}, 31),
    51: Asked(
        0,
        lambda _: {
            "deletions": [],
            "upsertions": [
                {
                    "name": "eve",
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": bytes(32),
                }
            ],
        },
        31,
    ),
    55: Asked(
        1,
        lambda _: {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        },
        31,
    ),
    60: Asked(1, lambda _: {"include_cluster_authorized_operations": True}, None),
    61: Asked(0, lambda name: {"topics": [{"name": name, "partition_indexes": [0]}]}),
    65: Asked(0, lambda name: {"transactional_ids": [name]}, 53),
    66: Asked(
        1,
        lambda _: {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
        None,
    ),
    68: Asked(
        0,
        lambda name: {
            "group_id": name,
            "member_id": "",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": [name],
            "server_assignor": None,
            "topic_partitions": [],
        },
        30,
    ),
    69: Asked(0, lambda name: {"group_ids": [name], "include_authorized_operations": True}, 30),
    74: Asked(1, lambda _: {"resource_types": []}, 31),
    75: Asked(
        0,
        lambda name: {
            "topics": [{"name": name}],
            "response_partition_limit": 10,
            "cursor": None,
        },
    ),
}
ALTERNATIVES = {
    # The right to the topic or, without one, to the cluster; the request names a topic.
    32: [("DESCRIBE_CONFIGS", "TOPIC")],
    33: [("ALTER_CONFIGS", "TOPIC")],
    44: [("ALTER_CONFIGS", "TOPIC")],
    # It does not ask to create the topic.
    3: [("DESCRIBE", "TOPIC")],
    # It has no transactional id.
    0: [("WRITE", "TOPIC")],
    22: [("IDEMPOTENT_WRITE", "CLUSTER")],
    # It names a group.
    10: [("DESCRIBE", "GROUP")],
}
"""The rights that the request in ``REQUESTS`` needs, where it needs less than the row says."""
CLOSED_KEYS = sorted(key for key, api in APIS.items() if not api.access.is_public)


def rights_of(key: int) -> list[Right]:
    named = ALTERNATIVES.get(key)
    if named is None:
        return sorted(APIS[key].access.needs)
    return [(Operation(operation), ResourceType(kind)) for operation, kind in named]


def entries(user: str, rights: Iterable[Right]) -> list[Acl]:
    found = []
    for operation, kind in rights:
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "orders"
        found.append(acl(user, operation, kind, name))
        if operation is Operation.CREATE:
            found.append(acl(user, operation, kind, "orders-2"))
    return found


def error_codes(found: Any) -> set[int]:
    """All error codes in a response."""
    if isinstance(found, dict):
        codes = ("error_code", "partition_error_code")
        own = {value for name, value in found.items() if name in codes}
        return own.union(*map(error_codes, found.values()))
    if isinstance(found, list | tuple):
        return set().union(*map(error_codes, found))
    return set()


async def asked(client: KafkaClient, key: int, name: str = "orders") -> Any:
    request = REQUESTS[key]
    found = await client.call(key, request.version, **request.fields(name))
    return found.to_dict()


async def signed_in(node: SimNode, user: tuple[str, str]) -> KafkaClient:
    client = client_of(node)
    assert (await sign_in(client, plain(*user))).error_code == 0
    return client


async def prepared(cluster: Cluster, *acls: Acl, mode: AccessMode = AccessMode.REQUIRED) -> SimNode:
    node = cluster.nodes[1]
    await cluster.create("orders", (1,))
    await close_cluster(node, *acls, mode=mode)
    admin = await signed_in(node, ADMIN)
    await asked(admin, 8)
    return node


def test_every_key_is_in_the_matrix() -> None:
    assert sorted(REQUESTS) == CLOSED_KEYS
    assert {key for key, api in APIS.items() if api.access.is_public} == {17, 18, 36}


def test_the_rows_are_those_that_were_agreed_on() -> None:
    rows = "".join(f"{key} {api.name}: {api.access}\n" for key, api in sorted(APIS.items()))
    assert rows == ROWS.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", CLOSED_KEYS)
def test_without_credentials_or_with_bad_ones_nothing_is_answered(key: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            node = await prepared(cluster)
            before = (len(cluster.log.commands), cluster.runner(1, "orders").log.log_end_offset)
            stranger, impostor = client_of(node), client_of(node)
            assert (await sign_in(impostor, plain("ann", "a wrong password"))).error_code == 58
            for client in (stranger, impostor):
                if not client.transport.is_aborted:
                    client.ask(key, REQUESTS[key].version, b"")
                await client.connection.idle()
                await settle()
                assert client.answers() == []
                assert client.transport.is_aborted
            after = (len(cluster.log.commands), cluster.runner(1, "orders").log.log_end_offset)
            assert after == before

    run()


@pytest.mark.parametrize("key", CLOSED_KEYS)
def test_without_rights_the_response_has_the_code_and_shows_nothing(key: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            node = await prepared(cluster)
            before = (len(cluster.log.commands), cluster.runner(1, "orders").log.log_end_offset)
            client = await signed_in(node, BOB)
            found = await asked(client, key)
            code = REQUESTS[key].code
            assert error_codes(found) - {0} == ({code} if code else set())
            hidden = await asked(client, key, "absent")
            assert str(hidden).replace("absent", "orders") == str(found)
            assert "orders" not in str(await _lists(client))
            after = (len(cluster.log.commands), cluster.runner(1, "orders").log.log_end_offset)
            assert after == before
            if code:
                rows: Any = node.refusals.take()
                assert rows["refusals"][0]["principal"] == "User:bob"

    run()


async def _lists(client: KafkaClient) -> list[Any]:
    topics = await client.call(3, 9, topics=None, allow_auto_topic_creation=False)
    groups = await asked(client, 16)
    pages = await client.call(75, 0, topics=[], response_partition_limit=10, cursor=None)
    return [topics.to_dict(), groups, pages.to_dict()]


@pytest.mark.parametrize("key", [key for key in CLOSED_KEYS if rights_of(key)])
def test_with_exactly_the_rights_it_is_served_and_with_one_less_it_is_not(key: int) -> None:
    rights = rights_of(key)

    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            node = await prepared(cluster, *entries("ann", rights))
            found = await asked(await signed_in(node, ANN), key)
            assert not error_codes(found) & set(REFUSED), found
        for left in itertools.combinations(rights, len(rights) - 1):
            async with cluster_of(Cluster(node_ids=(1,))) as cluster:
                node = await prepared(cluster, *entries("ann", left))
                found = await asked(await signed_in(node, ANN), key)
                assert error_codes(found) & set(REFUSED), (left, found)

    run()


@pytest.mark.parametrize("key", CLOSED_KEYS)
def test_a_superuser_and_any_client_of_an_open_or_optional_cluster_are_served(key: int) -> None:
    @virtual
    async def run() -> None:
        for mode in AccessMode:
            async with cluster_of(Cluster(node_ids=(1,))) as cluster:
                node = await prepared(cluster, mode=mode)
                client = client_of(node)
                if mode is AccessMode.REQUIRED:
                    client = await signed_in(node, ADMIN)
                is_strict = mode is AccessMode.OPTIONAL and APIS[key].access.is_strict
                found = error_codes(await asked(client, key))
                assert found & set(REFUSED) == ({31} if is_strict else set())

    run()


@virtual
async def test_items_of_a_request_are_refused_one_by_one() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("secret", (1,))
        write = acl("ann", Operation.WRITE, ResourceType.TOPIC, "orders")
        client = await signed_in(await prepared(cluster, write), ANN)
        both = [produced(name)["topic_data"][0] for name in ("secret", "orders")]
        found = await client.call(0, 9, **{**produced(""), "topic_data": both})
        codes = [topic.partition_responses[0].error_code for topic in found.responses]
        assert codes == [29, 0]
        names = [{"name": name} for name in ("secret", "orders")]
        found = await client.call(3, 9, topics=names, allow_auto_topic_creation=False)
        assert [topic.error_code for topic in found.topics] == [29, 0]
        assert [len(topic.partitions) for topic in found.topics] == [0, 1]


@virtual
async def test_metadata_creates_a_topic_for_clients_that_may_and_tells_their_operations() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        wanted = [
            acl("ann", operation, ResourceType.TOPIC, "new")
            for operation in (Operation.CREATE, Operation.WRITE)
        ]
        node = await prepared(
            cluster, *wanted, acl("bob", Operation.WRITE, ResourceType.TOPIC, "new")
        )
        fields = {
            "topics": [{"name": "new"}],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        }
        bob, ann = await signed_in(node, BOB), await signed_in(node, ANN)
        assert (await bob.call(3, 9, **fields)).topics[0].error_code == 29
        only_known = fields | {"allow_auto_topic_creation": False}
        assert (await bob.call(3, 9, **only_known)).topics[0].error_code == 3
        assert cluster.image.topic("new") is None
        found = await ann.call(3, 9, **fields)
        assert found.topics[0].error_code == 0
        # WRITE, CREATE, and DESCRIBE, which WRITE implies.
        assert found.topics[0].authorized_operations == {4, 5, 8}
        assert found.authorized_operations == set()
        again = await bob.call(3, 9, **fields)
        assert again.topics[0].authorized_operations == {4, 8}


@virtual
async def test_by_its_id_a_topic_that_may_not_be_seen_does_not_exist() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        import uuid  # noqa: PLC0415

        describe = acl("ann", Operation.DESCRIBE, ResourceType.TOPIC, "orders")
        node = await prepared(cluster, describe)
        topic = cluster.image.topic("orders")
        assert topic is not None
        topic_id = uuid.UUID(topic.topic_id)
        bob, ann = await signed_in(node, BOB), await signed_in(node, ANN)

        async def fetch_code(client: KafkaClient) -> int:
            asked_for = dict(fetched("")["topics"][0], topic_id=topic_id)
            del asked_for["topic"]
            found = await client.call(1, 13, **{**fetched(""), "topics": [asked_for]})
            return int(found.responses[0].partitions[0].error_code)

        assert [await fetch_code(client) for client in (bob, ann)] == [100, 29]
        named = {"topics": [{"name": None, "topic_id": topic_id}]}
        codes = [(await client.call(3, 12, **named)).topics[0].error_code for client in (bob, ann)]
        assert codes == [100, 0]
        deleted = [
            (await client.call(20, 6, **named, **TIMED)).responses[0].error_code
            for client in (bob, ann)
        ]
        assert deleted == [100, 29]


@virtual
async def test_a_second_user_cannot_use_or_take_over_the_first_ones_producer() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        acls = [acl(user, Operation.WRITE, ResourceType.TOPIC, "orders") for user in ("ann", "bob")]
        node = await prepared(cluster, *acls)
        ann, bob = await signed_in(node, ANN), await signed_in(node, BOB)
        made = await ann.call(22, 4, transactional_id=None, transaction_timeout_ms=1)
        producer_id = made.producer_id

        async def code(client: KafkaClient, epoch: int, sequence: int, of: int) -> int:
            records = batch((of, epoch, sequence))
            found = await client.call(0, 9, **produced("orders", records))
            return int(found.responses[0].partition_responses[0].error_code)

        assert await code(ann, 0, 0, producer_id) == 0
        for epoch, sequence in ((0, 1), (0, 0), (1, 0), (5, 0)):
            assert await code(bob, epoch, sequence, producer_id) == 31
        # The next id of ann's block, and one that was never given out: the same response.
        assert await code(bob, 0, 0, producer_id + 1) == 31
        assert await code(bob, 0, 0, 1 << 40) == 31
        assert cluster.runner(1, "orders").log.log_end_offset == 1
        assert await code(ann, 0, 1, producer_id) == 0
        # Its own producer may raise its epoch (KIP-360).
        assert await code(ann, 1, 0, producer_id) == 0
        count = len(cluster.log.commands)
        assert await code(ann, 1, 1, producer_id) == 0
        assert len(cluster.log.commands) == count


OTHER_CONFIG = {
    "resource_type": 2,
    "resource_name": "orders",
    "configs": [TOPIC_CHANGE | {"value": "6000"}],
}
AUDITED: list[tuple[str, int, Fields]] = [
    ("create_topic", 19, {"validate_only": False}),
    ("add_partitions", 37, {"validate_only": False}),
    ("alter_configs", 33, {"validate_only": False}),
    ("alter_configs", 44, {"validate_only": False, "resources": [OTHER_CONFIG]}),
    ("delete_records", 21, {}),
    ("alter_acls", 30, {}),
    ("alter_acls", 31, {}),
    ("alter_quota", 49, {}),
    ("put_user", 51, {}),
    ("delete_offsets", 47, {}),
    ("delete_group", 42, {}),
    ("delete_topic", 20, {}),
]
"""Audited changes, in an order in which each one changes something: the action, the key, and fields that differ."""


@virtual
async def test_nothing_is_answered_from_an_image_that_is_not_loaded_yet() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        entry = acl("ann", Operation.WRITE, ResourceType.TOPIC, "orders")
        await prepared(cluster, entry, mode=AccessMode.OFF)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.log.leader_id is None)
        node = await cluster.restart(1)
        assert node.metadata.image.index == 0
        own = {"transactional_id": "orders", "producer_id": -1, "producer_epoch": -1}
        bodies = {key: (one.version, one.fields("orders")) for key, one in REQUESTS.items()}
        bodies[22] = (4, {**bodies[22][1], **own})
        bodies[36] = (2, {"auth_bytes": b""})
        clients = {key: client_of(node) for key in bodies}
        for key, (version, fields) in bodies.items():
            clients[key].ask(key, version, cold.encode_request(key, version, fields))
        named = {"client_software_name": "test", "client_software_version": "1"}
        assert (await client_of(node).call(18, 3, **named)).error_code == 0
        assert [key for key, client in clients.items() if client.answers()] == []
        found = {}
        for key, client in clients.items():
            await client.connection.idle()
            ((_, found[key]),) = client.answers()
        assert decoded(22, 4, found[22]).error_code == 0
        resources = decoded(29, 2, found[29]).resources
        assert "User:ann" in {one.principal for row in resources for one in row.acls}


@virtual
async def test_a_node_that_does_not_hear_of_the_cluster_closes_the_connection() -> None:
    async with cluster_of() as cluster:
        for node_id in (1, 2, 3):
            await cluster.kill(node_id)
        client = client_of(await cluster.restart(1))
        client.ask(16, 4, cold.encode_request(16, 4, {"states_filter": []}))
        await client.connection.idle()
        assert client.answers() == []
        assert client.transport.is_aborted


@virtual
async def test_each_change_is_in_the_audit_log_once_with_its_principal() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = await prepared(cluster)
        noted: list[AuditEntry] = []
        client = await signed_in(node, ADMIN)
        node.machine.on_audited(noted.append)
        for action, key, more in AUDITED:
            noted.clear()
            request = REQUESTS[key]
            fields = {**request.fields("orders"), **more}
            found = (await client.call(key, request.version, **fields)).to_dict()
            assert error_codes(found) <= {0}, (action, found)
            assert [(one.action, one.principal) for one in noted] == [(action, "User:admin")]


@virtual
async def test_the_abort_of_an_open_transaction_is_in_the_audit_log_once() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        rights: list[Right] = [
            (Operation.WRITE, ResourceType.TOPIC),
            (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        ]
        node = await prepared(cluster, *entries("ann", rights))
        ann, noted = await signed_in(node, ANN), list[AuditEntry]()
        own = {"transactional_id": "orders", "transaction_timeout_ms": 60_000}
        made = await ann.call(22, 4, **own, producer_id=-1, producer_epoch=-1)
        node.machine.on_audited(noted.append)

        async def end(version: int, *, epoch: int, committed: bool = False) -> int:
            found = await ann.call(
                26,
                version,
                transactional_id="orders",
                producer_id=made.producer_id,
                producer_epoch=epoch,
                committed=committed,
            )
            return int(found.error_code)

        async def begin() -> None:
            fields = {
                "v3_and_below_transactional_id": "orders",
                "v3_and_below_producer_id": made.producer_id,
                "v3_and_below_producer_epoch": made.producer_epoch,
            }
            topics = [{"name": "orders", "partitions": [0]}]
            found = await ann.call(24, 3, **fields, v3_and_below_topics=topics)
            assert error_codes(found.to_dict()) == {0}

        epoch = made.producer_epoch
        await begin()
        assert await end(3, epoch=epoch, committed=True) == 0
        await begin()
        assert await end(3, epoch=epoch + 1) != 0
        assert noted == []
        assert await end(3, epoch=epoch) == 0
        assert await end(3, epoch=epoch) == 0
        (entry,) = noted
        assert (entry.action, entry.principal) == ("abort_transaction", "User:ann")
        assert json.loads(entry.change)["transactional_id"] == "orders"
        # An abort of nothing only raises the client's epoch (KIP-890).
        assert await end(5, epoch=epoch) == 0
        assert len(noted) == 1


@virtual
async def test_a_second_user_of_a_transactional_id_takes_it_over_and_does_not_use_it() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        rights: list[Right] = [
            (Operation.WRITE, ResourceType.TOPIC),
            (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        ]
        node = await prepared(cluster, *entries("ann", rights), *entries("bob", rights))
        noted: list[AuditEntry] = []
        node.machine.on_audited(noted.append)
        ann, bob = await signed_in(node, ANN), await signed_in(node, BOB)
        own = {"transactional_id": "orders", "transaction_timeout_ms": 60_000}
        made = await ann.call(22, 4, **own, producer_id=-1, producer_epoch=-1)
        assert made.error_code == 0

        async def added(client: KafkaClient, of: Any) -> set[int]:
            found = await client.call(
                24,
                3,
                v3_and_below_transactional_id="orders",
                v3_and_below_producer_id=of.producer_id,
                v3_and_below_producer_epoch=of.producer_epoch,
                v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
            )
            return error_codes(found.to_dict())

        assert await added(bob, made) - {0} == {53}
        assert await added(ann, made) == {0}
        # Nor may bob write under the id without a transaction.
        records = batch((made.producer_id, made.producer_epoch, 0))
        found = await bob.call(0, 9, **produced("orders", records))
        assert found.responses[0].partition_responses[0].error_code == 31
        ended = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        found = await bob.call(26, 3, transactional_id="orders", committed=True, **ended)
        assert found.error_code == 53
        # What is refused took nothing over.
        for change in ({"producer_epoch": 7}, {"producer_id": made.producer_id + 1}):
            known = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
            assert (await bob.call(22, 4, **own, **known | change)).error_code != 0
        assert "take_over_producer" not in [entry.action for entry in noted]
        taken = await bob.call(22, 4, **own, producer_id=-1, producer_epoch=-1)
        assert taken.error_code == 0
        assert [entry.action for entry in noted].count("take_over_producer") == 1
        assert await added(bob, taken) == {0}
        assert await added(ann, made) - {0} == {53}
