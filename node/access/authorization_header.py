"""Parses the request header ``Authorization``."""

import base64
import binascii

from milena.model.errors import UnauthenticatedError


def scheme_and_rest(authorization: str) -> tuple[str, str]:
    """Return the scheme in lower case, and the text after it."""
    scheme, _, rest = authorization.partition(" ")
    return scheme.lower(), rest.strip()


def name_and_password(given: str) -> tuple[str, str]:
    """Return the name and the password of ``Basic`` credentials. Source: RFC 7617.

    Raises:
        UnauthenticatedError: the text is not base64 of NAME:PASSWORD.
    """
    try:
        text = base64.b64decode(given.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise UnauthenticatedError("Authorization: Basic must be base64 of NAME:PASSWORD") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise UnauthenticatedError("Authorization: Basic must be base64 of NAME:PASSWORD")
    return name, password
