"""No byte of one request reaches another one, however the bytes come, with both of aiohttp's parsers."""

import asyncio
import random
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp.http_parser
import aiohttp.web_protocol
import pytest

import http_api.server
from http_api.ports.node import ApiLimits
from http_api.quick import separate_requests
from http_api.routes import ROUTES
from http_api.server import ApiServer
from http_api.serving.dispatch import Dispatcher
from http_api.serving.unknown import CONDITIONS, TRANSACTION_HEADER
from milena.model.quotas import CLIENT_ID_HEADER
from tests.support.fakes.ports import CLUSTER_ID, FakeNode

RECORDS = b'{"records":[{"value":1}]}'
READ = b"GET /topics/many HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture(params=["in C", "in Python"], autouse=True)
def parser(request, monkeypatch):
    """Which parser aiohttp uses."""
    made = {"in C": "HttpRequestParserC", "in Python": "HttpRequestParserPy"}[request.param]
    for module in (aiohttp.web_protocol, separate_requests):
        monkeypatch.setattr(module, "HttpRequestParser", getattr(aiohttp.http_parser, made))
    return request.param


class Wire(asyncio.Transport):
    """Takes what is written, and keeps what comes while nothing is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False
        self.is_paused = False

    def write(self, data):
        if not self.is_closed:
            self.written += data

    def writelines(self, lines):
        self.write(b"".join(lines))

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def get_write_buffer_size(self):
        return 0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kept(self) -> tuple[object, ...]:
        """What does not differ from one request to an equal one."""
        body = re.sub(rb'"(offset|base_offset)":\d+', b"", self.body).replace(b"\r\n", b"")
        body = re.sub(rb'"timestamp":"[^"]+"', b"", body)
        headers = {k: v for k, v in self.headers.items() if k not in ("Date", "X-Request-Id")}
        headers.pop("Content-Length", None)
        return self.status, tuple(sorted(headers.items())), body


class Connection:
    """A connection whose segments are cut as the test says."""

    def __init__(self, server: ApiServer) -> None:
        self.wire, self.protocol = Wire(), server()
        self.protocol.connection_made(self.wire)
        self.read = 0
        self.bodiless: tuple[int, ...] = ()
        """Which answers are to HEAD, counted from the first."""
        self.count = 0

    async def send(self, *segments: bytes) -> None:
        for segment in segments:
            await self.until(lambda: not self.wire.is_paused)
            if self.wire.is_closed:
                return
            # As a transport does: in no task.
            asyncio.get_running_loop().call_soon(self.protocol.data_received, segment)
            await asyncio.sleep(0)

    async def until(self, condition) -> None:
        for _ in range(5000):
            if condition() or self.wire.is_closed:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"never: {self.wire.written[self.read :]!r}")

    async def rest(self) -> None:
        """Let aiohttp come to wait for the next request."""
        await self.until(lambda: self.protocol._waiter is not None)

    async def answers(self, count: int) -> list[Answer]:
        """So many answers; fewer where the connection is closed before."""
        found: list[Answer] = []
        while len(found) < count:
            await self.until(lambda: self._next() is not None)
            answer = self._next()
            if answer is None:
                break
            found.append(answer[0])
            self.read += answer[1]
            self.count += 1
        return found

    def _next(self) -> tuple[Answer, int] | None:
        data = self.wire.written[self.read :]
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = data[:end].decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        status = int(first.split(" ")[1])
        behind = data[end + 4 :]
        if headers.get("Transfer-Encoding") == "chunked":
            last = behind.find(b"0\r\n\r\n")
            plain = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n(?=\{)", b"", behind[:last])
            return None if last < 0 else (Answer(status, headers, plain), end + 9 + last)
        size = 0 if self.count in self.bodiless else int(headers.get("Content-Length", 0))
        if len(behind) < size:
            return None
        return Answer(status, headers, behind[:size]), end + 4 + size


@asynccontextmanager
async def serving(limits: ApiLimits | None = None):
    node = FakeNode()
    for name, partitions in (("t", 1), ("many", 3)):
        node.add_topic(name, partitions)
    dispatcher = Dispatcher(node.ports(limits), ROUTES)
    server = ApiServer(dispatcher)
    server.dispatcher, server.node = dispatcher, node
    made: list[Connection] = []

    def connect() -> Connection:
        made.append(Connection(server))
        return made[-1]

    server.connect = connect
    try:
        yield server
        assert dispatcher.shared.in_flight.request_count == 0
        assert dispatcher.shared.in_flight.body_bytes == 0
    finally:
        for connection in made:
            connection.protocol.connection_lost(None)
        await server.shutdown(1)


@pytest.fixture
async def server():
    async with serving() as found:
        yield found


def head(path="/topics/t", *lines: str, method="POST", type_="application/json") -> bytes:
    named = [f"Content-Type: {type_}"] if type_ else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", *named, *lines, "", ""]).encode()


def chunked(
    body: bytes, trailers: bytes = b"", *, sizes=(), extension: bytes = b"", **more
) -> bytes:
    whole, rest = head(more.pop("path", "/topics/t"), "Transfer-Encoding: chunked", **more), body
    for size in (*sizes, len(body)):
        piece, rest = rest[:size], rest[size:]
        if piece:
            whole += b"%x%b\r\n%b\r\n" % (len(piece), extension, piece)
    return whole + b"0%b\r\n%b\r\n" % (extension, trailers)


def plain(body: bytes = RECORDS, *lines: str, **more) -> bytes:
    return (
        head(more.pop("path", "/topics/t"), *lines, f"Content-Length: {len(body)}", **more) + body
    )


STREAM = f"/v3/clusters/{CLUSTER_ID}/topics/t/records"
V3 = b'{"value":{"type":"STRING","data":"a"}}'


def names_that_are_read() -> set[str]:
    """Headers of requests that the server looks at, from its source; one that is missed here fails the test below."""
    found = {"Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Expect", "Cookie"}
    found |= {*CONDITIONS, TRANSACTION_HEADER, CLIENT_ID_HEADER, "Idempotency-Key", "Last-Event-ID"}
    for path in Path(http_api.__file__).parent.rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'headers?(?:\.get|\.getall)?[\[(]"([A-Z][A-Za-z-]+)"', text))
        found |= set(re.findall(r'"([A-Z][A-Za-z-]+)" (?:not )?in (?:\w+\.)*_?headers', text))
    return found - {"WWW-Authenticate"}


def test_the_headers_that_are_read_are_found():
    found = names_that_are_read()
    assert {"Host", "X-Forwarded-Host", "Authorization", "Origin", "Accept"} <= found


SECOND = {
    "a read": READ,
    "a write": plain(),
    "a chunked write": chunked(RECORDS),
    "a stream": chunked(V3, path=STREAM),
}
FIRST = {
    "a write": {"body": RECORDS},
    "a stream": {"body": V3, "path": STREAM},
    "a body that nobody reads": {"body": b"abc", "path": "/topics/none/none"},
}


@pytest.mark.parametrize("name", sorted(names_that_are_read()))
@pytest.mark.parametrize("first", FIRST)
async def test_a_trailer_reaches_no_other_request(server, name, first):
    values = {"Content-Length": "3", "Transfer-Encoding": "chunked", "Connection": "close"}
    trailer = f"X-First: 1\r\n{name}: {values.get(name, 'evil')}\r\n".encode()
    for second in SECOND.values():
        alone = server.connect()
        await alone.send(second)
        (expected,) = await alone.answers(1)
        for is_split in (True, False):
            connection = server.connect()
            request = chunked(trailers=trailer, **FIRST[first])
            if is_split:
                await connection.send(request)
                await connection.answers(1)
                await connection.send(second)
                answers = await connection.answers(1)
            else:
                await connection.send(request + second)
                answers = (await connection.answers(2))[1:]
            if name in ("Content-Length", "Transfer-Encoding") and not answers:
                continue  # the parser in C refuses such a trailer, and closes
            assert [answer.kept for answer in answers] == [expected.kept]
            assert answers[0].headers["X-Request-Id"] != "evil"


async def test_a_trailer_does_not_keep_requests_from_the_lane(server):
    connection = server.connect()
    for trailers in (b"", b"Idempotency-Key: evil\r\n"):
        for one in (plain(), chunked(RECORDS, trailers), plain(), plain()):
            await connection.send(one)
            (answer,) = await connection.answers(1)
            assert answer.status == 200
            await connection.rest()
    assert server.node.quick_requests
    assert all(one.idempotency is None for one in server.node.produce_requests)


class TestAsTheyCome:
    """Requests on one connection are answered as each is alone, wherever segments end."""

    KINDS = (
        READ,
        plain(),
        plain(b""),
        chunked(RECORDS),
        chunked(RECORDS, b"Idempotency-Key: evil\r\nX-Request-Id: evil\r\n"),
        chunked(RECORDS, sizes=(1, 2, 3, 4), extension=b";a=b"),
        chunked(b'{"records":[{"value":1}\r\n\r\n0\r\n\r\n]}'),
        chunked(b'{"records":[\r\n\r\n{"value":1}]}', b"Host: evil\r\n", sizes=(14, 2)),
        chunked(V3 + b"\r\n\r\n" + V3, path=STREAM, sizes=(40, 2)),
        plain(RECORDS + b"\r\n\r\n"),
        plain(b"GET / HTTP/1.1\r\nHost: smuggled\r\n\r\n"),
        plain(RECORDS, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
        chunked(RECORDS, b"Upgrade: websocket\r\n"),
        head(method="GET", path="/topics", type_=""),
        head("/topics", "Connection: Upgrade", "Upgrade: h2c", method="GET", type_=""),
        plain(b"abc", method="GET", path="/topics"),
        plain(b"abc", method="DELETE", path="/topics/none"),
        chunked(b"abc", b"X: y\r\n", method="GET", path="/topics"),
        chunked(b"abc", method="HEAD", path="/brokers"),
        chunked(b"abc", method="PUT", path="/nowhere"),
        b"\r\n" + READ,
        b"\r\n\r\n" + plain(),
        plain(RECORDS, "Transfer-Encoding2: chunked"),
        plain(RECORDS, 'X-Odd: "\x80"'),
    )

    @pytest.mark.parametrize("seed", range(60))
    async def test_answers_are_those_of_requests_alone(self, server, seed):
        chance = random.Random(seed)
        requests = chance.choices(self.KINDS, k=chance.randint(2, 40))
        expected = []
        for one in requests:
            alone = server.connect()
            alone.bodiless = (0,) if b"HEAD " in one else ()
            await alone.send(one)
            expected += [answer.kept for answer in await alone.answers(1)]
        whole, segments = b"".join(requests), []
        longest = chance.choice((1, 7, 40, 400, len(whole)))
        while whole:
            size = chance.randint(1, longest)
            segments.append(whole[:size])
            whole = whole[size:]
        connection = server.connect()
        connection.bodiless = tuple(n for n, one in enumerate(requests) if b"HEAD " in one)
        await connection.send(*segments)
        assert [answer.kept for answer in await connection.answers(len(requests))] == expected

    async def test_where_a_chunked_request_is_cut_does_not_matter(self, server):
        request = chunked(RECORDS, b"X-Request-Id: evil\r\n", sizes=(3,)) + READ
        for at in range(1, len(request)):
            connection = server.connect()
            await connection.send(request[:at], request[at:])
            first, second = await connection.answers(2)
            assert (first.status, second.status) == (200, 200)
            assert second.headers["X-Request-Id"] != "evil"

    async def test_more_requests_than_wait_at_once(self, server):
        requests = [plain(), READ, chunked(RECORDS, b"X-Request-Id: evil\r\n")] * 60
        connection = server.connect()
        await connection.send(b"".join(requests))
        answers = await connection.answers(len(requests))
        assert [answer.status for answer in answers] == [200] * len(requests)
        assert all(answer.headers["X-Request-Id"] != "evil" for answer in answers)

    @pytest.mark.parametrize("size", [1, 3, 1 << 10, 1 << 18])
    async def test_a_large_chunked_body_and_what_follows(self, server, size):
        """The parser pauses where the reader of a body has not taken what came."""
        length = min(2 << 20, size * 40_000)
        body = b'{"records":[{"value":"%b"}]}' % (b"a" * (length - 26))
        chunks = [body[at : at + size] for at in range(0, length, size)]
        request = head("/topics/t", "Transfer-Encoding: chunked")
        request += b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        request += b"0\r\nX-Request-Id: evil\r\n\r\n" + READ * 2
        for segment in (len(request), 1 << 18, (1 << 16) + 1):
            connection = server.connect()
            await connection.send(
                *(request[at : at + segment] for at in range(0, len(request), segment))
            )
            answers = await connection.answers(3)
            assert [answer.status for answer in answers] == [200] * 3
            assert all(answer.headers["X-Request-Id"] != "evil" for answer in answers)


REFUSED = {
    "two lengths": plain(RECORDS, "Content-Length: 3"),
    "two equal lengths": plain(RECORDS, f"Content-Length: {len(RECORDS)}"),
    "a list of lengths": head("/topics/t", "Content-Length: 25, 25") + RECORDS,
    "a length with a sign": head("/topics/t", "Content-Length: +25") + RECORDS,
    "a length in hex": head("/topics/t", "Content-Length: 0x19") + RECORDS,
    "a length that is negative": head("/topics/t", "Content-Length: -1") + RECORDS,
    "a length beyond 64 bits": head("/topics/t", f"Content-Length: {1 << 64}") + RECORDS,
    "no length": head("/topics/t", "Content-Length:") + RECORDS,
    "chunks and a length": head("/topics/t", "Transfer-Encoding: chunked", "Content-Length: 3")
    + b"0\r\n\r\n",
    "chunks twice": head("/topics/t", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n",
    "chunks in chunks": head("/topics/t", "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n",
    "gzip in chunks": head("/topics/t", "Transfer-Encoding: gzip, chunked")
    + b"1\r\na\r\n0\r\n\r\n",
    "gzip in chunks, on two lines": head(
        "/topics/t", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked"
    )
    + b"1\r\na\r\n0\r\n\r\n",
    "chunks, and then gzip": head("/topics/t", "Transfer-Encoding: chunked, gzip") + b"0\r\n\r\n",
    "identity": head("/topics/t", "Transfer-Encoding: identity") + b"0\r\n\r\n",
    "a tab before chunked": head("/topics/t", "Transfer-Encoding: x\tchunked") + b"0\r\n\r\n",
    "a space before the colon": head("/topics/t", "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "a folded line": head("/topics/t", "X: a", " b", "Content-Length: 25") + RECORDS,
    "a line that begins with a space": head("/topics/t", " Transfer-Encoding: chunked"),
    "a bare newline": b"GET /topics HTTP/1.1\nHost: h\n\n",
    "a newline in a value": head("/topics/t", "X: a\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
    "a return in a value": head("/topics/t", "X: a\rTransfer-Encoding: chunked") + b"0\r\n\r\n",
    "a zero byte in a value": head("/topics/t", "X: a\0b", "Content-Length: 0"),
    "no host": b"GET /topics HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /topics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "chunks in HTTP/1.0": chunked(RECORDS).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_head_that_leaves_its_end_in_doubt_is_refused_and_is_the_last(
    server, name, monkeypatch
):
    monkeypatch.setattr(http_api.server, "LINGERING_S", 0)
    connection = server.connect()
    await connection.send(REFUSED[name] + READ)
    answers = await connection.answers(3)
    assert [answer.status for answer in answers] in ([400], [413]), answers
    assert answers[0].headers["Content-Type"] == "application/json"
    assert connection.wire.is_closed
    assert not server.node.produce_requests


BROKEN = {
    "no size": b"\r\n",
    "a size that is none": b"zz\r\n",
    "a size with a sign": b"+1\r\na\r\n",
    "a size beyond 64 bits": b"1%b\r\na\r\n" % (b"0" * 16),
    "a space before the size": b" 1\r\na\r\n",
    "a space behind the size": b"1 \r\na\r\n",
    "a chunk that is longer": b"1\r\nab\r\n",
    "a bare newline": b"1\na\r\n",
    "a newline in an extension": b"1;a\nb\r\na\r\n",
    "a trailer that is none": b"0\r\nno trailer\r\n\r\n",
    "a trailer too many": b"0\r\n%b\r\n" % b"".join(b"X-%d: a\r\n" % n for n in range(200)),
    "a trailer that is too long": b"0\r\nX: %b\r\n\r\n" % (b"a" * 9000),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("path", ["/topics/t", STREAM, "/nowhere"])
async def test_a_body_that_breaks_is_answered_once_and_is_the_last(
    server, name, is_split, path, caplog, parser
):
    if parser == "in Python" and name == "a size beyond 64 bits":
        return  # such a chunk may come
    connection = server.connect()
    request = head(path, "Transfer-Encoding: chunked") + b"1\r\n \r\n"
    await connection.send(*([request, BROKEN[name]] if is_split else [request + BROKEN[name]]))
    await connection.send(READ)
    answers = await connection.answers(3)
    assert [answer.status for answer in answers] in ([400], [404]), answers
    await connection.until(lambda: connection.wire.is_closed)
    assert not server.node.produce_requests
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("line", ["Upgrade: websocket", "Upgrade: WebSocket"])
@pytest.mark.parametrize("body", [b"", RECORDS])
async def test_a_request_for_another_protocol_is_answered_and_is_the_last(server, line, body):
    connection = server.connect()
    await connection.send(plain(body, "Connection: Upgrade", line) + chunked(RECORDS) + READ)
    answers = await connection.answers(3)
    assert len(answers) == 1
    assert connection.wire.is_closed


@pytest.mark.parametrize(("version", "status"), [("", 400), (" HTTP/0.9", 400), (" HTTP/2.0", 505)])
async def test_another_version_of_http_is_refused_in_one_that_is_spoken(server, version, status):
    connection = Connection(server)
    line = b"GET /brokers" + version.encode()
    host = b"Host: h\r\n" if version else b""
    await connection.send(line + b"\r\n" + host + b"\r\n" + READ)
    await connection.until(lambda: connection.wire.is_closed)
    written = bytes(connection.wire.written)
    assert re.match(rb"HTTP/1\.[01] %d " % status, written), written
    assert written.count(b"X-Request-Id") == 1
    assert b'"error_code":%d' % status in written
    kind = b"malformed_request" if status == 400 else b"unsupported_http_version"
    assert b"\r\nMilena-Error: " + kind + b"\r\n" in written


async def test_what_comes_behind_connect_is_not_read(server, monkeypatch):
    monkeypatch.setattr(http_api.server, "LINGERING_S", 0)
    connection = server.connect()
    await connection.send(b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n" + READ)
    answers = await connection.answers(2)
    assert [answer.status // 100 for answer in answers] == [4]
    assert connection.wire.is_closed
