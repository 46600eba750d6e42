"""Records with a receipt each, on one request: the window is kept, receipts are counted, and a refusal ends it."""

import asyncio

import pytest

from loadtest.bench.clients import counted_stream
from loadtest.bench.clients.counted_stream import IN_FLIGHT_MAX
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.record_stream import RecordStream, chunk_of, record_of

_RECEIPT = b'{"error_code":200,"offset":1}\r\n'


class _Server(asyncio.Protocol):
    """Answers each record that came whole, as it is told."""

    receipt = _RECEIPT
    has_end = False

    def __init__(self) -> None:
        self.most_at_once = 0
        self.answered = 0
        self.head = b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        if not self.head:
            self.head, _, data = data.partition(b"\r\n\r\n")
        count = data.count(b'{"value"')
        self.answered += count
        self.most_at_once = max(self.most_at_once, count)
        self._transport.write(self.receipt * count)
        if self.has_end:
            self._transport.close()


async def _run(seconds: float, **options: object) -> tuple[int, _Server]:
    server = _Server()
    for name, value in options.items():
        setattr(server, name, value)
    listener = await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    stream = await RecordStream.connect(f"http://127.0.0.1:{port}", "/records")
    try:
        return await stream.send_for(seconds, 100), server
    finally:
        stream.close()
        listener.close()
        await listener.wait_closed()


def test_a_record_has_a_value_of_the_size_that_was_asked_for():
    assert record_of(100).count(b"x") == 100
    assert chunk_of(b"ab" * 10) == b"14\r\n" + b"ab" * 10 + b"\r\n"


async def test_all_that_was_sent_has_a_receipt(monkeypatch):
    times = iter([0.0, 0.0, 0.5, 2.0])
    monkeypatch.setattr(counted_stream, "perf_counter", lambda: next(times))
    sent, server = await _run(1)
    assert sent == server.answered > 0
    assert server.most_at_once <= IN_FLIGHT_MAX
    assert server.head.startswith(b"POST /records HTTP/1.1\r\n")
    assert b"\r\nTransfer-Encoding: chunked" in server.head


async def test_a_record_that_is_refused_ends_it():
    with pytest.raises(HttpLoadError, match=r"refused.*50302"):
        await _run(1, receipt=b'{"error_code":50302,"message":"no"}\r\n')


async def test_a_server_that_hangs_up_ends_it():
    with pytest.raises(HttpLoadError, match="closed the connection"):
        await _run(1, receipt=b"", has_end=True)
