"""v3: the cluster and its brokers."""

from urllib.parse import urlsplit

from aiohttp import web

from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.urls import base_url
from http_api.serving.call import Call
from http_api.v3.resources import Links, Resource, cluster_id, item_answer
from milena.model.errors import BrokerNotFoundError
from raft_meta.machine.image import Broker

_BROKER_DIGITS_MAX = 9
"""The most digits of a broker id. Ids have 32 bits."""


async def root(call: Call) -> web.Response:
    """Return the entry point of v3."""
    return json_answer({"clusters": {"related": f"{base_url(call.request)}/v3/clusters"}})


def _cluster(call: Call, links: Links) -> Resource:
    controller = call.ports.metadata.image.controller_id
    resource = links.item("KafkaCluster")
    resource["controller"] = None if controller is None else links.related("brokers", controller)
    for name in ("acls", "brokers", "broker-configs", "consumer-groups", "topics"):
        resource[name.replace("-", "_")] = links.related(name)
    resource["partition_reassignments"] = links.related(
        "topics", "-", "partitions", "-", "reassignment"
    )
    return resource


async def list_clusters(call: Call) -> web.Response:
    """Return the list of clusters, which has only this cluster."""
    links = Links(call)
    metadata = {"self": links.clusters(), "next": None}
    items = [_cluster(call, links)]
    return item_answer({"kind": "KafkaClusterList", "metadata": metadata, "data": items})


async def get_cluster(call: Call) -> web.Response:
    """Return the cluster."""
    return item_answer(_cluster(call, Links(call)))


def _broker(links: Links, broker: Broker) -> Resource:
    parts = ("brokers", broker.broker_id)
    address = urlsplit(broker.api_url)
    return {
        **links.item("KafkaBroker", *parts),
        "broker_id": broker.broker_id,
        "host": address.hostname,
        "port": address.port or (443 if address.scheme == "https" else 80),
        "rack": broker.rack,
        "configs": links.related(*parts, "configs"),
        "partition_replicas": links.related(*parts, "partition-replicas"),
    }


async def list_brokers(call: Call) -> web.Response:
    """Return every registered broker."""
    links = Links(call)
    brokers = call.ports.metadata.image.brokers
    items = [_broker(links, brokers[id_]) for id_ in sorted(brokers)]
    return links.listing("KafkaBrokerList", items, "brokers")


def find_broker(call: Call) -> Broker:
    """Return the broker that the path names.

    Raises:
        BrokerNotFoundError: there is no broker with this id.
    """
    text = call.names["broker"]
    for broker in call.ports.metadata.image.brokers.values():
        if str(broker.broker_id) == text:
            return broker
    raise BrokerNotFoundError(f"there is no broker '{text}'")


async def delete_broker(call: Call) -> web.Response:
    """Remove a broker that will not come back."""
    cluster_id(call)
    text = call.names["broker"]
    # Do not look up the id here: the quorum may have a broker that this node does not know yet. Refuse only a text that
    # cannot be an id.
    if not (text.isascii() and text.isdigit() and len(text) <= _BROKER_DIGITS_MAX):
        raise BrokerNotFoundError(f"there is no broker '{text}'")
    await call.ports.metadata.remove_broker(int(text))
    return empty_answer()


async def get_broker(call: Call) -> web.Response:
    """Return one broker."""
    links = Links(call)
    return item_answer(_broker(links, find_broker(call)))
