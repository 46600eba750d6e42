"""Responses of Milena's own endpoints."""

from http_api.shapes import v2
from http_api.shapes.blocks import (
    TOTAL,
    Part,
    answer,
    anything,
    boolean,
    choice,
    constant,
    count,
    integer,
    listing,
    mapping,
    nullable,
    number,
    optionals,
    text,
)

PRODUCER = answer(
    "Producer",
    producer_id=count(),
    producer_epoch=count(),
    last_sequences=mapping(
        mapping(count()), "topic → partition → last sequence, as far as leaders know"
    ),
)

_TRANSACTION_OFFSETS = answer(
    "TransactionOffsets", offsets=listing(v2.RECEIPT, "a receipt a record, in order")
)
TRANSACTION_COMMITTED = answer(
    "TransactionCommitted",
    committed=boolean("always true: what is not is an error"),
    visible=boolean("readers see it; otherwise they do soon, and certainly"),
    is_duplicate=boolean("it was committed before, under the same key"),
    writes=listing(_TRANSACTION_OFFSETS, "in the order of the request"),
)
TRANSACTION_BEGUN = answer(
    "TransactionBegun",
    transactional_id=text(),
    producer_id=count(),
    producer_epoch=count(),
    timeout_ms=count(),
    transaction=text("what writes give as `Milena-Transaction`"),
    visible=boolean(
        "readers see the ends of the id's former transactions; otherwise they do soon, and certainly"
    ),
)
_NEXT_EPOCH = count("of the id's next transaction, which this starts")
SESSION_COMMITTED = answer(
    "SessionCommitted",
    committed=boolean("always true: what is not is an error"),
    visible=boolean("readers see it; otherwise they do soon, and certainly"),
    next_epoch=_NEXT_EPOCH,
)
SESSION_ABORTED = answer(
    "SessionAborted",
    aborted=boolean("always true"),
    visible=boolean("readers pass over it; otherwise they do soon, and certainly"),
    next_epoch=_NEXT_EPOCH,
)
OPEN_TRANSACTION_PART = answer(
    "OpenTransactionPart",
    topic=text(),
    partition=count(),
    first_offset=count("where committed reading ends"),
    records=count(),
    leader=count(),
)
OPEN_TRANSACTION = answer(
    "OpenTransaction",
    producer_id=count(),
    producer_epoch=count(),
    transactional_id=nullable(text("null: it is forgotten")),
    state=choice("open", "ending"),
    began_ms=count("of its first record"),
    timeout_ms=count("after that it is aborted"),
    partition_count=count(),
    partitions=listing(OPEN_TRANSACTION_PART),
)
OPEN_TRANSACTIONS = answer(
    "OpenTransactions",
    total=TOTAL,
    transactions=listing(OPEN_TRANSACTION, "the oldest first, unless another order is asked for"),
    silent_nodes=listing(
        integer(), "who did not answer: transactions that they know of are missing"
    ),
)

RECORDS_DELETED = answer(
    "RecordsDeleted", partition=count(), log_start_offset=count("the first record that is left")
)

_REPLICAS = listing(integer(), "the preferred leader first")
PLANNED_MOVE = answer(
    "PlannedMove",
    topic=text(),
    partition=count(),
    replicas_before=_REPLICAS,
    replicas=_REPLICAS,
    is_cancelled=boolean("it goes back to where it was"),
    error_code=nullable(integer("null: it was taken")),
    error=nullable(text()),
)
PLANNED_MOVES = answer(
    "PlannedMoves", dry_run=boolean("nothing was changed"), partitions=listing(PLANNED_MOVE)
)
ADDED_REPLICA = answer(
    "AddedReplica",
    broker_id=integer(),
    is_in_sync=boolean(),
    offsets_left=nullable(count("null: the leader did not say")),
    bytes_left=nullable(count("an estimate")),
)
RUNNING_MOVE = answer(
    "RunningMove",
    topic=text(),
    partition=count(),
    state=choice("waiting", "catching_up", "finishing"),
    replicas_before=_REPLICAS,
    replicas=_REPLICAS,
    isr=listing(integer(), "those in sync"),
    leader=nullable(integer("null: there is none now")),
    throttle_bytes_per_s=count("0: as the leader's node is configured"),
    max_concurrent=count("0: no bound"),
    added=listing(ADDED_REPLICA),
)
RUNNING_MOVES = answer("RunningMoves", total=TOTAL, reassignments=listing(RUNNING_MOVE))

_BROKER: dict[str, Part] = {
    "broker_id": integer(),
    "url": text("where clients reach it", format="uri"),
    "rack": nullable(text()),
    "is_fenced": boolean("not alive, as far as the cluster knows"),
    "is_draining": boolean("about to stop; it leads nothing"),
}
BROKER_VIEW = answer("BrokerView", **_BROKER)
_PARTITION: dict[str, Part] = {
    "partition": count(),
    "leader": nullable(integer("null: there is none now")),
    "leader_epoch": count(),
    "replicas": listing(integer(), "the preferred leader first"),
    "isr": listing(integer(), "those in sync"),
}
PARTITION_VIEW = answer("PartitionView", **_PARTITION)
TOPIC_VIEW = answer(
    "TopicView",
    name=text(),
    topic_id=text(),
    configs=mapping(text(), "those that were set"),
    partitions=listing(PARTITION_VIEW),
)
CLUSTER_VIEW = answer(
    "ClusterView",
    cluster_id=text(),
    version=count("grows with each change of what is shown here; `?since=` waits for a later one"),
    controller_id=nullable(integer()),
    controller_epoch=count(),
    brokers=listing(BROKER_VIEW),
    topics=listing(TOPIC_VIEW),
    is_current=boolean(
        "all that any node has answered is in it; false with `since`, or without a majority"
    ),
)

