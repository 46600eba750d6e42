"""v2: the table of endpoints."""

from functools import partial

from http_api.access.needs import IN_ANSWER, IN_REQUEST, KNOWN, on_topic
from http_api.describing.error_sets import (
    CREATE_TOPIC_ERRORS,
    LEADER_ERRORS,
    PARTITION_ERRORS,
    TOPIC_ERRORS,
    WRITE_IN_TRANSACTION_ERRORS,
)
from http_api.protocol.errors import InvalidFieldError, UnreadableRecordError
from http_api.protocol.media import (
    ARROW_TYPE,
    BATCH_TYPE,
    BINARY_V2_TYPE,
    EVENTS_TYPE,
    JSON_TYPE,
    JSON_V2_TYPE,
    NDJSON_TYPE,
    TEXT_TYPE,
    TEXT_V2_TYPE,
    V2_TYPE,
)
from http_api.records import conditions, produce_head, transaction_header
from http_api.records.idempotency_key import IDEMPOTENCY_KEY
from http_api.serving.endpoint import (
    Answer,
    Body,
    Content,
    Route,
    Tag,
    json_content,
    ok_v2,
)
from http_api.shapes import requests, v2
from http_api.shapes.blocks import raw_bytes
from http_api.v2 import fetch, metadata, produce, topic_records
from milena.model import errors as e
from milena.model.access import Operation

_MISSING_ON_TOPIC = 40403

_PRODUCE_ERRORS = (
    *PARTITION_ERRORS,
    *LEADER_ERRORS,
    InvalidFieldError,
    e.InvalidTopicNameError,
    e.InvalidReplicationError,
    e.TooManyReplicasError,
    e.UnsupportedSchemaError,
    e.InvalidRecordError,
    e.InvalidProducerError,
    e.IdempotencyKeyReusedError,
    e.PartitionCountChangedError,
    e.StaleProducerEpochError,
    e.NotEnoughReplicasError,
    e.DiskFullError,
    e.FateUnknownError,
    e.PreconditionFailedError,
    e.FeatureLevelError,
    *WRITE_IN_TRANSACTION_ERRORS,
)
_FETCH_ERRORS = (
    *PARTITION_ERRORS,
    *LEADER_ERRORS,
    e.OffsetOutOfRangeError,
    e.ReplicaNotFoundError,
    e.NotAcceptableError,
    UnreadableRecordError,
)

_FETCH_PARAMS = (
    fetch.OFFSET,
    fetch.TIMESTAMP,
    fetch.COUNT.param,
    fetch.MAX_BYTES.param,
    fetch.TIMEOUT.param,
    fetch.REPLICA.param,
    fetch.FOLLOW.param,
    fetch.FORMAT.param,
    fetch.VERIFY.param,
    fetch.ISOLATION.param,
    fetch.LAST_EVENT_ID,
)

_RECORDS: Content = {
    JSON_V2_TYPE: requests.PRODUCE_JSON,
    JSON_TYPE: requests.PRODUCE_JSON,
    BINARY_V2_TYPE: requests.PRODUCE_BINARY,
    V2_TYPE: requests.PRODUCE_BINARY,
    TEXT_V2_TYPE: requests.PRODUCE_TEXT,
    TEXT_TYPE: raw_bytes("a record a line: its bytes are the value"),
    NDJSON_TYPE: raw_bytes("a record a line: its JSON is the value"),
}
_BATCHES = raw_bytes("record batches as the log stores them")
_RECORDS_OR_BATCH: Content = {**_RECORDS, BATCH_TYPE: _BATCHES}

_PRODUCED = (
    "A receipt a record. When records failed for different causes, or only some of them, the failed ones have "
    "`error_code`, `error` and `message`; when all failed for one cause, the answer is that error."
)
_PRODUCE_HEADERS = (produce_head.RECORD_FORMAT,)
_SENT_OFF = Answer(
    status=204, description="With `async=true`: it is on its way", headers=_PRODUCE_HEADERS
)
_PRODUCED_TO_TOPIC = (*ok_v2(v2.PRODUCED, _PRODUCED, *_PRODUCE_HEADERS), _SENT_OFF)
_PRODUCED_TO_PARTITION = (
    Answer(
        description=f"{_PRODUCED} For an encoded batch: where it is.",
        content={
            V2_TYPE: v2.PRODUCED,
            JSON_TYPE: {"anyOf": [v2.PRODUCED, v2.BATCH_RECEIPT]},
        },
        headers=_PRODUCE_HEADERS,
    ),
    _SENT_OFF,
)
_FETCHED = (
    Answer(
        description=(
            "Committed records from the offset on; none when there are none yet. Stored batches may begin before "
            "the offset and end after the high watermark. NDJSON and server-sent events come while they are read, "
            "without `ETag` and headers that begin with `Milena-`; a record that is not JSON is an error in its place."
        ),
        content={
            JSON_V2_TYPE: v2.RECORDS_JSON,
            BINARY_V2_TYPE: v2.RECORDS_BINARY,
            TEXT_V2_TYPE: v2.RECORDS_TEXT,
            JSON_TYPE: v2.RECORDS_JSON,
            BATCH_TYPE: _BATCHES,
            ARROW_TYPE: raw_bytes("an Arrow IPC stream"),
            NDJSON_TYPE: v2.LINES,
            EVENTS_TYPE: v2.EVENTS,
        },
        headers=(
            "Milena-Start-Offset",
            "Milena-Next-Offset",
            "Milena-High-Watermark",
            "Milena-Last-Stable-Offset",
            "Milena-Log-Start-Offset",
            "Milena-Leader-Epoch",
            "ETag",
        ),
    ),
)


