"""Bodies of requests. Handlers accept exactly these field names, and refuse any other."""

from collections.abc import Mapping

from http_api.shapes.blocks import (
    TOPIC_ID,
    Json,
    Optional,
    Part,
    Shape,
    anything,
    base64,
    boolean,
    choice,
    closed_fields,
    constant,
    count,
    integer,
    listing,
    mapping,
    maybe,
    nothing,
    nullable,
    optionals,
    request,
    text,
)

PRODUCER_NAME_CHARS_MAX = 255
DRAIN_MS_DEFAULT, DRAIN_MS_MAX = 30_000, 300_000

RECORD_HEADER = Shape(
    "RecordHeaderIn",
    {
        **closed_fields(
            key=Optional(text("the header's name")),
            name=Optional(text("another word for `key`")),
            value=maybe(base64("the header's bytes")),
        ),
        "oneOf": [{"required": ["key"]}, {"required": ["name"]}],
    },
)

TIME: Part = {
    "description": "ms since 1970, or an ISO-8601 time (UTC when it names no zone)",
    "anyOf": [
        integer(minimum=0, maximum=253_402_300_799_999),
        text(examples=["2026-01-01T00:00:00Z"]),
        nothing(),
    ],
}


def _record(name: str, key: Part, value: Part) -> Shape:
    return request(
        name,
        key=Optional(key),
        value=Optional(value),
        partition=maybe(count("wins over the path's")),
        timestamp=Optional(TIME),
        headers=maybe(listing(RECORD_HEADER)),
    )


RECORD_JSON = _record(
    "JsonRecordIn",
    anything("any JSON, stored as the bytes of its compact form; null or absent: no key"),
    anything("any JSON, stored as the bytes of its compact form; null or absent: a tombstone"),
)
RECORD_BINARY = _record(
    "BinaryRecordIn",
    nullable(base64("null or absent: no key")),
    nullable(base64("null or absent: a tombstone")),
)
RECORD_TEXT = _record(
    "TextRecordIn",
    nullable(text("null or absent: no key")),
    nullable(text("null or absent: a tombstone")),
)

_NO_SCHEMA = nothing("there is no schema registry")


def _records(name: str, record: Shape, key: str, value: Json) -> Shape:
    return request(
        name,
        {"records": [{"key": key, "value": value}, {"value": None, "partition": 0}]},
        records=listing(record, minItems=1),
        key_schema=Optional(_NO_SCHEMA),
        key_schema_id=Optional(_NO_SCHEMA),
        value_schema=Optional(_NO_SCHEMA),
        value_schema_id=Optional(_NO_SCHEMA),
    )


PRODUCE_JSON = _records("ProduceJson", RECORD_JSON, "u1", {"item": "tea", "count": 2})
PRODUCE_BINARY = _records("ProduceBinary", RECORD_BINARY, "dTE=", "AAECAw==")
PRODUCE_TEXT = _records("ProduceText", RECORD_TEXT, "u1", "tea")

WRITES_MAX = 100
TRANSACTION_OFFSETS_MAX = 1_000
_PARTITION_NAMED: Mapping[str, Part] = {"topic": text(minLength=1), "partition": count()}
TRANSACTION_WRITE = request(
    "TransactionWriteIn",
    topic=text(minLength=1),
    records=listing(
        {
            "description": "as the type says in which the body is sent; JSON if it says nothing",
            "anyOf": [RECORD_JSON, RECORD_BINARY, RECORD_TEXT],
        },
        minItems=1,
    ),
    partition=maybe(count("of records that name none")),
)
TRANSACTION_OFFSET = request(
    "TransactionOffsetIn",
    group=text(minLength=1),
    **_PARTITION_NAMED,
    next_offset=count("of the record to read next"),
    topic_id=maybe(TOPIC_ID),
    member_id=maybe(text("absent: the group has no members")),
    member_epoch=maybe(integer("of that member")),
    metadata=maybe(text("whatever its committer wants to keep with it")),
)
_OFFSETS = maybe(listing(TRANSACTION_OFFSET, maxItems=TRANSACTION_OFFSETS_MAX))
TRANSACTION = request(
    "TransactionIn",
    {
        "writes": [
            {"topic": "payments", "records": [{"key": "u1", "value": {"cents": 250}}]},
            {"topic": "receipts", "partition": 0, "records": [{"value": "paid"}]},
        ],
        "offsets": [{"group": "payer", "topic": "orders", "partition": 0, "next_offset": 42}],
    },
    writes=maybe(listing(TRANSACTION_WRITE, maxItems=WRITES_MAX)),
    offsets=_OFFSETS,
)
BEGIN_TRANSACTION = request(
    "BeginTransactionIn",
    {"transactional_id": "payer-1", "timeout_ms": 30_000},
    transactional_id=text(minLength=1, maxLength=PRODUCER_NAME_CHARS_MAX),
    timeout_ms=maybe(
        integer("how long it may stay open; absent: 30000", minimum=1, maximum=900_000)
    ),
)
WRITTEN_EXTENT = request(
    "WrittenExtentIn",
    **_PARTITION_NAMED,
    end_offset=count("behind the last record that was acknowledged", least=1),
    records=count("how many were acknowledged", least=1),
)
COMMIT_TRANSACTION = request(
    "CommitTransactionIn",
    {"writes": [{"topic": "payments", "partition": 0, "end_offset": 7, "records": 2}]},
    writes=listing(WRITTEN_EXTENT, "what is not named here is aborted"),
    offsets=_OFFSETS,
)
ABORT_TRANSACTION = request("AbortTransactionIn")

