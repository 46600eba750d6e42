"""The table of all endpoints. Requests are dispatched by it, and the OpenAPI document is generated from it."""

from dataclasses import replace

from http_api.access.needs import PUBLIC
from http_api.native.access.endpoints import ACCESS_ROUTES
from http_api.native.access.quota_endpoints import QUOTA_ROUTES
from http_api.native.endpoints import NATIVE_ROUTES
from http_api.native.groups.endpoints import GROUP_ROUTES
from http_api.serving.endpoint import Route
from http_api.v2.consumer_endpoints import CONSUMER_ROUTES
from http_api.v2.endpoints import V2_ROUTES
from http_api.v3.endpoints import V3_ROUTES

ROUTES: tuple[Route, ...] = (
    *V2_ROUTES,
    *CONSUMER_ROUTES,
    *GROUP_ROUTES,
    *V3_ROUTES,
    *NATIVE_ROUTES,
    *ACCESS_ROUTES,
    *QUOTA_ROUTES,
)

METRICS = "getMetrics"


def with_public_metrics(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """Return the table with a metrics endpoint that needs no credentials."""
    return tuple(
        replace(route, access=PUBLIC) if route.operation_id == METRICS else route
        for route in routes
    )
