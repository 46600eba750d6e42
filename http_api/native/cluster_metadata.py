"""Native: the cluster in one answer, and a long poll for its changes."""

import orjson
from aiohttp import web

from http_api.answers import bytes_answer
from http_api.call import Call
from http_api.media import JSON_TYPE
from http_api.schemas import integer_param
from raft_meta.machine.image import Broker, Image, Topic

_WAIT_MS_DEFAULT = 30_000


class _LastBody:
    """The body of the last image asked for: after an election, everybody who waits asks for the same one."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._body = b""

    def body_of(self, image: Image) -> bytes:
        """The image as JSON. Images never change, so the very same one has the same body."""
        if image is not self._image:
            self._body = _encode(image)
            self._image = image
        return self._body


_last = _LastBody()


async def get_metadata(call: Call) -> web.Response:
    """Brokers with their URLs, topics with their leaders.

    With ``since=VERSION`` it waits until there is a later version, at most ``timeout`` ms.
    """
    query = call.query()
    metadata = call.ports.metadata
    if "since" in query:
        since = integer_param(query, "since", 0, least=0)
        timeout_ms = integer_param(query, "timeout", _WAIT_MS_DEFAULT, least=0)
        limit_ms = call.ports.limits.fetch_wait_ms_max
        image = await metadata.image_since(since, timeout_ms=min(timeout_ms, limit_ms))
    else:
        image = metadata.image
    return bytes_answer(_last.body_of(image), JSON_TYPE)


def _encode(image: Image) -> bytes:
    return orjson.dumps(
        {
            "cluster_id": image.cluster_id,
            "version": image.index,
            "controller_id": image.controller_id,
            "controller_epoch": image.controller_epoch,
            "brokers": [_broker(image.brokers[id_]) for id_ in sorted(image.brokers)],
            "topics": [
                _topic(image, image.topics[topic_id])
                for _, topic_id in sorted(image.topic_ids.items())
            ],
        }
    )


def _broker(broker: Broker) -> dict[str, object]:
    return {
        "broker_id": broker.broker_id,
        "url": broker.api_url,
        "rack": broker.rack,
        "is_fenced": broker.is_fenced,
        "is_draining": broker.is_draining,
    }


def _topic(image: Image, topic: Topic) -> dict[str, object]:
    states = ((p, image.partition(topic.topic_id, p)) for p in range(topic.partition_count))
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": partition,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "replicas": state.replicas,
                "isr": state.isr,
            }
            for partition, state in states
            if state is not None
        ],
    }
