"""Callers (authenticated clients) and their rights, and the port through which the API gets them from the node."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from http_api.access.certificates import ClientCertificate
from milena.model.access import ANONYMOUS, CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import TooManyRequestsError
from raft_meta.machine.access.authorization import Permissions
from raft_meta.machine.image import Grant, ScramCredential

OPEN = -2
"""The version of a cluster in which every caller may do everything."""
UNCERTAIN = -1
"""The version while the node's access data is too old to rely on; the node then refuses all callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A client with valid credentials, and its rights at one version of the cluster's access data."""

    principal: str
    version: int
    permissions: Permissions | None = None
    """None: the caller may do everything."""
    user: str | None = None
    """The user that authenticated, or the owner of the token that was sent."""
    user_index: int = 0
    groups: tuple[str, ...] = ()
    """The principals of the groups in the token of an external issuer."""
    token_id: str | None = None
    grants: tuple[Grant, ...] = ()
    """The grants of the token; empty: the token has all rights of its user."""
    is_superuser: bool = False
    has_password: bool = False
    """Whether the caller authenticated with the user's password, and not with a certificate or token."""
    is_enforced: bool = True
    """Whether requests without the needed right are refused. If False, the refusal is only logged."""
    host: str = ""
    """The address of the caller if its rights depend on it; empty: they hold from any address."""
    expires_ms: int = 0
    """When the credentials expire (wall ms); 0: never."""
    keys_version: int = 0
    """The version of the external issuer's keys that verified the token; 0: no external issuer signed it."""

    @property
    def known_principal(self) -> str:
        """The principal; empty if the cluster asked for no credentials."""
        return "" if self.version == OPEN else self.principal

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the caller may perform the operation on the resource of this type and name."""
        return self.permissions is None or self.permissions.may(operation, kind, name)

    def may_create(self, topic: str) -> bool:
        """Return whether the caller may create a topic of this name."""
        return self.may(Operation.CREATE, ResourceType.TOPIC, topic) or self.may(
            Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def may_with_all(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the caller may perform the operation on all present and future resources of this type."""
        return self.permissions is None or self.permissions.may_with_all(operation, kind)

    def may_with_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the caller may perform the operation on at least one resource of this type."""
        return self.permissions is None or self.permissions.may_with_some(operation, kind)


ANYBODY = Caller(principal=ANONYMOUS, version=OPEN, is_superuser=True)
"""The caller of a cluster that asks for no credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VouchedCaller:
    """A caller that another node has authenticated, without its credentials. Fields as in ``Caller``."""

    principal: str
    """Empty: that node asked for no credentials."""
    user: str | None = None
    user_index: int = 0
    groups: tuple[str, ...] = ()
    token_id: str | None = None
    expires_ms: int = 0

    @classmethod
    def of(cls, caller: Caller) -> "VouchedCaller":
        """Return what another node needs to know of a caller."""
        return cls(
            principal=caller.known_principal,
            user=caller.user,
            user_index=caller.user_index,
            groups=caller.groups,
            token_id=caller.token_id,
            expires_ms=caller.expires_ms,
        )


class ScramLogin(NamedTuple):
    """The credentials of a client that has proved its password by SCRAM. They are good while the user has them."""

    user: str
    user_index: int
    """``created_index`` of the user."""
    credential: ScramCredential


class CallersPort(Protocol):
    """Authenticates callers. Belongs to the event loop."""

    @property
    def version(self) -> int:
        """The version of the cluster's access data; or ``OPEN`` (no credentials) or ``UNCERTAIN`` (all are refused)."""

    def holds(self, caller: Caller) -> bool:
        """Return whether the caller's rights and credentials are still valid, without a new check."""

    def known(
        self,
        authorization: str | None,
        host: str,
        certificate: ClientCertificate | None = None,
        *,
        is_under_way: bool = False,
    ) -> Caller | None:
        """Authenticate a caller if that needs no wait; None: await ``identify`` instead.

        Args:
            authorization: the ``Authorization`` header; None without one.
            host: the client's address.
            certificate: the connection's certificate, which is used if there is no header.
            is_under_way: this request's password was checked already. Check it again only if it was changed since.

        Raises:
            UnauthenticatedError: the credentials are wrong or missing.
            TooManyRequestsError: too many wrong signatures came from the address.
            NotReadyError: this node cannot authenticate callers.
        """

    def vouched(self, vouched: VouchedCaller, host: str) -> Caller:
        """Return the rights that a caller has here, which another node has authenticated.

        Raises:
            UnauthenticatedError: its user or token does not exist here, or it has expired.
            NotReadyError: this node cannot tell now what callers may do.
        """

    def proved(self, login: ScramLogin, host: str) -> Caller:
        """Return the rights of a client that has proved its password by SCRAM.

        Raises:
            UnauthenticatedError: the user has other credentials now, or none.
            NotReadyError: this node cannot tell now what callers may do.
        """

    def turned_away(self, host: str) -> TooManyRequestsError | None:
        """Return the error with which unchecked passwords from this address are refused now; None: they are checked."""

    async def identify(
        self, authorization: str | None, host: str, certificate: ClientCertificate | None = None
    ) -> Caller:
        """Authenticate a caller as ``known`` does, and wait for the check of a password if necessary.

        Raises:
            UnauthenticatedError: the credentials are wrong or missing.
            TooManyRequestsError: too many passwords wait to be checked, or too many were wrong.
            NotReadyError: this node cannot authenticate callers.
        """