_TROUBLE = choice(
    "offline",
    "below_min_insync",
    "under_replicated",
    description="the worst of it: no leader, acks=all is refused, or a replica is out of sync",
)
_TROUBLES: dict[str, Part] = {
    "offline": count("partitions without a leader"),
    "below_min_insync": count("others, where acks=all is refused"),
    "under_replicated": count("others, of which a replica is out of sync"),
}
_IS_CURRENT = boolean(
    "all that any node has answered is in it; false where no majority could be asked"
)
_VERSION = count("as in `GET /metadata`")
BROKER_SUMMARY = answer(
    "BrokerSummary",
    **_BROKER,
    leads=count("partitions"),
    replicas=count(),
    out_of_sync=count("replicas"),
)
CLUSTER_SUMMARY = answer(
    "ClusterSummary",
    cluster_id=text(),
    version=_VERSION,
    controller_id=nullable(integer()),
    controller_epoch=count(),
    is_current=_IS_CURRENT,
    brokers=listing(BROKER_SUMMARY),
    topic_count=count(),
    partition_count=count(),
    **_TROUBLES,
    worst_partitions=listing(
        answer("TroubledPartition", topic=text(), **_PARTITION, trouble=_TROUBLE),
        "at most 100 of those that are in trouble, the worst first",
    ),
)
_TOPIC_SUMMARY: dict[str, Part] = {
    "name": text(),
    "topic_id": text(),
    "configs": mapping(text(), "those that were set"),
    "replication_factor": count(),
    "partition_count": count(),
    **_TROUBLES,
    "stored_bytes_here": nullable(
        count("of this node's replicas, at its last look, every ten seconds; null: it has none")
    ),
    "records_in_per_second_here": nullable(number("appended to what this node leads")),
    "records_out_per_second_here": nullable(number("read from this node's replicas")),
}
_STORED_BYTES: dict[str, Part] = {
    "stored_bytes": nullable(
        count("of all replicas, under `sizes=all`; null: no node has told yet")
    )
}
_SILENT: dict[str, Part] = {
    "silent_nodes": listing(integer(), "under `sizes=all`: whose replicas are missing in the sizes")
}
TOPIC_SUMMARY = answer("TopicSummary", **_TOPIC_SUMMARY, **optionals(_STORED_BYTES))
TOPIC_PAGE = answer(
    "TopicPage",
    version=_VERSION,
    is_current=_IS_CURRENT,
    total=TOTAL,
    topics=listing(TOPIC_SUMMARY),
    **optionals(_SILENT),
)
PARTITION_PAGE = answer(
    "PartitionPage",
    version=_VERSION,
    is_current=_IS_CURRENT,
    **_TOPIC_SUMMARY,
    min_insync_replicas=count("in sync for acks=all, at least"),
    partitions=listing(
        answer(
            "PartitionSummary",
            **_PARTITION,
            trouble=nullable(_TROUBLE),
            stored_bytes_here=nullable(count("of this node's replica, now; null: it has none")),
            **optionals(_STORED_BYTES),
        )
    ),
    **optionals(_STORED_BYTES),
    **optionals(_SILENT),
)

RATES: dict[str, Part] = {
    "records_in_per_second": number(),
    "bytes_in_per_second": number("as stored"),
    "records_out_per_second": number("read by clients"),
    "bytes_out_per_second": number("read by clients, as stored"),
}
HISTORY_SERIES = answer(
    "HistorySeries",
    name=text(
        "`records_in_per_second`, `bytes_in_per_second`, `records_out_per_second`, "
        "`bytes_out_per_second`; of nodes "
        "`commit_ms_p99` (of acks=all), `sync_ms_p99`, `stored_bytes` and `disk_free_bytes`, "
        "too; of groups `lag`"
    ),
    node_id=nullable(integer("null: the sum over the nodes that answered")),
    values=listing(nullable(number()), "null: not known"),
)
BUSY_PARTITION = answer(
    "BusyPartition",
    topic=text(),
    partition=count(),
    leader=nullable(integer("null: it has none now")),
    **RATES,
)
HISTORY = answer(
    "History",
    end_ms=count(
        "Unix time of the last value of each series; those before it lie back by `step_ms` each"
    ),
    step_ms=count(),
    series=listing(HISTORY_SERIES),
    busiest_partitions=listing(
        BUSY_PARTITION,
        "each once, with sums over all nodes: by what they took in the last minute, and those that gave most "
        "behind them",
    ),
    nodes=listing(
        answer(
            "AnsweringNode",
            node_id=integer(),
            version=nullable(text("null: of a release that does not say")),
        ),
        "who answered, and what it runs",
    ),
    silent_nodes=listing(integer(), "who did not answer: what it led is missing"),
    left_out=count("topics and groups for which nodes had no room"),
)

PROBE = answer(
    "Probe", status=choice("ok", "unavailable"), reason=text("for people; empty when all is well")
)
DRAINED = answer(
    "Drained",
    node_id=integer("who was asked"),
    is_drained=boolean(
        "it leads nothing any more; false: the time was over first, or no other broker can lead the rest"
    ),
)
OPENAPI = answer(
    "OpenApi",
    openapi=constant("3.1.0"),
    **{name: anything() for name in ("info", "servers", "tags", "security", "paths", "components")},
)
