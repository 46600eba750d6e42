"""v2 stateless fetch."""

import asyncio

import orjson
import pyarrow as pa
import pytest

from http_api.formats import arrow
from http_api.ports.node import ApiLimits
from http_api.routes import ROUTES
from milena.model.batch.decode import iterate_headers
from milena.model.errors import NotReadyError
from milena.model.requests import Doubt
from milena.model.types import Codec
from tests.support.fakes.ports import NOW_MS
from tests.support.http.api_server import (
    ARROW,
    BATCH,
    BINARY_V2,
    EVENTS,
    JSON_V2,
    NDJSON,
    TEXT_V2,
    V2,
    serving,
)

JSON = "application/json"


def offsets(answer):
    assert answer.status == 200, answer.body
    return [record["offset"] for record in answer.json]


@pytest.fixture
def filled(api):
    """Ten records in batches of 3, 3 and 4."""
    for first, count in ((0, 3), (3, 3), (6, 4)):
        api.node.append(
            "t", 0, [b"%d" % (first + i) for i in range(count)], base_timestamp_ms=NOW_MS + first
        )
    return api


async def test_from_the_beginning_by_default(filled):
    answer = await filled.records("t")
    assert offsets(answer) == list(range(10))
    assert answer.headers["Content-Type"] == JSON_V2
    assert answer.json[4] == {
        "topic": "t",
        "key": None,
        "value": 4,
        "partition": 0,
        "offset": 4,
        "timestamp": NOW_MS + 3,
    }


async def test_headers_tell_where_to_go_on(filled):
    headers = (await filled.records("t", "?offset=4&count=2")).headers
    told = {
        name: headers[f"Milena-{name}"]
        for name in (
            "Start-Offset",
            "Next-Offset",
            "High-Watermark",
            "Log-Start-Offset",
            "Leader-Epoch",
        )
    }
    assert told == {
        "Start-Offset": "4",
        "Next-Offset": "6",
        "High-Watermark": "10",
        "Log-Start-Offset": "0",
        "Leader-Epoch": "5",
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("offset=0", range(10)),
        ("offset=4", range(4, 10)),
        ("offset=10", []),
        ("offset=earliest", range(10)),
        ("offset=latest", []),
        ("offset=-2", [8, 9]),
        ("offset=-100", range(10)),
        ("count=1", [0]),
        ("offset=2&count=3", [2, 3, 4]),
        ("max_bytes=1", [0, 1, 2]),
        ("offset=5&max_bytes=1", [5]),
        (f"timestamp={NOW_MS + 3}", range(3, 10)),
        (f"timestamp={NOW_MS + 4}&offset=0", range(6, 10)),
        ("timestamp=2023-11-14T22:13:20.003Z", range(3, 10)),
        ("timestamp=2023-11-14T23:13:20.003%2B01:00", range(3, 10)),
        ("timestamp=2023-11-14T23:13:20.003+01:00", range(3, 10)),
        ("timestamp=2030-01-01", []),
        ("offset=3&timeout=&count=1".replace("timeout=&", ""), [3]),
    ],
)
async def test_where_to_begin_and_end(filled, query, found):
    assert offsets(await filled.records("t", f"?{query}")) == list(found)


@pytest.mark.parametrize(
    "query",
    [
        "offset=x",
        "offset=",
        "offset=1.5",
        "offset=99999999999999999999",
        "count=0",
        "count=-1",
        "count=x",
        "max_bytes=0",
        "timeout=-1",
        "timeout=1s",
        "timestamp=soon",
        "timestamp=",
        "replica=remote",
    ],
)
async def test_refuses_bad_parameters(filled, query):
    answer = await filled.records("t", f"?{query}")
    assert answer.error == (400, 400)
    assert query.partition("=")[0] in answer.json["message"]


async def test_where_to_begin_is_told_to_who_cannot_know_the_words(filled):
    answer = await filled.records("t", "?offset=begin")
    assert "'offset' got 'begin': give earliest, latest, an offset, or -N" in answer.json["message"]
    answer = await filled.records("t", "?offset=99999999999999999999")
    assert f"too large: at most {2**63 - 1} is possible" in answer.json["message"]


