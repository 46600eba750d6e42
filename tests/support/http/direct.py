"""The API of a simulated node, bytes in and bytes out: the real server on the test's own loop, without a socket."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from http_api.ports.node import ApiLimits, Ports
from http_api.routes import ROUTES
from http_api.server import ApiServer
from http_api.serving.dispatch import Dispatcher

if TYPE_CHECKING:
    from tests.support.clusters.nodes import SimNode

END = b"\r\n\r\n"


class Wire(asyncio.Transport):
    """The client's end: what the server wrote, and whether it hung up."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = bytearray()
        self.is_closed = False
        self.news = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.news.set()

    def writelines(self, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
        for chunk in chunks:
            self.write(chunk)

    def close(self) -> None:
        self.is_closed = True
        self.news.set()

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """All is there at once."""

    def resume_reading(self) -> None:
        """All is there at once."""

    def is_reading(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came. ``status`` 0: none came in time, or the server hung up without one."""

    status: int
    head: str
    body: bytes


class DirectApi:
    """Sends requests to one node, each over a connection of its own."""

    def __init__(self, node: "SimNode", limits: ApiLimits | None = None) -> None:
        self.node = node
        self.dispatcher = Dispatcher(
            ports_of(node, limits), ROUTES, contained=node.counts.contained
        )
        self.server = ApiServer(self.dispatcher)

    async def ask(self, request: bytes, *, patience_s: float = 3.0) -> RawAnswer:
        """Send the bytes, and hang up after the answer, or when the patience is over."""
        wire = Wire()
        connection = self.server()
        connection.connection_made(wire)
        # As on a socket: the connection is there before its first bytes.
        await asyncio.sleep(0)
        try:
            return await self._exchange(wire, connection, request, patience_s)
        finally:
            connection.connection_lost(None)

    async def ask_twice(self, request: bytes) -> tuple[RawAnswer, RawAnswer]:
        """Send the same bytes twice on one connection: the second time its head may be known."""
        wire = Wire()
        connection = self.server()
        connection.connection_made(wire)
        await asyncio.sleep(0)
        try:
            first = await self._exchange(wire, connection, request, 3.0)
            await asyncio.sleep(0.001)
            wire.written.clear()
            return first, await self._exchange(wire, connection, request, 3.0)
        finally:
            connection.connection_lost(None)

    async def _exchange(
        self, wire: Wire, connection: web.RequestHandler, request: bytes, patience_s: float
    ) -> RawAnswer:
        connection.data_received(request)
        try:
            async with asyncio.timeout(patience_s):
                while not wire.is_closed and not _is_whole(bytes(wire.written)):
                    wire.news.clear()
                    await wire.news.wait()
        except TimeoutError:
            pass
        return _answer(bytes(wire.written))


def ports_of(node: "SimNode", limits: ApiLimits | None = None) -> Ports:
    """The ports that the wiring gives the API."""
    return Ports(
        produce=node.produce,
        transactions=node.transactions,
        reads=node.reads,
        deletions=node.deletions,
        metadata=node.admin,
        health=node.health,
        history=node.history,
        reassignments=node.reassignments,
        groups=node.groups.service,
        consumers=node.consumers.service,
        callers=node.callers,
        access=node.access,
        refusals=node.refusals,
        limits=limits or ApiLimits(),
    )


def request_bytes(
    method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """A request in HTTP/1.1."""
    lines = [f"{method} {target} HTTP/1.1", "Host: node"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""])
    return head.encode("utf-8", "surrogateescape") + (body or b"")


def _is_whole(written: bytes) -> bool:
    head, found, body = written.partition(END)
    if not found:
        return False
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return body.endswith(b"0\r\n\r\n")
    at = lower.find(b"content-length:")
    if at < 0:
        return True
    return len(body) >= int(lower[at + 15 :].split(b"\r\n", 1)[0])


def _answer(written: bytes) -> RawAnswer:
    head, found, body = written.partition(END)
    if not found:
        return RawAnswer(0, head.decode("latin-1"), b"")
    return RawAnswer(int(head.split(b" ", 2)[1]), head.decode("latin-1"), body)
