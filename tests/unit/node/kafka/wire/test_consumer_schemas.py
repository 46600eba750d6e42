"""The messages of Kafka's consumer protocol, byte by byte, after the tables of KIP-848."""

import random
import uuid

import pytest

from node.kafka.wire import cold
from node.kafka.wire.consumer_schemas import SCHEMAS
from node.kafka.wire.primitives import MalformedFrameError, WireReader

TOPIC = uuid.UUID(int=0x0102)
NO_TAGS = b"\0"


def decode(key: int, version: int, data: bytes) -> cold.Message:
    return cold.decode(key, version, WireReader(data, 0, is_flexible=True))


def request(version: int) -> bytes:
    """A heartbeat of member "m" in group "g", at epoch 3, that owns partitions 0 and 5."""
    topics = b"\x02" + TOPIC.bytes + b"\x03" + bytes([0, 0, 0, 0, 0, 0, 0, 5]) + NO_TAGS
    pattern = b"\x03a*" if version else b""
    return (
        b"\x02g\x02m" + bytes([0, 0, 0, 3]) + b"\x02i\0" + bytes([0, 0, 0x75, 0x30])
        + b"\x02\x02t" + pattern + b"\x08uniform" + topics + NO_TAGS
    )  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_is_read(version: int) -> None:
    found = decode(68, version, request(version))
    assert (found.group_id, found.member_id, found.member_epoch) == ("g", "m", 3)
    assert (found.instance_id, found.rack_id, found.rebalance_timeout_ms) == ("i", None, 30_000)
    assert (found.subscribed_topic_names, found.server_assignor) == (["t"], "uniform")
    assert found.subscribed_topic_regex == ("a*" if version else None)
    (topic,) = found.topic_partitions
    assert (topic.topic_id, topic.partitions) == (TOPIC, [0, 5])


@pytest.mark.parametrize("version", [0, 1])
def test_a_response_to_a_heartbeat_is_written(version: int) -> None:
    fields = {
        "error_code": 0,
        "error_message": None,
        "member_id": "m",
        "member_epoch": 4,
        "heartbeat_interval_ms": 5_000,
    }
    start = bytes(6) + b"\0\x02m" + bytes([0, 0, 0, 4]) + bytes([0, 0, 0x13, 0x88])
    none = cold.encode(68, version, fields | {"assignment": None})
    assert none == start + b"\xff" + NO_TAGS
    topics = [{"topic_id": TOPIC, "partitions": [7]}]
    some = cold.encode(68, version, fields | {"assignment": {"topic_partitions": topics}})
    row = TOPIC.bytes + b"\x02" + bytes([0, 0, 0, 7]) + NO_TAGS
    assert some == start + b"\x01\x02" + row + NO_TAGS + NO_TAGS


@pytest.mark.parametrize("version", [0, 1])
def test_a_description_is_written(version: int) -> None:
    assignment = {"topic_partitions": [{"topic_id": TOPIC, "topic_name": "t", "partitions": [1]}]}
    member = {
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 2,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None,
        "assignment": assignment,
        "target_assignment": {"topic_partitions": []},
        "member_type": 1,
    }
    group = {
        "error_code": 0,
        "error_message": None,
        "group_id": "g",
        "group_state": "Stable",
        "group_epoch": 2,
        "assignment_epoch": 2,
        "assignor_name": "range",
        "members": [member],
        "authorized_operations": None,
    }
    written = cold.encode(69, version, {"groups": [group]})
    row = TOPIC.bytes + b"\x02t\x02" + bytes([0, 0, 0, 1]) + NO_TAGS
    told = b"\x02" + row + NO_TAGS + b"\x01" + NO_TAGS
    one = b"\x02m\0\0" + bytes([0, 0, 0, 2]) + b"\x02c\x03/h\x02\x02t\0" + told
    kind = b"\x01" if version else b""
    assert written == (
        bytes(4) + b"\x02" + bytes(2) + b"\0\x02g\x07Stable" + bytes([0, 0, 0, 2]) * 2
        + b"\x06range\x02" + one + kind + NO_TAGS + b"\x80\0\0\0" + NO_TAGS + NO_TAGS
    )  # fmt: skip
    assert cold.decode_response(69, version, written).groups[0].members[0].client_host == "/h"


def test_hostile_bytes_are_malformed() -> None:
    rng = random.Random(5)
    data = request(1)
    for cut in range(len(data)):
        with pytest.raises(MalformedFrameError):
            decode(68, 1, data[:cut])
    for _ in range(2_000):
        spoiled = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            spoiled[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(68, 1, bytes(spoiled))
        except MalformedFrameError:
            continue


def test_each_key_has_a_request_and_a_response() -> None:
    assert {(one["apiKey"], one["type"]) for one in SCHEMAS} == {
        (key, kind) for key in (68, 69) for kind in ("request", "response")
    }
