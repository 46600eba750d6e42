"""Value classes for access control, and functions that parse them from the responses of nodes (pure).

Types, operations and permissions are strings: values of the enums in ``milena.model.access``, or of a later release.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

from milena.fields import AnswerFields, Json, given
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
    note: str = ""
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
        return given(**asdict(self))


def new_token(found: AnswerFields) -> NewToken:
    """Return a new token from the one response that has its secret."""
    return NewToken(view=found.read(TokenView), token=Secret(found.text("token")))


def acl_entries(answer: Json) -> list[AclEntry]:
    """Return the entries of a v3 list, sorted by principal, resource, operation and the other fields."""
    return sorted(map(_acl_entry, AnswerFields(answer, "acls").objects("data")), key=astuple)


def _acl_entry(row: AnswerFields) -> AclEntry:
    # The defaults are for entries that are added. An entry of a response names everything.
    return row.read(
        AclEntry,
        permission=row.text("permission"),
        pattern_type=row.text("pattern_type"),
        host=row.text("host"),
    )


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