async def test_out_of_range(filled):
    answer = await filled.records("t", "?offset=11")
    assert answer.error == (400, 40002)
    assert answer.headers["Milena-Error"] == "offset_out_of_range"


async def test_what_does_not_exist(filled):
    assert (await filled.records("x")).error == (404, 40402)
    assert (await filled.get("/topics/t/partitions/1/records")).error == (404, 40402)
    assert (await filled.get("/topics/t/partitions/one/records")).error == (404, 40402)


async def test_bounds_of_the_server(filled):
    await filled.records("t", "?max_bytes=999999999999&timeout=999999999")
    (request,) = filled.node.fetch_requests
    assert request.max_bytes == ApiLimits().fetch_bytes_max
    assert request.timeout_ms == ApiLimits().fetch_wait_ms_max


async def test_defaults(filled):
    await filled.records("t")
    (request,) = filled.node.fetch_requests
    assert (request.offset, request.timestamp_ms) == ("earliest", None)
    assert (request.max_bytes, request.timeout_ms, request.is_local) == (1 << 20, 0, False)


async def test_a_local_replica(filled):
    await filled.records("t", "?replica=local")
    assert filled.node.fetch_requests[0].is_local


async def test_waits_for_a_record(api):
    waiting = asyncio.ensure_future(api.records("t", "?offset=latest&timeout=60000"))
    while not api.node.fetch_requests:
        await api.get("/topics")
    api.node.append("t", 0, [b'"news"'])
    assert [record["value"] for record in (await waiting).json] == ["news"]


async def test_an_empty_partition_is_an_empty_list(api):
    answer = await api.records("t")
    assert (answer.json, answer.headers["Content-Type"]) == ([], JSON_V2)


@pytest.mark.parametrize(
    ("accept", "type_"),
    [
        (None, JSON_V2),
        ("*/*", JSON_V2),
        ("application/vnd.kafka.v2+json", JSON_V2),
        (JSON_V2, JSON_V2),
        ("application/json", "application/json"),
        (BINARY_V2, BINARY_V2),
        (f"text/html, {BINARY_V2};q=0.9, {JSON_V2};q=0.8", BINARY_V2),
    ],
)
async def test_accept(filled, accept, type_):
    answer = await filled.records("t", accept=accept)
    assert answer.headers["Content-Type"] == type_
    assert len(answer.json) == 10


async def test_a_type_that_cannot_be_served(filled):
    assert (await filled.records("t", accept="text/html")).error == (406, 40601)


async def test_records_that_are_not_json(api):
    api.node.append("t", 0, [b"1", b"\xff", b"2"])
    anyhow = await api.records("t", accept="*/*")
    assert anyhow.headers["Content-Type"] == JSON_V2
    assert [record.get("value") for record in anyhow.json] == [1, None, 2]
    assert anyhow.json[1]["value_base64"] == "/w=="
    before = await api.records("t", accept=JSON_V2)
    assert (offsets(before), before.headers["Milena-Next-Offset"]) == ([0], "1")
    at = await api.records("t", "?offset=1", accept=JSON_V2)
    assert at.error == (422, 42203)
    assert "offset 1 of t-0" in at.json["message"]
    assert offsets(await api.records("t", "?offset=2", accept=JSON_V2)) == [2]


async def test_encoded_batches(filled):
    answer = await filled.records("t", "?offset=4", accept=BATCH)
    assert answer.headers["Content-Type"] == BATCH
    assert answer.body == b"".join(filled.node.logs["t", 0].batches[1:])
    assert answer.headers["Milena-Next-Offset"] == "10"


async def test_large_answers_are_made_elsewhere(api):
    """Above 2 MiB another thread decodes; the answer is the same."""
    value = b'"' + b"x" * 100_000 + b'"'
    for _ in range(30):
        api.node.append("t", 0, [value])
    answer = await api.records("t", "?max_bytes=10000000")
    assert offsets(answer) == list(range(30))


