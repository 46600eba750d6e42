"""v3 produce: records one after the other, and a receipt for each while the request is open."""

import asyncio
import gzip
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.formats import json_texts
from http_api.formats.json_texts import JsonTexts
from http_api.formats.v3_records import iso_time
from http_api.ports.node import ApiLimits
from http_api.protocol.media import BINARY_V2_TYPE
from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.errors import (
    MalformedRequestError,
    NotEnoughReplicasError,
    RequestTooLargeError,
    TopicNotFoundError,
)
from milena.model.requests import Acks
from tests.support.fakes.ports import CLUSTER_ID, NOW_MS
from tests.support.http.api_server import V3, serving

PATH = f"{V3}/topics/t/records"
JSON = "application/json"


def record(data, **more):
    return {"value": {"type": "JSON", "data": data}, **more}


async def produce(api, *records, path=PATH, **options):
    body = b"\n".join(r if isinstance(r, bytes) else orjson.dumps(r) for r in records)
    return await api.post(path, body, JSON, **options)


def receipts(answer):
    assert answer.status == 200, answer
    return [orjson.loads(line) for line in answer.body.split(b"\r\n") if line]


def stored(api, topic="t", partition=0):
    data = b"".join(api.node.logs[topic, partition].batches)
    rows = []
    for position, header in iterate_batches(data):
        columns = decode_columns(data, header, position)
        keys = columns.keys or [None] * len(columns.values)
        rows += zip(keys, columns.values, strict=True)
    return rows


async def test_one_record(api):
    answer = await produce(
        api,
        {
            "partition_id": 0,
            "key": {"type": "STRING", "data": "ä"},
            "value": {"type": "JSON", "data": {"a": [1, None]}},
            "headers": [{"name": "h", "value": "aGk="}],
            "timestamp": "2021-02-05T19:14:42Z",
        },
    )
    assert answer.headers["Content-Type"] == JSON
    assert "X-Request-Id" in answer.headers
    assert receipts(answer) == [
        {
            "error_code": 200,
            "cluster_id": CLUSTER_ID,
            "topic_name": "t",
            "partition_id": 0,
            "offset": 0,
            "timestamp": "2021-02-05T19:14:42.000Z",
            "key": {"type": "STRING", "size": 2},
            "value": {"type": "JSON", "size": 14},
        }
    ]
    assert stored(api) == [("ä".encode(), b'{"a":[1,null]}')]


@pytest.mark.parametrize(
    "records",
    [
        [{"value": {"type": "STRING", "data": "text alone"}}] * 2,
        [record(1), record(2, timestamp=1_700_000_000_001)],
        [record(1, partition_id=0, timestamp=0), record(2, partition_id=1)],
    ],
    ids=["texts", "one partition", "two partitions"],
)
async def test_receipts_have_the_times_that_readers_get(api, records):
    answer = await produce(api, *records, path=PATH.replace("/t/", "/many/"))
    told = [receipt["timestamp"] for receipt in receipts(answer)]
    read = []
    for partition in range(3):
        path = f"/topics/many/partitions/{partition}/records"
        answer = await api.get(path, accept=BINARY_V2_TYPE)
        read += [iso_time(row["timestamp"]) for row in answer.json]
    assert told == read
    assert all(told)


async def test_what_comes_together_is_appended_together_and_answered_in_order(api):
    body = b"".join(orjson.dumps(record(n)) + b" \r\n"[: n % 4] for n in range(50))
    answer = await api.post(PATH, body, JSON)
    assert [receipt["offset"] for receipt in receipts(answer)] == list(range(50))
    assert len(api.node.produce_requests) == 1
    assert [value for _, value in stored(api)] == [b"%d" % n for n in range(50)]


