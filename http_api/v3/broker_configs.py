"""v3: configs of brokers: the defaults of topic configs, under Kafka's names. They cannot be changed.

All brokers have the same configs, so these are also the configs of the cluster.
"""

from aiohttp import web

from http_api.serving.call import Call
from http_api.v3.clusters import find_broker
from http_api.v3.configs import config_fields
from http_api.v3.resources import Links, Resource, item_answer
from milena.model.errors import ConfigNotFoundError
from raft_meta.machine.topics.configs import ConfigValue, broker_configs

_ALL_BROKERS = "-"


def _config(links: Links, broker_id: int | None, config: ConfigValue) -> Resource:
    if broker_id is None:
        head = links.item("KafkaClusterConfig", "broker-configs", config.name)
        head["config_type"] = "BROKER"
    else:
        head = links.item("KafkaBrokerConfig", "brokers", broker_id, "configs", config.name)
        head["broker_id"] = broker_id
    return {**head, **config_fields(config, is_read_only=True)}


def _one(call: Call, broker_id: int | None) -> web.Response:
    name = call.names["config"]
    config = broker_configs().get(name)
    if config is None:
        raise ConfigNotFoundError(f"there is no broker config '{name}'")
    return item_answer(_config(Links(call), broker_id, config))


async def list_configs(call: Call) -> web.Response:
    """Return all configs of a broker; for the broker ``-``, those of all brokers."""
    links = Links(call)
    named = call.names["broker"]
    is_all = named == _ALL_BROKERS
    broker_ids = sorted(
        call.ports.metadata.image.brokers if is_all else [find_broker(call).broker_id]
    )
    values = broker_configs().values()
    items = [_config(links, id_, config) for id_ in broker_ids for config in values]
    return links.listing("KafkaBrokerConfigList", items, "brokers", named, "configs")


async def get_config(call: Call) -> web.Response:
    """Return one config of a broker."""
    return _one(call, find_broker(call).broker_id)


async def list_cluster_configs(call: Call) -> web.Response:
    """Return all configs of the cluster."""
    links = Links(call)
    items = [_config(links, None, config) for config in broker_configs().values()]
    return links.listing("KafkaClusterConfigList", items, "broker-configs")


async def get_cluster_config(call: Call) -> web.Response:
    """Return one config of the cluster."""
    return _one(call, None)
