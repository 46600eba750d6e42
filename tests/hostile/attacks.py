"""What hostile clients do to a node. Each attack returns how often which outcome was seen.

Outcomes: the status of an answer, ``closed`` (by the node), ``reset``, ``refused`` (no connection), ``silent`` (nothing
came within the attack's patience).
"""

import asyncio
import gzip
import json
import random
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import brotli

from loadtest.cluster.local_cluster import LocalNode
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.types import Codec

Outcomes = Counter[str]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything. Short form by default."""

    large_bodies: int = 4
    body_mb: int = 100
    slow_senders: int = 100
    slow_seconds: float = 2.0
    idle_connections: int = 500
    garbage: int = 100
    handshakes: int = 100
    bombs: int = 8
    json_bodies: int = 4
    escaped_mb: int = 2
    patience_s: float = 20.0
    latency_s_max: float = 5.0
    """How long a decent client may wait for one write meanwhile."""


LONG = Scale(
    large_bodies=16,
    slow_senders=2000,
    slow_seconds=20.0,
    idle_connections=10_000,
    garbage=2000,
    handshakes=2000,
    bombs=64,
    json_bodies=12,
    escaped_mb=8,
    patience_s=90.0,
)

Attack = Callable[[LocalNode, Scale], Awaitable[Outcomes]]


@asynccontextmanager
async def connected(node: LocalNode, *, to_peer_port: bool = False):
    """A connection that is closed in the end."""
    where = urlsplit(node.url)
    port = node.peer_port if to_peer_port else where.port
    reader, writer = await asyncio.open_connection(where.hostname, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def outcome_of(reader: asyncio.StreamReader, patience_s: float) -> str:
    """What came back."""
    try:
        async with asyncio.timeout(patience_s):
            line = await reader.readline()
    except TimeoutError:
        return "silent"
    except (ConnectionError, OSError):
        return "reset"
    if not line:
        return "closed"
    parts = line.split(b" ")
    return parts[1].decode() if line.startswith(b"HTTP/1.") else "answered"


async def together(count: int, once: Callable[[int], Awaitable[str]], at_once: int) -> Outcomes:
    """``once`` so many times, so many at a time."""
    gate = asyncio.Semaphore(at_once)

    async def run(number: int) -> str:
        async with gate:
            try:
                return await once(number)
            except ConnectionRefusedError:
                return "refused"
            except (ConnectionError, OSError):
                return "reset"

    return Counter(await asyncio.gather(*(run(number) for number in range(count))))


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


JSON_LINE = "Content-Type: application/json"
RECORDS = "/topics/decent"


async def declared_bodies(node: LocalNode, scale: Scale) -> Outcomes:
    """Bodies far above the bound, announced."""
    size = scale.body_mb << 20

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            writer.write(head(RECORDS, JSON_LINE, f"Content-Length: {size}"))
            await _pour(writer, size)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.large_bodies, once, 4)


async def chunked_bodies(node: LocalNode, scale: Scale) -> Outcomes:
    """Bodies far above the bound, in chunks."""

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            writer.write(head(RECORDS, JSON_LINE, "Transfer-Encoding: chunked"))
            piece = b"10000\r\n" + bytes(65536) + b"\r\n"
            with suppress(ConnectionError, OSError):
                for _ in range(scale.body_mb << 4):
                    writer.write(piece)
                    await writer.drain()
                    if reader.at_eof() or reader._buffer:
                        break
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.large_bodies, once, 4)


async def _pour(writer: asyncio.StreamWriter, size: int) -> None:
    piece = bytes(1 << 16)
    with suppress(ConnectionError, OSError):
        for _ in range(size // len(piece)):
            writer.write(piece)
            async with asyncio.timeout(2):
                await writer.drain()
    return


async def slow_heads(node: LocalNode, scale: Scale) -> Outcomes:
    """A head that comes a byte at a time, and never ends."""
    return await _slow(node, scale, head(RECORDS, JSON_LINE)[:-2], b"X-A: b\r\n")


async def slow_bodies(node: LocalNode, scale: Scale) -> Outcomes:
    """Large bodies, announced, that come a byte at a time."""
    return await _slow(node, scale, head(RECORDS, JSON_LINE, f"Content-Length: {30 << 20}"), b" ")


async def _slow(node: LocalNode, scale: Scale, first: bytes, then: bytes) -> Outcomes:
    loop = asyncio.get_running_loop()
    end = loop.time() + scale.slow_seconds

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            writer.write(first)
            while loop.time() < end:
                writer.write(then)
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        line = await reader.readline()
                        return line.split(b" ")[1].decode() if line else "closed"
            return "waiting"

    return await together(scale.slow_senders, once, scale.slow_senders)


async def idle_connections(node: LocalNode, scale: Scale) -> Outcomes:
    """Connections that send nothing, all open at the same time; half of those that remain are closed half-way."""
    where = urlsplit(node.url)
    found: Outcomes = Counter()
    held: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(scale.idle_connections):
            made = socket.socket()
            made.setblocking(False)
            try:
                async with asyncio.timeout(5):
                    await loop.sock_connect(made, (where.hostname, where.port))
                held.append(made)
                found["open"] += 1
            except (OSError, TimeoutError):
                made.close()
                found["refused"] += 1
        for made in held[::2]:
            with suppress(OSError):
                made.shutdown(socket.SHUT_WR)
        await asyncio.sleep(min(scale.slow_seconds, 5))
    finally:
        for made in held:
            made.close()
    return found


async def half_closed(node: LocalNode, scale: Scale) -> Outcomes:
    """A request whose sender stops sending in its middle, and one that still wants the answer."""

    async def once(number: int) -> str:
        async with connected(node) as (reader, writer):
            if number % 2:
                writer.write(head(RECORDS, JSON_LINE, "Content-Length: 100") + b'{"records":')
            else:
                writer.write(head("/livez", method="GET"))
            writer.write_eof()
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage, once, 50)


async def random_bytes(node: LocalNode, scale: Scale) -> Outcomes:
    """Random bytes on the API port; every third begins like a request."""
    return await _random(node, scale, b"POST / HTTP/1.1\r\n", to_peer_port=False)


async def random_peer_bytes(node: LocalNode, scale: Scale) -> Outcomes:
    """Random bytes on the peer port; every third begins with the preface."""
    return await _random(node, scale, b"MLNA\x01D\0\0", to_peer_port=True)


async def _random(node: LocalNode, scale: Scale, lead: bytes, *, to_peer_port: bool) -> Outcomes:
    async def once(number: int) -> str:
        rng = random.Random(number)
        async with connected(node, to_peer_port=to_peer_port) as (reader, writer):
            writer.write((b"" if number % 3 else lead) + rng.randbytes(rng.randrange(1, 20_000)))
            with suppress(ConnectionError):
                writer.write_eof()
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage, once, 50)


async def pipelined_garbage(node: LocalNode, scale: Scale) -> Outcomes:
    """A sound request with nonsense right behind it, and many requests whose answers nobody reads."""

    async def once(number: int) -> str:
        async with connected(node) as (reader, writer):
            sound = head("/livez", method="GET")
            rest = sound * 2000 if number % 2 else random.Random(number).randbytes(5000)
            with suppress(ConnectionError):
                writer.write(sound + rest)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage, once, 50)


async def tls_on_plain(node: LocalNode, scale: Scale) -> Outcomes:
    """The first bytes of TLS on both ports."""
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(190)

    async def once(number: int) -> str:
        async with connected(node, to_peer_port=bool(number % 2)) as (reader, writer):
            writer.write(hello)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage, once, 50)


async def bad_handshakes(node: LocalNode, scale: Scale) -> Outcomes:
    """Peers that say the right preface and then nothing, nonsense, or a proof of another secret."""
    hello = b"\x98\x09\xa0\xc2\x00\x00\x90\xff\xc4\x10" + bytes(16)
    messages = (
        b"",
        b"\xff\xff" + bytes(100),
        len(hello).to_bytes(2, "big") + hello + b"\0\x20" + bytes(32),
    )

    async def once(number: int) -> str:
        channel = b"R" if number % 2 else b"D"
        async with connected(node, to_peer_port=True) as (reader, writer):
            writer.write(b"MLNA\x01" + channel + b"\0\0" + messages[number % 3])
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.handshakes, once, 300)


@cache
def content_bombs() -> tuple[tuple[str, bytes], ...]:
    """200 MB of zeros under each content coding."""
    zeros = bytes(200 << 20)
    return (
        ("gzip", gzip.compress(zeros, 9)),
        ("deflate", zlib.compress(zeros, 9)),
        ("br", brotli.compress(zeros, quality=1)),
    )


@cache
def codec_bombs() -> tuple[bytes, ...]:
    """Batches of one record of 200 MB of zeros under each codec."""
    columns = RecordColumns(None, None, None, [bytes(200 << 20)], None)
    codecs = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)
    return tuple(encode_batch(columns, base_timestamp_ms=1, codec=codec) for codec in codecs)


@cache
def large_json() -> bytes:
    """A sound body of 26 MiB, of many records."""
    records = [{"value": "x" * 280}] * 90_000
    return json.dumps({"records": records}, separators=(",", ":")).encode()


def prepare() -> None:
    """Make what takes long, so that no attack does it while others are timed."""
    for make in (content_bombs, codec_bombs, large_json):
        make()


async def content_encoding_bombs(node: LocalNode, scale: Scale) -> Outcomes:
    """200 MB of zeros in a few KB, under every content coding."""
    bombs = content_bombs()

    async def once(number: int) -> str:
        coding, body = bombs[number % len(bombs)]
        async with connected(node) as (reader, writer):
            lines = (JSON_LINE, f"Content-Encoding: {coding}", f"Content-Length: {len(body)}")
            with suppress(ConnectionError, OSError):
                writer.write(head(RECORDS, *lines) + body)
                await writer.drain()
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.bombs, once, 4)


async def batch_bombs(node: LocalNode, scale: Scale) -> Outcomes:
    """Batches whose payload would become 200 MB."""
    made = codec_bombs()

    async def once(number: int) -> str:
        body = made[number % len(made)]
        async with connected(node) as (reader, writer):
            path = f"{RECORDS}/partitions/0/records"
            lines = ("Content-Type: application/vnd.milena.batch", f"Content-Length: {len(body)}")
            writer.write(head(path, *lines) + body)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.bombs, once, 4)


async def deep_json(node: LocalNode, scale: Scale) -> Outcomes:
    """JSON nested as deep as a body is long."""
    body = b'{"records":[{"value":' + b"[" * 1_000_000

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            writer.write(head(RECORDS, JSON_LINE, f"Content-Length: {len(body)}") + body)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage // 10, once, 10)


async def large_json_bodies(node: LocalNode, scale: Scale) -> Outcomes:
    """Sound bodies of 26 MiB, all at once: many records, and each of them is taken."""
    body = large_json()

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            with suppress(ConnectionError, OSError):
                writer.write(
                    head("/topics/large", JSON_LINE, f"Content-Length: {len(body)}") + body
                )
                await writer.drain()
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.json_bodies, once, scale.json_bodies)


async def unwritable_numbers(node: LocalNode, scale: Scale) -> Outcomes:
    """Numbers of more than 63 bits in everything that ends up in the metadata log, or in a batch."""
    bodies = [
        (path, json.dumps(make(number)).encode())
        for number in (1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1)
        for path, make in NUMBERS_IN.items()
    ]

    async def once(number: int) -> str:
        path, body = bodies[number]
        async with connected(node) as (reader, writer):
            writer.write(head(path, JSON_LINE, f"Content-Length: {len(body)}") + body)
            return await outcome_of(reader, scale.patience_s)

    return await together(len(bodies), once, 10)


NUMBERS_IN: dict[str, Callable[[int], object]] = {
    "/groups/hostile/offsets": lambda number: {
        "offsets": [{"topic": "decent", "partition": 0, "offset": number}]
    },
    "/groups/hostile/offsets?epoch": lambda number: {
        "offsets": [{"topic": "decent", "partition": 0, "offset": 1, "leader_epoch": number}]
    },
    "/groups/hostile/heartbeat": lambda number: {
        "member_epoch": number,
        "member_id": "m",
        "topics": ["decent"],
    },
    "/groups/hostile/heartbeat?owned": lambda number: {
        "member_epoch": 0,
        "topics": ["decent"],
        "owned": [{"topic": "decent", "partitions": [number]}],
    },
    "/groups/hostile/heartbeat?session": lambda number: {
        "member_epoch": 0,
        "topics": ["decent"],
        "session_timeout_ms": number,
    },
    "/groups/reset/offsets:reset": lambda number: {
        "topic": "decent",
        "partitions": [number],
        "to": "earliest",
    },
    "/consumers/hostile": lambda number: {"consumer.request.timeout.ms": number},
    RECORDS: lambda number: {"records": [{"value": 1, "partition": number}]},
    f"{RECORDS}?timestamp": lambda number: {"records": [{"value": 1, "timestamp": number}]},
}
"""A body for each place that takes a number, by its path; what is behind the ? only tells them apart."""


async def escaped_strings(node: LocalNode, scale: Scale) -> Outcomes:
    """Records to v3's produce that are one string full of escaped quotes, and come piece by piece."""
    async with connected(node) as (reader, writer):
        writer.write(head("/v3/clusters", "Connection: close", method="GET"))
        found = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    path = f"/v3/clusters/{found['data'][0]['cluster_id']}/topics/decent/records"

    async def once(_: int) -> str:
        async with connected(node) as (reader, writer):
            writer.write(head(path, JSON_LINE, "Transfer-Encoding: chunked"))
            lead = b'{"value":{"type":"STRING","data":"'
            for piece in (lead, *[b'\\"' * 8192] * (scale.escaped_mb << 6), b"!"):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return await outcome_of(reader, scale.patience_s)

    return await together(2, once, 2)


