"""Which broker a client means with a request: the leader of its partitions, or the coordinator of its group.

Only nodes behind one address need this (``node.kafka.forwarding``): a client that knows each broker's address connects
to the right one. A client puts those partitions into a request that one broker leads, as far as it knows. So the leader
of the first one decides, and refuses the others if the client's knowledge is old.
"""

from collections.abc import Callable, Iterable, Mapping

from milena.model.errors import MilenaError
from node.kafka.apis.api import KafkaCall, KafkaServices
from node.kafka.apis.leading import leader_of
from node.kafka.wire import fetch, produce
from raft_meta.machine.image import Topic

Owner = Callable[[KafkaServices, KafkaCall], int | None]
"""Returns a broker's id; None: every node serves the request, or nothing is known of its broker. Reads the request.

Raises:
    MalformedFrameError: the frame does not hold the request.
"""
BROKER = 4
"""The type of a resource of DescribeConfigs that is a broker."""


def _leader(services: KafkaServices, parts: Iterable[tuple[Topic | None, int]]) -> int | None:
    for topic, partition in parts:
        if topic is not None and (leader := leader_of(services, topic, partition)) is not None:
            return leader[0]
    return None


def _of_produce(services: KafkaServices, call: KafkaCall) -> int | None:
    image = services.metadata.image
    request = produce.decode_request(call.reader, call.version)
    has_id = call.version >= produce.IDS_FROM
    return _leader(
        services,
        (
            (image.topics.get(topic_id.hex()) if has_id else image.topic(name), number)
            for name, topic_id, parts in request.topics
            for number, _ in parts
        ),
    )


def _of_fetch(services: KafkaServices, call: KafkaCall) -> int | None:
    image = services.metadata.image
    request = fetch.decode_request(call.reader, call.version)
    has_id = call.version >= fetch.IDS_FROM
    return _leader(
        services,
        (
            (image.topics.get(topic_id.hex()) if has_id else image.topic(name), part.partition)
            for name, topic_id, parts in request.topics
            for part in parts
        ),
    )


def _of_topics(name: str, parts: str, number: str | None = None) -> Owner:
    """Return the owner of a request for partitions of named topics.

    ``name``, ``parts``: the fields of a topic; ``number``: that of a part, None if the parts are the numbers.
    """

    def owner(services: KafkaServices, call: KafkaCall) -> int | None:
        image = services.metadata.image
        return _leader(
            services,
            (
                (image.topic(getattr(topic, name)), getattr(part, number) if number else part)
                for topic in call.message().topics or ()
                for part in getattr(topic, parts) or ()
            ),
        )

    return owner


def _coordinator(services: KafkaServices, group_id: str) -> int | None:
    try:
        return services.groups.find_coordinator(group_id)
    except MilenaError:
        # The id is invalid, which any node can say.
        return None


def _of_group(services: KafkaServices, call: KafkaCall) -> int | None:
    return _coordinator(services, call.message().group_id)


def _of_offset_fetch(services: KafkaServices, call: KafkaCall) -> int | None:
    request = call.message()
    if call.version < 8:
        return _coordinator(services, request.group_id)
    return _coordinator(services, request.groups[0].group_id) if request.groups else None


def _of_groups(name: str) -> Owner:
    """Return the owner of a request with several groups. ``name``: the field that has their ids."""

    def owner(services: KafkaServices, call: KafkaCall) -> int | None:
        groups = getattr(call.message(), name)
        return _coordinator(services, groups[0]) if groups else None

    return owner


def _of_configs(services: KafkaServices, call: KafkaCall) -> int | None:
    for resource in call.message().resources or ():
        name = resource.resource_name
        if resource.resource_type == BROKER and name.isascii() and name.isdigit():
            broker = services.metadata.image.brokers.get(int(name))
            return None if broker is None or broker.is_fenced else broker.broker_id
    return None


OWNERS: Mapping[int, Owner] = {
    0: _of_produce,
    1: _of_fetch,
    2: _of_topics("name", "partitions", "partition_index"),
    8: _of_group,
    9: _of_offset_fetch,
    11: _of_group,
    12: _of_group,
    13: _of_group,
    14: _of_group,
    15: _of_groups("groups"),
    23: _of_topics("topic", "partitions", "partition"),
    28: _of_group,
    32: _of_configs,
    42: _of_groups("groups_names"),
    47: _of_group,
    61: _of_topics("name", "partition_indexes"),
    68: _of_group,
    69: _of_groups("group_ids"),
}
"""By API key. Every node serves all other requests."""
