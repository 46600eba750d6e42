"""Requests of a head that repeats go past aiohttp's handler, and nobody can tell by the answers."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from http_api.ports.node import ApiLimits
from http_api.protocol.headers import LISTS, SINGLE
from http_api.quick import lane as quick_lane
from http_api.routes import ROUTES
from http_api.server import ApiServer
from http_api.serving.dispatch import Dispatcher
from http_api.serving.unknown import CONDITIONS
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import NoLeaderError
from milena.model.requests import Receipts
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import JSON_V2, serving

RECORD = b'{"records":[{"value":1}]}'


def request(*headers: str, body: bytes = RECORD, path: str = "/topics/t", version="1.1") -> bytes:
    lines = [
        f"POST {path} HTTP/{version}",
        "Host: h",
        f"Content-Type: {JSON_V2}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client:
    """A connection that sends what it is told, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[str, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        return status, headers, body

    async def ask(self, data: bytes) -> tuple[str, dict[str, str], bytes]:
        self.send(data)
        return await self.answer()


@asynccontextmanager
async def connected(api, *, source: str = "127.0.0.1"):
    host, port = api.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def client(api):
    async with connected(api) as found:
        yield found


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def offset_of(answer: tuple[str, dict[str, str], bytes]) -> int:
    status, _, body = answer
    assert status == "HTTP/1.1 200 OK", answer
    found = re.search(rb'"offset":(\d+)', body)
    assert found is not None, body
    return int(found[1])


async def test_the_second_request_of_a_head_takes_the_lane_and_is_answered_alike(api, client):
    usual = await client.ask(request())
    assert not api.node.quick_requests
    quick = await client.ask(request())
    assert len(api.node.quick_requests) == 1
    assert (offset_of(usual), offset_of(quick)) == (0, 1)
    assert api.node.quick_requests == api.node.produce_requests
    assert set(quick[1]) == set(usual[1])
    differing = {name for name in usual[1] if usual[1][name] != quick[1][name]}
    assert differing <= {"Date", "X-Request-Id"}
    assert usual[1]["X-Request-Id"] != quick[1]["X-Request-Id"]


async def test_a_type_that_names_no_format_is_told_as_which_it_was_taken(api, client):
    plain = request().replace(JSON_V2.encode(), b"application/json")
    first, second = await client.ask(plain), await client.ask(plain)
    assert first[1].keys() == second[1].keys()
    assert second[1]["Milena-Record-Format"] == "json"
    assert len(api.node.quick_requests) == 1


VALUES = {
    "referer": ("http://elsewhere.example/page",),
    "origin": ("http://elsewhere.example", "http://h"),
    "sec-fetch-site": ("cross-site", "same-origin"),
    "expect": ("100-continue",),
    "transfer-encoding": ("chunked", "gzip"),
    "content-encoding": ("gzip", "identity"),
    "if-match": ('"7"',),
    "x-forwarded-host": ("elsewhere.example",),
    "forwarded": ("for=10.0.0.1;host=elsewhere.example",),
}
OF_EVERY_REQUEST = {"host", "content-type", "content-length"}


@pytest.mark.parametrize("name", sorted((SINGLE | LISTS) - OF_EVERY_REQUEST))
@pytest.mark.parametrize("content_type", [JSON_V2, "text/plain"])
async def test_a_header_means_the_same_in_the_lane_and_beside_it(api, name, content_type):
    """The first request of a head goes the usual way; the lane may take the next ones."""
    for value in VALUES.get(name, ("x",)):
        data = request(f"{name}: {value}").replace(JSON_V2.encode(), content_type.encode())
        statuses = []
        for _ in range(3):
            async with connected(api) as client:
                status, headers, _ = await client.ask(data)
                statuses.append((status, headers.get("Milena-Error")))
        assert len(set(statuses)) == 1, (name, value, statuses)


async def test_a_head_is_known_to_all_connections(api, client):
    await client.ask(request())
    async with connected(api) as other:
        assert offset_of(await other.ask(request())) == 1
    assert len(api.node.quick_requests) == 1


async def test_the_query_and_the_path_are_the_heads_own(api, client):
    paths = ("/topics/many/partitions/2?acks=all", "/topics/many/partitions/1/records?timeout_ms=7")
    for path in paths * 2:
        await client.ask(request(path=path))
    assert api.node.quick_requests == api.node.produce_requests
    assert [r.partition for r in api.node.quick_requests] == [2, 1]
    assert api.node.quick_requests[1].timeout_ms == 7


async def test_requests_are_counted_and_logged_alike(api, client, caplog):
    caplog.set_level("DEBUG", "http_api.access")
    for _ in range(3):
        await client.ask(request())
    lines = [re.sub(r"(duration_ms|request_id)=\S+", "", line) for line in caplog.messages]
    assert len(set(lines)) == 1
    assert len(lines) == 3
    text = (await api.get("/metrics")).body.decode()
    counts = 'milena_http_requests_total{method="POST",path="/topics/{topic}",status="200"} 3'
    assert counts in text


async def test_a_body_in_pieces_goes_the_usual_way_and_the_next_is_quick_again(api, client):
    await client.ask(request())
    whole = request()
    client.send(whole[:-5])
    await until(lambda: not client.writer.transport.get_write_buffer_size())
    await asyncio.sleep(0)
    client.send(whole[-5:])
    assert offset_of(await client.answer()) == 1
    assert offset_of(await client.ask(request())) == 2
    assert 1 <= len(api.node.quick_requests) <= 2


async def test_what_comes_between_does_not_close_the_lane(api, client):
    await client.ask(request())
    status, _, _ = await client.ask(b"GET /brokers HTTP/1.1\r\nHost: h\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    await client.ask(request())
    assert len(api.node.quick_requests) == 1


async def test_requests_in_one_piece_are_answered_in_order(api, client):
    await client.ask(request())
    client.send(request() * 4)
    assert [offset_of(await client.answer()) for _ in range(4)] == [1, 2, 3, 4]


async def test_a_request_behind_one_that_is_under_way_waits(api, client):
    await client.ask(request())
    api.node.holds_quick = True
    client.send(request())
    await until(lambda: api.node.held)
    client.send(request(path="/topics/many/partitions/0") + request())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(api.node.produce_requests) == 1
    api.node.held[0][1].set_result(Receipts.run(0, 41, 1))
    assert offset_of(await client.answer()) == 41
    assert offset_of(await client.answer()) == 0
    assert offset_of(await client.answer()) == 1


@pytest.mark.parametrize(
    "line",
    [
        "X-Request-Id: mine",
        "Connection: close",
        "Expect: 100-continue",
        "Content-Encoding: identity",
    ],
)
async def test_a_head_that_asks_for_more_goes_the_usual_way(api, line):
    for _ in range(2):
        async with connected(api) as client:
            client.send(request(line))
            status, _, _ = await client.answer()
            assert status in {"HTTP/1.1 200 OK", "HTTP/1.1 100 Continue"}
    assert not api.node.quick_requests


class TestKeys:
    """The key of a request differs each time, and is no part of the head that repeats."""

    async def test_each_key_is_its_requests_own(self, api, client):
        answers = [await client.ask(request(f"Idempotency-Key: k{n}")) for n in (1, 1, 2, 2)]
        assert [offset_of(answer) for answer in answers] == [0, 0, 1, 1]
        assert len(api.node.quick_requests) == 3
        first = api.node.produce_requests[0].idempotency
        assert (
            first
            == api.node.quick_requests[0].idempotency
            != api.node.quick_requests[1].idempotency
        )

    async def test_a_head_is_the_same_with_a_key_and_without(self, api, client):
        await client.ask(request("Accept: */*"))
        await client.ask(request("Idempotency-Key: k", "Accept: */*"))
        await client.ask(request("Accept: */*"))
        assert [one.idempotency is None for one in api.node.quick_requests] == [False, True]

    @pytest.mark.parametrize("key", ["", "a b", "x" * 256, " k", "k\t", "k\x80"])
    async def test_what_can_be_no_key_goes_the_usual_way(self, api, client, key):
        await client.ask(request("Idempotency-Key: k"))
        await client.ask(request(f"Idempotency-Key: {key}"))
        assert not api.node.quick_requests

    @pytest.mark.parametrize(
        "lines",
        [
            ("idempotency-key: k",),
            ("Idempotency-Key:k",),
            ("Idempotency-Key: k", "Idempotency-Key: k"),
            ("idempotency-key: k", "Idempotency-Key: k"),
        ],
    )
    async def test_one_that_is_written_in_another_way_or_twice_goes_the_usual_way(
        self, api, client, lines
    ):
        for _ in range(2):
            await client.ask(request(*lines))
        # A head without any is known, and these are still others.
        await client.ask(request())
        await client.ask(request(*lines))
        assert not api.node.quick_requests
        keys = {one.idempotency for one in api.node.produce_requests}
        assert len(keys) == 2


@pytest.mark.parametrize("name", CONDITIONS)
async def test_a_condition_is_refused_every_time(api, client, name):
    await client.ask(request())
    for _ in range(2):
        status, _, body = await client.ask(request(f"{name.lower()}: *"))
        assert status == "HTTP/1.1 400 Bad Request"
        assert name.encode() in body
    assert len(api.node.produce_requests) == 1


async def test_a_page_of_another_origin_is_refused_every_time(api, client):
    foreign = request("Sec-Fetch-Site: cross-site", body=b"a").replace(
        JSON_V2.encode(), b"text/plain"
    )
    for _ in range(2):
        status, _, _ = await client.ask(foreign)
        assert status == "HTTP/1.1 415 Unsupported Media Type"
    assert not api.node.produce_requests


@pytest.mark.parametrize("query", ["?ack=1", "?acks=1&asynch=true"])
async def test_a_parameter_that_is_not_known_is_refused_every_time(api, client, query):
    for _ in range(2):
        status, _, body = await client.ask(request(path=f"/topics/t{query}"))
        assert status == "HTTP/1.1 400 Bad Request"
        assert b"Unknown parameter" in body
    assert not api.node.produce_requests


async def test_what_nobody_waits_for_goes_the_usual_way(api, client):
    for _ in range(2):
        await client.ask(request(path="/topics/t?acks=0"))
    assert not api.node.quick_requests


async def test_a_body_at_fault_gets_the_answer_of_the_usual_way(api, client):
    wrong = b'{"records":[{"valu":1}]}]'
    assert len(wrong) == len(RECORD)
    usual = await client.ask(request(body=wrong))
    await client.ask(request())
    quick = await client.ask(request(body=wrong))
    assert (usual[0], usual[2]) == (quick[0], quick[2])
    assert usual[0].startswith("HTTP/1.1 4")


async def test_an_error_of_the_node_is_answered_alike(api, client):
    await client.ask(request())
    api.node.partition_errors[0] = NoLeaderError("nobody leads")
    quick = await client.ask(request())
    assert api.node.quick_requests
    usual = await client.ask(request("X-Request-Id: mine"))
    assert (usual[0], usual[2]) == (quick[0], quick[2])
    assert set(usual[1]) == set(quick[1])
    assert usual[1]["Retry-After"] == quick[1]["Retry-After"]


async def test_a_bug_is_answered_with_its_request_id(api, client, caplog):
    await client.ask(request())
    api.node.errors["produce"] = ValueError("bug")
    status, headers, body = await client.ask(request())
    assert status == "HTTP/1.1 500 Internal Server Error"
    assert headers["X-Request-Id"].encode() in body
    assert "unexpected error" in caplog.text


async def test_a_broken_invariant_is_contained():
    contained = ContainedErrors()
    async with serving(contained=contained) as api:
        api.node.add_topic("t")
        async with connected(api) as client:
            await client.ask(request())
            api.node.errors["produce"] = AssertionError("broken")
            status, headers, body = await client.ask(request())
            assert status.startswith("HTTP/1.1 500")
            assert headers["Milena-Error"] == "internal_error"
            assert headers["X-Request-Id"].encode() in body
            del api.node.errors["produce"]
            assert (await client.ask(request()))[0].startswith("HTTP/1.1 200")
    assert contained.counts[EntryPoint.API] == 1


async def test_a_client_that_goes_away_is_not_waited_for(api):
    async with connected(api) as client:
        await client.ask(request())
        api.node.holds_quick = True
        client.send(request())
        await until(lambda: api.node.held)
    await until(api.node.held[0][1].cancelled)
    text = (await api.get("/metrics")).body.decode()
    assert 'path="/topics/{topic}",status="499"} 1' in text
    assert "milena_http_body_bytes_in_flight 0" in text


async def test_the_lane_keeps_the_bound_on_requests():
    node = FakeNode()
    node.add_topic("t")
    async with (
        serving(node, ApiLimits(requests_in_flight_max=1)) as api,
        connected(api) as first,
        connected(api) as second,
    ):
        await first.ask(request())
        node.holds_quick = True
        first.send(request())
        await until(lambda: node.held)
        status, _, _ = await second.ask(request())
        assert status == "HTTP/1.1 429 Too Many Requests"
        node.held[0][1].set_result(Receipts.run(0, 5, 1))
        assert offset_of(await first.answer()) == 5


async def test_heads_are_forgotten_under_a_bound(api, client, monkeypatch):
    monkeypatch.setattr(quick_lane, "HEADS_MAX", 2)
    for name in ("a", "b", "c"):
        await client.ask(request(f"User-Agent: {name}"))
    await client.ask(request("User-Agent: a"))
    assert not api.node.quick_requests
    await client.ask(request("User-Agent: c"))
    assert len(api.node.quick_requests) == 1

    @pytest.mark.parametrize("second", ["Idempotency-Key: l", "IDEMPOTENCY-KEY: l"])
    async def test_two_different_ones_are_refused(self, api, client, second):
        await client.ask(request("Idempotency-Key: k"))
        async with connected(api) as other:
            status, _, body = await other.ask(request("Idempotency-Key: k", second))
        assert status == "HTTP/1.1 400 Bad Request"
        assert b"two values" in body
        assert len(api.node.produce_requests) == 1


@pytest.mark.parametrize("before", [b"\r\n", b"\r\n\r\n"])
async def test_where_a_request_begins_is_not_guessed(api, client, before):
    await client.ask(request())
    await client.ask(before + request())
    assert not api.node.quick_requests
    await client.ask(request())
    assert len(api.node.quick_requests) == 1


class Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


async def test_a_connection_does_not_rest_while_a_request_is_under_way():
    node = FakeNode()
    node.add_topic("t")
    server = ApiServer(Dispatcher(node.ports(), ROUTES))
    wire, connection = Wire(), server()
    connection.connection_made(wire)
    await asyncio.sleep(0)
    connection.data_received(request())
    await until(lambda: b'"offset":0' in wire.written)
    await asyncio.sleep(0)
    node.holds_quick = True
    asyncio.get_running_loop().call_soon(connection.data_received, request())
    await until(lambda: node.held)
    connection._next_keepalive_close_time = 0.0
    connection._process_keepalive()
    assert not wire.is_closed
    node.held[0][1].set_result(Receipts.run(0, 1, 1))
    await until(lambda: b'"offset":1' in wire.written)
    assert connection._keepalive_handle is not None
    assert not wire.is_closed
    connection._next_keepalive_close_time = 0.0
    connection._process_keepalive()
    assert wire.is_closed
    connection.connection_lost(None)
    await server.shutdown(1)


async def test_a_server_that_stops_answers_what_is_under_way():
    node = FakeNode()
    node.add_topic("t")
    server = ApiServer(Dispatcher(node.ports(), ROUTES))
    wire, connection = Wire(), server()
    connection.connection_made(wire)
    await asyncio.sleep(0)
    connection.data_received(request())
    await until(lambda: b'"offset":0' in wire.written)
    await asyncio.sleep(0)
    node.holds_quick = True
    asyncio.get_running_loop().call_soon(connection.data_received, request())
    await until(lambda: node.held)
    server.pre_shutdown()
    stopping = asyncio.create_task(server.shutdown(5))
    await asyncio.sleep(0)
    assert not wire.is_closed
    node.held[0][1].set_result(Receipts.run(0, 9, 1))
    await stopping
    assert b'"offset":9' in wire.written
    assert wire.is_closed
    connection.connection_lost(None)
