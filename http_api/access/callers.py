"""Who calls, and what they may do: as handlers and the quick lane ask it, and as a node answers it."""

from dataclasses import dataclass
from typing import Protocol

from http_api.access.certificates import ClientCertificate
from milena.model.access import ANONYMOUS, CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import TooManyRequestsError
from raft_meta.machine.access.authorization import Permissions
from raft_meta.machine.image import Grant

OPEN = -2
"""The version of a cluster in which everybody may do everything."""
UNCERTAIN = -1
"""The version of a node that has not heard for too long what is asked of callers: it lets nobody in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody whose credentials are good, at one version of what the cluster knows of access."""

    principal: str
    version: int
    permissions: Permissions | None = None
    """None: it may do everything."""
    user: str | None = None
    """The user that it is, or whose token it brought."""
    user_index: int = 0
    token_id: str | None = None
    grants: tuple[Grant, ...] = ()
    """Of the token; empty: whatever the user may."""
    is_superuser: bool = False
    has_password: bool = False
    """It brought the user's password, and no certificate or token."""
    is_enforced: bool = True
    """Otherwise refusals are only logged."""
    host: str = ""
    """From where it calls, where that matters; empty: it is the same caller from everywhere."""
    expires_ms: int = 0
    """When its credentials are good no more, by the wall clock; 0: never."""
    keys_version: int = 0
    """Of the issuer's keys by which its token is good; 0: it brought none of an issuer."""

    @property
    def known_principal(self) -> str:
        """Who it is; empty where nobody was asked."""
        return "" if self.version == OPEN else self.principal

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether something allows it to do this to the resource of this name."""
        return self.permissions is None or self.permissions.may(operation, kind, name)

    def may_create(self, topic: str) -> bool:
        """Whether it may make a topic of this name."""
        return self.may(Operation.CREATE, ResourceType.TOPIC, topic) or self.may(
            Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def may_with_all(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether it may do this to whatever there is of this type, and will be."""
        return self.permissions is None or self.permissions.may_with_all(operation, kind)

    def may_with_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether it may do this to something of this type."""
        return self.permissions is None or self.permissions.may_with_some(operation, kind)


ANYBODY = Caller(principal=ANONYMOUS, version=OPEN, is_superuser=True)
"""Who calls a cluster that asks nothing."""


class CallersPort(Protocol):
    """Finds out who calls. Belongs to the event loop."""

    @property
    def version(self) -> int:
        """Of what the cluster knows of access; ``OPEN`` or ``UNCERTAIN`` where nothing is asked, or nobody let in."""

    def holds(self, caller: Caller) -> bool:
        """Whether what was found out about a caller still holds."""

    def known(
        self,
        authorization: str | None,
        host: str,
        certificate: ClientCertificate | None = None,
        *,
        is_under_way: bool = False,
    ) -> Caller | None:
        """Who comes with this header from this address, if nothing must be waited for; None: ``identify`` tells.

        ``certificate`` is the connection's, and counts where there is no header. ``is_under_way``: the request has
        shown its password already, so the password need not be looked at again unless it was changed.

        Raises:
            UnauthenticatedError: nobody does.
            TooManyRequestsError: too many wrong signatures came from the address.
            NotReadyError: this node cannot tell.
        """

    def turned_away(self, host: str) -> TooManyRequestsError | None:
        """Why no password from this address is looked at now that is not known to be good; None: it would be."""

    async def identify(
        self, authorization: str | None, host: str, certificate: ClientCertificate | None = None
    ) -> Caller:
        """The same, whatever it takes.

        Raises:
            UnauthenticatedError: nobody does.
            TooManyRequestsError: too many passwords are waiting to be looked at, or too many were wrong.
            NotReadyError: this node cannot tell.
        """
