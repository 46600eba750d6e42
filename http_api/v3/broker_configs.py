"""v3: configs of brokers: the defaults of topic configs, under Kafka's names. They cannot be changed.

All brokers have the same ones, so these are the configs of the cluster too.
"""

from aiohttp import web

from http_api.serving.call import Call
from http_api.v3.clusters import find_broker
from http_api.v3.resources import Links, Resource, item_answer
from milena.model.errors import ConfigNotFoundError
from raft_meta.machine.topics.configs import defaults

_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic config → broker config, as Kafka's documentation pairs them ("Server Default Property")."""

_FACTOR = 3
"""The replicas of a topic without a setting: the default of ``min.insync.replicas`` depends on it."""
_SOURCE = "DEFAULT_CONFIG"
_ALL_BROKERS = "-"


def _values() -> dict[str, str]:
    values = defaults(_FACTOR)
    return {broker: values[topic] for topic, broker in _NAMES.items() if topic in values}


def _config(links: Links, broker_id: int | None, name: str, value: str) -> Resource:
    if broker_id is None:
        head = links.item("KafkaClusterConfig", ("broker-configs", name), f"/broker-config={name}")
        head["config_type"] = "BROKER"
    else:
        parts = ("brokers", broker_id, "configs", name)
        head = links.item("KafkaBrokerConfig", parts, f"/broker={broker_id}/config={name}")
        head["broker_id"] = broker_id
    return {
        **head,
        "name": name,
        "value": value,
        "is_default": True,
        "is_read_only": True,
        "is_sensitive": False,
        "source": _SOURCE,
        "synonyms": [{"name": name, "value": value, "source": _SOURCE}],
    }


def _one(call: Call, broker_id: int | None) -> web.Response:
    name = call.names["config"]
    value = _values().get(name)
    if value is None:
        raise ConfigNotFoundError(f"there is no broker config '{name}'")
    return item_answer(_config(Links(call), broker_id, name, value))


async def list_configs(call: Call) -> web.Response:
    """Return all configs of a broker; for the broker ``-``, those of all brokers."""
    links = Links(call)
    named = call.names["broker"]
    is_all = named == _ALL_BROKERS
    broker_ids = sorted(
        call.ports.metadata.image.brokers if is_all else [find_broker(call).broker_id]
    )
    values = sorted(_values().items())
    items = [_config(links, broker_id, *pair) for broker_id in broker_ids for pair in values]
    url = links.url("brokers", named, "configs")
    return item_answer(links.listing("KafkaBrokerConfigList", url, items))


async def get_config(call: Call) -> web.Response:
    """Return one config of a broker."""
    return _one(call, find_broker(call).broker_id)


async def list_cluster_configs(call: Call) -> web.Response:
    """Return all configs of the cluster."""
    links = Links(call)
    items = [_config(links, None, *pair) for pair in sorted(_values().items())]
    return item_answer(links.listing("KafkaClusterConfigList", links.url("broker-configs"), items))


async def get_cluster_config(call: Call) -> web.Response:
    """Return one config of the cluster."""
    return _one(call, None)
