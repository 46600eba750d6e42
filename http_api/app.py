"""The HTTP application of a node: routes, request limits and error responses.

It reaches the node only through the interfaces of ``http_api.ports``.
"""

from collections.abc import Collection

from aiohttp import web

from http_api.access.group_shares import GroupShares
from http_api.ports.node import Ports
from http_api.routes import ROUTES, with_public_metrics
from http_api.server import ApiServer
from http_api.serving.dispatch import Dispatcher
from http_api.serving.in_flight import RequestBytes
from http_api.serving.quotas import Quotas
from milena.model.contained import ContainedErrors

SHUTDOWN_TIMEOUT_S = 10.0
"""Time that requests in progress get to finish when the server stops, in seconds."""


def build_runner(
    ports: Ports,
    *,
    origins: Collection[str] = (),
    hosts: Collection[str] = (),
    proxies: Collection[str] = (),
    is_metrics_public: bool = False,
    contained: ContainedErrors | None = None,
    quotas: Quotas | None = None,
    group_shares: GroupShares | None = None,
    request_bytes: RequestBytes | None = None,
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
) -> web.ServerRunner:
    """Return a runner of the API on aiohttp's low-level server. Call it on the event loop that will serve the API.

    Args:
        ports: the interfaces of the node.
        origins: origins whose pages may call the API (CORS).
        hosts: further host names under which the cluster is reached.
        proxies: addresses or networks of trusted proxies, whose headers name the client's address.
        is_metrics_public: whether ``/metrics`` needs no credentials.
        contained: counts unexpected errors; None: a new counter.
        quotas: the quotas of callers, if another interface shares them; None: new ones.
        group_shares: the shares of groups, as for ``quotas``.
        request_bytes: the bound on the bytes of requests, as for ``quotas``.
        shutdown_timeout_s: time that requests in progress get to finish.
    """
    routes = with_public_metrics(ROUTES) if is_metrics_public else ROUTES
    dispatcher = Dispatcher(
        ports,
        routes,
        origins=origins,
        hosts=hosts,
        proxies=proxies,
        contained=contained,
        quotas=quotas,
        group_shares=group_shares,
        request_bytes=request_bytes,
    )
    return web.ServerRunner(
        ApiServer(dispatcher), handle_signals=False, shutdown_timeout=shutdown_timeout_s
    )
