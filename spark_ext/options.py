"""The options of the source and the sink, from text to values (pure).

Names and meanings are those of Spark's Kafka source, so that a query moves over by its ``format`` and its servers.
What makes no sense here is refused with the reason, and so is a name that nobody knows: a misspelt option that is
silently ignored reads the wrong records.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.routing import USER_IN_URL, without_user
from milena.model.types import Codec
from spark_ext.bounds import (
    Bound,
    Edge,
    GlobalTimestamp,
    NoMatch,
    SpecificOffsets,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)
from spark_ext.credential_options import CREDENTIAL_OPTIONS, parse_credentials
from spark_ext.errors import OptionError
from spark_ext.selection import (
    Selection,
    parse_assign,
    parse_subscribe,
    parse_subscribe_pattern,
)

TARGET_RECORDS_PER_TASK = 1_000_000
"""A Python task costs Spark 60-80 ms of CPU, as much as 100,000 records: at this size it is a tenth."""

FETCH_BYTES = 1 << 20
POLL_TIMEOUT_MS = 120_000
FETCH_RETRIES = 3
FETCH_RETRY_INTERVAL_MS = 10
TRIGGER_DELAY_MS = 15 * 60_000

NOTHING: Mapping[str, str] = MappingProxyType({})
"""Environment of those who are not told another: only options say who asks."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How tasks reach the cluster, and what they put up with."""

    urls: tuple[str, ...]
    credentials: Credentials = ANONYMOUS
    fetch_bytes: int = FETCH_BYTES
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A batch query. ``retries`` and ``retry_interval_ms`` are the driver's, when it asks for offsets."""

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
    """A stream. ``read`` is the batch query from the stream's start to now; limits are in offsets of a micro-batch.

    Under ``offsets_min`` a micro-batch waits for so many, but no longer than ``trigger_delay_ms_max`` after the last.
    """

    read: ReadOptions
    offsets_max: int | None
    offsets_min: int | None
    trigger_delay_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """An append. ``topic`` overrides that column; ``include_timestamps`` takes the column ``timestamp``.

    ``transactional_id``: it is written in a transaction. ``batch_id``: once, after those of lower numbers; None: a
    stream, whose batches Spark numbers, or as often as it is run.
    """

    urls: tuple[str, ...]
    credentials: Credentials
    topic: str | None
    include_timestamps: bool
    compression: str
    transactional_id: str | None
    batch_id: int | None


_SERVERS = ("kafka.bootstrap.servers", "url")
_SELECTIONS: dict[str, Callable[[str], Selection]] = {
    "subscribe": parse_subscribe,
    "subscribePattern": parse_subscribe_pattern,
    "assign": parse_assign,
}
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_GROUP = ("groupIdPrefix", "kafka.group.id")

