"""Topic configs: what is accepted, what is in force, and words for what is not."""

from dataclasses import replace

import pytest
from immutables import Map

from milena.model.errors import InvalidConfigError
from milena.model.types import TimestampType, WallMs
from raft_meta.machine.image import Topic
from raft_meta.machine.topics import configs
from raft_meta.machine.topics.configs import TopicSettings

TOPIC = Topic(
    topic_id="0" * 32,
    name="t",
    partition_count=1,
    replication_factor=3,
    configs=Map(),
    created_ms=WallMs(0),
)


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert {name: value.value for name, value in configs.effective(TOPIC).items()} == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "1",
        "flush.ms": "-1",
        "index.interval.bytes": "4096",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "8388608",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "2",
        "preallocate": "false",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "104857600",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }


@pytest.mark.parametrize(("replicas", "expected"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_min_insync_replicas_follows_the_replication_factor(replicas: int, expected: str) -> None:
    topic = replace(TOPIC, replication_factor=replicas)
    assert configs.effective(topic)["min.insync.replicas"].value == expected
    assert configs.min_insync(topic) == int(expected)


def test_every_default_is_a_value_that_could_be_set() -> None:
    for key in configs.KEYS.values():
        assert key.parse(key.default(3)) == key.default(3)


def test_a_value_that_was_set_is_not_a_default_even_if_equal() -> None:
    topic = replace(TOPIC, configs=configs.validate([("retention.ms", "604800000")], 3))
    value = configs.effective(topic)["retention.ms"]
    assert (value.value, value.default, value.is_default) == ("604800000", "604800000", False)


@pytest.mark.parametrize(
    ("name", "text", "canonical"),
    [
        ("unclean.leader.election.enable", " TRUE ", "true"),
        ("message.timestamp.type", "logappendtime", "LogAppendTime"),
        ("retention.ms", "007", "7"),
        ("retention.ms", "-1", "-1"),
        ("segment.bytes", "65536", "65536"),
        ("retention.bytes", "9223372036854775807", "9223372036854775807"),
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", " Delete, compact ", "compact,delete"),
        ("min.cleanable.dirty.ratio", ".25", "0.25"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
    ],
)
def test_values_become_canonical(name: str, text: str, canonical: str) -> None:
    assert configs.validate([(name, text)], 3) == Map({name: canonical})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention.ms", "-2", "retention.ms must be a whole number in -1..9223372036854775807"),
        ("retention.ms", "", "must be a whole number"),
        ("retention.ms", "1e3", "must be a whole number"),
        ("retention.ms", "٣", "must be a whole number"),
        ("retention.ms", "9" * 30, "must be a whole number"),
        ("segment.bytes", "65535", "65536..2147483647"),
        ("max.message.bytes", "33554433", "1024..33554432"),
        ("min.insync.replicas", "4", r"1..3 \(the topic's replication factor\), not 4"),
        ("min.insync.replicas", "0", "min.insync.replicas must be"),
        ("cleanup.policy", "compress", "must be one of delete, compact, compact,delete, not 'comp"),
        ("min.cleanable.dirty.ratio", "1.1", "min.cleanable.dirty.ratio must be a number in 0..1"),
        ("min.cleanable.dirty.ratio", ".", "in 0..1, not '.'"),
        ("min.cleanable.dirty.ratio", "nan", "must be a number"),
        ("max.compaction.lag.ms", "0", "1..9223372036854775807"),
        ("compression.type", "snappy", "one of producer, uncompressed, gzip, lz4, zstd"),
        ("unclean.leader.election.enable", "yes", "one of false, true"),
        ("retention.hours", "1", "Unknown topic config 'retention.hours'. Supported: cleanup"),
    ],
)
def test_what_is_refused_says_what_would_be_right(name: str, text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        configs.validate([(name, text)], 3)
    with pytest.raises(InvalidConfigError, match=sentence):
        configs.alter(Map(), [(name, text)], 3)


def test_a_name_may_stand_once() -> None:
    with pytest.raises(InvalidConfigError, match="twice"):
        configs.validate([("flush.ms", "1"), ("flush.ms", "2")], 3)
    with pytest.raises(InvalidConfigError, match="twice"):
        configs.alter(Map(), [("flush.ms", "1"), ("flush.ms", None)], 3)


def test_a_reset_brings_the_default_back() -> None:
    altered = configs.alter(Map({"flush.ms": "5"}), [("flush.ms", None), ("retention.ms", "9")], 3)
    assert altered == Map({"retention.ms": "9"})


def test_settings_are_typed_and_limits_may_be_none() -> None:
    settings = TopicSettings.of(TOPIC)
    assert settings.is_strict
    assert (settings.flush_ms, settings.retention_bytes, settings.retention_ms) == (
        None,
        None,
        604_800_000,
    )
    assert settings.timestamp_type is TimestampType.CREATE
    assert settings.timestamps == (None, 3_600_000)
    assert settings.is_unclean_allowed is False


@pytest.mark.parametrize(("replication_factor", "expected"), [(1, 1), (3, 2), (2, 1)])
def test_settings_have_the_defaults_of_the_topics_replication_factor(
    replication_factor: int, expected: int
) -> None:
    topic = replace(TOPIC, replication_factor=replication_factor)
    assert TopicSettings.of(topic).min_insync_replicas == expected


def test_configs_of_kafka_without_effect_are_kept_from_level_12_on() -> None:
    """Programs of Kafka set them, and read them back. Nodes of earlier releases refuse them."""
    wanted = [
        ("compression.type", "snappy"),
        ("file.delete.delay.ms", "10000"),
        ("preallocate", "true"),
        ("segment.index.bytes", "1048576"),
        ("segment.jitter.ms", "5"),
    ]
    assert configs.validate(wanted, 3, level=12) == Map(dict(wanted))
    assert configs.alter(Map(), wanted, 3, level=12) == Map(dict(wanted))
    for name, value in wanted:
        with pytest.raises(InvalidConfigError) as refused:
            configs.validate([(name, value)], 3, level=11)
        assert name not in refused.value.message.partition("Supported")[2]
        assert configs.effective(TOPIC)[name].is_default
    plain = TopicSettings.of(TOPIC)
    kept = TopicSettings.of(replace(TOPIC, configs=Map(dict(wanted))))
    assert replace(kept, compression_type="producer") == plain, "they change nothing else"


BOUNDS = [("message.timestamp.after.max.ms", "5"), ("message.timestamp.before.max.ms", "7")]


def test_bounds_of_timestamps_follow_what_was_set() -> None:
    topic = replace(TOPIC, configs=configs.validate(BOUNDS, 3, level=11))
    assert TopicSettings.of(topic).timestamps == (7, 5)


@pytest.mark.parametrize("level", [1, 2, 10])
@pytest.mark.parametrize("bound", BOUNDS)
def test_an_earlier_level_refuses_them_in_the_words_of_its_release(
    bound: tuple[str, str], level: int
) -> None:
    with pytest.raises(InvalidConfigError, match="Unknown topic config") as found:
        configs.validate([bound], 3, level=level)
    assert "timestamp" not in found.value.message.partition("Supported:")[2].replace(
        "message.timestamp.type", ""
    )


def test_settings_follow_what_was_set() -> None:
    changes = [
        ("flush.messages", "100"),
        ("flush.ms", "50"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.insync.replicas", "3"),
        ("unclean.leader.election.enable", "true"),
    ]
    topic = replace(TOPIC, configs=configs.validate(changes, 3))
    settings = TopicSettings.of(topic)
    assert not settings.is_strict
    assert (settings.flush_ms, settings.min_insync_replicas) == (50, 3)
    assert settings.timestamp_type is TimestampType.APPEND
    assert settings.timestamps == (None, None), "no reader sees what producers say"
    assert settings.is_unclean_allowed
    assert configs.allows_unclean(topic)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"flush.messages": "1", "flush.ms": "5"}, True),
        ({"flush.messages": "2"}, False),
        ({"unclean.leader.election.enable": "false"}, True),
        ({"unclean.leader.election.enable": "true"}, False),
    ],
)
def test_a_topic_that_may_lose_acknowledged_records_takes_no_transactions(
    changes: dict[str, str], expected: bool
) -> None:
    topic = replace(TOPIC, configs=Map(changes))
    assert TopicSettings.of(topic).takes_transactions is expected


