"""The state that all requests of a server share."""

from dataclasses import dataclass

from http_api.access.group_shares import GroupShares
from http_api.ports.node import Ports
from http_api.serving.connections import Connections
from http_api.serving.in_flight import InFlight
from http_api.serving.places import Streams
from http_api.serving.quotas import Quotas
from http_api.serving.request_metrics import RequestMetrics
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import MilenaError
from milena.model.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The state that all requests of a server share."""

    ports: Ports
    in_flight: InFlight
    request_metrics: RequestMetrics
    turns: Turns
    connections: Connections
    streams: Streams
    quotas: Quotas
    group_shares: GroupShares
    contained: ContainedErrors
    """Counts and logs unexpected errors."""
    description: bytes
    """The OpenAPI document as JSON; constant."""

    def typed(self, error: BaseException, request_id: str) -> MilenaError:
        """Return the error for the client: ``error`` itself, or an ``InternalError`` for an unexpected one.

        An unexpected error is counted and logged. All code of the API port passes its errors through this method.
        """
        if isinstance(error, MilenaError):
            return error
        return self.contained.report(EntryPoint.API, error, "request_id", request_id)
