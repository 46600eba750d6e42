"""Public keys of a token issuer: parses the keys of a JWKS document that can check signatures.

The key alone decides the algorithm; a token cannot. Each key is parsed for exactly one algorithm. A key that is too
weak, of an unknown kind or for another use is left out and reported. Only the public members of a key are read.

Source: RFC 7517, RFC 7518, RFC 8037; RFC 8725 for known attacks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

DOCUMENT_BYTES_MAX = 256 << 10
KEYS_MAX = 100
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192

_RSA_DEFAULT = "RS256"
"""The algorithm of an RSA key that does not name one."""
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES = {("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("OKP", "Ed25519"): "EdDSA"}
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


class KeySetError(Exception):
    """The document is not a set of keys, or has no usable key."""


class _UnusableKeyError(Exception):
    """A key cannot be used and is left out; the message says why."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of a document, by key id."""

    keys: Mapping[str, PyJWK]
    left_out: tuple[str, ...] = ()
    """Messages about keys of the document that are left out."""

    def find(self, kid: str | None) -> PyJWK | None:
        """Return the key with this id. If ``kid`` is None and there is only one key, return that key; else None."""
        if kid is not None:
            return self.keys.get(kid)
        return next(iter(self.keys.values())) if len(self.keys) == 1 else None


def parse_keys(document: bytes) -> KeySet:
    """Return the keys of a JWKS document.

    Raises:
        KeySetError: the document is not a JWKS document, or has no usable key.
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise KeySetError(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise KeySetError(f"it is not JSON: {error}") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise KeySetError('it is no JWKS document, {"keys": [...]}')
    if len(listed) > KEYS_MAX:
        raise KeySetError(f"it has more than {KEYS_MAX} keys")
    keys: dict[str, PyJWK] = {}
    left_out = []
    for number, item in enumerate(listed):
        try:
            kid, key = _parse(item)
            if kid in keys:
                raise _UnusableKeyError(f"another one has the kid {kid!r}")
        except _UnusableKeyError as error:
            left_out.append(f"key {number}: {error}")
        else:
            keys[kid] = key
    if not keys:
        raise KeySetError("no key in it is of use" + "".join(f"; {why}" for why in left_out))
    return KeySet(keys, tuple(left_out))


def _parse(item: object) -> tuple[str, PyJWK]:
    if not isinstance(item, dict):
        raise _UnusableKeyError("it is not an object")
    kid = item.get("kid", "")
    if not isinstance(kid, str):
        raise _UnusableKeyError("its kid is not text")
    if item.get("use", "sig") != "sig":
        raise _UnusableKeyError(f"it is not for signatures: use {item['use']!r}")
    operations = item.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _UnusableKeyError("it is not for signatures: key_ops has no 'verify'")
    kind = item.get("kty")
    algorithm = _algorithm(kind, item)
    # Read no other members: no certificates, no URLs, and no private key.
    members = {name: item.get(name) for name in _PUBLIC[cast("str", kind)]}
    if not all(isinstance(value, str) for value in members.values()):
        raise _UnusableKeyError(f"a member of {', '.join(members)} is missing or no text")
    try:
        key = PyJWK({"kty": kind, **members}, algorithm=algorithm)
    except (PyJWTError, ValueError, TypeError, OverflowError) as error:
        raise _UnusableKeyError(str(error) or type(error).__name__) from None
    if isinstance(key.key, RSAPublicKey) and not RSA_BITS_MIN <= key.key.key_size <= RSA_BITS_MAX:
        raise _UnusableKeyError(
            f"an RSA key has {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, not {key.key.key_size}"
        )
    return kid, key


def _algorithm(kind: object, item: Mapping[str, object]) -> str:
    """Return the algorithm of the key."""
    said = item.get("alg")
    if kind == "RSA":
        algorithm = _RSA_DEFAULT if said is None else said
        if not isinstance(algorithm, str) or algorithm not in _RSA:
            raise _UnusableKeyError(f"alg {said!r} is none of {', '.join(sorted(_RSA))}")
        return algorithm
    curve = item.get("crv")
    found = _CURVES.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str) else None
    if found is None:
        raise _UnusableKeyError(
            f"kty {kind!r}, crv {curve!r} is none of RSA, EC P-256, EC P-384, OKP Ed25519"
        )
    # Ed25519 is the newer name of EdDSA with this curve (RFC 9864).
    if said not in (None, found) and (found, said) != ("EdDSA", "Ed25519"):
        raise _UnusableKeyError(f"alg {said!r} does not fit it, {found} does")
    return found
