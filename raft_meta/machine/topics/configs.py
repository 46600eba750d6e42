"""Topic configs: their names, defaults and ranges, and the values in force for a topic.

The image stores only the values that were set, as canonical text. Defaults are in this module, so that a new default
applies to existing topics. For an unknown name, the error lists the existing names. Some configs of Kafka have no
effect here and are accepted all the same, because programs for Kafka set them. They are about files alone: no client
could observe the effect. Configs that promise more are refused.

Which names and values are accepted depends on the cluster's feature level, because nodes of different releases must
give the same response.

Users: ``topics`` validates configs, the API lists them, and the node reads ``TopicSettings``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from immutables import Map

from milena.model.batch import timestamps
from milena.model.batch.timestamps import ANY_TIMESTAMP, TimestampBounds
from milena.model.errors import InvalidConfigError
from milena.model.types import TimestampType
from raft_meta.machine.image import Topic

LEVEL = 2
"""The feature level from which on topics may be compacted, and may close segments by age."""

TIMESTAMPS_LEVEL = 11
"""The feature level from which on topics may limit the timestamps of producers."""

KAFKA_LEVEL = 12
"""The feature level from which on topics may have snappy, and configs of Kafka without an effect here."""

LONG_MAX = (1 << 63) - 1
CLEANUP_POLICY = "cleanup.policy"
COMPRESSION_TYPE = "compression.type"
DELETE_RETENTION_MS = "delete.retention.ms"
FILE_DELETE_DELAY_MS = "file.delete.delay.ms"
FLUSH_MESSAGES = "flush.messages"
FLUSH_MS = "flush.ms"
INDEX_INTERVAL_BYTES = "index.interval.bytes"
MAX_COMPACTION_LAG_MS = "max.compaction.lag.ms"
MAX_MESSAGE_BYTES = "max.message.bytes"
MESSAGE_TIMESTAMP_AFTER = timestamps.AFTER
MESSAGE_TIMESTAMP_BEFORE = timestamps.BEFORE
MESSAGE_TIMESTAMP_TYPE = "message.timestamp.type"
MIN_CLEANABLE_DIRTY_RATIO = "min.cleanable.dirty.ratio"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
MIN_INSYNC_REPLICAS = "min.insync.replicas"
PREALLOCATE = "preallocate"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_INDEX_BYTES = "segment.index.bytes"
SEGMENT_JITTER_MS = "segment.jitter.ms"
SEGMENT_MS = "segment.ms"
UNCLEAN_ELECTION = "unclean.leader.election.enable"

COMPACT = "compact"
DELETE = "delete"
COMPACT_AND_DELETE = "compact,delete"

_NO_EFFECT = "Has no effect: it is accepted because programs for Kafka set it."
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_FRACTION = re.compile(r"(0|1)?(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """The definition of one topic config: its name, its type and range in words, and its effect.

    ``parse`` turns text into canonical text, or raises InvalidConfigError. ``default`` returns the default for a
    topic's replication factor.
    """

    name: str
    kind: str
    allowed: str
    doc: str
    default: Callable[[int], str]
    parse: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """The value of a config that is in force for a topic. ``default``: the value that a reset would restore."""

    name: str
    value: str
    default: str
    is_default: bool
    kind: str
    doc: str


def _integer(name: str, default: int, low: int, high: int, doc: str) -> ConfigKey:
    allowed = f"{low}..{high}"

    def parse(text: str) -> str:
        stripped = text.strip()
        number = int(stripped) if _INTEGER.fullmatch(stripped) else None
        if number is None or not low <= number <= high:
            raise InvalidConfigError(
                f"{name} must be a whole number in {allowed}, not {text[:64]!r}."
            )
        return str(number)

    return ConfigKey(
        name=name,
        kind="LONG",
        allowed=allowed,
        doc=doc,
        default=lambda _: str(default),
        parse=parse,
    )


def _choice(
    name: str, choices: tuple[str, ...], doc: str, *, kind: str = "STRING", note: str = ""
) -> ConfigKey:
    """Return a key with these choices; the first is the default. Upper and lower case do not matter, as in Kafka."""
    allowed = ", ".join(choices)
    canonical = {choice.lower(): choice for choice in choices}

    def parse(text: str) -> str:
        found = canonical.get(text.strip().lower())
        if found is None:
            one = "" if len(choices) == 1 else "one of "
            raise InvalidConfigError(f"{name} must be {one}{allowed}{note}, not {text[:64]!r}.")
        return found

    return ConfigKey(
        name=name, kind=kind, allowed=allowed, doc=doc, default=lambda _: choices[0], parse=parse
    )


def _cleanup_policy() -> ConfigKey:
    key = _choice(
        CLEANUP_POLICY,
        (DELETE, COMPACT, COMPACT_AND_DELETE),
        "How old segments are cleaned up. delete: removed by age and size. compact: the last record of each key "
        "stays; records without a key are refused. compact,delete: both.",
        kind="LIST",
    )

    def parse(text: str) -> str:
        words = [word.strip().lower() for word in text.split(",")]
        return key.parse(COMPACT_AND_DELETE if words == [DELETE, COMPACT] else ",".join(words))

    return replace(key, parse=parse)


def _fraction(name: str, default: str, doc: str) -> ConfigKey:
    def parse(text: str) -> str:
        stripped = text.strip()
        is_number = _FRACTION.fullmatch(stripped) and stripped not in {"", "."}
        if not is_number or float(stripped) > 1:
            raise InvalidConfigError(f"{name} must be a number in 0..1, not {text[:64]!r}.")
        return str(float(stripped))

    return ConfigKey(
        name=name,
        kind="DOUBLE",
        allowed="0..1",
        doc=doc,
        default=lambda _: default,
        parse=parse,
    )


def _min_insync() -> ConfigKey:
    # The largest value is the topic's replication factor. ``parse`` does not know it, so ``validate`` checks it.
    key = _integer(
        MIN_INSYNC_REPLICAS,
        1,
        1,
        32767,
        "How many in-sync replicas acks=all needs. The default is 2 if there are 3 replicas or more, else 1.",
    )
    return replace(
        key,
        allowed="1..replication factor",
        default=lambda replication_factor: "2" if replication_factor >= 3 else "1",
    )


def _compression_type(*choices: str) -> ConfigKey:
    return _choice(
        COMPRESSION_TYPE,
        ("producer", "uncompressed", "gzip", *choices),
        "How batches are stored. producer: as the producer compressed them. snappy: batches of HTTP clients are stored "
        "with lz4.",
    )


_KEYS = (
    _cleanup_policy(),
    _compression_type("snappy", "lz4", "zstd"),
    _integer(
        DELETE_RETENTION_MS,
        24 * 3_600_000,
        0,
        LONG_MAX,
        "How long in ms compaction keeps a record that deletes its key (a key without a value). The time starts when "
        "compaction first sees the record. A reader that takes longer to read the whole topic may miss the deletion.",
    ),
    _integer(
        FILE_DELETE_DELAY_MS,
        60_000,
        0,
        LONG_MAX,
        f"{_NO_EFFECT} Files are deleted as soon as no reader uses them.",
    ),
    _integer(
        FLUSH_MESSAGES,
        1,
        1,
        LONG_MAX,
        "Records between syncs to disk. 1: sync before every acknowledgement. A larger number is faster, but a "
        "power cut on every replica at once may lose acknowledged records.",
    ),
    _integer(
        FLUSH_MS,
        -1,
        -1,
        LONG_MAX,
        "Longest time in ms between write and sync when `flush.messages` is above 1. -1: no limit.",
    ),
    _integer(
        INDEX_INTERVAL_BYTES,
        4096,
        512,
        1 << 24,
        "Bytes of log per entry of the offset and time index.",
    ),
    _integer(
        MAX_COMPACTION_LAG_MS,
        LONG_MAX,
        1,
        LONG_MAX,
        "Age in ms at which a record is compacted even if little of the log is new.",
    ),
    _integer(MAX_MESSAGE_BYTES, 8 << 20, 1024, 32 << 20, "Largest batch in bytes, as stored."),
    _integer(
        MESSAGE_TIMESTAMP_AFTER,
        timestamps.AFTER_MS,
        0,
        LONG_MAX,
        "How far in ms a producer's timestamp may be ahead of the node's clock. Records beyond it are refused.",
    ),
    _integer(
        MESSAGE_TIMESTAMP_BEFORE,
        LONG_MAX,
        0,
        LONG_MAX,
        "How far in ms a producer's timestamp may be behind the node's clock. Older records are refused. A limit "
        "detects producers that send seconds.",
    ),
    _choice(
        MESSAGE_TIMESTAMP_TYPE,
        ("CreateTime", "LogAppendTime"),
        "Source of a record's timestamp: the producer (CreateTime), or the leader when it appends the record "
        "(LogAppendTime).",
    ),
    _fraction(
        MIN_CLEANABLE_DIRTY_RATIO,
        "0.5",
        "Part of a log, in bytes, that must be new before the log is compacted. A lower value keeps logs smaller and "
        "rewrites them more often.",
    ),
    _integer(
        MIN_COMPACTION_LAG_MS,
        0,
        0,
        LONG_MAX,
        "Age in ms below which a record is not compacted. Readers that read each record within this time see "
        "every record.",
    ),
    _min_insync(),
    _choice(
        PREALLOCATE,
        ("false", "true"),
        f"{_NO_EFFECT} Files grow as they are written.",
        kind="BOOLEAN",
    ),
    _integer(
        RETENTION_BYTES,
        -1,
        -1,
        LONG_MAX,
        "Bytes per partition above which old segments are deleted. -1: no limit.",
    ),
    _integer(
        RETENTION_MS,
        7 * 24 * 3_600_000,
        -1,
        LONG_MAX,
        "Age in ms above which old segments are deleted. -1: no limit.",
    ),
    _integer(
        SEGMENT_BYTES,
        100 << 20,
        64 << 10,
        (1 << 31) - 1,
        "Size in bytes at which a segment is closed and the next one starts.",
    ),
    _integer(
        SEGMENT_INDEX_BYTES,
        10 << 20,
        4,
        (1 << 31) - 1,
        f"{_NO_EFFECT} An index is as large as its segment needs.",
    ),
    _integer(
        SEGMENT_JITTER_MS,
        0,
        0,
        LONG_MAX,
        f"{_NO_EFFECT} Segments are closed at the age in `{SEGMENT_MS}`.",
    ),
    _integer(
        SEGMENT_MS,
        7 * 24 * 3_600_000,
        1,
        LONG_MAX,
        "Age in ms at which a segment is closed even if it is small. Only closed segments are compacted.",
    ),
    _choice(
        UNCLEAN_ELECTION,
        ("false", "true"),
        "Whether an out-of-sync replica may lead when no other replica is left. If it does, records may be lost.",
        kind="BOOLEAN",
    ),
)
KEYS = Map({key.name: key for key in _KEYS})
"""Every topic config, by name."""

BROKER_NAMES = Map(
    {
        CLEANUP_POLICY: "log.cleanup.policy",
        COMPRESSION_TYPE: "compression.type",
        DELETE_RETENTION_MS: "log.cleaner.delete.retention.ms",
        FILE_DELETE_DELAY_MS: "log.segment.delete.delay.ms",
        FLUSH_MESSAGES: "log.flush.interval.messages",
        FLUSH_MS: "log.flush.interval.ms",
        INDEX_INTERVAL_BYTES: "log.index.interval.bytes",
        MAX_COMPACTION_LAG_MS: "log.cleaner.max.compaction.lag.ms",
        MAX_MESSAGE_BYTES: "message.max.bytes",
        MESSAGE_TIMESTAMP_AFTER: "log.message.timestamp.after.max.ms",
        MESSAGE_TIMESTAMP_BEFORE: "log.message.timestamp.before.max.ms",
        MESSAGE_TIMESTAMP_TYPE: "log.message.timestamp.type",
        MIN_CLEANABLE_DIRTY_RATIO: "log.cleaner.min.cleanable.ratio",
        MIN_COMPACTION_LAG_MS: "log.cleaner.min.compaction.lag.ms",
        MIN_INSYNC_REPLICAS: "min.insync.replicas",
        PREALLOCATE: "log.preallocate",
        RETENTION_BYTES: "log.retention.bytes",
        RETENTION_MS: "log.retention.ms",
        SEGMENT_BYTES: "log.segment.bytes",
        SEGMENT_INDEX_BYTES: "log.index.size.max.bytes",
        SEGMENT_JITTER_MS: "log.roll.jitter.ms",
        SEGMENT_MS: "log.roll.ms",
        UNCLEAN_ELECTION: "unclean.leader.election.enable",
    }
)
"""Topic config → the broker config that has its default in Kafka. Source: "Server Default Property" in Kafka's
documentation of topic configs."""
BROKER_REPLICATION_FACTOR = 3
"""The replicas that the defaults of brokers are for. The default of ``min.insync.replicas`` depends on the number."""

_LATER = {
    DELETE_RETENTION_MS,
    MAX_COMPACTION_LAG_MS,
    MIN_CLEANABLE_DIRTY_RATIO,
    MIN_COMPACTION_LAG_MS,
    SEGMENT_MS,
}
# Nodes below a level give a message with exactly the names of that level, and responses are part of the image.
_KEYS_BEFORE_KAFKA = tuple(
    _compression_type("lz4", "zstd") if key.name == COMPRESSION_TYPE else key
    for key in _KEYS
    if key.name not in {FILE_DELETE_DELAY_MS, PREALLOCATE, SEGMENT_INDEX_BYTES, SEGMENT_JITTER_MS}
)
_KEYS_BEFORE_TIMESTAMPS = tuple(
    key
    for key in _KEYS_BEFORE_KAFKA
    if key.name not in {MESSAGE_TIMESTAMP_AFTER, MESSAGE_TIMESTAMP_BEFORE}
)
_FIRST_KEYS = (
    _choice(CLEANUP_POLICY, (DELETE,), "", kind="LIST", note=" (compaction is not supported)"),
    *(key for key in _KEYS_BEFORE_TIMESTAMPS[1:] if key.name not in _LATER),
)


def _keys(level: int) -> tuple[ConfigKey, ...]:
    if level >= KAFKA_LEVEL:
        return _KEYS
    if level >= TIMESTAMPS_LEVEL:
        return _KEYS_BEFORE_KAFKA
    return _KEYS_BEFORE_TIMESTAMPS if level >= LEVEL else _FIRST_KEYS


def _key(name: str, level: int) -> ConfigKey:
    keys = _keys(level)
    for key in keys:
        if key.name == name:
            return key
    known = ", ".join(key.name for key in keys)
    raise InvalidConfigError(f"Unknown topic config {name[:64]!r}. Supported: {known}.")


def validate(
    configs: Iterable[tuple[str, str]], replication_factor: int, *, level: int = LEVEL
) -> Map[str, str]:
    """Check configs and return them as canonical text. ``level``: the cluster's feature level.

    Raises:
        InvalidConfigError: a name is unknown or repeated, or a value is out of its range; the message says which.
    """
    valid: dict[str, str] = {}
    for name, value in configs:
        key = _key(name, level)
        if name in valid:
            raise InvalidConfigError(f"{name} is set twice.")
        valid[name] = key.parse(value)
    check_min_insync(valid.get(MIN_INSYNC_REPLICAS), replication_factor)
    _check_lags(valid)
    return Map(valid)


def alter(
    configs: Map[str, str],
    changes: Iterable[tuple[str, str | None]],
    replication_factor: int,
    *,
    level: int = LEVEL,
) -> Map[str, str]:
    """Return ``configs`` after changes: each sets a value, or resets a config to its default (None).

    Raises:
        InvalidConfigError: as ``validate``.
    """
    altered = dict(configs)
    seen: set[str] = set()
    for name, value in changes:
        key = _key(name, level)
        if name in seen:
            raise InvalidConfigError(f"{name} is changed twice.")
        seen.add(name)
        if value is None:
            altered.pop(name, None)
        else:
            altered[name] = key.parse(value)
    check_min_insync(altered.get(MIN_INSYNC_REPLICAS), replication_factor)
    _check_lags(altered)
    return Map(altered)


def _check_lags(configs: Mapping[str, str]) -> None:
    low = int(configs.get(MIN_COMPACTION_LAG_MS, "0"))
    high = int(configs.get(MAX_COMPACTION_LAG_MS, LONG_MAX))
    if low > high:
        raise InvalidConfigError(
            f"{MIN_COMPACTION_LAG_MS}={low} must not be above {MAX_COMPACTION_LAG_MS}={high}."
        )


def check_min_insync(value: str | None, replication_factor: int) -> None:
    """Refuse a min.insync.replicas that the in-sync replicas could never reach.

    Raises:
        InvalidConfigError: the value is above the replication factor.
    """
    if value is not None and int(value) > replication_factor:
        raise InvalidConfigError(
            f"{MIN_INSYNC_REPLICAS} must be in 1..{replication_factor} (the topic's replication factor),"
            f" not {value}."
        )


def min_insync(topic: Topic) -> int:
    """Return the topic's min.insync.replicas in force."""
    value = topic.configs.get(MIN_INSYNC_REPLICAS)
    if value is not None:
        return int(value)
    return 2 if topic.replication_factor >= 3 else 1


