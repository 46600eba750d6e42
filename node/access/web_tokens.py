"""Tokens of an OpenID Connect issuer (JWT): checks whether a token is valid, and which principal it names.

A token is checked with the issuer's keys that this node has read. The token's header selects a key by ``kid``. It has
no other influence: the key decides the algorithm, and references to other keys are ignored. The names of principals
from tokens get a prefix that no user of the cluster can have.

A signature is checked on the loop, because a task for it would take longer. As with passwords, an address that often
sends tokens with wrong signatures must wait. Expired tokens do not count, and tokens that are known do not wait.

Source: RFC 7519, RFC 8725, OpenID Connect Core 3.1.3.7.
"""

import base64
import json
import math
import re
from dataclasses import dataclass

import jwt

from milena.model.access import GROUP_PREFIX, PRINCIPAL_NAME, USER_PREFIX
from milena.model.clock import Clock
from milena.model.errors import NotReadyError, UnauthenticatedError
from node.access.issuer_keys import IssuerKeys
from node.access.passwords import WrongPasswords

TOKEN_LENGTH_MAX = 8_192
LEEWAY_S = 30
SECONDS_MAX = 1 << 40
"""Largest valid time in a token, in seconds. A larger number is refused."""
NAME_PREFIX = "oidc:"
KNOWN_MAX = 10_000

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_NAME = re.compile(PRINCIPAL_NAME)
_REQUIRED = ["exp", "iss", "aud", "sub"]
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class WebIdentity:
    """The principal that a valid token names, and until when (wall ms)."""

    principal: str
    groups: tuple[str, ...]
    """The principals of its groups."""
    expires_ms: int
    keys_version: int
    """The version of the keys with which the token was checked."""


@dataclass(eq=False, kw_only=True)
class WebTokens:
    """Verifies the tokens of one issuer. Owned by the event loop."""

    issuer: str
    audience: str
    user_claim: str
    groups_claim: str | None
    keys: IssuerKeys
    clock: Clock

    def __post_init__(self) -> None:
        self._forged = WrongPasswords("signatures")
        self._known: dict[bytes, WebIdentity] = {}
        """Hash of a token → its identity. The rights of the principal are not part of it, so it may be cached."""

    @staticmethod
    def looks_like_one(text: str) -> bool:
        """Return whether this may be a token of an issuer: it has three parts."""
        return text.count(".") == 2

    def find(self, key: bytes, text: str, address: str) -> WebIdentity | None:
        """Return the identity of a token, as ``verify``. A token is verified once, while it and the keys are valid.

        ``key``: a hash of the token.

        Raises:
            UnauthenticatedError, TooManyRequestsError, NotReadyError: as ``verify``.
        """
        found = self._known.get(key)
        if found is not None and (
            found.keys_version == self.keys.version and self.clock.wall_ms() < found.expires_ms
        ):
            return found
        found = self.verify(text, address)
        if found is not None:
            if len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return found

    def verify(self, text: str, address: str) -> WebIdentity | None:
        """Return the identity that a token names; None if the keys must be read first (``keys.refresh``).

        Raises:
            UnauthenticatedError: the token is not valid.
            TooManyRequestsError: the address sent too many tokens with wrong signatures.
            NotReadyError: there are no keys with which to check it.
        """
        key = self._key(_header(text))
        if key is None:
            return None
        self._forged.check(address, self.clock.now_ms())
        try:
            # Times are checked below, against the node's own clock.
            claims = jwt.decode(
                text,
                key=key,
                algorithms=[key.algorithm_name],
                issuer=self.issuer,
                audience=self.audience,
                options={
                    "require": _REQUIRED,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidSignatureError:
            self._forged.add(address, self.clock.now_ms())
            raise _bad("its signature is not one of its key") from None
        except jwt.InvalidIssuerError:
            raise _bad(f"its iss is not {self.issuer}") from None
        except jwt.InvalidAudienceError:
            raise _bad(f"its aud has no {self.audience}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _bad(str(error) or type(error).__name__) from None
        return WebIdentity(
            principal=self._principal(claims),
            groups=self._groups(claims),
            expires_ms=self._end_ms(claims),
            keys_version=self.keys.version,
        )

    def _key(self, header: dict[str, object]) -> jwt.PyJWK | None:
        """Return the key that the header names; None if the next read of the keys may bring it.

        Raises:
            UnauthenticatedError, NotReadyError: there is no such key, or it does not fit the header.
        """
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise _bad("its kid is not text")
        if "crit" in header:
            raise _bad("its header has crit: this node knows no extension")
        keys = self.keys.keys
        key = None if keys is None else keys.find(kid)
        if key is None:
            if self.keys.may_ask and (keys is None or kid is not None):
                return None
            if keys is None:
                raise NotReadyError(
                    f"the keys of {self.issuer} cannot be read: {self.keys.failure}; this node cannot tell whether "
                    "its tokens are good"
                )
            what = (
                "no kid, and its issuer has several keys" if kid is None else f"kid {_shown(kid)}"
            )
            raise _bad(f"its issuer has no such key: {what}")
        if header.get("alg") != key.algorithm_name:
            raise _bad(
                f"it says alg {_shown(header.get('alg'))}, and its key is one of {key.algorithm_name}"
            )
        return key

    def _end_ms(self, claims: dict[str, object]) -> int:
        """Return when the token expires, plus the leeway (wall ms).

        Raises:
            UnauthenticatedError: the token has expired, or is not valid yet.
        """
        now_s = self.clock.wall_ms() / 1000
        end_s = _seconds(claims, "exp") + LEEWAY_S
        if now_s >= end_s:
            raise _bad(f"it expired {now_s - end_s + LEEWAY_S:.0f} s ago; get another one")
        for name in ("nbf", "iat"):
            if name in claims and _seconds(claims, name) - LEEWAY_S > now_s:
                raise _bad(f"its {name} is in the future; look at the clocks of issuer and node")
        return math.floor(end_s * 1000)

    def _principal(self, claims: dict[str, object]) -> str:
        name = claims.get(self.user_claim)
        if not isinstance(name, str) or not name:
            raise _bad(f"its claim {self.user_claim} is missing or no text")
        if not _NAME.fullmatch(NAME_PREFIX + name):
            raise _bad(
                f"its {self.user_claim} {_shown(name)} cannot be a principal, which has 1 to {255 - len(NAME_PREFIX)} "
                "letters, digits or . _ @ : / + = -; choose another claim by oidc_user_claim"
            )
        return USER_PREFIX + NAME_PREFIX + name

    def _groups(self, claims: dict[str, object]) -> tuple[str, ...]:
        """Return the groups that an entry could name. No entry can name the others, so they can be ignored."""
        if self.groups_claim is None:
            return ()
        found = claims.get(self.groups_claim)
        names = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _bad(f"its claim {self.groups_claim} is not a list of texts")
        return tuple(sorted({GROUP_PREFIX + name for name in names if _NAME.fullmatch(name)}))


def _header(text: str) -> dict[str, object]:
    if len(text) > TOKEN_LENGTH_MAX:
        raise _bad(f"it has {len(text)} characters, and may have {TOKEN_LENGTH_MAX}")
    if not _FORM.fullmatch(text):
        raise _bad("it is not three parts in base64url (RFC 7515)")
    first = text.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, RecursionError):
        raise _bad("its header is not JSON in base64url") from None
    if not isinstance(header, dict):
        raise _bad("its header is not an object")
    return header


def _seconds(claims: dict[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(f"its {name} is not a number")
    if not 0 <= value <= SECONDS_MAX:
        raise _bad(f"its {name} is not a time")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _bad(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"the token of the issuer is refused: {why}")
