"""v3: each record has an answer of its own, however the bytes of a request come."""

import json

import pytest

from tests.unit.http_api.serving.test_separate_requests import STREAM, head, serving

GOOD = '{"key":{"type":"STRING","data":"k"},"value":{"type":"JSON","data":{"a":1.10}}}'
BAD = {
    "base64": '{"value":{"type":"BINARY","data":"?"}}',
    "partition": '{"partition_id":-1,"value":{"type":"STRING","data":"v"}}',
    "a partition that is none": '{"partition_id":"x"}',
    "a partition beyond 64 bits": '{"partition_id":18446744073709551616}',
    "a type": '{"value":{"type":"XML","data":"v"}}',
    "no type": '{"value":{"data":"v"}}',
    "data of another type": '{"value":{"type":"STRING","data":1}}',
    "a schema": '{"value":{"type":"AVRO","data":"v"}}',
    "a time": '{"timestamp":"yesterday"}',
    "a time out of bounds": '{"timestamp":-1}',
    "headers": '{"headers":[{"value":"YQ=="}]}',
    "a header's value": '{"headers":[{"name":"h","value":"?"}]}',
    "a field": '{"valeu":1}',
    "a value that is none": '{"value":1}',
}
EMPTY = '{"value":null}'


def receipts(body: bytes) -> list[int]:
    return [json.loads(line)["error_code"] for line in body.split(b"\r\n") if line.startswith(b"{")]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("between", ["", "\n"])
async def test_a_stream_is_answered_alike_wherever_it_is_cut(name, between):
    body = between.join((GOOD, BAD[name], EMPTY, BAD[name], GOOD, "")).encode()
    request = head(STREAM, f"Content-Length: {len(body)}") + body
    async with serving() as server:
        first = len(request) - len(body)
        for at in range(first, len(request), 3):
            connection = server.connect()
            await connection.send(request[:at], request[at:])
            (answer,) = await connection.answers(1)
            taken = [code == 200 for code in receipts(answer.body)]
            assert taken == [True, False, True, False, True], (at, answer.body)
            connection.protocol.connection_lost(None)


@pytest.mark.parametrize("name", BAD)
async def test_a_batch_has_an_answer_for_each(name):
    entries = [json.loads(text) for text in (GOOD, BAD[name], EMPTY, BAD[name], GOOD)]
    named = [{"id": str(number), **entry} for number, entry in enumerate(entries)]
    body = json.dumps({"entries": named}).encode()
    async with serving() as server:
        connection = server.connect()
        await connection.send(head(f"{STREAM}:batch", f"Content-Length: {len(body)}") + body)
        (answer,) = await connection.answers(1)
        told = json.loads(answer.body)
        assert [row["id"] for row in told["successes"]] == ["0", "2", "4"]
        assert [row["id"] for row in told["failures"]] == ["1", "3"]


@pytest.mark.parametrize("path", [STREAM, f"{STREAM}:batch"])
async def test_an_idempotency_key_is_refused_and_not_ignored(path):
    async with serving() as server:
        connection = server.connect()
        request = head(path, "Idempotency-Key: k", f"Content-Length: {len(GOOD)}") + GOOD.encode()
        await connection.send(request)
        (answer,) = await connection.answers(1)
        assert answer.status == 400
        assert b"Idempotency-Key" in answer.body
        assert not server.node.produce_requests
