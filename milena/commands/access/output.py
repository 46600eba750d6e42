"""Format access control for the command line (pure)."""

from collections.abc import Iterable
from datetime import UTC, datetime

from milena.cluster.access_views import (
    AccessView,
    AclEntry,
    QuotaView,
    TokenGrant,
    TokenView,
    UserView,
    acl_json,
)
from milena.commands.output import table
from milena.fields import Json
from milena.model.access import ANY_HOST, CLUSTER_NAME, PatternType


def access_text(view: AccessView) -> str:
    """Return the mode, and the user of the client."""
    rank = ", a superuser" if view.is_superuser else ""
    token = "" if view.token_id is None else f", by token {view.token_id}"
    return f"mode {view.mode}\nyou are {view.principal}{rank}{token}"


def users_text(users: Iterable[UserView]) -> str:
    """Return one line per user."""
    return table(
        ("USER", "SUPERUSER", "PASSWORDS", "TOKENS", "SCRAM"),
        [
            (
                u.name,
                "yes" if u.is_superuser else "no",
                u.password_count,
                u.token_count,
                ", ".join(one.removeprefix("SCRAM-") for one in u.scram_mechanisms) or "no",
            )
            for u in users
        ],
    )


def user_text(user: UserView) -> str:
    """Return one user as a sentence."""
    rank = "superuser" if user.is_superuser else "user"
    parts = [_count(user.password_count, "password"), _count(user.token_count, "token")]
    return f"{rank} {user.name}: {', '.join([*parts, *user.scram_mechanisms])}"


def quotas_text(quotas: Iterable[QuotaView]) -> str:
    """Return one line per limit."""
    return table(
        ("USER", "CLIENT ID", "BOUND", "AMOUNT"),
        [
            (q.user or "any", q.client_id or "any", key, q.limits[key])
            for q in quotas
            for key in sorted(q.limits)
        ],
    )


def quota_text(quota: QuotaView) -> str:
    """Return one quota as a sentence."""
    bounds = [f"{key} {quota.limits[key]}" for key in sorted(quota.limits)]
    return f"quota of {quota_owner(quota.user, quota.client_id)}: {', '.join(bounds) or 'nothing'}"


def quota_owner(user: str | None, client_id: str | None) -> str:
    """Return the owner of a quota in words."""
    parts = (("user", user), ("client id", client_id))
    return ", ".join(f"{what} {name}" for what, name in parts if name is not None)


def tokens_text(tokens: Iterable[TokenView]) -> str:
    """Return one line per token."""
    return table(
        ("TOKEN", "NOTE", "GRANTS", "CREATED", "EXPIRES"),
        [
            (
                token.token_id,
                token.note or None,
                " ".join(map(grant_text, token.grants)) or "all",
                _time(token.created_ms),
                "never" if token.expires_ms is None else _time(token.expires_ms),
            )
            for token in tokens
        ],
    )


def token_text(token: TokenView) -> str:
    """Return a new token as a sentence, without its secret."""
    end = "for good" if token.expires_ms is None else f"until {_time(token.expires_ms)}"
    return f"token {token.token_id} of {token.user}, {end}"


def grant_text(grant: TokenGrant) -> str:
    """Return a grant in the form that ``--grant`` takes."""
    operations = ",".join(grant.operations)
    if grant.name == CLUSTER_NAME:
        return f"{operations}:{grant.resource_type}"
    return f"{operations}:{grant.resource_type}:{_pattern(grant.name, grant.pattern_type)}"


def acls_text(entries: Iterable[AclEntry]) -> str:
    """Return one line per entry."""
    return table(
        ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"),
        [
            (
                e.principal,
                e.permission,
                e.operation,
                e.resource_type,
                e.resource_name,
                e.pattern_type,
                e.host,
            )
            for e in entries
        ],
    )


def removal_json(entries: Iterable[AclEntry], *, dry_run: bool) -> dict[str, Json]:
    """Return the entries that were, or would be, removed."""
    return {"dry_run": dry_run, "acls": [acl_json(entry) for entry in entries]}


def acl_text(entry: AclEntry) -> str:
    """Return an entry as a sentence; a prefix ends in ``*``."""
    name = _pattern(entry.resource_name, entry.pattern_type)
    place = "any host" if entry.host == ANY_HOST else f"host {entry.host}"
    return (
        f"{entry.permission} {entry.principal} {entry.operation} {entry.resource_type} {name} "
        f"from {place}"
    )


def _pattern(name: str, pattern_type: str) -> str:
    return f"{name}*" if pattern_type == PatternType.PREFIXED else name


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        # A time beyond the year 9999 must not prevent the token from being shown.
        return f"{wall_ms} ms"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
