"""v2 REST consumers: rows 10 to 21 of the dialect, and what differs between the proxies that speak it."""

from urllib.parse import quote

import orjson
import pytest

from http_api.ports.groups import OffsetToCommit, Reset, Seek
from http_api.ports.node import ApiLimits
from http_api.streaming import answer as stream_answer
from milena.model.errors import FateUnknownError, NoLeaderError
from tests.support.fakes.ports import NOW_MS
from tests.support.http.api_server import BINARY_V2, EVENTS, JSON_V2, NDJSON, TEXT_V2, V2, serving

GROUP = "/consumers/g"
C1 = f"{GROUP}/instances/c1"
JSON = "application/json"


async def create(api, name="c1", **settings):
    answer = await api.post(
        GROUP, {"name": name, "format": "json", "auto.offset.reset": "earliest", **settings}, V2
    )
    assert answer.status == 200, answer
    return answer.json


@pytest.fixture
async def subscribed(api):
    """``c1`` reads ``t``, which holds three records."""
    api.node.append("t", 0, [b"1", b'{"a":2}', None], [b'"k"', None, None])
    await create(api)
    answer = await api.post(f"{C1}/subscription", {"topics": ["t"]}, V2)
    assert (answer.status, answer.body) == (204, b"")
    return api


def settings(api, name="c1"):
    return api.node.consumers.known["g", name].settings


def committed(api):
    return {key: item.offset for key, item in api.node.groups.known["g"].offsets.items()}


def recorded(monkeypatch, api, method):
    """Arguments of the port's calls, which do nothing."""
    calls = []

    async def record(group, instance, *arguments):
        calls.append(arguments)

    monkeypatch.setattr(api.node.consumers, method, record)
    return calls


# -- 10: create ------------------------------------------------------------------------------------


async def test_a_consumer_is_told_its_name_and_address(api):
    assert await create(api) == {"instance_id": "c1", "base_uri": f"{api.base_url}{C1}"}
    answer = await api.post(GROUP, {"format": "json"}, V2)
    assert answer.headers["Content-Type"] == V2
    assert (
        answer.json["base_uri"] == f"{api.base_url}{GROUP}/instances/{answer.json['instance_id']}"
    )


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({"Forwarded": "host=log.example;proto=https"}, "https://log.example"),
        ({"X-Forwarded-Host": "log.example", "X-Forwarded-Proto": "https"}, "https://log.example"),
        ({"X-Forwarded-Host": "log.example:81", "X-Forwarded-Path": "/up/"}, "http://log.example:81/up"),
        ({"Host": "other:8082"}, "http://other:8082"),
    ],
)  # fmt: skip
async def test_the_address_is_what_the_client_sees(api, headers, base):
    answer = await api.post(GROUP, {"name": "a b"}, V2, headers=headers)
    assert answer.json["base_uri"] == f"{base}{GROUP}/instances/a%20b"
    refused = await api.post(GROUP, {"name": "c"}, V2, headers={"X-Forwarded-Proto": "mqtt"})
    assert refused.error == (400, 400)
    assert ("g", "c") not in api.node.consumers.known


async def test_everything_may_be_left_out(api):
    for body in (None, {}):
        answer = await api.post(GROUP, body, V2)
        made = settings(api, answer.json["instance_id"])
        assert (made.format, made.auto_offset_reset, made.is_auto_commit) == ("binary", "latest", True)  # fmt: skip
        assert (made.fetch_min_bytes, made.request_timeout_ms) == (1, 1000)


async def test_a_name_that_is_empty_is_none(api):
    answer = await api.post(GROUP, {"name": ""}, V2)
    assert answer.error == (422, 422)
    assert not api.node.consumers.known


REDPANDA = {
    "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false",
    "fetch.min.bytes": "1", "consumer.request.timeout.ms": "10000",
}  # fmt: skip
STRIMZI = {
    "format": "json", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    "fetch.min.bytes": 1, "consumer.request.timeout.ms": 10000, "isolation.level": "read_committed",
}  # fmt: skip


