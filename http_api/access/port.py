"""The port through which handlers show and change users, tokens, access control entries and the mode."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from milena.model.access import ANY_NAME, AccessMode, PatternType, ScramMechanism
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret
from raft_meta.machine.image import Acl, Grant, ScramCredential, Token, User

UserCheck = Callable[[User | None], None]
"""Raises an error if the caller may not change this user; None stands for a user that is not there yet."""


def unchecked(user: User | None) -> None:
    """Allow a change of any user, because no caller requested it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedToken:
    """A token that a client asks for. With empty ``grants``, it has all rights of its user.

    The token expires after ``lifetime_ms`` (None: never), but at ``expires_ms_max`` at the latest (wall ms; 0: no
    limit).
    """

    note: str
    grants: tuple[Grant, ...]
    lifetime_ms: int | None
    expires_ms_max: int
    parent: str = ""
    """Id of the token that authenticated the request; when it is deleted, this token is too. Empty: no token did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSelection:
    """A filter of access control entries. None in a field: any value.

    With ``is_match``, the filter selects all entries that apply to a resource named ``name``: entries for this name,
    for a prefix of it, and for all names. Source: Kafka's pattern type MATCH.
    """

    principal: str | None = None
    resource_type: str | None = None
    pattern_type: str | None = None
    name: str | None = None
    operation: str | None = None
    permission: str | None = None
    host: str | None = None
    is_match: bool = False

    def fits(self, acl: Acl) -> bool:
        """Return whether an entry passes the filter."""
        return all(
            wanted is None or wanted == said
            for wanted, said in (
                (self.principal, acl.principal),
                (self.resource_type, acl.resource_type),
                (self.pattern_type, acl.pattern_type),
                (self.operation, acl.operation),
                (self.permission, acl.permission),
                (self.host, acl.host),
            )
        ) and self._fits_name(acl)

    def _fits_name(self, acl: Acl) -> bool:
        if self.name is None or self.name == acl.name:
            return True
        if not self.is_match:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == ANY_NAME


class AccessPort(Protocol):
    """The cluster's users, tokens, entries and mode. Reads use this node's image; changes go through the quorum.

    Every change may raise NoQuorumError and FeatureLevelError (nothing was changed), FateUnknownError, and
    InvalidAccessError (a value is invalid).
    """

    async def set_mode(self, mode: AccessMode) -> None:
        """Set whether the cluster asks for credentials and enforces rights.

        Raises:
            LastSuperuserError: no superuser has a password.
        """

    async def alter_quota(
        self, user: str, client_id: str, changes: Mapping[QuotaKey, int | None]
    ) -> None:
        """Set or remove (None) limits of a user, a client id or both; see ``raft_meta.machine.image.Quota``.

        Raises:
            InvalidAccessError: both ``user`` and ``client_id`` are empty, or a limit is invalid.
            AccessLimitError: there would be too many quotas.
        """

    def user(self, name: str) -> User:
        """Return the user.

        Raises:
            UserNotFoundError: there is no user of this name.
        """

    async def put_user(
        self,
        name: str,
        *,
        password: Secret | None,
        is_superuser: bool | None,
        keeps_previous: bool,
        revokes_tokens: bool = False,
        scram: bool | None = None,
        check: UserCheck = unchecked,
    ) -> tuple[User, bool]:
        """Create a user, or change those fields of an existing user that are not None.

        Return the user, and whether it is new. ``keeps_previous``: the previous password stays valid beside the new
        one. ``revokes_tokens``: delete the user's tokens.

        ``scram``: whether the user has SCRAM credentials, which are made from ``password``. None: a new password
        renews those that the user has.

        ``check`` gets the user that is changed. Handlers must not check the user in this node's image alone, because
        the image may be older than the user, or than its rank.

        Raises:
            LastSuperuserError, AccessLimitError, StaleVersionError, TooManyRequestsError: nothing was changed.
        """

    async def alter_scram(
        self,
        name: str,
        *,
        put: Sequence[ScramCredential],
        removed: Collection[ScramMechanism],
        check: UserCheck = unchecked,
    ) -> None:
        """Put SCRAM credentials in the place of those of the same mechanisms, and remove those of other mechanisms.

        The user's passwords and its other credentials stay. If something is put, a missing user is created, without a
        password. ``check``: as for ``put_user``.

        Raises:
            UserNotFoundError: the user has no credential of a mechanism in ``removed``.
            AccessLimitError, StaleVersionError: nothing was changed.
        """

    async def delete_user(self, name: str) -> None:
        """Delete a user, the user's tokens, and the access control entries for the user.

        Raises:
            UserNotFoundError, LastSuperuserError: nothing was changed.
        """

    def tokens_of(self, name: str) -> Sequence[Token]:
        """Return the user's tokens, the oldest first.

        Raises:
            UserNotFoundError: there is no such user.
        """

    async def create_token(self, name: str, new: RequestedToken) -> tuple[Token, Secret]:
        """Create a token of a user. Return the token and its secret, which is not stored and cannot be returned again.

        Raises:
            UserNotFoundError, AccessLimitError: nothing was created.
        """

    async def delete_token(self, name: str, token_id: str) -> None:
        """Delete a token of this user.

        Raises:
            TokenNotFoundError: the user has no token with this id.
        """

    async def acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """Return the entries that pass the filter, sorted. A long search runs in steps, with other requests between."""

    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add entries, all or none. Entries that exist already stay.

        Raises:
            AccessLimitError: the cluster would have too many entries.
        """

    async def remove_acls(self, wanted: Iterable[AclSelection]) -> Sequence[Sequence[Acl]]:
        """Remove the entries that pass a filter; return those of each filter, in order.

        An entry that passes several filters is returned for the first of them.
        """
