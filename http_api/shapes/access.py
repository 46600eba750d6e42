"""Requests and responses about access: the mode, users, tokens and access control entries."""

from http_api.shapes.blocks import (
    Schema,
    Shape,
    boolean,
    choice,
    constant,
    count,
    fields,
    listing,
    nullable,
    text,
)
from http_api.shapes.v3 import ITEM_METADATA, LIST_METADATA
from milena.model.access import AccessMode, Operation, PatternType, Permission, ResourceType

_MODE = choice(*AccessMode)
_OPERATION = choice(*Operation)
_RESOURCE_TYPE = choice(*ResourceType)
_PATTERN_TYPE = choice(*PatternType)
_PERMISSION = choice(*Permission)
_NOTE_LENGTH_MAX = 255
_PASSWORD: Schema = text("8 to 1024 printable characters", minLength=8, maxLength=1024)
GRANTS_MAX = 100

ACCESS = Shape(
    "Access",
    fields(
        {
            "mode": _MODE,
            "version": count("grows with every change of users, tokens, entries and the mode"),
            "principal": text("who asks"),
            "user": nullable(text("the user that this is, or whose token it is")),
            "token_id": nullable(text()),
            "is_superuser": boolean("may do everything"),
        }
    ),
)
ACCESS_CHANGE = Shape(
    "AccessChangeIn", fields({"mode": _MODE}, is_closed=True), {"mode": "required"}
)

USER = Shape(
    "User",
    fields(
        {
            "name": text(),
            "is_superuser": boolean(),
            "password_count": count("two while one of them is on its way out"),
            "token_count": count("how many tokens speak for it: they outlive its password"),
        }
    ),
)
USERS = Shape(
    "Users",
    fields({"total": count("of all that fit"), "users": listing(USER, "those of the page")}),
)
USER_CHANGE = Shape(
    "UserChangeIn",
    fields(
        {},
        {
            "password": nullable(_PASSWORD),
            "is_superuser": nullable(boolean("absent: as it is; of a new user, no")),
            "keep_previous": nullable(
                boolean("the password before stays good, too, until the next change")
            ),
            "revoke_tokens": nullable(boolean("the user's tokens are deleted; absent: they stay")),
        },
        is_closed=True,
    ),
    {"password": "correct horse battery"},
)

GRANT = Shape(
    "Grant",
    fields(
        {
            "resource_type": _RESOURCE_TYPE,
            "name": text("of the resource, or what it begins with", minLength=1),
            "operations": listing(_OPERATION),
        },
        {"pattern_type": _PATTERN_TYPE},
        is_closed=True,
    ),
)
_TOKEN = {
    "token_id": text(),
    "user": text(),
    "note": text(),
    "grants": listing(GRANT, "what it is good for, of what its user may; empty: all of that"),
    "created_ms": count(),
    "expires_ms": nullable(count("null: never")),
    "parent": nullable(text("the token that made it, and with which it is deleted")),
}
TOKEN = Shape("Token", fields(_TOKEN))
TOKENS = Shape(
    "Tokens",
    fields({"total": count("of all that fit"), "tokens": listing(TOKEN, "those of the page")}),
)
NEW_TOKEN = Shape(
    "NewTokenIn",
    fields(
        {},
        {
            "note": nullable(text("for people", maxLength=_NOTE_LENGTH_MAX)),
            "lifetime_ms": nullable(count("absent: it has no end", least=1)),
            "grants": nullable(listing(GRANT, maxItems=GRANTS_MAX)),
        },
        is_closed=True,
    ),
    {
        "note": "nightly job",
        "lifetime_ms": 86_400_000,
        "grants": [{"resource_type": "TOPIC", "name": "orders", "operations": ["READ"]}],
    },
)
TOKEN_MADE = Shape(
    "TokenMade", fields({**_TOKEN, "token": text("what is to be sent; shown only here")})
)

_ACL = {
    "resource_type": _RESOURCE_TYPE,
    "resource_name": text(minLength=1),
    "pattern_type": _PATTERN_TYPE,
    "principal": text(minLength=1),
    "host": text(minLength=1),
    "operation": _OPERATION,
    "permission": _PERMISSION,
}
_EXAMPLE_ACL = {
    "resource_type": "TOPIC",
    "resource_name": "orders",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}
NEW_ACL = Shape("NewAclIn", fields(_ACL, is_closed=True), _EXAMPLE_ACL)
NEW_ACLS = Shape(
    "NewAclsIn",
    fields({"data": listing(NEW_ACL, maxItems=1_000)}, is_closed=True),
    {"data": [_EXAMPLE_ACL]},
)
ACL = Shape(
    "KafkaAcl",
    fields(
        {
            "kind": constant("KafkaAcl"),
            "metadata": ITEM_METADATA,
            "cluster_id": text(),
            **_ACL,
        }
    ),
)
ACLS = Shape(
    "KafkaAclList",
    fields({"kind": constant("KafkaAclList"), "metadata": LIST_METADATA, "data": listing(ACL)}),
)
ACLS_REMOVED = Shape("KafkaAclsRemoved", fields({"data": listing(ACL)}))
