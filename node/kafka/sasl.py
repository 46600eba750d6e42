"""SASL messages of Kafka clients as the credentials that HTTP has, too: the value of an ``Authorization`` header.

So the same code authenticates both (``http_api.access.callers``), and this module checks nothing but the form.

Source: RFC 4616 (PLAIN), RFC 7628 and KIP-255 (OAUTHBEARER).
"""

import base64
import re
from typing import NamedTuple

from milena.model.access import ScramMechanism
from milena.model.errors import UnauthenticatedError

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SCRAM = tuple(ScramMechanism)
MECHANISMS = (OAUTHBEARER, PLAIN, *SCRAM)

REFUSED_TOKEN = b'{"status":"invalid_token"}'
"""The response to a bad token. The client answers it with ``\\x01``, and authentication has failed then."""

_TOKEN_OF_CLUSTER = re.compile(r"mln_[0-9A-Za-z]+_[0-9A-Za-z_-]{32,}")
"""A token of a cluster, as ``node.access.service`` makes it. No password looks like this by chance."""
_GS2_HEADER = re.compile(r"n,(?:a=([^,]*))?,")
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


class SaslCredentials(NamedTuple):
    """Credentials that a client sent. ``user``: the user to whom they must belong; None: the client named none."""

    authorization: str
    user: str | None


def plain_credentials(message: bytes) -> SaslCredentials:
    """Return the credentials in a message of PLAIN: a user with its password, or with one of its tokens.

    Raises:
        UnauthenticatedError: the message is not one, or names another user to act for.
    """
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        parts = []
    if len(parts) != 3:
        raise UnauthenticatedError(
            "a message of PLAIN is [authzid] NUL user NUL password, in UTF-8"
        )
    acts_for, user, password = parts
    if acts_for not in ("", user):
        raise UnauthenticatedError(
            "a client acts for the user that it authenticates as, and for no other"
        )
    if not user or ":" in user or not password:
        # With a colon, the header would have another name and another password.
        raise UnauthenticatedError(
            "PLAIN needs the name of a user, without a colon, and a password"
        )
    if _TOKEN_OF_CLUSTER.fullmatch(password):
        return SaslCredentials(f"Bearer {password}", user)
    given = base64.b64encode(f"{user}:{password}".encode()).decode()
    return SaslCredentials(f"Basic {given}", user)


def bearer_credentials(message: bytes) -> SaslCredentials:
    """Return the credentials in a message of OAUTHBEARER: a token of the cluster, or of the external issuer.

    Raises:
        UnauthenticatedError: the message is not one.
    """
    wrong = UnauthenticatedError(
        "a message of OAUTHBEARER is n,[a=user],\\x01auth=Bearer TOKEN\\x01\\x01; see RFC 7628"
    )
    try:
        header, *pairs = message.decode().split("\x01")
    except UnicodeDecodeError:
        raise wrong from None
    # Each pair ends with \x01, and the message with another one.
    if len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise wrong
    named = _GS2_HEADER.fullmatch(header)
    # Other pairs are extensions, which have no meaning here (KIP-342).
    values = [value for key, _, value in (pair.partition("=") for pair in pairs) if key == "auth"]
    token = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if named is None or token is None:
        raise wrong
    user = (named[1] or "").replace("=2C", ",").replace("=3D", "=")
    return SaslCredentials(f"Bearer {token[1]}", user or None)


CREDENTIALS_OF = {PLAIN: plain_credentials, OAUTHBEARER: bearer_credentials}
"""The parser of the only message of each mechanism. SCRAM has more of them: see ``node.kafka.scram``."""
