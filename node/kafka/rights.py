"""The rights that each API needs, and those of the caller of one request.

Each API declares a row (``ApiAccess``), in the words of ``docs/security.md``. Without one it cannot be registered. The
handler asks for each resource in the request, because one request names many: refused ones have an error code of their
own, and the others are served.
"""

import logging
from dataclasses import dataclass

from http_api.access.callers import Caller
from http_api.access.rights import CallerRights
from milena.model.access import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType
from milena.model.errors import ForbiddenError
from node.kafka.identity import ConnectionIdentity

logger = logging.getLogger(__name__)

Right = tuple[Operation, ResourceType]


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The rights that an API needs.

    Attributes:
        is_public: clients may send it before they have authenticated.
        needs: the rights to the resources that the request names; each resource may be refused by itself.
        shows: the rights without which a resource is left out of the response.
        is_strict: refuse also in the mode ``optional``, because a change of access is still in force afterwards.
    """

    is_public: bool = False
    needs: frozenset[Right] = frozenset()
    shows: frozenset[Right] = frozenset()
    is_strict: bool = False

    def __str__(self) -> str:
        words = ["public"] if self.is_public else []
        words += sorted(f"{operation} {kind}" for operation, kind in self.needs)
        words += sorted(f"filtered by {operation} {kind}" for operation, kind in self.shows)
        words += ["strict"] if self.is_strict else []
        return ", ".join(words) or "known"


PUBLIC = ApiAccess(is_public=True)
KNOWN = ApiAccess()
"""Every client that has authenticated may send it."""


def _right(words: str) -> Right:
    operation, kind = words.split(" ")
    return Operation(operation), ResourceType(kind)


def needs(*rights: str, shows: str | None = None, is_strict: bool = False) -> ApiAccess:
    """Return the row of an API that needs these rights, such as ``READ TOPIC``."""
    return ApiAccess(
        needs=frozenset(map(_right, rights)),
        shows=frozenset() if shows is None else frozenset({_right(shows)}),
        is_strict=is_strict,
    )


# -- authorised operations -------------------------------------------------------------------------

NUMBERS = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""Kafka's numbers of operations. Source: KIP-430."""
_OPERATIONS = {kind: found - {Operation.ALL} for kind, found in OPERATIONS_OF.items()}
_ALL = {
    kind: frozenset(NUMBERS[operation] for operation in operations)
    for kind, operations in _OPERATIONS.items()
}


def bits_of(numbers: frozenset[int]) -> int:
    """Return a set of operations as the bit field that messages have."""
    return sum(1 << number for number in numbers)


class KafkaRights(CallerRights):
    """The rights of the caller of one Kafka request."""

    __slots__ = ("_access", "_api", "_identity", "_refusals")

    def __init__(self, identity: ConnectionIdentity, access: ApiAccess, api: str) -> None:
        """``access``: the row of the API with the name ``api``."""
        super().__init__()
        self._caller = identity.last_caller
        self._identity = identity
        self._refusals = identity.refusals
        self._access = access
        self._api = api

    @property
    def caller(self) -> Caller:
        """The caller with its current rights, also after a wait in the handler.

        Raises:
            UnauthenticatedError, NotReadyError: the credentials are no longer valid.
        """
        self._caller = self._identity.present()
        return self._caller

    def permits(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the caller may do this, and count the refusal if not."""
        assert (operation, kind) in self._access.needs, f"{self._api} has no row {operation} {kind}"
        try:
            self.authorize(operation, kind, (name,))
        except ForbiddenError:
            return False
        return True

    def authorize_cluster(self, operation: Operation) -> None:
        """Require that the caller may do this with the cluster.

        Raises:
            ForbiddenError: the caller may not.
        """
        self.authorize(operation, ResourceType.CLUSTER, (CLUSTER_NAME,))

    def permits_cluster(self, operation: Operation) -> bool:
        """Return whether the caller may do this with the cluster, and count the refusal if not."""
        return self.permits(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, kind: ResourceType, name: str) -> frozenset[int]:
        """Return Kafka's numbers of the operations that the caller may perform on a resource."""
        caller = self.caller
        if not caller.is_enforced or caller.permissions is None:
            return _ALL[kind]
        return frozenset(
            NUMBERS[operation]
            for operation in _OPERATIONS[kind]
            if caller.may(operation, kind, name)
        )

    def _refuse(self, why: str, kind: ResourceType) -> None:
        caller = self._caller
        if not caller.is_enforced and not self._access.is_strict:
            logger.warning(
                "would be refused: %s api=%s remote=%s", why, self._api, self._identity.host
            )
            return
        self._refusals.add(caller.known_principal, self._identity.host, why)
        raise ForbiddenError(why, resource_type=kind)
