"""Servers and addresses that are not Milena nodes, each on a free loopback port."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

from aiohttp import web

from tests.support.http.http_server import TURNS, serving

TLS = Path(__file__).parents[2] / "data" / "tls"

Place = AbstractAsyncContextManager[str]

REFUSAL = '{"error_code":40101,"message":"The request has no credentials."}'


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@asynccontextmanager
async def nothing() -> AsyncIterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@asynccontextmanager
async def no_name() -> AsyncIterator[str]:
    yield "http://no-such-host.invalid:8082"


class _Talker(asyncio.Protocol):
    def __init__(self, greeting: bytes, opened: list[asyncio.Transport], *, closes: bool) -> None:
        self._opened = opened
        self._greeting = greeting
        self._closes = closes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened.append(self._transport)
        self._transport.write(self._greeting)

    def data_received(self, data: bytes) -> None:
        del data
        if self._closes:
            self._transport.close()


@asynccontextmanager
async def bytes_server(
    greeting: bytes, *, closes: bool, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Start a server of another protocol: it greets, reads the first bytes, and closes the connection or is silent."""
    opened: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: _Talker(greeting, opened, closes=closes), "127.0.0.1", 0, ssl=tls
    )
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for transport in opened:
            transport.abort()
        for _ in range(TURNS):
            await asyncio.sleep(0)


def tls_in_plain() -> Place:
    """Start a TLS server behind a URL with http."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cluster.pem", TLS / "cluster.key")
    return bytes_server(b"", closes=True, tls=context)


@asynccontextmanager
async def web_server(
    status: int, body: str, *, scheme: str = "http", **headers: str
) -> AsyncIterator[str]:
    """Start a web server with the same response to every request."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serving(app) as url:
        yield url.replace("http:", f"{scheme}:")


PLACES: dict[str, tuple[Callable[[], Place], str]] = {
    "dead address": (nothing, "connection refused"),
    "name that does not resolve": (no_name, "host name cannot be resolved"),
    "port of another protocol": (
        lambda: bytes_server(b"", closes=True),
        "the port may want https://, or be the one on which nodes talk to each other",
    ),
    "port that greets": (
        lambda: bytes_server(b"SSH-2.0-OpenSSH_9.6\r\n", closes=False),
        "is this a Milena node?",
    ),
    "port that is silent": (lambda: bytes_server(b"", closes=False), "timed out"),
    "TLS in plain HTTP": (tls_in_plain, "the port may want https"),
    "plain HTTP in TLS": (
        lambda: web_server(200, "{}", scheme="https"),
        "it answers without TLS: use http://",
    ),
    "closed cluster": (lambda: web_server(401, REFUSAL), "The request has no credentials"),
    "web site": (lambda: web_server(200, "<html>It works!</html>"), "is this a Milena node?"),
    "web site without the page": (lambda: web_server(404, "<html>"), "is this a Milena node?"),
    "web site that redirects": (
        lambda: web_server(301, "", Location="https://example.com/"),
        "use the URL that it redirects to",
    ),
    "proxy without a node": (
        lambda: web_server(502, "<html>Bad Gateway</html>"),
        "HTTP 502",
    ),
}
"""The ways to start a server, by name, with a text that the client's error must contain."""

AT_ONCE = {"closed cluster", "web site", "web site without the page", "web site that redirects"}
"""The servers whose first response shows that another attempt cannot succeed."""
