"""The client at the other end of a connection: its credentials, and the caller that they make it.

The credentials are those of SASL, or the certificate that TLS verified, or none. ``http_api.access.callers`` decides
about them, as it does for HTTP: a wrong password is counted and delayed together with those that come over HTTP.

A caller holds for one version of the cluster's access data. So each request asks again after a change, and a deleted
user or token gets no further response. Source: KIP-368 (sessions that end, re-authentication).
"""

from dataclasses import dataclass

from http_api.access.callers import (
    ANYBODY,
    OPEN,
    Caller,
    CallersPort,
    ScramLogin,
    VouchedCaller,
)
from http_api.access.certificates import ClientCertificate
from http_api.access.group_shares import GroupShares
from http_api.access.port import AccessPort
from http_api.access.refusals import Refusals, name_in
from http_api.serving.quotas import Quotas
from milena.model.access import USER_PREFIX, ScramMechanism
from milena.model.errors import MilenaError, UnauthenticatedError
from node.access.scram_logins import ScramLogins
from node.kafka.sasl import (
    CREDENTIALS_OF,
    MECHANISMS,
    OAUTHBEARER,
    REFUSED_TOKEN,
    SCRAM,
    SaslCredentials,
)
from node.kafka.scram import ScramExchange
from raft_meta.machine.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessServices:
    """The parts of the node that decide about clients. Both interfaces share them."""

    callers: CallersPort
    refusals: Refusals
    port: AccessPort
    quotas: Quotas
    group_shares: GroupShares
    scram: ScramLogins
    has_tls: bool = False

    @property
    def security_protocol(self) -> str:
        """Kafka's name for how clients connect now (``security.protocol``)."""
        transport = "SSL" if self.has_tls else "PLAINTEXT"
        return transport if self.callers.version == OPEN else f"SASL_{transport}"


class SaslStateError(Exception):
    """The client sent a message of SASL that is not due. It never leaves the node."""


@dataclass(frozen=True, slots=True)
class SaslStep:
    """The response to a message of SASL. ``lifetime_ms``: how long the session lasts; 0: it does not end."""

    message: bytes = b""
    lifetime_ms: int = 0


