"""A web application on a free port of loopback, closed to the last connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

TURNS = 5
"""A closed transport lets go of its socket on a later turn of the loop; a test must not end before."""


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve; gives the base URL, without a slash at its end."""
    try:
        async with TestServer(app) as server:
            yield str(server.make_url("/")).rstrip("/")
    finally:
        for _ in range(TURNS):
            await asyncio.sleep(0)
