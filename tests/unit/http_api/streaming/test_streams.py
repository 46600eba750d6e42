"""NDJSON and server-sent events of a partition: framing, following, resuming, bounds, ends."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import orjson
import pytest
from aiohttp import web

from http_api.app import build_runner
from http_api.ports.node import ApiLimits
from http_api.serving import places
from http_api.streaming import answer as stream_answer
from http_api.v2 import record_source
from milena.model.errors import NoLeaderError, OffsetOutOfRangeError
from milena.model.types import Codec
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import EVENTS, ApiClient, serving
from tests.support.http.api_server import NDJSON as LINES

PATH = "/topics/t/partitions/0/records"
TAG = "0" * 12
"""Of the first topic of a node on paper."""


def ids(*offsets: int) -> list[str]:
    """Of events."""
    return [f"{TAG}.{offset}" for offset in offsets]


def lines(body: bytes) -> list[object]:
    assert body.endswith(b"\n") or not body
    return [orjson.loads(line) for line in body.splitlines() if line]


def events(body: bytes) -> list[dict[str, str]]:
    """As a browser reads them."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
        event = {name: value for name, _, value in fields if name}
        if "data" in event:
            found.append(event)
    return found


def offsets(records):
    return [record["offset"] for record in records]


@asynccontextmanager
async def following(api, query="", accept=EVENTS, **headers):
    """An open stream: read what comes with ``until``."""
    url = f"{api.base_url}{PATH}{query}"
    async with api.session.get(url, headers={"Accept": accept, **headers}) as response:
        assert response.status == 200, await response.read()
        yield response


async def until(response, end: bytes) -> bytes:
    body = b""
    while end not in body:
        chunk = await response.content.readany()
        assert chunk, body
        body += chunk
    return body


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def filled(api):
    for first in range(0, 10, 2):
        api.node.append("t", 0, [b"%d" % first, b"%d" % (first + 1)], [b'"k"', None])
    return api


# -- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [LINES, "application/ndjson", "application/jsonl;q=0.5"])
async def test_lines_hold_the_whole_partition_and_end_where_it_ends(filled, monkeypatch, accept):
    monkeypatch.setattr(record_source, "PIECE_BYTES", 1)
    answer = await filled.records("t", accept=accept)
    assert (answer.status, answer.headers["Content-Type"]) == (200, LINES)
    assert offsets(lines(answer.body)) == list(range(10))
    assert b"\n\n" not in answer.body
    as_json = await filled.records("t")
    assert lines(answer.body) == as_json.json
    assert len(filled.node.fetch_requests) == 5 + 1
    assert "X-Request-Id" in answer.headers
    assert answer.headers["Server"] == "milena"


async def test_lines_of_an_empty_partition_are_none(api):
    answer = await api.records("t", accept=LINES)
    assert (answer.status, answer.body) == (200, b"")


async def test_lines_end_when_nothing_has_come_for_the_time_asked_for(filled):
    answer = await filled.records("t", "?timeout=20", accept=LINES)
    assert offsets(lines(answer.body)) == list(range(10))
    assert filled.node.fetch_requests[-1].timeout_ms == 20


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?offset=7", [7, 8, 9]),
        ("?offset=-2", [8, 9]),
        ("?count=3", [0, 1, 2]),
        ("?count=10&follow=true", list(range(10))),
        ("?offset=latest", []),
    ],
)
async def test_lines_begin_and_end_as_asked(filled, query, found):
    answer = await filled.records("t", query, accept=LINES)
    assert offsets(lines(answer.body)) == found


def answer_as_of(node, end):
    """The first read is answered by a copy that ends there and cannot ask its leader."""
    whole = node.fetch

    async def fetch(request):
        result = await whole(request)
        node.fetch = whole
        return replace(result, high_watermark=end, last_stable_offset=end)

    node.fetch = fetch


@pytest.mark.parametrize("query", ["", "?isolation=read_uncommitted"])
async def test_lines_of_a_copy_that_is_behind_go_on_to_the_end_that_the_leader_tells(filled, query):
    answer_as_of(filled.node, 6)
    answer = await filled.records("t", query, accept=LINES)
    assert offsets(lines(answer.body)) == list(range(10))


