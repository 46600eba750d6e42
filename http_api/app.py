"""The server's HTTP side as one object: routes, limits and errors around the ports of a node.

Two ways to run the same dispatcher: ``build_runner`` is the quick one (aiohttp's bare server, no second router in
front of ours); ``build_application`` is for whoever needs an ``aiohttp.web.Application``, tests and embedders.
"""

import asyncio

from aiohttp import web

from http_api.dispatch import BrokenInvariantHook, Dispatcher
from http_api.ports import Ports
from http_api.routes import ROUTES

KEEPALIVE_S = 75.0
"""Longer than the usual 60 s of load balancers, so that it is never us who closes under a request."""

LINGERING_S = 2.0
"""How long the rest of a refused body is read and dropped, so that the client gets to see the refusal."""

SHUTDOWN_TIMEOUT_S = 10.0
"""How long requests under way may take once the server stops."""


def build_application(
    ports: Ports, *, on_broken_invariant: BrokenInvariantHook | None = None
) -> web.Application:
    """The API as an application with a single catch-all route.

    ``on_broken_invariant`` is told of a failed assertion, after which no promise holds: the node should stop.
    """
    dispatcher = Dispatcher(ports, ROUTES, on_broken_invariant=on_broken_invariant)
    application = web.Application()
    application.router.add_route(
        "*", "/{path:.*}", dispatcher.handle, expect_handler=_leave_to_dispatcher
    )
    return application


async def _leave_to_dispatcher(request: web.Request) -> None:
    """The dispatcher asks for a body once it knows that it wants it."""


def build_runner(
    ports: Ports,
    *,
    on_broken_invariant: BrokenInvariantHook | None = None,
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
) -> web.ServerRunner:
    """The API on aiohttp's bare server; called on the event loop that will serve it.

    Handlers of clients that went away are cancelled, so that nobody waits for records that nobody will read.
    """
    dispatcher = Dispatcher(ports, ROUTES, on_broken_invariant=on_broken_invariant)
    server = web.Server(
        dispatcher.handle,
        handler_cancellation=True,
        loop=asyncio.get_running_loop(),
        access_log=None,
        keepalive_timeout=KEEPALIVE_S,
        lingering_time=LINGERING_S,
    )
    return web.ServerRunner(server, handle_signals=False, shutdown_timeout=shutdown_timeout_s)
