"""The table of Milena's own endpoints."""

from functools import partial

from http_api.access.needs import IN_ANSWER, IN_REQUEST, PUBLIC, on_cluster, on_topic
from http_api.describing import pages
from http_api.describing.error_sets import CHANGE_ERRORS, LEADER_ERRORS, PARTITION_ERRORS
from http_api.native import (
    cluster_metadata,
    cluster_pages,
    description,
    health,
    history,
    producers,
    reassignments,
    record_deletion,
)
from http_api.native.transactions import sessions as transactions
from http_api.native.transactions import transact
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import BINARY_V2_TYPE, JSON_TYPE, JSON_V2_TYPE, TEXT_V2_TYPE
from http_api.records.idempotency_key import IDEMPOTENCY_KEY
from http_api.records.produce_head import TIMEOUT_MS
from http_api.serving.endpoint import (
    Answer,
    Body,
    Content,
    Handler,
    Route,
    Tag,
    json_content,
    ok,
)
from http_api.shapes import native, requests
from milena.model import errors as e
from milena.model.access import Operation

_DELETE_RECORDS = "/topics/{topic}/partitions/{partition}/records:delete"
_OPTIONAL_BODY_NOTE = "The body may be left out."
_OPENAPI_ALIAS = "As /openapi.json, under another server's name"


def _probe(path: str, operation_id: str, handler: Handler, summary: str) -> Route:
    """Return the row of a probe. Limits on requests in flight do not apply, so it also responds under overload."""
    return _node_route(
        f"GET {path}",
        operation_id,
        handler,
        summary,
        (*ok(native.PROBE, "It is so"), *ok(native.PROBE, "Not now", status=503)),
        access=PUBLIC,
        is_exempt=True,
    )


def _description(path: str, operation_id: str, summary: str) -> Route:
    """Return the row of a path with this description."""
    answers = ok(native.OPENAPI, "The document")
    handler = description.get_openapi
    return _node_route(f"GET {path}", operation_id, handler, summary, answers, access=PUBLIC)


_MOVE_ERRORS = (
    e.TopicNotFoundError,
    e.PartitionCountChangedError,
    e.PartitionNotFoundError,
    e.InvalidReplicationError,
    e.NotEnoughReplicasError,
    e.StaleVersionError,
    *CHANGE_ERRORS,
)

_TRANSACTION_ERRORS = (
    *PARTITION_ERRORS,
    *LEADER_ERRORS,
    *CHANGE_ERRORS,
    InvalidFieldError,
    e.InvalidTopicNameError,
    e.InvalidReplicationError,
    e.TooManyReplicasError,
    e.InvalidRecordError,
    e.InvalidProducerError,
    e.InvalidConsumerError,
    e.TopicNotTransactionalError,
    e.MemberNotFoundError,
    e.MemberFencedError,
    e.GroupNotEmptyError,
    e.StaleMemberEpochError,
    e.StaleProducerEpochError,
    e.TransactionAbortedError,
    e.TransactionInProgressError,
    e.TooManyTransactionsError,
    e.GroupLimitError,
    e.NotEnoughReplicasError,
    e.DiskFullError,
)
_TRANSACTION: Content = dict.fromkeys(
    (JSON_TYPE, JSON_V2_TYPE, BINARY_V2_TYPE, TEXT_V2_TYPE), requests.TRANSACTION
)

_node_route = partial(Route, tag=Tag.NODE)
_cluster_route = partial(Route, tag=Tag.CLUSTER)
_transaction_route = partial(Route, tag=Tag.TRANSACTIONS)

