"""v2: tokens, with which the client of a REST consumer confirms a response, or requests a lost response again."""

import re
from collections.abc import Mapping

from http_api.describing.params import Param
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError

_PATTERN = "^[A-Za-z0-9._~-]{1,64}$"
_EXAMPLE = "7f3a.1"

TOKEN = Param(
    "token",
    "of one answer, not of a stream: the client's own, a new one for each. The same one again brings the same records "
    "again; another one, or none, says that they have arrived",
    text(pattern=_PATTERN),
    _EXAMPLE,
)
ARRIVED = Param(
    "token",
    "that of the last answer, to say that it has arrived: where answers have tokens, only what certainly has is "
    "committed",
    text(pattern=_PATTERN),
    _EXAMPLE,
)


def read_token(query: Mapping[str, str]) -> str:
    """Return the token in a query; empty without one.

    Raises:
        MalformedRequestError: the token is not 1 to 64 letters, digits or ``. _ ~ -``.
    """
    token = query.get(TOKEN.name)
    if token is None:
        return ""
    if not re.fullmatch(_PATTERN, token):
        raise MalformedRequestError(
            f"Invalid parameter 'token' got '{token}': use 1 to 64 letters A to Z and a to z, digits, and . _ ~ -"
        )
    return token
