"""Serve a web application on a free loopback port; all connections are closed at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

TURNS = 5
"""The turns of the loop that asyncio needs to close a socket after its transport; a test must wait for them."""


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve the application during the block; yield its base URL without a trailing slash."""
    try:
        async with TestServer(app) as server:
            yield str(server.make_url("/")).rstrip("/")
    finally:
        for _ in range(TURNS):
            await asyncio.sleep(0)
