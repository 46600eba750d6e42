"""v3: the table of endpoints of access control entries."""

from http_api.access.needs import on_cluster
from http_api.describing.error_sets import CHANGE_ERRORS
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.endpoint import Answer, Body, Route, Tag, json_content, ok
from http_api.shapes import access as shapes
from http_api.v3 import acls
from http_api.v3.rows import CLUSTER
from milena.model import errors as e
from milena.model.access import Operation

_ACLS = f"{CLUSTER}/acls"
_ADD_ERRORS = (InvalidFieldError, e.InvalidAccessError, e.AccessLimitError, *CHANGE_ERRORS)
_THERE = "It is there, on this node and soon on all"
_ADDED = (Answer(status=201, description=_THERE),)

ACL_ROUTES = (
    Route(
        f"GET {_ACLS}",
        "v3ListAcls",
        acls.list_acls,
        "Access control entries",
        ok(shapes.ACLS, "Those that the query leaves"),
        own_params=acls.FILTERS,
        access=on_cluster(Operation.DESCRIBE),
        tag=Tag.V3_ACLS,
        is_current=True,
    ),
    Route(
        f"POST {_ACLS}",
        "v3CreateAcl",
        acls.create_acl,
        "Add an access control entry",
        (Answer(status=201, description=_THERE, headers=("Location",)),),
        access=on_cluster(Operation.ALTER, is_strict=True),
        tag=Tag.V3_ACLS,
        description="One that is there already stays.",
        body=Body(content=json_content(shapes.NEW_ACL)),
        errors=_ADD_ERRORS,
    ),
    Route(
        f"POST {_ACLS}:batch",
        "v3CreateAcls",
        acls.create_acls,
        "Add several access control entries",
        _ADDED,
        access=on_cluster(Operation.ALTER, is_strict=True),
        tag=Tag.V3_ACLS,
        description="All or none.",
        body=Body(content=json_content(shapes.NEW_ACLS)),
        errors=_ADD_ERRORS,
    ),
    Route(
        f"DELETE {_ACLS}",
        "v3DeleteAcls",
        acls.delete_acls,
        "Remove access control entries",
        ok(shapes.ACLS_REMOVED, "Those that were removed"),
        own_params=acls.FILTERS,
        access=on_cluster(Operation.ALTER, is_strict=True),
        tag=Tag.V3_ACLS,
        errors=CHANGE_ERRORS,
    ),
)
