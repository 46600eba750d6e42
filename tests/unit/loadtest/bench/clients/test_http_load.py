"""The closed loop against servers that answer in all ways: whole, in pieces, late, wrong, or not at all."""

import asyncio
from collections.abc import Callable

import pytest

from loadtest.bench.clients import http_load
from loadtest.bench.clients.http_load import Ask, HttpLoad, HttpLoadError, encode_request
from loadtest.bench.servers.subject import http_turn

Answers = Callable[[int], list[bytes]]


class _Server(asyncio.Protocol):
    """Answers the n-th request of all with these pieces, each in a turn of the loop of its own."""

    seen: list[bytes]
    answers: Answers

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self.seen.append(data)
        asyncio.get_running_loop().create_task(self._answer(self.answers(len(self.seen))))

    async def _answer(self, pieces):
        for piece in pieces:
            if piece:
                self._transport.write(piece)
            else:
                self._transport.close()
            await asyncio.sleep(0)


def _ok(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return head + b"\r\ncontent-LENGTH: %d\r\n\r\n" % len(body) + body


async def _load(answers: Answers, ask: Ask | None = None, connections: int = 2):
    seen: list[bytes] = []
    kind = type("Server", (_Server,), {"seen": seen, "answers": staticmethod(answers)})
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    load = HttpLoad(
        f"http://127.0.0.1:{port}",
        ask or Ask(requests=[b"a", b"b"]),
        connections=connections,
    )
    await load.open()
    try:
        await load.run(0)
    finally:
        load.close()
        server.close()
        await server.wait_closed()
    return load, seen


def test_a_request_is_bytes_with_its_length():
    request = encode_request("http://h:1", "POST", "/a?b=c", b"xy", Content_Type="text/plain")
    head = b"POST /a?b=c HTTP/1.1\r\nHost: h:1\r\nContent-Type: text/plain\r\nContent-Length: 2"
    assert request == head + b"\r\n\r\nxy"
    assert encode_request("http://h:1", "GET", "/") == b"GET / HTTP/1.1\r\nHost: h:1\r\n\r\n"


async def test_each_connection_has_its_last_answer_when_the_time_is_up():
    load, seen = await _load(lambda _: [_ok(b"hello")])
    assert len(load.latencies_s) == 2
    assert load.answer_bytes == 10
    assert sorted(seen) == [b"a", b"b"]


async def test_an_answer_may_come_in_pieces():
    whole = _ok(b"hello")
    load, _ = await _load(lambda _: [whole[:7], whole[7:30], whole[30:]])
    assert load.answer_bytes == 10


async def test_a_body_larger_than_the_buffer_is_counted(monkeypatch):
    monkeypatch.setattr(http_load, "HEAD_BYTES_MAX", 256)
    monkeypatch.setattr(http_load, "PIECE_BYTES_MAX", 300)
    whole = _ok(b"x" * 5000)
    load, _ = await _load(lambda _: [whole[:200], whole[200:]], connections=1)
    assert load.answer_bytes == 5000


async def test_a_body_that_is_looked_at_is_kept_whole(monkeypatch):
    monkeypatch.setattr(http_load, "HEAD_BYTES_MAX", 256)
    whole = _ok(b"x" * 5000 + b"ok,ok")
    ask = Ask(requests=[b"a"], proof=b"ok", proof_count=2)
    load, _ = await _load(lambda _: [whole[:200], whole[200:]], ask, connections=1)
    assert len(load.latencies_s) == 1


async def test_no_content_needs_no_length():
    load, _ = await _load(lambda _: [b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert len(load.latencies_s) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_ok(b"no", b"HTTP/1.1 503 Busy"), "503 Busy"),
        (_ok(b"fine") + b"more", "more than it announced"),
        (_ok(b"other"), "it answered b'other'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked"),
        (b"x" * (http_load.HEAD_BYTES_MAX + 1), "no end"),
        (b"", "closed a connection"),
    ],
)
async def test_what_is_no_good_answer_ends_the_load(answer, message):
    with pytest.raises(HttpLoadError, match=message):
        await _load(lambda _: [answer], Ask(requests=[b"a"], proof=b"fine"))


async def test_a_turn_counts_units_and_ends():
    seen: list[bytes] = []
    answers = staticmethod(lambda _: [_ok(b"")])
    kind = type("Server", (_Server,), {"seen": seen, "answers": answers})
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ask = Ask(requests=[b"a"], units=10)
    turn = await http_turn(f"http://127.0.0.1:{port}", ask, connections=3, seconds=0)
    assert (len(turn.latencies_s), turn.units) == (3, 30)
    assert turn.seconds > 0
    server.close()
    await server.wait_closed()
