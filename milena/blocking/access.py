"""Access control for blocking programs: ``client.admin.access`` of ``milena.sync``."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol, TypeVar

from milena.cluster.access_views import (
    AccessView,
    AclEntry,
    AclFilter,
    NewToken,
    QuotaView,
    TokenGrant,
    TokenView,
    UserView,
)
from milena.cluster.admin import AdminClient
from milena.model.access import AccessMode
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret

T = TypeVar("T")


class RunsAdmin(Protocol):
    """Run one piece of administration on the client's own thread."""

    def __call__(self, work: Callable[[AdminClient], Coroutine[object, object, T]], /) -> T:
        """Return the result of ``work``, or raise its error."""


class AccessAdmin:
    """The blocking ``milena.cluster.access_admin.AccessAdmin``; parameters and errors are the same."""

    def __init__(self, call: RunsAdmin) -> None:
        self._call = call

    def state(self) -> AccessView:
        """Return the mode, and the user that the cluster takes this client for."""
        return self._call(lambda admin: admin.access.state())

    def set_mode(self, mode: AccessMode) -> AccessView:
        """Set how strictly the cluster authenticates and authorizes its callers."""
        return self._call(lambda admin: admin.access.set_mode(mode))

    def users(self) -> list[UserView]:
        """Return all users, in order of their names."""
        return self._call(lambda admin: admin.access.users())

    def user(self, name: str) -> UserView:
        """Return one user."""
        return self._call(lambda admin: admin.access.user(name))

    def put_user(
        self,
        name: str,
        *,
        password: Secret | None = None,
        is_superuser: bool | None = None,
        keep_previous: bool = False,
        revoke_tokens: bool = False,
    ) -> UserView:
        """Create a user, or change an existing one; None leaves a property unchanged."""
        return self._call(
            lambda admin: admin.access.put_user(
                name,
                password=password,
                is_superuser=is_superuser,
                keep_previous=keep_previous,
                revoke_tokens=revoke_tokens,
            )
        )

    def delete_user(self, name: str) -> None:
        """Delete a user, with the user's tokens and entries."""
        self._call(lambda admin: admin.access.delete_user(name))

    def tokens(self, user: str) -> list[TokenView]:
        """Return a user's tokens, the oldest first."""
        return self._call(lambda admin: admin.access.tokens(user))

    def create_token(
        self,
        user: str,
        *,
        note: str | None = None,
        lifetime_ms: int | None = None,
        grants: Sequence[TokenGrant] = (),
    ) -> NewToken:
        """Create a token that acts for a user. Only this response has its secret."""
        return self._call(
            lambda admin: admin.access.create_token(
                user, note=note, lifetime_ms=lifetime_ms, grants=grants
            )
        )

    def delete_token(self, user: str, token_id: str) -> None:
        """Delete a token. It stops working at once."""
        self._call(lambda admin: admin.access.delete_token(user, token_id))

    def quotas(self) -> list[QuotaView]:
        """Return all quotas, by user and client id."""
        return self._call(lambda admin: admin.access.quotas())

    def alter_quota(
        self,
        limits: Mapping[QuotaKey, int | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
    ) -> QuotaView:
        """Limit a user, the programs of a client id, or both; return all limits that apply now."""
        return self._call(
            lambda admin: admin.access.alter_quota(limits, user=user, client_id=client_id)
        )

    def delete_quota(self, *, user: str | None = None, client_id: str | None = None) -> None:
        """Delete a quota."""
        self._call(lambda admin: admin.access.delete_quota(user=user, client_id=client_id))

    def acls(self, wanted: AclFilter | None = None) -> list[AclEntry]:
        """Return the entries that match a filter, sorted; None: all."""
        return self._call(lambda admin: admin.access.acls(wanted))

    def add_acls(self, entries: Sequence[AclEntry]) -> None:
        """Add entries, all or none."""
        self._call(lambda admin: admin.access.add_acls(entries))

    def remove_acls(self, wanted: AclFilter) -> list[AclEntry]:
        """Remove the entries that match a filter; return them, sorted."""
        return self._call(lambda admin: admin.access.remove_acls(wanted))