async def unknown_groups(node: LocalNode, scale: Scale) -> Outcomes:
    """Heartbeats to groups that are not there, a new one each time."""

    async def once(number: int) -> str:
        body = b'{"member_id":"m","member_epoch":7}'
        async with connected(node) as (reader, writer):
            path = f"/groups/nobody-{number}/heartbeat"
            writer.write(head(path, JSON_LINE, f"Content-Length: {len(body)}") + body)
            return await outcome_of(reader, scale.patience_s)

    return await together(scale.garbage * 4, once, 50)


READ = "/topics/read-badly/partitions/0/records"
BATCH_LINE = "Content-Type: application/vnd.milena.batch"
READ_BYTES = 900_000
"""Bytes of each stored record, and so about the size of each fetch. The buffers of a connection hold less."""
PIPELINED = 200
"""Fetches in one piece. If the answers of one connection were all made at once, they would take 180 MB."""


async def hostile_readers(node: LocalNode, scale: Scale) -> Outcomes:
    """Readers of stored records that stop in the middle, close, reset, pipeline, or close their own direction.

    Those that read to the end must get the right bytes. Outcome ``wrong``: they did not.
    """
    await _fill(node)
    fetches = [
        head(f"{READ}?offset={offset}&max_bytes=1000000", f"Accept: {kind}", method="GET")
        for kind in ("application/vnd.milena.batch", "application/vnd.kafka.binary.v2+json")
        for offset in range(4)
    ]
    sound = [await _fetched(node, fetch) for fetch in fetches]
    assert all(len(body) > READ_BYTES for body in sound), [len(body) for body in sound]
    over = asyncio.Event()
    stopped: list[asyncio.Task[str]] = []

    async def once(number: int) -> str:
        way, place = number % 6, number // 6 % len(fetches)
        if way == 0:
            # These hold their connections until all other readers are done.
            stopped.append(asyncio.create_task(_stop(node, fetches[place], over)))
            return "waiting"
        if way in (1, 2):
            return await _leave(node, fetches[place], is_reset=way == 2)
        if way == 3:
            return await _pipeline_unread(node, fetches[place])
        bodies = [sound[place]] if way == 4 else [sound[place], sound[0]]
        asked = fetches[place] if way == 4 else fetches[place] + fetches[0]
        return await _read_all(node, asked, bodies, scale, closes=way == 4)

    seen = await together(scale.garbage * 2, once, 24)
    over.set()
    seen.update(await asyncio.gather(*stopped))
    return seen


