"""The server's HTTP side as one object: routes, limits and errors around the ports of a node.

Two ways to run the same dispatcher: ``build_runner`` is what a node uses (aiohttp's bare server, no second router in
front of ours); ``build_application`` is for whoever needs an ``aiohttp.web.Application``.
"""

from collections.abc import Collection

from aiohttp import web

from http_api.dispatch import BrokenInvariantHook, Dispatcher
from http_api.ports import Ports
from http_api.routes import ROUTES, with_public_metrics
from http_api.server import ApiServer

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
    origins: Collection[str] = (),
    is_metrics_public: bool = False,
    on_broken_invariant: BrokenInvariantHook | None = None,
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
) -> web.ServerRunner:
    """The API on aiohttp's bare server; called on the event loop that will serve it. ``origins``: of other pages."""
    routes = with_public_metrics(ROUTES) if is_metrics_public else ROUTES
    dispatcher = Dispatcher(ports, routes, origins=origins, on_broken_invariant=on_broken_invariant)
    return web.ServerRunner(
        ApiServer(dispatcher), handle_signals=False, shutdown_timeout=shutdown_timeout_s
    )
