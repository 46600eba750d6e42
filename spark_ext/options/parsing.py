"""Parse the options of the source and the sink, and check them together (pure).

Names and meanings are those of Spark's Kafka source. To move a query here, change its ``format`` and its servers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.model.types import COLUMN_CODECS, Codec
from spark_ext.errors import OptionError
from spark_ext.options.bounds import (
    Bound,
    Edge,
    GlobalTimestamp,
    NoMatch,
    SpecificOffsets,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)
from spark_ext.options.credentials import (
    CREDENTIAL_OPTIONS,
    QUERY_TOKEN_MS,
    STREAM_TOKEN_MS,
    TASK_TOKEN,
    TASK_TOKEN_LIFETIME,
    TOKEN_MS_MIN,
    TOKEN_OF_QUERY,
    TaskToken,
    TaskTokenRule,
)
from spark_ext.options.given import NOTHING, SERVERS, GivenOptions
from spark_ext.options.selection import (
    Selection,
    parse_assign,
    parse_subscribe,
    parse_subscribe_pattern,
)

TARGET_RECORDS_PER_TASK = 1_000_000
"""The default size of a task. A Python task costs 60-80 ms of CPU, like 100,000 records: a tenth of this size."""

FETCH_BYTES = 1 << 20
POLL_TIMEOUT_MS = 120_000
FETCH_RETRIES = 3
FETCH_RETRY_INTERVAL_MS = 10
TRIGGER_DELAY_MS = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """The options of tasks: how they reach the cluster, how long they retry, and whether a loss fails the query."""

    urls: tuple[str, ...]
    credentials: Credentials = ANONYMOUS
    task_token: TaskTokenRule = TOKEN_OF_QUERY
    fetch_bytes: int = FETCH_BYTES
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a batch query. ``retries`` and ``retry_interval_ms`` are for the driver's first request."""

    selection: Selection
    start: Bound
    end: Bound
    on_no_match: NoMatch
    fetching: Fetching
    include_headers: bool
    partitions_min: int | None
    records_per_partition_max: int | None
    target_records_per_task: int
    retries: int
    retry_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a stream. ``read`` is the batch query from the stream's start to now.

    The limits count offsets of a micro-batch. A micro-batch below ``offsets_min`` waits for more, for at most
    ``trigger_delay_ms_max`` after the previous one.
    """

    read: ReadOptions
    offsets_max: int | None
    offsets_min: int | None
    bytes_max: int | None
    """Approximate bytes of the records as they are stored."""
    trigger_delay_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. ``topic`` overrides the column; with ``include_timestamps``, ``timestamp`` is written.

    With ``transactional_id``, a batch is written in a transaction. With ``batch_id``, it is written once, after batches
    of lower numbers. If ``batch_id`` is None, Spark numbers the batches of a stream, and a batch query is written as
    often as it runs.
    """

    urls: tuple[str, ...]
    credentials: Credentials
    task_token: TaskTokenRule
    topic: str | None
    include_timestamps: bool
    compression: str
    transactional_id: str | None
    batch_id: int | None


_SELECTIONS: dict[str, Callable[[str], Selection]] = {
    "subscribe": parse_subscribe,
    "subscribePattern": parse_subscribe_pattern,
    "assign": parse_assign,
}
_COMPRESSIONS = {name: name for name in (codec.name.lower() for codec in COLUMN_CODECS)}
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_GROUP = ("groupIdPrefix", "kafka.group.id")

