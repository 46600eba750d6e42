"""Nodes of the release before understand these messages: names and kinds on the wire are what they were."""

import msgpack
import pytest

from milena.model.errors import MalformedRequestError
from node.control.messages import BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.peers.messages import Message, pack, unpack

REPORT = {"epoch": 7, "index": 90, "draining": False, "full": True, "echo": 3}
ON_THE_WIRE = [
    (
        BrokerHeartbeatRequest(
            broker_epoch=7,
            echo=3,
            applied_index=90,
            is_draining=False,
            is_disk_full=True,
            reading_ms=1_700_000_000_000,
        ),
        {**REPORT, "clock": 1_700_000_000_000},
    ),
    (
        BrokerHeartbeatAnswer(
            number=4,
            is_drained=True,
            age_ms=12,
            access_version=5,
            controller_ms=77,
            cluster_ms=1_700_000_000_000,
        ),
        {
            "answer": 4,
            "drained": True,
            "age": 12,
            "access": 5,
            "now": 77,
            "clock": 1_700_000_000_000,
        },
    ),
]


@pytest.mark.parametrize(("message", "fields"), ON_THE_WIRE, ids=lambda value: type(value).__name__)
def test_a_message_looks_as_it_always_did(message: Message, fields: dict[str, object]) -> None:
    packed, body = pack(message)
    travelled = msgpack.unpackb(msgpack.packb(packed))
    assert list(travelled.items()) == list(fields.items())
    assert not body
    assert unpack(type(message), travelled) == message


def test_an_earlier_release_tells_no_time() -> None:
    assert unpack(BrokerHeartbeatRequest, REPORT).reading_ms is None
    answer = unpack(BrokerHeartbeatAnswer, {"answer": 4, "drained": True, "age": 12})
    assert (answer.controller_ms, answer.cluster_ms) == (None, None)


@pytest.mark.parametrize("name", sorted(REPORT))
@pytest.mark.parametrize("value", [None, "1", 1.0, [1]])
def test_a_report_of_another_shape_is_refused_as_a_whole(name: str, value: object) -> None:
    with pytest.raises(MalformedRequestError, match="BrokerHeartbeatRequest"):
        unpack(BrokerHeartbeatRequest, {**REPORT, name: value})
