"""Connections against a server of raw bytes: which are used again, and what a lost one means."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvloop

from milena.cluster.credentials import ANONYMOUS
from milena.cluster.http_connection import (
    KEPT_MS,
    ConnectError,
    ConnectionEndedError,
    HttpConnections,
    HttpRequest,
    Origin,
)
from tests.support.time.fake_clock import FakeClock

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


class RawServer:
    """Answers each request with the next of ``answers``; None hangs up, ``hang`` says nothing."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = []
        self.opened = 0
        self.writers = []

    async def serve(self, reader, writer):
        self.opened += 1
        self.writers.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line[15:])
            self.requests.append(head + await reader.readexactly(length))
            answer = self.answers.pop(0)
            if answer is None:
                break
            if answer != b"hang":
                writer.write(answer)
        writer.close()


@asynccontextmanager
async def serving(*answers, count_max=10):
    raw = RawServer(answers)
    tasks = []

    def serve(reader, writer):
        tasks.append(asyncio.ensure_future(raw.serve(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    raw.origin = Origin.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    raw.clock = FakeClock()
    raw.connections = HttpConnections(
        clock=raw.clock,
        connect_timeout_s=5,
        count_max=count_max,
        make_tls=ANONYMOUS.tls_context,
    )
    try:
        yield raw
    finally:
        raw.connections.close()
        server.close()
        for writer in raw.writers:
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(raw, *, method="GET", path="/x", body=None, is_repeatable=True, headers=None):
    request = HttpRequest(
        method=method, path=path, headers=headers or {}, body=body, answer_bytes_max=1000
    )
    return await raw.connections.ask(raw.origin, request, is_repeatable=is_repeatable)


async def test_a_request_is_what_http_says():
    async with serving(OK, OK) as raw:
        await ask(raw, method="POST", path="/a?b=c", body=b"body", headers={"Accept": "x/y"})
        await ask(raw, method="DELETE")
    place = f"127.0.0.1:{raw.origin.port}".encode()
    assert raw.requests == [
        b"POST /a?b=c HTTP/1.1\r\nHost: %s\r\nAccept: x/y\r\nContent-Length: 4\r\n\r\nbody" % place,
        b"DELETE /x HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n\r\n" % place,
    ]
    assert raw.opened == 1


async def test_a_connection_is_used_again_unless_the_answer_forbids_it():
    async with serving(OK, CLOSING, OK) as raw:
        for _ in range(3):
            assert (await ask(raw)).body == b"ok"
    assert raw.opened == 2


async def test_a_connection_that_was_idle_for_long_is_not_used_again():
    async with serving(OK, OK, OK) as raw:
        await ask(raw)
        await raw.clock.advance(KEPT_MS - 1)
        await ask(raw)
        assert raw.opened == 1
        await raw.clock.advance(KEPT_MS)
        await ask(raw)
    assert raw.opened == 2


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_a_kept_connection_that_is_lost_is_no_failure_of_what_may_be_repeated(is_repeatable):
    async with serving(OK, None, OK) as raw:
        await ask(raw)
        if is_repeatable:
            assert (await ask(raw)).body == b"ok"
        else:
            with pytest.raises(ConnectionEndedError, match="Server disconnected"):
                await ask(raw, method="POST", is_repeatable=False)
    assert len(raw.requests) == (3 if is_repeatable else 2)


async def test_a_new_connection_that_is_lost_is_not_tried_again():
    async with serving(None, OK) as raw:
        with pytest.raises(ConnectionEndedError):
            await ask(raw)
    assert len(raw.requests) == 1


async def test_an_answer_that_broke_off_is_not_asked_for_again():
    async with serving(OK, OK[:-1], OK) as raw:
        await ask(raw)
        asking = asyncio.ensure_future(ask(raw))
        while len(raw.requests) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        raw.writers[0].close()
        with pytest.raises(ConnectionEndedError):
            await asking
    assert len(raw.requests) == 2


async def test_who_gives_up_leaves_no_connection_to_the_next():
    async with serving(b"hang", OK) as raw:
        asking = asyncio.ensure_future(ask(raw))
        while not raw.requests:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await ask(raw)).body == b"ok"
    assert raw.opened == 2


async def test_no_more_connections_than_there_may_be():
    async with serving(*[OK] * 9, count_max=3) as raw:
        await asyncio.gather(*(ask(raw) for _ in range(9)))
    assert raw.opened <= 3


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_other_loops_than_asyncios_will_do(new_loop, unused_tcp_port):
    async def main():
        async with serving(OK, None) as raw:
            assert (await ask(raw)).body == b"ok"
            with pytest.raises(ConnectionEndedError, match="Server disconnected"):
                await ask(raw, is_repeatable=False)
            raw.origin = Origin.of(f"http://127.0.0.1:{unused_tcp_port}")
            with pytest.raises(ConnectError, match="Errno 111"):
                await ask(raw)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def test_nobody_there_is_told_from_a_lost_connection(unused_tcp_port):
    async with serving() as raw:
        raw.origin = Origin.of(f"http://127.0.0.1:{unused_tcp_port}")
        with pytest.raises(ConnectError, match="Connect call failed"):
            await ask(raw)


@pytest.mark.parametrize(
    ("url", "port", "head"),
    [
        ("http://h", 80, "Host: h\r\n"),
        ("https://h:443/base", 443, "Host: h\r\n"),
        ("http://[::1]:8082", 8082, "Host: [::1]:8082\r\n"),
        ("http://bücher.example", 80, "Host: xn--bcher-kva.example\r\n"),
    ],
)
def test_an_origin_is_what_its_url_says(url, port, head):
    origin = Origin.of(url)
    assert (origin.port, origin.head) == (port, head)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://8082",
        "http://a b",
        "http://u:p@h",
        "http://h/a b",
        "http://h/é",
    ],
)
def test_what_is_no_url_of_a_node_is_refused(url):
    with pytest.raises(ValueError, match=r"."):
        Origin.of(url)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/é"])
async def test_a_path_that_was_not_encoded_goes_nowhere(path):
    async with serving(OK) as raw:
        with pytest.raises(ValueError, match="no URL has"):
            await ask(raw, path=path)
    assert not raw.requests
