"""Fetch, versions 4 to 18: records of partitions from given offsets on.

Records are sent as pieces of their own and are not copied. Source: Kafka's message definitions; KIP-227 (sessions),
KIP-392 (racks, other replicas), KIP-516 (topic ids), KIP-951 (the new leader in the response).
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from milena.disk.files import Buffer
from node.kafka.wire.metadata import BrokerRow
from node.kafka.wire.primitives import NULL_UUID, WireReader, WireWriter
from node.kafka.wire.produce import encoded_leader, encoded_leaders

FLEXIBLE_FROM = 12
PREFERRED_FROM = 11
"""The first version whose clients have a rack and may read from followers."""
IDS_FROM = 13
LEADERS_FROM = 16

_ROW_4 = Struct(">ihqq")
_ROW_5 = Struct(">ihqqq")
_EMPTY_4 = bytes(8)
_EMPTY_11 = bytes(4) + b"\xff\xff\xff\xff" + bytes(4)
_EMPTY_12 = b"\x01\xff\xff\xff\xff\x01\x00"
"""The end of a row without records, by version: no aborted transactions, no other replica, no records."""


class FetchedPartition(NamedTuple):
    """One partition of a request. ``leader_epoch`` -1: the client does not know it."""

    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int


class WireFetch(NamedTuple):
    """A request. A topic is asked for by name, and from version 13 on by id (16 bytes)."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    is_uncommitted: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[str, bytes, list[FetchedPartition]]]
    forgotten: list[tuple[str, bytes, list[int]]]
    """Partitions that the session no longer has."""
    rack: str = ""
    """The client's rack; empty: it has none."""


class RecordsRow(NamedTuple):
    """The records of one partition, in pieces.

    ``leader``: broker and epoch, for a client that asked another one. ``preferred``: the replica that the client should
    read from instead, and -1 if there is none.
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    pieces: Sequence[Buffer] = ()
    leader: tuple[int, int] | None = None
    preferred: int = -1


def decode_request(reader: WireReader, version: int) -> WireFetch:
    """Return a request.

    Raises:
        MalformedFrameError: the bytes are not one.
    """
    if version < 15:
        reader.int32()
    wait_ms, bytes_min, bytes_max = reader.int32(), reader.int32(), reader.int32()
    is_uncommitted = reader.int8() == 0
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = reader.int32(), reader.int32()
    topics: list[tuple[str, bytes, list[FetchedPartition]]] = []
    for _ in range(reader.array(3)):
        topic_id = reader.uuid() if version >= IDS_FROM else NULL_UUID
        name = "" if version >= IDS_FROM else reader.string()
        partitions = [_decode_partition(reader, version) for _ in range(reader.array(16))]
        reader.skip_tags()
        topics.append((name, topic_id, partitions))
    forgotten: list[tuple[str, bytes, list[int]]] = []
    if version >= 7:
        for _ in range(reader.array(3)):
            topic_id = reader.uuid() if version >= IDS_FROM else NULL_UUID
            name = "" if version >= IDS_FROM else reader.string()
            forgotten.append((name, topic_id, reader.int32s()))
            reader.skip_tags()
    rack = reader.string() if version >= PREFERRED_FROM else ""
    reader.skip_tags()
    return WireFetch(
        wait_ms,
        bytes_min,
        bytes_max,
        is_uncommitted,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def _decode_partition(reader: WireReader, version: int) -> FetchedPartition:
    partition = reader.int32()
    leader_epoch = reader.int32() if version >= 9 else -1
    offset = reader.int64()
    if version >= 12:
        reader.int32()
    if version >= 5:
        reader.int64()
    bytes_max = reader.int32()
    reader.skip_tags()
    return FetchedPartition(partition, leader_epoch, offset, bytes_max)


def encode_response(
    version: int,
    topics: list[tuple[str, bytes, list[RecordsRow]]],
    *,
    leaders: list[BrokerRow],
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """Return a response. ``leaders``: the addresses of the leaders that rows name. ``session_id`` 0: no session."""
    writer = WireWriter(is_flexible=version >= FLEXIBLE_FROM)
    writer.int32(throttle_ms)
    if version >= 7:
        writer.int16(error_code)
        writer.int32(session_id)
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
    if version >= LEADERS_FROM and leaders:
        writer.tagged(0, encoded_leaders(leaders))
    else:
        writer.no_tags()
    return writer.pieces()


def _encode_row(writer: WireWriter, row: RecordsRow, version: int) -> None:
    ends = (row.partition, row.error_code, row.high_watermark, row.last_stable_offset)
    if version >= 5:
        writer.raw(_ROW_5.pack(*ends, row.log_start_offset))
    else:
        writer.raw(_ROW_4.pack(*ends))
    if not row.pieces and row.leader is None and row.preferred < 0:
        # Most rows of a client that waits at the ends of many partitions are these.
        is_flexible = version >= FLEXIBLE_FROM
        writer.raw(_EMPTY_12 if is_flexible else _EMPTY_11 if version >= 11 else _EMPTY_4)
        return
    # The node has taken aborted records out.
    writer.array(0)
    if version >= PREFERRED_FROM:
        writer.int32(row.preferred)
    writer.records(row.pieces)
    if version >= FLEXIBLE_FROM and row.leader is not None:
        writer.tagged(1, encoded_leader(*row.leader))
    else:
        writer.no_tags()
