"""The table of endpoints of access: the mode, users and their tokens."""

from functools import partial

from http_api.access.needs import IN_REQUEST, KNOWN, STRICT, on_cluster
from http_api.describing.error_sets import CHANGE_ERRORS
from http_api.describing.pages import CONTAINS, LONG_PARAMS
from http_api.native.access import handlers as access
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.endpoint import Answer, Body, Route, Tag, json_content, ok
from http_api.shapes import access as shapes
from milena.model import errors as e
from milena.model.access import Operation

_CHANGE_ERRORS = (InvalidFieldError, e.InvalidAccessError, *CHANGE_ERRORS)
_GONE = (Answer(status=204, description="It is gone"),)

_access_route = partial(Route, tag=Tag.ACCESS)

ACCESS_ROUTES = (
    _access_route(
        "GET /access",
        "getAccess",
        access.get_access,
        "Who asks, and how much the cluster asks",
        ok(shapes.ACCESS, "The mode, and who this is"),
        access=KNOWN,
    ),
    _access_route(
        "PUT /access",
        "setAccess",
        access.put_access,
        "Change how much the cluster asks",
        ok(shapes.ACCESS, "The mode, and who this is"),
        access=on_cluster(Operation.ALTER, is_strict=True),
        description=(
            "`off`: nothing. `optional`: who comes without credentials is `User:ANONYMOUS`, and refusals are logged "
            "only. `required`: credentials, and an entry that allows what is done. For superusers."
        ),
        body=Body(content=json_content(shapes.ACCESS_CHANGE)),
        errors=(e.LastSuperuserError, *_CHANGE_ERRORS),
    ),
    _access_route(
        "GET /users",
        "listUsers",
        access.list_users,
        "Users",
        ok(shapes.USERS, "The users, by name"),
        own_params=(CONTAINS, *LONG_PARAMS),
        access=on_cluster(Operation.DESCRIBE),
        is_current=True,
    ),
    _access_route(
        "GET /users/{user}",
        "getUser",
        access.get_user,
        "A user",
        ok(shapes.USER, "The user"),
        access=IN_REQUEST,
        is_current=True,
        errors=(e.UserNotFoundError,),
    ),
    _access_route(
        "PUT /users/{user}",
        "putUser",
        access.put_user,
        "Make a user, or change one",
        (*ok(shapes.USER, "It is changed"), *ok(shapes.USER, "It is made", status=201)),
        access=STRICT,
        description=(
            "Needs ALTER on the cluster; superusers are made and changed by superusers. A caller that came with a "
            "password may change its own. Tokens outlive a password: `token_count` says how many there are, and "
            "`revoke_tokens` deletes them. `scram` lets Kafka clients prove the password by SCRAM."
        ),
        body=Body(content=json_content(shapes.USER_CHANGE)),
        errors=(
            e.LastSuperuserError,
            e.AccessLimitError,
            e.StaleVersionError,
            *_CHANGE_ERRORS,
        ),
    ),
    _access_route(
        "DELETE /users/{user}",
        "deleteUser",
        access.delete_user,
        "Forget a user",
        _GONE,
        access=on_cluster(Operation.ALTER, is_strict=True),
        # The handler looks whether the user is a superuser.
        is_current=True,
        description="With its tokens, and the access control entries that name it.",
        errors=(e.UserNotFoundError, e.LastSuperuserError, *CHANGE_ERRORS),
    ),
    _access_route(
        "GET /users/{user}/tokens",
        "listTokens",
        access.list_tokens,
        "Tokens of a user",
        ok(shapes.TOKENS, "The tokens, the oldest first"),
        own_params=LONG_PARAMS,
        access=STRICT,
        description="A token with grants is told of itself alone.",
        is_current=True,
        errors=(e.UserNotFoundError,),
    ),
    _access_route(
        "POST /users/{user}/tokens",
        "createToken",
        access.create_token,
        "Make a token",
        ok(shapes.TOKEN_MADE, "The token. It is shown only in this response", status=201),
        access=STRICT,
        description=(
            "It may what its user may, or, with `grants`, what both say. One that is made with a token never lives "
            "longer, and is deleted with it. A token with grants makes none. A user has at most 1,000 tokens. The body "
            "may be left out."
        ),
        body=Body(content=json_content(shapes.NEW_TOKEN), is_required=False),
        errors=(e.UserNotFoundError, e.AccessLimitError, *_CHANGE_ERRORS),
    ),
    _access_route(
        "DELETE /users/{user}/tokens/{token}",
        "deleteToken",
        access.delete_token,
        "Revoke a token",
        _GONE,
        access=STRICT,
        errors=(e.TokenNotFoundError, *CHANGE_ERRORS),
    ),
)
