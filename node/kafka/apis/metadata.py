"""Metadata (3): brokers, topics, and the leaders of their partitions.

Addresses are those of the listener that the request came on. A broker without this listener is left out. A partition
that it leads has LISTENER_NOT_FOUND. A missing topic is created
under the node's rule (``auto_create_topics``), if the client allows that.
"""

import asyncio
from collections.abc import Collection

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import MilenaError, TopicNotFoundError
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, TopicRowKept, serves
from node.kafka.rights import bits_of, needs
from node.kafka.wire.metadata import (
    OPERATIONS_UNKNOWN,
    BrokerRow,
    MetadataRequest,
    PartitionMetadata,
    TopicRow,
    decode_request,
    encode_response,
    encode_topic,
)
from node.kafka.wire.primitives import NULL_UUID
from raft_meta.machine.access import audit
from raft_meta.machine.image import Broker, Image, Partition, Topic

LISTENER_CODE_FROM = 6
"""The first version whose clients know LISTENER_NOT_FOUND."""
ROWS_MAX = 10_000
"""Encoded rows of topics that are kept."""
CREATED_AT_ONCE_MAX = 50
"""Topics that one request may create; the others do not exist for it. Clients ask again."""


def _encoded_row(
    services: KafkaServices,
    image: Image,
    topic: Topic,
    *,
    version: int,
    operations: int,
    listener: str,
) -> bytes:
    """Return the row of a topic. It is kept: a topic with a thousand partitions takes a millisecond to encode."""
    states = tuple(
        image.partitions.get((topic.topic_id, number)) for number in range(topic.partition_count)
    )
    key = (topic.topic_id, version, operations, listener)
    found = services.topic_rows.get(key)
    if (
        found is not None
        and found.topic is topic
        and found.brokers is image.brokers
        and all(a is b for a, b in zip(found.states, states, strict=True))
    ):
        return found.row
    own = services.metadata.node_id
    parts = tuple(
        partition_row(image, number, state, own=own, version=version, listener=listener)
        for number, state in enumerate(states)
    )
    row = encode_topic(_topic_row(topic, parts, operations), version)
    if len(services.topic_rows) >= ROWS_MAX:
        services.topic_rows.clear()
    services.topic_rows[key] = TopicRowKept(topic, image.brokers, states, row)
    return row


def reachable_at(broker: Broker | None, listener: str) -> tuple[str, int] | None:
    """Return where Kafka clients of a listener reach the broker now; None: they cannot."""
    return None if broker is None or broker.is_fenced else broker.kafka_address(listener)


def partition_row(
    image: Image,
    number: int,
    state: Partition | None,
    *,
    own: int,
    version: int,
    listener: str,
) -> PartitionMetadata:
    """Return a partition as clients of a listener of this node (``own``) see it.

    ``version``: that of their Metadata request.
    """
    if state is None:
        return PartitionMetadata(KafkaCode.LEADER_NOT_AVAILABLE, number, -1, -1, (), (), ())
    offline = tuple(
        broker_id
        for broker_id in state.replicas
        if (broker := image.brokers.get(broker_id)) is None or broker.is_fenced
    )
    leader, code = state.leader, KafkaCode.NONE
    if leader is None:
        leader, code = -1, KafkaCode.LEADER_NOT_AVAILABLE
    elif leader != own and reachable_at(image.brokers.get(leader), listener) is None:
        has_code = version >= LISTENER_CODE_FROM
        code = KafkaCode.LISTENER_NOT_FOUND if has_code else KafkaCode.LEADER_NOT_AVAILABLE
        leader = -1
    return PartitionMetadata(
        code, number, leader, state.leader_epoch, state.replicas, tuple(state.isr), offline
    )


def _topic_row(
    topic: Topic, partitions: tuple[PartitionMetadata, ...], operations: int
) -> TopicRow:
    return TopicRow(
        KafkaCode.NONE,
        topic.name,
        bytes.fromhex(topic.topic_id),
        is_internal=topic.name == audit.TOPIC,
        partitions=partitions,
        operations=operations,
    )


def brokers_of(services: KafkaServices, call: KafkaCall) -> list[BrokerRow]:
    """Return the brokers that the client can reach. This node is always one: the client did reach it."""
    image, own = services.metadata.image, services.metadata.node_id
    rows = []
    for broker_id in sorted({*image.brokers, own}):
        broker = image.brokers.get(broker_id)
        rack = None if broker is None else broker.rack
        if broker_id == own:
            rows.append(BrokerRow(own, call.address.host, call.address.port, rack))
        elif (address := reachable_at(broker, call.address.listener)) is not None:
            rows.append(BrokerRow(broker_id, *address, rack))
    return rows