@pytest.mark.parametrize("body", [REDPANDA, STRIMZI, {**REDPANDA, "format": "JSON"}])
@pytest.mark.parametrize(
    "type_", [V2, JSON, JSON_V2, BINARY_V2, None, "application/vnd.kafka.v1+json", "application/vnd.kafka+json"]
)  # fmt: skip
async def test_text_and_values_are_both_taken_under_any_of_the_names_of_json(api, body, type_):
    assert (await api.post(f"{GROUP}/", {**body, "name": "c1"}, type_)).status == 200
    made = settings(api)
    assert (made.format, made.auto_offset_reset, made.is_auto_commit) == ("json", "earliest", False)
    assert (made.fetch_min_bytes, made.request_timeout_ms) == (1, 10_000)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"format": "xml"}, (422, 42204)),
        ({"format": "avro"}, (422, 42202)),
        ({"format": "jsonschema"}, (422, 42202)),
        ({"format": 1}, (400, 400)),
        ({"auto.offset.reset": "soon"}, (422, 42204)),
        ({"isolation.level": "read_uncommitted"}, (422, 42204)),
        ({"isolation.level": "dirty"}, (422, 42204)),
        ({"auto.commit.enable": "maybe"}, (400, 400)),
        ({"enable.auto.commit": 1}, (400, 400)),
        ({"fetch.min.bytes": "many"}, (400, 400)),
        ({"fetch.min.bytes": 10_000_001}, (422, 42204)),
        ({"fetch.min.bytes": -2}, (422, 422)),
        ({"consumer.request.timeout.ms": 1.5}, (400, 400)),
        ([], (400, 400)),
    ],
)
async def test_settings_that_cannot_be(api, body, error):
    assert (await api.post(GROUP, body, V2)).error == error
    assert not api.node.consumers.known


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("auto.ofset.reset", "auto.offset.reset"),
        ("auto_offset_reset", "auto.offset.reset"),
        ("Auto.Offset.Reset", "auto.offset.reset"),
        ("enable.autocommit", "enable.auto.commit"),
        ("fromat", "format"),
        ("fetch.min.byte", "fetch.min.bytes"),
    ],
)
async def test_a_setting_that_is_misspelt_is_refused_with_what_was_meant(api, name, meant):
    answer = await api.post(GROUP, {name: "earliest"}, V2)
    assert answer.error == (422, 422)
    assert answer.json["message"] == f"unknown setting '{name}': did you mean '{meant}'?"
    assert not api.node.consumers.known


@pytest.mark.parametrize(
    "name",
    ["max.poll.records", "fetch.max.bytes", "request.timeout.ms", "auto.commit.interval.ms", "group.id"],
)  # fmt: skip
async def test_a_setting_of_other_servers_is_taken_and_ignored(api, name):
    await create(api, **{name: "1"})
    assert len(api.node.consumers.known) == 1


async def test_minus_one_is_the_default_or_waits_for_the_whole_time(api):
    await create(api, **{"fetch.min.bytes": -1, "consumer.request.timeout.ms": "-1"})
    made = settings(api)
    assert (made.fetch_min_bytes, made.request_timeout_ms) == (-1, 1000)


async def test_a_name_is_taken_once(api):
    await create(api)
    assert (await api.post(GROUP, {"name": "c1"}, V2)).error == (409, 40902)


# -- 11 to 16: subscription and assignment ---------------------------------------------------------


async def test_a_consumer_that_is_gone_is_not_found_by_any_call(subscribed):
    api = subscribed
    assert (await api.call("DELETE", C1)).status == 204
    partitions = {"partitions": [{"topic": "t", "partition": 0}]}
    answers = [
        await api.call("DELETE", C1, headers={"Content-Type": V2}),
        await api.post(f"{C1}/subscription", {"topics": ["t"]}, V2),
        await api.get(f"{C1}/subscription"),
        await api.call("DELETE", f"{C1}/subscription"),
        await api.post(f"{C1}/assignments", partitions, V2),
        await api.get(f"{C1}/assignments"),
        await api.post(f"{C1}/positions/beginning", partitions, V2),
        await api.get(f"{C1}/records", JSON_V2),
        await api.get(f"{C1}/records", EVENTS),
        await api.post(f"{C1}/offsets", None, None),
        await api.get(f"{C1}/offsets"),
    ]
    assert [answer.error for answer in answers] == [(404, 40403)] * len(answers)


