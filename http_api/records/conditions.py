"""v2: conditional writes, by RFC 9110. A read returns the partition's next offset as ``ETag``; a write may require it.

A partition changes only at its end. So its next offset, together with the topic's tag (``topic_tags``), identifies its
content.
"""

import re
from typing import NamedTuple

from http_api.describing.params import Param, ParamPlace
from http_api.describing.schemas import integer_text
from http_api.records.topic_tags import EXAMPLE, PATTERN, tagged
from http_api.serving.call import Call
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError
from milena.model.requests import Acks

IF_MATCH = Param(
    name="If-Match",
    place=ParamPlace.HEADER,
    description=(
        f'write only if this is the `ETag` of the partition now: `"{EXAMPLE}.42"`, or its next offset alone: `"42"` '
        "or 42. No `*`, weak tag or list. Otherwise 412, and nothing is written. The records are for one partition, "
        "and one batch"
    ),
    schema=text(pattern=f'^("({PATTERN}\\.)?[0-9]{{1,19}}"|[0-9]{{1,19}})$'),
    example=f'"{EXAMPLE}.42"',
)
_CONDITION = re.compile(rf'"(?:({PATTERN})\.)?([0-9]+)"|([0-9]+)', re.ASCII)


class ExpectedEnd(NamedTuple):
    """The condition of a write: the offset at which it must start, and the topic's tag (empty: no condition on it)."""

    offset: int
    topic_tag: str


def etag(topic_id: str, next_offset: int) -> tuple[str, str]:
    """Return the header ``ETag`` for a partition whose next offset is ``next_offset``."""
    return ("ETag", f'"{tagged(topic_id, str(next_offset))}"')


def expected_end(call: Call, acks: Acks) -> ExpectedEnd | None:
    """Return the condition of a write; None without one.

    Raises:
        MalformedRequestError: the header is not one offset, or ``acks=0``, with which the client would not learn the
            result.
    """
    if IF_MATCH.name not in call.request.headers:
        return None
    given = call.header(IF_MATCH.name)
    found = _CONDITION.fullmatch(given)
    if found is None:
        raise MalformedRequestError(
            f"If-Match got '{given}': give the ETag of a read, or the partition's next offset, as \"42\" or 42; "
            "no *, no weak tag, no list"
        )
    end = integer_text(IF_MATCH.name, found[2] or found[3])
    if acks is Acks.NONE:
        raise MalformedRequestError(
            "with acks=0 and async=true no response says whether If-Match held: use acks=all or 1"
        )
    return ExpectedEnd(end, found[1] or "")
