"""Request ids, limits, error translation and logs: what every endpoint gets."""

import asyncio
import gzip
import logging
import zlib
from contextlib import asynccontextmanager
from random import Random

import orjson
import pytest
from aiohttp import web

from http_api.ports.node import ApiLimits
from http_api.protocol.codings import unpack
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import DiskFullError
from milena.model.turns import at_once
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import JSON_V2, V2, serving


async def raw_exchange(api, request: bytes) -> bytes:
    """Bytes in, everything that comes until the server closes."""
    host, _, port = api.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_request_ids_are_made_of_node_and_counter(api):
    first = (await api.get("/topics")).headers["X-Request-Id"]
    second = (await api.get("/nope")).headers["X-Request-Id"]
    assert (first, second) == ("1-1", "1-2")


async def test_a_sane_request_id_of_the_client_is_kept_on_errors_too(api):
    for path in ("/topics", "/nope", "/topics/x", "/readyz"):
        answer = await api.get(path, headers={"X-Request-Id": "abc-1:2/3"})
        assert answer.headers["X-Request-Id"] == "abc-1:2/3"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", '"'])
async def test_other_request_ids_are_replaced(api, given):
    answer = await api.get("/topics", headers={"X-Request-Id": given})
    assert answer.headers["X-Request-Id"] == "1-1"


async def test_unknown_paths_and_methods_are_answered_in_json(api):
    assert (await api.get("/nope")).error == (404, 404)
    answer = await api.call("PATCH", "/topics/t")
    assert answer.error == (405, 405)
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS, POST"


async def test_a_trailing_slash_means_nothing(api):
    for path in ("/topics", "/topics/t", "/topics/t/partitions/0", "/v3/clusters", "/readyz"):
        assert (await api.get(path + "/")).status == 200, path


async def test_head_is_get_without_a_body(api):
    get, head = await api.get("/topics"), await api.call("HEAD", "/topics")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