async def _named(services: KafkaServices, name: str, may_create: bool) -> Topic | MilenaError:
    found = services.metadata.image.topic(name)
    if found is not None:
        return found
    try:
        if may_create and name != audit.TOPIC:
            return await services.admin.topic_to_write(name, may_create=True)
        return await services.admin.topic(name)
    except MilenaError as error:
        return error


async def _missing(
    services: KafkaServices, call: KafkaCall, request: MetadataRequest, names: Collection[str]
) -> dict[str, Topic | MilenaError]:
    """Look for topics of these names, which this node's image does not have; create them if that is allowed."""
    created: list[str] = []
    if request.may_create:
        created = [name for name in sorted(names) if call.rights.may_create(name)]
        created = created[:CREATED_AT_ONCE_MAX]
    rows = await asyncio.gather(
        *(_named(services, name, name in created) for name in sorted(names))
    )
    found = dict(zip(sorted(names), rows, strict=True))
    if request.may_create and services.admin.defaults.is_auto_create:
        for name, row in found.items():
            if isinstance(row, TopicNotFoundError) and not call.rights.may_create(name):
                # As in Kafka. "There is no such topic" would make clients ask again and again.
                found[name] = _may_not_create(call, name)
    return found


def _may_not_create(call: KafkaCall, name: str) -> MilenaError:
    try:
        call.rights.authorize(Operation.CREATE, ResourceType.TOPIC, (name,))
    except MilenaError as error:
        return error
    return _gone(name)


@serves(
    3,
    "Metadata",
    versions=(0, 13),
    access=needs("DESCRIBE TOPIC", "CREATE TOPIC", shows="DESCRIBE TOPIC"),
    is_cold=False,
    bytes_max=3 << 20,  # ten thousand of the longest names
)
async def _metadata(services: KafkaServices, call: KafkaCall) -> Body:
    request = decode_request(call.reader, call.version)
    rights, kind = call.rights, ResourceType.TOPIC
    named = {name for name, _ in request.topics or () if name is not None}
    # Without the right, the response must not depend on whether the topic exists. So it is not looked for.
    forbidden = {name for name in named if not rights.permits(Operation.DESCRIBE, kind, name)}
    sought = [name for name in named - forbidden if services.metadata.image.topic(name) is None]
    missing = await _missing(services, call, request, sought)
    image, own = services.metadata.image, services.metadata.node_id
    is_seen = rights.seen(kind)

    def row(topic: Topic) -> bytes:
        operations = OPERATIONS_UNKNOWN
        if request.wants_topic_operations:
            operations = bits_of(rights.operations(kind, topic.name))
        return _encoded_row(
            services,
            image,
            topic,
            version=call.version,
            operations=operations,
            listener=call.address.listener,
        )

    def refused(code: int, name: str | None, topic_id: bytes = NULL_UUID) -> bytes:
        return encode_topic(TopicRow(call.note(code), name, topic_id), call.version)

    rows = []
    if request.topics is None:
        everything = (image.topics[topic_id] for topic_id in sorted(image.topics))
        rows = [row(topic) for topic in everything if is_seen(topic.name)]
    for name, topic_id in dict.fromkeys(request.topics or ()):
        if name is None:
            by_id = image.topics.get(topic_id.hex())
            unknown = KafkaCode.UNKNOWN_TOPIC_ID
            is_known = by_id is not None and is_seen(by_id.name)
            rows.append(row(by_id) if by_id and is_known else refused(unknown, None, topic_id))
            continue
        if name in forbidden:
            rows.append(refused(KafkaCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        topic = image.topic(name) or missing.get(name) or _gone(name)
        if isinstance(topic, MilenaError):
            rows.append(refused(kafka_code_of(topic), name))
        else:
            rows.append(row(topic))
    cluster_operations = OPERATIONS_UNKNOWN
    if request.wants_cluster_operations:
        cluster_operations = bits_of(rights.operations(ResourceType.CLUSTER, CLUSTER_NAME))
    return encode_response(
        call.version,
        brokers=brokers_of(services, call),
        cluster_id=image.cluster_id or None,
        controller_id=own,
        topics=rows,
        operations=cluster_operations,
        throttle_ms=call.throttle_ms,
    )


def _gone(name: str) -> MilenaError:
    """Return the error for a topic that was deleted while others were looked for."""
    return TopicNotFoundError(f"topic {name!r} does not exist")


APIS = (_metadata,)