def test_the_least_compaction_lag_is_not_above_the_greatest() -> None:
    lags = [("min.compaction.lag.ms", "2"), ("max.compaction.lag.ms", "1")]
    with pytest.raises(
        InvalidConfigError, match=r"min\.compaction\.lag\.ms=2 must not be above max"
    ):
        configs.validate(lags, 3)
    with pytest.raises(InvalidConfigError, match="must not be above"):
        configs.alter(Map(lags[:1]), lags[1:], 3)


@pytest.mark.parametrize(
    ("policy", "is_compacted", "is_deleting"),
    [("delete", False, True), ("compact", True, False), ("compact,delete", True, True)],
)
def test_a_topic_is_compacted_or_deletes_or_both(
    policy: str, is_compacted: bool, is_deleting: bool
) -> None:
    settings = TopicSettings.of(replace(TOPIC, configs=Map({"cleanup.policy": policy})))
    assert (settings.is_compacted, settings.is_deleting) == (is_compacted, is_deleting)
    assert settings.max_compaction_lag_ms is None


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "cleanup.policy",
            "compact",
            r"^cleanup.policy must be delete \(compaction is not supported\), not 'compact'\.$",
        ),
        (
            "segment.ms",
            "1000",
            (
                r"^Unknown topic config 'segment\.ms'\. Supported: cleanup\.policy, compression\.type, "
                r"flush\.messages, flush\.ms, index\.interval\.bytes, max\.message\.bytes, "
                r"message\.timestamp\.type, min\.insync\.replicas, retention\.bytes, retention\.ms, "
                r"segment\.bytes, unclean\.leader\.election\.enable\.$"
            ),
        ),
    ],
)
def test_a_cluster_of_the_first_level_answers_as_its_oldest_nodes_do(
    name: str, text: str, sentence: str
) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        configs.validate([(name, text)], 3, level=1)
    with pytest.raises(InvalidConfigError, match=sentence):
        configs.alter(Map(), [(name, text)], 3, level=1)
    assert configs.validate([(name, text)], 3)


def test_every_topic_config_has_a_broker_config_with_its_default() -> None:
    found = configs.broker_configs()
    assert set(configs.BROKER_NAMES) == set(configs.KEYS)
    assert list(found) == sorted(found)
    assert len(found) == len(configs.KEYS)
    assert found["log.retention.ms"].value == "604800000"
    assert found["min.insync.replicas"].value == "2"
    assert found["message.max.bytes"].doc.startswith(
        "Default of the topic config `max.message.bytes`. "
    )
