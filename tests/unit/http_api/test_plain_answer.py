"""An answer in one piece says what aiohttp's says, and leaves connections as aiohttp does."""

import asyncio

import pytest

from tests.support.api_server import JSON_V2, serving

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


async def _answer(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return status, headers, await reader.readexactly(int(headers["Content-Length"]))


@pytest.fixture
async def connection():
    async with serving() as api:
        api.node.add_topic("t")
        host, port = api.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        yield reader, writer
        writer.close()


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
