"""v2 produce, from the request to the node and back."""

import base64

import orjson
import pytest

from http_api.ports.node import ApiLimits
from http_api.protocol.errors import ERROR_TABLE, kafka_code_of
from http_api.records.receipts import encode_receipts, receipt_json
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import ProducerStamp
from milena.model.columns import RecordColumns
from milena.model.errors import (
    FateUnknownError,
    IdempotencyKeyReusedError,
    NoLeaderError,
    NotEnoughReplicasError,
    PartitionCountChangedError,
    PartitionNotFoundError,
)
from milena.model.requests import Acks, ProduceReceipt, Receipts
from tests.support.fakes.ports import NOW_MS, no_leader
from tests.support.http.api_server import BATCH, BINARY_V2, JSON_V2, TEXT_V2, V2, serving
from tests.unit.http_api.protocol.test_errors import make


def item(partition, offset):
    return {"partition": partition, "offset": offset, "error_code": None, "error": None}


def requests(api):
    return api.node.produce_requests


def test_receipts_are_a_sequence_of_receipts():
    error = no_leader()
    run = Receipts.run(2, 10, 3)
    assert list(run) == [ProduceReceipt(partition=2, offset=o) for o in (10, 11, 12)]
    assert list(run[1:]) == list(run)[1:]
    failed = Receipts.failed(1, error, 2)
    assert [r.error for r in failed] == [error, error]
    assert len(run) == 3


async def test_records_are_appended_and_answered_in_order(api):
    answer = await api.produce("t", [{"key": "k", "value": {"a": 1}}, {"value": None}, {}])
    assert answer.status == 200
    assert answer.headers["Content-Type"] == V2
    assert answer.json == {
        "offsets": [item(0, 0), item(0, 1), item(0, 2)],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    read = (await api.records("t")).json
    assert [(r["key"], r["value"]) for r in read] == [("k", {"a": 1}), (None, None), (None, None)]


async def test_one_record_and_a_thousand_are_answered_alike(api):
    assert (await api.produce("t", [{"value": 1}])).json["offsets"] == [item(0, 0)]
    answer = await api.produce("t", [{"value": i} for i in range(1000)])
    assert answer.json["offsets"] == [item(0, 1 + i) for i in range(1000)]


async def test_a_records_partition_is_respected(api):
    answer = await api.produce(
        "many",
        [{"value": 0, "partition": 2}, {"value": 1, "partition": 0}, {"value": 2, "partition": 2}],
    )
    assert answer.json["offsets"] == [item(2, 0), item(0, 0), item(2, 1)]


async def test_one_partition_for_all_is_named_once(api):
    await api.produce("many", [{"value": 0, "partition": 2}, {"value": 1, "partition": 2}])
    (request,) = requests(api)
    assert (request.partition, request.records.partitions) == (2, None)


async def test_no_partition_leaves_the_choice_to_the_node(api):
    await api.produce("many", [{"value": 0, "partition": None}])
    (request,) = requests(api)
    assert (request.partition, request.records.partitions) == (None, None)


@pytest.mark.parametrize("suffix", ["", "/records"])
async def test_a_records_partition_wins_over_the_paths(api, suffix):
    answer = await api.post(
        f"/topics/many/partitions/1{suffix}",
        {"records": [{"value": 0}, {"value": 1, "partition": 2}]},
    )
    assert answer.json["offsets"] == [item(1, 0), item(2, 0)]


async def test_binary_records(api):
    record = {
        "key": base64.b64encode(b"\xff").decode(),
        "value": base64.b64encode(b"\x00").decode(),
    }
    assert (await api.produce("t", [record], type_=BINARY_V2)).status == 200
    assert requests(api)[0].records.values == [b"\x00"]
    (read,) = (await api.records("t", accept=BINARY_V2)).json
    assert (read["key"], read["value"]) == (record["key"], record["value"])


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (None, [b'"YQ=="']),
        ("application/json", [b'"YQ=="']),
        ("application/vnd.kafka.json.v1+json", [b'"YQ=="']),
        (V2, [b"a"]),
    ],
)
async def test_types_taken(api, type_, values):
    assert (await api.produce("t", [{"value": "YQ=="}], type_=type_)).status == 200
    assert requests(api)[0].records.values == values


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", (400, 400)),
        (b"", (400, 400)),
        ([], (400, 400)),
        ({}, (422, 422)),
        ({"records": []}, (422, 422)),
        ({"records": [{"foo": 1}]}, (422, 422)),
        ({"records": [1]}, (400, 400)),
        ({"records": [{}], "value_schema": "x"}, (422, 42202)),
        ({"records": [{"timestamp": -1}]}, (422, 42208)),
        ({"records": [{"partition": -1}]}, (404, 40402)),
        ({"records": [{"partition": 7}]}, (404, 40402)),
    ],
)
async def test_bad_bodies(api, body, error):
    assert (await api.post("/topics/t", body)).error == error
    assert api.node.logs["t", 0].batches == []