class ConnectionIdentity:
    """The identity of one connection. Belongs to the data loop.

    Invariants:
        ``_credentials`` are the last ones that were good, and None before that.
        ``_mechanism`` is set exactly between a handshake and the end of its exchange.
        ``_exchange`` is set exactly between a handshake for SCRAM and the end of its exchange.
    """

    def __init__(
        self, access: AccessServices, host: str, certificate: ClientCertificate | None
    ) -> None:
        self._access = access
        self._callers = access.callers
        self.host = host
        self._certificate = certificate
        self._credentials: SaslCredentials | ScramLogin | None = None
        self._mechanism: str | None = None
        self._exchange: ScramExchange | None = None
        self._is_refused = False
        """Whether the exchange has failed, and the client has not confirmed that yet (OAUTHBEARER)."""
        self._caller: Caller = ANYBODY
        self.is_raw = False
        """Whether the next frame is a bare message of SASL (SaslHandshake 0)."""

    # -- the caller ------------------------------------------------------------------------------

    @property
    def last_caller(self) -> Caller:
        """The caller of the last request that was let in."""
        return self._caller

    @property
    def refusals(self) -> Refusals:
        """The refused requests of the node."""
        return self._access.refusals

    def present(self) -> Caller:
        """Return the caller with its present rights, without a wait.

        Raises:
            UnauthenticatedError, NotReadyError: the credentials are no longer valid.
        """
        if not self.holds():
            found = self._known(self._credentials)
            if found is None:
                raise UnauthenticatedError("these credentials changed while a request was served")
            self._caller = found
        return self._caller

    def holds(self) -> bool:
        """Return whether the last caller still holds."""
        return self._callers.holds(self._caller)

    def is_let_in(self) -> bool:
        """Return whether a request would be served now, as far as this can be told without a wait."""
        try:
            return self._known(self._credentials) is not None
        except MilenaError:
            return False

    def is_revoked(self) -> bool:
        """Return whether the client lost its access. A session that has ended is not lost: it may be renewed."""
        if self.holds() or self._caller.version == self._callers.version:
            return False
        try:
            self._caller = self._known(self._credentials) or self._caller
        except UnauthenticatedError:
            return True
        except MilenaError:
            pass
        return False

    async def caller(self) -> Caller:
        """Return the caller, with its present rights.

        Raises:
            UnauthenticatedError: the client has to authenticate first, or its credentials are no longer good.
            TooManyRequestsError, NotReadyError: the credentials cannot be checked now.
        """
        if not self.holds():
            found = self._known(self._credentials) or await self._identified(self._credentials)
            self._caller = found
        return self._caller

    def _known(self, given: SaslCredentials | ScramLogin | None) -> Caller | None:
        if isinstance(given, ScramLogin):
            return self._callers.proved(given, self.host)
        found = self._callers.known(
            None if given is None else given.authorization,
            self.host,
            self._certificate,
            # The connection stays when the time is up for which a password is remembered.
            is_under_way=given is self._credentials,
        )
        return None if found is None else self._of_user(found, given)

    async def _identified(self, given: SaslCredentials | ScramLogin | None) -> Caller:
        assert isinstance(given, SaslCredentials), "any other client is known"
        return self._of_user(await self._callers.identify(given.authorization, self.host), given)

    def _of_user(self, found: Caller, given: SaslCredentials | None) -> Caller:
        user = None if given is None else given.user
        if user is None or found.version == OPEN or found.principal == USER_PREFIX + user:
            return found
        raise UnauthenticatedError(f"these are not the credentials of user {user}")

    # -- SASL ------------------------------------------------------------------------------------

    def begin(self, mechanism: str, *, is_raw: bool) -> bool:
        """Begin an exchange; return whether the mechanism exists. ``is_raw``: its message comes in a bare frame."""
        if mechanism not in MECHANISMS:
            return False
        self._mechanism, self._is_refused, self.is_raw = mechanism, False, is_raw
        self._exchange = None
        if mechanism in SCRAM:
            self._exchange = ScramExchange(ScramMechanism(mechanism), self._access.scram, self.host)
        return True

    async def authenticate(self, message: bytes, image: Image, wall_ms: int) -> SaslStep:
        """Take the client's message of the present exchange; return the response.

        Raises:
            SaslStateError: there is no exchange.
            UnauthenticatedError: the credentials are wrong. The exchange is over.
            TooManyRequestsError, NotReadyError: the credentials cannot be checked now.
        """
        mechanism = self._mechanism
        if mechanism is None:
            raise SaslStateError("a SaslHandshake must come first")
        if self._is_refused:
            self._mechanism = None
            raise UnauthenticatedError("this is not a good token, or it has expired")
        if self._exchange is not None:
            return self._proved(self._exchange, message, image)
        try:
            found = await self._authenticated(mechanism, message, image)
        except UnauthenticatedError:
            if mechanism != OAUTHBEARER:
                self._mechanism = None
                raise
            self._is_refused = True
            return SaslStep(REFUSED_TOKEN)
        self._mechanism = None
        return SaslStep(lifetime_ms=max(1, found.expires_ms - wall_ms) if found.expires_ms else 0)

    @property
    def is_refused(self) -> bool:
        """Whether the last message of SASL was refused."""
        return self._is_refused

    @property
    def is_signing_in(self) -> bool:
        """Whether an exchange is under way: the client owes a message."""
        return self._mechanism is not None

    def _proved(self, exchange: ScramExchange, message: bytes, image: Image) -> SaslStep:
        """Take a message of SCRAM; with the last one, the client is signed in."""
        try:
            answer = exchange.take(message)
            login = exchange.login
            if login is not None:
                found = self._callers.proved(login, self.host)
                self._check_same(found)
                self._credentials, self._caller = login, found
                self._mechanism = self._exchange = None
        except UnauthenticatedError as error:
            self._mechanism = self._exchange = None
            self._access.refusals.add_stranger(self.host, exchange.user, error.message, image.users)
            raise
        return SaslStep(answer)

    def _check_same(self, found: Caller) -> None:
        """Refuse a client that signs in again as another user.

        Raises:
            UnauthenticatedError: it does.
        """
        former = self._caller
        is_again = self._credentials is not None and OPEN not in (former.version, found.version)
        if is_again and found.principal != former.principal:
            raise UnauthenticatedError(
                f"the connection is {former.principal}'s; open another one to be {found.principal}"
            )

    async def _authenticated(self, mechanism: str, message: bytes, image: Image) -> Caller:
        given: SaslCredentials | None = None
        try:
            given = CREDENTIALS_OF[mechanism](message)
            found = self._known(given) or await self._identified(given)
            self._check_same(found)
        except UnauthenticatedError as error:
            name = "" if given is None else name_in(given.authorization)
            self._access.refusals.add_stranger(self.host, name, error.message, image.users)
            raise
        self._credentials, self._caller = given, found
        return found


class VouchedIdentity(ConnectionIdentity):
    """The identity of a client whose request another node took and passed on. It has no credentials here."""

    def __init__(self, access: AccessServices, host: str, vouched: VouchedCaller) -> None:
        """Take the client in.

        Raises:
            UnauthenticatedError, NotReadyError: it has no access at this node.
        """
        super().__init__(access, host, None)
        self._vouched = vouched
        self.present()

    def _known(self, given: SaslCredentials | ScramLogin | None) -> Caller | None:
        del given
        return self._callers.vouched(self._vouched, self.host)
