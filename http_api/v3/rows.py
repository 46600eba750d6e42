"""v3: a function that adds the common parts to the rows of the tables of endpoints."""

from http_api.access.needs import Access
from http_api.describing.params import Param, text_param
from http_api.serving.endpoint import Answer, Body, Handler, Route, Tag, route
from http_api.shapes.blocks import text
from milena.model import errors as e
from milena.model.errors import MilenaError

TOPIC_MISSING = 40403
_CLUSTER_ERRORS = (e.ClusterNotFoundError, e.NotReadyError)

CLUSTER = "/v3/clusters/{cluster}"
DONE = (Answer(status=204, description="It is so"),)


AUTHORIZED_OPERATIONS = text_param(
    "include_authorized_operations",
    "taken, as other servers know it, and ignored: no operations are told",
    text(),
)


def v3_route(
    line: str,
    operation_id: str,
    handler: Handler,
    summary: str,
    answers: tuple[Answer, ...],
    *params: Param,
    tag: Tag,
    access: Access,
    description: str = "",
    body: Body | None = None,
    errors: tuple[type[MilenaError], ...] = (),
    is_current: bool = False,
) -> Route:
    """Return a row of the table; if the path has a cluster id, with the errors for it."""
    in_cluster = _CLUSTER_ERRORS if CLUSTER in line else ()
    return route(
        line,
        operation_id,
        handler,
        summary,
        answers,
        *params,
        access=access,
        tag=tag,
        description=description,
        body=body,
        # Responses have links, whose host may come from a malformed header of a proxy.
        errors=(e.MalformedRequestError, *in_cluster, *errors),
        topic_missing_code=TOPIC_MISSING,
        is_current=is_current,
    )