async def test_what_it_is_subscribed_to(subscribed):
    found = await subscribed.get(f"{C1}/subscription/")
    assert found.json == {"topics": ["t"], "partitions": [{"t": [0]}]}
    again = await subscribed.post(f"{C1}/subscription", {"topics": ["many"]}, V2)
    assert again.status == 204
    found = await subscribed.get(f"{C1}/subscription")
    assert found.json == {"topics": ["many"], "partitions": [{"many": [0, 1, 2]}]}


async def test_a_pattern(api):
    await create(api)
    assert (await api.post(f"{C1}/subscription", {"topic_pattern": ".*"}, V2)).status == 204
    found = (await api.get(f"{C1}/subscription")).json
    assert found["topic_pattern"] == ".*"
    assert found["partitions"] == [{"many": [0, 1, 2]}, {"t": [0]}]


async def test_to_subscribe_to_no_topics_is_to_give_up_the_subscription(subscribed):
    api = subscribed
    answer = await api.post(f"{C1}/subscription", {"topics": []}, V2)
    assert (answer.status, answer.body) == (204, b"")
    assert (await api.get(f"{C1}/subscription")).json == {"topics": [], "partitions": []}


@pytest.mark.parametrize("name", ["a\nb", "a\x00", "\x7f"])
async def test_control_characters_are_in_no_name(api, name):
    await create(api)
    quoted = quote(name)
    for method, path, body in (
        ("POST", GROUP, {"name": name}),
        ("POST", f"{C1}/subscription", {"topics": ["t", name]}),
        ("POST", f"/consumers/{quoted}", {}),
        ("GET", f"/consumers/g/instances/{quoted}/records", None),
        ("GET", f"/topics/{quoted}", None),
        ("POST", f"/topics/{quoted}", {"records": [{"value": 1}]}),
    ):
        type_ = JSON if path.startswith("/topics") else V2
        answer = await (api.get(path) if body is None else api.post(path, body, type_))
        assert answer.status == 400, (method, path, answer)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"topics": ["t"], "topic_pattern": ".*"}, (409, 40903)),
        ({}, (409, 40903)),
        ({"topics": "t"}, (400, 400)),
        ({"topics": [1]}, (400, 400)),
        ({"topic": "t"}, (422, 422)),
        (b"", (400, 400)),
    ],
)
async def test_subscriptions_that_cannot_be(api, body, error):
    await create(api)
    assert (await api.post(f"{C1}/subscription", body, V2)).error == error


async def test_partitions_by_hand(api):
    await create(api)
    wanted = {"partitions": [{"topic": "many", "partition": n} for n in (2, 0, 2)]}
    assert (await api.post(f"{C1}/assignments", wanted, V2)).status == 204
    found = (await api.get(f"{C1}/assignments")).json
    assert found == {"partitions": [{"topic": "many", "partition": n} for n in (2, 0)]}
    assert (await api.post(f"{C1}/subscription", {"topics": ["t"]}, V2)).error == (409, 40903)
    assert (await api.call("DELETE", f"{C1}/subscription")).status == 204
    assert (await api.get(f"{C1}/assignments")).json == {"partitions": []}
    assert (await api.post(f"{C1}/subscription", {"topics": ["t"]}, V2)).status == 204
    assert (await api.post(f"{C1}/assignments", wanted, V2)).error == (409, 40903)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"partitions": {}}, (400, 400)),
        ({"partitions": [{"topic": "many"}]}, (422, 422)),
        ({"partitions": [{"partition": 0}]}, (422, 422)),
        ({"partitions": [{"topic": "many", "partition": -1}]}, (422, 422)),
        ({"partitions": [{"topic": "many", "partition": 9}]}, (404, 40402)),
        ({"partitions": [{"topic": "x", "partition": 0}]}, (404, 40401)),
        ({"partitions": [{"topic": "t", "partition": 0}] * 10_001}, (422, 422)),
    ],
)
async def test_partitions_that_cannot_be(api, body, error):
    await create(api)
    assert (await api.post(f"{C1}/assignments", body, V2)).error == error


# -- 17 and 18: positions --------------------------------------------------------------------------


