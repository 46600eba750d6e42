"""Tokens of an OpenID Connect issuer (JWT): whether one is good, and whom it names.

A token is told by the issuer's keys as this node has them. Its header chooses among them by ``kid`` and nothing else:
the algorithm is the key's, and what points to other keys is not looked at. Names that come of it have a prefix that
no user of the cluster can have.

A signature is looked at in the loop: it takes less than a task for it would. Whose signatures are wrong often waits, as
for passwords; tokens that merely have expired are not counted, nor do those wait whose token is known.

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
"""A time beyond that is none."""
NAME_PREFIX = "oidc:"
KNOWN_MAX = 10_000

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_NAME = re.compile(PRINCIPAL_NAME)
_REQUIRED = ["exp", "iss", "aud", "sub"]
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class WebIdentity:
    """Whom a good token names, and until when (wall ms)."""

    principal: str
    groups: tuple[str, ...]
    """Principals, too."""
    expires_ms: int
    keys_version: int
    """Of the keys by which it is good."""


class WebTokens:
    """The tokens of one issuer. Belongs to the event loop."""

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        user_claim: str,
        groups_claim: str | None,
        keys: IssuerKeys,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        self._audience = audience
        self._user_claim = user_claim
        self._groups_claim = groups_claim
        self.keys = keys
        self._clock = clock
        self._forged = WrongPasswords("signatures")
        self._known: dict[bytes, WebIdentity] = {}
        """By a hash of the header that brought it: what a token says does not change with what its user may."""

    @staticmethod
    def looks_like_one(text: str) -> bool:
        """Whether this is meant to be a token of an issuer: three parts."""
        return text.count(".") == 2

    def find(self, key: bytes, text: str, address: str) -> WebIdentity | None:
        """As ``verify``, once for each token as long as it and the keys are good; ``key`` is a hash of it.

        Raises:
            UnauthenticatedError, TooManyRequestsError, NotReadyError: see there.
        """
        found = self._known.get(key)
        if found is not None and (
            found.keys_version == self.keys.version and self._clock.wall_ms() < found.expires_ms
        ):
            return found
        found = self.verify(text, address)
        if found is not None:
            if len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return found

    def verify(self, text: str, address: str) -> WebIdentity | None:
        """Whom a token names that comes from an address; None: the keys are to be read first (``keys.refresh``).

        Raises:
            UnauthenticatedError: it is not good.
            TooManyRequestsError: too many that were signed by nobody came from the address.
            NotReadyError: there are no keys to tell by.
        """
        key = self._key(_header(text))
        if key is None:
            return None
        self._forged.check(address, self._clock.now_ms())
        try:
            # Times are held against the node's own clock, below.
            claims = jwt.decode(
                text,
                key=key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                options={
                    "require": _REQUIRED,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidSignatureError:
            self._forged.add(address, self._clock.now_ms())
            raise _bad("its signature is not one of its key") from None
        except jwt.InvalidIssuerError:
            raise _bad(f"its iss is not {self._issuer}") from None
        except jwt.InvalidAudienceError:
            raise _bad(f"its aud has no {self._audience}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _bad(str(error) or type(error).__name__) from None
        return WebIdentity(
            principal=self._principal(claims),
            groups=self._groups(claims),
            expires_ms=self._end_ms(claims),
            keys_version=self.keys.version,
        )

    def _key(self, header: dict[str, object]) -> jwt.PyJWK | None:
        """The key that signed it, if its header is true; None: it may come with the next reading."""
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise _bad("its kid is no text")
        if "crit" in header:
            raise _bad("its header has crit: this node knows no extension")
        keys = self.keys.keys
        key = None if keys is None else keys.find(kid)
        if key is None:
            if self.keys.may_ask and (keys is None or kid is not None):
                return None
            if keys is None:
                raise NotReadyError(
                    f"the keys of {self._issuer} cannot be read: {self.keys.failure}; this node cannot tell whether "
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
        """When it is good no more; now it is."""
        now_s = self._clock.wall_ms() / 1000
        end_s = _seconds(claims, "exp") + LEEWAY_S
        if now_s >= end_s:
            raise _bad(f"it expired {now_s - end_s + LEEWAY_S:.0f} s ago; get another one")
        for name in ("nbf", "iat"):
            if name in claims and _seconds(claims, name) - LEEWAY_S > now_s:
                raise _bad(f"its {name} is in the future; look at the clocks of issuer and node")
        return math.floor(end_s * 1000)

    def _principal(self, claims: dict[str, object]) -> str:
        name = claims.get(self._user_claim)
        if not isinstance(name, str) or not name:
            raise _bad(f"its claim {self._user_claim} is missing or no text")
        if not _NAME.fullmatch(NAME_PREFIX + name):
            raise _bad(
                f"its {self._user_claim} {_shown(name)} cannot be a principal, which has 1 to {255 - len(NAME_PREFIX)} "
                "letters, digits or . _ @ : / + = -; choose another claim by oidc_user_claim"
            )
        return USER_PREFIX + NAME_PREFIX + name

    def _groups(self, claims: dict[str, object]) -> tuple[str, ...]:
        """Those that entries can name; no entry can be made for the others, so that they change nothing."""
        if self._groups_claim is None:
            return ()
        found = claims.get(self._groups_claim)
        names = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _bad(f"its claim {self._groups_claim} is no list of texts")
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
        raise _bad("its header is no JSON in base64url") from None
    if not isinstance(header, dict):
        raise _bad("its header is no object")
    return header


def _seconds(claims: dict[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(f"its {name} is no number")
    if not 0 <= value <= SECONDS_MAX:
        raise _bad(f"its {name} is no time")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _bad(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"the token of the issuer is refused: {why}")
