"""Which responses to a transaction's requests are repeated, and where their codes stand."""

from collections.abc import Mapping
from typing import Any

import pytest

from loadtest.bench.clients import kafka_wire as wire
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.rounds import Turn
from loadtest.bench.stages import kafka_transactions as bench
from node.kafka.wire import cold, produce


def answer(key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    body = cold.encode(key, version, fields)
    return (len(body) + 4).to_bytes(4, "big") + bytes(4) + body


def test_the_code_of_each_response_is_found() -> None:
    part = {"partition_index": 0, "partition_error_code": 51}
    topics = [{"name": "t", "results_by_partition": [part]}]
    enlisted = answer(24, 0, {"results_by_topic_v3_and_below": topics})
    assert bench._enlisted_code(wire.KafkaFields(enlisted)) == 51
    row = produce.ProducedRow(0, 47)
    body = b"".join(produce.encode_response(8, [("t", bytes(16), [row])], []))
    assert bench._produced_code(wire.KafkaFields(bytes(8) + body)) == 47
    assert bench._ended_code(wire.KafkaFields(answer(26, 1, {"error_code": 48}))) == 48


class Node:
    """Answers requests with these codes, the last one again and again."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked = 0

    def exchange(self, request: bytes, is_whole: object) -> bytes:
        self.asked += 1
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return answer(26, 1, {"error_code": code})


def test_a_request_is_repeated_while_its_code_is_retriable() -> None:
    node: Any = Node(51, 15, 0)
    bench._ask(node, 26, 1, b"", bench._ended_code)
    assert node.asked == 3
    node = Node(48)
    with pytest.raises(HttpLoadError, match="error code 48"):
        bench._ask(node, 26, 1, b"", bench._ended_code)


def test_all_producers_count_together() -> None:
    turn = bench.side_by_side(
        lambda n, _: Turn(latencies_s=[n], units=2, seconds=1 + n / 100), seconds=9
    )
    assert (turn.units, turn.seconds) == (2 * bench.PRODUCERS, 1.63)
    assert sorted(turn.latencies_s) == list(range(bench.PRODUCERS))
