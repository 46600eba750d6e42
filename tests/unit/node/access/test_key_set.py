"""What of a document of keys is taken, and what never."""

import json

import pytest

from node.access.key_set import DOCUMENT_BYTES_MAX, KEYS_MAX, KeySetError, parse_keys
from tests.support.http.issuer import document, public_jwk


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (public_jwk("rsa"), "RS256"),
        (public_jwk("rsa", alg="PS384"), "PS384"),
        (public_jwk("rsa", use="sig", key_ops=["verify"]), "RS256"),
        (public_jwk("p256"), "ES256"),
        (public_jwk("p384", alg="ES384"), "ES384"),
        (public_jwk("ed25519"), "EdDSA"),
        (public_jwk("ed25519", alg="Ed25519"), "EdDSA"),
    ],
)
def test_a_key_is_good_for_one_algorithm(key, algorithm):
    found = parse_keys(document(key)).find(key["kid"])
    assert found.algorithm_name == algorithm


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (public_jwk("rsa1024"), "2048 to 8192 bits, not 1024"),
        (public_jwk("p521"), "crv 'P-521' is none of"),
        (public_jwk("ed448"), "crv 'Ed448' is none of"),
        ({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "x"}, "kty 'oct'"),
        ({"kty": ["RSA"], "kid": "x"}, "kty ['RSA']"),
        (public_jwk("rsa", alg="HS256"), "alg 'HS256' is none of"),
        (public_jwk("rsa", alg="none"), "alg 'none' is none of"),
        (public_jwk("rsa", alg=["RS256"]), "is none of"),
        (public_jwk("rsa", alg="ES256"), "is none of"),
        (public_jwk("p256", alg="RS256"), "alg 'RS256' does not fit it, ES256 does"),
        (public_jwk("p256", alg="ES384"), "does not fit"),
        (public_jwk("p256", alg="Ed25519"), "does not fit"),
        (public_jwk("rsa", use="enc"), "not for signatures"),
        (public_jwk("rsa", key_ops=["encrypt"]), "not for signatures"),
        (public_jwk("rsa", kid=7), "kid is not text"),
        (public_jwk("rsa", n=None), "n, e is missing"),
        (public_jwk("rsa", n="!"), ""),
        (public_jwk("rsa", e="AQ"), ""),
        (public_jwk("p256", x=public_jwk("p256/2")["x"]), ""),
        ("text", "not an object"),
    ],
)
def test_a_key_that_is_no_good_is_left_out_and_told(key, said):
    with pytest.raises(KeySetError, match="no key in it is of use") as caught:
        parse_keys(document(key))
    assert said in str(caught.value)
    kept = parse_keys(document(key, public_jwk("p384")))
    assert list(kept.keys) == ["p384"]
    assert said in kept.left_out[0]


def test_the_second_key_of_an_id_is_left_out():
    found = parse_keys(document(public_jwk("rsa", kid="x"), public_jwk("p256", kid="x")))
    assert found.find("x").algorithm_name == "RS256"
    assert "another one has the kid 'x'" in found.left_out[0]


def test_a_private_key_is_read_as_a_public_one():
    found = parse_keys(document(public_jwk("rsa", d="AQAB", x5c=["!"], x5u="http://x", jku="y")))
    assert not hasattr(found.find("rsa").key, "sign")


def test_a_token_without_kid_has_the_only_key():
    one, two = public_jwk("rsa"), public_jwk("p256")
    assert parse_keys(document(one)).find(None) is not None
    assert parse_keys(document(one, two)).find(None) is None
    assert parse_keys(document(one)).find("another") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no JWKS document"),
        (b'{"keys": {}}', "no JWKS document"),
        (b'{"keys": []}', "no key in it"),
        (json.dumps({"keys": [1] * (KEYS_MAX + 1)}).encode(), "more than 100 keys"),
        (b" " * (DOCUMENT_BYTES_MAX + 1), "more than 262144 bytes"),
    ],
)
def test_what_is_no_set_of_keys_is_refused(text, said):
    with pytest.raises(KeySetError, match=said):
        parse_keys(text)