async def test_positions(subscribed, monkeypatch):
    calls = recorded(monkeypatch, subscribed, "seek")
    place = {"topic": "t", "partition": 0}
    bodies = [
        ("", {"offsets": [{**place, "offset": 2, "metadata": "x"}]}),
        ("", {"offsets": [{**place, "offset": "2"}]}),
        ("", {"timestamps": [{**place, "timestamp": "2023-11-14T22:13:20Z"}]}),
        ("", {"timestamps": [{**place, "timestamp": NOW_MS}]}),
        ("/beginning", {"partitions": [place]}),
        ("/end", {"partitions": [place]}),
    ]
    for path, body in bodies:
        assert (await subscribed.post(f"{C1}/positions{path}", body, V2)).status == 204
    where = {"topic": "t", "partition": 0}
    assert [seeks for ((*seeks,),) in calls] == [
        [Seek(**where, offset=2)],
        [Seek(**where, offset=2)],
        [Seek(**where, timestamp_ms=NOW_MS)],
        [Seek(**where, timestamp_ms=NOW_MS)],
        [Seek(**where, name=Reset.EARLIEST)],
        [Seek(**where, name=Reset.LATEST)],
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (422, 422)),
        ({"offsets": []}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0}]}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": -1}]}, (422, 422)),
        ({"timestamps": [{"topic": "t", "partition": 0, "timestamp": "soon"}]}, (400, 400)),
        ({"timestamps": [{"topic": "t", "partition": 0, "timestamp": 1 << 60}]}, (422, 422)),
        ({"offsets": [{"topic": "many", "partition": 0, "offset": 0}]}, (409, 40903)),
    ],
)
async def test_positions_that_cannot_be(subscribed, body, error):
    assert (await subscribed.post(f"{C1}/positions", body, V2)).error == error


@pytest.mark.parametrize("offset", ["begin", "earliest", "latest"])
async def test_a_position_that_is_a_word_is_told_where_words_are_paths(subscribed, offset):
    body = {"offsets": [{"topic": "t", "partition": 0, "offset": offset}]}
    refused = await subscribed.post(f"{C1}/positions", body, V2)
    assert refused.error == (400, 400)
    for word in ("earliest", "positions/beginning", "latest", "positions/end"):
        assert word in refused.json["message"]


# -- 19: records -----------------------------------------------------------------------------------

ONE = {"topic": "t", "key": "k", "value": 1, "partition": 0, "offset": 0, "timestamp": NOW_MS}


@pytest.mark.parametrize(
    ("accept", "type_"),
    [
        (None, JSON_V2),
        ("*/*", JSON_V2),
        (JSON_V2, JSON_V2),
        (V2, JSON_V2),
        ("application/vnd.kafka.json.v1+json", JSON_V2),
        (JSON, JSON),
        (f"text/html, {BINARY_V2}, {JSON_V2};q=0.5", JSON_V2),
    ],
)
async def test_records_come_in_the_consumers_format(subscribed, accept, type_):
    answer = await subscribed.get(f"{C1}/records", accept)
    assert answer.headers["Content-Type"] == type_
    assert answer.json[0] == ONE
    assert [(r["offset"], r["value"]) for r in answer.json] == [(0, 1), (1, {"a": 2}), (2, None)]
    answer = await subscribed.get(f"{C1}/records?timeout=0", accept)
    assert (answer.status, answer.json) == (200, [])


@pytest.mark.parametrize(
    "accept",
    [BINARY_V2, "application/vnd.kafka.avro.v2+json", "text/plain", "application/vnd.milena.batch"],
)
async def test_another_format_is_refused_and_nothing_delivered(subscribed, accept):
    assert (await subscribed.get(f"{C1}/records", accept)).error == (406, 40601)
    assert len((await subscribed.get(f"{C1}/records")).json) == 3


async def test_a_consumer_of_bytes(api):
    api.node.append("t", 0, [b"\xff"], [b"k"])
    await create(api, format="binary")
    place = {"partitions": [{"topic": "t", "partition": 0}]}
    await api.post(f"{C1}/assignments", place, V2)
    for accept, type_ in ((BINARY_V2, BINARY_V2), (None, BINARY_V2), (JSON, JSON)):
        await api.post(f"{C1}/positions/beginning", place, V2)
        answer = await api.get(f"{C1}/records", accept)
        assert answer.headers["Content-Type"] == type_
        assert (answer.json[0]["key"], answer.json[0]["value"]) == ("aw==", "/w==")
    assert (await api.get(f"{C1}/records", JSON_V2)).error == (406, 40601)


