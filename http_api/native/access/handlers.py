"""Native endpoints: the access mode, users and their tokens.

These rules keep a caller from gaining rights that it does not have. They hold in every mode except ``off``:

- only a superuser may create or change superusers, or change the mode;
- a token cannot create a token that expires later than itself;
- a token with grants cannot create tokens, and sees and deletes only itself among its user's tokens.
"""

from functools import partial

from aiohttp import web

from http_api.access.callers import UNCERTAIN, Caller
from http_api.access.port import RequestedToken, UserCheck
from http_api.describing.pages import LIMIT_OR_MOST, RowPage, matching
from http_api.describing.schemas import Fields
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.call import Call
from http_api.serving.routing import check_no_dots
from http_api.shapes import access as shapes
from milena.model.access import (
    ANONYMOUS,
    CLUSTER_NAME,
    AccessMode,
    Operation,
    PatternType,
    ResourceType,
)
from milena.model.errors import (
    ForbiddenError,
    NotReadyError,
    TokenNotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from milena.model.secret import Secret
from raft_meta.machine.image import Grant, Token, User

_NO_STORE = (("Cache-Control", "no-store"),)


async def get_access(call: Call) -> web.Response:
    """Return the mode, and the caller."""
    return _access(call, call.rights.caller)


async def put_access(call: Call) -> web.Response:
    """Change the mode."""
    fields = Fields(await call.json_body(), "the body", shapes.ACCESS_CHANGE.fields)
    mode = fields.required_text("mode")
    if mode not in set(AccessMode):
        raise InvalidFieldError(f"'mode' is '{mode}': use {', '.join(AccessMode)}")
    # The mode ``off`` makes every caller a superuser.
    _require_superuser(call, "change the mode")
    await call.ports.access.set_mode(AccessMode(mode))
    call.rights.tell(f"access mode {mode}")
    # The response describes the caller under the new mode. In mode off, nodes do not read credentials.
    try:
        caller = await call.rights.identified_now()
    except (UnauthenticatedError, TooManyRequestsError, NotReadyError):
        caller = Caller(
            principal=ANONYMOUS, version=UNCERTAIN
        )  # The next request of this caller is refused.
    return _access(call, caller)


def _access(call: Call, caller: Caller) -> web.Response:
    image = call.ports.metadata.image
    return json_answer(
        shapes.ACCESS.of(caller, mode=image.access_mode, version=image.access_version)
    )


# -- users -----------------------------------------------------------------------------------------


async def list_users(call: Call) -> web.Response:
    """Return the users, by name."""
    query, users = call.query(), call.ports.metadata.image.users
    page = RowPage.of(query, LIMIT_OR_MOST)
    names = sorted(matching(users, str, query))
    rows = page.rows(names, lambda name: _user(call, users[name]), None)
    return json_answer({"total": len(names), "users": rows})


async def get_user(call: Call) -> web.Response:
    """Return one user: the caller's own, or any user if the caller may describe the cluster."""
    name = call.names["user"]
    if call.rights.caller.user == name:
        call.rights.has_asked = True
    else:
        call.rights.authorize(Operation.DESCRIBE, ResourceType.CLUSTER, [CLUSTER_NAME])
    return json_answer(_user(call, call.ports.access.user(name)))


async def put_user(call: Call) -> web.Response:
    """Create or change a user. A caller that authenticated with a password may change that password."""
    name = call.names["user"]
    fields = Fields(await call.json_body(), "the body", shapes.USER_CHANGE.fields)
    if name not in call.ports.metadata.image.users:
        check_no_dots("user", name)
    text = fields.text("password")
    password = None if text is None else Secret(text)
    is_superuser = fields.boolean("is_superuser") if fields.has("is_superuser") else None
    keeps_previous = fields.boolean("keep_previous")
    if keeps_previous and password is None:
        raise InvalidFieldError("the body: 'keep_previous' says what becomes of a new 'password'")
    revokes_tokens = fields.boolean("revoke_tokens")
    scram = fields.boolean("scram") if fields.has("scram") else None
    if scram and password is None:
        raise InvalidFieldError(
            "the body: 'scram' needs 'password': credentials are made from it, and it is not stored"
        )
    caller = call.rights.caller
    is_own = caller.user == name and caller.has_password and is_superuser is None
    # SCRAM credentials are weaker than the hash of a password, so an operator decides whether a user has them.
    if is_own and password is not None and scram is None:
        call.rights.has_asked = True
        check: UserCheck = partial(_require_itself, caller)
    else:
        call.rights.authorize(Operation.ALTER, ResourceType.CLUSTER, [CLUSTER_NAME])
        check = partial(_require_power_over, call, name, gives=bool(is_superuser))
        # Also before the password is hashed, which takes long.
        try:
            check(call.ports.metadata.image.users.get(name))
        except ForbiddenError:
            # The user may have become a plain one a moment ago, at another node.
            check((await call.ports.metadata.current_image()).users.get(name))
    user, is_new = await call.ports.access.put_user(
        name,
        password=password,
        is_superuser=is_superuser,
        keeps_previous=keeps_previous,
        revokes_tokens=revokes_tokens,
        scram=scram,
        check=check,
    )
    changed = [
        word
        for word, is_said in (
            ("new", is_new),
            ("password", password is not None),
            ("superuser" if user.is_superuser else "no superuser", is_superuser is not None),
            ("tokens revoked", revokes_tokens),
            ("SCRAM" if user.scram else "no SCRAM", scram is not None),
        )
        if is_said
    ]
    call.rights.tell(f"user {name}: {', '.join(changed) or 'nothing'}")
    return json_answer(_user(call, user), status=201 if is_new else 200)


async def delete_user(call: Call) -> web.Response:
    """Delete a user, with its tokens and entries."""
    name = call.names["user"]
    _require_power_over(call, name, call.ports.metadata.image.users.get(name), gives=False)
    await call.ports.access.delete_user(name)
    call.rights.tell(f"user {name}: deleted")
    return empty_answer()


def _user(call: Call, user: User) -> dict[str, object]:
    return shapes.USER.of(
        user,
        password_count=len(user.verifiers),
        token_count=len(call.ports.metadata.image.tokens_of.get(user.name, ())),
        scram_mechanisms=[credential.mechanism for credential in user.scram],
    )


def _require_itself(caller: Caller, present: User | None) -> None:
    """Require that the user is still the one that authenticated. Otherwise a deleted user could create itself again."""
    if present is None or present.created_index != caller.user_index:
        raise UnauthenticatedError(f"user {caller.user} was deleted while its password was changed")


def _require_power_over(call: Call, name: str, present: User | None, *, gives: bool) -> None:
    """Require a superuser if user ``name`` is a superuser, or would become one (``gives``)."""
    if gives or (present is not None and present.is_superuser):
        _require_superuser(call, f"change superuser {name}")


def _require_superuser(call: Call, what: str) -> None:
    caller = call.rights.caller
    if not caller.is_superuser:
        raise ForbiddenError(f"only a superuser may {what}, and {caller.principal} is none")


# -- tokens ----------------------------------------------------------------------------------------


async def list_tokens(call: Call) -> web.Response:
    """Return the user's tokens, without their secrets."""
    name, caller = _own_or_any(call), call.rights.caller
    query, tokens = call.query(), call.ports.access.tokens_of(name)
    page = RowPage.of(query, LIMIT_OR_MOST)
    if caller.grants:
        tokens = [token for token in tokens if token.token_id == caller.token_id]
    return json_answer(
        {"total": len(tokens), "tokens": [_token(token) for token in page.cut(tokens, None)]}
    )


async def create_token(call: Call) -> web.Response:
    """Create a token of the user. Only this response has its secret."""
    name = _own_or_any(call)
    fields = Fields(await call.optional_json_body(), "the body", shapes.NEW_TOKEN.fields)
    grants = tuple(_grant(item) for item in fields.objects("grants", shapes.GRANT.fields))
    if fields.has("grants") and not grants:
        raise InvalidFieldError(
            "'grants' is empty, and a token is good for something: name what, or leave 'grants' out for all that its "
            "user may do"
        )
    caller = call.rights.caller
    if caller.grants:
        raise ForbiddenError(
            f"token {caller.token_id} is good for a part of what {caller.principal} may do, and makes no tokens: use "
            "the user's password, or a token without grants"
        )
    new = RequestedToken(
        note=fields.label("note") or "",
        grants=grants,
        lifetime_ms=fields.integer("lifetime_ms", least=1),
        expires_ms_max=caller.expires_ms,
        parent=caller.token_id or "",
    )
    token, secret = await call.ports.access.create_token(name, new)
    call.rights.tell(f"token {token.token_id} of user {name}: made")
    answer = {**_token(token), "token": secret.reveal()}
    return json_answer(answer, status=201, headers=_NO_STORE)


async def delete_token(call: Call) -> web.Response:
    """Revoke a token."""
    name, token_id = _own_or_any(call), call.names["token"]
    caller = call.rights.caller
    if caller.grants and token_id != caller.token_id:
        raise TokenNotFoundError(f"User {name} has no token {token_id}.")
    await call.ports.access.delete_token(name, token_id)
    call.rights.tell(f"token {token_id} of user {name}: deleted")
    return empty_answer()


def _own_or_any(call: Call) -> str:
    """Return the user name in the path. Only this user and superusers may manage the user's tokens."""
    call.rights.has_asked = True
    name, caller = call.names["user"], call.rights.caller
    if caller.user != name and not caller.is_superuser:
        raise ForbiddenError(
            f"tokens of user {name} are for that user and superusers to see, and {caller.principal} is neither"
        )
    return name


def _grant(fields: Fields) -> Grant:
    return Grant(
        resource_type=fields.required_text("resource_type"),
        pattern_type=fields.text("pattern_type") or PatternType.LITERAL,
        name=fields.required_text("name"),
        operations=tuple(dict.fromkeys(fields.strings("operations"))),
    )


def _token(token: Token) -> dict[str, object]:
    return shapes.TOKEN.of(
        token,
        grants=[shapes.GRANT.of(one, pattern_type=one.pattern_type) for one in token.grants],
        expires_ms=token.expires_ms or None,
        parent=token.parent or None,
    )
