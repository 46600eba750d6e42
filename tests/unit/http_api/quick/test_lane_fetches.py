"""Fetches of stored batches whose records are in memory take the lane, and get the same answers as on the usual way."""

import random
from contextlib import asynccontextmanager

import pytest

from http_api.protocol.media import BATCH_TYPE
from http_api.quick.lane import HEADS_MAX
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.errors import NoLeaderError
from tests.support.fakes.ports import NOW_MS, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode
from tests.unit.http_api.quick.test_lane import Client, connected

READ = Allowed("READ", "TOPIC", "t")
OWN = {"Date", "X-Request-Id"}
"""Headers that differ between any two answers."""


def fetch_of(
    query: str = "", *headers: str, method: str = "GET", accept: str = BATCH_TYPE
) -> bytes:
    path = "/topics/t/partitions/0/records" + (f"?{query}" if query else "")
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: h", f"Accept: {accept}", *headers, "", ""]
    ).encode()


def batch_of(count: int, size: int) -> bytes:
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None,
        values=[bytes([number % 256]) * size for number in range(count)],
        headers=None,
    )
    return encode_batch(columns, base_timestamp_ms=NOW_MS)


@asynccontextmanager
async def filled(*, records: int = 60, size: int = 20):
    """A node with batches of three records each, and a connection to it."""
    node = FakeNode()
    node.add_topic("t")
    log = node.log("t", 0)
    for _ in range(records // 3):
        log.append(batch_of(3, size))
    async with serving(node) as api, connected(api) as client:
        yield api, client


async def both_ways(client: Client, query: str) -> tuple[object, object]:
    """Return the answers of the usual way and of the lane, without what differs between any two."""
    usual = await client.ask(fetch_of(query, "Sec-Fetch-Site: none"))
    quick = await client.ask(fetch_of(query))
    return tuple(
        (status, {k: v for k, v in headers.items() if k not in OWN}, body)
        for status, headers, body in (usual, quick)
    )


async def test_the_second_fetch_of_a_head_takes_the_lane_whatever_its_offset():
    async with filled() as (api, client):
        for offset in (0, 3, 7):
            status, headers, body = await client.ask(fetch_of(f"offset={offset}"))
            assert status == "HTTP/1.1 200 OK"
            assert headers["Milena-Start-Offset"] == str(offset)
            assert body == api.node.log("t", 0).read(offset, 1 << 20)
        assert [request.offset for request in api.node.fetch_requests] == [0]
        assert [request.offset for request in api.node.quick_fetches] == [3, 7]


@pytest.mark.parametrize("size", [20, 7000])
async def test_every_range_is_answered_byte_for_byte_as_by_the_usual_way(size):
    """Fetch bodies that are copied behind their head, and larger ones."""
    chance = random.Random(size)
    async with filled(size=size) as (api, client):
        await client.ask(fetch_of("offset=0"))
        for number in range(1, 60):
            offset, limit = chance.randrange(60), chance.randrange(1, 40 * size)
            usual, quick = await both_ways(client, f"offset={offset}&max_bytes={limit}")
            assert usual == quick
            assert len(api.node.quick_fetches) == number


@pytest.mark.parametrize(
    "query",
    [
        "",
        "offset=earliest",
        "offset=latest",
        "offset=-1",
        "offset=60",
        "offset=61",
        "offset=x",
        "offset=0&offset=3",
        "offset=0&nothing=1",
        "offset=0&max_bytes=0",
        "offset=0&max_bytes=9000000",
        "offset=0&count=4",
        "offset=0&verify=true",
        "offset=0&isolation=read_uncommitted",
        "offset=0&format=json",
        "offset=0&follow=true&count=1",
        "offset=%30",
        "offset=+3",
        "offset=3&timestamp=1",
        "&&offset=3",
        "offset",
    ],
)
async def test_every_query_means_the_same_in_the_lane_and_beside_it(query):
    async with filled() as (_, client):
        await client.ask(fetch_of("offset=0"))
        usual, quick = await both_ways(client, query)
        assert usual == quick


@pytest.mark.parametrize(
    "line",
    [
        'If-None-Match: "x"',
        "Idempotency-Key: k",
        "Origin: http://elsewhere.example",
        "X-Request-Id: mine",
        "Accept: application/json",
        "Connection: close",
        "Content-Length: 1",
    ],
)
async def test_a_head_that_asks_for_more_goes_the_usual_way(line):
    async with filled() as (api, _):
        for _ in range(3):
            async with connected(api) as client:
                await client.ask(fetch_of("offset=0", line))
        assert not api.node.quick_fetches


async def test_another_type_goes_the_usual_way():
    async with filled() as (api, client):
        for accept in ("application/json", f"{BATCH_TYPE};q=1", "*/*"):
            for _ in range(3):
                await client.ask(fetch_of("offset=0", accept=accept))
        assert not api.node.quick_fetches
        for _ in range(3):
            client.send(fetch_of("offset=0", method="HEAD"))
            await client.reader.readuntil(b"\r\n\r\n")
        assert not api.node.quick_fetches


async def test_what_a_node_cannot_answer_at_once_goes_the_usual_way():
    async with filled() as (api, client):
        await client.ask(fetch_of("offset=0"))
        api.node.errors["fetch"] = NoLeaderError("gone")
        status, _, body = await client.ask(fetch_of("offset=0"))
        assert status.startswith("HTTP/1.1 503"), body
        assert b"gone" in body


async def test_damage_is_reported_by_the_usual_way():
    async with filled() as (api, client):
        await client.ask(fetch_of("offset=0"))
        log = api.node.log("t", 0)
        log.batches[1] = bytes([log.batches[1][0] ^ 1]) + log.batches[1][1:]
        log.read = lambda offset, max_bytes: b"".join(log.batches)
        status, headers, body = await client.ask(fetch_of("offset=0"))
        assert (status, headers["Milena-Next-Offset"]) == ("HTTP/1.1 200 OK", "3")
        assert body == log.batches[0]
        assert [doubt.offset for doubt in api.node.doubts] == [3]


async def test_fetches_that_arrive_together_are_answered_in_order():
    async with filled(size=7000) as (api, client):
        await client.ask(fetch_of("offset=0"))
        offsets = (3, 9, 0, 30)
        client.send(b"".join(fetch_of(f"offset={offset}") for offset in offsets))
        for offset in offsets:
            _, headers, body = await client.answer()
            assert headers["Milena-Start-Offset"] == str(offset)
            assert body == api.node.log("t", 0).read(offset, 1 << 20)


async def test_a_client_that_does_not_read_gets_no_second_answer_from_the_lane():
    async with filled(records=600, size=3000) as (api, client):
        await client.ask(fetch_of("offset=0"))
        client.writer.transport.pause_reading()
        asked = 0
        while len(api.node.quick_fetches) == asked and asked < 100:
            client.send(fetch_of("offset=0"))
            asked += 1
            assert (await api.get("/brokers")).status == 200
        # Once its send buffer is full, the next fetch goes the usual way, which waits until the client has read.
        assert 0 < len(api.node.quick_fetches) < 100
        client.writer.transport.resume_reading()
        for _ in range(asked):
            _, _, body = await client.answer()
            assert body == api.node.log("t", 0).read(0, 1 << 20)


async def test_heads_of_fetches_share_the_bound_of_all_heads():
    async with filled() as (api, client):
        for offset in range(HEADS_MAX // 500):
            for query in (f"offset={offset}", f"offset={offset}&max_bytes=100"):
                await client.ask(fetch_of(query))
        assert len(api.node.fetch_requests) == 1


async def test_fetches_are_counted_like_others():
    async with filled() as (api, client):
        for _ in range(3):
            await client.ask(fetch_of("offset=0"))
        metrics = (await api.get("/metrics")).body.decode()
        (line,) = (
            line
            for line in metrics.splitlines()
            if "requests_total{" in line
            and "/partitions/{partition}/records" in line
            and "GET" in line
        )
        assert line.endswith(" 3"), line


async def test_a_right_that_is_revoked_is_so_for_the_next_fetch():
    async with filled() as (api, client):
        closed = ClosedNode(api.node)
        headers = closed.user("ann", READ)
        data = fetch_of("offset=0", f"Authorization: {headers['Authorization']}")
        for _ in range(3):
            assert (await client.ask(data))[0] == "HTTP/1.1 200 OK"
        assert api.node.quick_fetches
        count = len(api.node.quick_fetches)
        closed.deny("ann", READ)
        assert (await client.ask(data))[0] == "HTTP/1.1 403 Forbidden"
        assert len(api.node.quick_fetches) == count
