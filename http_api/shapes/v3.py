"""Responses of the v3 dialect: items, lists of them, and links."""

from collections.abc import Mapping

from http_api.shapes.blocks import (
    Part,
    Shape,
    answer,
    boolean,
    choice,
    constant,
    count,
    integer,
    listing,
    nothing,
    nullable,
    text,
)

_URL = text(format="uri")
LINK = answer("Link", related=_URL)
ITEM_METADATA = answer("ItemMetadata", self=_URL, resource_name=text())
LIST_METADATA = answer("ListMetadata", self=_URL, next=nothing("nothing is ever on a second page"))
_OPTIONAL_LINK = nullable(LINK)

ROOT = answer("V3Root", clusters=LINK)


def _item(kind: str, own: Mapping[str, Part], *links: str) -> Shape:
    """Return the shape of an item. ``links`` with a question mark may be null."""
    return answer(
        kind,
        kind=constant(kind),
        metadata=ITEM_METADATA,
        cluster_id=text(),
        **own,
        **{
            name.removesuffix("?"): _OPTIONAL_LINK if name.endswith("?") else LINK for name in links
        },
    )


def _list(item: Shape) -> Shape:
    kind = f"{item.name}List"
    return answer(kind, kind=constant(kind), metadata=LIST_METADATA, data=listing(item))


_IN_TOPIC = {"topic_name": text()}
_IN_PARTITION = {**_IN_TOPIC, "partition_id": count()}

CLUSTER = _item(
    "KafkaCluster",
    {},
    "controller?",
    "acls",
    "brokers",
    "broker_configs",
    "consumer_groups",
    "topics",
    "partition_reassignments",
)
BROKER = _item(
    "KafkaBroker",
    {"broker_id": integer(), "host": nullable(text()), "port": integer(), "rack": nullable(text())},
    "configs",
    "partition_replicas",
)
TOPIC = _item(
    "KafkaTopic",
    {
        **_IN_TOPIC,
        "is_internal": boolean(),
        "replication_factor": count(least=1),
        "partitions_count": count(least=1),
    },
    "partitions",
    "configs",
    "partition_reassignments",
)

_SOURCE = choice("DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG")
_SYNONYM = answer("ConfigSynonym", name=text(), value=text(), source=_SOURCE)
_CONFIG = {
    "name": text(),
    "value": text(),
    "is_default": boolean(),
    "is_read_only": boolean(),
    "is_sensitive": boolean(),
    "source": _SOURCE,
    "synonyms": listing(_SYNONYM, "what is in force first, then what would be without it"),
}
CONFIG = _item("KafkaTopicConfig", {**_IN_TOPIC, **_CONFIG})
BROKER_CONFIG = _item("KafkaBrokerConfig", {"broker_id": integer(), **_CONFIG})
CLUSTER_CONFIG = _item("KafkaClusterConfig", {"config_type": constant("BROKER"), **_CONFIG})
CONFIG_FAILURES = answer(
    "TopicConfigFailures",
    failures=listing(
        answer("TopicConfigFailure", topic_name=text(), error_code=integer(), message=text())
    ),
)
_PARTITION_LINKS = ("leader?", "replicas", "reassignment?")
PARTITION = _item("KafkaPartition", _IN_PARTITION, *_PARTITION_LINKS)
PARTITION_WITH_OFFSETS = _item(
    "KafkaPartitionWithOffsets",
    {
        **_IN_PARTITION,
        "earliest_offset": count("the first record there is"),
        "latest_offset": count("the high watermark"),
    },
    *_PARTITION_LINKS,
)
REASSIGNMENT = _item(
    "KafkaReassignment",
    {
        **_IN_PARTITION,
        "adding_replicas": listing(integer(), "brokers that shall hold it, and did not"),
        "removing_replicas": listing(integer(), "brokers that hold it, and shall not"),
    },
    "replicas",
)
REPLICA = _item(
    "KafkaReplica",
    {**_IN_PARTITION, "broker_id": integer(), "is_leader": boolean(), "is_in_sync": boolean()},
    "broker",
)

_IN_GROUP = {"consumer_group_id": text()}
GROUP = _item(
    "KafkaConsumerGroup",
    {
        **_IN_GROUP,
        "is_simple": boolean("no member ever joined it; it only has committed offsets"),
        "partition_assignor": text("empty before partitions were shared out for the first time"),
        "state": choice("EMPTY", "RECONCILING", "STABLE"),
        "type": choice("CONSUMER", "CLASSIC"),
        "is_mixed_consumer_group": boolean("false"),
    },
    "coordinator?",
    "consumer",
    "consumers",
    "lag_summary",
)
CONSUMER = _item(
    "KafkaConsumer",
    {
        **_IN_GROUP,
        "consumer_id": text(),
        "instance_id": nullable(text()),
        "client_id": text(),
    },
    "assignments",
)
CONSUMER_ASSIGNMENT = _item(
    "KafkaConsumerAssignment",
    {**_IN_GROUP, "consumer_id": text(), **_IN_PARTITION},
    "partition",
    "lag",
)
_READER = "empty: no member reads it now"
LAG = _item(
    "KafkaConsumerLag",
    {
        **_IN_GROUP,
        **_IN_PARTITION,
        "consumer_id": text(_READER),
        "instance_id": nullable(text()),
        "client_id": text(),
        "current_offset": count("what is committed: the next record to read"),
        "log_end_offset": nullable(count("the high watermark; null: its leader does not answer")),
        "lag": nullable(count("what is left to read; null: not known")),
    },
)
LAG_SUMMARY = _item(
    "KafkaConsumerGroupLagSummary",
    {
        **_IN_GROUP,
        "max_lag_consumer_id": text(_READER),
        "max_lag_instance_id": nullable(text()),
        "max_lag_client_id": text(),
        "max_lag_topic_name": text(),
        "max_lag_partition_id": count(),
        "max_lag": nullable(count("null: none is known")),
        "total_lag": nullable(count("null: one of them is not known")),
    },
    "max_lag_consumer?",
    "max_lag_partition",
)

CLUSTERS = _list(CLUSTER)
BROKERS = _list(BROKER)
TOPICS = _list(TOPIC)
CONFIGS = _list(CONFIG)
BROKER_CONFIGS = _list(BROKER_CONFIG)
CLUSTER_CONFIGS = _list(CLUSTER_CONFIG)
REASSIGNMENTS = _list(REASSIGNMENT)
PARTITIONS = _list(PARTITION)
REPLICAS = _list(REPLICA)
GROUPS = _list(GROUP)
CONSUMERS = _list(CONSUMER)
CONSUMER_ASSIGNMENTS = _list(CONSUMER_ASSIGNMENT)
LAGS = _list(LAG)
