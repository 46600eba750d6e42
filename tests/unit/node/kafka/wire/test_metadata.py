"""Metadata, in every version, against the encoders and decoders of kafka-python."""

import random
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from node.kafka.wire import metadata as wire
from node.kafka.wire.primitives import MalformedFrameError, WireReader

VERSIONS = range(14)
TOPIC_ID = bytes(range(16))


def reader(data: bytes, version: int) -> WireReader:
    return WireReader(data, 0, is_flexible=version >= wire.FLEXIBLE_FROM)


def asked(version: int, topics: Any, **fields: Any) -> wire.MetadataRequest:
    made = None
    if topics is not None:
        made = [MetadataRequest.MetadataRequestTopic(version=version, **topic) for topic in topics]
    data = bytes(MetadataRequest(version=version, topics=made, **fields).encode(version=version))
    return wire.decode_request(reader(data, version), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_asked_for_by_name(version: int) -> None:
    found = asked(version, [{"name": "a"}, {"name": "b"}])
    assert found.topics == [("a", bytes(16)), ("b", bytes(16))]
    assert found.may_create is True


def test_topics_are_asked_for_by_id() -> None:
    import uuid  # noqa: PLC0415 - kafka-python's type

    # Java's client sends an empty name.
    for name in (None, ""):
        found = asked(12, [{"name": name, "topic_id": uuid.UUID(bytes=TOPIC_ID)}])
        assert found.topics == [(None, TOPIC_ID)]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_and_none(version: int) -> None:
    assert asked(version, [] if version == 0 else None).topics is None
    if version:
        assert asked(version, []).topics == []


def test_flags() -> None:
    found = asked(
        8,
        [],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert not found.may_create
    assert found.wants_cluster_operations
    assert found.wants_topic_operations


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_what_kafka_python_reads(version: int) -> None:
    row = wire.TopicRow(
        0,
        "t",
        TOPIC_ID,
        is_internal=True,
        partitions=(
            wire.PartitionMetadata(0, 0, 2, 7, (1, 2, 3), (2, 3), (1,)),
            wire.PartitionMetadata(5, 1, -1, 8, (1,), (), ()),
        ),
        operations=12,
    )
    missing = wire.TopicRow(3, "missing")
    body = wire.encode_response(
        version,
        brokers=[wire.BrokerRow(1, "h", 9092, "r"), wire.BrokerRow(2, "i", 9093, None)],
        cluster_id="c",
        controller_id=2,
        topics=[wire.encode_topic(row, version), wire.encode_topic(missing, version)],
        operations=34,
    )
    data = memoryview(b"".join(body))
    is_flexible = version >= wire.FLEXIBLE_FROM
    found, end = MetadataResponse._struct.compiled_decode_from(
        version, compact=is_flexible, tagged=is_flexible, data_class=MetadataResponse
    )(data, 0)
    assert end == len(data)
    assert [(b.node_id, b.host, b.port) for b in found.brokers] == [(1, "h", 9092), (2, "i", 9093)]
    first, second = found.topics
    assert (first.error_code, first.name, second.error_code, second.name) == (0, "t", 3, "missing")
    assert [
        (p.error_code, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes)
        for p in first.partitions
    ] == [(0, 0, 2, [1, 2, 3], [2, 3]), (5, 1, -1, [1], [])]
    if version >= 1:
        assert found.controller_id == 2
        assert found.brokers[0].rack == "r"
        assert first.is_internal
    if version >= 7:
        assert [p.leader_epoch for p in first.partitions] == [7, 8]
    if version >= 8:
        assert first.authorized_operations == {2, 3}
    if version >= 10:
        assert first.topic_id.bytes == TOPIC_ID


def test_the_request_of_librdkafka_for_all_topics_is_understood() -> None:
    # Version 2.16 leaves an array of the old encoding in a flexible version; Kafka ignores the rest.
    found = wire.decode_request(reader(bytes.fromhex("00000000010000"), 13), 13)
    assert found == wire.MetadataRequest(None, False, False, False)


def test_hostile_bytes_are_malformed() -> None:
    rng = random.Random(3)
    for version in VERSIONS:
        data = bytes(
            MetadataRequest(
                version=version,
                topics=[MetadataRequest.MetadataRequestTopic(version=version, name="topic")] * 3,
            ).encode(version=version)
        )
        for cut in range(len(data)):
            with pytest.raises(MalformedFrameError):
                wire.decode_request(reader(data[:cut], version), version)
        for _ in range(300):
            spoiled = bytearray(data)
            spoiled[rng.randrange(len(data))] = rng.randrange(256)
            try:
                wire.decode_request(reader(bytes(spoiled), version), version)
            except MalformedFrameError:
                continue
