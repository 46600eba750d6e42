"""An issuer of tokens in memory: keys of every type, a key document, and valid or forged tokens."""

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from node.access.callers import Callers
from node.access.issuer_keys import IssuerKeys
from node.access.web_tokens import WebTokens
from node.process.https import FetchError
from tests.support.fakes.access import SILENCE_MS_MAX
from tests.support.fakes.ports import FakeNode

if TYPE_CHECKING:
    from node.metadata.store import MetadataStore

ISSUER, AUDIENCE = "https://id.example.org/realms/a", "milena"
PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)
ALGORITHMS = {"rsa": "RS256", "p256": "ES256", "p384": "ES384", "ed25519": "EdDSA"}


@cache
def private_key(name: str) -> PrivateKey:
    """Return the key with this name; all tests share it."""
    match name.partition("/")[0]:
        case "rsa":
            return rsa.generate_private_key(65537, 2048)
        case "rsa1024":
            return rsa.generate_private_key(65537, 1024)
        case "p256":
            return ec.generate_private_key(ec.SECP256R1())
        case "p384":
            return ec.generate_private_key(ec.SECP384R1())
        case "p521":
            return ec.generate_private_key(ec.SECP521R1())
        case "ed448":
            return ed448.Ed448PrivateKey.generate()
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def public_jwk(name: str, **members: object) -> dict[str, object]:
    """Return the public key as in a key document; its key id is its name."""
    public = private_key(name).public_key()
    match public:
        case rsa.RSAPublicKey():
            written = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            written = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            written = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {key: value for key, value in written.items() if key != "key_ops"} | {
        "kid": name,
        **members,
    }


def document(*keys: Mapping[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class MemoryIssuer:
    """Signs tokens, by default with ``rsa``; ``asked_count`` is the number of times that its keys were read."""

    def __init__(self, node: FakeNode, **settings: str) -> None:
        self.clock = node.access.clock
        self.document = document(*(public_jwk(name) for name in ALGORITHMS))
        self.failure = ""
        self.asked_count = 0
        self.keys = IssuerKeys(where="memory", read=self._read, clock=self.clock)
        self.tokens = WebTokens(
            keys=self.keys,
            clock=self.clock,
            **{
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "user_claim": "sub",
                "groups_claim": "groups",
                **settings,
            },
        )
        access = node.access
        node.callers = Callers(
            # As in ``NodeAccess``, the store has no quorum.
            metadata=cast("MetadataStore", access.store),
            passwords=access.passwords,
            clock=access.clock,
            heard_ms=lambda: access.heard_ms,
            silence_ms_max=SILENCE_MS_MAX,
            has_first_user=False,
            random_bytes=bytes,
            web_tokens=self.tokens,
        )

    async def _read(self) -> bytes:
        self.asked_count += 1
        if self.failure:
            raise FetchError(self.failure)
        return self.document

    def claims(self, **others: object) -> dict[str, object]:
        """Return valid claims with changes; None removes a claim."""
        now_s = self.clock.wall_ms() // 1000
        found = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ann",
            "iat": now_s,
            "exp": now_s + 300,
            **others,
        }
        return {name: value for name, value in found.items() if value is not None}

    def token(
        self, key: str = "rsa", *, header: Mapping[str, object] | None = None, **claims: object
    ) -> str:
        """Return a token signed by this key; its key id is the key's name, unless ``header`` has another."""
        return PyJWS().encode(
            json.dumps(self.claims(**claims)).encode(),
            private_key(key),
            algorithm=ALGORITHMS.get(key.partition("/")[0], "RS256"),
            headers={"kid": key, **(header or {})},
        )

    def unsigned(
        self, header: Mapping[str, object], signature: bytes = b"", **claims: object
    ) -> str:
        """Return a token with any bytes instead of a signature."""
        return f"{part(header)}.{part(self.claims(**claims))}.{part(signature)}"