NATIVE_ROUTES = (
    _cluster_route(
        "POST /producers",
        "allocateProducer",
        producers.allocate_producer,
        "A producer id for idempotent writes",
        ok(native.PRODUCER, "The id, its epoch, and how far it has written"),
        access=IN_REQUEST,
        description=f"A name keeps its id under the next epoch, which fences who had it before. {_OPTIONAL_BODY_NOTE}",
        body=Body(content=json_content(requests.NEW_PRODUCER), is_required=False),
        errors=(InvalidFieldError, e.TooManyProducersError, *CHANGE_ERRORS),
    ),
    _transaction_route(
        "POST /transactions",
        "transact",
        transact.transact,
        "Write to several partitions, and commit offsets, all of it or nothing",
        ok(native.TRANSACTION_COMMITTED, "It is committed: where its records are"),
        own_params=(TIMEOUT_MS.param, IDEMPOTENCY_KEY),
        access=IN_REQUEST,
        description=(
            "Any error but 504 says that nothing of it took effect, nor ever will. Repeated under the same key, by "
            "whatever node, it is done once."
        ),
        body=Body(content=_TRANSACTION),
        errors=(*_TRANSACTION_ERRORS, e.IdempotencyKeyReusedError, e.PartitionCountChangedError),
        prepare=transact.prepare_to_transact,
    ),
    _transaction_route(
        "GET /transactions",
        "listTransactions",
        transactions.list_transactions,
        "Transactions that are open",
        ok(native.OPEN_TRANSACTIONS, "Those without an end in some partition"),
        own_params=(
            transactions.OLDER_THAN_MS.param,
            *pages.page_params(transactions.SORT),
            pages.PARTITIONS_PARAM,
        ),
        access=IN_ANSWER,
        is_current=True,
    ),
    _transaction_route(
        "POST /transactions:begin",
        "beginTransaction",
        transactions.begin,
        "The next transaction of an id",
        ok(native.TRANSACTION_BEGUN, "What its writes are to name"),
        access=IN_REQUEST,
        description=(
            "What the id has open is aborted, and who had it before is fenced. Writes with `Milena-Transaction` belong "
            "to it, until it is committed, aborted, or its time is over."
        ),
        body=Body(content=json_content(requests.BEGIN_TRANSACTION)),
        errors=(InvalidFieldError, e.TooManyProducersError, *CHANGE_ERRORS),
    ),
    _transaction_route(
        "POST /transactions/{producer_id}/{producer_epoch}:commit",
        "commitTransaction",
        transactions.commit,
        "Let what a transaction wrote take effect, and offsets with it",
        ok(native.SESSION_COMMITTED, "It is committed; asked again, the same"),
        own_params=(TIMEOUT_MS.param, transactions.UNTIL.param),
        access=IN_REQUEST,
        description=(
            "It names, for each partition, where the records end that were acknowledged, and how many they are; what "
            "it does not name is aborted. A write whose answer was lost makes the numbers differ: 409, still open."
        ),
        body=Body(content=json_content(requests.COMMIT_TRANSACTION)),
        errors=(*_TRANSACTION_ERRORS, e.TransactionChangedError, e.TransactionNotFoundError),
    ),
    _transaction_route(
        "POST /transactions/{producer_id}/{producer_epoch}:abort",
        "abortTransaction",
        transactions.abort,
        "Let nothing take effect of what a transaction wrote",
        ok(native.SESSION_ABORTED, "It is aborted; asked again, the same"),
        own_params=(TIMEOUT_MS.param,),
        access=IN_REQUEST,
        description=_OPTIONAL_BODY_NOTE,
        body=Body(content=json_content(requests.ABORT_TRANSACTION), is_required=False),
        errors=(
            InvalidFieldError,
            e.InvalidProducerError,
            e.TransactionNotFoundError,
            e.TransactionCommittedError,
            e.StaleProducerEpochError,
            e.TooManyTransactionsError,
            *CHANGE_ERRORS,
        ),
    ),
    Route(
        f"POST {_DELETE_RECORDS}",
        "deleteRecords",
        record_deletion.delete_records,
        "Delete the oldest records of a partition",
        ok(native.RECORDS_DELETED, "Where the partition begins now"),
        own_params=(TIMEOUT_MS.param,),
        access=on_topic(Operation.DELETE),
        tag=Tag.RECORDS,
        description=(
            "Answered once no in-sync replica has them any more, so that no later leader brings them back. To do it "
            "again is harmless; an offset below the first one deletes nothing."
        ),
        body=Body(content=json_content(requests.DELETE_RECORDS)),
        errors=(
            *PARTITION_ERRORS,
            *LEADER_ERRORS,
            InvalidFieldError,
            e.OffsetOutOfRangeError,
            e.NotEnoughReplicasError,
            e.FeatureLevelError,
            e.FateUnknownError,
        ),
    ),
    _cluster_route(
        "POST /reassignments",
        "reassign",
        reassignments.reassign,
        "Move replicas to other brokers",
        ok(native.PLANNED_MOVES, "What moves, partition by partition"),
        access=on_cluster(Operation.ALTER),
        description=(
            "Partitions by name, or all that one broker holds, or as little as makes the cluster even. New replicas "
            "catch up in the background; once all are in sync the old ones go. What moves already takes the new way."
        ),
        body=Body(content=json_content(requests.REASSIGN)),
        errors=(InvalidFieldError, e.BrokerNotFoundError, e.TooManyReplicasError, *_MOVE_ERRORS),
    ),
    _cluster_route(
        "GET /reassignments",
        "listReassignments",
        reassignments.list_reassignments,
        "What is on the move, and how far it is",
        ok(native.RUNNING_MOVES, "Partitions on the move, those that wait included"),
        own_params=pages.page_params(reassignments.SORT),
        access=IN_ANSWER,
        is_current=True,
    ),
    _cluster_route(
        "DELETE /reassignments",
        "cancelReassignments",
        reassignments.cancel_reassignments,
        "Take partitions back to where they were",
        ok(native.PLANNED_MOVES, "What was cancelled"),
        own_params=(reassignments.TOPIC, reassignments.PARTITION.param),
        access=on_cluster(Operation.ALTER),
        description="All that move, those of a topic, or one. Refused where too few of the former are in sync.",
        errors=_MOVE_ERRORS,
    ),
    _cluster_route(
        "GET /metadata",
        "getMetadata",
        cluster_metadata.get_metadata,
        "Brokers, topics and leaders in one answer",
        ok(native.CLUSTER_VIEW, "The cluster as this node knows it"),
        own_params=(cluster_metadata.SINCE.param, cluster_metadata.TIMEOUT.param),
        access=IN_ANSWER,
        description=(
            "All that any node has answered is in it; `is_current` is false where no majority could be asked. With "
            "`since` it waits for a later version of this node's own: change events by long poll."
        ),
    ),
    _cluster_route(
        "GET /metadata/summary",
        "getMetadataSummary",
        cluster_pages.get_summary,
        "Brokers, how many topics and partitions there are, and what is wrong with them",
        ok(native.CLUSTER_SUMMARY, "The cluster in some kilobytes, whatever its size"),
        access=IN_ANSWER,
        description="What the caller may not see is not counted. Without a majority it is what this node knew last.",
    ),
    _cluster_route(
        "GET /metadata/topics",
        "listTopicSummaries",
        cluster_pages.list_topics,
        "Topics, a page of them",
        ok(native.TOPIC_PAGE, "Those of the page, and how many there are"),
        own_params=(
            *pages.page_params(cluster_pages.TOPIC_SORT, is_whole=False),
            cluster_pages.SIZES.param,
        ),
        access=IN_ANSWER,
        description="Without a majority it is what this node knew last.",
    ),
    _cluster_route(
        "GET /metadata/topics/{topic}",
        "getTopicSummary",
        cluster_pages.get_topic,
        "A topic, and a page of its partitions",
        ok(native.PARTITION_PAGE, "The topic, with the partitions of the page"),
        own_params=(
            *pages.part_params(cluster_pages.PARTITION_SORT, is_whole=False),
            cluster_pages.SIZES.param,
        ),
        access=on_topic(Operation.DESCRIBE),
        description="Without a majority it is what this node knew last.",
        errors=(e.TopicNotFoundError,),
    ),
    _probe("/livez", "isLive", health.live, "The process is alive"),
    _probe("/startupz", "hasStarted", health.started, "The node has started"),
    _probe("/readyz", "isReady", health.ready, "The node should get traffic"),
    _probe("/healthy", "healthy", health.live, "As /livez, under another server's name"),
    _probe("/ready", "ready", health.ready, "As /readyz, under another server's name"),
    _probe("/status/ready", "statusReady", health.ready, "As /readyz, under another server's name"),
    _probe("/_health", "underscoreHealth", health.live, "As /livez, under another server's name"),
    _node_route(
        "POST /drain",
        "drain",
        health.drain,
        "Let other nodes lead what this one leads",
        ok(native.DRAINED, "Whether it came to an end in time"),
        access=on_cluster(Operation.ALTER),
        description=(
            "It goes on answering requests, is not ready any more and leads nothing until it is started again. "
            f"{_OPTIONAL_BODY_NOTE}"
        ),
        body=Body(content=json_content(requests.DRAIN), is_required=False),
        errors=(InvalidFieldError,),
    ),
    _node_route(
        "GET /metrics",
        "getMetrics",
        health.metrics,
        "Metrics in Prometheus' text format",
        (Answer(description="The metrics", content={"text/plain": {"type": "string"}}),),
        own_params=(health.PARTITIONS.param,),
        access=on_cluster(Operation.DESCRIBE),
        is_exempt=True,
    ),
    _cluster_route(
        "GET /history",
        "getHistory",
        history.get_history,
        "The last hour: rates, latency, disk, a group's lag",
        ok(native.HISTORY, "Numbers every ten seconds, the newest last"),
        own_params=(history.TOPIC, history.GROUP),
        access=IN_REQUEST,
        description=(
            "Each node keeps an hour in its memory, and is asked for it. Without parameters, what each node did; with "
            "one, a topic's or a group's sum over them. Partitions with the most traffic of the last minute are named."
        ),
        errors=(e.TopicNotFoundError,),
    ),
    _description("/openapi.json", "getOpenApi", "This description, as OpenAPI 3.1"),
    _description("/openapi", "getOpenApiByShortName", _OPENAPI_ALIAS),
    _description("/openapi/v3", "getOpenApiByVersion", _OPENAPI_ALIAS),
)
