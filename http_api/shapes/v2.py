"""Responses of the v2 dialect."""

from http_api.shapes.blocks import (
    Optional,
    Part,
    Schema,
    Shape,
    answer,
    anything,
    base64,
    boolean,
    count,
    fields,
    integer,
    listing,
    mapping,
    nothing,
    nullable,
    optionals,
    text,
)

_ERROR_FIELDS = {
    "error_code": integer("the status, or five digits that begin with it"),
    "message": text("what was wrong, for people"),
}
ERROR = answer("Error", **_ERROR_FIELDS)
CONDITION_FAILED = answer(
    "ConditionFailed",
    **_ERROR_FIELDS,
    end_offset=Optional(count("the partition's next offset when it was refused; committed")),
)

NODE = answer(
    "Node",
    milena_version=text(),
    cluster_id=text("empty while the cluster is being formed"),
    node_id=integer(),
)
TOPIC_NAMES = Shape("TopicNames", listing(text()), ["orders", "page-views"])
BROKER_IDS = answer("BrokerIds", brokers=listing(integer(), "the live ones"))

REPLICA = answer("Replica", broker=integer(), leader=boolean(), in_sync=boolean())
PARTITION = answer(
    "Partition",
    partition=count(),
    leader=integer("-1: there is none now", minimum=-1),
    replicas=listing(REPLICA, "the preferred leader first"),
)
PARTITIONS = Shape("Partitions", listing(PARTITION))
TOPIC = answer(
    "Topic",
    name=text(),
    configs=mapping(text(), "all that are in force, as text"),
    partitions=listing(PARTITION),
)
OFFSETS = answer(
    "Offsets",
    beginning_offset=count("the first record there is"),
    end_offset=count(
        "the high watermark: the first offset that is not committed; all that was acknowledged lies below it"
    ),
    last_stable_offset=count(
        "where committed records end: at the first transaction that is open, else at `end_offset`"
    ),
)

_SCHEMA_ID = nothing("there is no schema registry")
RECEIPT = answer(
    "ProduceReceipt",
    partition=nullable(count("null: the record named one that is not there")),
    offset=nullable(count("null: acks=0, or the record failed")),
    error_code=nullable(integer("null: the record was taken")),
    error=nullable(text()),
    message=Optional(text("the same as `error`, when it failed")),
    kafka_error_code=Optional(integer("Kafka's number for the error, when it failed")),
)
PRODUCED = answer(
    "Produced",
    offsets=listing(RECEIPT, "one a record, in their order"),
    key_schema_id=_SCHEMA_ID,
    value_schema_id=_SCHEMA_ID,
)
BATCH_RECEIPT = answer(
    "BatchReceipt",
    partition=count(),
    base_offset=nullable(count("null: acks=0")),
    last_offset=nullable(count("null: acks=0")),
    is_duplicate=boolean("it had been written before, and was not again"),
    leader_epoch=count(
        "grows with each change of the partition's leader: a client that knows a lower one asks for metadata"
    ),
)

RECORD_HEADER = answer("RecordHeader", key=text(), value=nullable(base64("the header's bytes")))


_WHERE: dict[str, Part] = {"partition": count(), "offset": count()}
_MORE: dict[str, Part] = {
    "timestamp": count("ms since 1970"),
    "headers": listing(RECORD_HEADER, "when the record has some"),
}


def _record(key: Part, value: Part) -> Schema:
    return fields(topic=text(), key=key, value=value, **_WHERE, **optionals(_MORE))


RECORDS_JSON = Shape("JsonRecords", listing(_record(anything(), anything())))
RECORDS_BINARY = Shape("BinaryRecords", listing(_record(nullable(base64()), nullable(base64()))))
RECORDS_TEXT = Shape("TextRecords", listing(_record(nullable(text()), nullable(text()))))

FAULT = answer(
    "RecordFault",
    topic=text(),
    **_WHERE,
    error_code=integer("42203"),
    error=text("what is not JSON, or not text"),
    key=Optional(anything()),
    key_text=Optional(text("in place of `key`: it is not JSON, but text in UTF-8")),
    key_base64=Optional(base64("in place of `key`: it is not UTF-8")),
    value=Optional(anything()),
    value_text=Optional(text("in place of `value`: it is not JSON, but text in UTF-8")),
    value_base64=Optional(base64("in place of `value`: it is not UTF-8")),
    **optionals(_MORE),
)
CONSUMER_RECORDS_JSON = Shape(
    "JsonRecordsOrFaults",
    listing({"anyOf": [_record(anything(), anything()), FAULT]}),
)
CONSUMER_RECORDS_TEXT = Shape(
    "TextRecordsOrFaults",
    listing({"anyOf": [_record(nullable(text()), nullable(text())), FAULT]}),
)
LINES = text(
    "a record a line, as in the list of the JSON types, or in its place `topic`, `key`, `key_text` or `key_base64`, "
    "`value`, `value_text` or `value_base64`, `partition`, `offset`, `error_code` and `error`; an empty line means "
    "nothing; when the stream cannot go on, its last line is an error"
)
EVENTS = text(
    "an event a record: `id` is its offset, `data` what its line would be in NDJSON; comments mean nothing; when the "
    "stream cannot go on, its last event is of the type `error`"
)