LINES = [
    ("text/plain", b"a b\n\n\xff \r\n{", [b"a b", b"", b"\xff \r", b"{"]),
    ("text/plain", b"\n", [b""]),
    ("application/x-ndjson", b'{"a": 1}\r\n\n null\n1.50', [b'{"a": 1}', None, b"1.50"]),
]


@pytest.mark.parametrize(("type_", "body", "values"), LINES)
@pytest.mark.parametrize("path", ["/topics/t", "/topics/t/partitions/0"])
async def test_a_record_a_line(api, path, type_, body, values):
    answer = await api.post(path, body, type_)
    assert [receipt["offset"] for receipt in answer.json["offsets"]] == [*range(len(values))]
    [request] = requests(api)
    assert (request.records.keys, request.records.values) == (None, values)


@pytest.mark.parametrize(
    ("type_", "body", "error", "sentence"),
    [
        ("text/plain", b"", (422, 422), "empty"),
        ("application/x-ndjson", b" \n\n", (422, 422), "no line"),
        ("application/x-ndjson", b"1\n\n{", (400, 400), "line 3 is not JSON"),
        (
            "application/x-ndjson",
            b"1\nNaN",
            (400, 400),
            "line 2 is not JSON: unexpected character, expected a JSON value: column 1 ",
        ),
    ],
)
async def test_lines_that_are_none(api, type_, body, error, sentence):
    answer = await api.post("/topics/t", body, type_)
    assert answer.error == error
    assert sentence in answer.json["message"]
    assert not requests(api)


async def test_bad_types(api):
    avro = await api.produce("t", [{}], type_="application/vnd.kafka.avro.v2+json")
    assert avro.error == (415, 415)
    assert "schema registry" in avro.json["message"]
    assert (await api.produce("t", [{}], type_="text/html")).error == (415, 415)
    refused = await api.produce("t", [{}], headers={"Accept": "text/html"})
    assert refused.error == (406, 40601)
    assert api.node.logs["t", 0].batches == []


@pytest.mark.parametrize("content_type", [JSON_V2, "application/json", BINARY_V2, TEXT_V2, V2])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_topic_that_is_not_there_refuses_the_request_as_a_whole(api, content_type, count):
    """As Confluent's proxy: where Redpanda's answers 200, who looks at the status alone takes records for written."""
    body = {"records": [{"key": "AA==", "value": "AA=="}] * count}
    answer = await api.post("/topics/x", body, content_type)
    assert answer.error == (404, 40401)
    assert set(answer.json) == {"error_code", "message"}


async def test_unknown_topics_and_partitions(api):
    assert (await api.produce("x", [{}])).error == (404, 40401)
    assert (await api.post("/topics/t/partitions/5", {"records": [{}]})).error == (404, 40402)
    assert (await api.post("/topics/t/partitions/x", {"records": [{}]})).error == (404, 40402)


