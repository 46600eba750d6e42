"""Topic configs for producing and reading: with types, and parsed only when a topic changes."""

from dataclasses import fields

from milena.model.types import Codec
from raft_meta.machine.image import Topic
from raft_meta.machine.topics.configs import TopicSettings
from storage.segments.log_config import LogConfig

_CODECS = {
    "producer": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_parsed: dict[str, tuple[Topic, TopicSettings]] = {}
"""Topic id → (topic, settings). Topic objects never change, so the entry is valid if the topic is the same object."""

_PARSED_MAX = 10_000

_OF_LOGS = {field.name for field in fields(LogConfig)} & {
    field.name for field in fields(TopicSettings)
}
"""Settings of a log that are settings of its topic, under the same names."""


def topic_settings(topic: Topic) -> TopicSettings:
    """Return the topic's settings that are in force."""
    found = _parsed.get(topic.topic_id)
    if found is not None and found[0] is topic:
        return found[1]
    settings = TopicSettings.of(topic)
    if len(_parsed) >= _PARSED_MAX:
        _parsed.clear()
    _parsed[topic.topic_id] = (topic, settings)
    return settings


def record_codec(settings: TopicSettings) -> Codec:
    """Return the codec for batches of columns, such as a node encodes from JSON and base64 requests.

    Columns cannot have snappy. lz4 is the nearest codec: quick, with large results.
    """
    codec = _CODECS[settings.compression_type]
    return Codec.LZ4 if codec is Codec.SNAPPY else codec


def stored_codec(settings: TopicSettings, *, is_v2: bool = False) -> Codec | None:
    """Return the codec to which batches encoded by clients are converted; None: they are stored unchanged.

    ``is_v2``: for a batch of a Kafka client; else for columns.
    """
    if settings.compression_type == "producer":
        return None
    return _CODECS[settings.compression_type] if is_v2 else record_codec(settings)


def log_config(settings: TopicSettings) -> LogConfig:
    """Return the topic's settings in the form that storage uses."""
    return LogConfig(**{name: getattr(settings, name) for name in _OF_LOGS})
