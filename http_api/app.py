"""The HTTP application of a node: routes, request limits and error responses.

It reaches the node only through the interfaces of ``http_api.ports``.
"""

from collections.abc import Collection

from aiohttp import web

from http_api.ports.node import Ports
from http_api.routes import ROUTES, with_public_metrics
from http_api.server import ApiServer
from http_api.serving.dispatch import Dispatcher
from milena.model.contained import ContainedErrors

SHUTDOWN_TIMEOUT_S = 10.0
"""How long requests under way may take once the server stops."""


def build_runner(
    ports: Ports,
    *,
    origins: Collection[str] = (),
    hosts: Collection[str] = (),
    proxies: Collection[str] = (),
    is_metrics_public: bool = False,
    contained: ContainedErrors | None = None,
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
) -> web.ServerRunner:
    """The API on aiohttp's bare server; called on the event loop that will serve it.

    ``origins``: of other pages. ``hosts``: further names of the cluster. ``proxies``: that are believed about where
    requests come from.
    """
    routes = with_public_metrics(ROUTES) if is_metrics_public else ROUTES
    dispatcher = Dispatcher(
        ports, routes, origins=origins, hosts=hosts, proxies=proxies, contained=contained
    )
    return web.ServerRunner(
        ApiServer(dispatcher), handle_signals=False, shutdown_timeout=shutdown_timeout_s
    )
