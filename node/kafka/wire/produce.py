"""Produce, versions 0 to 13: record batches for partitions, and where they were stored.

Records stay views of the request's frame. Source: Kafka's message definitions; KIP-467 (errors of single records),
KIP-951 (the new leader in the response), KIP-516 (topic ids).
"""

from struct import Struct
from typing import NamedTuple

from milena.disk.files import Buffer
from node.kafka.wire.metadata import BrokerRow
from node.kafka.wire.primitives import NULL_UUID, WireReader, WireWriter

FLEXIBLE_FROM = 9
LEADERS_FROM = 10
"""The first version whose responses tell the present leader."""
IDS_FROM = 13
"""The first version in which topics have ids (16 bytes) in place of names."""

_ROW = Struct(">ihq")
_TIME = Struct(">q")


class WireProduce(NamedTuple):
    """A request. Of each topic it has the name, the id and the partitions.

    Of each partition it has the records; None if the client sent null.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, bytes, list[tuple[int, memoryview | None]]]]


class ProducedRow(NamedTuple):
    """The result of one partition. ``leader``: broker and epoch, for a client that asked another one."""

    partition: int
    error_code: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    records: tuple[int, ...] = ()
    """The places of the records that are to blame."""
    leader: tuple[int, int] | None = None


def decode_request(reader: WireReader, version: int) -> WireProduce:
    """Return a request.

    Raises:
        MalformedFrameError: the bytes are not one.
    """
    transactional_id = reader.nullable_string() if version >= 3 else None
    acks = reader.int16()
    timeout_ms = reader.int32()
    topics: list[tuple[str, bytes, list[tuple[int, memoryview | None]]]] = []
    for _ in range(reader.array(3)):
        topic_id = reader.uuid() if version >= IDS_FROM else NULL_UUID
        name = "" if version >= IDS_FROM else reader.string()
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(reader.array(5)):
            partition = reader.int32()
            partitions.append((partition, reader.records()))
            reader.skip_tags()
        reader.skip_tags()
        topics.append((name, topic_id, partitions))
    reader.skip_tags()
    return WireProduce(transactional_id, acks, timeout_ms, topics)


def encode_response(
    version: int,
    topics: list[tuple[str, bytes, list[ProducedRow]]],
    leaders: list[BrokerRow],
    throttle_ms: int = 0,
) -> list[Buffer]:
    """Return a response. ``leaders``: the addresses of the leaders that rows name."""
    writer = WireWriter(is_flexible=version >= FLEXIBLE_FROM)
    writer.array(len(topics))
    for name, topic_id, rows in topics:
        if version >= IDS_FROM:
            writer.raw(topic_id)
        else:
            writer.string(name)
        writer.array(len(rows))
        for row in rows:
            _encode_row(writer, row, version)
        writer.no_tags()
    if version >= 1:
        writer.int32(throttle_ms)
    if version >= LEADERS_FROM and leaders:
        writer.tagged(0, encoded_leaders(leaders))
    else:
        writer.no_tags()
    return writer.pieces()


def _encode_row(writer: WireWriter, row: ProducedRow, version: int) -> None:
    writer.raw(_ROW.pack(row.partition, row.error_code, row.base_offset))
    if version >= 2:
        writer.raw(_TIME.pack(row.append_time_ms))
    if version >= 5:
        writer.raw(_TIME.pack(row.log_start_offset))
    if version >= 8:
        writer.array(len(row.records))
        for record in row.records:
            writer.int32(record)
            # The message of the partition names the first record, so it would mislead for the others.
            writer.nullable_string(row.message if len(row.records) == 1 else None)
            writer.no_tags()
        writer.nullable_string(row.message)
    if version >= LEADERS_FROM and row.leader is not None:
        writer.tagged(0, encoded_leader(*row.leader))
    else:
        writer.no_tags()


def encoded_leader(broker_id: int, leader_epoch: int) -> bytes:
    """Return the structure of a present leader."""
    writer = WireWriter(is_flexible=True)
    writer.int32(broker_id)
    writer.int32(leader_epoch)
    writer.no_tags()
    return b"".join(writer.pieces())


def encoded_leaders(leaders: list[BrokerRow]) -> bytes:
    """Return the array of leaders' addresses."""
    writer = WireWriter(is_flexible=True)
    writer.array(len(leaders))
    for broker in leaders:
        writer.int32(broker.broker_id)
        writer.string(broker.host)
        writer.int32(broker.port)
        writer.nullable_string(broker.rack)
        writer.no_tags()
    return b"".join(writer.pieces())
