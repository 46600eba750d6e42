"""Who sends a request, and what they may: asked of the path before anything is read, and of the rest by handlers."""

import logging
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web

from http_api.access import on_behalf
from http_api.access.callers import ANYBODY, Caller, CallersPort
from http_api.access.certificates import ClientCertificate
from http_api.access.hosts import plain_host
from http_api.access.needs import ALL_TOPICS, Access
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import ForbiddenError, UnauthenticatedError

_log = logging.getLogger("http_api.access")
_audit_log = logging.getLogger("http_api.audit")

HEADER_KEPT_MAX = 1024
"""Of credentials that a connection remembers: 10 MB, of as many connections as there may be."""


def everything(_: str) -> bool:
    """``Rights.seen`` of a caller from whom nothing is hidden."""
    return True


class Rights:
    """Of one request."""

    __slots__ = ("_access", "_caller", "_callers", "_names", "_request", "_request_id", "has_asked")

    def __init__(self, request: web.BaseRequest, request_id: str, callers: CallersPort) -> None:
        self._request = request
        self._request_id = request_id
        self._callers = callers
        self._caller: Caller = ANYBODY
        self._access: Access | None = None
        self._names: Mapping[str, str] = {}
        self.has_asked = False
        """Whether it was asked what the caller may, beside what the path needs."""

    async def identify(self, access: Access, names: Mapping[str, str]) -> None:
        """Find out who calls, and whether they may what the path says.

        Raises:
            UnauthenticatedError, ForbiddenError, TooManyRequestsError, NotReadyError: they may not.
        """
        self._access, self._names = access, names
        callers = self._callers
        if not callers.holds(self._caller):
            given = self._credentials()
            seen = self._seen_before(given[0])
            self._caller = seen or callers.known(*given) or await callers.identify(*given)
            if seen is None:
                self._remember(given[0])
        # One connection's requests share a context: what the one before said must not stay.
        on_behalf.principal.set(self._caller.known_principal)
        self._authorize_path(self._caller)

    def _seen_before(self, header: str | None) -> Caller | None:
        """Who came with this very header over this very connection last time, if that still holds.

        The certificate stays as long as a connection. So does the address, but for a connection of a proxy.
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
        """What was asked of the path, asked again if the answer may be another one by now.

        Raises:
            UnauthenticatedError, ForbiddenError, NotReadyError: they may not any more.
        """
        if self._access is not None and not self._callers.holds(self._caller):
            self._authorize_path(self.caller)

    @property
    def caller(self) -> Caller:
        """Who calls, as of now.

        Raises:
            UnauthenticatedError, NotReadyError: nobody whose credentials are good any more.
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

    @property
    def known_principal(self) -> str:
        """Who was found to call; empty where nobody was asked, or nobody is known."""
        return self._caller.known_principal

    def tell(self, what: str) -> None:
        """A line of the log about a change of access, and who made it."""
        _audit_log.info(
            "changed principal=%s what=%s remote=%s request_id=%s",
            self._caller.principal,
            what,
            self._request.remote,
            self._request_id,
        )

    def _credentials(self) -> tuple[str | None, str, ClientCertificate | None]:
        given = self._request.headers.getall("Authorization", None)
        header = None if given is None else ", ".join(given)
        # Of a connection that is aiohttp's alone nothing is known.
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

    def authorize(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> None:
        """Refuse unless the caller may do this to all of these.

        Raises:
            ForbiddenError: it may not; the message names the first that it may not.
        """
        self.has_asked = True
        for name in names:
            self._require(self.caller.may(operation, kind, name), operation, kind, name)

    def authorize_unnamed(
        self, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> None:
        """``authorize`` where the caller has not named these: nor does the message.

        Raises:
            ForbiddenError: it may not.
        """
        self.has_asked = True
        may = all(self.caller.may(operation, kind, name) for name in names)
        self._require(may, operation, kind, "of each name that this is about")

    def authorize_creation(self, topic: str) -> None:
        """Refuse unless the caller may make a topic of this name.

        Raises:
            ForbiddenError: it may not.
        """
        self.has_asked = True
        may = self.caller.may_create(topic)
        self._require(may, Operation.CREATE, ResourceType.TOPIC, topic)

    def authorize_all(self, operation: Operation, kind: ResourceType) -> None:
        """Refuse unless the caller may do this to whatever there is of this type, and will be.

        Raises:
            ForbiddenError: it may not.
        """
        self.has_asked = True
        self._require(self.caller.may_with_all(operation, kind), operation, kind, "*")

    def authorize_subscription(self, topics: Iterable[str], pattern: str | None) -> None:
        """Refuse unless the caller may read what it subscribes to: all topics, where it names a pattern.

        Raises:
            ForbiddenError: it may not.
        """
        self.authorize(Operation.READ, ResourceType.TOPIC, topics)
        if pattern:
            self.authorize_all(Operation.READ, ResourceType.TOPIC)

    def authorize_producer(self, name: str | None) -> None:
        """Refuse unless the caller may write as the producer of this name; None: as one without a name.

        Source: Kafka's rules for InitProducerId.

        Raises:
            ForbiddenError: it may not.
        """
        if name is not None:
            self.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, [name])
            return
        self.has_asked = True
        may = _may_have_nameless_producer(self.caller)
        # What is missing is a topic to write to: who has one needs no right to the cluster.
        self._require(may, Operation.WRITE, ResourceType.TOPIC, "of any name")

    def may_write_as(self, name: str | None, owner: str) -> bool:
        """Whether the caller may write as a producer of this name and principal; an empty one is any caller's."""
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
        """Refuse a caller that may not write as a producer; the message does not tell whether there is such a producer.

        Raises:
            ForbiddenError: unless refusals are only logged.
        """
        self._refuse(
            f"{self._caller.principal} may not write as producer {producer_id}: it belongs to another principal, or "
            "was never reserved. POST /producers reserves one"
        )

    def seen(
        self, kind: ResourceType, operation: Operation = Operation.DESCRIBE
    ) -> Callable[[str], bool]:
        """Whether the caller is shown the resource of a name, in an answer about several."""
        self.has_asked = True
        caller = self.caller
        if not caller.is_enforced or caller.may_with_all(operation, kind):
            return everything
        return lambda name: caller.may(operation, kind, name)

    def may_create(self, topic: str) -> bool:
        """Whether a topic that is missing is made for this caller, where nodes do that."""
        caller = self.caller
        return not caller.is_enforced or caller.may_create(topic)

    def _require(self, may: bool, operation: Operation, kind: ResourceType, name: str) -> None:
        if not may:
            self._refuse(
                f"{self._caller.principal} may not {operation} {kind} {name}: no access control entry allows it, or "
                "one denies it"
            )

    def _refuse(self, why: str) -> None:
        if not self._caller.is_enforced and not (self._access and self._access.is_strict):
            _log.warning("would be refused: %s request_id=%s", why, self._request_id)
            return
        raise ForbiddenError(why)


def _may_have_nameless_producer(caller: Caller) -> bool:
    return caller.may_with_some(Operation.WRITE, ResourceType.TOPIC) or caller.may(
        Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    )
