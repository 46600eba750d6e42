"""The ``Idempotency-Key`` of a request: what it may be, and what logs keep of it."""

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
    """What is kept of the header's value, if there is one.

    Args:
        key: the header's value.
        body: the request's, the same in every repeat.
        scope: within which keys are told apart.
        meaning: what else makes another request of the same bytes.

    Raises:
        MalformedRequestError: it cannot be a key.
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