async def test_a_consumer_of_text(api):
    api.node.append("t", 0, [b"tea", b"\xff"], [b"u1", None])
    await create(api, format="TEXT")
    place = {"partitions": [{"topic": "t", "partition": 0}]}
    await api.post(f"{C1}/assignments", place, V2)
    for accept, type_ in ((TEXT_V2, TEXT_V2), (None, TEXT_V2), (V2, TEXT_V2), (JSON, JSON)):
        await api.post(f"{C1}/positions/beginning", place, V2)
        answer = await api.get(f"{C1}/records", accept)
        assert answer.headers["Content-Type"] == type_
        one, other = answer.json
        assert (one["key"], one["value"]) == ("u1", "tea")
        assert (other["value_base64"], other["error_code"]) == ("/w==", 42203)
    for accept in (JSON_V2, BINARY_V2):
        assert (await api.get(f"{C1}/records", accept)).error == (406, 40601)


@pytest.mark.parametrize(
    ("format_", "keys"),
    [
        ("json", [{"key": "u1"}, {"key_text": "u1"}, {"key_base64": "/w=="}, {"key": None}]),
        ("text", [{"key": '"u1"'}, {"key": "u1"}, {"key_base64": "/w=="}, {"key": None}]),
        ("binary", [{"key": "InUxIg=="}, {"key": "dTE="}, {"key": "/w=="}, {"key": None}]),
    ],
)
async def test_each_format_says_how_it_writes_each_key(api, format_, keys):
    api.node.append("t", 0, [b"1"] * 4, [b'"u1"', b"u1", b"\xff", None])
    await create(api, format=format_)
    place = {"partitions": [{"topic": "t", "partition": 0}]}
    await api.post(f"{C1}/assignments", place, V2)
    for accept in (None, JSON, NDJSON):
        await api.post(f"{C1}/positions/beginning", place, V2)
        body = (await api.get(f"{C1}/records", accept)).body
        rows = orjson.loads(body) if accept != NDJSON else map(orjson.loads, body.splitlines())
        assert [{k: v for k, v in row.items() if k.startswith("key")} for row in rows] == keys


async def test_time_and_bytes_are_the_callers_or_the_consumers(subscribed):
    await subscribed.get(f"{C1}/records")
    await subscribed.get(f"{C1}/records?timeout=5&max_bytes=1000")
    subscribed.node.append("t", 0, [b"4"])
    await subscribed.get(f"{C1}/records?timeout=999999999")
    assert subscribed.node.consumers.calls == [(None, None), (5, 1000), (300_000, None)]
    for query in ("timeout=x", "timeout=-1", "max_bytes=0", "follow=maybe"):
        assert (await subscribed.get(f"{C1}/records?{query}")).error == (400, 400)


async def test_only_what_was_delivered_is_written_out(subscribed):
    answer = await subscribed.get(f"{C1}/records?max_bytes=1")
    assert [record["offset"] for record in answer.json] == [0]
    answer = await subscribed.get(f"{C1}/records?max_bytes=1")
    assert [record["offset"] for record in answer.json] == [1]


async def test_a_record_that_is_not_json_holds_nobody_up(subscribed):
    subscribed.node.append("t", 0, [b"\xff", b"5"])
    records = (await subscribed.get(f"{C1}/records")).json
    assert [record["offset"] for record in records] == list(range(5))
    assert records[3] == {
        "topic": "t", "key": None, "value_base64": "/w==", "partition": 0, "offset": 3,
        "timestamp": NOW_MS, "error_code": 42203, "error": "value is not JSON",
    }  # fmt: skip


async def test_who_reads_nothing_is_told(api):
    await create(api)
    assert (await api.get(f"{C1}/records")).error == (409, 40903)


async def test_much_is_written_out_elsewhere(subscribed):
    subscribed.node.append("t", 0, [b'"' + b"x" * 100_000 + b'"'] * 12)
    assert len((await subscribed.get(f"{C1}/records")).json) == 15


# -- tokens ----------------------------------------------------------------------------------------