async def test_the_kinds_of_data(api):
    answer = await produce(
        api,
        {"key": {"type": "BINARY", "data": "AAE="}, "value": {"type": "STRING", "data": "text"}},
        {"value": {"type": "json", "data": None}},
        {"value": {"type": "BINARY", "data": None}, "key": None},
        {},
    )
    assert [receipt["error_code"] for receipt in receipts(answer)] == [200] * 4
    assert receipts(answer)[2]["value"] == {"type": "BINARY", "size": 0}
    assert stored(api) == [(b"\x00\x01", b"text"), (None, None), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"value": {"type": "BINARY", "data": "1"}}, 400),
        ({"value": {"type": "BINARY", "data": 1}}, 400),
        ({"value": {"type": "STRING", "data": "\ud800"}}, 400),
        ({"value": {"data": 1}}, 422),
        ({"value": {"type": "XML", "data": "<a/>"}}, 422),
        ({"value": {"type": "AVRO", "data": {}}}, 42202),
        ({"value": {"type": "JSON", "data": 1, "schema_id": 1}}, 42202),
        ({"value": 1}, 400),
        ({"valeu": 1}, 422),
        ({"partition_id": -1}, 40402),
        ({"partition_id": 7}, 40402),
        ({"timestamp": "soon"}, 400),
        ({"headers": [{"value": "aGk="}]}, 400),
    ],
)
async def test_what_is_wrong_with_a_record_is_in_its_receipt(api, wrong, code):
    text = b'{"value":{"type":"STRING","data":"\\ud800"}}'
    is_half = wrong.get("value") == {"type": "STRING", "data": "\ud800"}
    answer = await produce(api, text if is_half else wrong, record("fine"))
    if is_half:
        # The reader of JSON refuses it already, and with it all that follows.
        assert answer.error == (400, 400)
        return
    bad, good = receipts(answer)
    if wrong == {"partition_id": 7}:
        # The node in memory refuses the whole request; a real one refuses the record.
        good = {"error_code": 200}
    assert (bad["error_code"], set(bad)) == (code, {"error_code", "message"})
    assert good["error_code"] == 200


@pytest.mark.parametrize("value", [{"data": 1}, {"type": "", "data": 1}, {"type": None}])
async def test_data_without_a_type_is_told_which_there_are(api, value):
    (receipt,) = receipts(await produce(api, {"value": value}))
    assert receipt["message"].startswith(
        "'value': 'type' is missing; it says what 'data' is: BINARY"
    )


async def test_a_number_that_is_too_large_is_not_said_to_be_none(api):
    late, far = receipts(
        await produce(
            api,
            b'{"value":null,"timestamp":100000000000000000000}',
            b'{"partition_id":1%b}' % (b"0" * 30),
        )
    )
    assert "is not between 0 and" in late["message"]
    assert f"'partition_id' is {10**30}; at most 9223372036854775807" in far["message"]


@pytest.mark.parametrize("query", ["", "?acks=0", "?acks=1"])
@pytest.mark.parametrize(
    "error", [None, NotEnoughReplicasError("too few"), TopicNotFoundError("no")]
)
async def test_texts_alone_are_answered_as_texts_among_others(api, query, error):
    """There is a short way for a body in which every record is a text and nothing else."""

    def text(data):
        return {"value": {"type": "STRING", "data": data}}

    texts = [text("x" * n) for n in (1, 0, 300)] + [text("%d %b")]
    answers = []
    for last in (text("t"), {"value": {"type": "BINARY", "data": "dA=="}}):
        if isinstance(error, TopicNotFoundError):
            api.node.errors["produce"] = error
        elif error is not None:
            api.node.partition_errors[0] = error
        answers.append(receipts(await produce(api, *texts, last, path=PATH + query)))
        assert len(api.node.produce_requests[-1:]) == (not isinstance(error, TopicNotFoundError))
    alone, among_others = answers
    for receipt in among_others[:4]:
        if receipt.get("offset") is not None:
            receipt["offset"] -= 5
    assert alone[:4] == among_others[:4]
    assert len(alone) == len(among_others) == 5
    if error is None:
        values = [value for _, value in stored(api)]
        assert values[:4] == values[5:9] == [b"x", b"", b"x" * 300, b"%d %b"]
        assert values[4] == values[9] == b"t"


async def test_texts_go_to_their_partitions(api):
    texts = [{"value": {"type": "STRING", "data": str(n)}} for n in range(6)]
    answer = await produce(api, *texts, path=f"{V3}/topics/many/records")
    for receipt, text in zip(receipts(answer), texts, strict=True):
        rows = stored(api, "many", receipt["partition_id"])
        assert rows[receipt["offset"]] == (None, text["value"]["data"].encode())