async def test_lines_end_with_an_error_where_it_is_not_known_whether_there_is_more(filled):
    answer_as_of(filled.node, 6)
    filled.node.errors["offsets"] = NoLeaderError("nobody leads")
    *records, last = lines((await filled.records("t", accept=LINES)).body)
    assert offsets(records) == list(range(6))
    assert last["error_code"] == 50302


async def test_whoever_follows_and_names_no_type_gets_lines(filled):
    answer = await filled.records("t", "?follow=true&count=1", accept="*/*")
    assert answer.headers["Content-Type"] == LINES


async def test_a_type_that_has_an_end_cannot_follow(filled):
    answer = await filled.records("t", "?follow=true", accept="application/json")
    assert answer.error == (400, 400)
    assert "follow" in answer.json["message"]


async def test_json_with_line_ends_inside_stays_on_its_line(api):
    api.node.append("t", 0, [b'{\r\n"a":\n1}', b'"\\n"'])
    first, second = lines((await api.records("t", accept=LINES)).body)
    assert (first["value"], second["value"]) == ({"a": 1}, "\n")
    found = events((await api.records("t", "?follow=false", accept=EVENTS)).body)
    assert orjson.loads(found[0]["data"]) == first


# -- records that are not JSON ---------------------------------------------------------------------


async def test_a_record_that_is_not_json_is_an_error_in_its_place(api):
    headers = [None, None, [("h", b"x")], None]
    api.node.append(
        "t", 0, [b"1", b"\xff\n", b"\x00", b"4"], [None, b'"k"', b"raw", b'"k"'], headers=headers
    )
    found = lines((await api.records("t", accept=LINES)).body)
    assert offsets(found) == [0, 1, 2, 3]
    time = found[0]["timestamp"]
    assert found[1] == {
        "topic": "t", "key": "k", "value_base64": "/wo=", "partition": 0, "offset": 1,
        "timestamp": time, "error_code": 42203, "error": "value is not JSON",
    }  # fmt: skip
    assert found[2] == {
        "topic": "t", "key_text": "raw", "value_text": "\x00", "partition": 0, "offset": 2,
        "timestamp": time, "headers": [{"key": "h", "value": "eA=="}],
        "error_code": 42203, "error": "key and value are not JSON",
    }  # fmt: skip
    assert found[3]["value"] == 4


async def test_text_is_written_as_strings(api):
    api.node.append("t", 0, [b'say "a"', None, b"\xff", b"b"], [b"k", b"", None, b"\xfe"])
    found = lines((await api.records("t", "?format=text", accept=LINES)).body)
    shown = [
        {k: v for k, v in row.items() if k not in ("topic", "partition", "timestamp")}
        for row in found
    ]
    assert shown == [
        {"key": "k", "value": 'say "a"', "offset": 0},
        {"key": "", "value": None, "offset": 1},
        {
            "key": None,
            "value_base64": "/w==",
            "offset": 2,
            "error_code": 42203,
            "error": "value is not text in UTF-8",
        },
        {
            "key_base64": "/g==",
            "value": "b",
            "offset": 3,
            "error_code": 42203,
            "error": "key is not text in UTF-8",
        },
    ]


async def test_any_bytes_go_as_base64(api):
    api.node.append("t", 0, [b"\xff"], [b"k"])
    (record,) = lines((await api.records("t", "?format=binary", accept=LINES)).body)
    assert (record["key"], record["value"]) == ("aw==", "/w==")
    assert "error" not in record


# -- events ----------------------------------------------------------------------------------------


async def test_events_follow_for_as_long_as_the_client_stays(filled):
    async with following(filled, "?offset=8") as response:
        assert response.headers["Content-Type"] == EVENTS
        assert response.headers["Cache-Control"] == "no-store"
        begun = await until(response, b'"offset":9')
        assert begun.startswith(b"retry: 1000\n\n")
        assert [event["id"] for event in events(begun)] == ids(8, 9)
        filled.node.append("t", 0, [b'"news"'])
        (event,) = events(await until(response, b"news"))
        assert (event["id"], orjson.loads(event["data"])["value"]) == (*ids(10), "news")


async def test_a_stream_begins_before_there_is_a_record(api):
    async with following(api, "?offset=latest") as response:
        assert await until(response, b"retry") == b"retry: 1000\n\n"


