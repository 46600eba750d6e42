"""Decoders of what callers say who they are, and of what an issuer and its tokens say."""

import itertools
import json
from functools import cache

from milena.model.errors import MilenaError
from node.access.key_set import KeySetError, parse_keys
from node.access.web_tokens import WebTokens
from tests.fuzz.targets.target import Target
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import ClosedNode, basic, bearer
from tests.support.http.issuer import ALGORITHMS, MemoryIssuer, part, private_key

_addresses = itertools.count()


@cache
def _issuer() -> MemoryIssuer:
    found = MemoryIssuer(FakeNode())
    found.keys.take(found.document)
    return found


def _verified(tokens: WebTokens, text: str) -> object:
    # Each from another address: who is wrong often is not looked at any more.
    return tokens.verify(text, str(next(_addresses)))


def key_set(data: bytes) -> object:
    keys = parse_keys(data)
    return [keys.find(kid) for kid in (None, "rsa")]


def key_set_seeds() -> list[bytes]:
    return [_issuer().document]


def web_token(data: bytes) -> object:
    return _verified(_issuer().tokens, data.decode("utf-8", "surrogateescape"))


def web_token_seeds() -> list[bytes]:
    return [_issuer().token(key, groups=["a"]).encode() for key in ALGORITHMS]


def signed_token(data: bytes) -> object:
    """A header, a zero byte and claims, which the issuer signs whatever they are."""
    header, _, claims = data.partition(b"\0")
    signed = f"{part(header)}.{part(claims)}"
    signature = private_key("ed25519").sign(signed.encode())
    return _verified(_issuer().tokens, f"{signed}.{part(signature)}")


def signed_token_seeds() -> list[bytes]:
    header = {"alg": "EdDSA", "kid": "ed25519", "typ": "JWT"}
    claims = _issuer().claims(groups=["a", "b"], nbf=1, aud=["x", "milena"], name="Ann")
    return [json.dumps(header).encode() + b"\0" + json.dumps(claims).encode()]


@cache
def _closed() -> FakeNode:
    node = FakeNode()
    ClosedNode(node).token("root")
    return node


def authorization(data: bytes) -> object:
    """A header, as the HTTP parser hands it on: nobody is let in but by the very token."""
    text = data.decode("utf-8", "surrogateescape")
    caller = _closed().callers.known(text, "127.0.0.1")
    scheme, _, given = text.partition(" ")
    if caller is None:
        assert scheme.lower() == "basic", "only passwords are looked at elsewhere"
        return None
    assert (scheme.lower(), given.strip()) == ("bearer", bearer("token123")["Authorization"][7:])
    assert caller.principal == "User:root"
    return caller


def authorization_seeds() -> list[bytes]:
    known = (bearer("token123"), bearer("token123", "another"), basic("root"), basic("r\u00e9"))
    return [headers["Authorization"].encode() for headers in known]


ACCESS: tuple[Target, ...] = (
    Target("authorization", authorization, (MilenaError,), authorization_seeds),
    Target("key-set", key_set, (KeySetError,), key_set_seeds),
    Target("web-token", web_token, (MilenaError,), web_token_seeds),
    Target(
        "signed-token",
        signed_token,
        (MilenaError,),
        signed_token_seeds,
    ),
)
