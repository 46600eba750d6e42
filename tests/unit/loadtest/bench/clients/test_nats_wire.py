"""NATS on the wire: counting across reads, a window that is kept, and calls, against a server of the same speech."""

import asyncio
import json

import pytest

from loadtest.bench.clients.counted_stream import IN_FLIGHT_MAX, Counter
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.nats_wire import NatsLoad, payload_of, publish_each


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_marks_are_counted_wherever_reads_cut_them(size):
    data = b"abcabab" * 20 + b"ab"
    counter = Counter(b"abc")
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert sum(counter.feed(piece) for piece in pieces) == 20


def test_a_payload_has_the_size_that_was_asked_for():
    assert [len(payload_of(size)) for size in (100, 1024)] == [100, 1024]


class _Peers:
    """What all connections have in common, and the connections."""

    def __init__(self) -> None:
        self.replies: dict[str, dict[str, object]] = {
            "STREAM.DELETE.bench": {"error": {"code": 404}},
            "STREAM.CREATE.bench": {"cluster": {"leader": "n2"}},
            "CONSUMER.CREATE.bench": {"name": "c1"},
        }
        self.made: list[_Server] = []
        self.is_refusing = False
        self.port = 0

    def make(self) -> "_Server":
        self.made.append(_Server(self))
        return self.made[-1]


class _Server(asyncio.Protocol):
    """Enough of a server: answers calls from a table, acknowledges publications, hands out messages."""

    def __init__(self, peers: "_Peers") -> None:
        self._peers = peers
        self._rest = b""
        self.acknowledged = 0
        self.most_at_once = 0

    def connection_made(self, transport):
        self._transport = transport
        transport.write(b"INFO {}\r\nPING\r\n")

    def data_received(self, data):
        self._rest += data
        taken = 0
        while (found := self._take()) is not None:
            taken += found
        self.most_at_once = max(self.most_at_once, taken)

    def _take(self) -> int | None:
        line, end, rest = self._rest.partition(b"\r\n")
        if not end:
            return None
        if not line.startswith(b"PUB "):
            self._rest = rest
            if line == b"PING":
                self._transport.write(b"PONG\r\n")
            return 0
        _, subject, inbox, length = line.decode().split()
        if len(rest) < int(length) + 2:
            return None
        body, self._rest = rest[: int(length)], rest[int(length) + 2 :]
        self._answer(subject, inbox, body)
        return int(subject == "bench.a")

    def _answer(self, subject: str, inbox: str, body: bytes) -> None:
        if subject == "bench.a":
            self.acknowledged += 1
            answer: dict[str, object] = {"stream": "bench", "seq": self.acknowledged}
            self._send(inbox, {"error": {"code": 503}} if self._peers.is_refusing else answer)
        elif ".MSG.NEXT." in subject:
            message = b"MSG bench.a 1 100\r\n" + payload_of(100) + b"\r\n"
            self._transport.write(message * json.loads(body)["batch"])
        else:
            self._send(inbox, self._peers.replies[subject.removeprefix("$JS.API.")])

    def _send(self, inbox: str, answer: dict[str, object]) -> None:
        raw = json.dumps(answer).encode()
        self._transport.write(f"MSG {inbox} 1 {len(raw)}\r\n".encode() + raw + b"\r\n")


@pytest.fixture
async def server():
    peers = _Peers()
    listener = await asyncio.get_running_loop().create_server(peers.make, "127.0.0.1", 0)
    peers.port = listener.sockets[0].getsockname()[1]
    load = await NatsLoad.connect(peers.port)
    await load.create_stream(replicas=3)
    yield load, peers
    load.close()
    listener.close()
    await listener.wait_closed()


async def test_a_new_stream_says_who_leads_it(server):
    load, peers = server
    assert await load.create_stream(replicas=3) == "n2"
    peers.replies["STREAM.CREATE.bench"] = {"error": {"code": 500, "description": "no peers"}}
    with pytest.raises(HttpLoadError, match="no peers"):
        await load.create_stream(replicas=3)


async def test_all_that_is_published_is_acknowledged_within_the_window(server):
    load, peers = server
    assert await load.publish_many(100, seconds=None, count=10_000) == 10_240
    (peer,) = peers.made
    assert peer.acknowledged == 10_240
    assert peer.most_at_once <= IN_FLIGHT_MAX


async def test_one_after_the_other_waits_for_each(server):
    _, peers = server
    turn = await asyncio.to_thread(publish_each, peers.port, 100, 0.05)
    assert turn.units == len(turn.latencies_s) == peers.made[-1].acknowledged > 0
    assert peers.made[-1].most_at_once == 1


async def test_messages_are_pulled_and_counted(server):
    load, _ = server
    assert await load.create_consumer() == "c1"
    assert await load.pull("c1", 10_000) == 10_000


async def test_a_refusal_is_an_error(server):
    load, peers = server
    peers.is_refusing = True
    with pytest.raises(HttpLoadError, match="refused"):
        await load.publish_many(100, seconds=None, count=1)
    with pytest.raises(HttpLoadError, match="refused"):
        await asyncio.to_thread(publish_each, peers.port, 100, 1)
    peers.replies["CONSUMER.CREATE.bench"] = {"error": {"code": 400}}
    with pytest.raises(HttpLoadError, match="no consumer"):
        await load.create_consumer()
