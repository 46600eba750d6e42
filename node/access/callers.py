"""Identifies callers: checks the credentials of a request against the node's image. Implements ``CallersPort``.

A node decides by its own image. A result holds only for one access version. So after a right is revoked, the next
request is checked again. Because the image may be too old, a node accepts no caller in these cases:

- It has heard nothing from the quorum for ``silence_ms_max``, unless the mode is ``off``.
- It has heard nothing from the quorum since it started, unless the mode is ``off`` and no first user is configured.
- A first user is configured, and there are no users yet.

Correct passwords are remembered as hashes with a key that only this process has. So each password is checked once, and
a known one does not wait while others send wrong ones.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from http_api.access.callers import (
    ANYBODY,
    OPEN,
    UNCERTAIN,
    Caller,
    ScramLogin,
    VouchedCaller,
)
from http_api.access.certificates import ClientCertificate
from http_api.access.hosts import plain_host
from milena.model.access import ANONYMOUS, USER_PREFIX, AccessMode
from milena.model.clock import Clock
from milena.model.errors import NotReadyError, TooManyRequestsError, UnauthenticatedError
from node.access.authorization_header import name_and_password, scheme_and_rest
from node.access.certificate_names import CertificateNames, NamelessCertificateError
from node.access.passwords import Passwords
from node.metadata.store import MetadataStore
from raft_meta.machine.access.access import LEVEL
from raft_meta.machine.access.authorization import depends_on_host, permissions_of
from raft_meta.machine.image import Grant, Image, User

if TYPE_CHECKING:
    from node.access.web_tokens import WebIdentity, WebTokens

KNOWN_MAX = 10_000
VERIFIED_MS = 300_000
"""How long a correct password is remembered, in ms."""
TOKEN_PREFIX = "mln_"  # noqa: S105 (how tokens begin)
_KEY_BYTES = 32


def secret_hash(secret: str) -> bytes:
    """Return the hash of a token that the cluster stores. Tokens are random, so a slow hash is not needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    """A correct password: its user, the verifier that it matched, and when to forget it (monotonic ms)."""

    user: str
    verifier: str = field(repr=False)
    until_ms: float


