"""Messages of SASL: the credentials in them, and bytes that are no message."""

import base64
import random

import pytest

from milena.model.errors import UnauthenticatedError
from node.kafka.sasl import (
    CREDENTIALS_OF,
    OAUTHBEARER,
    PLAIN,
    SaslCredentials,
    bearer_credentials,
    plain_credentials,
)

TOKEN = "mln_abcdefgh_" + "x" * 43


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("message", "given"),
    [
        (b"\0ann\0secret", SaslCredentials(basic("ann:secret"), "ann")),
        (b"ann\0ann\0a:b", SaslCredentials(basic("ann:a:b"), "ann")),
        ("\0ann\0pässwörd".encode(), SaslCredentials(basic("ann:pässwörd"), "ann")),
        (f"\0ann\0{TOKEN}".encode(), SaslCredentials(f"Bearer {TOKEN}", "ann")),
        # A password that only begins like a token.
        (b"\0ann\0mln_secret", SaslCredentials(basic("ann:mln_secret"), "ann")),
    ],
)
def test_plain_has_a_user_and_a_password_or_a_token(message: bytes, given: SaslCredentials) -> None:
    assert plain_credentials(message) == given


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"ann",
        b"ann\0secret",
        b"\0ann\0secret\0",
        b"\0\0secret",
        b"\0ann\0",
        b"\0ann\0\xff",
        b"bob\0ann\0secret",
        # As a header it would be the user ann with the password x:secret.
        b"\0ann:x\0secret",
    ],
)
def test_other_messages_of_plain_are_refused(message: bytes) -> None:
    with pytest.raises(UnauthenticatedError):
        plain_credentials(message)


@pytest.mark.parametrize(
    ("message", "given"),
    [
        (b"n,,\x01auth=Bearer a.b-c_d\x01\x01", SaslCredentials("Bearer a.b-c_d", None)),
        (b"n,a=ann,\x01auth=bearer  t=\x01\x01", SaslCredentials("Bearer t=", "ann")),
        (b"n,a=a=2Cb=3D,\x01auth=Bearer t\x01\x01", SaslCredentials("Bearer t", "a,b=")),
        (b"n,,\x01host=h\x01auth=Bearer t\x01x=y\x01\x01", SaslCredentials("Bearer t", None)),
    ],
)
def test_oauthbearer_has_a_token_and_may_name_a_user(
    message: bytes, given: SaslCredentials
) -> None:
    assert bearer_credentials(message) == given


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer t",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\r\nX: b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_other_messages_of_oauthbearer_are_refused(message: bytes) -> None:
    with pytest.raises(UnauthenticatedError):
        bearer_credentials(message)


@pytest.mark.parametrize("mechanism", [PLAIN, OAUTHBEARER])
def test_any_bytes_are_credentials_in_one_line_or_are_refused(mechanism: str) -> None:
    rng = random.Random(7)
    seeds = [b"\0ann\0secret", b"n,a=ann,\x01auth=Bearer abc\x01\x01", TOKEN.encode(), b""]
    pieces = [b"\0", b"\x01", b",", b"=", b":", b"\r\n", b"\xff", b"Bearer ", b"auth=", b"n,,"]
    good = 0
    for _ in range(20_000):
        message = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(message) + 1)
            message[at : at + rng.randrange(3)] = rng.choice([*pieces, rng.randbytes(2)])
        try:
            given = CREDENTIALS_OF[mechanism](bytes(message))
        except UnauthenticatedError:
            continue
        good += 1
        scheme, _, rest = given.authorization.partition(" ")
        assert scheme in {"Basic", "Bearer"}
        assert rest
        assert not set(rest) & set(" \r\n\0\x01,")
        if scheme == "Basic":
            name, _, _ = base64.b64decode(rest).decode().partition(":")
            assert name == given.user
    assert good > 500


def test_a_long_message_takes_no_long_time() -> None:
    for message in (
        b"\0" * 65_000,
        b"n,," + b"\x01a=" * 20_000,
        b"n,,\x01auth=" + b"Bearer " * 9_000,
    ):
        for parse in CREDENTIALS_OF.values():
            with pytest.raises(UnauthenticatedError):
                parse(message)
