"""An answer in one piece says what aiohttp's says, and leaves connections as aiohttp does."""

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop

from milena.model.batch.decode import decode_columns, iterate_headers
from tests.support.clusters.runners import batch
from tests.support.http.api_server import BATCH, JSON_V2, serving

TLS_FILES = Path(__file__).parents[3] / "data" / "tls"
BODY = b'{"records":[{"value":1}]}'


def _request(version: str = "1.1", *headers: str) -> bytes:
    lines = [
        f"POST /topics/t HTTP/{version}",
        "Host: h",
        f"Content-Type: {JSON_V2}",
        f"Content-Length: {len(BODY)}",
        "X-Request-Id: mine",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + BODY


def _produce(body: bytes) -> bytes:
    lines = [
        "POST /topics/t/partitions/0/records HTTP/1.1",
        "Host: h",
        f"Content-Type: {BATCH}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _fetch(method: str = "GET", version: str = "1.1", *headers: str) -> bytes:
    lines = [
        f"{method} /topics/t/partitions/0/records?max_bytes=16777216 HTTP/{version}",
        "Host: h",
        f"Accept: {BATCH}",
        "X-Request-Id: mine",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines)


async def _answer(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    status, headers = await _head(reader)
    return status, headers, await reader.readexactly(int(headers["Content-Length"]))


@pytest.fixture
async def connection():
    async with serving() as api:
        api.node.add_topic("t")
        host, port = api.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        yield reader, writer
        writer.close()


@pytest.fixture(params=[10, 3_000_000], ids=["small", "large"])
async def stored(request, connection):
    """A connection, and the batch that a fetch brings: it is sent with its head, or behind it."""
    reader, writer = connection
    writer.write(_produce(batch("x" * request.param)))
    status, _, body = await _answer(reader)
    assert status == "HTTP/1.1 200 OK", body
    return reader, writer, request.param


async def test_a_connection_goes_on(connection):
    reader, writer = connection
    for offset in range(3):
        writer.write(_request())
        status, headers, body = await _answer(reader)
        assert status == "HTTP/1.1 200 OK"
        assert set(headers) == {
            "Content-Type", "Content-Length", "Date", "Server", "X-Request-Id",
        }  # fmt: skip
        assert headers["Content-Type"] == "application/vnd.kafka.v2+json"
        assert (headers["Server"], headers["X-Request-Id"]) == ("milena", "mine")
        assert b'"offset":%d,' % offset in body


async def test_requests_in_one_piece_are_answered_in_order(connection):
    reader, writer = connection
    writer.write(_request() * 5)
    for offset in range(5):
        _, _, body = await _answer(reader)
        assert b'"offset":%d,' % offset in body


@pytest.mark.parametrize(
    ("version", "sent", "got"),
    [
        ("1.1", ("Connection: close",), {"Connection": "close"}),
        ("1.0", (), {}),
    ],
)
async def test_a_last_request_ends_the_connection(connection, version, sent, got):
    reader, writer = connection
    writer.write(_request(version, *sent))
    status, headers, body = await _answer(reader)
    assert status == f"HTTP/{version} 200 OK"
    assert headers.items() >= got.items()
    assert headers["X-Request-Id"] == "mine"
    assert b'"offset":0,' in body
    assert await reader.read() == b""


async def test_an_old_connection_that_is_to_go_on_does(connection):
    reader, writer = connection
    for offset in range(2):
        writer.write(_request("1.0", "Connection: keep-alive"))
        _, headers, body = await _answer(reader)
        assert headers["Connection"] == "keep-alive"
        assert b'"offset":%d,' % offset in body


def _values(body: bytes) -> list[bytes]:
    return [
        v
        for position, header in iterate_headers(body)
        for v in decode_columns(body, header, position).values
    ]


async def test_a_fetch_is_answered_with_where_the_partition_stands(stored):
    reader, writer, size = stored
    for _ in range(3):
        writer.write(_fetch())
        status, headers, body = await _answer(reader)
        assert status == "HTTP/1.1 200 OK"
        assert set(headers) == {
            "Content-Type", "Content-Length", "Date", "Server", "X-Request-Id", "Milena-Start-Offset",
            "Milena-Next-Offset", "Milena-High-Watermark", "Milena-Last-Stable-Offset", "Milena-Log-Start-Offset",
            "Milena-Leader-Epoch", "ETag",
        }  # fmt: skip
        assert headers["Content-Type"] == BATCH
        assert (headers["Server"], headers["X-Request-Id"]) == ("milena", "mine")
        assert headers["Milena-Next-Offset"] == "1"
        assert _values(body) == [b"x" * size]


async def test_fetches_in_one_piece_are_answered_in_order(stored):
    reader, writer, size = stored
    writer.write(_fetch() + _request() + _fetch())
    for count in (1, None, 2):
        _, headers, body = await _answer(reader)
        if count is not None:
            assert headers["Milena-Next-Offset"] == f"{count}"
            assert len(_values(body)) == count
            assert len(body) > size


async def test_who_asks_for_the_head_of_a_fetch_gets_no_body(stored):
    reader, writer, size = stored
    writer.write(_fetch("HEAD"))
    status, headers = await _head(reader)
    assert status == "HTTP/1.1 200 OK"
    assert int(headers["Content-Length"]) > size
    assert headers["Milena-Next-Offset"] == "1"
    writer.write(_fetch())
    assert _values((await _answer(reader))[2]) == [b"x" * size]


@pytest.mark.parametrize(("version", "sent"), [("1.1", ("Connection: close",)), ("1.0", ())])
async def test_a_last_fetch_ends_the_connection(stored, version, sent):
    reader, writer, size = stored
    writer.write(_fetch("GET", version, *sent))
    status, headers, body = await _answer(reader)
    assert status == f"HTTP/{version} 200 OK"
    assert headers["Milena-Next-Offset"] == "1"
    assert _values(body) == [b"x" * size]
    assert await reader.read() == b""


async def test_a_client_that_leaves_in_the_middle_of_a_large_answer_harms_nobody(stored):
    reader, writer, size = stored
    host, port = writer.get_extra_info("peername")
    for _ in range(3):
        other, leaver = await asyncio.open_connection(host, port)
        leaver.write(_fetch() * 3)
        await other.readexactly(min(size, 100_000))
        leaver.transport.abort()
    writer.write(_fetch())
    assert _values((await _answer(reader))[2]) == [b"x" * size]


async def _fetched_over_tls() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS_FILES / "cluster.pem", TLS_FILES / "cluster.key")
    async with serving(tls=context) as api:
        api.node.add_topic("t")
        host, port = api.base_url.removeprefix("https://").split(":")
        trust = ssl.create_default_context(cafile=TLS_FILES / "cluster-ca.pem")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        writer.write(_produce(batch("x" * 3_000_000)))
        await _answer(reader)
        for _ in range(3):
            writer.write(_fetch())
            assert _values((await _answer(reader))[2]) == [b"x" * 3_000_000]
        writer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_large_answer_arrives_whole_under_tls(run):
    """A connection under TLS is another kind of transport, and each loop has its own."""
    run(asyncio.wait_for(_fetched_over_tls(), 30))