async def test_events_go_on_behind_the_last_that_was_received(filled):
    async with following(filled, "?offset=0", **{"Last-Event-ID": f"{TAG}.7"}) as response:
        assert [e["id"] for e in events(await until(response, b'"offset":9'))] == ids(8, 9)


@pytest.mark.parametrize(
    "last", ["x", "-1", "1.5", "7", f"{TAG}.", f"{TAG}.x", f"{TAG}.{10**20}", f"{TAG[1:]}.7"]
)
@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
async def test_an_id_that_is_none_of_ours(filled, accept, last):
    answer = await filled.get(PATH, accept, headers={"Last-Event-ID": last})
    assert answer.error == (400, 400)


@pytest.mark.parametrize("accept", [EVENTS, LINES])
@pytest.mark.parametrize("count", [0, 20])
async def test_an_id_of_a_topic_that_was_made_again_is_refused(filled, accept, count):
    filled.node.make_again("t")
    filled.node.append("t", 0, [b"1"] * (count + 1))
    answer = await filled.get(PATH, accept, headers={"Last-Event-ID": f"{TAG}.3"})
    assert answer.error == (400, 40002)
    assert "made again" in answer.json["message"]


async def test_an_id_of_a_topic_of_which_this_node_has_not_heard_is_found(filled, monkeypatch):
    node = filled.node

    async def heard():
        node.make_again("t")
        node.append("t", 0, [b"1", b"2"])
        return node.image

    monkeypatch.setattr(node, "current_image", heard)
    last = f"{'f' * 12}.0"
    answer = await filled.get(f"{PATH}?follow=false", EVENTS, headers={"Last-Event-ID": last})
    assert [event["id"] for event in events(answer.body)] == [f"{'f' * 12}.1"]


async def test_a_stream_does_not_go_on_in_another_topic_of_its_name(filled):
    async with following(filled, "?offset=9") as response:
        await until(response, b'"offset":9')
        filled.node.make_again("t")
        filled.node.append("t", 0, [b"%d" % n for n in range(20)])
        # What it waits for was asked of the former one.
        (last,) = [e for e in events(await response.read()) if "event" in e]
    assert orjson.loads(last["data"])["error_code"] == 40002


async def test_an_empty_id_is_none(filled):
    answer = await filled.get(f"{PATH}?follow=false", EVENTS, headers={"Last-Event-ID": ""})
    assert len(events(answer.body)) == 10


async def test_events_end_where_the_partition_ends_if_asked_to(filled):
    answer = await filled.records("t", "?follow=false", accept=EVENTS)
    assert [event["id"] for event in events(answer.body)] == ids(*range(10))


async def test_an_idle_stream_shows_that_it_lives_and_asks_seldom(api, monkeypatch):
    for module in (stream_answer, record_source):
        monkeypatch.setattr(module, "KEEP_ALIVE_MS", 20)
    async with following(api, "?offset=latest") as response:
        await until(response, b":\n\n:\n\n")
    first, *others = api.node.fetch_requests
    assert first.timeout_ms == 0
    assert {request.timeout_ms for request in others} == {20}
    assert {request.offset for request in others} == {0}
    async with following(api, "?offset=latest&follow=true", LINES) as response:
        assert set(await until(response, b"\n\n")) == set(b"\n")


async def test_waiting_is_one_question(api):
    async with following(api, "?offset=latest") as response:
        await until(response, b"retry")
        await turns()
        assert [r.timeout_ms for r in api.node.fetch_requests] == [0, places.KEEP_ALIVE_MS]
    # A node that is cut off finds that out when the wait has ended without a record.
    assert not any(request.is_unconfirmed for request in api.node.fetch_requests)


# -- errors ----------------------------------------------------------------------------------------


async def test_what_is_wrong_from_the_start_is_answered_as_ever(filled):
    for accept in (LINES, EVENTS):
        assert (await filled.records("t", "?offset=99", accept=accept)).error == (400, 40002)
        assert (await filled.records("x", accept=accept)).error == (404, 40402)
    filled.node.errors["fetch"] = NoLeaderError("none now")
    assert (await filled.records("t", accept=EVENTS)).error == (503, 50302)


