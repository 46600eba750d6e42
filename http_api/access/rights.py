"""Check a caller's rights: to the resource in the path before the body is read, to other resources in handlers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web

from http_api.access import on_behalf
from http_api.access.callers import ANYBODY, Caller, CallersPort
from http_api.access.certificates import ClientCertificate
from http_api.access.hosts import plain_host
from http_api.access.needs import ALL_TOPICS, Access
from milena.model.access import CLUSTER_NAME, Operation, ResourceType, allowing_command
from milena.model.errors import ForbiddenError, UnauthenticatedError

_log = logging.getLogger("http_api.access")
_audit_log = logging.getLogger("http_api.audit")

HEADER_KEPT_MAX = 1024
"""The longest ``Authorization`` header that a connection remembers. All connections together keep 10 MB at most."""


def everything(_: str) -> bool:
    """Return True; the result of ``Rights.seen`` for a caller that may see every resource."""
    return True


class CallerRights(ABC):
    """The rights of one request's caller, whatever interface the request came by."""

    __slots__ = ("_caller", "has_asked")

    def __init__(self) -> None:
        self._caller: Caller = ANYBODY
        self.has_asked = False
        """Whether the handler has checked rights to resources in the request."""

    @property
    @abstractmethod
    def caller(self) -> Caller:
        """The caller with its current rights.

        Raises:
            UnauthenticatedError, NotReadyError: the credentials are no longer valid.
        """

    @property
    def known_principal(self) -> str:
        """The principal of the last authentication; empty if the cluster requires no credentials, or before it."""
        return self._caller.known_principal

    def authorize(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> None:
        """Require that the caller may perform the operation on all of these resources.

        Raises:
            ForbiddenError: the caller may not; the message names the first resource that is forbidden.
        """
        self.has_asked = True
        for name in names:
            self._require(self.caller.may(operation, kind, name), operation, kind, name)

    def authorize_unnamed(
        self, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> None:
        """Require the same as ``authorize``, for names that the caller has not sent and must not learn from the error.

        Raises:
            ForbiddenError: the caller may not; the message has no name.
        """
        self.has_asked = True
        may = all(self.caller.may(operation, kind, name) for name in names)
        self._require(may, operation, kind, None, shown="of each name that this is about")

    def authorize_creation(self, topic: str) -> None:
        """Require that the caller may create a topic of this name.

        Raises:
            ForbiddenError: the caller may not.
        """
        self.has_asked = True
        may = self.caller.may_create(topic)
        self._require(may, Operation.CREATE, ResourceType.TOPIC, topic)

    def authorize_all(self, operation: Operation, kind: ResourceType) -> None:
        """Require that the caller may perform the operation on all present and future resources of this type.

        Raises:
            ForbiddenError: the caller may not.
        """
        self.has_asked = True
        self._require(self.caller.may_with_all(operation, kind), operation, kind, "*")

    def authorize_subscription(self, topics: Iterable[str], pattern: str | None) -> None:
        """Require that the caller may read these topics; with a pattern, all topics.

        Raises:
            ForbiddenError: the caller may not.
        """
        self.authorize(Operation.READ, ResourceType.TOPIC, topics)
        if pattern:
            self.authorize_all(Operation.READ, ResourceType.TOPIC)

    def authorize_producer(self, name: str | None) -> None:
        """Require that the caller may use the producer of this name; None: a producer without a name.

        Source: Kafka's rules for InitProducerId.

        Raises:
            ForbiddenError: the caller may not.
        """
        if name is not None:
            self.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, [name])
            return
        self.has_asked = True
        may = _may_have_nameless_producer(self.caller)
        # The right to write to any topic is enough. So the error mentions that right, and not one to the cluster.
        self._require(may, Operation.WRITE, ResourceType.TOPIC, None, shown="of any name")

    def may_write_as(self, name: str | None, owner: str) -> bool:
        """Return whether the caller may write with a producer id of this name and owner; empty owner: anyone's."""
        self.has_asked = True
        caller = self.caller
        if caller.is_superuser:
            return True
        if owner not in ("", caller.principal):
            return False
        if name is not None:
            return caller.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        return _may_have_nameless_producer(caller)

    def refuse_producer(self, producer_id: int) -> None:
        """Refuse a write with this producer id. The message does not reveal whether the producer id exists.

        Raises:
            ForbiddenError: always, except in the mode that only logs refusals.
        """
        self._refuse(
            f"{self._caller.principal} may not write as producer {producer_id}: it belongs to another principal, or "
            "was never reserved. POST /producers reserves one",
            ResourceType.CLUSTER,
        )

    def refuse_name(self, name: str) -> None:
        """Refuse the use of another principal's transaction.

        Raises:
            ForbiddenError: always, except in the mode that only logs refusals.
        """
        self._refuse(
            f"{self._caller.principal} may not use the transaction of {name}: another principal began it",
            ResourceType.TRANSACTIONAL_ID,
        )

    def seen(
        self, kind: ResourceType, operation: Operation = Operation.DESCRIBE
    ) -> Callable[[str], bool]:
        """Return a function from a name to whether a response may show the caller the resource of this name."""
        self.has_asked = True
        caller = self.caller
        if not caller.is_enforced or caller.may_with_all(operation, kind):
            return everything
        return lambda name: caller.may(operation, kind, name)

    def may_create(self, topic: str) -> bool:
        """Return whether a write by this caller may create a missing topic, if the nodes' settings allow that."""
        caller = self.caller
        return not caller.is_enforced or caller.may_create(topic)

    def _require(
        self,
        may: bool,
        operation: Operation,
        kind: ResourceType,
        name: str | None,
        *,
        shown: str = "",
    ) -> None:
        """Refuse unless ``may``. ``shown``: describes the resources in place of a name."""
        if not may:
            principal = self._caller.principal
            command = allowing_command(principal, operation, kind, name)
            token = " (the token needs a grant for it, too)" if self._caller.grants else ""
            self._refuse(
                f"{principal} may not {operation} {kind} {shown or name}: no access control entry allows it, or one "
                f"denies it. This adds an entry that allows it{token}: {command}",
                kind,
            )

    @abstractmethod
    def _refuse(self, why: str, kind: ResourceType) -> None:
        """Raise ForbiddenError, or only log the refusal if the mode says so. ``kind``: what the caller may not use."""


class Rights(CallerRights):
    """The rights of the caller of an HTTP request."""

    __slots__ = ("_access", "_callers", "_names", "_request", "_request_id")

    def __init__(self, request: web.BaseRequest, request_id: str, callers: CallersPort) -> None:
        super().__init__()
        self._request = request
        self._request_id = request_id
        self._callers = callers
        self._access: Access | None = None
        self._names: Mapping[str, str] = {}

    async def identify(self, access: Access, names: Mapping[str, str]) -> None:
        """Authenticate the caller, and check its right to the resource in the path.

        Raises:
            UnauthenticatedError, TooManyRequestsError, NotReadyError: the caller could not be authenticated.
            ForbiddenError: the caller does not have the right.
        """
        self._access, self._names = access, names
        callers = self._callers
        if not callers.holds(self._caller):
            given = self._credentials()
            seen = self._seen_before(given[0])
            self._caller = seen or callers.known(*given) or await callers.identify(*given)
            if seen is None:
                self._remember(given[0])
        # Requests of one connection share a context. Without this, the previous request's principal would stay in it.
        on_behalf.principal.set(self._caller.known_principal)
        self._authorize_path(self._caller)

    def _seen_before(self, header: str | None) -> Caller | None:
        """Return the caller of this connection's last request if the header is the same and the caller still valid.

        A connection has one certificate, and one address unless it belongs to a proxy. So both need no comparison,
        except the address of a caller whose rights depend on it.
        """
        last = getattr(self._request.protocol, "last_caller", None)
        if last is None or header is None or last[0] != header:
            return None
        caller: Caller = last[1]
        if caller.host and caller.host != plain_host(self._request.remote or ""):
            return None
        return caller if self._callers.holds(caller) else None

    def _remember(self, header: str | None) -> None:
        protocol = self._request.protocol
        if (
            header is not None
            and len(header) <= HEADER_KEPT_MAX
            and hasattr(protocol, "last_caller")
        ):
            protocol.last_caller = (header, self._caller)

    def check_again(self) -> None:
        """Check the right to the resource in the path again, if access data has changed since the last check.

        Raises:
            UnauthenticatedError, NotReadyError: the caller's credentials are no longer valid.
            ForbiddenError: the caller no longer has the right.
        """
        if self._access is not None and not self._callers.holds(self._caller):
            self._authorize_path(self.caller)

    @property
    def caller(self) -> Caller:
        """The caller with its current rights; authenticates it again if access data has changed.

        Raises:
            UnauthenticatedError, NotReadyError: the credentials are no longer valid.
        """
        callers = self._callers
        if not callers.holds(self._caller):
            caller = callers.known(*self._credentials(), is_under_way=True)
            if caller is None:
                raise UnauthenticatedError(
                    "what the cluster knows of these credentials changed while it was asked; send the request again"
                )
            self._caller = caller
        return self._caller

    async def identified_now(self) -> Caller:
        """Return the caller that another request with these credentials would have. It does not change this request's.

        Raises:
            UnauthenticatedError, TooManyRequestsError, NotReadyError: such a request would be refused.
        """
        given = self._credentials()
        return self._callers.known(*given) or await self._callers.identify(*given)

    def tell(self, what: str) -> None:
        """Write a change of access, and the principal that made it, to the audit log."""
        _audit_log.info(
            "changed principal=%s what=%s remote=%s request_id=%s",
            self._caller.principal,
            what,
            self._request.remote,
            self._request_id,
        )

    def _credentials(self) -> tuple[str | None, str, ClientCertificate | None]:
        given = self._request.headers.getall("Authorization", None)
        header = None if given is None else ", ".join(dict.fromkeys(given))
        # A plain aiohttp connection has no certificate attribute.
        certificate = getattr(self._request.protocol, "certificate", None)
        return header, self._request.remote or "", certificate

    def _authorize_path(self, caller: Caller) -> None:
        assert self._access is not None
        needs = self._access.needs
        if needs is not None:
            name = self._names[needs.path_name] if needs.path_name else CLUSTER_NAME
            if self._access.is_filtered and name == ALL_TOPICS:
                return
            self._require(
                caller.may(needs.operation, needs.resource_type, name),
                needs.operation,
                needs.resource_type,
                name,
            )

    def _refuse(self, why: str, kind: ResourceType) -> None:
        if not self._caller.is_enforced and not (self._access and self._access.is_strict):
            _log.warning("would be refused: %s request_id=%s", why, self._request_id)
            return
        raise ForbiddenError(why, resource_type=kind)


def _may_have_nameless_producer(caller: Caller) -> bool:
    return caller.may_with_some(Operation.WRITE, ResourceType.TOPIC) or caller.may(
        Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    )