async def test_count_leaves_out_encoded_batches(filled):
    whole = (await filled.records("t", accept=BATCH)).body
    sizes = [header.batch_bytes for _, header in iterate_headers(whole)]
    ends = [header.next_offset for _, header in iterate_headers(whole)]
    assert len(sizes) > 1
    for count in range(1, ends[-1] + 2):
        last = next((i for i, end in enumerate(ends) if end >= count), len(ends) - 1)
        answer = await filled.records("t", f"?count={count}", accept=BATCH)
        assert len(answer.body) == sum(sizes[: last + 1])
        assert answer.headers["Milena-Next-Offset"] == str(ends[last])


async def test_count_of_encoded_batches_counts_from_the_offset(filled):
    whole = (await filled.records("t", accept=BATCH)).body
    _, first = next(iterate_headers(whole))
    assert first.record_count > 1
    last_of_first = first.next_offset - 1
    answer = await filled.records("t", f"?offset={last_of_first}&count=2", accept=BATCH)
    assert len(answer.body) > first.batch_bytes


async def test_compressed_batches_do_not_grow_without_bound():
    async with serving(limits=ApiLimits(fetch_bytes_max=250_000)) as api:
        api.node.add_topic("t")
        api.node.codec = Codec.ZSTD
        for _ in range(5):
            api.node.append("t", 0, [b'"' + b"x" * 100_000 + b'"'])
        answer = await api.records("t")
        assert offsets(answer) == [0, 1]
        assert answer.headers["Milena-Next-Offset"] == "2"


async def test_a_leader_that_is_not_ready(filled):
    filled.node.errors["fetch"] = NotReadyError("no high watermark yet")
    answer = await filled.records("t")
    assert answer.error == (503, 50309)
    assert answer.headers["Retry-After"] == "1"


def doubt(offset):
    return Doubt(topic="t", partition=0, offset=offset, broker_id=1)


@pytest.mark.parametrize("accept", [JSON_V2, BINARY_V2, None])
async def test_damaged_records_are_an_error_that_passes_and_are_said_to_be_damaged(
    filled, accept, caplog
):
    filled.node.log("t", 0).rot(1)
    answer = await filled.records("t", accept=accept)
    assert offsets(answer) == [0, 1, 2], "what lies before them is sound"
    assert answer.headers["Milena-Next-Offset"] == "3"
    assert filled.node.doubts == [doubt(3)]
    for offset in (3, 4):
        answer = await filled.records("t", f"?offset={offset}", accept=accept)
        assert answer.error == (503, 50307)
        assert answer.headers["Milena-Error"] == "replica_damaged"
        assert answer.headers["Retry-After"] == "1"
        assert f"t-0: the records at offset {offset} are damaged" in answer.json["message"]
        assert filled.node.doubts[-1] == doubt(offset)
    assert len(filled.node.doubts) == 3
    assert offsets(await filled.records("t", "?offset=6", accept=accept)) == [6, 7, 8, 9]
    filled.node.log("t", 0).rot(1)
    assert offsets(await filled.records("t", accept=accept)) == list(range(10))
    assert "unexpected error" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_encoded_batches_whose_header_is_damaged_are_said_to_be(filled):
    log = filled.node.log("t", 0)
    whole = log.batches[1]
    log.batches[1] = bytes([whole[0] ^ 1]) + whole[1:]
    sent = log.batches[0]
    log.read = lambda offset, max_bytes: b"".join(log.batches[0 if offset < 3 else 1 :])
    answer = await filled.records("t", accept=BATCH)
    assert (answer.status, answer.body) == (200, sent)
    assert (await filled.records("t", "?offset=3", accept=BATCH)).error == (503, 50307)
    assert filled.node.doubts == [doubt(3), doubt(3)]


async def test_encoded_batches_are_checked_when_asked_to(filled):
    """Else they go out as they are stored: whoever decodes them checks them."""
    log = filled.node.log("t", 0)
    whole, sound = b"".join(log.batches), log.batches[0]
    log.rot(1)
    stored = b"".join(log.batches)
    for query in ("", "?verify=false"):
        assert (await filled.records("t", query, accept=BATCH)).body == stored
    assert filled.node.doubts == []
    answer = await filled.records("t", "?verify=true", accept=BATCH)
    assert (answer.status, answer.body) == (200, sound)
    assert answer.headers["Milena-Next-Offset"] == "3"
    assert (await filled.records("t", "?offset=3&verify=true", accept=BATCH)).error == (503, 50307)
    assert filled.node.doubts == [doubt(3), doubt(3)]
    log.rot(1)
    assert (await filled.records("t", "?verify=true", accept=BATCH)).body == whole


