"""v3: partitions that are moving to other brokers (KIP-455). The native ``/reassignments`` starts and cancels moves."""

from collections.abc import Iterable

from aiohttp import web

from http_api.access.needs import ALL_TOPICS
from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.call import Call
from http_api.serving.lookup import find_partition, find_topic, partitions_of
from http_api.v3.resources import Links, Resource, item_answer
from milena.model.access import ResourceType
from raft_meta.machine.image import Partition, Reassignment, Topic

ALL = "-"
"""Stands for all partitions in place of a partition's number."""


def _reassignment(links: Links, topic: str, partition: int, move: Reassignment) -> Resource:
    parts = ("topics", topic, "partitions", partition, "reassignment")
    return {
        **links.item(
            "KafkaReassignment", parts, f"/topic={topic}/partition={partition}/reassignment"
        ),
        "topic_name": topic,
        "partition_id": partition,
        "adding_replicas": [b for b in move.target if b not in move.former],
        "removing_replicas": [b for b in move.former if b not in move.target],
        "replicas": links.related("topics", topic, "partitions", partition, "replicas"),
    }


async def get_reassignments(call: Call) -> web.Response:
    """Return the moves of one partition, of a topic, or of all topics."""
    links = Links(call)
    topic_name, number = call.names["topic"], call.names["partition"]
    is_seen = call.rights.seen(ResourceType.TOPIC)
    if number != ALL:
        topic, partition, state = await find_partition(call)
        if state.moving is None:
            raise ResourceNotFoundError(f"{topic.name}-{partition} is not on its way anywhere")
        return item_answer(_reassignment(links, topic.name, partition, state.moving))
    image = call.ports.metadata.image
    topics = (
        [
            image.topics[topic_id]
            for name, topic_id in sorted(image.topic_ids.items())
            if is_seen(name)
        ]
        if topic_name == ALL_TOPICS
        else [await find_topic(call)]
    )
    items = [
        _reassignment(links, topic.name, partition, state.moving)
        for topic, partition, state in _partitions(call, topics)
        if state.moving is not None
    ]
    url = links.url("topics", topic_name, "partitions", ALL, "reassignment")
    return item_answer(links.listing("KafkaReassignmentList", url, items))


def _partitions(call: Call, topics: Iterable[Topic]) -> Iterable[tuple[Topic, int, Partition]]:
    for topic in topics:
        for partition, state in partitions_of(call, topic):
            yield topic, partition, state