_topic_route = partial(Route, tag=Tag.TOPICS)
_record_route = partial(Route, tag=Tag.RECORDS)
_produce_route = partial(
    _record_route,
    own_params=(
        produce_head.ACKS.param,
        produce_head.TIMEOUT_MS.param,
        produce_head.ASYNC.param,
        IDEMPOTENCY_KEY,
        conditions.IF_MATCH,
        transaction_header.TRANSACTION,
    ),
    prepare=produce_head.prepare_to_produce,
    access=on_topic(Operation.WRITE),
    errors=_PRODUCE_ERRORS,
)

V2_ROUTES = (
    Route(
        "GET /",
        "getNode",
        metadata.root,
        "Who answers: version, cluster and node",
        ok_v2(v2.NODE, "Who answers"),
        access=KNOWN,
        tag=Tag.NODE,
    ),
    _topic_route(
        "GET /topics",
        "listTopics",
        metadata.list_topics,
        "Names of all topics",
        ok_v2(v2.TOPIC_NAMES, "The names, in order"),
        access=IN_ANSWER,
        is_current=True,
    ),
    _topic_route(
        "GET /topics/{topic}",
        "getTopic",
        metadata.get_topic,
        "A topic: its configs and partitions",
        ok_v2(v2.TOPIC, "The topic"),
        errors=TOPIC_ERRORS,
        topic_missing_code=_MISSING_ON_TOPIC,
        access=on_topic(Operation.DESCRIBE),
        is_current=True,
    ),
    _produce_route(
        "POST /topics/{topic}",
        "produceToTopic",
        produce.produce,
        "Append records",
        _PRODUCED_TO_TOPIC,
        body=Body(content=_RECORDS),
    ),
    _topic_route(
        "GET /topics/{topic}/partitions",
        "listPartitions",
        metadata.list_partitions,
        "Partitions of a topic",
        ok_v2(v2.PARTITIONS, "The partitions, by number"),
        errors=TOPIC_ERRORS,
        access=on_topic(Operation.DESCRIBE),
        is_current=True,
    ),
    _topic_route(
        "GET /topics/{topic}/partitions/{partition}",
        "getPartition",
        metadata.get_partition,
        "A partition: its leader and replicas",
        ok_v2(v2.PARTITION, "The partition"),
        errors=PARTITION_ERRORS,
        access=on_topic(Operation.DESCRIBE),
    ),
    _produce_route(
        "POST /topics/{topic}/partitions/{partition}",
        "produceToPartition",
        produce.produce,
        "Append records to a partition",
        _PRODUCED_TO_PARTITION,
        body=Body(content=_RECORDS_OR_BATCH),
    ),
    _topic_route(
        "GET /topics/{topic}/partitions/{partition}/offsets",
        "getOffsets",
        metadata.get_offsets,
        "Readable offsets of a partition",
        ok_v2(v2.OFFSETS, "The readable range", "ETag"),
        errors=(*PARTITION_ERRORS, *LEADER_ERRORS),
        access=on_topic(Operation.DESCRIBE),
    ),
    _record_route(
        "GET /topics/{topic}/records",
        "fetchTopic",
        topic_records.fetch_topic,
        "Read records of all partitions",
        (
            Answer(
                description=(
                    "Committed records of every partition, in order within each. NDJSON ends where they "
                    "ended, events go on; the id of an event says where all partitions stand."
                ),
                content={NDJSON_TYPE: v2.LINES, EVENTS_TYPE: v2.EVENTS},
            ),
        ),
        own_params=(
            topic_records.OFFSET,
            fetch.TIMESTAMP,
            fetch.COUNT.param,
            fetch.FOLLOW.param,
            fetch.FORMAT.param,
            fetch.ISOLATION.param,
            topic_records.LAST_EVENT_ID,
        ),
        access=on_topic(Operation.READ),
        errors=(*PARTITION_ERRORS, *LEADER_ERRORS, e.OffsetOutOfRangeError, e.NotAcceptableError),
        topic_missing_code=fetch.MISSING_ON_FETCH,
    ),
    _record_route(
        "GET /topics/{topic}/partitions/{partition}/records",
        "fetchRecords",
        fetch.fetch_records,
        "Read records",
        _FETCHED,
        own_params=_FETCH_PARAMS,
        access=on_topic(Operation.READ),
        errors=_FETCH_ERRORS,
        topic_missing_code=fetch.MISSING_ON_FETCH,
        prepare=fetch.prepare_fetch,
    ),
    _produce_route(
        "POST /topics/{topic}/partitions/{partition}/records",
        "produceBatch",
        produce.produce,
        "Append records or one encoded batch to a partition",
        _PRODUCED_TO_PARTITION,
        body=Body(content=_RECORDS_OR_BATCH),
    ),
    Route(
        "GET /brokers",
        "listBrokers",
        metadata.list_brokers,
        "Ids of live brokers",
        ok_v2(v2.BROKER_IDS, "The ids, in order"),
        access=KNOWN,
        tag=Tag.CLUSTER,
        is_current=True,
    ),
    _topic_route(
        "POST /admin/topics",
        "createTopic",
        metadata.create_topic,
        "Create a topic",
        (Answer(status=201, description="It is there, on this node and soon on all"),),
        body=Body(content=json_content(requests.NEW_TOPIC_V2)),
        errors=CREATE_TOPIC_ERRORS,
        access=IN_REQUEST,
    ),
)