@pytest.mark.parametrize(
    ("query", "acks", "timeout_ms"),
    [
        ("", Acks.ALL, 30_000),
        ("?acks=all", Acks.ALL, 30_000),
        ("?acks=ALL&timeout_ms=5", Acks.ALL, 5),
        ("?acks=-1", Acks.ALL, 30_000),
        ("?acks=1", Acks.LEADER, 30_000),
        ("?acks=0", Acks.NONE, 30_000),
        ("?timeout_ms=999999999", Acks.ALL, 300_000),
    ],
)
async def test_acks_and_timeout(api, query, acks, timeout_ms):
    assert (await api.produce("t", [{}], query)).status == 200
    (request,) = requests(api)
    assert (request.acks, request.timeout_ms) == (acks, timeout_ms)


@pytest.mark.parametrize("query", ["?acks=2", "?acks=", "?timeout_ms=0", "?timeout_ms=x"])
async def test_bad_options(api, query):
    assert (await api.produce("t", [{}], query)).error == (400, 400)


async def test_without_acks_there_is_no_offset(api):
    answer = await api.produce("t", [{"value": 1}, {"value": 2}], "?acks=0")
    assert answer.json["offsets"] == [item(0, None), item(0, None)]


# -- failures


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (NotEnoughReplicasError("1 of 2; nothing was written"), (503, 50303)),
        (NoLeaderError("no leader; nothing was written"), (503, 50302)),
        (FateUnknownError("timed out after the append"), (504, 50401)),
    ],
)
async def test_one_cause_for_all_records_is_the_answers_status(api, failure, error):
    api.node.partition_errors = {0: failure, 1: failure, 2: failure}
    records = [{"value": p, "partition": p} for p in (0, 1, 2, 0)]
    answer = await api.produce("many", records)
    assert answer.error == error
    assert answer.json["message"] == failure.message


async def test_some_records_failed(api):
    api.node.partition_errors = {1: FateUnknownError("who knows")}
    answer = await api.produce("many", [{"partition": 1}, {"partition": 0}])
    assert answer.status == 200
    assert answer.json["offsets"] == [
        {
            "partition": 1,
            "offset": None,
            "error_code": 50401,
            "kafka_error_code": 7,
            "error": "who knows",
            "message": "who knows",
        },
        item(0, 0),
    ]


async def test_all_failed_for_different_causes(api):
    api.node.partition_errors = {0: no_leader(), 1: FateUnknownError("who knows")}
    answer = await api.produce("many", [{"partition": 1}, {"partition": 0}])
    assert answer.status == 200
    assert [i["error_code"] for i in answer.json["offsets"]] == [50401, 50302]


def test_receipts_of_several_partitions_as_columns():
    receipts = Receipts(partitions=[1, 0], offsets=[5, 7], errors={})
    assert orjson.loads(encode_receipts(receipts))["offsets"] == [item(1, 5), item(0, 7)]
    receipts = Receipts(partitions=[1, 0], offsets=[5, None], errors={0: no_leader()})
    items = orjson.loads(encode_receipts(receipts))["offsets"]
    assert [(i["partition"], i["offset"], i["error_code"]) for i in items] == [
        (1, 5, None),
        (0, None, 50302),
    ]
    with pytest.raises(NoLeaderError):
        encode_receipts(Receipts.failed(0, no_leader(), 2))


# -- idempotency keys


async def keyed(api, key, records, path="/topics/t", **options):
    return await api.post(path, {"records": records}, headers={"Idempotency-Key": key}, **options)


async def test_a_repeat_gets_the_first_answer(api):
    first = await keyed(api, "k-1", [{"value": 1}])
    again = await keyed(api, "k-1", [{"value": 1}])
    assert first.json == again.json
    assert (await api.records("t")).json[-1]["offset"] == 0


