"""Requests and responses of Kafka as the bench writes and reads them, beside the node's own codec."""

from loadtest.bench.clients import kafka_wire as wire
from node.kafka.wire import cold
from node.kafka.wire.frames import body_of, head_of


def test_a_request_is_the_one_that_the_node_reads() -> None:
    body = wire.text("g") + wire.int32(7) + wire.text("m") + wire.int32(1)
    frame = wire.frame(14, 0, body + wire.text("m") + wire.data(b"assigned"))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (head_of(frame[4:]).key, head_of(frame[4:]).version) == (14, 0)
    _, reader = body_of(frame[4:], is_flexible=False)
    request = cold.decode(14, 0, reader)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 7, "m")
    ((member, assignment),) = [(one.member_id, one.assignment) for one in request.assignments]
    assert (member, bytes(assignment)) == ("m", b"assigned")


def test_a_response_is_read_field_by_field() -> None:
    made = {"error_code": 51, "producer_id": 1 << 40, "producer_epoch": 3}
    body = cold.encode(22, 0, made)
    answer = wire.KafkaFields((len(body) + 4).to_bytes(4, "big") + bytes(4) + body)
    assert answer.int32() == 0
    assert (answer.int16(), answer.int64(), answer.int16()) == (51, 1 << 40, 3)
    joined = {"generation_id": 2, "leader": "m", "member_id": "m", "protocol_name": "range"}
    members = [{"member_id": "m", "metadata": b"subscribed"}]
    body = cold.encode(11, 1, {**joined, "error_code": 0, "members": members})
    answer = wire.KafkaFields((len(body) + 4).to_bytes(4, "big") + bytes(4) + body)
    assert (answer.int16(), answer.int32(), answer.text()) == (0, 2, "range")
    assert (answer.text(), answer.text(), answer.int32()) == ("m", "m", 1)
    assert (answer.text(), answer.data()) == ("m", b"subscribed")