READ_OPTIONS = (
    *SERVERS,
    *CREDENTIAL_OPTIONS,
    *_SELECTIONS,
    *_STARTS,
    *_ENDS,
    *_STREAM_ONLY,
    *_GROUP,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "targetRecordsPerTask",
    "fetchBytes",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
WRITE_OPTIONS = (
    *SERVERS,
    *CREDENTIAL_OPTIONS,
    "topic",
    "includeHeaders",
    "includeTimestamps",
    "compression",
    "transactionalId",
    "batchId",
)
_CHECKPOINT = "checkpointLocation"
_QUERY_NAME = "queryName"
"""The query's name, which Spark passes as if it were an option."""
WRITE_STREAM_OPTIONS = (*WRITE_OPTIONS, _CHECKPOINT, _QUERY_NAME)
_OF_READS = {name.lower(): "only a read has it" for name in READ_OPTIONS}
_OF_WRITES = {name.lower(): "only a write has it" for name in WRITE_STREAM_OPTIONS}
BATCH_ID_MAX = (1 << 63) - 2
"""The largest ``batchId``. The group commits the next number as an offset, which has 63 bits."""
TRANSACTIONAL_ID_CHARS_MAX = 200
"""The longest transactional id. A node accepts 255 characters, and a group's name is a prefix and this id."""


def parse_read_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> ReadOptions:
    """Parse the options of ``spark.read``; names may be in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = GivenOptions(options, READ_OPTIONS, environment, _OF_WRITES)
    # The limits of a stream do not affect a batch query. They are checked, because at load() Spark does not tell
    # which of the two it will be.
    _limits(given)
    start = _bound(given, _STARTS, Edge.EARLIEST, refused=Edge.LATEST)
    end = _bound(given, _ENDS, Edge.LATEST, refused=Edge.EARLIEST)
    _check_ends_fit(start, end)
    return _read_options(given, start, end, QUERY_TOKEN_MS)


def parse_stream_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> StreamOptions:
    """Parse the options of ``spark.readStream``; names may be in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = GivenOptions(options, READ_OPTIONS, environment, _OF_WRITES)
    if ends := given.present(_ENDS):
        raise OptionError(f"{ends[0]}: not possible in a stream, which does not end")
    offsets_max, offsets_min, bytes_max, trigger_delay_ms_max = _limits(given)
    start = _bound(given, _STARTS, Edge.LATEST)
    return StreamOptions(
        read=_read_options(given, start, Edge.LATEST, STREAM_TOKEN_MS),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        bytes_max=bytes_max,
        trigger_delay_ms_max=trigger_delay_ms_max,
    )


def _limits(given: GivenOptions) -> tuple[int | None, int | None, int | None, int]:
    """Return the limits of a micro-batch: maximum and minimum offsets, maximum bytes, and maximum delay in ms."""
    offsets_min = given.positive("minOffsetsPerTrigger", None)
    offsets_max = given.positive("maxOffsetsPerTrigger", None)
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise OptionError(
            f"minOffsetsPerTrigger and maxOffsetsPerTrigger: {offsets_min} is more than {offsets_max}"
        )
    return (
        offsets_max,
        offsets_min,
        given.positive("maxBytesPerTrigger", None),
        given.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
    )


def parse_load_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> ReadOptions:
    """Parse the options of a batch query or a stream; at ``load()`` Spark does not tell which it will be.

    Raises:
        OptionError: the options are valid for neither.
    """
    try:
        return parse_read_options(options, environment)
    except OptionError as error:
        in_batch = error.message
    try:
        return parse_stream_options(options, environment).read
    except OptionError as error:
        if error.message == in_batch:
            raise
        raise OptionError(f"{in_batch}; and in a stream, {error.message}") from None


def _read_options(
    given: GivenOptions, start: Bound, end: Bound, token_lifetime_ms: int
) -> ReadOptions:
    return ReadOptions(
        selection=_selection(given),
        start=start,
        end=end,
        on_no_match=given.choice(
            "startingOffsetsByTimestampStrategy",
            {strategy.value: strategy for strategy in NoMatch},
            NoMatch.ERROR,
        ),
        fetching=Fetching(
            urls=given.urls(),
            credentials=given.credentials(),
            task_token=_task_token(given, token_lifetime_ms),
            fetch_bytes=given.positive("fetchBytes", FETCH_BYTES),
            poll_timeout_ms=given.positive("kafkaConsumer.pollTimeoutMs", POLL_TIMEOUT_MS),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        ),
        include_headers=given.flag("includeHeaders", default=False),
        partitions_min=given.positive("minPartitions", None),
        records_per_partition_max=given.positive("maxRecordsPerPartition", None),
        target_records_per_task=given.positive("targetRecordsPerTask", TARGET_RECORDS_PER_TASK),
        retries=given.count("fetchOffset.numRetries", FETCH_RETRIES),
        retry_interval_ms=given.count("fetchOffset.retryIntervalMs", FETCH_RETRY_INTERVAL_MS),
    )


def parse_write_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> WriteOptions:
    """Parse the options of ``df.write``; names may be in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = GivenOptions(options, WRITE_OPTIONS, environment, _OF_READS)
    found = _write_options(given, given.text("transactionalId"), QUERY_TOKEN_MS)
    if found.batch_id is not None and found.batch_id > BATCH_ID_MAX:
        raise OptionError(f"batchId: expected at most {BATCH_ID_MAX}, got {found.batch_id}")
    if found.batch_id is not None and found.transactional_id is None:
        raise OptionError("batchId: give transactionalId too: it counts the batches of one program")
    return found


def parse_write_stream_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> WriteOptions:
    """Parse the options of ``df.writeStream``; names may be in any case. The result has a transactional id.

    Raises:
        OptionError: one line that names the option.
    """
    given = GivenOptions(options, WRITE_STREAM_OPTIONS, environment, _OF_READS)
    if given.present(("batchId",)):
        raise OptionError("batchId: not possible: Spark numbers the batches of a stream")
    name, checkpoint = given.text("transactionalId"), given.text(_CHECKPOINT)
    if name is None and checkpoint is None:
        raise OptionError(
            f"transactionalId: required where {_CHECKPOINT} is not given as an option; a name of the query's own, the "
            "same after each restart"
        )
    if name is None:
        name = f"spark:{checkpoint}"
        if not _is_transactional_id(name):
            raise OptionError(
                f"{_CHECKPOINT}: {name!r} is not a transactional id of at most {TRANSACTIONAL_ID_CHARS_MAX} printable "
                "characters; give transactionalId"
            )
    return _write_options(given, name, STREAM_TOKEN_MS)


def _write_options(
    given: GivenOptions, transactional_id: str | None, token_lifetime_ms: int
) -> WriteOptions:
    # Like Kafka's sink, accept the option and ignore it: a column of headers is written if there is one.
    given.flag("includeHeaders", default=False)
    topic = given.text("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic: give the name of a topic")
    if transactional_id is not None and not _is_transactional_id(transactional_id):
        raise OptionError(
            f"transactionalId: expected 1 to {TRANSACTIONAL_ID_CHARS_MAX} printable characters, "
            f"got {transactional_id!r}"
        )
    return WriteOptions(
        urls=given.urls(),
        credentials=given.credentials(),
        task_token=_task_token(given, token_lifetime_ms),
        topic=None if topic is None else topic.strip(),
        include_timestamps=given.flag("includeTimestamps", default=False),
        compression=given.choice("compression", _COMPRESSIONS, Codec.NONE.name.lower()),
        transactional_id=transactional_id,
        batch_id=given.count("batchId", None),
    )


def _is_transactional_id(name: str) -> bool:
    return 1 <= len(name) <= TRANSACTIONAL_ID_CHARS_MAX and name.isprintable()


def _task_token(given: GivenOptions, lifetime_ms: int) -> TaskTokenRule:
    use = given.choice(TASK_TOKEN, {rule.value: rule for rule in TaskToken}, TaskToken.AUTO)
    lifetime_ms = given.duration_ms(TASK_TOKEN_LIFETIME, lifetime_ms)
    if lifetime_ms < TOKEN_MS_MIN:
        raise OptionError(f"{TASK_TOKEN_LIFETIME}: expected a minute or more")
    return TaskTokenRule(use=use, lifetime_ms=lifetime_ms)


def _selection(given: GivenOptions) -> Selection:
    match given.present(tuple(_SELECTIONS)):
        case [name]:
            return _SELECTIONS[name](given.text(name) or "")
        case []:
            raise OptionError("give one of subscribe, subscribePattern, assign")
        case names:
            raise OptionError(
                f"{', '.join(names)}: give only one of subscribe, subscribePattern, assign"
            )


def _bound(
    given: GivenOptions, names: tuple[str, ...], default: Edge, *, refused: Edge | None = None
) -> Bound:
    """Return an end of the query; ``names`` has its options in order of precedence, as in ``bounds``."""
    offsets = partial(parse_offsets, refused=refused)
    parsers: Sequence[Callable[[str, str], Bound]] = (parse_timestamp, parse_timestamps, offsets)
    for name, parse in zip(names, parsers, strict=True):
        text = given.text(name)
        if text is not None:
            return parse(name, text)
    return default


def _check_ends_fit(start: Bound, end: Bound) -> None:
    if isinstance(start, Edge | GlobalTimestamp) or isinstance(end, Edge | GlobalTimestamp):
        return
    odd = sorted(start.partitions ^ end.partitions)
    if odd:
        raise OptionError(
            f"{start.option} and {end.option} must name the same partitions; "
            f"only one of them names {', '.join(map(str, odd))}"
        )
    if not (isinstance(start, SpecificOffsets) and isinstance(end, SpecificOffsets)):
        return
    for partition, first in start.offsets.items():
        last = end.offsets[partition]
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise OptionError(
                f"{start.option} and {end.option}: {partition} begins at {first} and ends at {last}"
            )