async def test_hashes_are_of_topic_and_key_and_of_what_the_body_means(api):
    async def hashes(topic, key, body, path="", type_=JSON_V2):
        requests(api).clear()
        # With an id of its own, a request goes to the handler.
        headers = {"Idempotency-Key": key, "X-Request-Id": "own"}
        await api.post(f"/topics/{topic}{path}", body, type_, headers=headers)
        return requests(api)[0].idempotency

    a, b = b'{"records":[{"value":"YQ=="}]}', b'{"records":[{"value":"Yg=="}]}'
    base = await hashes("t", "k", a)
    assert (len(base.key_hash), len(base.body_hash)) == (16, 8)
    assert await hashes("t", "k", a) == base
    assert (await hashes("many", "k", a)).key_hash != base.key_hash
    assert (await hashes("t", "j", a)).key_hash != base.key_hash
    assert (await hashes("t", "k2", b)).body_hash != base.body_hash
    assert (await hashes("t", "k3", a, type_=BINARY_V2)).body_hash != base.body_hash
    assert (await hashes("t", "k4", a, "/partitions/0")).body_hash != base.body_hash


async def test_another_body_under_the_same_key_is_refused(api):
    assert (await keyed(api, "k", [{"value": 1}])).status == 200
    assert (await keyed(api, "k", [{"value": 2}])).error == (422, 42211)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (PartitionCountChangedError("2 then, 3 now"), (409, 40912)),
        (IdempotencyKeyReusedError("another body"), (422, 42211)),
    ],
)
async def test_what_the_node_says_of_keys(api, failure, error):
    api.node.errors["produce"] = failure
    assert (await keyed(api, "k", [{}])).error == error


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
async def test_refuses_bad_keys(api, key):
    assert (await keyed(api, key, [{}])).error == (400, 400)


async def test_the_longest_key(api):
    assert (await keyed(api, "~" * 255, [{}])).status == 200


async def test_no_key_no_hash(api):
    await api.produce("t", [{}])
    assert requests(api)[0].idempotency is None


# -- encoded batches


def encoded(*values):
    return encode_batch(
        RecordColumns(None, None, None, list(values), None),
        base_timestamp_ms=NOW_MS,
        producer=ProducerStamp(7, 0, 0),
    )


@pytest.mark.parametrize("suffix", ["", "/records"])
async def test_an_encoded_batch(api, suffix):
    batch = encoded(b"x", b"y")
    answer = await api.post(f"/topics/many/partitions/2{suffix}?acks=1&timeout_ms=9", batch, BATCH)
    assert answer.status == 200
    assert answer.json == {
        "partition": 2,
        "base_offset": 0,
        "last_offset": 1,
        "is_duplicate": False,
        "leader_epoch": 0,
    }
    assert api.node.batch_requests == [("many", 2, batch, Acks.LEADER, 9)]


async def test_a_batch_needs_a_partition(api):
    assert (await api.post("/topics/t", encoded(b"x"), BATCH)).error == (415, 415)


async def test_a_batch_may_come_under_a_key(api):
    async def keyed_batch(key, batch, partition=0):
        path = f"/topics/many/partitions/{partition}/records"
        assert (await api.post(path, batch, BATCH, headers={"Idempotency-Key": key})).status == 200
        return api.node.batch_keys.pop()

    first = await keyed_batch("k", encoded(b"x"))
    assert await keyed_batch("k", encoded(b"x")) == first
    assert (await keyed_batch("j", encoded(b"x"))).key_hash != first.key_hash
    assert (await keyed_batch("k", encoded(b"y"))).body_hash != first.body_hash
    assert (await keyed_batch("k", encoded(b"x"), partition=1)).body_hash != first.body_hash
    await api.post("/topics/many/partitions/0", encoded(b"x"), BATCH)
    assert api.node.batch_keys == [None]


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 200])
async def test_a_batch_that_is_none(api, damage):
    answer = await api.post("/topics/t/partitions/0/records", damage, BATCH)
    assert answer.error == (422, 42208)


async def test_records_in_one_request_are_bounded():
    async with serving(limits=ApiLimits(records_per_request_max=2)) as api:
        api.node.add_topic("t")
        assert (await api.produce("t", [{}, {}])).status == 200
        assert (await api.produce("t", [{}, {}, {}])).error == (413, 413)