async def test_a_topic_that_is_not_there_and_one_that_refuses(api):
    for code, path in ((40401, f"{V3}/topics/x/records"), (50303, PATH)):
        api.node.partition_errors[0] = NotEnoughReplicasError("too few")
        answer = await produce(api, record(1), record(2), path=path)
        assert [receipt["error_code"] for receipt in receipts(answer)] == [code] * 2


async def test_options_are_those_of_v2(api):
    answer = await produce(api, record(1), path=f"{PATH}?acks=0&timeout_ms=999999999")
    assert receipts(answer)[0]["offset"] is None
    (request,) = api.node.produce_requests
    assert (request.acks, request.timeout_ms) == (Acks.NONE, ApiLimits().produce_timeout_ms_max)
    assert (await produce(api, record(1), path=f"{PATH}?acks=9")).error == (400, 400)


@pytest.mark.parametrize("body", [b"", b" \n"])
async def test_an_empty_body(api, body):
    assert (await api.post(PATH, body, JSON)).error == (422, 422)


@pytest.mark.parametrize(
    "rest", [b"{", b"nul", b"[]", b'"x', b"}", b"{]", b"{'a'}", b'{"a":"', b"\xff"]
)
async def test_bytes_that_are_not_json_end_it(api, rest):
    answer = await produce(api, record(1), rest)
    good, bad = receipts(answer)
    assert (good["error_code"], bad["error_code"]) == (200, 400)
    assert (await api.post(PATH, rest, JSON)).error == (400, 400)
    assert len(stored(api)) == 1


async def test_another_cluster_type_or_size(api):
    other = PATH.replace(CLUSTER_ID, "other")
    assert (await produce(api, record(1), path=other)).error == (404, 40406)
    assert (await api.post(PATH, b"{}", "text/plain")).error == (415, 415)
    async with serving(limits=ApiLimits(request_bytes_max=100)) as small:
        small.node.add_topic("t")
        answer = await produce(small, *(record("x" * 20) for _ in range(20)))
        assert len(receipts(answer)) == 20
        assert (await produce(small, record("x" * 200))).error == (413, 413)


async def test_a_compressed_body(api):
    body = gzip.compress(orjson.dumps(record(1)) * 3)
    answer = await api.post(PATH, body, JSON, headers={"Content-Encoding": "gzip"})
    assert len(receipts(answer)) == 3


class Sender:
    """A body that grows while the request is open."""

    def __init__(self):
        self.queue = asyncio.Queue()

    async def __aiter__(self):
        while (data := await self.queue.get()) is not None:
            yield data

    def send(self, data):
        self.queue.put_nowait(data)


async def test_a_body_that_comes_as_one_large_piece_is_taken_in_steps(api):
    body = gzip.compress(b'{"value":{"type":"STRING","data":"%b"}}\n' % (b"x" * 900) * 1000)
    answer = await api.post(PATH, body, JSON, headers={"Content-Encoding": "gzip"})
    assert [receipt["error_code"] for receipt in receipts(answer)] == [200] * 1000
    sizes = [len(batch) for log in api.node.logs.values() for batch in log.batches]
    assert sum(sizes) > 900_000
    assert max(sizes) < 200_000


async def test_receipts_come_while_the_request_is_open(api):
    sender = Sender()
    sender.send(orjson.dumps(record(0)))
    url = api.base_url + PATH
    headers = {"Content-Type": JSON}
    async with api.session.post(url, data=sender.__aiter__(), headers=headers) as response:
        for number in range(1, 4):
            receipt = orjson.loads(await response.content.readline())
            assert receipt["offset"] == number - 1
            text = orjson.dumps(record(number))
            sender.send(text[:9])
            sender.send(text[9:])
        assert orjson.loads(await response.content.readline())["offset"] == 3
        assert (await api.get("/metrics")).body.count(b"streams_open 1") == 1
        assert (await api.get("/metrics")).body.count(b"requests_in_flight 0") == 1
        # The node is about to stop: what has come is answered for, and the answer ends.
        await api.post("/drain", {"timeout_ms": 1})
        assert await response.read() == b""
        sender.send(None)


