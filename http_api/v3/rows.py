"""v3: a function that adds the common parts to the rows of the tables of endpoints."""

from dataclasses import replace

from http_api.describing.params import Param
from http_api.serving.endpoint import Answer, Route
from http_api.shapes.blocks import text
from milena.model import errors as e

TOPIC_MISSING = 40403
_CLUSTER_ERRORS = (e.ClusterNotFoundError, e.NotReadyError)

CLUSTER = "/v3/clusters/{cluster}"
DONE = (Answer(status=204, description="It is so"),)


AUTHORIZED_OPERATIONS = Param(
    "include_authorized_operations",
    "taken, as other servers know it, and ignored: no operations are told",
    text(),
)


def in_v3(*rows: Route) -> tuple[Route, ...]:
    """Return the rows with what is common to v3; if the path has a cluster id, with the errors for it."""
    return tuple(
        replace(row, errors=_errors_of(row), topic_missing_code=TOPIC_MISSING) for row in rows
    )


def _errors_of(row: Route) -> tuple[type[e.MilenaError], ...]:
    in_cluster = _CLUSTER_ERRORS if CLUSTER in row.path else ()
    # Responses have links, whose host may come from a malformed header of a proxy.
    return (e.MalformedRequestError, *in_cluster, *row.errors)