async def test_verify_is_yes_or_no(filled):
    assert (await filled.records("t", "?verify=maybe", accept=BATCH)).error == (400, 400)


# -- Arrow -------------------------------------------------------------------------------------------


async def test_an_arrow_stream_holds_the_columns(api):
    api.node.append("t", 0, [b"a", None, b"\xff"], [b"k", None, b""])
    await api.produce("t", [{"value": 1, "headers": [{"key": "h", "value": "aGk="}, {"key": "n"}]}])
    answer = await api.records("t", "?offset=1", accept=ARROW)
    assert (answer.status, answer.headers["Content-Type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.schema.metadata == {b"topic": b"t", b"partition": b"0"}
    assert table.drop_columns("timestamp").to_pydict() == {
        "offset": [1, 2, 3],
        "key": [None, b"", None],
        "value": [None, b"\xff", b"1"],
        "headers": [None, None, [{"key": "h", "value": b"hi"}, {"key": "n", "value": None}]],
    }
    assert table["timestamp"].type == pa.timestamp("ms", tz="UTC")
    assert answer.headers["Milena-Next-Offset"] == "4"


async def test_an_arrow_stream_of_nothing_has_its_schema(api):
    table = pa.ipc.open_stream((await api.records("t", accept=ARROW)).body).read_all()
    assert (table.num_rows, table.column_names[0]) == (0, "offset")


async def test_a_node_without_pyarrow_says_so(api, monkeypatch):
    monkeypatch.setattr(arrow.importlib.util, "find_spec", lambda name: None)
    answer = await api.records("t", accept=ARROW)
    assert answer.error == (406, 40601)
    assert "extra 'arrow'" in answer.json["message"]


async def test_text_by_name_ends_before_a_record_that_is_none_and_says_so_at_it(api):
    api.node.append("t", 0, ["tëa".encode(), b"", None], [b"u1", b"u2", None])
    api.node.append("t", 0, [b"c", b"\xff", b"d"])
    api.node.append("t", 0, [b"e"], [b"\xff"])
    answer = await api.records("t", accept=TEXT_V2)
    assert answer.headers["Content-Type"] == TEXT_V2
    assert answer.headers["Milena-Next-Offset"] == "4"
    rows = [(row["key"], row["value"]) for row in answer.json]
    assert rows == [("u1", "tëa"), ("u2", ""), (None, None), (None, "c")]
    for offset in (4, 6):
        refused = await api.records("t", f"?offset={offset}", accept=TEXT_V2)
        assert refused.error == (422, 42203)
        assert f"offset {offset} of t-0 is not text in UTF-8" in refused.json["message"]
    assert offsets(await api.records("t", "?offset=5&count=1", accept=TEXT_V2)) == [5]


# -- how keys are written --------------------------------------------------------------------------

MIXED_KEYS = [b'"u1"', b"u1", b"\xff", None]
"""As JSON writes one, as text writes the same, bytes, and none."""
SHOWN_KEYS = {
    "json": [{"key": "u1"}, {"key_text": "u1"}, {"key_base64": "/w=="}, {"key": None}],
    "text": [{"key": '"u1"'}, {"key": "u1"}, {"key_base64": "/w=="}, {"key": None}],
    "binary": [{"key": "InUxIg=="}, {"key": "dTE="}, {"key": "/w=="}, {"key": None}],
}
TYPES_OF_FORMATS = {"json": JSON_V2, "text": TEXT_V2, "binary": BINARY_V2}
READS = {
    route.operation_id: (
        route.path.replace("{topic}", "t").replace("{partition}", "0"),
        [None, "*/*", V2, *(type_ for answer in route.answers for type_ in answer.content)],
    )
    for route in ROUTES
    if "format" in route.query_names
}
READS_AND_TYPES = [(path, accept) for path, accepts in READS.values() for accept in accepts]


def shown_keys(answer):
    """The fields of each record that say something of its key."""
    kind, body = answer.headers["Content-Type"], answer.body
    if kind == EVENTS:
        body = b"\n".join(line[6:] for line in body.splitlines() if line.startswith(b"data: "))
    is_list = kind not in (EVENTS, NDJSON)
    rows = orjson.loads(body) if is_list else map(orjson.loads, filter(None, body.splitlines()))
    return [{name: row[name] for name in row if name.startswith("key")} for row in rows]


@pytest.fixture
def mixed(api):
    api.node.append("t", 0, [b"1"] * len(MIXED_KEYS), MIXED_KEYS)
    return api


@pytest.mark.parametrize("format_", [*SHOWN_KEYS, None])
@pytest.mark.parametrize(("path", "accept"), READS_AND_TYPES)
async def test_a_format_is_honoured_under_every_type_or_refused(mixed, path, accept, format_):
    query = "" if format_ is None else f"&format={format_}"
    answer = await mixed.get(f"{path}?follow=false{query}", accept)
    if format_ is None and answer.headers["Content-Type"] in (BATCH, ARROW):
        return
    contradicts = accept in {BATCH, ARROW, *TYPES_OF_FORMATS.values()} - {
        TYPES_OF_FORMATS.get(format_)
    }
    if accept not in (None, "*/*", V2, NDJSON, EVENTS) and "partitions" not in path:
        contradicts = True
    if format_ is not None and contradicts:
        assert answer.error == (406, 40601)
        assert f"the query asks for the format '{format_}'" in answer.json["message"]
        return
    named = {type_: name for name, type_ in TYPES_OF_FORMATS.items()}
    wanted = SHOWN_KEYS[format_ or named.get(accept, "json")]
    if format_ is None and accept in (JSON_V2, JSON):
        wanted = wanted[:1]  # These end before a record that they cannot show.
    elif format_ is None and accept == TEXT_V2:
        wanted = wanted[:2]
    assert answer.status == 200, answer.body
    assert shown_keys(answer) == wanted


def test_operations_that_read_records_by_a_format():
    assert set(READS) == {"fetchRecords", "fetchTopic"}


async def test_a_format_decides_the_type_of_a_client_that_takes_any(mixed):
    for format_, type_ in TYPES_OF_FORMATS.items():
        for accept, answered in ((None, type_), ("*/*", type_), (V2, type_), (JSON, JSON)):
            answer = await mixed.records("t", f"?format={format_}", accept)
            assert answer.headers["Content-Type"] == answered


@pytest.mark.parametrize("accept", [JSON_V2, BINARY_V2, TEXT_V2, BATCH, ARROW])
@pytest.mark.parametrize(
    ("isolation", "next_offset"), [("read_committed", 3), ("read_uncommitted", 10)]
)
async def test_both_ends_are_told_while_a_transaction_is_open(
    filled, accept, isolation, next_offset
):
    filled.node.log("t", 0).open_from = 3
    headers = (await filled.records("t", f"?isolation={isolation}", accept)).headers
    assert headers["Milena-High-Watermark"] == "10"
    assert headers["Milena-Last-Stable-Offset"] == "3"
    assert headers["Milena-Next-Offset"] == str(next_offset)
    assert headers["ETag"].endswith(f'.{next_offset}"')


async def test_every_surface_tells_the_end_by_the_same_name(filled):
    filled.node.log("t", 0).open_from = 3
    told = await filled.get("/topics/t/partitions/0/offsets")
    assert told.json == {"beginning_offset": 0, "end_offset": 10, "last_stable_offset": 3}
    assert told.headers["ETag"].endswith('.10"')
    clusters = (await filled.get("/v3/clusters")).json["data"]
    path = f"/v3/clusters/{clusters[0]['cluster_id']}/topics/t/partitions/0/offset"
    assert (await filled.get(path)).json["latest_offset"] == 10
    written = await filled.post(
        "/topics/t/partitions/0",
        {"records": [{"value": 1}]},
        headers={"If-Match": told.headers["ETag"]},
    )
    assert written.status == 200