async def _fill(node: LocalNode) -> None:
    for number in range(4):
        values: list[bytes | None] = [random.Random(number).randbytes(READ_BYTES)]
        body = encode_batch(RecordColumns(None, None, None, values, None), base_timestamp_ms=1)
        async with connected(node) as (reader, writer):
            writer.write(head(READ, BATCH_LINE, f"Content-Length: {len(body)}") + body)
            assert await outcome_of(reader, 30) == "200"


async def _body_of(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer; its status and its length must be there."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 200"), lines
    named = dict(line.partition(b": ")[::2] for line in lines)
    if b"content-length" in named:
        return await reader.readexactly(int(named[b"content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


async def _fetched(node: LocalNode, fetch: bytes) -> bytes:
    async with connected(node) as (reader, writer):
        writer.write(fetch)
        return await _body_of(reader)


@asynccontextmanager
async def _slow_socket(node: LocalNode):
    """A connected socket with a small window, so that most of an answer stays in the node."""
    where = urlsplit(node.url)
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (where.hostname, where.port))
        yield plain


async def _stop(node: LocalNode, fetch: bytes, over: asyncio.Event) -> str:
    """Begin to read the first of many answers, then read nothing."""
    loop = asyncio.get_running_loop()
    async with _slow_socket(node) as plain:
        await loop.sock_sendall(plain, fetch * PIPELINED)
        await loop.sock_recv(plain, 1000)
        await over.wait()
        return "open" if await loop.sock_recv(plain, 1000) else "closed"


async def _leave(node: LocalNode, fetch: bytes, *, is_reset: bool) -> str:
    loop = asyncio.get_running_loop()
    async with _slow_socket(node) as plain:
        if is_reset:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await loop.sock_sendall(plain, fetch)
        begun = await loop.sock_recv(plain, 1000)
    return "200" if begun.startswith(b"HTTP/1.1 200") else "wrong"


async def _pipeline_unread(node: LocalNode, fetch: bytes) -> str:
    """Many requests in one piece, and the connection is closed after the first bytes."""
    loop = asyncio.get_running_loop()
    async with _slow_socket(node) as plain:
        await loop.sock_sendall(plain, fetch * PIPELINED)
        begun = await loop.sock_recv(plain, 1000)
    return "200" if begun.startswith(b"HTTP/1.1 200") else "wrong"


async def _read_all(
    node: LocalNode, asked: bytes, bodies: list[bytes], scale: Scale, *, closes: bool
) -> str:
    async with connected(node) as (reader, writer):
        writer.write(asked)
        if closes:
            writer.write_eof()
        try:
            async with asyncio.timeout(scale.patience_s):
                found = [await _body_of(reader) for _ in bodies]
        except TimeoutError:
            return "silent"
        except asyncio.IncompleteReadError:
            # A client that closed its own direction may count as gone.
            return "closed" if closes else "wrong"
        return "200" if found == bodies else "wrong"


ATTACKS: tuple[Attack, ...] = (
    unwritable_numbers,
    escaped_strings,
    unknown_groups,
    random_bytes,
    random_peer_bytes,
    pipelined_garbage,
    half_closed,
    tls_on_plain,
    bad_handshakes,
    deep_json,
    batch_bombs,
    content_encoding_bombs,
    declared_bodies,
    chunked_bodies,
    slow_heads,
    slow_bodies,
    idle_connections,
    large_json_bodies,
    hostile_readers,
)
