"""docs/limits.md is true and complete: each number is that of the code, and each limit of the code is there."""

import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from http_api import server
from http_api.describing import pages
from http_api.native import reassignments
from http_api.ports.node import ApiLimits
from http_api.records import idempotency_key
from http_api.shapes import access as access_shapes
from http_api.shapes import requests as request_shapes
from http_api.v2 import consumers as v2_consumers
from http_api.v2 import topic_records
from http_api.v3 import record_batch
from milena.model import columns
from milena.model import requests as client_requests
from milena.model.batch import client_checks
from node.access import service as access_service
from node.config.options import OPTIONS, NodeConfig
from node.consumers import consumer_service, consumer_sessions, records_call
from node.groups import members, subscriptions
from node.groups.classic import state as classic_state
from node.kafka import connection as kafka_connection
from node.kafka import fetch_sessions, forwarding
from node.kafka import listener as kafka_listener
from node.kafka.wire import primitives
from node.metrics import exposition, history
from raft_meta.machine import bounds, producers, transactional_ids, transactions
from raft_meta.machine.access import access, quotas
from raft_meta.machine.groups import group_rules
from raft_meta.machine.topics import topics
from raft_meta.machine.topics.configs import KEYS
from storage.state import idempotency, producer_state
from storage.state import transactions as open_transactions

TEXT = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("| limit", "| ---"))
]
UNITS = {"": 1, "bytes": 1, "s": 1_000, "KiB": 1 << 10, "MiB": 1 << 20}

FIXED: dict[str, tuple[ModuleType, str]] = {
    "URL": (server, "URL_BYTES_MAX"),
    "name and value of a header": (server, "FIELD_BYTES_MAX"),
    "headers": (server, "FIELDS_MAX"),
    "rows of a page": (pages, "ROWS_MAX"),
    "entries of `records:batch`": (record_batch, "ENTRIES_MAX"),
    "partitions of `GET /topics/{topic}/records`": (topic_records, "PARTITIONS_MAX"),
    "partitions in one `POST /reassignments`": (reassignments, "TARGETS_MAX"),
    "topic name": (topics, "NAME_LENGTH_MAX"),
    "partitions of a topic": (topics, "PARTITIONS_MAX"),
    "partitions that one request creates": (bounds, "PARTITIONS_PER_REQUEST_MAX"),
    "replicas on a node": (bounds, "REPLICAS_PER_BROKER_MAX"),
    "records in an encoded batch": (client_checks, "RECORDS_MAX"),
    "headers of a record": (columns, "HEADERS_PER_RECORD_MAX"),
    "idempotency key": (idempotency_key, "_CHARS_MAX"),
    "idempotency keys that a partition remembers": (idempotency, "IDEMPOTENCY_KEYS_MAX"),
    "producers that a partition remembers": (producer_state, "PRODUCERS_MAX"),
    "named producers": (producers, "NAMED_MAX"),
    "named producers of a user": (producers, "NAMED_PER_PRINCIPAL_MAX"),
    "name of a producer": (producers, "NAME_LENGTH_MAX"),
    "writes in one `POST /transactions`": (request_shapes, "WRITES_MAX"),
    "partitions and offsets of a transaction": (transactions, "ITEMS_PER_TRANSACTION_MAX"),
    "timeout of a transaction": (client_requests, "TRANSACTION_TIMEOUT_MS_MAX"),
    "metadata of all offsets in a Kafka client's transaction": (
        transactional_ids,
        "METADATA_BYTES_MAX",
    ),
    "open transactions in a partition": (open_transactions, "OPEN_MAX"),
    "aborted transactions in a partition": (open_transactions, "ABORTED_MAX"),
    "groups": (group_rules, "GROUPS_MAX"),
    "name of a group, member or consumer": (group_rules, "NAME_LENGTH_MAX"),
    "members of a group": (group_rules, "MEMBERS_MAX"),
    "names and subscriptions of a group's members": (group_rules, "GROUP_BYTES_MAX"),
    "topics of a subscription": (group_rules, "TOPICS_PER_MEMBER_MAX"),
    "topic pattern": (subscriptions, "PATTERN_LENGTH_MAX"),
    "session of a member": (members, "SESSION_MS_MAX"),
    "committed offsets": (group_rules, "OFFSETS_MAX"),
    "offsets of a commit": (group_rules, "OFFSETS_PER_COMMIT_MAX"),
    "metadata of an offset": (group_rules, "METADATA_BYTES_MAX"),
    "time until a Kafka client has authenticated": (kafka_connection, "HANDSHAKE_MS_MAX"),
    "request of a Kafka client before that": (kafka_connection, "STRANGER_FRAME_BYTES_MAX"),
    "session of a Kafka client's member": (classic_state, "SESSION_MS_MAX"),
    "protocols of a Kafka client's member": (group_rules, "PROTOCOLS_MAX"),
    "assignments of a Kafka client's group": (group_rules, "ASSIGNMENT_BYTES_MAX"),
    "request of a Kafka client": (kafka_listener, "FRAME_BYTES_MAX"),
    "items of a Kafka client's request": (primitives, "ITEMS_MAX"),
    "requests of one Kafka connection in work": (kafka_connection, "IN_WORK_MAX"),
    "request behind one address for all nodes": (forwarding, "FORWARDED_MS_MAX"),
    "fetch sessions of a node's Kafka clients": (fetch_sessions, "SESSIONS_MAX"),
    "partitions of all fetch sessions of a node": (fetch_sessions, "PARTITIONS_MAX"),
    "REST consumers": (group_rules, "CONSUMERS_MAX"),
    "REST consumers of a user": (v2_consumers, "CONSUMERS_PER_PRINCIPAL_MAX"),
    "calls of a REST consumer that wait": (consumer_sessions, "CALLS_PER_CONSUMER_MAX"),
    "partitions of an assignment or a seek": (consumer_service, "PARTITIONS_MAX"),
    "records of a REST consumer's response": (records_call, "ANSWER_RECORDS_MAX"),
    "bytes of a REST consumer's response": (records_call, "ANSWER_BYTES_MAX"),
    "users": (access, "USERS_MAX"),
    "tokens": (access, "TOKENS_MAX"),
    "tokens of a user": (access, "TOKENS_PER_USER_MAX"),
    "entries": (access, "ACLS_MAX"),
    "entries in a request": (access, "ACLS_PER_REQUEST_MAX"),
    "grants of a token": (access_shapes, "GRANTS_MAX"),
    "quotas": (quotas, "QUOTAS_MAX"),
    "password": (access_service, "PASSWORD_LENGTH_MAX"),
    "iterations of [SCRAM credentials](kafka.md#scram)": (access, "SCRAM_ITERATIONS_MAX"),
    "salt of SCRAM credentials": (access, "SCRAM_SALT_BYTES_MAX"),
    "groups of partitions with their own metrics": (exposition, "GROUP_PARTITIONS_MAX"),
    "memory of the last hour's history": (history, "BYTES_MAX"),
}
"""The constant of each row whose limit is no setting."""

