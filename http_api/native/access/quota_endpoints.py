"""The table of endpoints of quotas."""

from http_api.access.needs import on_cluster
from http_api.describing.error_sets import CHANGE_ERRORS
from http_api.describing.pages import LONG_PARAMS
from http_api.describing.params import Param
from http_api.native.access import quotas
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.endpoint import Answer, Body, Route, Tag, json_content, ok
from http_api.shapes import quotas as shapes
from http_api.shapes.blocks import text
from milena.model import errors as e
from milena.model.access import Operation

QUOTA_ROUTES = (
    Route(
        "GET /quotas",
        "listQuotas",
        quotas.list_quotas,
        "Quotas",
        ok(shapes.QUOTAS, "The quotas, by user and client id"),
        own_params=LONG_PARAMS,
        access=on_cluster(Operation.DESCRIBE_CONFIGS),
        tag=Tag.ACCESS,
        is_current=True,
    ),
    Route(
        "PUT /quotas",
        "putQuota",
        quotas.put_quota,
        "Bound what somebody may take",
        ok(shapes.QUOTA, "What bounds it now"),
        access=on_cluster(Operation.ALTER_CONFIGS, is_strict=True),
        tag=Tag.ACCESS,
        description=(
            "Of a user, of all programs of one client id, or of both. A bound that is null is taken away, others stay. "
            "The most specific quota that bounds a thing counts: of user and client id, then of the user, then of the "
            "client id; a name before `*`."
        ),
        body=Body(content=json_content(shapes.QUOTA_CHANGE)),
        errors=(InvalidFieldError, e.InvalidAccessError, e.AccessLimitError, *CHANGE_ERRORS),
    ),
    Route(
        "DELETE /quotas",
        "deleteQuota",
        quotas.delete_quota,
        "Take a quota away",
        (Answer(status=204, description="There is none"),),
        own_params=(
            Param("user", "Whose it is", text(), "shop"),
            Param("client_id", "Of which programs", text(), "checkout"),
        ),
        access=on_cluster(Operation.ALTER_CONFIGS, is_strict=True),
        tag=Tag.ACCESS,
        errors=(e.InvalidAccessError, *CHANGE_ERRORS),
    ),
)