async def test_options_lists_methods(api):
    answer = await api.call("OPTIONS", "/topics/t/partitions/0/records")
    assert (answer.status, answer.headers["Allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert (await api.call("OPTIONS", "/nope")).error == (404, 404)


async def test_options_of_the_server(api):
    answer = await raw_exchange(api, b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"Allow: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" in answer


async def test_control_characters_in_names_are_refused(api):
    answer = await api.get("/topics/a%0Ab")
    assert answer.error == (400, 400)
    assert "a␊b" in answer.json["message"]


async def test_a_bug_is_answered_with_an_id_and_nothing_of_its_inside(api, caplog):
    api.node.errors["topic"] = ValueError("secret")
    answer = await api.get("/topics/t", headers={"X-Request-Id": "find-me"})
    assert answer.error == (500, 500)
    assert b"secret" not in answer.body
    assert b"find-me" in answer.body
    assert "unexpected error request_id=find-me" in caplog.text
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("1 != 2"),
        IndexError("x"),
        RecursionError(),
        ExceptionGroup("x", [KeyError(1)]),
    ],
)
async def test_whatever_a_handler_raises_is_contained_and_counted(caplog, error):
    node, contained = FakeNode(), ContainedErrors()
    node.errors["topic"] = error
    async with serving(node, contained=contained) as api:
        for _ in range(3):
            answer = await api.get("/topics/t")
            assert answer.error == (500, 500)
            assert answer.headers["Milena-Error"] == "internal_error"
            assert answer.headers["X-Request-Id"] in answer.json["message"]
        del node.errors["topic"]
        node.add_topic("t")
        assert (await api.get("/topics/t")).status == 200
    assert contained.counts[EntryPoint.API] == 3
    assert caplog.text.count("unexpected error request_id") == 1


async def test_what_aiohttp_refuses_gets_our_envelope(api):
    api.node.errors["topic"] = web.HTTPConflict()
    assert (await api.get("/topics/t")).error == (409, 409)


@pytest.mark.parametrize(
    ("path", "error", "level"),
    [
        ("/topics", None, logging.DEBUG),
        ("/nope", None, logging.INFO),
        ("/topics/t", DiskFullError("full"), logging.WARNING),
    ],
)
async def test_access_log_levels(api, caplog, path, error, level):
    caplog.set_level(logging.DEBUG, "http_api.access")
    if error is not None:
        api.node.errors["topic"] = error
    await api.get(path, headers={"X-Request-Id": "id-7"})
    (record,) = [r for r in caplog.records if r.name == "http_api.access"]
    assert record.levelno == level
    assert f"method=GET path={path} status=" in record.getMessage()
    assert record.getMessage().endswith("request_id=id-7")


@pytest.mark.parametrize(
    "noise",
    [
        b"no http at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /a\x00b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nContent-Type: a/b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request_are_refused_in_json(api, noise, caplog):
    answer = await raw_exchange(api, noise)
    assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert b"\r\nX-Request-Id: 1-1\r\n" in answer
    assert b"\r\nMilena-Error: malformed_request\r\n" in answer
    envelope = orjson.loads(answer.partition(b"\r\n\r\n")[2])
    assert envelope["error_code"] == 400
    assert envelope["message"].startswith("HTTP 400 Bad Request: ")
    assert "Traceback" not in caplog.text
    assert (await api.get("/topics")).status == 200


TOO_LONG = "HTTP 414 Request-URI Too Long: the URL has more than 8190 bytes"
TOO_LARGE = "HTTP 431 Request Header Fields Too Large: "


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n", TOO_LONG),
        (b"GET /topics?a=" + b"x" * 20_000 + b" HTTP/1.1\r\n", TOO_LONG),
        (
            b"GET / HTTP/1.1\r\nX: " + b"/" * 10_000 + b"\r\n",
            f"{TOO_LARGE}a header has more than 8192 bytes",
        ),
        (
            b"GET / HTTP/1.1\r\n" + b"x" * 10_000 + b": y\r\n",
            f"{TOO_LARGE}a header has more than 8192 bytes",
        ),
        (
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000,
            f"{TOO_LARGE}there are more than 128 headers",
        ),
    ],
    ids=["path", "query", "value", "name", "headers"],
)
async def test_a_head_above_a_bound_is_told_which(api, head, told):
    answer = await raw_exchange(api, head + b"Host: a\r\n\r\n")
    envelope = orjson.loads(answer.partition(b"\r\n\r\n")[2])
    assert envelope == {"error_code": int(told[5:8]), "message": told}
    kind = b"url_too_long" if told == TOO_LONG else b"headers_too_large"
    assert b"\r\nMilena-Error: " + kind + b"\r\n" in answer
    assert answer.startswith(b"HTTP/1.0 " + told[5:8].encode())


@pytest.mark.parametrize("body", [b'{"name":"\xff"}', b"\xff", b'{"name":"a\xc3"}'])
async def test_a_body_that_is_not_utf8_is_told_the_byte(api, body):
    answer = await api.post("/consumers/g", body, V2)
    place = next(i for i, byte in enumerate(body) if byte > 127)
    assert answer.error == (400, 400)
    assert (
        answer.json["message"]
        == f"the body is not JSON: byte {place} (0x{body[place]:02x}) is not UTF-8"
    )


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /topics HTTP/1.1\r\nAccept: \xff\xfe",
        b"GET /topics/\xff HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET /topics/t/partitions/0/records?offset=\xff HTTP/1.1",
        b"GET /topics/t/partitions/\xff HTTP/1.1",
        b"GET /v3/clusters HTTP/1.1\r\nX-Forwarded-Host: \xff",
        b"POST /topics/t HTTP/1.1\r\nContent-Type: \xff",
        b"POST /topics/t?acks=\xff HTTP/1.1",
        b"\xff /topics HTTP/1.1",
    ],
)
async def test_bytes_that_are_not_utf8_are_refused_in_json(api, request_, caplog):
    caplog.set_level(logging.DEBUG)
    answer = await raw_exchange(api, request_ + b"\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.partition(b" ")[2].startswith(b"4"), answer
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["message"]
    assert "Traceback" not in caplog.text


# -- bodies


async def test_a_body_above_the_bound_is_refused_before_it_is_read():
    async with serving(limits=ApiLimits(request_bytes_max=100)) as api:
        api.node.add_topic("t")
        answer = await raw_exchange(
            api,
            b"POST /topics/t HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\nConnection: close\r\n"
            b"Expect: 100-continue\r\n\r\n" + b" " * 101,
        )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"error_code":413' in answer
    assert b"100 Continue" not in answer


async def chunks(*parts):
    for part in parts:
        yield part


async def test_a_chunked_body_above_the_bound_is_refused():
    async with serving(limits=ApiLimits(request_bytes_max=100)) as api:
        api.node.add_topic("t")
        answer = await api.call(
            "POST",
            "/topics/t",
            data=chunks(b" " * 60, b" " * 60),
            headers={"Content-Type": JSON_V2},
        )
        assert answer.error == (413, 413)
        assert api.node.produce_requests == []


async def test_a_compressed_body_counts_as_what_it_becomes():
    async with serving(limits=ApiLimits(request_bytes_max=1000)) as api:
        api.node.add_topic("t")
        headers = {"Content-Type": JSON_V2, "Content-Encoding": "gzip"}
        body = b'{"records":[{"value":"' + b"x" * 500 + b'"}]}'
        answer = await api.call("POST", "/topics/t", data=gzip.compress(body), headers=headers)
        assert answer.status == 200
        bomb = gzip.compress(b'{"records":[{"value":"' + b"x" * 5000 + b'"}]}')
        assert len(bomb) < 1000
        assert (await api.call("POST", "/topics/t", data=bomb, headers=headers)).error == (413, 413)


async def test_a_body_that_is_not_what_its_encoding_says_is_malformed(api):
    headers = {"Content-Type": JSON_V2, "Content-Encoding": "gzip"}
    answer = await api.call("POST", "/topics/t", data=b"no gzip at all" * 10, headers=headers)
    assert answer.status == 400


async def test_chunked_bodies_are_taken(api):
    answer = await api.call(
        "POST",
        "/topics/t",
        data=chunks(b'{"records":', b'[{"value":', b"1}]}"),
        headers={"Content-Type": JSON_V2},
    )
    assert answer.status == 200


async def test_the_body_is_asked_for_when_the_client_waits_for_that(api):
    answer = await api.call(
        "POST",
        "/topics/t",
        data=b'{"records":[{"value":1}]}',
        headers={"Content-Type": JSON_V2},
        expect100=True,
    )
    assert answer.status == 200


async def test_a_body_that_does_not_come_is_given_up():
    async with serving(limits=ApiLimits(body_wait_ms_max=0)) as api:
        api.node.add_topic("t")
        answer = await raw_exchange(
            api,
            b"POST /topics/t HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{",
        )
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"error_code":408' in answer


# -- limits


async def test_requests_above_the_bound_are_refused_and_probes_are_not():
    async with serving(limits=ApiLimits(requests_in_flight_max=1)) as api:
        api.node.add_topic("t")
        fetched = asyncio.Event()
        original = api.node.fetch

        async def fetch(request):
            fetched.set()
            return await original(request)

        api.node.fetch = fetch
        waiting = asyncio.ensure_future(api.records("t", "?timeout=60000"))
        await fetched.wait()
        answer = await api.get("/topics")
        assert answer.error == (429, 42901)
        assert answer.headers["Retry-After"] == "1"
        assert (await api.get("/livez")).status == 200
        assert (await api.get("/metrics")).status == 200
        api.node.append("t", 0, [b"1"])
        assert (await waiting).status == 200
        assert (await api.get("/topics")).status == 200


async def test_bytes_above_the_bound_are_refused_and_given_back():
    async with serving(limits=ApiLimits(bytes_in_flight_max=100)) as api:
        api.node.add_topic("t")
        assert (await api.post("/topics/t", b" " * 101)).error == (429, 42901)
        assert (await api.post("/topics/t", b" " * 100)).error == (400, 400)
        for _ in range(3):
            assert (await api.produce("t", [{"value": "x" * 50}])).status == 200
        assert b"milena_http_body_bytes_in_flight 0" in (await api.get("/metrics")).body


async def test_chunked_bytes_count_as_they_come():
    async with serving(limits=ApiLimits(bytes_in_flight_max=100)) as api:
        api.node.add_topic("t")
        answer = await api.call(
            "POST",
            "/topics/t",
            data=chunks(b" " * 60, b" " * 60),
            headers={"Content-Type": JSON_V2},
        )
        assert answer.error == (429, 42901)
        assert (await api.produce("t", [{"value": 1}])).status == 200


async def test_a_client_that_goes_away_ends_its_wait():
    async with serving() as api:
        api.node.add_topic("t")
        fetching, ended = asyncio.Event(), asyncio.Event()

        async def fetch(request):
            fetching.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        api.node.fetch = fetch
        waiting = asyncio.ensure_future(api.records("t", "?timeout=60000"))
        await fetching.wait()
        waiting.cancel()
        await ended.wait()


async def test_metrics_count_by_route_and_not_by_name(api):
    await api.get("/topics/t")
    await api.get("/topics/missing")
    await api.get("/made/up")
    text = (await api.get("/metrics")).body.decode()
    assert 'milena_http_requests_total{method="GET",path="/topics/{topic}",status="200"} 1' in text
    assert 'milena_http_requests_total{method="GET",path="/topics/{topic}",status="404"} 1' in text
    assert 'milena_http_requests_total{method="other",path="unrouted",status="404"} 1' in text
    assert 'milena_http_request_seconds_count{method="GET",path="/topics/{topic}"} 2' in text
    assert "missing" not in text
    assert "# TYPE milena_fake gauge\n" in text


PAGES_OF_OTHERS = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]