async def test_a_token_goes_with_the_call(subscribed):
    tokens = subscribed.node.consumers.tokens
    tokens.clear()
    longest = "aZ09._~-" * 8
    for token in ("7f3a.1", longest):
        assert (await subscribed.get(f"{C1}/records?timeout=0&token={token}")).status == 200
    await subscribed.get(f"{C1}/records?timeout=0")
    assert tokens == ["7f3a.1", longest, ""]


async def test_who_reads_something_else_may_say_that_the_answer_has_arrived(subscribed):
    tokens = subscribed.node.consumers.tokens
    tokens.clear()
    places = {"partitions": [{"topic": "t", "partition": 0}]}
    await subscribed.post(f"{C1}/subscription?token=1", {"topics": ["t"]}, V2)
    await subscribed.call("DELETE", f"{C1}/subscription?token=2")
    await subscribed.post(f"{C1}/assignments?token=3", places, V2)
    await subscribed.call("DELETE", f"{C1}?token=4")
    assert [token for token in tokens if token] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("token", ["", "a" * 65, "a b", "a/b", "%C3%A4", "a%0A", "a,b"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/records"), ("DELETE", ""), ("DELETE", "/subscription")]
)
async def test_a_token_of_another_form_is_refused(subscribed, method, path, token):
    answer = await subscribed.call(method, f"{C1}{path}?token={token}")
    assert answer.error == (400, 400)
    assert "'token'" in answer.json["message"]
    assert len((await subscribed.get(f"{C1}/records")).json) == 3


@pytest.mark.parametrize("accept", [NDJSON, EVENTS])
async def test_a_stream_takes_no_token(subscribed, accept):
    answer = await subscribed.get(f"{C1}/records?token=1&follow=false", accept)
    assert answer.error == (400, 400)
    assert "a stream cannot be asked for again" in answer.json["message"]
    assert len((await subscribed.get(f"{C1}/records")).json) == 3


# -- records as streams ----------------------------------------------------------------------------


async def test_lines_are_one_answer(subscribed):
    answer = await subscribed.get(f"{C1}/records?timeout=7", NDJSON)
    assert answer.headers["Content-Type"] == NDJSON
    lines = [orjson.loads(line) for line in answer.body.splitlines()]
    assert lines[0] == ONE
    assert len(lines) == 3
    assert subscribed.node.consumers.calls == [(7, None)]
    assert (await subscribed.get(f"{C1}/records?timeout=0", NDJSON)).body == b""


async def test_events_follow(subscribed):
    url = f"{subscribed.base_url}{C1}/records"
    async with subscribed.session.get(url, headers={"Accept": EVENTS}) as response:
        body = b""
        while b"t:0:2" not in body:
            body += await response.content.readany()
        assert body.startswith(b'retry: 1000\n\nid: t:0:0\ndata: {"topic":"t"')
        subscribed.node.append("t", 0, [b'"news"'])
        while b"news" not in body:
            body += await response.content.readany()
        assert b"id: t:0:3\n" in body
        await subscribed.call("DELETE", C1)
        subscribed.node.append("t", 0, [b'"more"'])
        rest = await response.read()
        assert b'event: error\ndata: {"error_code":40403' in rest


@pytest.mark.parametrize("query", ["", "?timeout=0", "?token=1"])
async def test_an_answer_is_refused_where_it_is_not_known_whether_there_are_records(
    subscribed, query
):
    subscribed.node.errors["consumer_records"] = NoLeaderError("t-0 has no leader")
    assert (await subscribed.get(f"{C1}/records{query}")).error == (503, 50302)
    for accept in (NDJSON, EVENTS):
        url = f"{C1}/records?follow=false"
        assert (await subscribed.get(url, accept)).error == (503, 50302)


@pytest.mark.parametrize("error", [NoLeaderError("t-0 has no leader"), FateUnknownError("no word")])
async def test_a_stream_that_follows_goes_on_and_says_so_while_nobody_answers(
    subscribed, monkeypatch, error
):
    monkeypatch.setattr(stream_answer, "KEEP_ALIVE_MS", 20)
    subscribed.node.errors["consumer_records"] = error
    url = f"{subscribed.base_url}{C1}/records"
    async with subscribed.session.get(url, headers={"Accept": EVENTS}) as response:
        assert await response.content.readuntil(b"\n\n") == b"retry: 1000\n\n"
        before = await response.content.readuntil(b":\n\n")
        assert b"data:" not in before
        await response.content.readuntil(b":\n\n")
        subscribed.node.errors.clear()
        await response.content.readuntil(b"id: t:0:2")


async def test_what_its_client_did_not_stay_for_is_given_back(subscribed):
    # More than sockets hold: it is still on its way when the client goes.
    subscribed.node.append("t", 0, [b'"' + b"x" * (20 << 20) + b'"'])
    url = f"{subscribed.base_url}{C1}/records"
    async with subscribed.session.get(url, headers={"Accept": EVENTS}) as response:
        assert (await response.content.readany()).startswith(b"retry")
        response.close()
    while not subscribed.node.consumers.taken_back:
        await subscribed.get("/topics")
    ((group, instance, delivered),) = subscribed.node.consumers.taken_back
    assert (group, instance, len(delivered.deliveries)) == ("g", "c1", 1)


@pytest.mark.parametrize("accept", [JSON, NDJSON])
async def test_what_came_damaged_is_given_back_and_an_error_that_passes(subscribed, accept):
    """Else the next call would count as a word that it arrived."""
    subscribed.node.append("t", 0, [b"4"])
    subscribed.node.log("t", 0).rot(1)
    answer = await subscribed.get(f"{C1}/records", accept)
    assert answer.error == (503, 50307)
    assert "t-0: the records at offset 3 are damaged" in answer.json["message"]
    ((group, instance, delivered),) = subscribed.node.consumers.refused
    assert (group, instance, len(delivered.deliveries)) == ("g", "c1", 1)
    (doubt,) = subscribed.node.doubts
    assert (doubt.topic, doubt.partition, doubt.offset, doubt.broker_id) == ("t", 0, 3, None)


async def test_whoever_follows_gets_lines(subscribed):
    url = f"{subscribed.base_url}{C1}/records?follow=true"
    async with subscribed.session.get(url) as response:
        assert response.headers["Content-Type"] == NDJSON
        assert orjson.loads(await response.content.readline()) == ONE
    refused = await subscribed.get(f"{C1}/records?follow=true", JSON_V2)
    assert refused.error == (400, 400)


STRIMZI = {"format": "json", "auto.offset.reset": "earliest"}
"""What a client of Strimzi's bridge sends; its commits name the next record."""


@pytest.mark.parametrize(
    ("default", "said", "committed_at"),
    [
        ("last", None, 3),
        ("last", "last", 3),
        ("last", "next", 2),
        ("last", "NEXT", 2),
        ("next", None, 2),
        ("next", "last", 3),
    ],
)
async def test_the_consumer_or_the_node_says_what_an_offset_of_a_commit_names(
    default, said, committed_at
):
    place = {"topic": "t", "partition": 0}
    async with serving(limits=ApiLimits(rest_commit_offsets=default)) as api:
        api.node.add_topic("t")
        await create(api, **STRIMZI, **({} if said is None else {"commit.offsets": said}))
        await api.post(f"{C1}/subscription", {"topics": ["t"]}, V2)
        body = {"offsets": [{**place, "offset": 2}]}
        assert (await api.post(f"{C1}/offsets", body, V2)).status == 204
        assert committed(api) == {("t", 0): committed_at}
        # A body that says what is meant wins over both.
        for named in (
            {"offsets": [{**place, "next_offset": 4}]},
            {"partitions": [{**place, "offset": 4}]},
        ):
            assert (await api.post(f"{C1}/offsets", named, V2)).status == 204
            assert committed(api) == {("t", 0): 4}


@pytest.mark.parametrize("value", ["", "first", "nextt"])
async def test_what_offsets_name_is_one_of_two(api, value):
    answer = await api.post("/consumers/g", {"commit.offsets": value}, V2)
    assert (answer.status == 200) == (value == "")
    if value:
        assert answer.error == (422, 42204)


# -- 20 and 21: offsets ----------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, {}])
async def test_without_a_body_what_was_delivered_is_committed(subscribed, body):
    await subscribed.get(f"{C1}/records")
    answer = await subscribed.post(f"{C1}/offsets", body, V2 if body is not None else None)
    assert (answer.status, answer.body) == (204, b"")
    assert committed(subscribed) == {("t", 0): 3}


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}, 2),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": 1}]}, 1),
        ({"offsets": [{"topic": "t", "partition": 0, "next_offset": 1}]}, 1),
        ({"partitions": [{"topic": "t", "partition": "0", "next_offset": "1"}]}, 1),
    ],
)
async def test_what_an_offset_means_depends_on_its_name(subscribed, body, offset):
    assert (await subscribed.post(f"{C1}/offsets?async=true", body, V2)).status == 204
    assert committed(subscribed) == {("t", 0): offset}


