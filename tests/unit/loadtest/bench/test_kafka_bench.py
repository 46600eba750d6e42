"""Frames of the stage for Kafka clients, as a node reads them."""

import pytest

from loadtest.bench.clients import kafka_clients as kafka
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.kafka_wire import is_whole
from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.rows import kafka as rows
from node.kafka.wire import fetch, produce
from node.kafka.wire.frames import body_of, head_of
from tests.support.disk.kafka_batches import decoded


def test_rates_are_compared_with_contenders_of_the_same_nodes() -> None:
    assert {row.stage for row in rows.ROWS} == {"kafka", "kafka-idle"}
    assert all(row.reference is not None for row in rows.ROWS if row.quantity is Quantity.RATE)


def test_the_frames_are_requests_of_the_versions_that_they_name() -> None:
    frame = kafka.produce_frame("t", records=3)[4:]
    assert (head_of(frame).key, head_of(frame).version) == (0, 8)
    _, reader = body_of(frame, is_flexible=False)
    request = produce.decode_request(reader, 8)
    assert (request.acks, request.transactional_id) == (-1, None)
    ((name, _, ((partition, records),)),) = request.topics
    assert (name, partition) == ("t", 0)
    assert records is not None
    assert [len(row.value or b"") for row in decoded(bytes(records)).records] == [100] * 3
    frame = kafka.fetch_frame("t", 640)[4:]
    assert (head_of(frame).key, head_of(frame).version) == (1, 11)
    _, reader = body_of(frame, is_flexible=False)
    asked = fetch.decode_request(reader, 11)
    ((name, _, (part,)),) = asked.topics
    assert (name, part.offset, part.bytes_max) == ("t", 640, 1 << 20)
    assert not asked.is_uncommitted


def test_a_response_is_whole_with_its_last_byte_and_an_error_in_it_is_told() -> None:
    row = produce.ProducedRow(0, 0, base_offset=1)
    body = b"".join(produce.encode_response(8, [("t", bytes(16), [row])], []))
    answer = (len(body) + 4).to_bytes(4, "big") + bytes(4) + body
    assert is_whole(answer)
    assert not is_whole(answer[:-1])
    assert not is_whole(b"")
    kafka.check_produced(answer, "t")
    refused = b"".join(
        produce.encode_response(8, [("t", bytes(16), [row._replace(error_code=6)])], [])
    )
    with pytest.raises(HttpLoadError, match="error code 6"):
        kafka.check_produced(bytes(8) + refused, "t")