def allows_unclean(topic: Topic) -> bool:
    """Return whether the topic's unclean.leader.election.enable is true."""
    return topic.configs.get(UNCLEAN_ELECTION) == "true"


def effective(topic: Topic) -> dict[str, ConfigValue]:
    """Return every config that is in force for the topic, in order of names."""
    values: dict[str, ConfigValue] = {}
    for key in _KEYS:
        default = key.default(topic.replication_factor)
        value = topic.configs.get(key.name)
        values[key.name] = ConfigValue(
            name=key.name,
            value=default if value is None else value,
            default=default,
            is_default=value is None,
            kind=key.kind,
            doc=key.doc,
        )
    return values


@lru_cache(maxsize=16)
def defaults(replication_factor: int) -> Map[str, str]:
    """Return the default of every config, by name."""
    return Map({key.name: key.default(replication_factor) for key in _KEYS})


def broker_configs() -> dict[str, ConfigValue]:
    """Return the defaults of topic configs as configs of a broker, in order of names. They cannot be changed."""
    values = []
    for topic_name, name in BROKER_NAMES.items():
        key = KEYS[topic_name]
        default = key.default(BROKER_REPLICATION_FACTOR)
        values.append(
            ConfigValue(
                name=name,
                value=default,
                default=default,
                is_default=True,
                kind=key.kind,
                doc=f"Default of the topic config `{topic_name}`. {key.doc}",
            )
        )
    return {value.name: value for value in sorted(values, key=attrgetter("name"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic's configs in force, with types. Created when a topic changes, not for each request."""

    compression_type: str
    """``producer``, ``uncompressed``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
    delete_retention_ms: int
    flush_messages: int
    flush_ms: int | None
    index_interval_bytes: int
    is_compacted: bool
    """Whether the last record of each key is kept, and records without a key are refused."""
    is_deleting: bool
    """Whether old segments are deleted by age and size."""
    max_compaction_lag_ms: int | None
    max_message_bytes: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int | None
    retention_ms: int | None
    segment_bytes: int
    segment_ms: int | None
    timestamp_type: TimestampType
    timestamps: TimestampBounds
    """Limits for the timestamps of producers."""
    is_unclean_allowed: bool

    @property
    def is_strict(self) -> bool:
        """Whether every record is synced before it is acknowledged."""
        return self.flush_messages == 1

    @property
    def takes_transactions(self) -> bool:
        """Whether the topic can take part in transactions: only if it never loses acknowledged records.

        If a marker were lost, its committed transaction would count as aborted in this partition.
        """
        return self.is_strict and not self.is_unclean_allowed

    @classmethod
    def of(cls, topic: Topic) -> "TopicSettings":
        """Return the settings of a topic. A value of -1 (no limit) or of 2^63 - 1 becomes None."""
        texts = {**defaults(topic.replication_factor), **topic.configs}

        def limit(name: str) -> int | None:
            number = int(texts[name])
            return None if number in (-1, LONG_MAX) else number

        is_append_time = texts[MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime"
        return cls(
            compression_type=texts[COMPRESSION_TYPE],
            delete_retention_ms=int(texts[DELETE_RETENTION_MS]),
            flush_messages=int(texts[FLUSH_MESSAGES]),
            flush_ms=limit(FLUSH_MS),
            index_interval_bytes=int(texts[INDEX_INTERVAL_BYTES]),
            is_compacted=COMPACT in texts[CLEANUP_POLICY].split(","),
            is_deleting=DELETE in texts[CLEANUP_POLICY].split(","),
            max_compaction_lag_ms=limit(MAX_COMPACTION_LAG_MS),
            max_message_bytes=int(texts[MAX_MESSAGE_BYTES]),
            min_cleanable_dirty_ratio=float(texts[MIN_CLEANABLE_DIRTY_RATIO]),
            min_compaction_lag_ms=int(texts[MIN_COMPACTION_LAG_MS]),
            min_insync_replicas=int(texts[MIN_INSYNC_REPLICAS]),
            retention_bytes=limit(RETENTION_BYTES),
            retention_ms=limit(RETENTION_MS),
            segment_bytes=int(texts[SEGMENT_BYTES]),
            segment_ms=limit(SEGMENT_MS),
            timestamp_type=TimestampType.APPEND if is_append_time else TimestampType.CREATE,
            timestamps=ANY_TIMESTAMP
            if is_append_time
            else TimestampBounds(limit(MESSAGE_TIMESTAMP_BEFORE), limit(MESSAGE_TIMESTAMP_AFTER)),
            is_unclean_allowed=texts[UNCLEAN_ELECTION] == "true",
        )
