"""A node under attack, watched from outside: its memory, its descriptors, and what it does for a decent client.

The decent client writes one record after the other with ``acks=all`` over one connection at a time, remembers what
was acknowledged and how long it took, and reads everything back in the end.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.cluster.local_cluster import LocalCluster, LocalNode

PAUSE_S = 0.01
ANSWER_S = 30.0
TOPIC = "decent"


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no memory figure of process {pid}")


def descriptor_count(pid: int) -> int:
    """Open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def request(
    node: LocalNode,
    method: str,
    path: str,
    body: bytes = b"",
    timeout_s: float = ANSWER_S,
    *,
    authorization: str = "",
) -> tuple[int, bytes]:
    """One request over a connection of its own: status and body."""
    where = urlsplit(node.url)
    credentials = f"Authorization: {authorization}\r\n" if authorization else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{credentials}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    lines, _, content = answer.partition(b"\r\n\r\n")
    return int(lines.split(b" ", 2)[1]), content


@dataclass(slots=True)
class Tally:
    """What the decent client saw. Times in seconds."""

    acknowledged: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    broken: int = 0
    signed_in: int = 0
    not_signed_in: list[str] = field(default_factory=list)
    """What came of sign-ins that did not succeed."""
    slowest_sign_in: float = 0.0

    @property
    def slowest(self) -> float:
        """The longest wait for an answer."""
        return max(self.latencies, default=0.0)

    def __str__(self) -> str:
        ordered = sorted(self.latencies) or [0.0]
        middle, high = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        return (
            f"{len(self.acknowledged)} writes, p50 {middle * 1000:.1f} ms, p99 {high * 1000:.0f} ms, "
            f"slowest {self.slowest:.2f} s, refused {self.refused or 0}, broken {self.broken}, "
            f"{self.signed_in} sign-ins, slowest {self.slowest_sign_in:.2f} s"
        )


SignIn = Callable[[LocalNode], Awaitable[None]]
"""Signs in to a node. Raises ``AssertionError`` or an error of the connection if it is not let in."""


class DecentClient:
    """Writes while others misbehave, and signs in to the Kafka interface where there is one to sign in to."""

    def __init__(
        self,
        cluster: LocalCluster,
        node: LocalNode,
        *,
        authorization: str = "",
        sign_in: SignIn | None = None,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._authorization = authorization
        self._sign_in = sign_in
        self._count = 0
        self.written: list[str] = []
        self.uncertain: set[str] = set()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request with the client's credentials."""
        return await request(self._node, method, path, body, authorization=self._authorization)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Tally]:
        """Writes while the block runs, on a thread and loop of its own: an attacker's work must not delay them."""
        stop = threading.Event()
        tally = Tally()
        task = asyncio.create_task(asyncio.to_thread(asyncio.run, self._write_until(stop, tally)))
        try:
            yield tally
        finally:
            stop.set()
            await task
            self.written += tally.acknowledged

    async def _write_until(self, stop: threading.Event, tally: Tally) -> None:
        while not stop.is_set():
            self._count += 1
            await self._write(f"value-{self._count}", tally)
            if self._sign_in is not None:
                await self._try_to_sign_in(self._sign_in, tally)
            await asyncio.sleep(PAUSE_S)

    async def _try_to_sign_in(self, sign_in: SignIn, tally: Tally) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_S):
                await sign_in(self._node)
        except (AssertionError, OSError, EOFError) as error:  # of which TimeoutError is one
            tally.not_signed_in.append(repr(error))
        else:
            tally.signed_in += 1
        tally.slowest_sign_in = max(tally.slowest_sign_in, time.perf_counter() - began)

    async def _write(self, value: str, tally: Tally) -> None:
        body = json.dumps({"records": [{"value": value}]}).encode()
        began = time.perf_counter()
        try:
            status, _ = await self.request("POST", f"/topics/{TOPIC}", body)
        except (OSError, TimeoutError, IndexError, ValueError):
            tally.broken += 1
            self.uncertain.add(value)
        else:
            if status == 200:
                tally.acknowledged.append(value)
            else:
                tally.refused[status] = tally.refused.get(status, 0) + 1
                self.uncertain.add(value)
        tally.latencies.append(time.perf_counter() - began)

    async def read_back(self) -> list[str]:
        """Everything that the topic holds, in order."""
        found: list[str] = []
        while True:
            path = f"/topics/{TOPIC}/partitions/0/records?offset={len(found)}&max_bytes=1000000"
            status, content = await self.request("GET", path)
            assert status == 200, content[:300]
            records = json.loads(content)
            if not records:
                return found
            found += [record["value"] for record in records]


@dataclass(slots=True)
class Footprint:
    """Memory and descriptors of every node."""

    rss: list[int]
    descriptors: list[int]


def footprint(nodes: Sequence[LocalNode]) -> Footprint:
    """As they are now."""
    pids = [node.process.pid or 0 for node in nodes]
    return Footprint([rss_bytes(pid) for pid in pids], [descriptor_count(pid) for pid in pids])
