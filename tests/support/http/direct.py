"""Send bytes to the API of a simulated node and get its bytes, without a socket: the real server on the test's loop."""

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
    """The client's end of a connection: what the server wrote, and whether it closed the connection."""

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
        """Do nothing: the whole request arrives at once."""

    def resume_reading(self) -> None:
        """Do nothing: the whole request arrives at once."""

    def is_reading(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The bytes of a response. Status 0 means that none came in time, or that the server closed the connection."""

    status: int
    head: str
    body: bytes


class DirectApi:
    """Sends requests to one node, each over its own connection."""

    def __init__(self, node: "SimNode", limits: ApiLimits | None = None) -> None:
        self.node = node
        self.dispatcher = Dispatcher(
            ports_of(node, limits), ROUTES, contained=node.counts.contained
        )
        self.server = ApiServer(self.dispatcher)

    async def ask(self, request: bytes, *, patience_s: float = 3.0) -> RawAnswer:
        """Send the bytes; close the connection after the response or the timeout."""
        wire = Wire()
        connection = self.server()
        connection.connection_made(wire)
        # As with a socket, the connection is established before its first bytes arrive.
        await asyncio.sleep(0)
        try:
            return await self._exchange(wire, connection, request, patience_s)
        finally:
            connection.connection_lost(None)

    async def ask_twice(self, request: bytes) -> tuple[RawAnswer, RawAnswer]:
        """Send the same bytes twice on one connection, because the server caches the heads of requests."""
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
    """Return the ports that ``node.wiring`` gives to the API."""
    return node.api_ports(limits or ApiLimits())


def request_bytes(
    method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Return the bytes of an HTTP/1.1 request."""
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