async def test_metadata_is_kept(subscribed, monkeypatch):
    item = {"topic": "t", "partition": 0, "offset": 1, "metadata": "here"}
    await subscribed.post(f"{C1}/offsets", {"offsets": [item]}, V2)
    found = await subscribed.get(f"{C1}/offsets?topic=t")
    assert found.json == {
        "offsets": [{"topic": "t", "partition": 0, "offset": 2, "metadata": "here"}]
    }
    calls = recorded(monkeypatch, subscribed, "commit")
    await subscribed.post(f"{C1}/offsets", {"offsets": [item]}, V2)
    assert calls == [([OffsetToCommit(topic="t", partition=0, offset=2, metadata="here")],)]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"offsets": [], "partitions": []}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0}]}, (422, 422)),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 1, "next_offset": 2}]}, (422, 422)),
        ({"offsets": [{"topic": "x", "partition": 0, "offset": 1}]}, (404, 40401)),
        ({"offsets": [{"topic": "t", "partition": 5, "offset": 1}]}, (404, 40402)),
        ({"offset": []}, (422, 422)),
    ],
)
async def test_commits_that_cannot_be(subscribed, body, error):
    assert (await subscribed.post(f"{C1}/offsets", body, V2)).error == error
    assert committed(subscribed) == {}


