"""What handlers need of a node to show and change users, tokens, access control entries and the mode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from milena.model.access import ANY_NAME, AccessMode, PatternType
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret
from raft_meta.machine.image import Acl, Grant, Token, User


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedToken:
    """A token as a client asks for it. ``grants`` empty: whatever its user may.

    ``lifetime_ms`` None: it has no end, but for ``expires_ms_max`` (wall ms; 0: none), which it never outlives.
    """

    note: str
    grants: tuple[Grant, ...]
    lifetime_ms: int | None
    expires_ms_max: int
    parent: str = ""
    """The token that asks for it, with which it is deleted; empty: another credential asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSelection:
    """Which entries are meant; None: whatever they say there.

    ``is_match``: of the resource, those that would be looked at for ``name``: of this name, of a prefix of it, and
    of all names. Source: Kafka's pattern type MATCH.
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
        """Whether an entry is meant."""
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
    """Access as the cluster stores it. Looking is at this node's image.

    Every change may raise NoQuorumError and FeatureLevelError, with nothing changed, FateUnknownError, and
    InvalidAccessError for what makes no sense.
    """

    async def set_mode(self, mode: AccessMode) -> None:
        """Let the cluster ask so much of those who call it.

        Raises:
            LastSuperuserError: there is none with a password.
        """

    async def alter_quota(
        self, user: str, client_id: str, changes: Mapping[QuotaKey, int | None]
    ) -> None:
        """Bound what somebody may take, or no longer (None); see ``raft_meta.machine.image.Quota``.

        Raises:
            InvalidAccessError: it binds nobody, or by a number that is none.
            AccessLimitError: there would be too many.
        """

    def user(self, name: str) -> User:
        """The user.

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
        """Make a user, or change what is given of it; returns it, and whether it is new.

        ``keeps_previous``: the password that it had stays good beside the new one. ``revokes_tokens``: its tokens go.

        Raises:
            LastSuperuserError, AccessLimitError, StaleVersionError, TooManyRequestsError: nothing was changed.
        """

    async def delete_user(self, name: str) -> None:
        """Forget a user, its tokens and the entries that name it.

        Raises:
            UserNotFoundError, LastSuperuserError: nothing was changed.
        """

    def tokens_of(self, name: str) -> Sequence[Token]:
        """The user's tokens, the oldest first.

        Raises:
            UserNotFoundError: there is no such user.
        """

    async def create_token(self, name: str, new: RequestedToken) -> tuple[Token, Secret]:
        """A token of a user, and what is to be sent of it, which nobody can tell again.

        Raises:
            UserNotFoundError, AccessLimitError: nothing was made.
        """

    async def delete_token(self, name: str, token_id: str) -> None:
        """Forget a token of this user.

        Raises:
            TokenNotFoundError: the user has none of this id.
        """

    async def acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """The entries that fit, in order; others get their turn while many are looked through."""

    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add entries, all or none; those that are there already stay.

        Raises:
            AccessLimitError: there would be too many.
        """

    async def remove_acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """Remove the entries that fit; returns them."""
