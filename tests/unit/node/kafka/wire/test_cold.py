"""Messages by kafka-python's schemas: hostile bytes are malformed frames, and nested structures come from mappings."""

import random
import uuid
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsResponse
from kafka.protocol.consumer import ListOffsetsResponse

from node.kafka.wire import cold
from node.kafka.wire.primitives import MalformedFrameError, WireReader

ASKED = {
    "replica_id": -1,
    "isolation_level": 1,
    "topics": [{"name": "t", "partitions": [{"partition_index": 3, "timestamp": -1}]}],
}


def decode(key: int, version: int, data: bytes) -> cold.Message:
    return cold.decode(key, version, WireReader(data, 0, is_flexible=False))


@pytest.mark.parametrize("version", range(2, 7))
def test_a_request_is_decoded(version: int) -> None:
    found = decode(2, version, cold.encode_request(2, version, ASKED))
    (topic,) = found.topics
    (partition,) = topic.partitions
    assert (found.isolation_level, topic.name) == (1, "t")
    assert (partition.partition_index, partition.timestamp) == (3, -1)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_response_is_made_from_mappings(version: int) -> None:
    rows = [{"partition_index": 1, "error_code": 3, "offset": 9}]
    data = cold.encode(2, version, {"topics": [{"name": "t", "partitions": rows}]})
    (topic,) = ListOffsetsResponse.decode(data, version=version).topics
    (row,) = topic.partitions
    assert (topic.name, row.partition_index, row.error_code, row.offset) == ("t", 1, 3, 9)


@pytest.mark.parametrize("version", range(2, 8))
def test_a_structure_that_a_version_lacks_is_left_out(version: int) -> None:
    row = {"name": "t", "error_code": 36, "configs": [{"name": "a", "value": "b"}]}
    data = cold.encode(19, version, {"topics": [row]})
    (topic,) = CreateTopicsResponse.decode(data, version=version).topics
    assert (topic.name, topic.error_code) == ("t", 36)
    assert [config.name for config in topic.configs or ()] == (["a"] if version >= 5 else [])


def test_hostile_bytes_are_malformed() -> None:
    rng = random.Random(4)
    data = cold.encode_request(2, 6, ASKED)
    for cut in range(len(data)):
        with pytest.raises(MalformedFrameError):
            decode(2, 6, data[:cut])
    assert decode(2, 6, data + b"\0").topics[0].name == "t"
    raised = 0
    for _ in range(2_000):
        spoiled = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            spoiled[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(2, 6, bytes(spoiled))
        except MalformedFrameError:
            raised += 1
    assert raised > 500


def test_the_first_flexible_versions_are_known() -> None:
    assert [cold.flexible_from(key) for key in (2, 3, 18, 22, 23)] == [6, 9, 3, 2, 4]


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (19, 2, {"topics": None}),
        (19, 7, {"topics": None}),
        (19, 2, {"topics": [{"name": None}]}),
        (19, 7, {"topics": [{"name": "t", "configs": None}]}),
        (19, 7, {"topics": [{"name": "t", "assignments": [{"broker_ids": None}]}]}),
        (20, 1, {"topic_names": [None]}),
        (20, 5, {"topic_names": ["t", None]}),
        (32, 4, {"resources": [{"resource_name": None}]}),
    ],
)
def test_a_null_where_the_definition_has_none_is_malformed(
    key: int, version: int, fields: dict[str, Any]
) -> None:
    with pytest.raises(MalformedFrameError, match="null"):
        decode(key, version, cold.encode_request(key, version, fields))


def test_a_null_that_the_definition_allows_is_none() -> None:
    fields = {"topics": [{"name": "t", "count": 2, "assignments": None}], "timeout_ms": 1}
    (topic,) = decode(37, 3, cold.encode_request(37, 3, fields)).topics
    assert topic.assignments is None
    fields = {"resources": [{"resource_type": 2, "resource_name": "", "configuration_keys": None}]}
    (resource,) = decode(32, 4, cold.encode_request(32, 4, fields)).resources
    assert (resource.resource_name, resource.configuration_keys) == ("", None)


def test_the_zero_id_is_none() -> None:
    fields = {"topics": [{"name": "t", "topic_id": uuid.UUID(int=0)}], "timeout_ms": 1}
    (topic,) = decode(20, 6, cold.encode_request(20, 6, fields)).topics
    assert (topic.name, topic.topic_id) == ("t", None)