@pytest.mark.parametrize("headers", PAGES_OF_OTHERS)
@pytest.mark.parametrize("path", ["/drain", "/producers", "/topics/t", "/admin/topics"])
async def test_a_page_of_another_origin_must_say_what_its_body_is(api, path, headers):
    """Without a type a browser sends it unasked, whatever it holds; with one it asks first, and is told no."""
    answer = await api.post(path, {"records": [{"value": 1}]}, None, headers=headers)
    assert answer.error == (415, 415)
    assert (await api.call("POST", path, headers=headers)).status == 415
    assert (await api.post(path, b"a", "text/plain", headers=headers)).status == 415
    assert not api.node.drains
    assert not api.node.produce_requests


@pytest.mark.parametrize("headers", [*PAGES_OF_OTHERS, {"Sec-Fetch-Site": "same-origin"}, {}])
async def test_a_type_or_the_own_origin_is_enough(api, headers):
    body = {"records": [{"value": 1}]}
    assert (await api.post("/topics/t", body, "application/json", headers=headers)).status == 200
    if headers not in PAGES_OF_OTHERS:
        assert (await api.post("/topics/t", body, None, headers=headers)).status == 200


@asynccontextmanager
async def unfinished_bodies(api, count, announced=1000):
    """Clients that announce a body and send a few bytes of it."""
    host, _, port = api.base_url.removeprefix("http://").partition(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n{}" % announced
        )
        await writer.drain()
        writers.append(writer)
    try:
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


