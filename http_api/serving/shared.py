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
    """Values that all calls of a server share."""

    ports: Ports
    in_flight: InFlight
    request_metrics: RequestMetrics
    turns: Turns
    connections: Connections
    streams: Streams
    quotas: Quotas
    group_shares: GroupShares
    contained: ContainedErrors
    """Takes unexpected errors."""
    description: bytes
    """The OpenAPI document. It never changes while the server runs."""

    def typed(self, error: BaseException, request_id: str) -> MilenaError:
        """Return the error that the caller gets. An unexpected error is reported first.

        Only this method contains errors of requests on the API port.
        """
        if isinstance(error, MilenaError):
            return error
        return self.contained.report(EntryPoint.API, error, "request_id", request_id)
