"""Produce, in every version, against the encoders and decoders of kafka-python."""

import random
import uuid

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from node.kafka.wire import produce as wire
from node.kafka.wire.metadata import BrokerRow
from node.kafka.wire.primitives import NULL_UUID, MalformedFrameError, WireReader

VERSIONS = range(3, 14)
TOPIC_ID = uuid.UUID(int=5)
TopicData = ProduceRequest.TopicProduceData
PartitionData = TopicData.PartitionProduceData


def decode(data: bytes, version: int) -> wire.WireProduce:
    reader = WireReader(data, 0, is_flexible=version >= wire.FLEXIBLE_FROM)
    return wire.decode_request(reader, version)


def encoded(version: int) -> bytes:
    parts = [
        PartitionData(version=version, index=0, records=b"first"),
        PartitionData(version=version, index=7, records=None),
    ]
    request = ProduceRequest(
        version=version,
        transactional_id="tx",
        acks=-1,
        timeout_ms=1_500,
        topic_data=[TopicData(version=version, name="t", topic_id=TOPIC_ID, partition_data=parts)],
    )
    return bytes(request.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_decoded(version: int) -> None:
    data = encoded(version)
    found = decode(data, version)
    assert (found.transactional_id, found.acks, found.timeout_ms) == ("tx", -1, 1_500)
    ((name, topic_id, ((first, records), second)),) = found.topics
    assert (name, topic_id) == (("", TOPIC_ID.bytes) if version >= 13 else ("t", NULL_UUID))
    assert (first, bytes(records or b""), second) == (0, b"first", (7, None))
    assert records is not None
    assert records.obj is data, "records are a view of the frame"


@pytest.mark.parametrize("version", range(3))
def test_the_versions_that_are_refused_can_be_read(version: int) -> None:
    # Without the transactional id, version 3 is the layout of those before.
    found = decode(encoded(3)[4:], version)
    assert found.transactional_id is None
    assert found.topics[0][0] == "t"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_what_kafka_python_reads(version: int) -> None:
    rows = [
        wire.ProducedRow(0, 0, 5, 6, 7),
        wire.ProducedRow(1, 87, message="no key", records=(3,)),
        wire.ProducedRow(2, 6, message="moved", leader=(2, 9)),
    ]
    leaders = [BrokerRow(2, "h", 9093, None)]
    data = memoryview(
        b"".join(wire.encode_response(version, [("t", TOPIC_ID.bytes, rows)], leaders))
    )
    is_flexible = version >= wire.FLEXIBLE_FROM
    found, end = ProduceResponse._struct.compiled_decode_from(
        version, compact=is_flexible, tagged=is_flexible, data_class=ProduceResponse
    )(data, 0)
    assert end == len(data)
    (topic,) = found.responses
    assert topic.topic_id == TOPIC_ID if version >= 13 else topic.name == "t"
    parts = topic.partition_responses
    assert [(p.index, p.error_code, p.base_offset) for p in parts] == [
        (0, 0, 5),
        (1, 87, -1),
        (2, 6, -1),
    ]
    assert parts[0].log_append_time_ms == 6
    if version >= 5:
        assert parts[0].log_start_offset == 7
    if version >= 8:
        assert [p.error_message for p in parts] == [None, "no key", "moved"]
        (blamed,) = parts[1].record_errors
        assert (blamed.batch_index, blamed.batch_index_error_message) == (3, "no key")
    if version >= 10:
        leader = parts[2].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (2, 9)
        assert [(n.node_id, n.host, n.port, n.rack) for n in found.node_endpoints] == [
            (2, "h", 9093, None)
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