async def test_a_change_of_leader_is_waited_out(filled, monkeypatch):
    monkeypatch.setattr(places, "RETRY_S_FIRST", 0.001)
    async with following(filled, "?offset=9") as response:
        await until(response, b'"offset":9')
        filled.node.errors["fetch"] = NoLeaderError("none now")
        filled.node.append("t", 0, [b"10"])
        before = len(filled.node.fetch_requests)
        await turns(200)
        del filled.node.errors["fetch"]
        filled.node.append("t", 0, [b"11"])
        found = events(await until(response, b'"offset":11'))
        assert [event["id"] for event in found] == ids(10, 11)
        assert len(filled.node.fetch_requests) >= before


async def test_an_error_that_stays_ends_the_stream_and_is_told(filled, monkeypatch):
    monkeypatch.setattr(places, "RETRY_S_TOTAL", 0.0)
    for error, code in ((NoLeaderError("none"), 50302), (OffsetOutOfRangeError("gone"), 40002)):
        filled.node.errors.clear()
        async with following(filled, "?offset=9") as response:
            await until(response, b'"offset":9')
            filled.node.errors["fetch"] = error
            filled.node.append("t", 0, [b"1"])
            # What was waited for is still delivered; the question after it fails.
            (last,) = [e for e in events(await response.read()) if "event" in e]
        assert last["event"] == "error"
        assert orjson.loads(last["data"]) == {"error_code": code, "message": error.message}
    filled.node.errors.clear()
    async with following(filled, "?offset=9&follow=true", LINES) as response:
        await until(response, b'"offset":9')
        filled.node.errors["fetch"] = OffsetOutOfRangeError("gone")
        filled.node.append("t", 0, [b"1"])
        assert lines(await response.read())[-1] == {"error_code": 40002, "message": "gone"}


