"""v2: conditions on where a partition ends, by the header of RFC 9110: a read tells it as ``ETag``, a write names it.

What a partition holds never changes but at its end, so that the offset that comes next stands for all of it.
"""

from http_api.call import Call
from http_api.describing.params import Param, ParamPlace
from http_api.describing.schemas import integer_text
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError
from milena.model.requests import Acks

IF_MATCH = Param(
    name="If-Match",
    place=ParamPlace.HEADER,
    description=(
        'write only if this is the partition\'s next offset, the `ETag` of a read: `"42"` or 42, no `*`, weak tag or '
        "list. Otherwise 412, and nothing is written. The records are for one partition, and one batch"
    ),
    schema=text(pattern='^("[0-9]{1,19}"|[0-9]{1,19})$'),
    example='"42"',
)


def etag(next_offset: int) -> tuple[str, str]:
    """The header of an answer that tells all below this offset."""
    return ("ETag", f'"{next_offset}"')


def expected_end(call: Call, acks: Acks) -> int | None:
    """The offset at which a write is to be; None: wherever the partition ends.

    Raises:
        MalformedRequestError: not one offset, or nobody would hear whether it was written.
    """
    if IF_MATCH.name not in call.request.headers:
        return None
    given = call.header(IF_MATCH.name)
    digits = given[1:-1] if len(given) > 2 and given[0] == given[-1] == '"' else given
    if not (digits.isascii() and digits.isdigit()):
        raise MalformedRequestError(
            f"If-Match got '{given}': give the partition's next offset, as \"42\" or 42; no *, no weak tag, no list"
        )
    end = integer_text(IF_MATCH.name, digits)
    if acks is Acks.NONE:
        raise MalformedRequestError(
            "with acks=0 and async=true nobody hears whether If-Match held: use acks=all or 1"
        )
    return end