_READ = (
    *_SERVERS,
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
_WRITE = (
    *_SERVERS,
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
"""Spark hands on what a query is called as if it were an option."""
_WRITE_STREAM = (*_WRITE, _CHECKPOINT, _QUERY_NAME)
TRANSACTIONAL_ID_CHARS_MAX = 200
"""A node takes 255; a group is named after it."""

_DESERIALIZED = "keys and values are always binary; cast them in the query"
_SERIALIZED = "keys and values are strings or binary; serialize them in the query"
_SECURED = (
    "say who asks with milena.token, milena.tokenFile, or milena.user and milena.password; of Kafka's, "
    "kafka.sasl.jaas.config with a PlainLoginModule"
)
_CERTIFIED = "certificates are PEM files, named by milena.ca, milena.cert and milena.key"
_REFUSED = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.enable.auto.commit": "the source commits no offsets",
    "kafka.key.deserializer": _DESERIALIZED,
    "kafka.value.deserializer": _DESERIALIZED,
    "kafka.key.serializer": _SERIALIZED,
    "kafka.value.serializer": _SERIALIZED,
    "kafka.interceptor.classes": "interceptors would run in a Kafka client, and there is none",
    "kafka.enable.idempotence": "a task's writes are always idempotent",
    "kafka.acks": "a write is always acknowledged by every in-sync replica",
    "path": "topics are named by subscribe, subscribePattern or assign, and by topic when writing",
}
_REFUSED_PREFIXES = {
    "kafka.security.": _SECURED,
    "kafka.sasl.": _SECURED,
    "kafka.ssl.": _CERTIFIED,
    "kafka.": "it would configure a Kafka client, and there is none; leave it out",
}
_SET_BY_SPARK = ("serialization.format",)
_MS_PER_UNIT = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""As Spark reads times: a number alone is in ms."""


def parse_read_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> ReadOptions:
    """The options of ``spark.read``; their names in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = _Given(options, _READ, environment)
    start, end = _starting(given, Edge.EARLIEST, refused=Edge.LATEST), _ending(given)
    _check_ends_fit(start, end)
    return _read_options(given, start, end)


def parse_stream_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> StreamOptions:
    """The options of ``spark.readStream``; their names in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = _Given(options, _READ, environment)
    if ends := given.present(_ENDS):
        raise OptionError(f"{ends[0]}: not possible in a stream, which does not end")
    offsets_min = given.positive("minOffsetsPerTrigger", None)
    offsets_max = given.positive("maxOffsetsPerTrigger", None)
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise OptionError(
            f"minOffsetsPerTrigger and maxOffsetsPerTrigger: {offsets_min} is more than {offsets_max}"
        )
    return StreamOptions(
        read=_read_options(given, _starting(given, Edge.LATEST), Edge.LATEST),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        trigger_delay_ms_max=given.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
    )


def includes_headers(options: Mapping[str, str], environment: Mapping[str, str] = NOTHING) -> bool:
    """Whether rows have headers, in a batch query or a stream: when Spark asks, it does not tell which it will be.

    Raises:
        OptionError: the options are those of neither.
    """
    try:
        return parse_read_options(options, environment).include_headers
    except OptionError as error:
        in_batch = error.message
    try:
        return parse_stream_options(options, environment).read.include_headers
    except OptionError as error:
        if error.message == in_batch:
            raise
        raise OptionError(f"{in_batch}; and in a stream, {error.message}") from None


def _read_options(given: "_Given", start: Bound, end: Bound) -> ReadOptions:
    return ReadOptions(
        selection=_selection(given),
        start=start,
        end=end,
        on_no_match=_on_no_match(given),
        fetching=Fetching(
            urls=given.urls(),
            credentials=given.credentials(),
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
    """The options of ``df.write``; their names in any case.

    Raises:
        OptionError: one line that names the option.
    """
    given = _Given(options, _WRITE, environment)
    found = _write_options(given, given.text("transactionalId"))
    if found.batch_id is not None and found.transactional_id is None:
        raise OptionError("batchId: give transactionalId too: it counts the batches of one program")
    return found


def parse_write_stream_options(
    options: Mapping[str, str], environment: Mapping[str, str] = NOTHING
) -> WriteOptions:
    """The options of ``df.writeStream``; their names in any case. There is a transactional id.

    Raises:
        OptionError: one line that names the option.
    """
    given = _Given(options, _WRITE_STREAM, environment)
    if given.present(("batchId",)):
        raise OptionError("batchId: not possible: Spark numbers the batches of a stream")
    name, checkpoint = given.text("transactionalId"), given.text(_CHECKPOINT)
    if name is None and checkpoint is None:
        raise OptionError(
            f"transactionalId: required where {_CHECKPOINT} is not given as an option; a name of the query's own, the "
            "same after each restart"
        )
    return _write_options(given, name if name is not None else f"spark:{checkpoint}")


def _write_options(given: "_Given", transactional_id: str | None) -> WriteOptions:
    # Kafka's sink takes the option and needs it for nothing either: a column of headers is written when it is there.
    given.flag("includeHeaders", default=False)
    topic = given.text("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic: give the name of a topic")
    if transactional_id is not None:
        _check_transactional(given, transactional_id)
    return WriteOptions(
        urls=given.urls(),
        credentials=given.credentials(),
        topic=None if topic is None else topic.strip(),
        include_timestamps=given.flag("includeTimestamps", default=False),
        compression=_compression(given),
        transactional_id=transactional_id,
        batch_id=given.count("batchId", None),
    )


def _check_transactional(given: "_Given", name: str) -> None:
    if not (1 <= len(name) <= TRANSACTIONAL_ID_CHARS_MAX and name.isprintable()):
        raise OptionError(
            f"transactionalId: expected 1 to {TRANSACTIONAL_ID_CHARS_MAX} printable characters, got {name!r}"
        )
    if given.present(("compression",)):
        raise OptionError(
            "compression: not possible in a transaction: nodes encode its records, as the topic's compression.type says"
        )


class _Given:
    """Options that the user gave, looked up by any spelling of case."""

    def __init__(
        self, options: Mapping[str, str], known: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self._values = {name.lower(): value for name, value in options.items()}
        spelling = {name.lower(): name for name in known}
        for name in self._values:
            if name not in spelling and name not in _SET_BY_SPARK:
                raise _unknown(name, known)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def present(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name.lower() in self._values]

    def urls(self) -> tuple[str, ...]:
        match self.present(_SERVERS):
            case []:
                raise OptionError("kafka.bootstrap.servers: required; the URL of any node, or url")
            case [name]:
                text = self._values[name.lower()]
            case names:
                raise OptionError(f"{' and '.join(names)}: give one of the two")
        urls = tuple(part.strip() for part in text.split(",") if part.strip())
        if not urls:
            raise OptionError(f"{name}: give the URL of a node, or several separated by commas")
        for url in urls:
            if "@" in url:
                raise OptionError(
                    f"{name}: {without_user(url)} is not a URL of a node: {USER_IN_URL}"
                )
        return urls

    def credentials(self) -> Credentials:
        return parse_credentials(self.text, self.urls(), self._environment)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        values = {"true": True, "false": False}
        found = values.get(text.strip().lower())
        if found is None:
            raise OptionError(f"{name}: expected true or false, got {text!r}")
        return found

    def positive(self, name: str, default: T) -> int | T:
        text = self.text(name)
        return default if text is None else self._number(name, text, minimum=1)

    def count(self, name: str, default: T) -> int | T:
        text = self.text(name)
        return default if text is None else self._number(name, text, minimum=0)

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        found = re.fullmatch(r"([0-9]{1,15}) *([a-z]*)", text.strip().lower())
        unit = None if found is None else _MS_PER_UNIT.get(found[2])
        if found is None or unit is None:
            raise OptionError(
                f"{name}: expected a time such as 500ms, 30s, 15m or 1h, got {text!r}"
            )
        return int(found[1]) * unit

    @staticmethod
    def _number(name: str, text: str, *, minimum: int) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise OptionError(f"{name}: expected a number of {minimum} or more, got {text!r}")
        return number


def _unknown(name: str, known: tuple[str, ...]) -> OptionError:
    reason = _REFUSED.get(name)
    if reason is None:
        prefix = next((prefix for prefix in _REFUSED_PREFIXES if name.startswith(prefix)), None)
        reason = None if prefix is None else _REFUSED_PREFIXES[prefix]
    if reason is not None:
        return OptionError(f"{name}: not possible: {reason}")
    near = difflib.get_close_matches(name, [option.lower() for option in known], n=1)
    spelling = {option.lower(): option for option in known}
    hint = f"; did you mean {spelling[near[0]]}?" if near else ""
    return OptionError(f"{name}: no such option{hint}")


def _selection(given: _Given) -> Selection:
    match given.present(tuple(_SELECTIONS)):
        case [name]:
            return _SELECTIONS[name](given.text(name) or "")
        case []:
            raise OptionError("give one of subscribe, subscribePattern, assign")
        case names:
            raise OptionError(
                f"{', '.join(names)}: give only one of subscribe, subscribePattern, assign"
            )


def _starting(given: _Given, default: Edge, *, refused: Edge | None = None) -> Bound:
    match given.present(_STARTS):
        case ["startingTimestamp" as name, *_]:
            return parse_timestamp(name, given.text(name) or "")
        case ["startingOffsetsByTimestamp" as name, *_]:
            return parse_timestamps(name, given.text(name) or "")
        case [name, *_]:
            return parse_offsets(name, given.text(name) or "", refused=refused)
        case _:
            return default


def _ending(given: _Given) -> Bound:
    match given.present(_ENDS):
        case ["endingTimestamp" as name, *_]:
            return parse_timestamp(name, given.text(name) or "")
        case ["endingOffsetsByTimestamp" as name, *_]:
            return parse_timestamps(name, given.text(name) or "")
        case [name, *_]:
            return parse_offsets(name, given.text(name) or "", refused=Edge.EARLIEST)
        case _:
            return Edge.LATEST


def _on_no_match(given: _Given) -> NoMatch:
    text = given.text("startingOffsetsByTimestampStrategy")
    words = {strategy.value: strategy for strategy in NoMatch}
    found = NoMatch.ERROR if text is None else words.get(text.strip().lower())
    if found is None:
        raise OptionError(
            f"startingOffsetsByTimestampStrategy: expected {' or '.join(words)}, got {text!r}"
        )
    return found


def _compression(given: _Given) -> str:
    text = (given.text("compression") or Codec.NONE.name).strip().lower()
    names = [codec.name.lower() for codec in Codec]
    if text not in names:
        raise OptionError(f"compression: expected {', '.join(names)}, got {text!r}")
    return text


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