def test_a_record_for_a_partition_that_is_not_there_has_none():
    """The node says -1; other servers of this dialect say null, and clients test for that."""
    missing = ProduceReceipt(partition=-1, offset=None, error=PartitionNotFoundError("no 9"))
    assert receipt_json(missing) == {
        "partition": None,
        "offset": None,
        "error_code": 40402,
        "kafka_error_code": 3,
        "error": "no 9",
        "message": "no 9",
    }


@pytest.mark.parametrize("path", ["/topics/t", "/topics/t/partitions/0"])
@pytest.mark.parametrize("query", ["?async=true", "?async=true&acks=all"])
async def test_who_wants_no_receipts_is_answered_at_once(api, path, query):
    for _ in range(2):
        answer = await api.post(path + query, {"records": [{"value": 1}]}, JSON_V2)
        assert (answer.status, answer.body) == (204, b"")
    assert [request.acks for request in requests(api)] == [Acks.NONE] * 2
    assert (await api.post(f"{path}?async=maybe", {"records": [{}]}, JSON_V2)).error == (400, 400)


def test_every_error_has_a_number_that_kafkas_clients_treat_alike():
    """What was not written, and may be later, is retried by them; what can never be written is not."""
    retried = {2, 3, 5, 6, 7, 16, 19, 51, 56, 89}
    for kind, row in ERROR_TABLE.items():
        code = kafka_code_of(make(kind))
        if row.status in (429, 503):
            assert code in retried, kind
        if row.status in (400, 413, 415, 422) and code > 0:
            assert code not in retried, kind


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", None]
)
async def test_a_type_that_names_no_format_is_told_as_which_it_was_taken(api, content_type):
    body = {"records": [{"value": "x"}]}
    for path in ("/topics/t", "/topics/t/partitions/0"):
        answer = await api.post(path, body, content_type)
        assert (answer.status, answer.headers["Milena-Record-Format"]) == (200, "json")
    answer = await api.post("/topics/t?async=true", body, content_type)
    assert (answer.status, answer.headers["Milena-Record-Format"]) == (204, "json")


async def test_a_type_that_names_its_format_is_not_told(api):
    json_body, binary_body = {"records": [{"value": 1}]}, {"records": [{"value": "AA=="}]}
    for content_type, body in ((JSON_V2, json_body), (BINARY_V2, binary_body), (V2, binary_body)):
        answer = await api.post("/topics/t", body, content_type)
        assert answer.status == 200
        assert "Milena-Record-Format" not in answer.headers
    answer = await api.post("/topics/t", b"line\n", "text/plain")
    assert (answer.status, "Milena-Record-Format" in answer.headers) == (200, False)


async def test_text_is_stored_as_its_bare_bytes(api):
    records = [{"key": "u1", "value": "tëa"}, {"value": ""}, {"key": None, "value": None}]
    for path in ("/topics/t", "/topics/t/partitions/0"):
        assert (await api.post(path, {"records": records}, TEXT_V2)).status == 200
    (stored, again) = (request.records for request in requests(api))
    assert stored.keys == [b"u1", None, None]
    assert stored.values == ["tëa".encode(), b"", None]
    assert (again.keys, again.values) == (stored.keys, stored.values)


@pytest.mark.parametrize("wrong", [1, True, 1.5, {"a": 1}, ["a"]])
@pytest.mark.parametrize("field", ["key", "value"])
async def test_what_is_no_string_is_no_text(api, field, wrong):
    body = {"records": [{"key": "a", "value": "b"}, {field: wrong}]}
    answer = await api.post("/topics/t", body, TEXT_V2)
    assert answer.error == (422, 42208)
    assert answer.json["message"].startswith(f"records[1].{field} must be a string")
    answer = await api.post("/topics/t", {"records": [{"value": wrong}]}, TEXT_V2)
    assert answer.error == (422, 42208)
    assert not requests(api)
