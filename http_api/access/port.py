"""The port through which handlers show and change users, tokens, access control entries and the mode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from milena.model.access import ANY_NAME, AccessMode, PatternType
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret
from raft_meta.machine.image import Acl, Grant, Token, User


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedToken:
    """A token that a client asks for. Empty ``grants``: all rights of its user.

    ``lifetime_ms`` None: no end of its own. In any case it ends at ``expires_ms_max`` (wall ms; 0: none).
    """

    note: str
    grants: tuple[Grant, ...]
    lifetime_ms: int | None
    expires_ms_max: int
    parent: str = ""
    """The token that asks for this one; both are deleted together. Empty: another credential asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSelection:
    """A filter of entries. None in a field: any value.

    ``is_match``: for ``name`` it takes all entries that apply to a resource of this name: by the name itself, by a
    prefix of it, and for all names. Source: Kafka's pattern type MATCH.
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
    """Access as the cluster stores it. Reads use this node's image.

    Every change may raise these errors: NoQuorumError and FeatureLevelError (nothing changed), FateUnknownError, and
    InvalidAccessError for a change that makes no sense.
    """

    async def set_mode(self, mode: AccessMode) -> None:
        """Set whether the cluster asks for credentials and enforces rights.

        Raises:
            LastSuperuserError: no superuser has a password.
        """

    async def alter_quota(
        self, user: str, client_id: str, changes: Mapping[QuotaKey, int | None]
    ) -> None:
        """Set or remove (None) bounds of a user and client id; see ``raft_meta.machine.image.Quota``.

        Raises:
            InvalidAccessError: the entity is empty, or a bound is invalid.
            AccessLimitError: there would be too many quotas.
        """

    def user(self, name: str) -> User:
        """Return the user.

        Raises:
            UserNotFoundError: there is none.
        """

    async def put_user(
        self,
        name: str,
        *,
        password: Secret | None,
        is_superuser: bool | None,
        keeps_previous: bool,
        revokes_tokens: bool = False,
    ) -> tuple[User, bool]:
        """Create a user, or change the given fields of one. Return it, and whether it is new.

        ``keeps_previous``: the previous password stays valid together with the new one. ``revokes_tokens``: its tokens
        are deleted.

        Raises:
            LastSuperuserError, AccessLimitError, StaleVersionError, TooManyRequestsError: nothing was changed.
        """

    async def delete_user(self, name: str) -> None:
        """Delete a user, its tokens and the entries that name it.

        Raises:
            UserNotFoundError, LastSuperuserError: nothing was changed.
        """

    def tokens_of(self, name: str) -> Sequence[Token]:
        """Return the user's tokens, the oldest first.

        Raises:
            UserNotFoundError: there is no such user.
        """

    async def create_token(self, name: str, new: RequestedToken) -> tuple[Token, Secret]:
        """Create a token of a user. Return it and its secret, which cannot be read again.

        Raises:
            UserNotFoundError, AccessLimitError: nothing was created.
        """

    async def delete_token(self, name: str, token_id: str) -> None:
        """Delete a token of this user.

        Raises:
            TokenNotFoundError: the user has none with this id.
        """

    async def acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """Return the entries that pass the filter, in order. A long search yields to other requests."""

    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add entries, all or none. Entries that exist already stay.

        Raises:
            AccessLimitError: there would be too many.
        """

    async def remove_acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """Remove the entries that pass the filter, and return them."""