async def test_half_a_record_is_not_waited_for_long():
    async with serving(limits=ApiLimits(body_wait_ms_max=20)) as api:
        api.node.add_topic("t")
        sender = Sender()
        sender.send(b'{"value":')
        answer = await api.call(
            "POST", PATH, data=sender.__aiter__(), headers={"Content-Type": JSON}
        )
        assert answer.error == (408, 408)
        sender.send(None)


async def test_streams_of_records_have_their_bound():
    async with serving(limits=ApiLimits(streams_max=0)) as api:
        assert (await produce(api, record(1))).error == (429, 42901)


# -- records:batch ---------------------------------------------------------------------------------

BATCH = f"{PATH}:batch"


async def test_a_batch_says_of_each_record_what_became_of_it(api):
    entries = [
        {"id": "a", **record(1), "partition_id": 0},
        {"id": "b-2_", "value": {"type": "BINARY", "data": "no base64"}},
        {"id": "c", "key": {"type": "STRING", "data": "k"}, "partition_id": 0},
        {"id": "d", **record(2), "colour": "blue"},
    ]
    answer = await api.post(BATCH, {"entries": entries})
    assert answer.status == 207
    taken = {"cluster_id": CLUSTER_ID, "topic_name": "t", "partition_id": 0}
    taken["timestamp"] = iso_time(NOW_MS)
    assert answer.json["successes"] == [
        {"id": "a", **taken, "offset": 0, "key": None, "value": {"type": "JSON", "size": 1}},
        {"id": "c", **taken, "offset": 1, "key": {"type": "STRING", "size": 1}, "value": None},
    ]
    failures = answer.json["failures"]
    assert [(row["id"], row["error_code"]) for row in failures] == [("b-2_", 400), ("d", 422)]
    assert "colour" in failures[1]["message"]
    assert stored(api) == [(None, b"1"), (b"k", None)]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"entries": []}, (422, 42208)),
        ({"entries": [{"id": str(n), **record(n)} for n in range(1001)]}, (422, 42208)),
        ({"entries": [{"id": "a"}, {"id": "a"}]}, (422, 42208)),
        ({"entries": [record(1)]}, (422, 42208)),
        ({"entries": [{"id": 1, **record(1)}]}, (422, 42208)),
        ({"entries": [{"id": "a" * 81, **record(1)}]}, (422, 42208)),
        ({"entries": [{"id": "ä", **record(1)}]}, (422, 42208)),
        ({"entries": [1]}, (400, 400)),
        ([], (400, 400)),
    ],
)
async def test_a_batch_that_cannot_be_told_apart_is_refused_as_a_whole(api, body, error):
    assert (await api.post(BATCH, body)).error == error
    assert not any(log.batches for log in api.node.logs.values())


async def test_a_batch_for_a_topic_that_is_not_there(api):
    answer = await api.post(f"{V3}/topics/none/records:batch", {"entries": [{"id": "a"}]})
    assert answer.status == 207
    assert [row["error_code"] for row in answer.json["failures"]] == [40401]


# -- taking texts apart ----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.text('a"\\{}[]ä\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"}a\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6),
    st.sampled_from([b"", b" ", b"\n", b"\r\n\t", b"\n\n"]),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_texts_are_the_same_however_they_are_cut(values, space, cuts):
    body = space.join(orjson.dumps(value) for value in values) + space
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    texts = JsonTexts(1 << 20)
    found = []
    for first, last in pairwise(edges):
        some, broken = texts.feed(body[first:last])
        assert broken is None
        found += some
    texts.close()
    assert found == values
    assert texts.kept_bytes == 0


