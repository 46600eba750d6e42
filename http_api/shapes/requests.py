"""Bodies of requests. Handlers accept exactly these field names, and refuse any other."""

from collections.abc import Mapping

from http_api.shapes.blocks import (
    Part,
    Shape,
    anything,
    base64,
    boolean,
    choice,
    constant,
    count,
    fields,
    integer,
    listing,
    mapping,
    nothing,
    nullable,
    text,
)

PRODUCER_NAME_CHARS_MAX = 255
DRAIN_MS_DEFAULT, DRAIN_MS_MAX = 30_000, 300_000

_HEADER_VALUE = nullable(base64("the header's bytes"))
RECORD_HEADER = Shape(
    "RecordHeaderIn",
    {
        **fields(
            {},
            {
                "key": text("the header's name"),
                "name": text("another word for `key`"),
                "value": _HEADER_VALUE,
            },
            is_closed=True,
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
    return Shape(
        name,
        fields(
            {},
            {
                "key": key,
                "value": value,
                "partition": nullable(count("wins over the path's")),
                "timestamp": TIME,
                "headers": nullable(listing(RECORD_HEADER)),
            },
            is_closed=True,
        ),
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


def _records(name: str, record: Shape, key: str, value: object) -> Shape:
    return Shape(
        name,
        fields(
            {"records": listing(record, minItems=1)},
            {
                "key_schema": _NO_SCHEMA,
                "key_schema_id": _NO_SCHEMA,
                "value_schema": _NO_SCHEMA,
                "value_schema_id": _NO_SCHEMA,
            },
            is_closed=True,
        ),
        {"records": [{"key": key, "value": value}, {"value": None, "partition": 0}]},  # type: ignore[dict-item]  # JSON
    )


PRODUCE_JSON = _records("ProduceJson", RECORD_JSON, "u1", {"item": "tea", "count": 2})
PRODUCE_BINARY = _records("ProduceBinary", RECORD_BINARY, "dTE=", "AAECAw==")
PRODUCE_TEXT = _records("ProduceText", RECORD_TEXT, "u1", "tea")

WRITES_MAX = 100
TRANSACTION_OFFSETS_MAX = 1_000
_PARTITION_NAMED: Mapping[str, Part] = {"topic": text(minLength=1), "partition": count()}
TRANSACTION_WRITE = Shape(
    "TransactionWriteIn",
    fields(
        {
            "topic": text(minLength=1),
            "records": listing(
                {
                    "description": "as the type says in which the body is sent; JSON if it says nothing",
                    "anyOf": [RECORD_JSON, RECORD_BINARY, RECORD_TEXT],
                },
                minItems=1,
            ),
        },
        {"partition": nullable(count("of records that name none"))},
        is_closed=True,
    ),
)
TRANSACTION_OFFSET = Shape(
    "TransactionOffsetIn",
    fields(
        {
            "group": text(minLength=1),
            **_PARTITION_NAMED,
            "next_offset": count("of the record to read next"),
        },
        {
            "member_id": nullable(text("absent: the group has no members")),
            "member_epoch": nullable(integer("of that member")),
            "metadata": nullable(text("whatever its committer wants to keep with it")),
        },
        is_closed=True,
    ),
)
_OFFSETS = nullable(listing(TRANSACTION_OFFSET, maxItems=TRANSACTION_OFFSETS_MAX))
TRANSACTION = Shape(
    "TransactionIn",
    fields(
        {},
        {
            "writes": nullable(listing(TRANSACTION_WRITE, maxItems=WRITES_MAX)),
            "offsets": _OFFSETS,
        },
        is_closed=True,
    ),
    {
        "writes": [
            {"topic": "payments", "records": [{"key": "u1", "value": {"cents": 250}}]},
            {"topic": "receipts", "partition": 0, "records": [{"value": "paid"}]},
        ],
        "offsets": [{"group": "payer", "topic": "orders", "partition": 0, "next_offset": 42}],
    },
)
BEGIN_TRANSACTION = Shape(
    "BeginTransactionIn",
    fields(
        {"transactional_id": text(minLength=1, maxLength=PRODUCER_NAME_CHARS_MAX)},
        {
            "timeout_ms": nullable(
                integer("how long it may stay open; absent: 30000", minimum=1, maximum=900_000)
            )
        },
        is_closed=True,
    ),
    {"transactional_id": "payer-1", "timeout_ms": 30_000},
)
WRITTEN_EXTENT = Shape(
    "WrittenExtentIn",
    fields(
        {
            **_PARTITION_NAMED,
            "end_offset": count("behind the last record that was acknowledged", least=1),
            "records": count("how many were acknowledged", least=1),
        },
        is_closed=True,
    ),
)
COMMIT_TRANSACTION = Shape(
    "CommitTransactionIn",
    fields(
        {"writes": listing(WRITTEN_EXTENT, "what is not named here is aborted")},
        {"offsets": _OFFSETS},
        is_closed=True,
    ),
    {"writes": [{"topic": "payments", "partition": 0, "end_offset": 7, "records": 2}]},
)
ABORT_TRANSACTION = Shape("AbortTransactionIn", fields({}, is_closed=True))

_CONFIG_VALUE: Part = {
    "description": "text; numbers and booleans are taken as theirs",
    "type": ["string", "number", "boolean"],
}
NEW_CONFIG = Shape(
    "ConfigIn", fields({"name": text(minLength=1), "value": _CONFIG_VALUE}, is_closed=True)
)

_NEW_TOPIC = {
    "partitions_count": nullable(count("absent: the node's default", least=1)),
    "replication_factor": nullable(
        count("absent: 3, or as many as there are nodes when fewer", least=1)
    ),
    "configs": nullable(listing(NEW_CONFIG)),
}
TOPIC_NAME = text("letters, digits, `.`, `_` and `-`", pattern="^[A-Za-z0-9._-]+$", maxLength=249)
_NAMED = {"topic_name": TOPIC_NAME}
NEW_TOPIC_V2 = Shape(
    "NewTopic",
    fields(_NAMED, _NEW_TOPIC, is_closed=True),
    {"topic_name": "orders", "partitions_count": 3, "replication_factor": 3},
)

TOPIC_CHANGE = Shape(
    "TopicChangeIn",
    fields(
        {"partitions_count": count("what it is to have; never fewer than it has", least=1)},
        is_closed=True,
    ),
    {"partitions_count": 6},
)

ASSIGNMENT = Shape(
    "ReplicasAssignmentIn",
    fields({"partition_id": count(), "broker_ids": listing(count())}, is_closed=True),
)
NEW_TOPIC_V3 = Shape(
    "NewTopicV3",
    fields(
        _NAMED,
        {
            **_NEW_TOPIC,
            "replicas_assignments": {
                "description": 'broker ids by partition: `{"0": [1, 2]}`, or a list; counts beside it must agree',
                "anyOf": [mapping(listing(count())), listing(ASSIGNMENT), nothing()],
            },
            "validate_only": nullable(boolean("only check that it could be created")),
        },
        is_closed=True,
    ),
    {
        "topic_name": "orders",
        "partitions_count": 3,
        "replication_factor": 3,
        "configs": [{"name": "retention.ms", "value": "86400000"}],
    },
)

CONFIG_VALUE = Shape(
    "ConfigValueIn",
    fields({"value": {"type": ["string", "number", "boolean"]}}, is_closed=True),
    {"value": "3600000"},
)
CONFIG_CHANGE = Shape(
    "ConfigChangeIn",
    fields(
        {"name": text(minLength=1)},
        {
            "value": nullable(
                {
                    "type": ["string", "number", "boolean"],
                    "description": "what SET needs; DELETE takes none",
                }
            ),
            "operation": nullable(choice("SET", "DELETE")),
        },
        is_closed=True,
    ),
)
CONFIG_CHANGES = Shape(
    "ConfigChangesIn",
    fields(
        {"data": listing(CONFIG_CHANGE)},
        {"validate_only": nullable(boolean("only check that it could be done"))},
        is_closed=True,
    ),
    {
        "data": [
            {"name": "retention.ms", "value": "7200000"},
            {"name": "segment.bytes", "operation": "DELETE"},
        ]
    },
)

TOPIC_CONFIG_CHANGES = Shape(
    "TopicConfigChangesIn",
    fields({"topic_name": text(minLength=1), "configs": listing(CONFIG_CHANGE)}, is_closed=True),
)
TOPICS_CONFIG_CHANGES = Shape(
    "TopicsConfigChangesIn",
    fields(
        {"data": listing(TOPIC_CONFIG_CHANGES, "each topic once", minItems=1)},
        {"validate_only": nullable(boolean("only check that it could be done"))},
        is_closed=True,
    ),
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
DELETE_RECORDS = Shape(
    "DeleteRecordsIn",
    fields(
        {
            "before_offset": {
                "description": f"the first offset to keep; `{LATEST}`: all that is committed now goes",
                "anyOf": [count(), constant(LATEST)],
            }
        },
        is_closed=True,
    ),
    {"before_offset": 1000},
)

NEW_PRODUCER = Shape(
    "ProducerIn",
    fields(
        {},
        {
            "name": nullable(
                text(
                    "printable characters; who had this name before is fenced",
                    minLength=1,
                    maxLength=PRODUCER_NAME_CHARS_MAX,
                )
            )
        },
        is_closed=True,
    ),
    {"name": "billing"},
)
MOVES_CONCURRENT_DEFAULT = 10
MOVED_PARTITION = Shape(
    "MovedPartitionIn",
    fields(
        {"topic": text(), "partition": count()},
        {
            "replicas": nullable(
                listing(integer(), "brokers, the preferred leader first; null: where it was before")
            )
        },
        is_closed=True,
    ),
)
REASSIGN = Shape(
    "ReassignmentIn",
    fields(
        {},
        {
            "partitions": nullable(listing(MOVED_PARTITION, "partitions by name")),
            "drain": nullable(count("a broker that shall hold nothing", least=1)),
            "rebalance": nullable(boolean("move as little as makes the cluster even")),
            "throttle_bytes_per_s": nullable(
                count("most that a node sends to new replicas; 0: as the node is configured")
            ),
            "max_concurrent": nullable(
                integer(
                    "partitions that move at a time; 0: all",
                    minimum=0,
                    default=MOVES_CONCURRENT_DEFAULT,
                )
            ),
            "dry_run": nullable(boolean("only say what would move")),
        },
        is_closed=True,
    ),
    {"drain": 2, "dry_run": True},
)
DRAIN = Shape(
    "DrainIn",
    fields(
        {},
        {
            "timeout_ms": nullable(
                integer(
                    "how long to wait", minimum=1, maximum=DRAIN_MS_MAX, default=DRAIN_MS_DEFAULT
                )
            )
        },
        is_closed=True,
    ),
    {"timeout_ms": 10_000},
)