@dataclass(eq=False, kw_only=True)
class Callers:
    """The callers of one node. Owned by the event loop."""

    metadata: MetadataStore
    passwords: Passwords
    clock: Clock
    heard_ms: Callable[[], int | None]
    """Returns when the quorum was last heard (monotonic ms); None if not since the start."""
    silence_ms_max: int
    has_first_user: bool
    random_bytes: Callable[[int], bytes]
    web_tokens: "WebTokens | None" = None
    """Verifies tokens of an issuer."""
    certificate_rule: str | None = None
    """See ``CertificateNames``."""

    def __post_init__(self) -> None:
        self._key = self.random_bytes(_KEY_BYTES)
        self._certificate_names = CertificateNames(self.certificate_rule)
        self._callers: dict[tuple[bytes, str], Caller] = {}
        """(Hash of the header or of the certificate, address) → caller, at the present version."""
        self._verified: dict[bytes, _Verified] = {}
        self._looking: dict[bytes, asyncio.Task[_Verified | None]] = {}
        self.version = OPEN
        self._until_ms = 0
        """When the version ends unless the quorum is heard again (monotonic ms). Not used while the cluster is open."""
        self.attend()

    def on_image(self, image: Image) -> None:
        """Check a new image: it may have another access version, and earlier results then no longer hold."""
        del image
        self.attend()

    def attend(self) -> None:
        """Check whether the version has changed. It may also change because the quorum is silent for too long."""
        version = self._current_version(self.metadata.image)
        if version != self.version:
            self.version = version
            self._callers.clear()

    def _current_version(self, image: Image) -> int:
        heard_ms = self.heard_ms()
        self._until_ms = 0 if heard_ms is None else heard_ms + self.silence_ms_max
        if self.has_first_user:
            if heard_ms is None:
                return UNCERTAIN
            if not image.users and image.feature_level >= LEVEL:
                return UNCERTAIN
        if image.access_mode == AccessMode.OFF:
            return OPEN
        if heard_ms is None or self.clock.now_ms() > self._until_ms:
            return UNCERTAIN
        return image.access_version

    def holds(self, caller: Caller) -> bool:
        """Return whether an earlier result about a caller still holds."""
        if caller.version == OPEN:
            return self.version == OPEN
        if self.clock.now_ms() > self._until_ms:
            # The process may have been suspended for a while, so it must check the time before it uses a result.
            self.attend()
        return caller.version == self.version and (
            not caller.expires_ms
            or (
                self.clock.wall_ms() < caller.expires_ms
                and (not caller.keys_version or caller.keys_version == self._keys_version)
            )
        )

    @property
    def _keys_version(self) -> int:
        return 0 if self.web_tokens is None else self.web_tokens.keys.version

    def known(
        self,
        authorization: str | None,
        host: str,
        certificate: ClientCertificate | None = None,
        *,
        is_under_way: bool = False,
    ) -> Caller | None:
        """Return the caller with these credentials, or without any; None if finding out must wait (``identify``).

        Raises:
            NotReadyError: this node cannot tell now what callers may do.
            TooManyRequestsError: too many tokens with wrong signatures came from this address.
            UnauthenticatedError: the credentials are missing or wrong.
        """
        if self.version == OPEN:
            return ANYBODY
        self.check_certain()
        host = plain_host(host)
        image = self.metadata.image
        if authorization is None:
            return self._without_header(image, certificate, host)
        key = self._hash(authorization)
        caller = self._callers.get((key, host))
        if caller is not None and self.holds(caller):
            return caller
        caller = self._found(image, authorization, key, host, is_under_way=is_under_way)
        return None if caller is None else self._remember(caller, key, host)

    def check_certain(self) -> None:
        """Refuse all callers while this node's image may be too old.

        Raises:
            NotReadyError: it may.
        """
        if self.clock.now_ms() > self._until_ms:
            self.attend()
        if self.version == UNCERTAIN:
            raise NotReadyError(
                self.metadata.quorum.start_obstacle()
                or "this node has not heard of the metadata quorum for too long to know whom it may let in"
            )

    def vouched(self, vouched: VouchedCaller, host: str) -> Caller:
        """Return the rights that a caller has here, which another node has authenticated.

        Raises:
            UnauthenticatedError: its user or token does not exist here, or it has expired.
            NotReadyError: this node cannot tell now what callers may do.
        """
        if self.version == OPEN:
            return ANYBODY
        self.check_certain()
        host, image = plain_host(host), self.metadata.image
        if vouched.principal in ("", ANONYMOUS):
            return self._without_header(image, None, host)
        user = None if vouched.user is None else image.users.get(vouched.user)
        token = None if vouched.token_id is None else image.tokens.get(vouched.token_id)
        if (
            (0 if user is None else user.created_index) != vouched.user_index
            or (token is None) != (vouched.token_id is None)
            or (vouched.expires_ms and vouched.expires_ms <= self.clock.wall_ms())
        ):
            raise UnauthenticatedError(f"{vouched.principal} has no access at this node any more")
        return self._caller(
            image,
            vouched.principal,
            host,
            user=user,
            groups=vouched.groups,
            token_id=vouched.token_id,
            grants=() if token is None else token.grants,
            expires_ms=vouched.expires_ms,
        )

    def proved(self, login: ScramLogin, host: str) -> Caller:
        """Return the rights of a client that has proved its password by SCRAM.

        Raises:
            UnauthenticatedError: the user has other credentials now, or none.
            NotReadyError: this node cannot tell now what callers may do.
        """
        if self.version == OPEN:
            return ANYBODY
        self.check_certain()
        image = self.metadata.image
        user = image.users.get(login.user)
        if (
            user is None
            or user.created_index != login.user_index
            or login.credential not in user.scram
        ):
            raise UnauthenticatedError(f"the SCRAM credentials of user {login.user} have changed")
        return self._caller(image, USER_PREFIX + user.name, plain_host(host), user=user)

    def _remember(self, caller: Caller, key: bytes, host: str) -> Caller:
        if len(self._callers) >= KNOWN_MAX:
            del self._callers[next(iter(self._callers))]
        self._callers[key, host] = caller
        return caller

    def _without_header(
        self, image: Image, certificate: ClientCertificate | None, host: str
    ) -> Caller:
        is_required = image.access_mode == AccessMode.REQUIRED
        missing = "this cluster asks for credentials: send Authorization: Bearer TOKEN, or Basic"
        if certificate is not None:
            caller = self._callers.get((certificate.digest, host))
            if caller is not None and self.holds(caller):
                return caller
            try:
                caller = self._of_certificate(image, certificate, host)
            except NamelessCertificateError as error:
                missing = f"{missing}; {error}"
            else:
                return self._remember(caller, certificate.digest, host)
        if is_required:
            raise UnauthenticatedError(missing)
        return self._caller(image, ANONYMOUS, host)

    def turned_away(self, host: str) -> TooManyRequestsError | None:
        """Return the error for unknown passwords from this address, if they are refused now; else None.

        Passwords that are known to be right are never refused.
        """
        return None if self.version == OPEN else self.passwords.refusal(plain_host(host))

    async def identify(
        self, authorization: str | None, host: str, certificate: ClientCertificate | None = None
    ) -> Caller:
        """Return the caller with these credentials. Wait for the check of a password or a read of the issuer's keys.

        Raises:
            NotReadyError: this node cannot check the credentials yet.
            TooManyRequestsError: too many checks wait, or too many from this address have failed.
            UnauthenticatedError: the credentials are wrong.
        """
        del certificate
        assert authorization is not None, "who brings nothing is known"
        if self.web_tokens is not None and scheme_and_rest(authorization)[0] == "bearer":
            await self.web_tokens.keys.refresh()
            caller = self.known(authorization, host)
            if caller is None:
                raise NotReadyError("the issuer's keys are being read; try again")
            return caller
        key = self._hash(authorization)
        task = self._looking.get(key)
        if task is None:
            refusal = self.passwords.refusal(plain_host(host))
            if refusal is not None:
                raise refusal
            # Requests with the same header share one check. So a client that opens many connections costs one hash.
            task = asyncio.create_task(self._look(authorization, plain_host(host)))
            self._looking[key] = task
            task.add_done_callback(lambda _: self._looking.pop(key, None))
        verified = await asyncio.shield(task)
        if verified is None:
            raise _bad_password()
        if len(self._verified) >= KNOWN_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[key] = verified
        caller = self.known(authorization, host)
        if caller is None:
            # The password or the user has changed during the check.
            raise _bad_password()
        return caller

    def _hash(self, authorization: str) -> bytes:
        given = authorization.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(given, key=self._key, digest_size=16).digest()

    def _found(
        self, image: Image, authorization: str, key: bytes, host: str, *, is_under_way: bool
    ) -> Caller | None:
        scheme, given = scheme_and_rest(authorization)
        if scheme == "bearer":
            if (
                self.web_tokens is not None
                and not given.startswith(TOKEN_PREFIX)
                and self.web_tokens.looks_like_one(given)
            ):
                return self._of_web_token(image, self.web_tokens.find(key, given, host), host)
            return self._of_token(image, given, host)
        if scheme != "basic":
            raise UnauthenticatedError(
                "Authorization must begin with Bearer or Basic, and come once"
            )
        name, _ = name_and_password(given)
        verified = self._verified.get(key)
        if verified is None or (self.clock.now_ms() >= verified.until_ms and not is_under_way):
            return None
        user = image.users.get(name)
        if user is None or verified.user != name or verified.verifier not in user.verifiers:
            del self._verified[key]
            return None
        return self._caller(image, USER_PREFIX + name, host, user=user, has_password=True)

    def _of_token(self, image: Image, text: str, host: str) -> Caller:
        token_id, _, secret = text.removeprefix(TOKEN_PREFIX).partition("_")
        token = image.tokens.get(token_id) if text.startswith(TOKEN_PREFIX) else None
        # Compare even if there is no such token, so that the response time does not tell whether it exists.
        expected = bytes(32) if token is None else token.secret_hash
        is_good = hmac.compare_digest(secret_hash(secret), expected)
        if token is None or not is_good:
            raise UnauthenticatedError("this is not a token of this cluster, or it was deleted")
        if token.expires_ms and token.expires_ms <= self.clock.wall_ms():
            raise UnauthenticatedError(f"token {token.token_id} has expired; make another one")
        user = image.users[token.user]
        return self._caller(
            image,
            USER_PREFIX + user.name,
            host,
            user=user,
            token_id=token.token_id,
            grants=token.grants,
            expires_ms=token.expires_ms,
        )

    def _of_certificate(self, image: Image, certificate: ClientCertificate, host: str) -> Caller:
        """Return the caller of a certificate. Its name is a principal even if the cluster has no user of that name."""
        name = self._certificate_names.user_of(certificate)
        if certificate.expires_ms <= self.clock.wall_ms():
            raise UnauthenticatedError(
                "the client's certificate has expired; renew it, and connect again"
            )
        return self._caller(
            image,
            USER_PREFIX + name,
            host,
            user=image.users.get(name),
            expires_ms=certificate.expires_ms,
        )

    def _of_web_token(self, image: Image, found: "WebIdentity | None", host: str) -> Caller | None:
        if found is None:
            return None
        return self._caller(
            image,
            found.principal,
            host,
            groups=found.groups,
            expires_ms=found.expires_ms,
            keys_version=found.keys_version,
        )

    def _caller(
        self,
        image: Image,
        principal: str,
        host: str,
        *,
        user: User | None = None,
        groups: tuple[str, ...] = (),
        token_id: str | None = None,
        grants: tuple[Grant, ...] = (),
        expires_ms: int = 0,
        keys_version: int = 0,
        has_password: bool = False,
    ) -> Caller:
        is_superuser = user is not None and user.is_superuser
        return Caller(
            principal=principal,
            version=self.version,
            permissions=permissions_of(
                image,
                principal,
                is_superuser=is_superuser,
                host=host,
                groups=groups,
                grants=grants,
            ),
            user=None if user is None else user.name,
            user_index=0 if user is None else user.created_index,
            groups=groups,
            token_id=token_id,
            grants=grants,
            is_superuser=is_superuser and not grants,
            has_password=has_password,
            is_enforced=image.access_mode == AccessMode.REQUIRED,
            host=host if depends_on_host(image, principal, groups) else "",
            expires_ms=expires_ms,
            keys_version=keys_version,
        )

    async def _look(self, authorization: str, host: str) -> _Verified | None:
        """Check a password. An unknown user takes as long, and gets the same response, as a wrong password."""
        name, password = name_and_password(scheme_and_rest(authorization)[1])
        user = self.metadata.image.users.get(name)
        verifiers = () if user is None else user.verifiers
        verifier = await self.passwords.find(verifiers, password, host)
        if verifier is None:
            return None
        return _Verified(user=name, verifier=verifier, until_ms=self.clock.now_ms() + VERIFIED_MS)


def _bad_password() -> UnauthenticatedError:
    return UnauthenticatedError("there is no user of this name and password")