@given(
    st.lists(VALUES.filter(lambda value: not isinstance(value, list)), max_size=6),
    st.sampled_from([b" ", b"\n", b"\r\n\t", b"\n\n"]),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_values_that_are_no_objects_end_where_they_end(values, space, cuts):
    body = space.join(orjson.dumps(value) for value in values)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    texts = JsonTexts(1 << 20)
    found = []
    for piece in (*(body[first:last] for first, last in pairwise(edges)), b"\n"):
        some, broken = texts.feed(piece)
        assert broken is None
        found += some
    texts.close()
    assert found == values


@pytest.mark.parametrize("odd", ["null", "5", "-1.5e3", "true", '"{"', "null 7"])
async def test_a_value_that_is_no_record_leaves_its_neighbours_alone(api, odd):
    body = orjson.dumps(record(1)) + odd.encode() + orjson.dumps(record(2)) + odd.encode()
    refused = [400] * len(odd.split())
    codes = [receipt["error_code"] for receipt in receipts(await api.post(PATH, body, JSON))]
    assert codes == [200, *refused, 200, *refused]


@given(st.binary(max_size=60), st.integers(1, 7))
def test_hostile_bytes_are_refused_or_kept_and_never_anything_else(body, step):
    texts = JsonTexts(40)
    for first in range(0, len(body), step):
        found, broken = texts.feed(body[first : first + step])
        assert not any(isinstance(value, list) for value in found)
        if broken is not None:
            assert isinstance(broken, MalformedRequestError | RequestTooLargeError)
            return
        assert texts.kept_bytes <= 40


@pytest.mark.parametrize("body", [b'{"a":1\n"b":2}\n{}\n', b'{}\n{"a":1\n"b":2},{}\n'])
def test_lines_that_are_none_by_themselves_are_not_put_together(body):
    _, broken = JsonTexts(100).feed(body)
    assert isinstance(broken, MalformedRequestError)


def test_an_object_may_have_many_lines_between_those_that_have_one():
    texts = JsonTexts(100)
    assert texts.feed(b'{"a":1}\n\n{\n"b":\n2}\n{"c":3}\n{"d"') == (
        [{"a": 1}, {"b": 2}, {"c": 3}],
        None,
    )
    assert texts.feed(b':4}\n{"e":5}\n') == ([{"d": 4}, {"e": 5}], None)


def test_a_line_too_long_is_refused_behind_those_that_are_not():
    found, broken = JsonTexts(10).feed(b'{"a":1}\n{"a":"aaaaaaaaaa"}\n{}\n')
    assert found == [{"a": 1}]
    assert isinstance(broken, RequestTooLargeError)


def test_an_end_that_does_not_come():
    texts = JsonTexts(100)
    assert texts.feed(b'{"a":"\\') == ([], None)
    assert texts.feed(b'"b') == ([], None)
    with pytest.raises(MalformedRequestError):
        texts.close()
    assert texts.feed(b'"} {') == ([{"a": '"b'}], None)
    _, broken = texts.feed(b" " * 200)
    assert isinstance(broken, RequestTooLargeError)


@given(
    st.text(alphabet='a"\\\u00e9{}[] ', max_size=30).map(orjson.dumps),
    st.integers(1, 5),
)
def test_strings_end_where_json_says(text, step):
    body = b'{"a":' + text + b'}{"b":1}'
    texts = JsonTexts(1000)
    found = []
    for first in range(0, len(body), step):
        values, broken = texts.feed(body[first : first + step])
        assert broken is None
        found += values
    assert found == [{"a": orjson.loads(text)}, {"b": 1}]


def test_each_byte_of_a_long_string_is_looked_at_once(monkeypatch):
    """However many escaped quotes it has, in however many pieces it comes: else it stops the node for hours."""
    looked = []

    class Counting:
        def __init__(self, pattern):
            self._pattern = pattern

        def __getattr__(self, name):
            def look(data, at):
                looked.append(len(data) - at)
                return getattr(self._pattern, name)(data, at)

            return look

    for name in ("_SIGN", "_WITHIN"):
        monkeypatch.setattr(json_texts, name, Counting(getattr(json_texts, name)))
    texts = JsonTexts(1 << 20)
    texts.feed(b'{"a":"')
    for _ in range(100):
        assert texts.feed(b'\\"' * 500) == ([], None)
    assert sum(looked) <= 2 * texts.kept_bytes
    assert texts.feed(b'"}') == ([{"a": '"' * 50_000}], None)


@pytest.mark.parametrize(
    "time", [-1, 253_402_300_800_000, 2**63, 2**64 - 1, "9999-12-31T23:59:59-12:00"]
)
async def test_a_time_that_no_record_can_have(api, time):
    answer = await produce(api, record(1, timestamp=time), record(2))
    refused, taken = receipts(answer)
    assert refused["error_code"] == 42208, refused
    assert taken["error_code"] == 200, taken