INTERNAL = {
    bounds: set(),
    group_rules: {
        "PREDECESSORS_MAX", "PREDECESSORS_BYTES_MAX", "TOPIC_LENGTH_MAX", "DURATION_MS_MAX", "COMMITS_PER_COMMAND_MAX",
        "PATTERN_LENGTH_MAX",
    },
    producers: {"BLOCKS_PER_PRINCIPAL_MAX", "BLOCKS_MAX", "FORGOTTEN_PER_COMMAND_MAX"},
    access: {"GRANTS_PER_TOKEN_MAX", "VERIFIERS_MAX", "VERIFIER_LENGTH_MAX", "NOTE_LENGTH_MAX"},
    quotas: {"AMOUNT_MAX"},
    topics: set(),
    transactional_ids: {"TIMEOUT_MS_MAX", "ITEMS_MAX", "ENLISTMENTS_PER_COMMAND_MAX"},
    transactions: {"ENDS_PER_COMMAND_MAX", "MARKERS_PER_COMMAND_MAX", "ENDINGS_MAX"},
}  # fmt: skip
"""Limits of the replicated state that no client meets, or that another row has."""


def parsed(value: str) -> int:
    number, _, unit = value.partition(" ")
    return int(number.replace(",", "")) * UNITS[unit]


def test_transactions_of_both_interfaces_have_the_same_limits() -> None:
    assert transactional_ids.TIMEOUT_MS_MAX == client_requests.TRANSACTION_TIMEOUT_MS_MAX
    assert transactional_ids.ITEMS_MAX == transactions.ITEMS_PER_TRANSACTION_MAX


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_limit_is_the_one_of_the_code(row: list[str]) -> None:
    limit, value, set_by, beyond = row
    name = set_by.strip("`")
    if limit in FIXED:
        module, constant = FIXED[limit]
        assert parsed(value) == getattr(module, constant)
    elif name in KEYS:
        assert parsed(value) == int(KEYS[name].default(3))
    elif limit == "voters":
        assert f"or {value} nodes" in OPTIONS[name].kind.allowed
    else:
        assert parsed(value) == getattr(NodeConfig(), name)
    assert beyond


def test_every_limit_has_a_row_and_every_row_a_limit() -> None:
    assert {row[0] for row in ROWS} >= set(FIXED)
    assert len({row[0] for row in ROWS}) == len(ROWS)
    settings = {row[2].strip("`") for row in ROWS}
    limits = {item.name for item in fields(ApiLimits)}
    assert limits - {"rest_commit_offsets", "bad_credentials_delay_ms"} <= settings


@pytest.mark.parametrize("module", INTERNAL, ids=lambda module: module.__name__)
def test_every_limit_of_the_replicated_state_has_a_row(module: ModuleType) -> None:
    constants = set(
        re.findall(r"^([A-Z_]+_MAX) = ", Path(str(module.__file__)).read_text(), re.MULTILINE)
    )
    listed = {name for owner, name in FIXED.values() if owner is module}
    assert constants == listed | INTERNAL[module]
