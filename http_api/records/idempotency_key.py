"""The ``Idempotency-Key`` of a request: check its value, and compute the hashes that partition logs store."""

from hashlib import blake2b

from http_api.describing.params import Param, ParamPlace
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError
from milena.model.requests import IdempotencyKey

_CHARS_MAX = 255

IDEMPOTENCY_KEY = Param(
    name="Idempotency-Key",
    place=ParamPlace.HEADER,
    description=(
        "a repeat with the same body gets the first answer and writes nothing, on any node; visible ASCII characters"
    ),
    schema=text(minLength=1, maxLength=_CHARS_MAX, pattern="^[!-~]+$"),
    example="payment-17",
)


def idempotency_of(
    key: str | None, body: bytes, *, scope: str, meaning: str
) -> IdempotencyKey | None:
    """Return the hashes of a key and its request; None without a key.

    Args:
        key: the header's value.
        body: the request's body, which must be equal in every retry.
        scope: the same key in two scopes counts as two keys.
        meaning: a text with all options that change the meaning of the body, such as its format.

    Raises:
        MalformedRequestError: the value is not valid as a key.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= _CHARS_MAX or not all("!" <= c <= "~" for c in key):
        raise MalformedRequestError(
            f"Idempotency-Key must be 1 to {_CHARS_MAX} visible ASCII characters"
        )
    body_hash = blake2b(meaning.encode(), digest_size=8)
    body_hash.update(body)
    return IdempotencyKey(
        key_hash=blake2b(f"{scope}\0{key}".encode(), digest_size=16).digest(),
        body_hash=body_hash.digest(),
    )
