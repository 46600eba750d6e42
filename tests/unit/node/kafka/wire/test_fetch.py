"""Fetch, in every version, against the encoders and decoders of kafka-python."""

import random
import uuid

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from node.kafka.wire import fetch as wire
from node.kafka.wire.metadata import BrokerRow
from node.kafka.wire.primitives import NULL_UUID, MalformedFrameError, WireReader

VERSIONS = range(4, 19)
TOPIC_ID = bytes(range(16))
FetchTopic, Forgotten = FetchRequest.FetchTopic, FetchRequest.ForgottenTopic


def decode(data: bytes, version: int) -> wire.WireFetch:
    reader = WireReader(data, 0, is_flexible=version >= wire.FLEXIBLE_FROM)
    return wire.decode_request(reader, version)


def encoded(version: int) -> bytes:
    part = FetchTopic.FetchPartition(
        version=version,
        partition=3,
        current_leader_epoch=4,
        fetch_offset=1 << 40,
        partition_max_bytes=500,
    )
    named = {"topic_id": uuid.UUID(bytes=TOPIC_ID)} if version >= 13 else {"topic": "t"}
    request = FetchRequest(
        version=version,
        cluster_id="c" if version >= 12 else None,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1_000,
        isolation_level=1,
        session_id=8,
        session_epoch=2,
        topics=[FetchTopic(version=version, partitions=[part], **named)],
        forgotten_topics_data=[Forgotten(version=version, partitions=[1, 2], **named)]
        if version >= 7
        else [],
        rack_id="r",
    )
    return bytes(request.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_decoded(version: int) -> None:
    found = decode(encoded(version), version)
    assert (found.wait_ms, found.bytes_min, found.bytes_max) == (100, 1, 1_000)
    assert not found.is_uncommitted
    assert (found.session_id, found.session_epoch) == ((8, 2) if version >= 7 else (0, -1))
    epoch = 4 if version >= 9 else -1
    name, topic_id = ("", TOPIC_ID) if version >= 13 else ("t", NULL_UUID)
    assert found.rack == ("r" if version >= 11 else "")
    assert found.topics == [(name, topic_id, [wire.FetchedPartition(3, epoch, 1 << 40, 500)])]
    assert found.forgotten == ([(name, topic_id, [1, 2])] if version >= 7 else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_what_kafka_python_reads(version: int) -> None:
    records = memoryview(b"records")
    rows = [
        wire.RecordsRow(0, 0, 9, 8, 1, [b"lead", records]),
        wire.RecordsRow(1, 0, 5, 5, 0),
        wire.RecordsRow(2, 6, leader=(2, 9)),
        wire.RecordsRow(3, 0, 9, 8, 1, preferred=2),
    ]
    leaders = [BrokerRow(2, "h", 9093, "r")]
    pieces = wire.encode_response(version, [("t", TOPIC_ID, rows)], leaders=leaders)
    assert any(piece is records for piece in pieces), "records are not copied"
    data = memoryview(b"".join(pieces))
    is_flexible = version >= wire.FLEXIBLE_FROM
    found, end = FetchResponse._struct.compiled_decode_from(
        version, compact=is_flexible, tagged=is_flexible, data_class=FetchResponse
    )(data, 0)
    assert end == len(data)
    assert (found.throttle_time_ms, found.error_code, found.session_id) == (0, 0, 0)
    (topic,) = found.responses
    if version >= 13:
        assert topic.topic_id.bytes == TOPIC_ID
    else:
        assert topic.topic == "t"
    parts = topic.partitions
    assert [
        (p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset) for p in parts
    ] == [(0, 0, 9, 8), (1, 0, 5, 5), (2, 6, -1, -1), (3, 0, 9, 8)]
    assert [bytes(p.records) for p in parts] == [b"leadrecords", b"", b"", b""]
    if version >= 11:
        assert [p.preferred_read_replica for p in parts] == [-1, -1, -1, 2]
    assert not any(p.aborted_transactions for p in parts)
    if version >= 5:
        assert [p.log_start_offset for p in parts] == [1, 0, -1, 1]
    if version >= 12:
        leader = parts[2].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (2, 9)
    if version >= 16:
        assert [(n.node_id, n.host, n.port, n.rack) for n in found.node_endpoints] == [
            (2, "h", 9093, "r")
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_hostile_bytes_are_malformed(version: int) -> None:
    rng = random.Random(version)
    data = encoded(version)
    for cut in range(len(data)):
        with pytest.raises(MalformedFrameError):
            decode(data[:cut], version)
    assert decode(data + b"\0", version) == decode(data, version)
    for _ in range(1_000):
        spoiled = bytearray(data)
        spoiled[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(bytes(spoiled), version)
        except MalformedFrameError:
            continue