async def test_bodies_that_do_not_come_keep_nobody_out():
    limits = ApiLimits(requests_in_flight_max=2, bytes_in_flight_max=2500)
    async with serving(limits=limits) as api:
        api.node.add_topic("t")
        async with unfinished_bodies(api, 5):
            for _ in range(3):
                assert (await api.produce("t", [{"value": "x" * 500}])).status == 200


async def test_the_connection_that_rested_longest_makes_room_for_another():
    async with serving(limits=ApiLimits(connections_max=3)) as api:
        api.node.add_topic("t")
        host, _, port = api.base_url.removeprefix("http://").partition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        assert (await api.produce("t", [{"value": 1}])).status == 200
        assert await idle[0][0].read() == b""
        async with unfinished_bodies(api, 2):
            assert await idle[1][0].read() == b""
            assert await idle[2][0].read() == b""
            assert (await api.produce("t", [{"value": 1}])).status == 200
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize("member_count", [1, 64])
async def test_unpacking_a_bomb_holds_up_nobody_and_ends_at_the_bound(monkeypatch, member_count):
    steps = []

    def counted(stream_body, window, account):
        inner = unpack(stream_body, window, account)
        for _ in inner:
            steps.append(1)
            yield
        return b""

    monkeypatch.setattr("http_api.serving.body.unpack", counted)
    limits = ApiLimits(request_bytes_max=8 << 20)
    async with serving(limits=limits) as api:
        bomb = gzip.compress(bytes((64 << 20) // member_count), 9) * member_count
        headers = {"Content-Type": JSON_V2, "Content-Encoding": "gzip"}
        answer = await api.call("POST", "/topics/t", data=bomb, headers=headers)
        assert answer.error == (413, 413)
    assert 8 <= len(steps) <= 16


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:100]) + gzip.compress(body[100:])),
        ("gzip", lambda body: gzip.compress(body) + 999 * gzip.compress(b"")),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body, wbits=-15)),
        ("identity", bytes),
    ],
)
async def test_content_codings_that_are_taken(coding, pack):
    async with serving() as api:
        api.node.add_topic("t")
        body = pack(b'{"records":[{"value":"' + b"x" * 10_000 + b'"}]}')
        headers = {"Content-Type": JSON_V2, "Content-Encoding": coding}
        assert (await api.call("POST", "/topics/t", data=body, headers=headers)).status == 200


