"""Every endpoint there is: one table, from which requests are dispatched and the API's description is made."""

from http_api.endpoint import Route
from http_api.native.access_endpoints import ACCESS_ROUTES
from http_api.native.endpoints import NATIVE_ROUTES
from http_api.native.group_endpoints import GROUP_ROUTES
from http_api.native.quota_endpoints import QUOTA_ROUTES
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
