"""v3: partitions that are moving to other brokers (KIP-455). The native ``/reassignments`` starts and cancels moves."""

from aiohttp import web

from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.call import Call
from http_api.serving.lookup import find_partition, named_topics, partitions_of
from http_api.v3.resources import Links, Resource, item_answer
from milena.model.access import ResourceType
from raft_meta.machine.image import Reassignment

ALL = "-"
"""Stands for all partitions in place of a partition's number."""


def _reassignment(links: Links, topic: str, partition: int, move: Reassignment) -> Resource:
    parts = ("topics", topic, "partitions", partition)
    return {
        **links.item("KafkaReassignment", *parts, "reassignment"),
        "topic_name": topic,
        "partition_id": partition,
        "adding_replicas": [b for b in move.target if b not in move.former],
        "removing_replicas": [b for b in move.former if b not in move.target],
        "replicas": links.related(*parts, "replicas"),
    }


async def get_reassignments(call: Call) -> web.Response:
    """Return the moves of one partition, of a topic, or of all topics."""
    links = Links(call)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    if call.names["partition"] != ALL:
        topic, partition, state = await find_partition(call)
        if state.moving is None:
            raise ResourceNotFoundError(f"{topic.name}-{partition} is not on its way anywhere")
        return item_answer(_reassignment(links, topic.name, partition, state.moving))
    items = [
        _reassignment(links, topic.name, partition, state.moving)
        for topic in await named_topics(call, is_seen)
        for partition, state in partitions_of(call, topic)
        if state.moving is not None
    ]
    parts = ("topics", call.names["topic"], "partitions", ALL, "reassignment")
    return links.listing("KafkaReassignmentList", items, *parts)
