"""Value classes for access control, and functions that parse them from the responses of nodes (pure).

Types, operations and permissions are strings: values of the enums in ``milena.model.access``, or of a later release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from milena.fields import AnswerFields, Json
from milena.model.access import ANY_HOST, PatternType, Permission
from milena.model.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessView:
    """The mode of the cluster's access control, and the user that this client authenticated as.

    ``user`` and ``token_id`` are None for a client without a user or a token.
    """

    mode: str
    version: int
    principal: str
    user: str | None
    token_id: str | None
    is_superuser: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """A user. ``password_count`` is 0 or 1, or 2 while a former password is still valid.

    ``scram_mechanisms``: how Kafka clients may prove the password; values of ``milena.model.access.ScramMechanism``, or
    of a later release. Nodes of earlier releases show none.
    """

    name: str
    is_superuser: bool
    password_count: int
    token_count: int
    scram_mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """The limits of a user, a client id, or both. None means any; ``*`` means each name without a quota of its own.

    ``limits`` has the keys of ``milena.model.quotas.QuotaKey``, or those of a later release.
    """

    user: str | None
    client_id: str | None
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """Operations that a token permits on the resources of a name pattern."""

    resource_type: str
    name: str
    operations: tuple[str, ...]
    pattern_type: str = PatternType.LITERAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token without its secret. Without ``grants``, it permits all that its user may do.

    Times are wall ms; ``expires_ms`` None means that the token does not expire.
    """

    token_id: str
    user: str
    note: str
    grants: tuple[TokenGrant, ...]
    created_ms: int
    expires_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new token with its secret. Nodes store only a hash, so they cannot return the secret again."""

    view: TokenView
    token: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """An access control entry: a principal may, or may not, perform one operation on the resources of a pattern."""

    principal: str
    resource_type: str
    resource_name: str
    operation: str
    permission: str = Permission.ALLOW
    pattern_type: str = PatternType.LITERAL
    host: str = ANY_HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of access control entries. An entry must match every field that is set; None matches any value."""

    principal: str | None = None
    resource_type: str | None = None
    resource_name: str | None = None
    operation: str | None = None
    permission: str | None = None
    pattern_type: str | None = None
    host: str | None = None

    def params(self) -> dict[str, str]:
        """Return the query parameters of the filter."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None}


def access_view(answer: Json) -> AccessView:
    """Return the body of ``GET /access`` as a value."""
    found = AnswerFields(answer, "access")
    return AccessView(
        mode=found.text("mode"),
        version=found.integer("version"),
        principal=found.text("principal"),
        user=found.optional_text("user"),
        token_id=found.optional_text("token_id"),
        is_superuser=found.boolean("is_superuser"),
    )


def user_view(found: AnswerFields) -> UserView:
    """Return a user from a row of a list, or from a response with one user."""
    return UserView(
        name=found.text("name"),
        is_superuser=found.boolean("is_superuser"),
        password_count=found.integer("password_count"),
        token_count=found.integer("token_count"),
        scram_mechanisms=found.strings("scram_mechanisms"),
    )


def quota_view(found: AnswerFields) -> QuotaView:
    """Return a quota from a row of a list, or from a response with one quota."""
    return QuotaView(
        user=found.optional_text("user"),
        client_id=found.optional_text("client_id"),
        limits=found.numbers("limits"),
    )


def token_view(found: AnswerFields) -> TokenView:
    """Return a token from a row of a list."""
    return TokenView(
        token_id=found.text("token_id"),
        user=found.text("user"),
        note=found.text("note", default=""),
        grants=tuple(map(_grant, found.objects("grants"))),
        created_ms=found.integer("created_ms"),
        expires_ms=found.optional_integer("expires_ms"),
    )


def new_token(found: AnswerFields) -> NewToken:
    """Return a new token from the one response that has its secret."""
    return NewToken(view=token_view(found), token=Secret(found.text("token")))


def acl_entries(answer: Json) -> list[AclEntry]:
    """Return the entries of a v3 list, sorted by principal, resource, operation and the other fields."""
    entries = map(_acl_entry, AnswerFields(answer, "acls").objects("data"))
    return sorted(entries, key=lambda e: tuple(getattr(e, field.name) for field in fields(e)))


def grant_json(grant: TokenGrant) -> dict[str, Json]:
    """Return a grant as requests and responses have it."""
    return {
        "resource_type": grant.resource_type,
        "pattern_type": grant.pattern_type,
        "name": grant.name,
        "operations": list(grant.operations),
    }


def acl_json(entry: AclEntry) -> dict[str, Json]:
    """Return an entry as requests and responses have it."""
    return {
        "resource_type": entry.resource_type,
        "resource_name": entry.resource_name,
        "pattern_type": entry.pattern_type,
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission": entry.permission,
    }


def _grant(found: AnswerFields) -> TokenGrant:
    return TokenGrant(
        resource_type=found.text("resource_type"),
        pattern_type=found.text("pattern_type"),
        name=found.text("name"),
        operations=found.strings("operations"),
    )


def _acl_entry(found: AnswerFields) -> AclEntry:
    return AclEntry(
        principal=found.text("principal"),
        resource_type=found.text("resource_type"),
        resource_name=found.text("resource_name"),
        operation=found.text("operation"),
        permission=found.text("permission"),
        pattern_type=found.text("pattern_type"),
        host=found.text("host"),
    )
