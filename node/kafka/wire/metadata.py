"""Metadata, versions 0 to 13: brokers, topics, and the leaders of their partitions.

The row of a topic is encoded by itself, so that callers can keep it until the topic changes.
Source: Kafka's message definitions; KIP-516 (topic ids).
"""

from struct import Struct
from typing import NamedTuple

from milena.disk.files import Buffer
from node.kafka.wire.primitives import NULL_UUID, WireReader, WireWriter

FLEXIBLE_FROM = 9
IDS_FROM = 10
BY_ID_FROM = 12
"""The first version in which a client may ask for a topic by its id."""
OPERATIONS_UNKNOWN = -(1 << 31)
"""Authorised operations that the client did not ask for."""

_PARTITION = Struct(">hii")
_PARTITION_WITH_EPOCH = Struct(">hiii")


class MetadataRequest(NamedTuple):
    """``topics`` None: all of them. A topic is asked for by name, or by id (16 bytes) if its name is None."""

    topics: list[tuple[str | None, bytes]] | None
    may_create: bool
    wants_cluster_operations: bool
    wants_topic_operations: bool


class BrokerRow(NamedTuple):
    """A broker that clients can reach."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition. ``leader`` -1: none that clients can reach; ``error_code`` says why."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicRow(NamedTuple):
    """A topic, or the reason why there is none of this name or id."""

    error_code: int
    name: str | None
    topic_id: bytes = NULL_UUID
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    operations: int = OPERATIONS_UNKNOWN


def decode_request(reader: WireReader, version: int) -> MetadataRequest:
    """Return a request.

    Raises:
        MalformedFrameError: the bytes are not one.
    """
    count = reader.array(17 if version >= IDS_FROM else 2)
    topics: list[tuple[str | None, bytes]] | None = None
    if count >= 0 and (count or version):
        topics = []
        for _ in range(count):
            topic_id = reader.uuid() if version >= IDS_FROM else NULL_UUID
            name = reader.nullable_string() if version >= IDS_FROM else reader.string()
            reader.skip_tags()
            # Java's client sends an empty name beside an id, others send null.
            is_by_id = version >= BY_ID_FROM and topic_id != NULL_UUID
            topics.append((None if is_by_id else name, topic_id))
    may_create = reader.boolean() if version >= 4 else True
    wants_cluster = reader.boolean() if 8 <= version <= 10 else False
    wants_topic = reader.boolean() if version >= 8 else False
    reader.skip_tags()
    return MetadataRequest(topics, may_create, wants_cluster, wants_topic)


def encode_topic(row: TopicRow, version: int) -> bytes:
    """Return the row of one topic."""
    writer = WireWriter(is_flexible=version >= FLEXIBLE_FROM)
    writer.int16(row.error_code)
    if version >= 12:
        writer.nullable_string(row.name)
    else:
        writer.string(row.name or "")
    if version >= IDS_FROM:
        writer.raw(row.topic_id)
    if version >= 1:
        writer.boolean(row.is_internal)
    writer.array(len(row.partitions))
    for part in row.partitions:
        code, number, leader, epoch, replicas, isr, offline = part
        if version >= 7:
            writer.raw(_PARTITION_WITH_EPOCH.pack(code, number, leader, epoch))
        else:
            writer.raw(_PARTITION.pack(code, number, leader))
        writer.int32s(replicas)
        writer.int32s(isr)
        if version >= 5:
            writer.int32s(offline)
        writer.no_tags()
    if version >= 8:
        writer.int32(row.operations)
    writer.no_tags()
    return b"".join(writer.pieces())


def encode_response(
    version: int,
    *,
    brokers: list[BrokerRow],
    cluster_id: str | None,
    controller_id: int,
    topics: list[bytes],
    operations: int = OPERATIONS_UNKNOWN,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """Return a response. ``topics``: rows of ``encode_topic``."""
    writer = WireWriter(is_flexible=version >= FLEXIBLE_FROM)
    if version >= 3:
        writer.int32(throttle_ms)
    writer.array(len(brokers))
    for broker in brokers:
        writer.int32(broker.broker_id)
        writer.string(broker.host)
        writer.int32(broker.port)
        if version >= 1:
            writer.nullable_string(broker.rack)
        writer.no_tags()
    if version >= 2:
        writer.nullable_string(cluster_id)
    if version >= 1:
        writer.int32(controller_id)
    writer.array(len(topics))
    for row in topics:
        writer.raw(row)
    if 8 <= version <= 10:
        writer.int32(operations)
    if version >= 13:
        writer.int16(0)
    writer.no_tags()
    return writer.pieces()