@pytest.mark.parametrize("sizes", [(2 << 20, 1, 3 << 20), (0, 0), (1_048_576, 1_048_577), (5,)])
@pytest.mark.parametrize("fill", [bytes, Random(1).randbytes])
def test_members_of_any_size_are_unpacked(sizes, fill):
    parts = [fill(size) for size in sizes]
    packed = b"".join(gzip.compress(part, 1) for part in parts)
    assert at_once(unpack(packed, 31, lambda _: None)) == b"".join(parts)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "nonsense"])
async def test_other_content_codings_are_refused(coding):
    async with serving() as api:
        headers = {"Content-Type": JSON_V2, "Content-Encoding": coding}
        answer = await api.call("POST", "/topics/t", data=b"{}", headers=headers)
        assert answer.status == 415


EMPTY_MEMBER = gzip.compress(b"")


@pytest.mark.parametrize(
    ("coding", "spoil"),
    [
        ("gzip", lambda b: gzip.compress(b)[:-5]),
        ("gzip", lambda b: gzip.compress(b) + b"x"),
        ("gzip", lambda b: gzip.compress(b) + bytes(512)),
        ("gzip", lambda b: gzip.compress(b) + EMPTY_MEMBER[:-1]),
        ("gzip", lambda b: gzip.compress(b) + 1_000 * EMPTY_MEMBER),
        ("gzip", lambda _: b""),
        ("deflate", lambda b: zlib.compress(b) + zlib.compress(b"")),
    ],
)
async def test_a_body_is_exactly_one_whole_compressed_stream(coding, spoil):
    async with serving() as api:
        api.node.add_topic("t")
        body = spoil(b'{"records":[{"value":1}]}')
        headers = {"Content-Type": JSON_V2, "Content-Encoding": coding}
        answer = await api.call("POST", "/topics/t", data=body, headers=headers)
        assert answer.error == (400, 400)