@pytest.mark.parametrize("piece_bytes", [1, 1 << 18])
async def test_damaged_records_are_waited_for_and_none_is_left_out(
    filled, monkeypatch, piece_bytes
):
    monkeypatch.setattr(record_source, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(places, "RETRY_S_FIRST", 0.001)
    log = filled.node.log("t", 0)
    log.rot(2)
    async with following(filled, "?offset=0") as response:
        before = await until(response, b'"offset":3')
        while len(filled.node.doubts) < 3:
            await turns()
        log.rot(2)
        found = events(before + await until(response, b'"offset":9'))
    assert [event["id"] for event in found] == ids(*range(10))
    assert {(d.topic, d.partition, d.offset) for d in filled.node.doubts} == {("t", 0, 4)}


async def test_records_that_stay_damaged_end_the_stream_and_are_told(filled, monkeypatch):
    monkeypatch.setattr(places, "RETRY_S_TOTAL", 0.0)
    filled.node.log("t", 0).rot(2)
    *found, last = lines((await filled.records("t", accept=LINES)).body)
    assert offsets(found) == [0, 1, 2, 3]
    assert last["error_code"] == 50307
    assert "t-0: the records at offset 4 are damaged" in last["message"]
    assert (await filled.records("t", "?offset=5", accept=LINES)).error == (503, 50307)


async def test_a_bug_ends_the_stream_with_an_error(filled):
    async with following(filled, "?offset=9") as response:
        await until(response, b'"offset":9')
        filled.node.errors["fetch"] = RuntimeError("a bug")
        filled.node.append("t", 0, [b"1"])
        rest = await response.read()
    assert b'"error_code":500' in rest
    assert b"request_id=" in rest
    assert b"a bug" not in rest
    assert (await filled.get("/topics")).status == 200


# -- bounds and ends -------------------------------------------------------------------------------


async def open_streams(api) -> str:
    body = (await api.get("/metrics")).body.decode()
    return next(line for line in body.splitlines() if line.startswith("milena_http_streams_open"))


async def test_streams_have_a_bound_of_their_own_and_are_no_requests_in_flight():
    limits = ApiLimits(streams_max=2, requests_in_flight_max=1)
    async with serving(limits=limits) as api:
        api.node.add_topic("t")
        async with following(api) as one, following(api) as two:
            for response in (one, two):
                await until(response, b"retry")
            refused = await api.records("t", accept=EVENTS)
            assert refused.error == (429, 42901)
            assert await open_streams(api) == "milena_http_streams_open 2"
            assert (await api.get("/topics")).status == 200
        while await open_streams(api) != "milena_http_streams_open 0":
            await turns()
        assert (await api.records("t", "?follow=false", accept=EVENTS)).status == 200


async def test_what_is_measured_of_a_stream_is_its_beginning(api):
    async with following(api) as response:
        await until(response, b"retry")
    while await open_streams(api) != "milena_http_streams_open 0":
        await turns()
    metrics = (await api.get("/metrics")).body.decode()
    path = "/topics/{topic}/partitions/{partition}/records"
    assert f'{{method="GET",path="{path}",status="200"}} 1' in metrics


async def test_a_slow_reader_costs_one_piece(api, monkeypatch):
    monkeypatch.setattr(record_source, "PIECE_BYTES", 1 << 10)
    value = b'"' + b"x" * 100_000 + b'"'
    for _ in range(400):
        api.node.append("t", 0, [value])
    async with following(api, "?follow=false", LINES) as response:
        # Far less than the 40 MB that there are: what sockets and buffers hold.
        await turns(2000)
        asked = len(api.node.fetch_requests)
        assert asked < 200
        await turns(200)
        assert len(api.node.fetch_requests) == asked
        assert offsets(lines(await response.read())) == list(range(400))


async def test_what_was_compressed_comes_in_pieces(api, monkeypatch):
    monkeypatch.setattr(record_source, "PIECE_BYTES", 150_000)
    api.node.codec = Codec.ZSTD
    for _ in range(5):
        api.node.append("t", 0, [b'"' + b"x" * 100_000 + b'"'])
    answer = await api.records("t", accept=LINES)
    assert offsets(lines(answer.body)) == list(range(5))
    assert len(api.node.fetch_requests) == 5


async def test_large_batches_are_written_out_elsewhere(api):
    api.node.append("t", 0, [b'"' + b"x" * 100_000 + b'"'] * 12)
    answer = await api.records("t", accept=LINES)
    assert offsets(lines(answer.body)) == list(range(12))


async def test_others_get_their_turn_while_a_stream_catches_up(api, monkeypatch):
    monkeypatch.setattr(record_source, "PIECE_BYTES", 1)
    for _ in range(500):
        api.node.append("t", 0, [b"1"])
    async with following(api, "?follow=false", LINES) as response:
        await api.get("/topics")
        assert len(api.node.fetch_requests) < 500
        await response.read()


async def test_a_node_that_drains_ends_its_streams(filled):
    async with following(filled, "?offset=9") as response:
        await until(response, b'"offset":9')
        await filled.post("/drain", {"timeout_ms": 1000})
        assert events(await response.read()) == []


async def test_a_read_to_the_end_that_a_drain_cuts_off_says_so(api, monkeypatch):
    """Its client would take the part for the whole."""
    monkeypatch.setattr(record_source, "PIECE_BYTES", 1)
    for _ in range(500):
        api.node.append("t", 0, [b"1"])
    for path in ("/topics/t/partitions/0/records", "/topics/t/records"):
        async with api.session.get(
            api.base_url + path, params={"follow": "false"}, headers={"Accept": LINES}
        ) as response:
            await response.content.readany()
            await api.post("/drain", {"timeout_ms": 1000})
            *records, end = lines(await response.read())
        assert len(records) < 500
        assert end["error_code"] == 50308


async def test_a_node_that_stops_ends_its_streams_at_once():
    node = FakeNode()
    node.add_topic("t")
    runner = build_runner(node.ports(), shutdown_timeout_s=60.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with (
        aiohttp.ClientSession() as session,
        following(ApiClient(node, f"http://{host}:{port}", session)) as response,
    ):
        await until(response, b"retry")
        await runner.cleanup()
        assert await response.read() == b""


async def test_head_has_no_body(filled):
    head = await filled.call("HEAD", PATH, headers={"Accept": EVENTS})
    assert (head.status, head.headers["Content-Type"], head.body) == (200, EVENTS, b"")
    assert (await filled.call("HEAD", PATH, headers={"Accept": LINES})).body == b""
    assert await open_streams(filled) == "milena_http_streams_open 0"


async def test_a_client_of_an_old_protocol_is_served(filled):
    async with aiohttp.ClientSession(version=aiohttp.HttpVersion10) as session:
        url = f"{filled.base_url}{PATH}"
        async with session.get(url, headers={"Accept": LINES}) as response:
            assert offsets(lines(await response.read())) == list(range(10))
