"""Native endpoint: the whole cluster in one response, and a long poll for changes."""

from collections.abc import Callable

import orjson
from aiohttp import web

from http_api.access.rights import everything
from http_api.describing.params import IntegerParam
from http_api.ports.node import ApiLimits, MetadataPort
from http_api.protocol.answers import bytes_answer
from http_api.protocol.media import JSON_TYPE
from http_api.serving.call import Call
from http_api.shapes.native import BROKER_VIEW
from milena.model.access import ResourceType
from milena.model.errors import NoQuorumError
from raft_meta.machine.image import Image, Partition, Topic

SINCE = IntegerParam(
    name="since",
    description="wait until this node knows a version above this one, and ask no other",
    least=0,
    default=None,
)
TIMEOUT = IntegerParam(
    name="timeout",
    description=(
        f"longest wait in ms; longer than {ApiLimits().fetch_wait_ms_max} is taken as that, "
        "unless the node is configured otherwise"
    ),
    least=0,
    default=30_000,
)


class _LastBody:
    """A cache of the last response body, because all waiting clients request the same one after an election."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._version = -1
        self._body = b""

    def body_of(self, image: Image, version: int) -> bytes:
        """Return the image as JSON, cached. Its maps are immutable, so the same map objects give the same body."""
        seen = self._image
        is_known = (
            seen is not None
            and version == self._version
            and seen.partitions is image.partitions
            and seen.topics is image.topics
            and seen.brokers is image.brokers
        )
        if not is_known:
            self._body = _encode(image, version)
            self._image, self._version = image, version
        return self._body


_last = _LastBody()


async def get_metadata(call: Call) -> web.Response:
    """Return brokers with their URLs, and topics with their leaders.

    The response has all changes that any node has acknowledged (``is_current``), unless no majority responds.

    With ``since=VERSION`` the node waits until it knows a later version, at most ``timeout`` ms, and does not ask the
    quorum. The version changes only with the data in the response, so a commit of a consumer group does not end the
    wait.
    """
    query = call.query()
    metadata = call.ports.metadata
    since, timeout_ms = SINCE.read(query), TIMEOUT.read(query)
    if since is not None:
        limit_ms = call.ports.limits.fetch_wait_ms_max
        image = await metadata.image_since(since, timeout_ms=min(timeout_ms, limit_ms))
        is_current = False
    else:
        image, is_current = await image_now(metadata)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    if is_seen is everything:
        body = _last.body_of(image, metadata.version)
    else:
        body = _encode(image, metadata.version, is_seen)
    end = b',"is_current":true}' if is_current else b',"is_current":false}'
    return bytes_answer(body[:-1] + end, JSON_TYPE)


async def image_now(metadata: MetadataPort) -> tuple[Image, bool]:
    """Return the image, and whether it has all changes that any node has acknowledged."""
    try:
        return await metadata.current_image(), True
    except NoQuorumError:
        # Without a majority, return what this node knows. A client needs it to find a leader that still serves reads,
        # and an operator to find the fault.
        return metadata.image, False


def _encode(image: Image, version: int, is_seen: Callable[[str], bool] = everything) -> bytes:
    return orjson.dumps(
        {
            "cluster_id": image.cluster_id,
            "version": version,
            "controller_id": image.controller_id,
            "controller_epoch": image.controller_epoch,
            "brokers": [
                BROKER_VIEW.of(image.brokers[id_], url=image.brokers[id_].api_url)
                for id_ in sorted(image.brokers)
            ],
            "topics": [
                _topic(image, image.topics[topic_id])
                for name, topic_id in sorted(image.topic_ids.items())
                if is_seen(name)
            ],
        }
    )


def _topic(image: Image, topic: Topic) -> dict[str, object]:
    states = ((p, image.partition(topic.topic_id, p)) for p in range(topic.partition_count))
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "configs": dict(topic.configs),
        "partitions": [
            partition_row(partition, state) for partition, state in states if state is not None
        ],
    }


def partition_row(partition: int, state: Partition) -> dict[str, object]:
    """Return a partition's row."""
    return {
        "partition": partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
    }
