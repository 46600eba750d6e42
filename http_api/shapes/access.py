"""Requests and responses about access: the mode, users, tokens and access control entries."""

from http_api.shapes.blocks import (
    Optional,
    Schema,
    answer,
    boolean,
    choice,
    constant,
    count,
    listing,
    maybe,
    nullable,
    request,
    text,
)
from http_api.shapes.v3 import ITEM_METADATA, LIST_METADATA
from milena.model.access import (
    AccessMode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramMechanism,
)

_MODE = choice(*AccessMode)
_OPERATION = choice(*Operation)
_RESOURCE_TYPE = choice(*ResourceType)
_PATTERN_TYPE = choice(*PatternType)
_PERMISSION = choice(*Permission)
_NOTE_LENGTH_MAX = 255
_PASSWORD: Schema = text("8 to 1024 printable characters", minLength=8, maxLength=1024)
GRANTS_MAX = 100

ACCESS = answer(
    "Access",
    mode=_MODE,
    version=count("grows with every change of users, tokens, entries and the mode"),
    principal=text("who asks"),
    user=nullable(text("the user that this is, or whose token it is")),
    token_id=nullable(text()),
    is_superuser=boolean("may do everything"),
)
ACCESS_CHANGE = request("AccessChangeIn", {"mode": "required"}, mode=_MODE)

USER = answer(
    "User",
    name=text(),
    is_superuser=boolean(),
    password_count=count("two while one of them is on its way out"),
    token_count=count("how many tokens speak for it: they outlive its password"),
    scram_mechanisms=listing(
        choice(*ScramMechanism), "by which Kafka clients may prove its password"
    ),
)
USERS = answer("Users", total=count("of all that fit"), users=listing(USER, "those of the page"))
USER_CHANGE = request(
    "UserChangeIn",
    {"password": "correct horse battery"},
    password=maybe(_PASSWORD),
    is_superuser=maybe(boolean("absent: as it is; of a new user, no")),
    keep_previous=maybe(boolean("the password before stays good, too, until the next change")),
    revoke_tokens=maybe(boolean("the user's tokens are deleted; absent: they stay")),
    scram=maybe(
        boolean(
            "whether the user has SCRAM credentials, made from 'password'; absent: a new password renews "
            "those that it has"
        )
    ),
)

GRANT = request(
    "Grant",
    resource_type=_RESOURCE_TYPE,
    name=text("of the resource, or what it begins with", minLength=1),
    operations=listing(_OPERATION),
    pattern_type=Optional(_PATTERN_TYPE),
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
TOKEN = answer("Token", **_TOKEN)
TOKENS = answer(
    "Tokens", total=count("of all that fit"), tokens=listing(TOKEN, "those of the page")
)
NEW_TOKEN = request(
    "NewTokenIn",
    {
        "note": "nightly job",
        "lifetime_ms": 86_400_000,
        "grants": [{"resource_type": "TOPIC", "name": "orders", "operations": ["READ"]}],
    },
    note=maybe(text("for people", maxLength=_NOTE_LENGTH_MAX)),
    lifetime_ms=maybe(count("absent: it has no end", least=1)),
    grants=maybe(
        listing(GRANT, "absent: all that its user may do", minItems=1, maxItems=GRANTS_MAX)
    ),
)
TOKEN_MADE = answer("TokenMade", **_TOKEN, token=text("what is to be sent; shown only here"))

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
NEW_ACL = request("NewAclIn", _EXAMPLE_ACL, **_ACL)
NEW_ACLS = request("NewAclsIn", {"data": [_EXAMPLE_ACL]}, data=listing(NEW_ACL, maxItems=1_000))
ACL = answer(
    "KafkaAcl", kind=constant("KafkaAcl"), metadata=ITEM_METADATA, cluster_id=text(), **_ACL
)
ACLS = answer(
    "KafkaAclList", kind=constant("KafkaAclList"), metadata=LIST_METADATA, data=listing(ACL)
)
ACLS_REMOVED = answer("KafkaAclsRemoved", data=listing(ACL))