async def test_offsets_are_asked_for_by_body_by_query_or_by_neither(subscribed):
    api = subscribed
    await api.post(f"{C1}/subscription", {"topics": ["t", "many"]}, V2)
    offsets = [{"topic": "many", "partition": p, "next_offset": p} for p in (0, 2)]
    assert (await api.post(f"{C1}/offsets", {"offsets": offsets}, V2)).status == 204
    expected = [
        {"topic": "many", "partition": partition, "offset": offset, "metadata": ""}
        for partition, offset in ((0, 0), (1, -1), (2, 2))
    ]
    none = {"topic": "t", "partition": 0, "offset": -1, "metadata": ""}

    async def found(query="", body=None):
        options = {} if body is None else {"data": orjson.dumps(body), "headers": {"Content-Type": V2}}  # fmt: skip
        answer = await api.call("GET", f"{C1}/offsets{query}", **options)
        assert answer.status == 200, answer
        return answer.json["offsets"]

    assert await found() == [*expected, none]
    assert await found("?topic=many") == expected
    assert await found("?topic=many&partition=2") == expected[2:]
    assert await found("?topic=many&partition=2,1,0") == expected[::-1]
    assert await found("?topic=t") == [none]
    body = {"partitions": [{"topic": "many", "partition": 2}, {"topic": "t", "partition": 0}]}
    assert await found(body=body) == [expected[2], none]
    for query in ("?topic=many&partition=x", "?topic=many&partition=-1", "?topic=many&partition="):
        assert (await api.get(f"{C1}/offsets{query}")).error == (400, 400)
    assert (await api.get(f"{C1}/offsets?topic=x")).error == (404, 40401)
    for wrong in ("partition=0", "partition=", "partition=0.5"):
        assert (await api.get(f"{C1}/offsets?{wrong}")).error == (400, 400)


@pytest.mark.parametrize(
    ("accept", "type_"), [(None, JSON_V2), (JSON, JSON), (NDJSON, NDJSON), (EVENTS, EVENTS)]
)
async def test_to_look_is_not_to_take(subscribed, accept, type_):
    headers = {} if accept is None else {"Accept": accept}
    head = await subscribed.call("HEAD", f"{C1}/records", headers=headers)
    assert (head.status, head.headers["Content-Type"], head.body) == (200, type_, b"")
    assert subscribed.node.consumers.calls == []