_CONFIG_VALUE: Part = {
    "description": "text; numbers and booleans are taken as theirs",
    "type": ["string", "number", "boolean"],
}
NEW_CONFIG = request("ConfigIn", name=text(minLength=1), value=_CONFIG_VALUE)

_NEW_TOPIC = {
    "partitions_count": nullable(count("absent: the node's default", least=1)),
    "replication_factor": nullable(
        count("absent: 3, or as many as there are nodes when fewer", least=1)
    ),
    "configs": nullable(listing(NEW_CONFIG)),
}
TOPIC_NAME = text("letters, digits, `.`, `_` and `-`", pattern="^[A-Za-z0-9._-]+$", maxLength=249)
_NAMED = {"topic_name": TOPIC_NAME}
NEW_TOPIC_V2 = request(
    "NewTopic",
    {"topic_name": "orders", "partitions_count": 3, "replication_factor": 3},
    **_NAMED,
    **optionals(_NEW_TOPIC),
)

TOPIC_CHANGE = request(
    "TopicChangeIn",
    {"partitions_count": 6},
    partitions_count=count("what it is to have; never fewer than it has", least=1),
)

ASSIGNMENT = request("ReplicasAssignmentIn", partition_id=count(), broker_ids=listing(count()))
NEW_TOPIC_V3 = request(
    "NewTopicV3",
    {
        "topic_name": "orders",
        "partitions_count": 3,
        "replication_factor": 3,
        "configs": [{"name": "retention.ms", "value": "86400000"}],
    },
    **_NAMED,
    **optionals(_NEW_TOPIC),
    replicas_assignments=Optional(
        {
            "description": 'broker ids by partition: `{"0": [1, 2]}`, or a list; counts beside it must agree',
            "anyOf": [mapping(listing(count())), listing(ASSIGNMENT), nothing()],
        }
    ),
    validate_only=maybe(boolean("only check that it could be created")),
)

CONFIG_VALUE = request(
    "ConfigValueIn", {"value": "3600000"}, value={"type": ["string", "number", "boolean"]}
)
CONFIG_CHANGE = request(
    "ConfigChangeIn",
    name=text(minLength=1),
    value=maybe(
        {
            "type": ["string", "number", "boolean"],
            "description": "what SET needs; DELETE takes none",
        }
    ),
    operation=maybe(choice("SET", "DELETE")),
)
CONFIG_CHANGES = request(
    "ConfigChangesIn",
    {
        "data": [
            {"name": "retention.ms", "value": "7200000"},
            {"name": "segment.bytes", "operation": "DELETE"},
        ]
    },
    data=listing(CONFIG_CHANGE),
    validate_only=maybe(boolean("only check that it could be done")),
)

TOPIC_CONFIG_CHANGES = request(
    "TopicConfigChangesIn", topic_name=text(minLength=1), configs=listing(CONFIG_CHANGE)
)
TOPICS_CONFIG_CHANGES = request(
    "TopicsConfigChangesIn",
    data=listing(TOPIC_CONFIG_CHANGES, "each topic once", minItems=1),
    validate_only=maybe(boolean("only check that it could be done")),
)
ANY_CONFIG_CHANGES = Shape(
    "AnyConfigChangesIn",
    {
        "description": "changes of the topic of the path; with `-` in its place, of topics by name",
        "anyOf": [CONFIG_CHANGES, TOPICS_CONFIG_CHANGES],
    },
    CONFIG_CHANGES.example,
)

LATEST = "latest"
DELETE_RECORDS = request(
    "DeleteRecordsIn",
    {"before_offset": 1000},
    before_offset={
        "description": f"the first offset to keep; `{LATEST}`: all that is committed now goes",
        "anyOf": [count(), constant(LATEST)],
    },
)

NEW_PRODUCER = request(
    "ProducerIn",
    {"name": "billing"},
    name=maybe(
        text(
            "printable characters; who had this name before is fenced",
            minLength=1,
            maxLength=PRODUCER_NAME_CHARS_MAX,
        )
    ),
)
MOVES_CONCURRENT_DEFAULT = 10
MOVED_PARTITION = request(
    "MovedPartitionIn",
    topic=text(),
    partition=count(),
    replicas=maybe(
        listing(integer(), "brokers, the preferred leader first; null: where it was before")
    ),
)
REASSIGN = request(
    "ReassignmentIn",
    {"drain": 2, "dry_run": True},
    partitions=maybe(listing(MOVED_PARTITION, "partitions by name")),
    drain=maybe(count("a broker that shall hold nothing", least=1)),
    rebalance=maybe(boolean("move as little as makes the cluster even")),
    throttle_bytes_per_s=maybe(
        count("most that a node sends to new replicas; 0: as the node is configured")
    ),
    max_concurrent=maybe(
        integer(
            "partitions that move at a time; 0: all",
            minimum=0,
            default=MOVES_CONCURRENT_DEFAULT,
        )
    ),
    dry_run=maybe(boolean("only say what would move")),
)
DRAIN = request(
    "DrainIn",
    {"timeout_ms": 10_000},
    timeout_ms=maybe(
        integer("how long to wait", minimum=1, maximum=DRAIN_MS_MAX, default=DRAIN_MS_DEFAULT)
    ),
)
